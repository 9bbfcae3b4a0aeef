"""On which units of the representation clients rest: figure 9 of Jang et al., ICPP 2022
(FedClassAvg), section 5.3.

For the test image that most clients are right about: the rank of each unit's conductance, among
those of its client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hpcfed.errors import ConfigError
from hpcfed.few import counted
from hpcfed.figures import look
from hpcfed.figures.models import BAR, colours, probed, titled
from hpcfed.figures.models_tsne import most_common_width
from hpcfed.figures.runs import Drawn
from hpcfed.storage.probe import Probe


@dataclass(frozen=True)
class Ranks:
    """ranks: [d, n], 1 for the unit of a client that counts least, d for the one that counts most.
    clients: [n].

    agreement: mean over pairs of clients of the correlation of their ranks (Spearman's), nan of a
    single client.
    """

    title: str
    clients: np.ndarray
    ranks: np.ndarray
    agreement: float


def numbers(runs: Sequence[Drawn]) -> list[Ranks]:
    """One for each run. Raises ConfigError where no client is right, or the inputs are texts."""
    return [ranked(run.name, probed(run, "conductance")) for run in runs]


def ranked(name: str, found: Probe) -> Ranks:
    """The ranks of one run's clients. Raises ConfigError as `numbers`."""
    from scipy.stats import rankdata

    if found.image < 0:
        raise ConfigError(
            f"conductance: {name}: no client predicts a label rightly, or its inputs are texts, "
            f"which "
            "have no conductance; take a run of images that has learnt something"
        )
    same = most_common_width(found)
    right = [k for k in same if len(found.conductance[k])]
    if not right:
        raise ConfigError(
            f"conductance: {name}: the clients that are right have representations of other "
            f"widths than "
            "most; ranks of units of different layers cannot be compared"
        )
    ranks = np.stack(
        [rankdata(found.conductance[k]) for k in right], axis=1
    )  # equal ones share their mean rank
    label = found.header["classes"][found.labels[found.image]]
    K = len(found.clients)
    drawn = f" ({found.of(K)} drawn)" if K < found.header.get("of", K) else ""
    right_ones = f"{len(right)} of {counted(K, 'client')}{drawn}"
    title = f"{name}\nan image of {look.short(label, 16)}, {right_ones}"
    return Ranks(title, found.clients[right], ranks, mean_of_pairs(ranks))


def mean_of_pairs(ranks: np.ndarray) -> float:
    """The mean correlation of two columns; of those that are constant there is none."""
    columns = ranks[:, ranks.std(0) > 0]
    if columns.shape[1] < 2:
        return float("nan")
    table = np.corrcoef(columns.T)
    return float(table[np.triu_indices(len(table), 1)].mean())


def figure(runs: Sequence[Drawn]) -> Figure:
    """A panel for each run: clients that are right to the right, units downwards, the rank as a
    colour.
    """
    found = numbers(runs)
    drawing, axes = look.panels(len(found), height=2.9)
    for ax, one in zip(axes, found, strict=True):
        shares = one.ranks / len(one.ranks)
        seen = ax.imshow(
            shares, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest"
        )
        at = look.numbers(one.clients, (drawing.get_figwidth() - BAR) / min(len(found), 2))
        ax.set_xticks(at, one.clients[at])
        titled(ax, one.title + agreed(one.agreement), "client", "unit of the representation")
    colours(drawing, seen, axes, "rank of the unit's conductance / number of units")
    return drawing


def agreed(agreement: float) -> str:
    """A line of a title; none where there is one client. + 0.0: -0.0 is no number for people."""
    return (
        ""
        if np.isnan(agreement)
        else f"\ncorrelation of ranks, mean of pairs: {round(agreement, 2) + 0.0:.2f}"
    )
