"""Figure of the ranks' time: seconds by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hpcfed.core.errors import ConfigError
from hpcfed.core.tables import duration
from hpcfed.report.colours import phase
from hpcfed.report.figures import plotting
from hpcfed.results.columns import phases
from hpcfed.results.run import Run
from hpcfed.storage.record import Record

OTHER = "other"
HATCHES = {
    "train": "",
    "evaluate": "//",
    "wait": "..",
    "communicate": "xx",
    "server": "\\\\",
    "checkpoint": "++",
}
# in this order
LOOKS = {name: (phase(name), hatch) for name, hatch in HATCHES.items()} | {OTHER: ("#999999", "")}
WIDE = 40  # ranks up to which bars are wide enough for hatches


@dataclass(frozen=True)
class Phases:
    """Seconds of a round by phase, [R] each, mean over the rounds that a rank took part in.

    Phases are in the order of LOOKS.
    other: seconds of rounds in no phase.
    """

    run: Run
    seconds: dict[str, np.ndarray]

    @property
    def wait_share(self) -> float:
        """The share of all ranks' time in which they wait, 0..1."""
        return float(
            self.seconds["wait"].sum() / (sum(s.sum() for s in self.seconds.values()) or 1.0)
        )


def numbers(runs: Sequence[Run]) -> list[Phases]:
    """Return the seconds of each run that has any. Raises ConfigError if none has."""
    timings = [
        Phases(run, seconds_by_phase(run.record))
        for run in runs
        if run.record.rounds and "ranks/train" in run.record.columns
    ]
    if not timings:
        raise ConfigError(
            "phases: no round of these runs is done and recorded with the ranks' seconds; "
            "wait for the first, or give other runs"
        )
    return timings


def seconds_by_phase(record: Record) -> dict[str, np.ndarray]:
    columns = phases(record)
    present = np.isfinite(columns["train"])  # [T, R]
    rounds = present.sum(0).clip(min=1)
    means = {name: np.nansum(column, 0) / rounds for name, column in columns.items()}
    round_seconds = np.where(present, record.column("rounds/seconds")[:, None], 0.0).sum(0) / rounds
    means[OTHER] = (round_seconds - sum(means.values())).clip(min=0)
    none = np.zeros(present.shape[1])
    return {name: means.get(name, none) for name in LOOKS}


def figure(runs: Sequence[Run]) -> Figure:
    """Draw stacked bars of the ranks, in a panel for each run, on one scale of seconds."""
    timings = numbers(runs)
    most = max(len(one.seconds[OTHER]) for one in timings)
    drawing, axes = plotting.panels(
        len(timings),
        across=3 if most <= WIDE else 1,
        below=2,
        wide=most > WIDE,
        sharey=True,
    )
    shown = [name for name in LOOKS if any(one.seconds[name].any() for one in timings)]
    for ax, one in zip(axes, timings, strict=True):
        bars(ax, one, shown, leftmost=ax.get_subplotspec().is_first_col())  # type: ignore[union-attr]
    plotting.below(drawing, patches(shown), shown)
    return drawing


def patches(shown: Sequence[str]) -> list[Patch]:
    """Return the legend symbols of these phases."""
    return [
        Patch(facecolor=LOOKS[n][0], hatch=2 * LOOKS[n][1], edgecolor="white", linewidth=0)
        for n in shown
    ]


def stack(
    ax: Axes, seconds: Mapping[str, np.ndarray], shown: Sequence[str], width: float, hatched: bool
) -> np.ndarray:
    """Draw bars at 0, 1, ... with their phases stacked, and return the heights.

    seconds: of each bar, by phase.  shown: the phases, from the bottom upwards.
    """
    height = np.zeros(len(seconds[OTHER]))
    for name in shown:
        colour, hatch = LOOKS[name]
        ax.bar(
            np.arange(len(height)),
            seconds[name],
            width,
            height,
            color=colour,
            hatch=2 * hatch if hatched else "",
            edgecolor="white",
            linewidth=0,
        )
        height = height + seconds[name]
    return height


def bars(ax: Axes, one: Phases, shown: Sequence[str], leftmost: bool) -> None:
    """Draw one run: a bar for each rank with its phases stacked.

    leftmost: whether the panel is at the left.
    """
    ranks = len(one.seconds[OTHER])
    wide = ranks <= WIDE
    height = stack(ax, one.seconds, shown, 0.8 if wide else 1.0, hatched=wide)
    plotting.frame(ax, "rank", "seconds per round, mean" if leftmost else "")
    waiting = f"{100 * one.wait_share:.0f} % waiting"
    plotting.head(ax, f"{one.run.title}: {waiting}, {duration(height.max())}")
    ax.set_xticks(plotting.places(ranks, 10 if wide else 20))
    ax.set_xlim(-0.6 if ranks > 2 else -1, ranks - (0.4 if ranks > 2 else 0))
