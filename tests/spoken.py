"""A log that is begun, stopped and resumed, as a run does it: what every kind of sink is examined
with.
"""

from pathlib import Path
from typing import Any

from hpcfed.config.sections import Log
from hpcfed.report.sinks.logs import Logs
from tests import records

HEADER = records.header(4, 2, 4)
STARTS = [
    (0, [1, 2, 3], "stopped"),
    (2, [3, 4], "finished"),
]  # resumed from a checkpoint of round 2: round 3 again
LOSSES = {1: 1.0, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4}  # in training, by round


def row(t: int) -> dict[str, Any]:
    return records.row(t, 4, 2)


def spoken(name: str, folder: Path, starts: list[tuple[int, list[int], str]] = STARTS) -> None:
    """Let a sink log: each start with the rounds done, those that are logged, and how it ends."""
    for done, rounds, status in starts:
        messages: list[str] = []
        with Logs(Log(**{name: True}), folder, messages.append) as log:
            log.begin(HEADER, done, row)
            for t in rounds:
                log.round(t, row(t))
            log.end(status)
        assert messages == []
