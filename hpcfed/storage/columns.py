"""Columns of rounds: arrays by name whose first axis is the round, joined from rows or blocks.

A round of many clients has rows of some of them, whose numbers are in `clients/id`. In a block of
such rounds the columns `clients/...` are [n], the rows of one round after those of the other, and
`clients/rows` [T] says how many each round has. `ByClient` shows them as [T, K].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from hpcfed.core.errors import DamagedError

Columns = dict[str, np.ndarray]
PADDED = 2**26  # bytes that a column with gaps may take, or PADDING times those of its numbers
PADDING = 64
SPARSE = 512  # the same for rounds with rows of some clients: of 10,000, a single one may report
LISTED = 10_000  # up to this number, clients are listed one by one, in the header and for readers
CLIENTS, ROWS, ID, LOST = "clients/", "clients/rows", "clients/id", "rounds/lost"
SUMS = {"clients/epochs", "clients/seconds", "clients/work"}  # 0, not nan, if a client does nothing
PHASES = (
    "train",
    "server",
    "communicate",
    "evaluate",
    "wait",
    "checkpoint",
)  # columns ranks/..., seconds
# the beginnings of columns that hold real times, energy and memory, in which equal runs differ
OF_MACHINE = ("clients/seconds", "rounds/seconds", "ranks/")


def is_of_machine(name: str) -> bool:
    """Return whether the values of a column come from the machine, and not from the job."""
    return name.startswith(OF_MACHINE)


def stack_rows(rows: list[dict[str, np.ndarray]]) -> Columns:
    """Return the rows as columns."""
    order = dict.fromkeys(name for row in rows for name in row)
    if ID not in order:
        return {name: _column([row.get(name) for row in rows]) for name in order}
    counts = [len(row[ID]) if ID in row else 0 for row in rows]
    block = {ROWS: np.array(counts, np.int64)}
    for name in order:
        cells = [row.get(name) for row in rows]
        is_client = name.startswith(CLIENTS)
        block[name] = _chain(counts, cells) if is_client else _column(cells)
    return block


def _column(cells: list[np.ndarray | None]) -> np.ndarray:
    """Stack cells of one shape as they are; otherwise as float64, padded with nan."""
    present = [cell for cell in cells if cell is not None]
    if len(present) == len(cells) and len({cell.shape for cell in present}) == 1:
        return np.stack(present)
    return pad_pieces([(1, None if cell is None else cell[None]) for cell in cells])


def concat_columns(parts: list[Columns]) -> Columns:
    """Return the columns of consecutive blocks, as if all rows had been stacked together.

    Raises DamagedError if some blocks have rows of all clients, and others of some.
    """
    order = dict.fromkeys(name for part in parts for name in part)
    sparse = ROWS in order
    if sparse and any(ROWS not in part and _of_clients(part) for part in parts):
        raise DamagedError("some rounds have rows of all clients without their numbers")
    joined = {}
    for name in order:
        pieces = [part.get(name) for part in parts]
        if sparse and name == ROWS:
            counts = [part.get(ROWS, np.zeros(length(part), np.int64)) for part in parts]
            joined[name] = np.concatenate(counts)
        elif sparse and name.startswith(CLIENTS):
            joined[name] = _chain([len(part.get(ID, ())) for part in parts], pieces)
        else:
            joined[name] = _join(list(zip(map(length, parts), pieces, strict=True)))
    return joined


def _of_clients(columns: Columns) -> list[str]:
    return [name for name in columns if name.startswith(CLIENTS)]


def _chain(counts: list[int], pieces: list[np.ndarray | None]) -> np.ndarray:
    """Return the rows of clients one after the other; nan for rows that lack the column."""
    some = [(n, piece) for n, piece in zip(counts, pieces, strict=True) if n or piece is not None]
    return np.concatenate([np.full(n, np.nan) if piece is None else piece for n, piece in some])


def _join(pieces: list[tuple[int, np.ndarray | None]]) -> np.ndarray:
    present = [piece for _, piece in pieces if piece is not None]
    alike = len(present) == len(pieces) and len({piece.shape[1:] for piece in present}) == 1
    return np.concatenate(present) if alike else pad_pieces(pieces)


def pad_pieces(pieces: list[tuple[int, np.ndarray | None]]) -> np.ndarray:
    """Return the pieces of a column below one another in float64.

    pieces: the rounds and values of each. Entries are nan if a piece is absent or narrower than the
    widest. Raises DamagedError if pieces differ in dimensions, or gaps would take too much memory.
    """
    shapes = [piece.shape[1:] for _, piece in pieces if piece is not None]
    if len({len(shape) for shape in shapes}) > 1:
        raise DamagedError("a column has numbers in some rounds and rows of numbers in others")
    size = math.prod((sum(n for n, _ in pieces), *max(shapes))) * 8
    nbytes = sum(piece.nbytes for _, piece in pieces if piece is not None)
    if size > max(PADDED, PADDING * nbytes):
        raise DamagedError(
            f"a column has {nbytes} bytes of numbers, and would take {size} with the gaps between "
            "them"
        )
    column, t = np.full((sum(n for n, _ in pieces), *max(shapes)), np.nan), 0
    for n, piece in pieces:
        if piece is not None:
            column[(slice(t, t + n), *map(slice, piece.shape[1:]))] = piece
        t += n
    return column


def length(columns: Columns) -> int:
    """Return the number of rounds of these columns."""
    return len(columns[ROWS] if ROWS in columns else next(iter(columns.values())))


def select_rounds(columns: Columns, begin: int, end: int) -> Columns:
    """Return the columns of the rounds begin <= t < end, counted from 0."""
    if ROWS not in columns:
        return {name: column[begin:end] for name, column in columns.items()}
    rows = columns[ROWS]
    flat = slice(int(rows[:begin].sum()), int(rows[:end].sum()))
    return {
        name: column[flat if name.startswith(CLIENTS) and name != ROWS else slice(begin, end)]
        for name, column in columns.items()
    }


def check_columns(columns: Columns, rounds: int) -> None:
    """Raise DamagedError unless each column has a row for each round, or for each of its clients.

    A client has one row of a round at most.
    """
    if rounds and not columns:
        raise DamagedError(f"{rounds} rounds are done, but there are no columns")
    rows = columns.get(ROWS)
    if rows is not None and (rows.ndim != 1 or rows.dtype.kind not in "iu" or (rows < 0).any()):
        raise DamagedError(f"column {ROWS!r} has other values than numbers of rows")
    for name, column in columns.items():
        flat = rows is not None and name.startswith(CLIENTS) and name != ROWS
        wanted = int(rows.sum()) if flat and rows is not None else rounds
        if not column.ndim or len(column) != wanted or (flat and column.ndim > 1):
            raise DamagedError(
                f"column {name!r} has the shape {list(column.shape)}, but {rounds} rounds are done"
                + (f" with {wanted} rows of clients" if flat else "")
            )
    if rows is not None:
        _check_ids(rows, columns.get(ID))


def _check_ids(rows: np.ndarray, ids: np.ndarray | None) -> None:
    """Raise DamagedError unless the clients of each round are in order, each once."""
    if ids is None or ids.dtype.kind not in "iu":
        raise DamagedError(f"the rows of clients have no numbers {ID!r}")
    ends = np.cumsum(rows)[:-1]
    inside = np.setdiff1d(np.arange(1, len(ids)), ends)
    if (ids[inside] <= ids[inside - 1]).any():
        raise DamagedError(f"column {ID!r} has a client twice in a round, or out of order")


class ByClient(MutableMapping[str, np.ndarray]):
    """The columns of a block whose rounds have rows of some clients, as readers use them.

    A column of clients is made when it is first used: [T, K], with nan, 0 or False for clients
    without a row. If the run does not list its clients it is [T, n] instead: the rows of each
    round, and nan after them if another round has more; then `clients/id` is a column too.

    block: as it is stored; it stays as it is.  clients: K; None: the clients are not listed.
    """

    def __init__(self, block: Columns, clients: int | None) -> None:
        self.block, self.clients = block, clients
        self._columns: Columns = {}
        hidden = {ROWS, ID} if clients else {ROWS}
        self._names = dict.fromkeys(name for name in block if name not in hidden)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._columns:
            column = self._by_client(name) if name.startswith(CLIENTS) else self.block[name]
            column.setflags(write=False)
            self._columns[name] = column
        return self._columns[name]

    def __setitem__(self, name: str, column: np.ndarray) -> None:
        self._names[name], self._columns[name] = None, column

    def __delitem__(self, name: str) -> None:
        del self._names[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _by_client(self, name: str) -> np.ndarray:
        rows, values = self.block[ROWS], self.block[name]
        if not self.clients:
            ends = np.cumsum(rows)[:-1]
            return _column(list(np.split(values, ends)))
        absent = 0 if values.dtype.kind in "biu" or name in SUMS else np.nan
        column = np.full((len(rows), self.clients), absent, values.dtype)
        column[np.repeat(np.arange(len(rows)), rows), self.block[ID]] = values
        if LOST in self.block and (missing := self.block[LOST] == 1).any():
            column = column.astype(np.float64)
            column[missing] = np.nan
        return column


def for_readers(block: Columns, header: Mapping[str, Any]) -> MutableMapping[str, np.ndarray]:
    """Return the columns of a block as readers use them.

    header: of the run; it lists the architectures of all clients, or of more than LISTED the
    architectures that occur.
    """
    if ROWS not in block:
        return block
    K = header.get("job", {}).get("clients")
    return ByClient(block, K if K == len(header.get("architectures", ())) else None)


def stored(columns: MutableMapping[str, np.ndarray]) -> Columns:
    """Return the block of which these are the columns."""
    return columns.block if isinstance(columns, ByClient) else dict(columns)
