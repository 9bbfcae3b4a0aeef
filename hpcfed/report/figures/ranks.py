"""Critical-difference picture: mean ranks of methods over data sets.

Demšar, JMLR 7, 2006, section 3.2.4. A bar joins methods that cannot be told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun, join_few
from hpcfed.report.figures import plotting
from hpcfed.report.figures.curves import bare, in_words
from hpcfed.report.figures.groups import Group, by_panel, groups
from hpcfed.report.figures.runs import left_out, short
from hpcfed.report.ranks import Ranks, rank
from hpcfed.results.columns import is_high, last
from hpcfed.results.run import Run

LEAST = 3  # methods of a picture
FEW = 8  # methods that a message names
LINE, ENDS = 0.16, 1.0  # inches of height: for each method, and for the axis


def numbers(runs: Sequence[Run]) -> Ranks:
    """Return the ranks of the methods over the data sets of these runs.

    Data sets are what other figures give a panel each. A method is ranked by its mean over clients
    and seeds; its settings distinguish it only if one data set has several of them. Unfinished
    runs are left out.
    Raises ConfigError if fewer than three methods are on all data sets, or there is only one.
    """
    panels = by_panel(groups([run for run in runs if run.finished]))
    if not panels:
        raise ConfigError(
            f"ranks: none of {count_noun(len(runs), 'run')} is finished; only finished runs are "
            f"ranked; see `hpcfed status`"
        )
    means = [means_by_method(members) for members in panels.values()]
    high = [is_high(bare(members[0].runs[0].drawn_metric)) for members in panels.values()]
    result = rank(means, high)
    if result.sets < 2 or len(result.mean) < LEAST:
        absent = f" (not {join_few(result.absent, FEW)})" if result.absent else ""
        raise ConfigError(
            f"ranks: methods that were evaluated on all data sets: {len(result.mean)}{absent}, "
            f"data sets: {result.sets}; give runs of {LEAST} methods or more on each of two data "
            "sets or more"
        )
    return result


def means_by_method(members: Sequence[Group]) -> dict[str, float]:
    """Return the mean of each method on one data set, over clients and seeds."""
    titles = Counter(group.runs[0].method_title for group in members)
    means = {}
    for group in members:
        title = group.runs[0].method_title
        values = [last(run.record, f"clients/{run.drawn_metric}") for run in group.runs]
        means[title if titles[title] == 1 else group.label] = float(
            np.mean([np.nanmean(one) for one in values if np.isfinite(one).any()] or [np.nan])
        )
    return {name: mean for name, mean in means.items() if np.isfinite(mean)}


def figure(runs: Sequence[Run]) -> Figure:
    """Draw the mean ranks, and the bars of methods that cannot be told apart."""
    metrics = dict.fromkeys(in_words(run.drawn_metric) for run in runs if run.finished)
    result = numbers(runs)
    drawing = draw({" or ".join(metrics): result})
    absent = join_few(result.absent, FEW)
    drawing.notes = (
        *((f"not ranked, because a data set has no result of them: {absent}",) if absent else ()),
        *left_out([run for run in runs if not run.finished]),
    )
    return drawing


def draw(panels: Mapping[str, Ranks]) -> plotting.Picture:
    """Draw a panel for each of these ranks, by its title."""
    heights = [ENDS + LINE * (len(one.mean) + len(one.cliques)) for one in panels.values()]
    drawing = plotting.Picture(figsize=(plotting.COLUMN, sum(heights)), layout="constrained")
    axes = drawing.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (title, one) in zip(axes, panels.items(), strict=True):
        draw_ranks(ax, title, one)
    return drawing


def draw_ranks(ax: Axes, title: str, ranks: Ranks) -> None:
    names = list(ranks.mean)
    ax.plot(list(ranks.mean.values()), range(len(names)), "o", color="black", markersize=3)
    for i, clique in enumerate(ranks.cliques):
        ends = ranks.mean[clique[0]], ranks.mean[clique[-1]]
        ax.plot(ends, [len(names) + i] * 2, color=plotting.GREY, linewidth=2)
    ax.set_yticks(range(len(names)), [plotting.plain(short(name, 30)) for name in names])
    ax.set_ylim(len(names) + len(ranks.cliques) - 0.5, -0.5)
    plotting.frame(ax, f"mean rank on {ranks.sets} data sets")
    distance = f"critical difference {ranks.critical:.2f} (5 %)"
    plotting.head(ax, f"{title}; bars: no difference, {distance}")
