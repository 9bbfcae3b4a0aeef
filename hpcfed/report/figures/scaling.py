"""Figure of one job on several numbers of ranks: time, efficiency, and the phases of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, PercentFormatter

from hpcfed.report.cases import with_rounds_done
from hpcfed.report.colours import looks
from hpcfed.report.figures import plotting
from hpcfed.report.figures.phases import HATCHES, LOOKS, OTHER, patches, stack
from hpcfed.report.scaling import Point, points
from hpcfed.results.run import Run


def figure(runs: Sequence[Run]) -> Figure:
    """Draw these runs. Raises ConfigError if all of each job have the same number of ranks."""
    return draw(points([with_rounds_done(run) for run in runs]))


def draw(measured: Sequence[Point]) -> Figure:
    """Draw seconds of a round and efficiency over ranks, and a panel of phases for each job."""
    jobs = {
        job: [point for point in measured if point.job == job]
        for job in dict.fromkeys(point.job for point in measured)
    }
    methods = [members[0].runs[0].method for members in jobs.values()]
    lines = dict(zip(jobs, looks(methods), strict=True))
    below = plotting.lines([*jobs, *LOOKS], plotting.PAGE)
    drawing, axes = plotting.panels(2 + len(jobs), across=3, below=below)
    time, efficiency, *bars = axes
    for job, members in jobs.items():
        ranks, style = np.array([p.ranks for p in members]), plotting.style(lines[job])
        plotting.line(time, ranks, np.array([p.seconds for p in members]), style)
        ideal = members[0].seconds * ranks[0] / ranks
        time.plot(ranks, ideal, linewidth=0.8, color=plotting.GREY, linestyle="dotted", zorder=1)
        plotting.line(efficiency, ranks, np.array([p.efficiency for p in members]), style)
    finish(time, efficiency, sorted({point.ranks for point in measured}))
    shown = [name for name in LOOKS if any(spent(point).get(name) for point in measured)]
    for ax, (job, members) in zip(bars, jobs.items(), strict=True):
        phases = [spent(point) for point in members]
        seconds = {name: np.array([one[name] for one in phases]) for name in LOOKS}
        stack(ax, seconds, shown, 0.7, hatched=True)
        ax.set_xticks(range(len(members)), [f"{point.ranks:,}" for point in members])
        plotting.frame(ax, "ranks", "seconds per round")
        plotting.head(ax, job if len(jobs) > 1 else "phases, mean over ranks")
    labelled = lines if len(jobs) > 1 else {}
    handles = [Line2D([], [], **plotting.style(look)) for look in labelled.values()]
    plotting.below(drawing, [*handles, *patches(shown)], [*labelled, *shown])
    return drawing


def finish(time: Axes, efficiency: Axes, ranks: Sequence[int]) -> None:
    """Label the axes of both panels, with a tick for each number of ranks."""
    plotting.frame(time, "ranks", "seconds per round")
    plotting.head(time, "time; dotted: ideal")
    plotting.frame(efficiency, "ranks", "")
    plotting.head(efficiency, "efficiency, relative to fewest ranks")
    time.set_yscale("log")
    efficiency.yaxis.set_major_formatter(PercentFormatter(1))
    efficiency.set_ylim(0, max(1.05, 1.05 * efficiency.dataLim.ymax))
    for ax in (time, efficiency):
        ax.set_xscale("log")
        ax.set_xticks(ranks, [f"{n:,}" for n in ranks])
        ax.xaxis.set_minor_formatter(NullFormatter())
    plotting.plain_log(time)


def spent(point: Point) -> dict[str, float]:
    """Return the seconds of each phase, and those of no phase."""
    other = max(0.0, point.seconds - sum(point.phases.values()))
    return {name: point.phases.get(name, 0.0) for name in HATCHES} | {OTHER: other}
