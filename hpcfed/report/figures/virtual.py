"""Figure of methods in virtual time: staleness of updates, and reports of clients."""

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
from hpcfed.results.columns import by_round, column, so_far
from hpcfed.results.run import Run
from hpcfed.storage.record import Record

PER_CLIENT = "clients/staleness"


@dataclass(frozen=True)
class Staleness:
    """One run, [T] each.

    seconds: virtual, at the end of each record's round.
    mean: the server's merges between download and merge, mean over the reports of the round; nan if
    there are none.
    least, most: of the clients' own means.
    done: [3, T], reports so far: minimum, mean and maximum over clients; for a population, over
    those that took part.
    """

    run: Run
    seconds: np.ndarray
    mean: np.ndarray
    least: np.ndarray
    most: np.ndarray
    done: np.ndarray


def numbers(runs: Sequence[Run]) -> list[Staleness]:
    """Return the staleness of the runs without rounds. Raises ConfigError if all have rounds."""
    timelines = [staleness(run) for run in runs if eventful(run.record)]
    if not timelines:
        raise ConfigError(
            "staleness: these runs are of methods in rounds, in which nothing is stale; "
            "give runs of methods in virtual time, as algorithm.name = 'fedasync' or 'swift'"
        )
    return timelines


def eventful(record: Record) -> bool:
    """Return whether a run is of a method without rounds, and has done some of its work.

    The job of such a method says how many merges make a round.
    """
    return record.rounds > 0 and "merges" in record.header["job"]["algorithm"]


def staleness(run: Run) -> Staleness:
    record = run.record
    each = record.columns.get(PER_CLIENT, np.full((record.rounds, 1), np.nan))
    none = ~np.isfinite(each).any(1)
    low, high = (
        np.where(none, np.nan, of(np.where(np.isfinite(each), each, end), axis=1))
        for of, end in ((np.min, np.inf), (np.max, -np.inf))
    )
    return Staleness(
        run,
        so_far(record)["virtual"],
        by_round(record, "staleness"),
        low,
        high,
        count_reports(record),
    )


def count_reports(record: Record) -> np.ndarray:
    """Return reports so far: minimum, mean and maximum over the clients, [3, T]."""
    reports = np.nan_to_num(column(record, "clients/reports"))
    if "clients/id" in record.columns:  # each row has clients of its own
        ids = record.column("clients/id")
        clients, places = np.unique(ids[np.isfinite(ids)], return_inverse=True)
        wide = np.zeros((record.rounds, len(clients)))
        wide[np.nonzero(np.isfinite(ids))[0], places] = reports[np.isfinite(ids)]
        reports = wide
    total = reports.cumsum(0)
    return np.array([total.min(1), total.mean(1), total.max(1)])


def figure(runs: Sequence[Run]) -> Figure:
    """Draw staleness over virtual time for methods with a server, and the reports of clients."""
    timelines = numbers(runs)
    looks = by_title([one.run for one in timelines])
    both = any(np.isfinite(one.mean).any() for one in timelines)
    width = plotting.PAGE if both else plotting.COLUMN
    drawing, axes = plotting.panels(1 + both, below=plotting.lines(list(looks), width))
    for one in timelines:
        style = plotting.style(looks[one.run.title])
        if both:
            band(axes[0], one.seconds, (one.least, one.mean, one.most), style)
        band(axes[-1], one.seconds, tuple(one.done), style)
    if both:
        plotting.frame(axes[0], "virtual time", "staleness, merges")
        plotting.head(axes[0], "merges from download to merge; band: clients' means")
    plotting.frame(axes[-1], "virtual time", "reports per client so far")
    plotting.head(axes[-1], "mean over clients; band: fewest to most")
    for ax in axes:
        plotting.upwards(ax)
        plotting.set_x_axis(ax)
        plotting.unit(ax.xaxis, "s")
    plotting.legend(drawing, looks)
    return drawing


def band(ax: Axes, x: np.ndarray, values: Sequence[np.ndarray], style: dict[str, Any]) -> None:
    """Draw a line between two bounds."""
    low, middle, high = values
    plotting.line(ax, x, middle, style)
    plotting.band(ax, x, middle, low, high, style)
