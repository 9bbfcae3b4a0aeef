"""What went wrong in a run, as its files tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from hpcfed.core.few import count_noun, join_few
from hpcfed.core.paths import tail
from hpcfed.results.columns import faults
from hpcfed.storage import names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.record import Record

MARK = "hpcfed: warning: "  # before what a run warns of, on stderr
FEW = 5  # clients that are named
TAIL = 65536  # bytes of a log that are looked at


def warnings(record: Record, folder: Path) -> list[str]:
    """In the order of rounds, and then what the log of a sweep's run says."""
    told = sorted([*restarts(record), *left(record)])
    return [text for _, text in told] + last_log_warning(folder)


def restarts(record: Record) -> Iterator[tuple[int, str]]:
    """Where the run went on from a checkpoint, with the rounds done then."""
    history = record.header.get("history", [])
    ranks = [past.get("ranks") for past in history] + [record.header.get("ranks")]
    for past, before, after in zip(history, ranks, ranks[1:], strict=False):
        change = "" if before == after else f", on {count_noun(after, 'rank')} after {before}"
        yield past["rounds"], f"went on after round {past['rounds']} from a checkpoint{change}"


def left(record: Record) -> Iterator[tuple[int, str]]:
    """Clients that left a round, a line a round."""
    for t, found in groupby(faults(record), itemgetter(0)):
        yield (
            t,
            f"round {t}: left out: client {join_few([f'{k} ({how})' for _, k, how in found], FEW)}",
        )


def last_log_warning(folder: Path) -> list[str]:
    """The last warning in the log that a sweep keeps of its run; nothing for another run."""
    path = names.log_file(folder.parent, folder.name)
    if not sweeps.exists(folder.parent) or not os.path.isfile(path):
        return []
    found = [line.partition(MARK)[2] for line in tail(path, TAIL).splitlines() if MARK in line]
    return found[-1:]
