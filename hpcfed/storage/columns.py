"""Columns of rounds: arrays by name whose first axis is the round, joined from rows or blocks."""

from __future__ import annotations

import math

import numpy as np

from hpcfed.core.errors import DamagedError

Columns = dict[str, np.ndarray]
PADDED = 2**26  # bytes that a column with gaps may take, or PADDING times those of its numbers
PADDING = 64
PHASES = (
    "train",
    "server",
    "communicate",
    "evaluate",
    "wait",
    "checkpoint",
)  # columns ranks/..., seconds


def stack_rows(rows: list[dict[str, np.ndarray]]) -> Columns:
    """Return the rows as columns."""
    order = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in order}


def _column(cells: list[np.ndarray | None]) -> np.ndarray:
    """Stack cells of one shape as they are; otherwise as float64, padded with nan."""
    known = [cell for cell in cells if cell is not None]
    if len(known) == len(cells) and len({cell.shape for cell in known}) == 1:
        return np.stack(known)
    return pad_pieces([(1, None if cell is None else cell[None]) for cell in cells])


def concat_columns(parts: list[Columns]) -> Columns:
    """Return the columns of consecutive blocks, as if all rows had been stacked together."""
    order = dict.fromkeys(name for part in parts for name in part)
    return {name: _join([(length(part), part.get(name)) for part in parts]) for name in order}


def _join(pieces: list[tuple[int, np.ndarray | None]]) -> np.ndarray:
    known = [piece for _, piece in pieces if piece is not None]
    alike = len(known) == len(pieces) and len({piece.shape[1:] for piece in known}) == 1
    return np.concatenate(known) if alike else pad_pieces(pieces)


def pad_pieces(pieces: list[tuple[int, np.ndarray | None]]) -> np.ndarray:
    """Return the pieces of a column below one another in float64.

    pieces: the rounds and values of each. Entries are nan if a piece is absent or narrower than the
    widest. Raises DamagedError if pieces differ in dimensions, or gaps would take too much memory.
    """
    shapes = [piece.shape[1:] for _, piece in pieces if piece is not None]
    if len({len(shape) for shape in shapes}) > 1:
        raise DamagedError("a column has numbers in some rounds and rows of numbers in others")
    size = math.prod((sum(n for n, _ in pieces), *max(shapes))) * 8
    known = sum(piece.nbytes for _, piece in pieces if piece is not None)
    if size > max(PADDED, PADDING * known):
        raise DamagedError(
            f"a column has {known} bytes of numbers, and would take {size} with the gaps between "
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
    return len(next(iter(columns.values())))
