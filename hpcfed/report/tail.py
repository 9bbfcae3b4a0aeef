"""`hpcfed tail RUN`: the last rounds of a run as lines, and with -f new ones as they come.

It needs only the run's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import sleep

import numpy as np

from hpcfed.core.errors import ConfigError, plain
from hpcfed.core.exit_status import DONE
from hpcfed.report.progress import line, mean
from hpcfed.results.columns import by_round, column, main_metric
from hpcfed.results.state import complete
from hpcfed.storage.record import STOPPED, Record, load, stamp

EVERY = 1.0  # seconds between two looks at a growing file
INTERRUPTED = 130  # the status of a command that Ctrl-C ends, as shells count


def tail(run: Path, lines: int = 10, follow: bool = False) -> str | int:
    """Return the last rounds of a run as lines.

    follow: whether to print new rounds until the run is finished, and return the exit status;
    Ctrl-C ends it earlier.
    """
    if lines < 0:
        raise ConfigError(f"tail: -n {lines}: give at least 0")
    if not follow:
        record = load(run)
        return "\n".join(round_lines(record, max(0, record.rounds - lines)))
    try:
        for text in follow_rounds(run, lines):
            print(plain(text), flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def follow_rounds(run: Path, lines: int) -> Iterator[str]:
    """Yield lines of the last rounds, and of each new one, to the last."""
    seen: object = stamp(run)
    record = load(run)
    shown = max(0, record.rounds - lines)
    while True:
        if record.rounds < shown:
            yield f"goes on after round {record.rounds}, from a checkpoint"
            shown = record.rounds
        yield from round_lines(record, shown)
        shown = record.rounds
        if complete(record):
            return
        if record.header.get("ended") == STOPPED:
            yield f"stopped after round {shown}; waiting until it goes on"
        seen = wait_for_change(run, seen)
        record = load(run)


def wait_for_change(run: Path, seen: object) -> object:
    """Wait until the files have changed, and return their new stamp."""
    while (now := stamp(run)) == seen:
        sleep(EVERY)
    return now


def round_lines(record: Record, first: int) -> Iterator[str]:
    """Yield a line for each round from `first` on, counted from 0.

    Its metric is that of the last evaluation.
    """
    total, losses = record.header["job"]["rounds"], column(record, "clients/train_loss")
    metric = main_metric(record)
    means = [mean(row) for row in column(record, f"clients/{metric}")]
    seconds = by_round(record, "seconds")
    known = np.nan
    for t in range(record.rounds):
        known = known if np.isnan(means[t]) else means[t]
        if t >= first:
            yield f"round {t + 1}/{total}  {line(known, mean(losses[t]), seconds[t], metric)}"
