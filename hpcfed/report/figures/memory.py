"""Figure of the ranks' peak memory, of the host and of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcfed.core.errors import ConfigError
from hpcfed.report.figures import plotting
from hpcfed.report.figures.groups import by_title
from hpcfed.results.run import Run

COLUMNS = {"host": "ranks/peak_bytes", "device": "ranks/peak_device_bytes"}
WORDS = {"host": "peak memory of a rank", "device": "peak GPU memory of a rank"}


@dataclass(frozen=True)
class Peaks:
    """Peak memory of each rank up to each round, in bytes: [T, R].

    Entries are nan for ranks that a round did not have.
    """

    run: Run
    bytes: np.ndarray

    @property
    def final(self) -> np.ndarray:
        """[R], peak of each rank in the run."""
        return np.array([column[np.isfinite(column)].max(initial=0.0) for column in self.bytes.T])

    @property
    def spread(self) -> tuple[np.ndarray, np.ndarray]:
        """Minimum and maximum over the ranks, [T] each."""
        return np.nanmin(self.bytes, 1), np.nanmax(self.bytes, 1)


def numbers(runs: Sequence[Run], where: str) -> list[Peaks]:
    """Return the peaks of the runs that recorded them. where: host or device."""
    columns = [(run, run.record.columns.get(COLUMNS[where])) for run in runs]
    return [
        Peaks(run, column.astype(float))
        for run, column in columns
        if column is not None and np.nansum(column) > 0
    ]


def figure(runs: Sequence[Run]) -> Figure:
    """Draw peaks by rank, and over rounds with a band from the lowest to the highest rank."""
    by_place = {where: peaks for where in COLUMNS if (peaks := numbers(runs, where))}
    if not by_place:
        raise ConfigError(
            "memory: these runs have not recorded their ranks' peaks; give runs "
            "of which a round is done"
        )
    looks = by_title(runs)
    drawing, axes = plotting.panels(
        2 * len(by_place), below=plotting.lines(list(looks), plotting.PAGE)
    )
    for i, (where, peaks) in enumerate(by_place.items()):
        left, right = axes[2 * i : 2 * i + 2]
        for one in peaks:
            style = plotting.style(looks[one.run.title])
            by_rank(left, one, style)
            over_rounds(right, one, style)
        finish(left, right, where, max(len(one.final) for one in peaks))
    plotting.legend(drawing, looks)
    return drawing


def by_rank(ax: Axes, one: Peaks, style: dict[str, Any]) -> None:
    """Draw a point for each rank; ranks have no order, so no line joins them."""
    marked = len(one.final) <= 40
    points = style | {"linestyle": "none"}
    ax.plot(one.final, marker="o" if marked else ".", markersize=4 if marked else 2, **points)


def over_rounds(ax: Axes, one: Peaks, style: dict[str, Any]) -> None:
    """Draw the highest rank as a line."""
    low, high = one.spread
    rounds = np.arange(1, len(high) + 1)
    plotting.line(ax, rounds, high, style)
    plotting.band(ax, rounds, high, low, high, style)


def finish(left: Axes, right: Axes, where: str, ranks: int) -> None:
    """Label the axes of both panels, and let them begin at 0."""
    plotting.frame(left, "rank", WORDS[where])
    plotting.frame(right, "round", "peak per rank so far")
    plotting.head(left, "each rank, over the whole run")
    plotting.head(right, "line: highest rank; band: down to the lowest rank")
    left.set_xticks(plotting.places(ranks, 12))
    left.set_xlim(-0.5, ranks - 0.5)
    plotting.set_x_axis(right, integer=True)
    for ax in (left, right):
        plotting.upwards(ax)
        plotting.unit(ax.yaxis, "B")
