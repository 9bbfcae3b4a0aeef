"""Exact sums over all ranks in messages that fit the processor's cache.

Each message is put on the grid (`exact`), added up and finished before the next one.
A large message has one part for each rank. A rank receives all ranks' shares of its part, adds them
up, finishes the totals (divides them by their weights, say) and sends the outcome, in its own type,
to all. So each rank does its share of the work, and a float32 model moves 8 bytes a value on the
way in and 4 on the way out. A small message is added up on all ranks in one call. No buffer is
larger than a message.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcfed.comm.exact import HostRows, Shapes, restore, scale
from hpcfed.comm.protocol import Into, Row, Rows

SMALL = 1 << 14  # values: up to here one call costs less than two
MESSAGE = 1 << 18  # values of a large message: 2 MiB
# bytes of a message that goes over TCP without a handshake (comm.settings)
EAGER = 1 << 21
ITEM = 8  # bytes of a value in a message: a float64
CACHE = 8  # values of a cache line
PART = 1 << 13  # smallest number of values of a rank's part: fewer are not worth numpy's calls
MOST = 1 << 23  # largest number of values of a message, for any number of ranks: 64 MiB
WORK = 2  # lines of float64 of a rank's work space


class Buffers(NamedTuple):
    """The buffers of a message of R lines with m columns each; each rank finishes one line."""

    sent: np.ndarray  # [R, m] float64: this rank's contributions
    got: np.ndarray  # [R, m] float64: each rank's contribution to this rank's line
    line: np.ndarray  # [m]: this rank's line, finished
    done: np.ndarray  # [R, m]: all finished lines


def private_buffers(lines: int, columns: int, dtype: np.dtype) -> Buffers:
    """Return buffers in this rank's own memory; their contents are sent to the other ranks."""
    sent = np.zeros((lines, columns))
    return Buffers(
        sent, np.empty_like(sent), np.empty(columns, dtype), np.empty((lines, columns), dtype)
    )


class Ways(NamedTuple):
    """The operations by which these ranks add up.

    Sums are of integers within 2**53, so their order does not matter.
    """

    rank: int
    size: int
    buffers: Callable[[int, int, np.dtype], Buffers]
    # maximum over all ranks, elementwise; may work in place
    highest: Callable[[np.ndarray], np.ndarray]
    total: Callable[[np.ndarray], np.ndarray]  # sum over all ranks, elementwise; may work in place
    # from [R, m] on each rank: this rank's line of each, to [R, m]
    lines: Callable[[np.ndarray, np.ndarray], object]
    # from [m] on each rank: all of them, to [R, m]
    collect: Callable[[np.ndarray, np.ndarray], object]


class Totals:
    """The totals themselves as float64 arrays: the default target of `Comm.sum`."""

    n_first = 0

    def __init__(self, shapes: Shapes):
        self.arrays = [np.empty(shape) for shape in shapes]

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        """Do nothing: the totals are stored as they are."""


def exact_sum(
    ways: Ways,
    rows: Sequence[Row] | Rows,
    shapes: Shapes,
    factors: Sequence[float],
    into: Into | None,
) -> list[np.ndarray]:
    """Return the sum as `Comm.sum` does, by one maximum and as many messages as needed."""
    rows = rows if isinstance(rows, Rows) else HostRows(rows)
    factors, into = factors or [1.0] * len(rows), into or Totals(shapes)
    counts = np.zeros(ways.size)
    counts[ways.rank] = len(rows)
    small = ways.highest(np.concatenate([rows.largest(shapes, factors), counts]))
    n = int(small[len(shapes) :].sum())
    scales = [scale(float(peak), max(n, rows.expected)) for peak in small[: len(shapes)]]
    for group in groups([array.size for array in into.arrays], into.n_first):
        size = sum(into.arrays[i].size for i in group)
        message = Message(ways, n, scales, into, rows, size, into.arrays[group[-1]].dtype)
        for i in group:
            message.add(i, rows.flat(i), factors)
        message.send()
    return into.arrays


def groups(sizes: Sequence[int], n_first: int) -> Iterator[range]:
    """Yield the indices of the arrays that share a message.

    All arrays of a small sum go together. Of a large sum the first `n_first` arrays, which are
    needed to finish the others, are sent on their own.
    """
    both = (
        [range(len(sizes))] if sum(sizes) <= SMALL else [range(n_first), range(n_first, len(sizes))]
    )
    return (group for group in both if len(group))


def width(values: int, lines: int) -> int:
    """Return the values of a line, so that a sum takes the fewest messages, all of one size."""
    messages = max(1, -(-values // (lines * most(lines))))
    return pad_columns(-(-values // (lines * messages))) - 1


def most(lines: int) -> int:
    """Return the largest number of values in a line of a large message."""
    return max(MESSAGE // lines, min(PART, MOST // lines))


def pad_columns(values: int) -> int:
    """Return the columns of a line for its values and the count of rows.

    It is rounded up to whole cache lines, so that no cache line belongs to two ranks.
    """
    return -(-(values + 1) // CACHE) * CACHE


def sum_lines(lines: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return the sum of lines [R, m], in out [m].

    `np.add.reduce` would begin with a copy of the first line.
    """
    np.add(lines[0], lines[1] if len(lines) > 1 else 0.0, out=out)
    for line in lines[2:]:
        out += line
    return out


class Piece(NamedTuple):
    """Values start..stop of array i, at column `at` of line `line` of the message."""

    i: int
    start: int
    stop: int
    line: int
    at: int


class Message:
    """A message under construction, [lines, width + 1].

    It has one line for each rank, or a single line for all. The last column counts the rows.
    """

    def __init__(
        self,
        ways: Ways,
        n: int,
        scales: Sequence[int],
        into: Into,
        rows: Rows,
        size: int,
        dtype: np.dtype,
    ):
        self.ways, self.n, self.scales, self.into = ways, n, scales, into
        self.lines = 1 if size <= SMALL else ways.size
        self.width = width(size, self.lines)
        make = ways.buffers if self.lines > 1 else private_buffers
        self.sent, self.got, self.line, self.done = make(self.lines, self.width + 1, dtype)
        self.total, buffer = np.empty((WORK, self.width + 1))  # once: new memory is slow
        self.contribution = rows.lines(self.sent, buffer)  # of this rank
        self.rows, self.used, self.pieces = len(rows), 0, list[Piece]()

    def add(self, i: int, values: Sequence[Any], factors: Sequence[float]) -> None:
        """Put array i of this rank's rows into the message; send it whenever it is full.

        values: as `Rows.flat` returns them.
        """
        start, size = 0, self.into.arrays[i].size
        while start < size:
            line, at = divmod(self.used, self.width)
            stop = min(size, start + self.width - at)
            piece = Piece(i, start, stop, line, at)
            columns, stretches = slice(at, at + stop - start), [v[start:stop] for v in values]
            self.contribution.put(line, columns, stretches, factors, self.scales[i])
            self.pieces.append(piece)
            self.used, start = self.used + stop - start, stop
            if self.used == self.lines * self.width:
                self.send()

    def send(self) -> None:
        """Add up, finish and store the values in the message, and empty it."""
        if self.pieces:
            self.contribution.complete(self.pieces[-1].line + 1)
        self.sent[:, -1] = self.rows
        if self.pieces:
            self.alone() if self.lines == 1 else self.reduce_lines()
        self.used, self.pieces = 0, []

    def alone(self) -> None:
        """Add up and finish the single line here, as every other rank does too."""
        total = self.check_rows(self.ways.total(self.sent))
        for piece in self.pieces:
            self.finish(total[0], piece)
            self.store(total, piece)

    def reduce_lines(self) -> None:
        """Add up and finish this rank's line, and exchange finished lines with the other ranks."""
        self.ways.lines(self.sent, self.got)
        self.check_rows(sum_lines(self.got, self.total))
        for piece in self.pieces:
            if piece.line == self.ways.rank:
                self.finish(self.total, piece)
        self.line[:] = self.total
        self.ways.collect(self.line, self.done)
        for piece in self.pieces:
            self.store(self.done, piece)

    def finish(self, total: np.ndarray, piece: Piece) -> None:
        """Turn a piece's total into values, in place. total: the line that holds the piece."""
        values = total[piece.at : piece.at + piece.stop - piece.start]
        restore(values, self.scales[piece.i], piece.i)
        self.into.finish(piece.i, piece.start, values)

    def store(self, done: np.ndarray, piece: Piece) -> None:
        self.into.arrays[piece.i].reshape(-1)[piece.start : piece.stop] = self.place(done, piece)

    def check_rows(self, total: np.ndarray) -> np.ndarray:
        """Return the totals. Raises RuntimeError unless they include the rows of all ranks."""
        if (total[..., -1] != self.n).any():
            raise RuntimeError(
                f"the sum over {self.ways.size} ranks holds {int(total.flat[-1])} rows, but the "
                f"ranks "
                f"gave {self.n}: ranks made different calls, or the MPI library lost a contribution"
            )
        return total

    @staticmethod
    def place(lines: np.ndarray, piece: Piece) -> np.ndarray:
        """Return the view of the piece in these lines."""
        return lines[piece.line, piece.at : piece.at + piece.stop - piece.start]
