"""What every Comm can do, and the helpers that its three implementations share."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from hpcfed.comm.codec import decode

T = TypeVar("T")
Row = Sequence[
    np.ndarray
]  # one client's contribution to a sum: the same number and shapes on all rows
Arrays = dict[str, np.ndarray]


class Into(Protocol):
    """Where a sum is written, and what becomes of its totals.

    arrays: of the sum's shapes, float32 or float64, the last ones of one type.  first: so many of
    the arrays are needed to finish the others; they are complete before any of those is finished.
    """

    arrays: list[np.ndarray]
    first: int

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        """Make of a stretch of array i's totals, [m] float64, from its flat position `start`, what
        is to be stored.

        In place, by value for value: some stretches are finished on one rank alone, and sent to the
        others.
        """


class Comm(Protocol):
    """Ranks that meet in collectives: each verb is called by all ranks, in the same order.

    A rank with nothing to give calls as well, with no rows, no items or None. What `gather`,
    `bcast` and `move` return is always a copy that came through `codec`, on one rank too: nobody
    shares memory by accident, and a type that cannot travel is found on the first laptop run.

    Where the MPI runtime allows it (`ulfm`), a rank's death raises RankLost on every other rank, in
    the verb that it is in, or in a later one; then nothing but `shrink` and `abort` can be called.
    What verbs gave in between may be
    wrong, without an error: Open MPI's collectives do that. So nothing counts before `confirm` has
    returned.
    """

    rank: int  # 0..size-1
    size: int
    local_rank: int  # 0.. among the ranks of this node
    node_of: tuple[int, ...]  # [size], node index 0.. of every rank
    lost: int  # ranks that died so far, and without which this one goes on

    def sum(
        self,
        rows: Sequence[Row],
        shapes: Sequence[tuple[int, ...]],
        factors: Sequence[float] = (),
        into: Into | None = None,
    ) -> list[np.ndarray]:
        """Add the rows of all ranks, array by array, to arrays of these shapes: float64, or those
        of `into`.

        The same bits on all ranks, for any number of ranks and any placement of the rows; `exact`
        says how and how near. No rows anywhere: zeros. factors: each row's arrays are multiplied by
        its own, in float64; 1 by default. A row may be lazy: each of its items is taken twice, and
        must be the same both times. Raises DivergedError for a nan or infinite value (before any
        communication) and, on one rank at least, for a total beyond float64; ValueError for a row
        of other shapes.
        """

    def gather(self, items: dict[int, T]) -> dict[int, T]:
        """The union of all ranks' items, in the order of the client ids, on all ranks.

        Raises ValueError if two ranks give the same id, TypeError for an item that `codec` does not
        carry.
        """

    def bcast(self, item: T, root: int = 0) -> T:
        """The root's item, on all ranks; what the others pass is ignored."""

    def move(self, item: T | None, src: int, dst: int) -> T | None:
        """Rank src's item on rank dst, None on all other ranks."""

    def barrier(self, word: int = 0) -> int:
        """Return when all ranks have called: the highest word that one gave."""

    def share(self, build: Callable[[], Arrays]) -> Arrays:
        """Arrays that one rank of each node builds and all ranks of that node read from the same
        memory.

        They are read-only, and stay valid. An error of build() is raised on the building rank only;
        its caller must abort the run, for the other ranks wait.
        """

    def confirm(self) -> None:
        """Return when all ranks have called and none has died: all that verbs gave so far is right.

        Else RankLost, on all ranks alike.
        """

    def has_lost_rank(self) -> bool:
        """Whether a rank has died, for who meets an error that may come of that; not collective."""

    def shrink(self) -> list[int]:
        """After RankLost: go on without the dead ranks, which are returned by their numbers of
        before.

        Collective among those that are left. They are numbered anew, in the same order. What
        `share` gave stays valid. Deaths meanwhile are dealt with.
        """

    def abort(self, status: int) -> NoReturn:
        """End all ranks at once, wherever they are, with this exit status."""

    def close(self) -> None:
        """End in order, all ranks together.

        Where ranks were lost, the process must end by os._exit then: MPI would wait for them at
        Python's exit.
        """


def valid_rank(name: str, rank: int, size: int) -> None:
    """Raise ValueError unless there is such a rank."""
    if not 0 <= rank < size:
        raise ValueError(f"{name} = {rank}: ranks are 0..{size - 1}")


def union(parts: Iterable[bytes]) -> dict[int, Any]:
    """All ranks' encoded items as one dict in the order of the ids.

    parts: one a rank, in rank order.
    """
    merged: dict[int, Any] = {}
    for rank, part in enumerate(parts):
        items = decode(part)
        if twice := sorted(merged.keys() & items.keys()):
            raise ValueError(
                f"gather: rank {rank} gives client {twice[0]}, and so does a lower rank"
            )
        merged |= items
    return dict(sorted(merged.items()))


def read_only(arrays: Arrays) -> Arrays:
    """Views of the same memory that cannot be written."""
    views = {name: np.asarray(array).view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views
