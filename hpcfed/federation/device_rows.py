"""Rows of an exact sum on a GPU, which puts them on the grid and adds them up.

The host gets one copy of each message, which is this rank's share of it, and one of all largest
values, however many clients the rank has. Messages come through page-locked memory of the size of a
message. The bits are those of the rows on the host (`comm.exact`): the same numbers are multiplied
in the same order, all operations are those of IEEE 754 in float64, which a GPU has as well, and the
sums are of integers within 2**53, which are exact in any order.

During a sum the device holds, beside the uploads: the lines of one message in float64 (2 MiB; with
so many ranks that a line would have fewer than 2**13 values, up to 64 MiB), one more line, up to
64 MiB (or one row) of rows that are computed at once, with a copy in their own type, and up to
64 MiB (or one array) of the arrays whose largest values are sought, if they are not plain pieces of
memory (weighted values, pieces in zeros, channels-last).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.comm.exact import check_length, check_shape, diverged, multipliers
from hpcfed.comm.protocol import Lines, Rows
from hpcfed.core.averaging import Row
from hpcfed.core.payload import host_buffer, magnitudes

# types of devices that put rows on the grid. The CPU's tensors are NumPy's arrays, which are faster
DEVICES = {"cuda"}
STACK = 2**26  # bytes of rows in float64 that are put on the grid at once


def place(rows: list[Row]) -> list[Row] | DeviceRows:
    """Return the rows as `Comm.sum` takes them: on their device, if all values are on one GPU."""
    devices = {value.device for row in rows for value in row.value.values()}
    if len(devices) != 1 or next(iter(devices)).type not in DEVICES:
        return rows
    return DeviceRows(rows, devices.pop())


class DeviceRows(Rows):
    """Rows whose values are on one device."""

    def __init__(self, rows: Sequence[Row], device: torch.device):
        self.rows, self.device = rows, device

    def __len__(self) -> int:
        return len(self.rows)

    def largest(self, shapes: Sequence[tuple[int, ...]], factors: Sequence[float]) -> np.ndarray:
        """Return the largest magnitude of each array, times its row's factor, [A].

        Raises what `exact.largest` raises.
        """
        magnitudes_of_rows = iter(magnitudes(self._checked(shapes)))
        peaks = np.zeros(len(shapes))
        for j, (row, factor) in enumerate(zip(self.rows, factors, strict=True)):
            for i, magnitude in enumerate(islice(magnitudes_of_rows, len(shapes))):
                peak = magnitude * abs(factor)
                if not math.isfinite(peak):
                    raise diverged(j, i, row[i], factor)
                peaks[i] = max(peaks[i], peak)
        return peaks

    def _checked(self, shapes: Sequence[tuple[int, ...]]) -> Iterator[Tensor]:
        """Yield all arrays of all rows. Raises ValueError for one of another shape."""
        for j, row in enumerate(self.rows):
            check_length(j, len(row), shapes)
            for i, shape in enumerate(shapes):
                tensor = row.tensor(i, self.device)
                check_shape(j, i, tuple(tensor.shape), shape)
                yield tensor

    def flat(self, i: int) -> list[Tensor]:
        return [row.tensor(i, self.device).reshape(-1) for row in self.rows]

    def lines(self, sent: np.ndarray, buffer: np.ndarray) -> Lines:
        return DeviceLines(sent, self.device)


class DeviceLines(Lines):
    """Lines of a message that are written on a device, and copied from there when complete.

    From a GPU they come through page-locked memory: a message may be in memory that ranks share,
    which cannot be page-locked as it is made.
    """

    def __init__(self, sent: np.ndarray, device: torch.device):
        self.sent = torch.from_numpy(sent)  # the same memory
        self.on_device = torch.zeros(sent.shape, dtype=torch.float64, device=device)
        self.buffer = torch.zeros(sent.shape[1], dtype=torch.float64, device=device)
        self.host = host_buffer(sent.shape, torch.float64, device)

    def put(
        self, line: int, columns: slice, values: Sequence[Any], factors: Sequence[float], s: int
    ) -> None:
        quantise(self.on_device[line, columns], values, factors, s, self.buffer)

    def complete(self, n: int) -> None:
        """Copy the first n lines to the host."""
        self.sent[:n] = self.host[:n].copy_(self.on_device[:n])


def quantise(
    out: Tensor, values: Sequence[Tensor], factors: Sequence[float], s: int, buffer: Tensor
) -> None:
    """Write the sum over the rows of rint(values * factor * 2**s) to out, as `exact.quantise`.

    out: [m] float64.
    values: [m] each, of any type of real numbers, on the same device.
    buffer: float64, at least [m]; it is overwritten.
    """
    if not values:
        out.zero_()
    else:
        columns = [multipliers(factor, s) for factor in factors]
        for rows in groups(values, columns):
            add_rows(out, values[rows], columns[rows], buffer if rows.start else None)


def groups(values: Sequence[Tensor], columns: Sequence[Sequence[float]]) -> Iterator[slice]:
    """Yield rows that are computed at once: one type, equally many multipliers, at most STACK bytes
    in float64.
    """
    most = max(1, STACK // (8 * max(1, len(values[0]))))
    alike = [(value.dtype, len(column)) for value, column in zip(values, columns, strict=True)]
    start = 0
    for j in range(1, len(values) + 1):
        if j == len(values) or alike[j] != alike[start] or j - start == most:
            yield slice(start, j)
            start = j


def add_rows(
    out: Tensor,
    values: Sequence[Tensor],
    columns: Sequence[Sequence[float]],
    buffer: Tensor | None,
) -> None:
    """Write the sum of some rows to out, or add it to out through the buffer if there is one.

    A launch per operation, however many rows: on a GPU a launch takes longer than the arithmetic of
    a small array.
    """
    scaled = torch.stack(list(values)).double()  # in float64 before anything is rounded
    for column in zip(*columns, strict=True):
        numbers = torch.tensor(column, dtype=torch.float64)
        if scaled.is_cuda:  # a copy for which the host does not wait
            numbers = numbers.to(scaled.device, non_blocking=True)
        scaled.mul_(numbers[:, None])
    scaled.round_()  # ties to even, as NumPy's rint
    if buffer is None:
        torch.sum(scaled, 0, out=out)
    else:
        out.add_(torch.sum(scaled, 0, out=buffer[: len(out)]))
