"""`hpcfed watch RUN...`: shows runs until all are finished, and waits for their folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from rich.live import Live

from hpcfed.core.errors import ConfigError, printable
from hpcfed.core.exit_status import DONE, FAULT
from hpcfed.core.tables import console
from hpcfed.report.naming import find_named
from hpcfed.report.page import write
from hpcfed.report.watch import web as page
from hpcfed.report.watch.terminal import render
from hpcfed.report.watch.view import View, look
from hpcfed.results.run import Run, name_runs
from hpcfed.results.state import DAMAGED, EARLY, NOT_STARTED, STALE
from hpcfed.storage.record import FINISHED, STOPPED

EVERY = 1.0  # seconds between two updates, at least
INTERRUPTED = 130  # the status of a command that Ctrl-C ends, as shells count
PAUSE = 19  # pause / time of an update, so that watching takes at most 5 % of a core


def watch(runs: Sequence[Path], web: bool = False, port: int | None = None) -> int:
    """Show runs until all are finished, and return the exit status.

    web: whether to serve a page on 127.0.0.1, at this port or a free one. Ctrl-C ends it earlier.
    """
    if port is not None and not (web and 0 < port < 65536):
        raise ConfigError(f"watch: --port {port}: give it with --web, from 1 to 65535")
    if web:
        write.check("watch --web")
    try:
        wait_for(runs)
        loaded = find_named(runs, required=False)
        for run in loaded:
            if not run.member and run.state.word == NOT_STARTED:
                Run(run.path)  # raises, because it is no folder of a run
        name_runs(loaded)
        return page.serve(loaded, port or 0) if web else follow(loaded)
    except KeyboardInterrupt:
        return INTERRUPTED


def wait_for(runs: Sequence[Path]) -> None:
    """Wait, with a message, until there is a file or folder at each of these paths."""
    absent = [run for run in runs if not os.path.exists(run)]
    if absent:
        names = ", ".join(map(str, absent))
        text = f"watch: waiting for {names}, which is not there yet; Ctrl-C ends this"
        print(printable(text), file=sys.stderr, flush=True)
    while not all(os.path.exists(run) for run in absent):
        sleep(EVERY)


def follow(runs: Sequence[Run]) -> int:
    """Show runs in the terminal until they are over, and return the exit status.

    If stdout is not a terminal only the last view is shown, and runs that wait to be continued are
    over too, because nobody sees that they wait: a stopped one, and one that two looks find without
    a process or damaged. One look is not enough: it may fall between a run's last rounds and its
    end.
    """
    where = console()
    views: list[View | None] = [None] * len(runs)
    with Live(console=where, auto_refresh=False) as live:
        while True:
            begin = monotonic()
            shown = [look(run, before) for run, before in zip(runs, views, strict=True)]
            live.update(render(shown, where.width, where.height), refresh=True)
            if all(
                view.over or (not where.is_terminal and waits(view, before))
                for view, before in zip(shown, views, strict=True)
            ):
                break
            views = [*shown]
            sleep(max(EVERY, PAUSE * (monotonic() - begin)))
    if not where.is_terminal:
        where.print()  # Live ends the last line on a terminal alone
    return DONE if all(view.state.word in (FINISHED, STOPPED) for view in shown) else FAULT


def waits(view: View, before: View | None) -> bool:
    """Return whether a run waits to be continued. before: the last view of it."""
    word = view.state.word
    again = before is not None and before.state.word == word
    return word == STOPPED or (word in (STALE, EARLY, DAMAGED) and again)
