"""Replay log: completed turns of the current round, so that a repeated round does none again.

A client's turn is a part of its work. It depends on the client and on its inputs from the round,
and produces one value. A round is repeated if a signal ended it (then in another process), or
without a client that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from hpcfed.comm import codec
from hpcfed.core.params import Mean, Params, Term
from hpcfed.core.payload import Tally

GO, AGAIN, STOP = range(3)  # a rank's word to the others at a barrier; the highest counts
# types of failures, by number in results; diverged: loss, weights or upload not finite
WHY = ("", "diverged", "data", "memory")


class Again(Exception):
    """Signal that clients failed: all ranks repeat the round without them."""


@dataclass
class Turn:
    """A completed turn.

    value: the result of the turn.
    tally: the client's tally after it.
    group: the clients that trained together in it, including the client itself.
    late: whether it followed an exchange, and so depends on who took part in that.
    """

    value: Any
    tally: Tally | None
    group: list[int]
    late: bool = False


@dataclass
class Entry:
    """Log of one client in the current round.

    turns: its completed turns.
    before: its scores before them.
    failures: by the number of its task, why the client left the round.
    """

    turns: list[Turn] = field(default_factory=list)
    before: tuple[Any, ...] | None = None
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)  # kind, of WHY, and message

    def encode(self) -> np.ndarray:
        """Encode the entry as bytes, to be sent or saved."""
        turns = [
            (turn.value, turn.tally and astuple(turn.tally), turn.group, turn.late)
            for turn in self.turns
        ]
        before = None if self.before is None else tuple(self.before)
        return np.frombuffer(codec.encode([turns, before, self.failures]), np.uint8)

    @classmethod
    def decode(cls, data: np.ndarray) -> Entry:
        turns, before, failed = codec.decode(data.tobytes())
        logged = [Turn(v, tally and Tally(*tally), *more) for v, tally, *more in turns]
        return cls(logged, before, failed)


class ReplayLog:
    """Completed turns of a rank's clients, and clients of all ranks that have left the round."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        # turns requested by each client since the last start of the round
        self.requests: dict[int, int] = {}
        # failures of clients of all ranks, as in `Entry.failures`
        self.left: dict[int, dict[int, tuple[str, str]]] = {}
        self.exchanges = 0  # since the round was last begun
        # calls of `Federation.on_root` and `spread`: since then, or before the first round
        self.server_work: tuple[str, int] = ("init", 0)
        # since then, calls of `Federation.stream`, and uploads of each of this rank's clients
        self.streams, self.uploads = 0, Counter[int]()
        self.news = False  # a client of this rank has failed, and other ranks do not know it yet

    def of(self, k: int) -> Entry:
        """Return the entry of client k; make it if there is none."""
        return self.entries.setdefault(k, Entry())

    def begin(self) -> None:
        """Begin the round, or repeat it."""
        self.requests, self.exchanges, self.news = {}, 0, False
        self.server_work = ("round", 0)
        self.streams, self.uploads = 0, Counter()

    def clear(self) -> None:
        """Discard the log after the round."""
        server_work = self.server_work
        self.__init__()  # type: ignore[misc]
        self.server_work = server_work

    def next(self, k: int, group: list[int]) -> Turn | None:
        """Return client k's next turn if it is completed already, else None.

        group: the clients of the turn. A completed turn with another group is discarded.
        """
        turns, i = self.turns(k), self.requests.get(k, 0)
        self.requests[k] = i + 1
        if i < len(turns) and turns[i].group != group:
            del turns[i:]
        return turns[i] if i < len(turns) else None

    def turns(self, k: int) -> list[Turn]:
        """Return the completed turns of client k."""
        return self.entries[k].turns if k in self.entries else []

    def fail(self, k: int, task: int, kind: str, message: str) -> None:
        """Record that client k failed and leaves the round.

        task: number of its task, if it may have several.
        """
        entry = self.of(k)
        entry.failures[task], self.news = (kind, message), True

    def failures(self) -> dict[int, dict[int, tuple[str, str]]]:
        """Return the failures of this rank's clients, for all ranks."""
        return {k: entry.failures for k, entry in self.entries.items() if entry.failures}

    def has_late_turns(self) -> bool:
        """Return whether turns of this rank's clients depend on who took part in an exchange."""
        return any(turn.late for entry in self.entries.values() for turn in entry.turns)

    def __contains__(self, k: object) -> bool:
        return k in self.entries

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)


def mean_to_plain(mean: Mean) -> list[Any]:
    """Return a mean's terms as lists, with the positions of their values as arrays."""
    return [
        [term.value, term.weight, {n: list(map(np.asarray, axes)) for n, axes in term.at.items()}]
        for term in mean.terms
    ]


def plain_to_mean(terms: list[Any]) -> Mean:
    """Return the mean from the lists of `mean_to_plain`."""
    return Mean(tuple(Term(v, w, {n: tuple(axes) for n, axes in at.items()}) for v, w, at in terms))


codec.register(Params, "params", dict, Params)
codec.register(Mean, "mean", mean_to_plain, plain_to_mean)
