"""Runs as a terminal shows them while they go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import time

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcfed.core.tables import duration, table
from hpcfed.report.colours import LIGHT, phase
from hpcfed.report.status import ago, words
from hpcfed.report.watch.blocks import bars, histogram, parts, spark
from hpcfed.report.watch.view import View
from hpcfed.results.state import State
from hpcfed.results.summary import share, summary_statistics

LEAST, MOST = 60, 120  # characters of a line
SPARE = 17  # lines of a view beside those of curve, clients and ranks
TALL = 40  # lines of a terminal that has room for all
WIDEST = 6  # characters of one round in the curve
BLUE = LIGHT[0]
MARKS = {
    "train": "█",
    "server": "▓",
    "communicate": "▒",
    "evaluate": "░",
    "wait": "·",
    "checkpoint": "x",
}  # of phases
HEADS = "run,>round,>accuracy,over rounds,>a round,>left,state"


def render(views: Sequence[View], width: int, height: int) -> RenderableType:
    """All runs: one at length, several a line each. width, height: of the terminal, in
    characters.
    """
    width = min(MOST, max(LEAST, width))
    return single(views[0], width, height, time()) if len(views) == 1 else several(views, width)


def several(views: Sequence[View], width: int) -> RenderableType:
    """A line for each run, why one failed, and the last warning of each that has one."""
    rows = [
        (
            v.name,
            format_rounds(v),
            share(v.mean[-1] if v.mean else None),
            spark(v.mean, width // 5),
            time_of(v.state.seconds),
            time_of(v.state.left),
            brief(v),
        )
        for v in views
    ]
    ended = [
        Text(f"{v.name}: {v.state.word}: {v.state.why}", "yellow") for v in views if v.state.why
    ]
    warned = [Text(f"{v.name}: warning: {v.warnings[-1]}", "yellow") for v in views if v.warnings]
    return Group(table(HEADS, rows), *ended, *warned)


def single(view: View, width: int, height: int, now: float) -> RenderableType:
    """One run: how far it is, its curve, its clients, its ranks, and its last warning."""
    high, most = (8, 9) if height >= TALL else (4, 5)
    kinds = min(most, 1 + len(set(view.kinds.tolist())))
    lines: list[RenderableType] = [heading(view, width), *progress(view, width, now)]
    if view.state.why:
        lines += ["", Text(f"{view.state.word}: {view.state.why}", "yellow")]
    if view.mean:
        lines += ["", *curve(view, width - 8, high), "", *clients(view, kinds, width)]
    if view.phases:
        lines += ["", *ranks(view, width, max(2, height - SPARE - high - kinds))]
    if view.warnings:
        more = f" ({len(view.warnings)} in all)" if len(view.warnings) > 1 else ""
        lines += ["", Text(f"warning: {view.warnings[-1]}{more}", "yellow")]
    return Group(*lines)


def heading(view: View, width: int) -> Table:
    grid = Table.grid(expand=False)
    state = brief(view)
    grid.add_column(width=width - len(state) - 1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right")
    grid.add_row(Text(view.title or view.name, "bold"), Text(state, "bold"))
    return grid


def brief(view: View) -> str:
    """The state without what may be a long sentence about it."""
    return words(replace(view.state, why=""))


def progress(view: View, width: int, now: float) -> Iterator[RenderableType]:
    """The bar, and a line about time and checkpoints."""
    state = view.state
    done, left = parts([state.rounds, max(0, (state.total or 1) - state.rounds)], width)
    yield Text.assemble(("━" * done, BLUE), ("─" * left, "dim"))
    yield Text(", ".join([f"{view.name}: round {format_rounds(view)}", *pace(state, now)]))


def pace(state: State, now: float) -> list[str]:
    """What is known of time and checkpoints."""
    told = [f"{duration(state.seconds)} a round"] if state.seconds is not None else []
    told += [f"{duration(state.left)} left"] if state.left is not None else []
    told += (
        [f"checkpoint of round {state.saved}{ago(state.saved_at, now)}"]
        if state.saved is not None
        else []
    )
    return told


def curve(view: View, width: int, height: int) -> Iterator[Text]:
    """Mean accuracy over the evaluated rounds, as columns from just below its least value to its
    greatest.
    """
    low, high = min(view.mean), max(view.mean)
    known = [x for x in view.loss if np.isfinite(x)]
    loss = f"; training loss {known[-1]:.3f} {spark(known, 20)}" if known else ""
    several = np.isfinite(view.clients).sum() > 1
    std = f", std {view.std[-1]:.4f}" if several else ""
    yield Text(
        f"test accuracy, mean over clients: {view.mean[-1]:.4f}{std}{loss}",
        "bold",
    )
    wide = np.repeat(view.mean, max(1, min(WIDEST, width // len(view.mean))))
    lines = bars(wide, width, height, low, high)
    marks = [f"{high:.4f}", *[""] * (height - 2), f"{low:.4f}"]
    for mark, line in zip(marks, lines, strict=True):
        yield Text.assemble((f"{mark:>6} ", "dim"), (line, BLUE))
    first, final = f"round {view.evaluated[0]}", str(view.evaluated[-1])
    yield Text(f"{'':7}{first}{final:>{max(1, len(lines[0]) - len(first))}}", "dim")


def clients(view: View, most: int, width: int) -> Iterator[RenderableType]:
    """How the clients' accuracies spread, all and by architecture; at most so many lines."""
    bins = max(12, min(40, width - 48))
    names = ["all", *dict.fromkeys(view.kinds.tolist())][:most]
    groups = [view.clients, *(view.clients[view.kinds == name] for name in names[1:])]
    rows = []
    for name, values in zip(names, groups, strict=True):
        s = summary_statistics(values)
        middle = np.nanmedian(values) if s["clients"] else None
        numbers = map(share, (s["min"], middle, s["max"]))
        rows.append((name[: width // 5], s["clients"], *numbers, histogram(values, bins)))
    yield table(f"clients,>n,>min,>median,>max,0{'accuracy':^{bins - 2}}1", rows)


def ranks(view: View, width: int, most: int) -> Iterator[RenderableType]:
    """Seconds of a round by phase, a bar a rank; the longest is as wide as there is room."""
    legend = [(f"{MARKS[name]} {name}  ", phase(name)) for name in view.phases]
    yield Text.assemble(("rank  seconds a round  ", "bold"), *legend)
    amounts = np.array(list(view.phases.values())).T  # [R, phases]
    totals = amounts.sum(1)
    for r, row in enumerate(amounts[:most]):
        room = round((width - 17) * totals[r] / (totals.max() or 1.0))
        drawn = [
            (MARKS[name] * n, phase(name))
            for name, n in zip(view.phases, parts(row, room), strict=True)
        ]
        yield Text.assemble(f"{r:>4}  {duration(totals[r]):>9}  ", *drawn)
    if len(amounts) > most:
        yield Text(f"      and {len(amounts) - most} more ranks", "dim")


def format_rounds(view: View) -> str:
    return f"{view.state.rounds}/{'?' if view.state.total is None else view.state.total}"


def time_of(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
