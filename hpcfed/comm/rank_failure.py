"""Recovery of MPI ranks from the death of one of them: notification, agreement and shrinking.

By ULFM: Bland et al., 2013, doi:10.1177/1094342013488238. A collective during which a rank dies may
fail on some ranks only, and in Open MPI 5 return wrong data on others, without an error. Only the
agreement gives all ranks the same answer, and all ranks must make it: each makes one for each
`confirm`, or in place of it if it has met a death before.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from hpcfed.comm import ulfm
from hpcfed.comm.mpi_init import MPI
from hpcfed.core.errors import RankLost

T = TypeVar("T")
LOST = (
    {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED}
    if ulfm.available()
    else set()
)
NEWS = 1.0  # seconds within which a rank learns of a death; measured: tens of milliseconds


def raise_rank_lost(verb: Callable[..., T]) -> Callable[..., T]:
    """Decorate a method so that it raises RankLost if a rank has died; other ranks soon do too."""

    @wraps(verb)
    def checked(self: "RankFailures", *args: Any, **kwargs: Any) -> T:
        try:
            return verb(self, *args, **kwargs)
        except MPI.Exception as error:
            if error.Get_error_class() not in LOST:
                raise
            self._revoke()
            raise RankLost("a rank died") from error

    return checked


class RankFailures:
    """The part of `Mpi` that deals with ranks that die."""

    rank: int
    size: int
    lost = 0
    _world: MPI.Comm
    _node: MPI.Comm
    _agreed = False  # whether the agreement has reported a death: `shrink` needs no other one

    def _join(self, world: MPI.Comm) -> None:
        """Use this communicator from now on."""
        raise NotImplementedError

    def confirm(self) -> None:
        if ulfm.available() and not self._agree(True):
            self._agreed = True
            raise RankLost("a rank died")

    def has_lost_rank(self) -> bool:
        end = time.monotonic() + NEWS
        while ulfm.available() and time.monotonic() < end:
            MPI.COMM_SELF.Iprobe()  # MPI progresses only while it is called
            if self._failed():
                return True
            time.sleep(0.01)
        return False

    def shrink(self) -> list[int]:
        """Continue with the remaining ranks, as `Comm.shrink` does.

        It repeats until an agreement of all of them reports no further death.
        """
        before, size, was = self.rank, self.size, list[int]()
        if not self._agreed:
            self._revoke()
            self._agree(False)
        while not was or not self._agree(True):
            self._revoke()
            self._world, was = self._world.Shrink(), [before]
            with suppress(RankLost):  # one more death meanwhile: the agreement will report it
                was = self._meet(before)
        self.lost, self._agreed = self.lost + size - len(was), False
        return sorted(set(range(size)) - set(was))

    @raise_rank_lost
    def _meet(self, before: int) -> list[int]:
        """Join the remaining ranks, and return their former numbers."""
        self._join(self._world)
        was = np.empty(self._world.size, np.int64)
        self._world.Allgather(np.array([before], np.int64), was)
        return was.tolist()

    def _agree(self, fine: bool) -> bool:
        """Return whether all ranks pass `fine` and none has died; the same answer on all ranks."""
        answer = np.array([fine], np.int32)
        try:
            request = self._world.Iagree(answer)
            while not request.Test():
                if self._failed():
                    self._revoke()  # a rank may wait in a collective for one that is here already
                time.sleep(0)
        except MPI.Exception as error:
            if error.Get_error_class() not in LOST:
                raise
            return False
        return bool(answer[0])

    def _failed(self) -> bool:
        """Return whether this rank knows of a death."""
        if self._world.Is_revoked():
            return True
        dead = self._world.Get_failed()
        try:
            return dead.size > 0
        finally:
            dead.Free()

    def _revoke(self) -> None:
        """Revoke the communicators, so that no rank waits in a call that others will not make.

        Calls that have begun fail on the other ranks as well.
        """
        for comm in (self._world, self._node):
            if comm != MPI.COMM_NULL and not comm.Is_revoked():
                comm.Revoke()
