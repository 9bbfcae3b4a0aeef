"""Conductance of the units of clients' representations.

Figure 9 of Jang et al., ICPP 2022 (FedClassAvg), section 5.3. There: for one test image, the rank
of each unit's conductance among those of its client. Chosen here: all clients of all runs use the
same images, one of each of up to four classes. If there are many units, neighbours in the order of
their mean rank are averaged. The panel below shows the correlation of the ranks of each pair of
clients, which needs no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun
from hpcfed.report.figures import plotting
from hpcfed.report.figures.models import BAR, THIN, WIDE, load_labelled, set_titles
from hpcfed.report.figures.models_tsne import most_common_width
from hpcfed.report.figures.runs import short
from hpcfed.results.run import Run
from hpcfed.storage.probe import Probe

ROWS = 32  # rows of units: more could not be distinguished
ACROSS = 2  # runs side by side
LOW = 0.7  # height of the upper panel / height of the lower one


@dataclass(frozen=True)
class Ranks:
    """Ranks of conductance for the clients [n] of one run, with equal architectures side by side.

    kinds: [n], architectures.
    shares: [d, n], for the image that is shown: the rank of a unit's conductance among those of its
    client / d, so that 1 is the most important unit; units in the order of their mean over clients.
    right: number of clients that predict that image's label.
    correlation: [n, n], Spearman's, of the ranks of two clients, mean over all images; nan if all
    units of a client have the same conductance.
    """

    name: str
    label: str
    clients: list[str]
    kinds: np.ndarray
    shares: np.ndarray
    right: int
    images: int
    correlation: np.ndarray
    population: int

    def agreement(self, same: bool) -> float:
        """Return the mean correlation of different clients; nan if there are none.

        same: whether of the same architecture, or of different ones.
        """
        pairs = (self.kinds[:, None] == self.kinds) == same
        np.fill_diagonal(pairs, False)
        values = self.correlation[pairs & np.isfinite(self.correlation)]
        return float(values.mean()) if len(values) else float("nan")


def numbers(runs: Sequence[Run]) -> list[Ranks]:
    """Return the ranks of each run. Raises ConfigError if the inputs are texts."""
    probes = [load_labelled(run, "conductance") for run in runs]
    return [
        rank_units(run.name, one, choose_image([other for other in probes if alike(one, other)]))
        for run, one in zip(runs, probes, strict=True)
    ]


def alike(one: Probe, other: Probe) -> bool:
    """Return whether two runs used the same images."""
    return (
        one.header["classes"] == other.header["classes"]
        and np.array_equal(one.images, other.images)
        and np.array_equal(one.image_labels, other.image_labels)
    )


def choose_image(probes: Sequence[Probe]) -> int:
    """Return the position of the image that most clients of these runs classify correctly.

    It is the first one if several are equal, and 0 if there is no image.
    """
    right = sum((one.image_predictions == one.image_labels).sum(0) for one in probes)
    return int(right.argmax()) if len(right) else 0


def rank_units(name: str, probe: Probe, image: int) -> Ranks:
    """Return the ranks of one run's clients. Raises ConfigError as `numbers` does."""
    from scipy.stats import rankdata

    if not len(probe.images):
        raise ConfigError(
            f"conductance: {name}: its inputs are not images; take a run of images that has a "
            f"checkpoint"
        )
    kinds = np.array(probe.header["architectures"])
    order = {kind: i for i, kind in enumerate(dict.fromkeys(kinds.tolist()))}
    finite = [k for k in most_common_width(probe) if np.isfinite(probe.conductance[k]).all()]
    if not finite:
        raise ConfigError(
            f"conductance: {name}: no client of the most common width of representations has a "
            f"conductance that is finite; models that predict by other parts than their body have "
            f"none"
        )
    ks = np.array(sorted(finite, key=lambda k: order[kinds[k]]))
    ranks = rankdata(np.stack([probe.conductance[k] for k in ks]), axis=-1)  # [n, M, d]
    shares = ranks[:, image].T / ranks.shape[-1]
    return Ranks(
        name,
        probe.header["classes"][probe.image_labels[image]],
        [probe.names[k] for k in ks],
        kinds[ks],
        shares[np.argsort(shares.mean(1), kind="stable")],
        int((probe.image_predictions[ks, image] == probe.image_labels[image]).sum()),
        ranks.shape[1],
        correlations(ranks),
        len(probe.clients),
    )


def correlations(ranks: np.ndarray) -> np.ndarray:
    """Return the correlation of each pair of clients' ranks, [n, n].

    ranks: [n, M, d]. The mean is over the images for which both have a correlation.
    """
    away = ranks - ranks.mean(-1, keepdims=True)
    norm = np.sqrt((away**2).sum(-1, keepdims=True))
    unit = np.divide(away, norm, out=np.full_like(away, np.nan), where=norm > 0)
    each = np.einsum("kmd,lmd->mkl", unit, unit)
    finite = np.isfinite(each)
    total, n = np.where(finite, each, 0.0).sum(0), finite.sum(0)
    return np.divide(total, n, out=np.full(n.shape, np.nan), where=n > 0)


def downsample(shares: np.ndarray) -> np.ndarray:
    """Return at most ROWS rows of [d, n]: means of neighbours."""
    return np.stack([rows.mean(0) for rows in np.array_split(shares, min(ROWS, len(shares)))])


def figure(runs: Sequence[Run]) -> Figure:
    """Draw a column for each run: ranks for one image above, correlations of clients below.

    Units are downwards, clients across; correlations are over all images.
    """
    tables = numbers(runs)
    across = min(ACROSS, len(tables))
    blocks = -(-len(tables) // across)
    width = plotting.PAGE if across > 1 else plotting.COLUMN + BAR
    side = (width - BAR) / across
    heights = [LOW * side, side]
    drawing = plotting.Picture(figsize=(width, blocks * (sum(heights) + 1.2)), layout="constrained")
    axes = drawing.subplots(2 * blocks, across, squeeze=False, height_ratios=blocks * heights)
    grid = axes.reshape(blocks, 2, across).swapaxes(1, 2).reshape(-1, 2)
    for two in grid[len(tables) :]:
        for ax in two:
            ax.remove()
    letters, most = WIDE // max(2, across), strongest(tables)
    for (above, below), one in zip(grid, tables, strict=False):
        units = above.imshow(
            downsample(one.shares),
            cmap="viridis",
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="none",
        )
        set_titles(above, "\n".join([one.name, *about(one)]), "", rows(one), letters=letters)
        above.set_yticks([])
        pairs = below.imshow(
            off_diagonal(one.correlation),
            cmap="RdBu_r",
            vmin=-most,
            vmax=most,
            interpolation="nearest",
        )
        below.set_facecolor("0.8")
        set_titles(below, agreement_title(one), "client", letters=letters)
        label_clients(above, below, one, side)
    for start in range(0, len(tables), across):
        block = grid[start : min(start + across, len(tables))]
        bar(drawing, units, block[:, 0], heights[0], "rank / units")
        bar(drawing, pairs, block[:, 1], heights[1], "correlation of two clients")
    return drawing


def bar(drawing: Figure, scale: AxesImage, panels: np.ndarray, height: float, text: str) -> None:
    """Draw the colour scale beside a row of panels, `height` inches high."""
    colorbar = drawing.colorbar(scale, ax=panels.tolist(), aspect=height / THIN, pad=0.02)
    colorbar.set_label(text, fontsize=plotting.SMALL)
    colorbar.ax.tick_params(labelsize=plotting.SMALL, length=2)


def off_diagonal(table: np.ndarray) -> np.ndarray:
    """Return the table with nan for the correlation of each client with itself."""
    return np.where(np.eye(len(table), dtype=bool), np.nan, table)


def strongest(results: Sequence[Ranks]) -> float:
    """Return the end of the colour scale of correlations.

    It is the strongest correlation of two clients, rounded up to tenths, at least a tenth.
    """
    tables = [off_diagonal(one.correlation) for one in results]
    most = max(float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) for table in tables)
    return max(1, int(np.ceil(10 * most - 1e-9))) / 10


def about(one: Ranks) -> list[str]:
    """Return a description of the image and the clients of one run."""
    n = len(one.clients)
    of = (
        f"{n} of {count_noun(one.population, 'client')}"
        if n < one.population
        else count_noun(n, "client")
    )
    return [f"an image of class {short(one.label, 16)}: {of}, {one.right} right"]


def rows(one: Ranks) -> str:
    d = len(one.shares)
    if d <= ROWS:
        return "units, by mean rank"
    return f"{d:,} units, by mean rank,\nmean of about {d / ROWS:.0f} in a row"


def agreement_title(one: Ranks) -> str:
    """Return the title of the correlations. + 0.0 avoids -0.0."""
    parts = [
        f"{text} {round(mean, 2) + 0.0:.2f}"
        for text, mean in (
            ("same architecture", one.agreement(same=True)),
            ("different", one.agreement(same=False)),
        )
        if np.isfinite(mean)
    ]
    summary = f"mean over pairs: {', '.join(parts)}" if parts else "one client: no pair"
    return f"{count_noun(one.images, 'image')}, each of another class\n{summary}"


def label_clients(above: Axes, below: Axes, one: Ranks, side: float) -> None:
    """Label clients, and draw lines between architectures with their names, in both panels.

    side: width of a panel in inches.
    """
    for ax in (above, below):
        plotting.name_clients(ax, one.clients, side - 0.6)
    starts = np.flatnonzero(np.r_[True, one.kinds[1:] != one.kinds[:-1]])
    ends = np.r_[starts[1:], len(one.kinds)]
    labelled = np.arange(0, len(starts), plotting.step(len(starts), 16))
    names = [plotting.plain(short(str(one.kinds[starts[i]]), 12)) for i in labelled]
    below.set_yticks((starts[labelled] + ends[labelled] - 1) / 2, names)
    for start in starts[1:]:
        above.axvline(start - 0.5, color="white", linewidth=0.8)
        below.axvline(start - 0.5, color="black", linewidth=0.5)
        below.axhline(start - 0.5, color="black", linewidth=0.5)
