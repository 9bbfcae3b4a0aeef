"""Views of runs for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import time

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcfed.core.tables import duration, table
from hpcfed.report.colours import LIGHT, phase
from hpcfed.report.status import ago, format_rounds, metric_head, progress_cells
from hpcfed.report.watch.view import View
from hpcfed.results.columns import format_metric, is_share, title_metric
from hpcfed.results.state import State, words
from hpcfed.results.summary import summary_statistics

LEAST, MOST = 60, 120  # characters of a line
SPARE = 17  # lines of a view beside those of curve, clients and ranks
TALL = 40  # lines of a terminal with space for the long view
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
HEADS = "run,>round,>{},over rounds,>a round,>left,state"
EIGHTHS = " ▁▂▃▄▅▆▇█"


def render(views: Sequence[View], width: int, height: int) -> RenderableType:
    """Return the view of all runs: a single one in detail, several with a line each.

    width, height: of the terminal, in characters.
    """
    width = min(MOST, max(LEAST, width))
    return single(views[0], width, height, time()) if len(views) == 1 else several(views, width)


def several(views: Sequence[View], width: int) -> RenderableType:
    """Return a line for each run, reasons of failures, and the last warning of each run."""
    head, rows = metric_head([v.state for v in views]), []
    for v in views:
        done, metric, *times = progress_cells(v.state, head)
        rows.append((v.name, done, metric, spark(v.mean, width // 5), *times, brief(v)))
    ended = [
        Text(f"{v.name}: {v.state.word}: {v.state.why}", "yellow") for v in views if v.state.why
    ]
    warned = [Text(f"{v.name}: warning: {v.warnings[-1]}", "yellow") for v in views if v.warnings]
    return Group(table(HEADS.format(head), rows, named=True), *ended, *warned)


def single(view: View, width: int, height: int, now: float) -> RenderableType:
    """Return one run: its progress, curve, clients, ranks, and last warning."""
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
    """Return the state without its reason, which may be a long sentence."""
    return words(replace(view.state, why=""))


def progress(view: View, width: int, now: float) -> Iterator[RenderableType]:
    """Yield the bar, and a line about time and checkpoints."""
    state = view.state
    done, left = parts([state.rounds, max(0, (state.total or 1) - state.rounds)], width)
    yield Text.assemble(("━" * done, BLUE), ("─" * left, "dim"))
    yield Text(", ".join([f"{view.name}: round {format_rounds(state)}", *pace(state, now)]))


def pace(state: State, now: float) -> list[str]:
    """Return the known facts about time and checkpoints."""
    facts = [f"{duration(state.seconds)} a round"] if state.seconds is not None else []
    facts += [f"{duration(state.left)} left"] if state.left is not None else []
    facts += (
        [f"checkpoint of round {state.saved}{ago(state.saved_at, now)}"]
        if state.saved is not None
        else []
    )
    return facts


def curve(view: View, width: int, height: int) -> Iterator[Text]:
    """Yield the mean metric over evaluated rounds, as columns from its minimum to its maximum."""
    low, high = min(view.mean), max(view.mean)
    losses = [x for x in view.loss if np.isfinite(x)]
    loss = f"; training loss {losses[-1]:.3f} {spark(losses, 20)}" if losses else ""
    several = np.isfinite(view.clients).sum() > 1
    show = partial(format_metric, view.state.metric)
    std = f", std {show(view.std[-1])}" if several else ""
    yield Text(
        f"test {title_metric(view.state.metric)}, mean over clients: "
        f"{show(view.mean[-1])}{std}{loss}",
        "bold",
    )
    wide = np.repeat(view.mean, max(1, min(WIDEST, width // len(view.mean))))
    lines = bars(wide, width, height, low, high)
    marks = [show(high), *[""] * (height - 2), show(low)]
    for mark, line in zip(marks, lines, strict=True):
        yield Text.assemble((f"{mark:>6} ", "dim"), (line, BLUE))
    start, final = f"round {view.evaluated[0]}", str(view.evaluated[-1])
    yield Text(f"{'':7}{start}{final:>{max(1, len(lines[0]) - len(start))}}", "dim")


def clients(view: View, most: int, width: int) -> Iterator[RenderableType]:
    """Yield the distribution of the clients' metrics, over all and by architecture.

    It has at most `most` lines.
    """
    bins = max(12, min(40, width - 48))
    metric = view.state.metric
    finite = view.clients[np.isfinite(view.clients)]
    top = 1.0 if is_share(metric) or not len(finite) else float(finite.max()) or 1.0
    end = "1" if is_share(metric) else format_metric(metric, top, 3)
    scale = f"0{title_metric(metric):^{max(1, bins - 1 - len(end))}}{end}"
    names = ["all", *dict.fromkeys(view.kinds.tolist())][:most]
    groups = [view.clients, *(view.clients[view.kinds == name] for name in names[1:])]
    rows = []
    for name, values in zip(names, groups, strict=True):
        s = summary_statistics(values)
        middle = np.nanmedian(values) if s["clients"] else None
        numbers = (format_metric(metric, v) for v in (s["min"], middle, s["max"]))
        rows.append((name[: width // 5], s["clients"], *numbers, histogram(values / top, bins)))
    yield table(f"clients,>n,>min,>median,>max,{scale}", rows)


def ranks(view: View, width: int, most: int) -> Iterator[RenderableType]:
    """Yield the seconds of a round by phase, with a bar for each rank, scaled to the width."""
    legend = [(f"{MARKS[name]} {name}  ", phase(name)) for name in view.phases]
    yield Text.assemble(("rank  seconds per round  ", "bold"), *legend)
    amounts = np.array(list(view.phases.values())).T  # [R, phases]
    totals = amounts.sum(1)
    for r, row in enumerate(amounts[:most]):
        length = round((width - 17) * totals[r] / (totals.max() or 1.0))
        bar = [
            (MARKS[name] * n, phase(name))
            for name, n in zip(view.phases, parts(row, length), strict=True)
        ]
        yield Text.assemble(f"{r:>4}  {duration(totals[r]):>9}  ", *bar)
    if len(amounts) > most:
        yield Text(f"      and {len(amounts) - most} more ranks", "dim")


def bars(
    values: Sequence[float] | np.ndarray, width: int, height: int, low: float, high: float
) -> list[str]:
    """Return columns of blocks, `height` lines from top to bottom, at most `width` wide.

    low is drawn as an eighth of a block, high as the full height.
    """
    span = (high - low) or 1.0
    shares = np.clip((downsample(values, width) - low) / span, 0, 1)
    full = (1 + np.rint(shares * (8 * height - 1))).astype(int)
    return [
        "".join(EIGHTHS[min(8, max(0, n - 8 * row))] for n in full)
        for row in reversed(range(height))
    ]


def downsample(values: Sequence[float] | np.ndarray, width: int) -> np.ndarray:
    """Return at most `width` means of neighbours."""
    return np.array(
        [
            np.mean(part)
            for part in np.array_split(np.asarray(values, float), min(width, len(values)) or 1)
        ]
    )


def spark(values: Sequence[float], width: int) -> str:
    """Return a curve in one line, from its minimum to its maximum."""
    finite = [v for v in values if np.isfinite(v)]
    if not finite:
        return ""
    shown = downsample(finite, width)
    return bars(shown, width, 1, shown.min(), shown.max())[0]


def histogram(values: np.ndarray, bins: int) -> str:
    """Return a histogram of values in 0..1 in one line."""
    counts, _ = np.histogram(values[np.isfinite(values)], bins, (0.0, 1.0))
    top = max(1, counts.max())
    return "".join(EIGHTHS[int(np.ceil(8 * n / top))] for n in counts)


def parts(amounts: Sequence[float], width: int) -> list[int]:
    """Return the widths in characters of the parts of a bar, with the sum `width`.

    Each has its share, rounded so that the sum is right.
    """
    total = sum(amounts) or 1.0
    ends = np.rint(np.cumsum(amounts) / total * width).astype(int)
    return np.diff(ends, prepend=0).tolist()
