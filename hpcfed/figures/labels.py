"""Who holds which labels: figures 2 and 3 of Jang et al., ICPP 2022 (FedClassAvg)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcfed.errors import ConfigError
from hpcfed.figures.groups import by_panel, groups
from hpcfed.figures.look import COLOURS, COLUMN, LETTERS, PAGE, SMALL, places, plain
from hpcfed.figures.runs import Drawn, short


@dataclass(frozen=True)
class Labels:
    """counts: [K, C], training examples. title: the data and how they were shared out."""

    title: str
    classes: list[str]
    counts: np.ndarray


def numbers(runs: Sequence[Drawn]) -> list[Labels]:
    """One for each way in which data were shared out among these runs; of runs that differ in the
    seed, the first's.

    Raises ConfigError where no run recorded it.
    """
    recorded = [run for run in runs if "label_counts" in run.record.arrays]
    known = {
        panel: found[0].runs[0].record
        for panel, found in by_panel(groups(recorded, ["participation"])).items()
    }
    if not known:
        raise ConfigError(
            "labels: no run recorded who holds which examples: those of a population do not "
            "(clients up to 10,000 of a data set of files do)"
        )
    return [
        Labels(title, r.header["classes"], r.arrays["label_counts"]) for title, r in known.items()
    ]


def figure(runs: Sequence[Drawn]) -> Figure:
    """The number of examples as the area of a dot: clients to the right, classes downwards."""
    found = numbers(runs)
    widest = max(one.counts.shape[0] for one in found)
    width = min(PAGE, max(COLUMN, 0.25 * widest + 1.2))
    cell = max(0.12, min(0.25, (width - 1.0) / widest))  # inches
    heights = [max(0.8, cell * one.counts.shape[1]) for one in found]
    drawing = Figure(figsize=(width, sum(heights) + 0.8 * len(found)), layout="constrained")
    axes = drawing.subplots(len(found), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, one in zip(axes, found, strict=True):
        frame(ax, one)
    drawing.draw_without_rendering()  # so that the panels have their final sizes
    for ax, one in zip(axes, found, strict=True):
        dots(ax, one.counts)
    return drawing


def frame(ax: Axes, one: Labels) -> None:
    K, C = one.counts.shape
    ax.set(xlim=(-0.6, K - 0.4), ylim=(C - 0.4, -0.6))
    ax.set_xlabel("client", fontsize=LETTERS)
    ax.set_ylabel("class", fontsize=LETTERS)
    ax.set_xticks(places(K))
    ax.set_yticks(places(C), [plain(short(one.classes[c], 16)) for c in places(C)])
    ax.tick_params(labelsize=SMALL, length=2)
    most = f"largest dot: {one.counts.max():,} training examples"
    ax.set_title(f"{plain(short(one.title))}\n{most}", fontsize=SMALL, loc="left")


def dots(ax: Axes, counts: np.ndarray) -> None:
    """The dots, as large as the panel's size on paper lets them be."""
    K, C = counts.shape
    panel = ax.get_window_extent()
    cell = min(panel.width / (K + 0.2), panel.height / (C + 0.2)) * 72 / ax.figure.dpi  # points
    k, c = counts.nonzero()
    ax.scatter(
        k, c, (0.95 * cell) ** 2 * counts[k, c] / counts.max(), color=COLOURS[0], linewidth=0
    )
