"""A round as often as it takes: begun again without the clients that failed, undone where a signal
ends it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hpcfed.engine.record import Row
from hpcfed.federation.journal import STOP, Again
from hpcfed.machine.pulse import Stopped

if TYPE_CHECKING:
    from hpcfed.algorithms.base import State
    from hpcfed.federation.federation import Federation

T = TypeVar("T")


class Attempts:
    """The part of a run's rounds that undoes what was not done to the end."""

    fed: Federation
    state: State
    t: int
    stale: np.ndarray

    @abstractmethod
    def attempt(
        self, start: float, flags: Callable[[], dict[str, bool]]
    ) -> tuple[Row, dict[str, bool]]: ...

    @abstractmethod
    def virtual(self) -> Row: ...

    @abstractmethod
    def go_on(self, kept: Row) -> None: ...

    def step(self, flags: Callable[[], dict[str, bool]] = dict) -> tuple[Row, dict[str, bool]]:
        """One round; collective. Returns its record and the flags that any rank raised, the same on
        all ranks.

        Raises Stopped on all ranks where a signal ends it; all is then as before the round, but for
        the turns that are done, of which the journal knows: in another process too the round is
        gone on with.
        """
        self.fed.pulse.t = self.t
        start, before = perf_counter(), (self.state, self.virtual(), self.stale.copy())
        while True:
            try:
                return self.together(lambda: self.attempt(start, flags))
            except Again:
                self.undo(*before)
                self.fed.spread()
            except Stopped:
                self.undo(*before)
                raise

    def together(self, fn: Callable[[], T]) -> T:
        """fn(); where it raises Stopped on one rank, all ranks raise it, as soon as they would wait
        for this one.
        """
        try:
            return fn()
        except Stopped as stop:
            if not stop.everywhere:
                self.fed.comm.barrier(STOP)
            raise

    def undo(self, state: State, virtual: Row, stale: np.ndarray) -> None:
        """Make this rank's part of the run what it was before the round, turns that are done
        excepted.
        """
        self.fed.meanwhile = lambda: None
        self.fed.store.past.undo()
        self.state, self.stale = state, stale.copy()
        self.go_on(virtual)
