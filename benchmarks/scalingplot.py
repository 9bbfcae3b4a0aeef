"""The picture of a scaling study: seconds of a round by phase above, efficiency below; as wide as a
paper's column.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.pictures import reduce_colours
from hpcfed.report.figures.phases import LOOKS

WIDTH, HEIGHT, POINTS = 3.4, 3.8, 8  # inches, and of letters


def draw(mode: str, measured: dict[str, Any], path: Path) -> None:
    """Write the picture of one mode."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    points, names = (
        measured["points"],
        [str(p["ranks"]) + ("" if p["room"] else "*") for p in measured["points"]],
    )
    bars(above, points, names)
    efficiency(below, points, names)
    shared = "" if all(p["room"] for p in points) else "   (* more than cores)"
    below.set_xlabel(f"MPI ranks{shared}", fontsize=POINTS)
    p = measured["parallel_fraction"]
    fraction = "" if p is None else f", parallel fraction {p:.3f}"
    above.set_title(f"{mode} scaling{fraction}", fontsize=POINTS)
    figure.legend(loc="outside upper center", fontsize=POINTS - 1, frameon=False, ncols=3)
    for ax in (above, below):
        ax.tick_params(labelsize=POINTS)
    figure.savefig(path, dpi=300)
    reduce_colours(path)


def bars(ax: Axes, points: list[dict[str, Any]], names: list[str]) -> None:
    """Phases on one another."""
    base = [0.0] * len(points)
    for phase, (colour, hatch) in LOOKS.items():
        heights = [max(0.0, p["parts"][phase]) for p in points]
        if max(heights) > 0.005 * max(p["seconds"] for p in points):
            ax.bar(
                names,
                heights,
                0.7,
                base,
                label=phase,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.3,
            )
            base = [b + h for b, h in zip(base, heights, strict=True)]
    ax.set_ylabel("seconds of a round", fontsize=POINTS)


def efficiency(ax: Axes, points: list[dict[str, Any]], names: list[str]) -> None:
    """Median over passes, and quartiles."""
    middle, low, high = zip(*(p["efficiency"] for p in points), strict=True)
    ends = [
        [m - v for m, v in zip(middle, low, strict=True)],
        [v - m for m, v in zip(middle, high, strict=True)],
    ]
    ax.axhline(1, color="0.6", linewidth=0.8, linestyle=":")
    ax.errorbar(
        names, middle, ends, color="#000000", marker="o", markersize=4, linewidth=1.2, capsize=2
    )
    ax.set_ylim(0, max(1.15, *high))
    ax.set_ylabel("efficiency", fontsize=POINTS)
