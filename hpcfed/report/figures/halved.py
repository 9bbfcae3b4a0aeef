"""Accuracy over the share of clients that lose half of their data.

Figure 3 of Makhija et al., ICML 2022 (FedHeNN).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hpcfed.core.errors import ConfigError
from hpcfed.report.figures import plotting
from hpcfed.report.figures.curves import common_metric
from hpcfed.report.figures.groups import (
    Group,
    by_panel,
    groups,
    lines_of,
    notes,
    without_unfinished,
)
from hpcfed.results.columns import title_metric
from hpcfed.results.run import Run
from hpcfed.results.summary import main_facts

FIELD = "data.halve"


@dataclass(frozen=True)
class Halved:
    """One method, each array [S].

    share: of the clients that keep half of their data, 0..1, ascending.
    mean: main metric of all clients in the last evaluation, mean over seeds.
    std: over seeds, with n - 1; 0 for one seed.
    """

    group: Group
    share: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def numbers(runs: Sequence[Run]) -> list[Halved]:
    """Return each line, without unfinished runs if it has finished ones.

    Raises ConfigError if no line has two shares, or if the runs' metrics differ.
    """
    common_metric("halved", runs, main=True)
    lines = without_unfinished(groups(runs, ignore=[FIELD]))
    halves = [metric_by_share(group) for group in lines]
    if all(len(one.share) < 2 for one in halves):
        raise ConfigError(
            f"halved: these runs do not differ in {FIELD}, the share of clients that keep half "
            f"of their "
            f"data; give runs with at least two values, as of `hpcfed sweep --{FIELD} 0,0.2,0.4`"
        )
    return halves


def metric_by_share(group: Group) -> Halved:
    """Return the runs of a line by share, without those that were not evaluated yet."""
    by_share: dict[float, list[float]] = {}
    for run in group.runs:
        mean = main_facts(run.record)["mean"]
        if mean is not None:
            by_share.setdefault(run.fields.get(FIELD, 0.0), []).append(mean)
    shares = sorted(by_share)
    stds = [np.std(by_share[s], ddof=1) if len(by_share[s]) > 1 else 0.0 for s in shares]
    return Halved(
        group, np.array(shares), np.array([np.mean(by_share[s]) for s in shares]), np.array(stds)
    )


def figure(runs: Sequence[Run]) -> Figure:
    """Draw a line for each method, in a panel for each data set."""
    halves = numbers(runs)
    panels = by_panel([one.group for one in halves])
    looks = lines_of([one.group for one in halves])
    width = plotting.COLUMN if len(panels) == 1 else plotting.PAGE
    drawing, axes = plotting.panels(
        len(panels), across=3, below=plotting.lines(list(looks), width), sharey=True
    )
    several = any(one.std.any() for one in halves)
    for i, (ax, title) in enumerate(zip(axes, panels, strict=True)):
        for one in (one for one in halves if one.group.panel == title):
            look = looks[one.group.label]
            ax.errorbar(
                100 * one.share,
                one.mean,
                one.std if several else None,
                capsize=2,
                linewidth=1.2,
                marker=look.marker,
                markersize=4,
                **plotting.style(look),
            )
        over = ",\nmean ± std over seeds" if several else ""
        plotting.frame(
            ax,
            "clients with half of their data, %",
            "" if i % 3 else f"clients' mean test {title_metric(runs[0].main_metric)}{over}",
        )
        plotting.head(ax, title)
    plotting.legend(drawing, looks)
    drawing.notes = notes(groups(runs, ignore=[FIELD]))
    return drawing
