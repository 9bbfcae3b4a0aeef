"""Traces from a file: availability and speed of clients over virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfed.clients.csv_lines import read_csv
from hpcfed.core.errors import DataError

HEADER = ("client", "time", "available", "speed")


@dataclass(frozen=True)
class Trace:
    """Lines of all clients, sorted by client and then by time.

    Each line is valid until the client's next one, the last one for ever.
    ends: [K + 1], client k has the lines ends[k] .. ends[k + 1] - 1. A client without lines keeps
    its profile.
    time: virtual seconds.
    available: whether the client can be reached.
    speed: multiply-adds per second.
    """

    ends: np.ndarray
    time: np.ndarray
    available: np.ndarray
    speed: np.ndarray

    def line(self, k: int, now: float) -> int | None:
        """Return the index of the line that is valid for client k at this time.

        None if client k has no lines.
        """
        begin, end = self.ends[k], self.ends[k + 1]
        if begin == end:
            return None
        return int(begin + np.searchsorted(self.time[begin:end], now, side="right") - 1)

    def available_from(self, k: int, now: float) -> float:
        """Return the first time from `now` on at which client k is available."""
        i = self.line(k, now)
        if i is None or self.available[i]:
            return now
        return float(self.time[i + 1 + int(np.argmax(self.available[i + 1 : self.ends[k + 1]]))])


def read(path: Path, clients: int) -> Trace:
    """Read a trace from a file with the lines of some or all clients, in any order.

    Raises DataError that names the wrong line and says why.
    """
    rows = sorted((k, *values) for k, values in read_csv(path, HEADER, "system.trace"))
    for k, time, available, speed in rows:
        valid = 0 <= time < np.inf and available in (0, 1) and 0 < speed < np.inf
        if not (0 <= k < clients and valid):
            raise DataError(
                f"system.trace: {path}: '{k},{time:g},{available:g},{speed:g}': client must be "
                f"0..{clients - 1}, time >= 0, available 0 or 1, speed > 0"
            )
    table = np.array(rows, dtype=np.float64).reshape(-1, len(HEADER))
    ids = table[:, 0].astype(np.int64)
    ends = np.searchsorted(ids, np.arange(clients + 1))
    for k in np.unique(ids).tolist():
        times = table[ends[k] : ends[k + 1], 1]
        if times[0] != 0 or (np.diff(times) == 0).any():
            raise DataError(
                f"system.trace: {path}: client {k}: give each of its times once, the first one 0"
            )
        if not table[ends[k + 1] - 1, 2]:
            raise DataError(
                f"system.trace: {path}: client {k}: its last line holds for ever, and says that it "
                f"is not available; add a time at which it is"
            )
    return Trace(ends, table[:, 1].copy(), table[:, 2].astype(bool), table[:, 3].copy())
