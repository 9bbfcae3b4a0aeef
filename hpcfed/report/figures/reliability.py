"""Reliability diagrams: how often predictions of a confidence are right.

Guo et al., ICML 2017, arXiv:1706.04599, figure 1. A run has the numbers if it measured `ece`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun
from hpcfed.report.colours import looks
from hpcfed.report.figures import plotting
from hpcfed.report.figures.groups import Group, groups
from hpcfed.results.run import Run

NAMES = {"": "reliability", "received": "reliability_received"}  # arrays of a run
FEW = 10  # clients up to which each has a line of its own
WIDE = 36  # letters of a title above a panel
LEAST = 5  # examples of a bin that is drawn


@dataclass(frozen=True)
class Reliability:
    """Predictions by bin of confidence, of a group of runs together.

    counts: [clients, 3, bins]: examples, sum of confidences, correct answers; of several seeds the
    clients of all of them.
    received: [3, bins], over all clients, of the models that they would receive; None: not scored.
    """

    counts: np.ndarray
    received: np.ndarray | None

    @property
    def pooled(self) -> np.ndarray:
        """The counts of all clients together, [3, bins]."""
        return self.counts.sum(0)

    @property
    def text(self) -> str:
        """The calibration errors, in words."""
        each = [error(one) for one in self.counts]
        clients = count_noun(len(each), "client")
        return f"ECE {error(self.pooled):.3f} pooled, {np.mean(each):.3f} mean of {clients}"


def error(counts: np.ndarray) -> float:
    """Return the expected calibration error of counts, [3, bins]."""
    n, confidence, correct = counts
    return float(np.abs(confidence - correct).sum() / n.sum())


def curve(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean confidence and accuracy of each bin with at least LEAST examples."""
    n, confidence, correct = counts[:, counts[0] >= LEAST]
    return confidence / n, correct / n


def reliabilities(group: Group) -> Reliability:
    """Return the counts of a group's runs; raises ConfigError for a run that has none."""
    tables: dict[str, list[np.ndarray]] = {phase: [] for phase in NAMES}
    for run in group.runs:
        arrays = run.record.arrays
        if NAMES[""] not in arrays:
            raise ConfigError(
                f"reliability: {run.name}: no calibration was measured at its end; run it with "
                f"--evaluate.metrics ece"
            )
        for phase, name in NAMES.items():
            if name in arrays:
                tables[phase].append(arrays[name].reshape(len(arrays[name]), 3, -1))
    received = tables["received"]
    complete = len(received) == len(group.runs)
    return Reliability(
        np.concatenate(tables[""]), np.concatenate(received).sum(0) if complete else None
    )


def figure(runs: Sequence[Run]) -> Figure:
    """Draw a panel for each method: accuracy over confidence, and where the examples are.

    Runs that differ only in their seed are one panel.
    """
    parts = groups(runs)
    several = len({group.panel for group in parts}) > 1
    drawing, axes = plotting.panels(
        len(parts), across=3, height=2.9, below=2 if len(parts) > 1 else 5, sharex=True, sharey=True
    )
    styles = looks([group.method for group in parts])
    results = [reliabilities(group) for group in parts]
    for i, (ax, group, result, look) in enumerate(zip(axes, parts, results, styles, strict=True)):
        draw(ax, result, plotting.style(look)["color"])
        title = f"{group.panel}: {group.label}" if several else group.label
        plotting.frame(ax, f"confidence (bins of {LEAST} or more)", "" if i % 3 else "accuracy")
        lines = fill(plotting.plain(plotting.short(title, 80)), WIDE)
        ax.set_title(f"{lines}\n{result.text}", fontsize=plotting.SMALL)
    plotting.below(drawing, *legend(results))
    return drawing


def draw(ax: Axes, result: Reliability, colour: str) -> None:
    """Draw one diagram: the diagonal, the clients, all together, and the shares of examples."""
    ax.plot([0, 1], [0, 1], color=plotting.GREY, linewidth=0.8, linestyle=":")
    n = result.pooled[0]
    edges = np.linspace(0, 1, len(n) + 1)
    ax.bar(
        edges[:-1], n / n.sum(), width=np.diff(edges), align="edge", color="0.88", edgecolor="white"
    )
    if 1 < len(result.counts) <= FEW:
        for counts in result.counts:
            ax.plot(*curve(counts), color=colour, linewidth=0.6, alpha=0.35)
    if result.received is not None:
        ax.plot(
            *curve(result.received),
            color=colour,
            linewidth=1.2,
            linestyle="--",
            marker="s",
            markersize=2.5,
            markerfacecolor="white",
        )
    ax.plot(*curve(result.pooled), color=colour, linewidth=1.4, marker="o", markersize=3)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_box_aspect(1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def legend(results: Sequence[Reliability]) -> tuple[list[Artist], list[str]]:
    """Return the symbols and texts of the legend, of what is drawn in some panel."""
    dark: dict[str, Any] = {"color": "0.2"}
    symbols: dict[str, Artist] = {
        "own models after local training": Line2D([], [], marker="o", markersize=3, **dark)
    }
    if any(result.received is not None for result in results):
        symbols["models received"] = Line2D(
            [], [], marker="s", markersize=2.5, linestyle="--", markerfacecolor="white", **dark
        )
    if any(1 < len(result.counts) <= FEW for result in results):
        symbols["one client"] = Line2D([], [], linewidth=0.6, alpha=0.5, **dark)
    symbols["share of the examples"] = Patch(color="0.88")
    symbols["calibrated"] = Line2D([], [], color=plotting.GREY, linewidth=0.8, linestyle=":")
    return list(symbols.values()), list(symbols)
