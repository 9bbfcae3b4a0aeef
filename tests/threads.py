"""Comm whose ranks are threads of one process, for tests that results do not depend on ranks."""

import threading
from collections.abc import Callable, Sequence
from functools import reduce
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, TypeVar

import numpy as np

from hpcfed.comm.codec import decode, encode
from hpcfed.comm.protocol import Arrays, Into, Row, Rows, read_only, union, valid_rank
from hpcfed.comm.sum_messages import Ways, exact_sum, private_buffers

T = TypeVar("T")


class Meeting:
    """The meeting point of the ranks: each exchange takes one value from each rank.

    It detects ranks that do not make the same call. Between two exchanges the ranks compute one
    after the other: threads that compute at once would wait for each other at every call of torch,
    which takes a run on three ranks twice as long.
    """

    def __init__(self, ranks: int, timeout: float) -> None:
        self.barrier = threading.Barrier(ranks, timeout=timeout)
        self.calls: list[list[str]] = [["start"] * ranks, ["start"] * ranks]
        self.values: list[list[Any]] = [[None] * ranks, [None] * ranks]
        self.last = ["start"] * ranks
        self.timeout, self.free, self.computes = timeout, threading.Lock(), -1

    def take_turn(self, rank: int) -> None:
        """Wait until no other rank computes; but not for one that is stuck."""
        if self.free.acquire(timeout=self.timeout):
            self.computes = rank

    def end_turn(self, rank: int) -> None:
        if self.computes == rank:
            self.computes = -1
            self.free.release()

    def exchange(self, turn: int, rank: int, call: str, value: Any) -> list[Any]:
        """Return all ranks' values, [R].

        Turns alternate between two tables, so that no rank writes into one that is still read.
        Raises RuntimeError if the ranks make different calls.
        """
        calls, values = self.calls[turn % 2], self.values[turn % 2]
        calls[rank], values[rank], self.last[rank] = call, value, call
        self.end_turn(rank)
        try:
            self.barrier.wait()
        finally:
            self.take_turn(rank)
        if len(set(calls)) > 1:
            calls_by_rank = ", ".join(f"rank {r}: {name}" for r, name in enumerate(calls))
            raise RuntimeError(f"the ranks make different calls: {calls_by_rank}")
        return list(values)


class Threads:
    """One rank of `spmd`; its methods are those of `Comm`."""

    lost = 0

    def __init__(self, meeting: Meeting, rank: int, node_of: tuple[int, ...]) -> None:
        self.rank, self.size, self.node_of = rank, len(node_of), node_of
        self.local_rank = node_of[:rank].count(node_of[rank])
        self._meeting, self._turn = meeting, 0

    def exchange(self, call: str, value: Any = None) -> list[Any]:
        self._turn += 1
        return self._meeting.exchange(self._turn, self.rank, call, value)

    def sum(
        self,
        rows: Sequence[Row] | Rows,
        shapes: Sequence[tuple[int, ...]],
        factors: Sequence[float] = (),
        into: Into | None = None,
    ) -> list[np.ndarray]:
        """Return the sum as `Comm.sum` does."""

        def all_ranks(
            x: np.ndarray,
        ) -> list[np.ndarray]:  # copies: a sender may be on its next message already
            return self.exchange(f"sum of {list(map(tuple, shapes))}", x.copy())

        ways = Ways(
            self.rank,
            self.size,
            private_buffers,
            highest=lambda x: reduce(np.maximum, all_ranks(x)),
            total=lambda x: np.sum(all_ranks(x), axis=0),
            lines=lambda x, out: np.stack([sent[self.rank] for sent in all_ranks(x)], out=out),
            collect=lambda x, out: np.stack(all_ranks(x), out=out),
        )
        return exact_sum(ways, rows, shapes, factors, into)

    def sum_words(self, words: np.ndarray) -> None:
        words[:] = np.sum(self.exchange(f"sum of {words.shape} words", words.copy()), axis=0)

    def gather(self, items: dict[int, T]) -> dict[int, T]:
        return union(self.exchange("gather", encode(items)))

    def bcast(self, item: T | None, root: int = 0) -> T:
        valid_rank("root", root, self.size)
        return decode(
            self.exchange(f"bcast from {root}", encode(item) if self.rank == root else None)[root]
        )

    def move(self, item: T | None, src: int, dst: int) -> T | None:
        valid_rank("src", src, self.size)
        valid_rank("dst", dst, self.size)
        sent = self.exchange(f"move {src} to {dst}", encode(item) if self.rank == src else None)[
            src
        ]
        return decode(sent) if self.rank == dst else None

    def barrier(self, word: int = 0) -> int:
        return max(self.exchange("barrier", word))

    def share(self, build: Callable[[], Arrays]) -> Arrays:
        built = read_only(build()) if self.local_rank == 0 else None
        return dict(self.exchange("share", built)[self.node_of.index(self.node_of[self.rank])])

    def confirm(self) -> None:
        self.exchange("confirm")

    def has_lost_rank(self) -> bool:
        return False

    def shrink(self) -> list[int]:
        """Return an empty list: ranks that are threads cannot die separately."""
        return []

    def abort(self, status: int) -> NoReturn:
        raise SystemExit(status)  # spmd releases the others

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def spmd(ranks: int, fn: Callable[[Threads], T], nodes: int = 1, timeout: float = 60.0) -> list[T]:
    """Run fn on each rank, in one thread each, and return the ranks' results, [R].

    nodes: the number of nodes, to which ranks are assigned in blocks. The first error of a rank
    ends all ranks and is raised again here, with a note that names the rank. Raises RuntimeError if
    ranks make different calls, or if one returns too early; TimeoutError if a rank does not join an
    exchange within `timeout` seconds of the others.
    """
    meeting, done = Meeting(ranks, timeout), SimpleQueue[tuple[int, Any, BaseException | None]]()
    node_of = tuple(rank * nodes // ranks for rank in range(ranks))
    for rank in range(ranks):
        comm = Threads(meeting, rank, node_of)
        threading.Thread(target=_run, args=(comm, fn, meeting, done), daemon=True).start()
    return _collect(ranks, meeting, done, timeout)


def _run(comm: Threads, fn: Callable[[Threads], T], meeting: Meeting, done: SimpleQueue) -> None:
    result, error = None, None
    try:
        meeting.take_turn(comm.rank)
        result = fn(comm)
        comm.exchange("end")  # detects ranks that leave early
    except BaseException as caught:  # is raised again by spmd, also SystemExit
        error = caught
    done.put((comm.rank, result, error))
    if error:
        meeting.barrier.abort()
    meeting.end_turn(comm.rank)


def _collect(ranks: int, meeting: Meeting, done: SimpleQueue, timeout: float) -> list[Any]:
    """Return each rank's result, when all ranks have ended.

    Raises the first error that is not a mere consequence of another rank's error.
    """
    results: dict[int, Any] = {}
    errors: list[BaseException] = []
    for _ in range(ranks):
        try:
            rank, results[rank], error = done.get(timeout=timeout if errors else None)
        except Empty:
            break  # a rank that is stuck outside of any exchange is abandoned
        if error:
            error.add_note(f"(on rank {rank} of {ranks})")
            errors.append(error)
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    if errors:
        last = ", ".join(f"rank {r}: {call}" for r, call in enumerate(meeting.last))
        raise TimeoutError(
            f"a rank did not come to the others within {timeout} s; last calls: {last}"
        )
    return [results[rank] for rank in range(ranks)]
