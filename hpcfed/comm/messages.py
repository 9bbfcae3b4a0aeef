"""Exact sums over all ranks, message by message: a piece is put on the grid, added up and finished
in the cache.

A large message has a part for each rank, which receives all ranks' shares of it, adds them up,
finishes its totals (divides them by their weights, say) and sends the outcome, in its own type, to
all. So each rank does its share of the work, and a float32 model moves 8 bytes a value on the way
in and 4 on the way out. A small message is added up on all ranks in one call. No buffer is larger
than a message.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hpcfed.comm.exact import Shapes, largest, quantise, restore, scale
from hpcfed.comm.protocol import Into, Row

SMALL = 1 << 14  # values: up to here one call costs less than two
MESSAGE = 1 << 18  # values of a large message: 2 MiB
# bytes of a message that goes over TCP without being announced and asked for (comm.settings)
EAGER = 1 << 21
ITEM = 8  # bytes of a value on its way: a float64
CACHE = 8  # values of a line of the processor's cache
PART = 1 << 13  # values of a rank's part, at least; fewer do not repay numpy's calls
MOST = 1 << 23  # values of a message, of however many ranks: 64 MiB
WORK = 2  # lines of float64 in which a rank works


class Room(NamedTuple):
    """The buffers of a message of R lines, m columns each: a line of values that each rank
    finishes, and the counts.
    """

    sent: np.ndarray  # [R, m] float64: what this rank gives
    got: np.ndarray  # [R, m] float64: what each rank gives for this rank's line
    line: np.ndarray  # [m]: this rank's line, finished
    done: np.ndarray  # [R, m]: all of them


def private_buffers(lines: int, columns: int, dtype: np.dtype) -> Room:
    """Buffers of this rank alone: what others are to have is sent to them."""
    sent = np.zeros((lines, columns))
    return Room(
        sent, np.empty_like(sent), np.empty(columns, dtype), np.empty((lines, columns), dtype)
    )


def private_buffer_bytes(lines: int, columns: int, item: int) -> int:
    """Bytes of these buffers, with those in which a rank works.

    item: of a value that is finished.
    """
    return columns * (ITEM * (2 * lines + WORK) + item * (lines + 1))


class Ways(NamedTuple):
    """How these ranks add up.

    Sums are of integers within 2**53, so that their order does not matter.
    """

    rank: int
    size: int
    room: Callable[[int, int, np.dtype], Room]
    highest: Callable[
        [np.ndarray], np.ndarray
    ]  # maximum over all ranks, elementwise; may work in place
    total: Callable[[np.ndarray], np.ndarray]  # sum over all ranks, elementwise; may work in place
    lines: Callable[
        [np.ndarray, np.ndarray], None
    ]  # from [R, m] on each rank: this rank's line of all, to [R, m]
    collect: Callable[
        [np.ndarray, np.ndarray], None
    ]  # from [m] on each rank: all of them, to [R, m]


class Totals:
    """The totals themselves, float64: where `Comm.sum` writes unless told otherwise."""

    first = 0

    def __init__(self, shapes: Shapes):
        self.arrays = [np.empty(shape) for shape in shapes]

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        """Nothing more to be done."""


def exact_sum(
    ways: Ways, rows: Sequence[Row], shapes: Shapes, factors: Sequence[float], into: Into | None
) -> list[np.ndarray]:
    """`Comm.sum`, by one maximum and as many messages as it takes."""
    factors, into = factors or [1.0] * len(rows), into or Totals(shapes)
    counts = np.zeros(ways.size)
    counts[ways.rank] = len(rows)
    small = ways.highest(np.concatenate([largest(rows, shapes, factors), counts]))
    n = int(small[len(shapes) :].sum())
    scales = [scale(float(peak), n) for peak in small[: len(shapes)]]
    for group in groups([array.size for array in into.arrays], into.first):
        size = sum(into.arrays[i].size for i in group)
        message = Message(ways, n, scales, into, len(rows), size, into.arrays[group[-1]].dtype)
        for i in group:
            message.add(i, [np.asarray(row[i]).reshape(-1) for row in rows], factors)
        message.send()
    return into.arrays


def groups(sizes: Sequence[int], first: int) -> Iterator[range]:
    """The arrays, by index, that can go in one message: all of a small sum, else those needed first
    apart.
    """
    both = [range(len(sizes))] if sum(sizes) <= SMALL else [range(first), range(first, len(sizes))]
    return (group for group in both if len(group))


def width(values: int, lines: int) -> int:
    """Values of a line, of so many in all: in as few messages as can be, all of the same size."""
    messages = max(1, -(-values // (lines * most(lines))))
    return pad_columns(-(-values // (lines * messages))) - 1


def most(lines: int) -> int:
    """Values of a line of a large message that are asked for at most."""
    return max(MESSAGE // lines, min(PART, MOST // lines))


def pad_columns(values: int) -> int:
    """Columns for so many values and the count of rows: they fill lines of the cache, so that none
    has two owners.
    """
    return -(-(values + 1) // CACHE) * CACHE


def sum_lines(lines: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The sum of lines [R, m], in out [m]; `np.add.reduce` would begin with a copy of the first."""
    np.add(lines[0], lines[1] if len(lines) > 1 else 0.0, out=out)
    for line in lines[2:]:
        out += line
    return out


class Piece(NamedTuple):
    """Values start..stop of array i, which lie from `at` in line `line` of the message."""

    i: int
    start: int
    stop: int
    line: int
    at: int


class Message:
    """Values on their way, [lines, width + 1]: a line a rank, or one for all; the last column
    counts the rows.
    """

    def __init__(
        self,
        ways: Ways,
        n: int,
        scales: Sequence[int],
        into: Into,
        rows: int,
        size: int,
        dtype: np.dtype,
    ):
        self.ways, self.n, self.scales, self.into = ways, n, scales, into
        self.lines = 1 if size <= SMALL else ways.size
        self.width = width(size, self.lines)
        room = ways.room if self.lines > 1 else private_buffers
        self.sent, self.got, self.line, self.done = room(self.lines, self.width + 1, dtype)
        self.total, self.buffer = np.empty((WORK, self.width + 1))  # made once: new memory is slow
        self.rows, self.used, self.pieces = rows, 0, list[Piece]()

    def add(self, i: int, values: Sequence[np.ndarray], factors: Sequence[float]) -> None:
        """Put array i of these rows, flat, into the message; send it whenever it is full."""
        start, size = 0, self.into.arrays[i].size
        while start < size:
            line, at = divmod(self.used, self.width)
            stop = min(size, start + self.width - at)
            piece = Piece(i, start, stop, line, at)
            stretches, target = [v[start:stop] for v in values], self.place(self.sent, piece)
            quantise(target, stretches, factors, self.scales[i], self.buffer)
            self.pieces.append(piece)
            self.used, start = self.used + stop - start, stop
            if self.used == self.lines * self.width:
                self.send()

    def send(self) -> None:
        """Add up, finish and store what is in the message, which is empty then."""
        self.sent[:, -1] = self.rows
        if self.pieces:
            self.alone() if self.lines == 1 else self.reduce_lines()
        self.used, self.pieces = 0, []

    def alone(self) -> None:
        """All of it is added up and finished here, as on every rank."""
        total = self.check_rows(self.ways.total(self.sent))
        for piece in self.pieces:
            self.finish(total[0], piece)
            self.store(total, piece)

    def reduce_lines(self) -> None:
        """This rank's line is added up and finished here, each other one by its rank."""
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
        """Make values of a piece's total; total: its line."""
        values = total[piece.at : piece.at + piece.stop - piece.start]
        restore(values, self.scales[piece.i], piece.i)
        self.into.finish(piece.i, piece.start, values)

    def store(self, done: np.ndarray, piece: Piece) -> None:
        self.into.arrays[piece.i].reshape(-1)[piece.start : piece.stop] = self.place(done, piece)

    def check_rows(self, total: np.ndarray) -> np.ndarray:
        """The totals, if all ranks' rows are in them."""
        if (total[..., -1] != self.n).any():
            raise RuntimeError(
                f"the sum over {self.ways.size} ranks holds {int(total.flat[-1])} rows, but the "
                f"ranks "
                f"gave {self.n}: ranks made different calls, or the MPI library lost a contribution"
            )
        return total

    @staticmethod
    def place(lines: np.ndarray, piece: Piece) -> np.ndarray:
        """Where the piece lies in the lines; a view."""
        return lines[piece.line, piece.at : piece.at + piece.stop - piece.start]
