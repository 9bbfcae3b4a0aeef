"""Accuracy of methods over one quantity, with a panel for each data set.

Figures 4 to 7 of Jang et al., ICPP 2022, and others. Lines are methods. Runs that differ only in
the seed are one line.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from hpcfed.core.errors import ConfigError
from hpcfed.report.figures import curves, plotting
from hpcfed.report.figures.curves import EPOCHS, EPSILON, SECONDS, TRAFFIC, Axis, Curve
from hpcfed.report.figures.groups import Group, by_panel, groups, lines_of, unfinished_apart
from hpcfed.results.run import Run


def numbers(runs: Sequence[Run]) -> list[tuple[Group, Curve]]:
    """Return each line, by its panel and label; unfinished runs as in `curves.numbers`."""
    return [(group, curves.pooled(group.runs)) for group in unfinished_apart(groups(runs))]


def epochs(runs: Sequence[Run]) -> Figure:
    """Draw accuracy over local epochs of a client.

    So methods with different work in a round are compared by work.
    """
    return over("learning", EPOCHS, runs)


def traffic(runs: Sequence[Run]) -> Figure:
    """Draw accuracy over bytes. Raises ConfigError if nothing was sent."""
    return over("bytes", TRAFFIC, runs, "no run sent anything; methods that do are needed")


def seconds(runs: Sequence[Run]) -> Figure:
    """Draw accuracy over virtual time. Raises ConfigError if none was recorded."""
    why = (
        "no run recorded virtual time; give runs of which a round is done (the job's [system] "
        "describes devices and network)"
    )
    return over("time", SECONDS, runs, why)


def epsilon(runs: Sequence[Run]) -> Figure:
    """Draw accuracy over epsilon. Raises ConfigError if no run has an account of privacy."""
    why = "no run has an account of privacy; give runs of jobs with [privacy] and noise"
    return over("epsilon", EPSILON, runs, why)


def over(name: str, axis: Axis, runs: Sequence[Run], why: str = "") -> Figure:
    """Draw accuracy over this axis.

    name: of the figure.  why: why it cannot be drawn if the axis of all runs is 0; "" if it can.
    Raises ConfigError if it cannot, if no run has a value, or if the runs' metrics differ.
    """
    metric = curves.common_metric(name, runs)
    of, absent = curves.with_values(name, dict(numbers(runs)))
    if why and not any(axis.of(curve).any() for curve in of.values()):
        raise ConfigError(f"{name}: {why}")
    panels, looks = by_panel(list(of)), lines_of(list(of))
    width = plotting.COLUMN if len(panels) == 1 else plotting.PAGE
    drawing, axes = plotting.panels(
        len(panels), across=3, below=plotting.lines(list(looks), width), sharey=True
    )
    most = max(map(len, panels.values()))
    for i, (ax, (title, members)) in enumerate(zip(axes, panels.items(), strict=True)):
        curves.lines(
            ax,
            axis,
            [of[group] for group in members],
            [looks[group.label] for group in members],
        )
        plotting.head(ax, title)
        if not i % min(3, len(panels)):
            ax.set_ylabel(curves.y(most, metric, list(of.values())), fontsize=plotting.LETTERS)
    plotting.legend(drawing, looks)
    cut = curves.cut_notes(curves.by_line([run for group in of for run in group.runs]))
    drawing.notes = (*absent, *cut)
    return drawing
