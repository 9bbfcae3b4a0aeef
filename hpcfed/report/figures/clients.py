"""Figure of each client's accuracy, by architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcfed.core.errors import ConfigError
from hpcfed.report.colours import Look
from hpcfed.report.figures import plotting
from hpcfed.report.figures.curves import common_metric, explain_absence, in_words
from hpcfed.report.figures.groups import (
    Group,
    by_panel,
    groups,
    lines_of,
    notes,
    without_unfinished,
)
from hpcfed.report.figures.runs import left_out, short
from hpcfed.results.columns import architectures, last
from hpcfed.results.run import Run

GOLDEN = 0.6180339887498949  # its multiples, modulo 1, are evenly spread for any number of them


@dataclass(frozen=True)
class Strip:
    """Clients of one line and one architecture.

    accuracy: [n], of the last evaluation, of all seeds; n may be 0.
    """

    group: Group
    kind: str
    accuracy: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.accuracy.mean()) if len(self.accuracy) else float("nan")


def numbers(runs: Sequence[Run], all_groups: Sequence[Group] | None = None) -> list[Strip]:
    """Return the strips, architecture by architecture within each line.

    Lines without a value are left out, and unfinished runs of a line that has finished ones.
    all_groups: the runs as `groups` returns them, if the caller has them.
    Raises ConfigError if no client has a value, or if the runs' metrics differ.
    """
    metric = common_metric("accuracies", runs)
    if metric.endswith("_pooled"):
        raise ConfigError(
            f"accuracies: {metric} is of all clients together; "
            f"give --metric {metric.removesuffix('_pooled')}"
        )
    lines = without_unfinished(groups(runs) if all_groups is None else all_groups)
    by_group = [strips(group) for group in lines]
    all_strips = [one for of in by_group if any(len(s.accuracy) for s in of) for one in of]
    if not all_strips:
        raise ConfigError(f"accuracies: {runs[0].name}: {explain_absence(runs[0])}")
    return all_strips


def strips(group: Group) -> list[Strip]:
    kinds = np.concatenate([architectures(run.record) for run in group.runs])
    values = np.concatenate([last(run.record, f"clients/{run.drawn_metric}") for run in group.runs])
    finite = np.isfinite(values)
    return [
        Strip(group, kind, values[finite & (kinds == kind)])
        for kind in dict.fromkeys(kinds.tolist())
    ]


def figure(runs: Sequence[Run]) -> Figure:
    """Draw a dot for each client, and a bar for their mean.

    Lines are side by side within an architecture, with one panel for each data set.
    """
    all_groups = groups(runs)
    all_strips, what = numbers(runs, all_groups), in_words(runs[0].drawn_metric)
    panels = by_panel(list(dict.fromkeys(strip.group for strip in all_strips)))
    looks = lines_of([strip.group for strip in all_strips])
    columns = max(
        len({s.kind for s in all_strips if s.group.panel == title}) * len(panels[title])
        for title in panels
    )
    across = 1 if columns > 8 else 2
    wide = columns > 5
    below = (
        plotting.lines(list(looks), plotting.PAGE if wide or len(panels) > 1 else plotting.COLUMN)
        if len(looks) > 1
        else 0
    )
    drawing, axes = plotting.panels(len(panels), across, below=below, wide=wide, sharey=True)
    for i, (ax, title) in enumerate(zip(axes, panels, strict=True)):
        panel(ax, [strip for strip in all_strips if strip.group.panel == title], looks)
        plotting.frame(ax, "architecture", "" if i % across else f"test {what}\nof a client")
        plotting.head(ax, title)
    if below:
        plotting.below(drawing, list(map(plotting.dot, looks.values())), list(looks))
    groups_with_values = {strip.group for strip in all_strips}
    absent = [g for g in without_unfinished(all_groups) if g not in groups_with_values]
    drawing.notes = (
        *left_out([run for group in absent for run in group.runs], explain_absence),
        *notes(all_groups),
    )
    return drawing


def panel(ax: Axes, strips: Sequence[Strip], looks: Mapping[str, Look]) -> None:
    """Draw the strips of one panel. looks: of the lines, by their labels."""
    kinds = list(dict.fromkeys(strip.kind for strip in strips))
    for strip in strips:
        beside = [other.group for other in strips if other.kind == strip.kind]
        slot = min(0.42, 0.84 / len(beside))
        at = kinds.index(strip.kind) + (beside.index(strip.group) - (len(beside) - 1) / 2) * slot
        x = at + ((np.arange(len(strip.accuracy)) * GOLDEN + 0.5) % 1 - 0.5) * 0.7 * slot
        look = looks[strip.group.label]
        size = np.clip(150 / max(1, len(strip.accuracy)), 5, 20)
        ax.scatter(
            x,
            strip.accuracy,
            size,
            marker=look.marker,
            color=look.light,
            alpha=0.7,
            linewidth=0,
            zorder=4,
        )
        ax.hlines(
            strip.mean, at - 0.45 * slot, at + 0.45 * slot, color="black", linewidth=1.5, zorder=3
        )
    turned: dict[str, Any] = {}
    if len(kinds) > 4:
        turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(kinds)), [plotting.plain(short(kind, 20)) for kind in kinds], **turned)
    ax.set_xlim(-0.5, len(kinds) - 0.5)
