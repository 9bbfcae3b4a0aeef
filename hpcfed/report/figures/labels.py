"""Label distribution of clients: figures 2 and 3 of Jang et al., ICPP 2022 (FedClassAvg)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcfed.core.errors import ConfigError
from hpcfed.report.colours import LIGHT
from hpcfed.report.figures.groups import by_panel, groups
from hpcfed.report.figures.plotting import (
    COLUMN,
    LETTERS,
    PAGE,
    SMALL,
    Picture,
    name_clients,
    places,
    plain,
)
from hpcfed.report.figures.runs import short
from hpcfed.results.columns import client_names
from hpcfed.results.run import Run
from hpcfed.storage.record import Record

GAP = 4  # points between the key's largest dot and the panel
KEY = 20  # points between a panel and its title, for dots of up to a quarter of an inch


@dataclass(frozen=True)
class Labels:
    """Training examples of each class that each client has.

    title: the data and their partition.
    clients: [K], their names, or their numbers.
    counts: [K, C].
    """

    title: str
    classes: list[str]
    clients: list[str]
    counts: np.ndarray


def numbers(runs: Sequence[Run]) -> list[Labels]:
    """Return one for each partition of data among these runs.

    For runs that differ in the seed it is the first one's. Raises ConfigError if no run recorded
    it.
    """
    recorded = [run for run in runs if "label_counts" in run.record.arrays]
    records = {
        panel: members[0].runs[0].record
        for panel, members in by_panel(groups(recorded, ["participation"])).items()
    }
    if not records:
        raise ConfigError(
            "labels: no run recorded who holds which examples: those of a population do not "
            "(clients up to 10,000 of a data set of files do), and numbers to predict and survival "
            "times have no classes"
        )
    return [
        Labels(title, r.header["classes"], names_of(r), r.arrays["label_counts"])
        for title, r in records.items()
    ]


def names_of(record: Record) -> list[str]:
    """Return the clients' names, or their numbers."""
    K = len(record.arrays["label_counts"])
    return client_names(record) or list(map(str, range(K)))


def figure(runs: Sequence[Run]) -> Figure:
    """Draw the number of examples as the area of a dot: clients on x, classes downwards on y."""
    tables = numbers(runs)
    widest = max(one.counts.shape[0] for one in tables)
    width = min(PAGE, max(COLUMN, 0.25 * widest + 1.2))
    cell = max(0.12, min(0.25, (width - 1.0) / widest))  # inches
    heights = [max(0.8, cell * one.counts.shape[1]) for one in tables]
    drawing = Picture(figsize=(width, sum(heights) + 0.9 * len(tables)), layout="constrained")
    axes = drawing.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, one in zip(axes, tables, strict=True):
        frame(ax, one, width - 1.0)
    drawing.draw_without_rendering()  # so that the panels have their final sizes
    for ax, one in zip(axes, tables, strict=True):
        dots(ax, one.counts)
    return drawing


def frame(ax: Axes, one: Labels, width: float) -> None:
    """Draw axes and title of a panel of this width in inches."""
    K, C = one.counts.shape
    ax.set(xlim=(-0.6, K - 0.4), ylim=(C - 0.4, -0.6))
    ax.set_xlabel("client", fontsize=LETTERS)
    ax.set_ylabel("class", fontsize=LETTERS)
    name_clients(ax, one.clients, width)
    ax.set_yticks(places(C), [plain(short(one.classes[c], 16)) for c in places(C)])
    ax.tick_params(labelsize=SMALL, length=2)
    ax.set_title(
        f"{plain(short(one.title))}: training examples", fontsize=SMALL, loc="left", pad=KEY
    )


def dots(ax: Axes, counts: np.ndarray) -> None:
    """Draw the dots, as large as the panel's size allows, and a key to their sizes."""
    K, C = counts.shape
    panel = ax.get_window_extent()
    cell = min(panel.width / (K + 0.2), panel.height / (C + 0.2)) * 72 / ax.figure.dpi  # points
    cell = min(cell, KEY - GAP)  # or the key's largest dot would touch the panel
    k, c = counts.nonzero()
    most = counts.max()
    if not most:
        return
    area = (0.95 * cell) ** 2 / most  # points squared of one example
    ax.scatter(k, c, area * counts[k, c], color=LIGHT[0], linewidth=0)
    key = [ax.scatter([], [], area * n, color=LIGHT[0], linewidth=0) for n in sizes(most)]
    ax.legend(
        key,
        [f"{n:,}" for n in sizes(most)],
        loc="center left",
        bbox_to_anchor=(0, 1 + KEY / 2 * ax.figure.dpi / 72 / panel.height),
        ncols=len(key),
        fontsize=SMALL,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=max(1.0, cell / SMALL),
        handletextpad=0.5,
        columnspacing=1.0,
    ).set_in_layout(False)  # the title reserves the space, so that the panel keeps its size


def sizes(most: int) -> list[int]:
    """Return the numbers of examples in the key of dot sizes, ascending.

    These are the maximum, and round numbers below a third and a fifteenth of it.
    """
    below = [
        n
        for part in (most / 15, most / 3)
        for n in [
            max((m * 10**e for m in (1, 2, 5) for e in range(10) if m * 10**e <= part), default=0)
        ]
    ]
    return sorted({*below, int(most)} - {0})
