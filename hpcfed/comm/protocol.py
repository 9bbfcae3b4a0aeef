"""The interface of every Comm, and helpers that its three implementations share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from hpcfed.comm.codec import decode

T = TypeVar("T")
# one client's contribution to a sum: the same number and shapes on all rows
Row = Sequence[np.ndarray]
Arrays = dict[str, np.ndarray]


class Into(Protocol):
    """The target of a sum: where totals are stored, and how they are finished.

    arrays: of the sum's shapes, float32 or float64; all but the first `n_first` have one type.
    n_first: the number of arrays that are needed to finish the others; they are complete before any
    of those is finished.
    """

    arrays: list[np.ndarray]
    n_first: int

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        """Convert part of array i's totals, [m] float64 from flat position `start`, for storage.

        It works in place and value by value: some parts are finished on one rank alone and sent to
        the others.
        """


class Lines(ABC):
    """The lines of a message, [lines, columns], while a rank puts its rows on the grid."""

    @abstractmethod
    def put(
        self, line: int, columns: slice, values: Sequence[Any], factors: Sequence[float], s: int
    ) -> None:
        """Write the sum over the rows of rint(values * factor * 2**s) to these columns of a line.

        values: [m] each, parts of what `Rows.flat` returns. Without rows the sum is 0.
        """

    @abstractmethod
    def complete(self, n: int) -> None:
        """Have the first n lines in the host's memory, from which the message is sent."""


class Rows(ABC):
    """One rank's rows of a sum, and the operations on the memory in which they lie.

    `exact.HostRows` are on the host, `federation.device_rows.DeviceRows` on a GPU.
    expected: number of rows of all ranks for which the grid has room at least, the same on all
    ranks. A scale that may tell nothing about the rows needs it.
    """

    expected = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def largest(self, shapes: Sequence[tuple[int, ...]], factors: Sequence[float]) -> np.ndarray:
        """Return the result, and raise the errors, of `exact.largest`."""

    @abstractmethod
    def flat(self, i: int) -> list[Any]:
        """Return array i of each row, [m], where it lies."""

    @abstractmethod
    def lines(self, sent: np.ndarray, buffer: np.ndarray) -> Lines:
        """Return the lines of a message.

        sent: [lines, columns] float64 on the host, from which the message is sent.
        buffer: [columns] float64 on the host; it is overwritten.
        """


class Comm(Protocol):
    """A group of ranks; each collective is called by all ranks, in the same order.

    A rank without data makes the call too, with no rows, no items or None. `gather`, `bcast` and
    `move` always return a copy made by `codec`, also on a single rank: no memory is shared by
    accident, and a type that cannot be sent is found in the first run on a laptop.

    Where the MPI runtime allows it (`ulfm`), a rank's death raises RankLost on every other rank, in
    the call that it is in, or in a later one; then only `shrink` and `abort` can be called. Results
    of calls in between may be wrong, without an error: Open MPI's collectives do that. So no result
    is valid before `confirm` has returned.
    """

    rank: int  # 0..size-1
    size: int
    local_rank: int  # 0.. among the ranks of this node
    node_of: tuple[int, ...]  # [size], node index 0.. of every rank
    lost: int  # number of ranks that have died so far

    def sum(
        self,
        rows: Sequence[Row] | Rows,
        shapes: Sequence[tuple[int, ...]],
        factors: Sequence[float] = (),
        into: Into | None = None,
    ) -> list[np.ndarray]:
        """Add the rows of all ranks, array by array, to arrays of these shapes.

        Returns float64 arrays, or the arrays of `into`. They have the same bits on all ranks, for
        any number of ranks and any placement of the rows; `exact` describes the method and its
        accuracy. Without any rows the sum is zero.
        rows: this rank's, on the host; or `Rows`, which are put on the grid where they lie, with
        the same bits.
        factors: each row's arrays are multiplied by its factor, in float64; 1 by default.
        A row may be lazy: each of its items is read twice, and must be the same both times.
        Raises DivergedError for a nan or infinite value (before any communication) and, on one rank
        at least, for a total beyond float64; ValueError for a row of other shapes.
        """

    def sum_words(self, words: np.ndarray) -> None:
        """Add words of all ranks modulo 2**64; collective.

        words: [m] uint64, contiguous; they become the sums.
        """

    def gather(self, items: dict[int, T]) -> dict[int, T]:
        """Return the union of all ranks' items, in the order of the client ids, on all ranks.

        Raises ValueError if two ranks give the same id, TypeError for an item that `codec` does not
        carry.
        """

    def bcast(self, item: T | None, root: int = 0) -> T:
        """Return the root's item on all ranks; the items of the other ranks are ignored."""

    def move(self, item: T | None, src: int, dst: int) -> T | None:
        """Return rank src's item on rank dst, None on all other ranks."""

    def barrier(self, word: int = 0) -> int:
        """Wait until all ranks have called, and return the highest `word` of any rank."""

    def share(self, build: Callable[[], Arrays]) -> Arrays:
        """Return arrays that one rank of each node builds and all ranks of that node share.

        They are read-only, and stay valid. An error of build() is raised on the building rank only;
        its caller must abort the run, because the other ranks wait.
        """

    def confirm(self) -> None:
        """Wait for all ranks, and confirm that all results so far are right.

        Raises RankLost, on all ranks alike, if a rank has died.
        """

    def has_lost_rank(self) -> bool:
        """Return whether a rank has died; not collective.

        It is for callers that meet an error which a death may have caused.
        """

    def shrink(self) -> list[int]:
        """Continue without the dead ranks after RankLost, and return their former numbers.

        Collective among the remaining ranks, which are renumbered in the same order. Arrays from
        `share` stay valid. Further deaths during the call are handled too.
        """

    def abort(self, status: int) -> NoReturn:
        """End all ranks at once, wherever they are, with this exit status."""

    def close(self) -> None:
        """End communication in order; collective.

        If ranks were lost, the process must then end by os._exit: MPI would wait for them at
        Python's exit.
        """


def valid_rank(name: str, rank: int, size: int) -> None:
    """Raise ValueError unless 0 <= rank < size. name: of the argument, for the message."""
    if not 0 <= rank < size:
        raise ValueError(f"{name} = {rank}: ranks are 0..{size - 1}")


def union(parts: Iterable[bytes]) -> dict[int, Any]:
    """Return all ranks' encoded items as one dict in the order of the ids.

    parts: one for each rank, in rank order. Raises ValueError if two ranks give the same id.
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
    """Return read-only views of the arrays."""
    views = {name: np.asarray(array).view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views
