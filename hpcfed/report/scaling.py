"""`hpcfed table RUNS --layout scaling`: the same job on several numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.report.cases import MACHINE, axes
from hpcfed.report.formats import Grid, Shown
from hpcfed.results.run import Run
from hpcfed.results.summary import facts

COLUMNS = ("seconds per round", "speedup", "efficiency", "waiting")
RANKS, NODES = MACHINE[:2]


def scaling(finished: list[Run]) -> Grid:
    """Return seconds, speedup and efficiency for each number of ranks.

    finished: the runs, with their machine's fields (`cases.with_machine`). Runs that differ in
    their seed alone are averaged. Speedup and efficiency are relative to the fewest ranks of the
    same job. Raises ConfigError if all runs of each job have the same number of ranks.
    """
    down, across = axes(finished, None, None, timed=True)
    job = [name for name in (*down, *across) if name not in MACHINE]
    place = [RANKS, *([NODES] if len({run.at([NODES]) for run in finished}) > 1 else [])]
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Run]]] = {}
    for run in sorted(finished, key=lambda run: (run.fields[RANKS], run.fields[NODES])):
        groups.setdefault(run.at(job), {}).setdefault(run.at(place), []).append(run)
    if all(len(places) == 1 for places in groups.values()):
        raise ConfigError(
            "table: --layout scaling: the runs of each job have one number of ranks; run it on "
            "several, as with mpirun -np 2, each with its own --out"
        )
    rows = [(*name, *at) for name, places in groups.items() for at in places]
    cells = [line(runs, places) for places in groups.values() for runs in places.values()]
    caption = (
        "Seconds per round, mean over rounds; speedup and efficiency relative to the fewest ranks "
        "of the same job; waiting: share of the ranks' time in which they wait for others"
    )
    heads: list[tuple[str, ...]] = [(name,) for name in COLUMNS]
    return Grid(
        caption, "seconds", [*job, *place], ["measure.name"], rows, heads, cells, notes(finished)
    )


def line(runs: Sequence[Run], places: dict[tuple[str, ...], list[Run]]) -> list[Shown]:
    """Return the cells of the runs on one number of ranks.

    places: all runs of their job, from the fewest ranks on.
    """
    base = next(iter(places.values()))
    seconds = seconds_of(runs)
    speedup = seconds_of(base) / seconds
    efficiency = speedup * base[0].fields[RANKS] / runs[0].fields[RANKS]
    waiting = float(np.mean([facts(run.record)["time"]["wait"]["share"] for run in runs]))
    shown = (f"{seconds:.3g} s", f"{speedup:.2f}", f"{efficiency:.0%}", f"{waiting:.0%}")
    numbers = (seconds, speedup, efficiency, waiting)
    return [
        Shown(text, "", "", number, None, len(runs), len(runs))
        for text, number in zip(shown, numbers, strict=True)
    ]


def seconds_of(runs: Sequence[Run]) -> float:
    """Return the seconds of a round, mean over runs."""
    return float(np.mean([facts(run.record)["time"]["seconds_per_round"] for run in runs]))


def notes(runs: Sequence[Run]) -> list[str]:
    """Return what else may explain differences of time: processors, and versions."""
    machines = {str(run.header.get("hardware", {}).get("cpu")) for run in runs}
    versions = {run.fields[MACHINE[2]] for run in runs}
    return [
        f"the runs are of different {what}: {', '.join(sorted(values))}"
        for what, values in (("processors", machines), ("versions of hpcfed", versions))
        if len(values) > 1
    ]
