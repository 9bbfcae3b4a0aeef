"""`hpcfed scaling RUN...`: one job on several numbers of ranks or nodes, as a table and a picture.

It needs only result files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun
from hpcfed.report.cases import MACHINE, axes, find_cases, refuse_same_seed, with_machine
from hpcfed.report.figures.runs import left_out
from hpcfed.report.formats import FORMATS, Grid, Shown
from hpcfed.report.naming import Names, with_titles
from hpcfed.report.notes import resumed_notes
from hpcfed.report.pairs import label_fields
from hpcfed.results.columns import by_round, phases, rounds_here
from hpcfed.results.run import Run, folder_at

COLUMNS = ("seconds per round", "speedup", "efficiency")
RANKS, NODES = MACHINE[:2]
PICTURE = "scaling.png"


@dataclass(frozen=True)
class Point:
    """The runs of one job on one number of ranks, mean over their rounds, and over seeds.

    seconds: of a round.
    speedup, efficiency: relative to the fewest ranks of the same job; efficiency 1 is a speedup as
    large as the number of ranks.
    phases: seconds of a round by phase, mean over ranks.
    """

    job: str
    ranks: int
    nodes: int
    seconds: float
    speedup: float
    efficiency: float
    phases: dict[str, float]
    runs: tuple[Run, ...]


def scaling(
    runs: Sequence[Path | Run],
    format: str = "text",
    out: Path | None = None,
    names: Names = None,
) -> str:
    """Return the table, and the path of the picture that was drawn.

    out: the picture; default: scaling.png in the folder of the first run. Runs that are not
    finished, and rounds that a resumed run did on other ranks, are left out with a note. Raises
    ConfigError if all finished runs of each job have the same number of ranks.
    """
    from hpcfed.report.figures import plotting  # here: a page imports this module for its numbers
    from hpcfed.report.figures.scaling import draw

    cases = find_cases(runs, names)
    measured = points(cases)
    picture = plotting.save(draw(measured), out or folder_at(runs[0]) / PICTURE)
    remarks = [*notes(measured), *left_out([run for run in cases if not run.finished])]
    remarks += resumed_notes([run for run in cases if run.finished])
    return f"{FORMATS[format](grid(measured, remarks))}\n\n{picture}"


def points(runs: Sequence[Run]) -> list[Point]:
    """Return the finished runs by job, from the fewest ranks on.

    Raises ConfigError as above, and for two runs of one job and seed on as many ranks.
    """
    finished = [run for run in runs if run.finished and rounds_here(run.record).any()]
    timed = with_machine(with_titles(finished))
    down, across = axes(timed, None, None)
    fields = [*down, *across]
    jobs: dict[str, dict[tuple[int, int], list[Run]]] = {}
    for run in sorted(timed, key=lambda run: (run.fields[RANKS], run.fields[NODES])):
        places = jobs.setdefault(label_fields(run, fields), {})
        places.setdefault((run.fields[RANKS], run.fields[NODES]), []).append(run)
    if all(len(places) == 1 for places in jobs.values()):
        raise ConfigError(
            "scaling: the finished runs of each job have one number of ranks; run it on several, "
            "as with mpirun -np 2, each with its own --out"
        )
    for group in (group for places in jobs.values() for group in places.values()):
        number = count_noun(group[0].fields[RANKS], "rank")
        refuse_same_seed("scaling", group, f"one job on {number}")
    result = []
    for job, places in jobs.items():
        seconds_by_place = {place: seconds_of(group) for place, group in places.items()}
        (ranks, _), base = next(iter(seconds_by_place.items()))
        for (n, nodes), group in places.items():
            seconds = seconds_by_place[n, nodes]
            speedup = base / seconds
            spent = mean_phases(group)
            result.append(
                Point(job, n, nodes, seconds, speedup, speedup * ranks / n, spent, tuple(group))
            )
    return result


def seconds_of(runs: Sequence[Run]) -> float:
    """Return the seconds of a round, mean over rounds and runs."""
    means = [np.nanmean(by_round(run.record, "seconds")[rounds_here(run.record)]) for run in runs]
    return float(np.mean(means))


def mean_phases(runs: Sequence[Run]) -> dict[str, float]:
    """Return the seconds of a round by phase, mean over ranks, rounds and runs."""
    each = [
        {
            name: float(np.nanmean(seconds[rounds_here(run.record)]))
            for name, seconds in phases(run.record).items()
        }
        for run in runs
    ]
    return {name: float(np.mean([one.get(name, 0.0) for one in each])) for name in each[0]}


def grid(measured: Sequence[Point], remarks: list[str]) -> Grid:
    """Return the table: a line for each number of ranks, with the share of time of each phase.

    remarks: lines below it.
    """
    nodes = [NODES] if len({point.nodes for point in measured}) > 1 else []
    shown = [name for name in measured[0].phases if any(p.phases.get(name) for p in measured)]
    rows = [
        (point.job, str(point.ranks), *([str(point.nodes)] if nodes else [])) for point in measured
    ]
    heads: list[tuple[str, ...]] = [(name,) for name in (*COLUMNS, *shown)]
    phrase = "; phases: share of the ranks' time; wait: for other ranks" if shown else ""
    caption = (
        "Seconds per round, mean over rounds; speedup and efficiency relative to the fewest ranks "
        f"of the same job{phrase}"
    )
    cells = [line(point, shown) for point in measured]
    fields = ["job", RANKS, *nodes]
    return Grid(caption, "seconds", fields, ["measure"], rows, heads, cells, remarks, spoken=True)


def line(point: Point, shown: Sequence[str]) -> list[Shown]:
    """Return the cells of a line."""
    shares = [point.efficiency, *(point.phases.get(n, 0.0) / point.seconds for n in shown)]
    cells = [
        (f"{point.seconds:.3g} s", point.seconds),
        (f"{point.speedup:.2f}", point.speedup),
        *((f"{share:.0%}", share) for share in shares),
    ]
    n = len(point.runs)
    return [Shown(text, "", "", number, None, n, n) for text, number in cells]


def notes(measured: Sequence[Point]) -> list[str]:
    """Return what else may explain differences of time: processors, GPUs, and versions."""
    runs = [run for point in measured for run in point.runs]
    hardware = [run.header.get("hardware", {}) for run in runs]
    processors, devices = ({str(one.get(name)) for one in hardware} for name in ("cpu", "device"))
    versions = {run.fields[MACHINE[2]] for run in runs}
    return [
        f"the runs are of different {what}: {', '.join(sorted(values))}"
        for what, values in (
            ("processors", processors),
            ("GPUs or CPUs", devices),
            ("versions of hpcfed", versions),
        )
        if len(values) > 1
    ]
