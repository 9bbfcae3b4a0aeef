"""Representations in a plane by t-SNE: figure 8 of Jang et al., ICPP 2022 (FedClassAvg).

Section 5.2. There: features of 1,000 test images from the clients' models, trained alone and
federated. Open there, and chosen here: up to 20 clients, and as many of the images as make 2,000
points at most; first the 50 main components; perplexity 30.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import evenly
from hpcfed.report.figures import plotting
from hpcfed.report.figures.models import BESIDE, THIN, WIDE, load_labelled, set_titles
from hpcfed.results.run import Run
from hpcfed.storage.probe import Probe

LINE = 0.14  # inches from one tick's letters to the next
POINTS, COMPONENTS, PERPLEXITY = 2000, 50, 30.0
CLIENTS = 20  # at most: more colours and fewer images of each would show nothing
TEN = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
# colours for all kinds of colour vision: Petroff, 2021, arXiv:2107.02270


@dataclass(frozen=True)
class Plane:
    """Points of one run: xy [n, 2], and the label and the client of each, [n].

    names: of the clients, or their numbers.
    """

    title: str
    classes: list[str]
    clients: np.ndarray
    names: list[str]
    xy: np.ndarray
    labels: np.ndarray
    whose: np.ndarray


def numbers(runs: Sequence[Run]) -> list[Plane]:
    """Return the points of each run; the same probe gives the same points.

    Raises ConfigError if there are too few points.
    """
    return [plane(run.name, load_labelled(run, "tsne"), run.fields["seed"]) for run in runs]


def plane(name: str, probe: Probe, seed: int) -> Plane:
    """Return the points of clients whose representations have the most common width.

    Of many clients some are chosen.
    """
    ks = most_common_width(probe)
    ks = ks[evenly(len(ks), CLIENTS)]
    # they lie in the order of the test split
    images = evenly(len(probe.labels), max(1, POINTS // len(ks)))
    n = len(images)
    z = np.concatenate([probe.representations[k][images] for k in ks]).astype(np.float64)
    whose, labels = np.repeat(probe.clients[ks], n), np.tile(probe.labels[images], len(ks))
    return Plane(
        f"{name}\n{probe.of(len(ks))} × {n} examples",
        probe.header["classes"],
        probe.clients[ks],
        [probe.names[k] for k in ks],
        fit_tsne(z, seed),
        labels,
        whose,
    )


def most_common_width(probe: Probe) -> np.ndarray:
    """Return the positions of the clients whose representations have the most common width.

    Only these can lie in one space.
    """
    widths = [z.shape[1] for z in probe.representations]
    width = Counter(widths).most_common(1)[0][0]
    return np.flatnonzero(np.array(widths) == width)


def fit_tsne(z: np.ndarray, seed: int) -> np.ndarray:
    """Return the t-SNE of rows [n, d]: [n, 2]. Raises ConfigError for fewer than four rows."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(z) < 4:
        raise ConfigError(
            f"tsne: {len(z)} points are too few; probe more test images (`hpcfed probe --examples`)"
        )
    state = rng.number(seed, "tsne") % 2**32
    if min(z.shape) > COMPONENTS:
        z = PCA(COMPONENTS, random_state=state).fit_transform(z)
    perplexity = min(PERPLEXITY, (len(z) - 1) / 3)
    return TSNE(init="pca", perplexity=perplexity, random_state=state).fit_transform(z - z.mean(0))


def figure(runs: Sequence[Run]) -> Figure:
    """Draw runs side by side, above with points coloured by label, below by client."""
    rows = blocks(numbers(runs))
    across = max(map(len, rows))
    width = max(plotting.COLUMN, min(plotting.PAGE, 2.2 * across + 1.0))
    side = (width - 1.0) / across
    drawing = plotting.Picture(figsize=(width, len(rows) * (2 * side + 0.6)), layout="constrained")
    ratios = [side] * across + [THIN]  # the last column has the colour scales
    axes = drawing.subplots(2 * len(rows), across + 1, squeeze=False, width_ratios=ratios)
    before = None
    for two, block in zip(axes.reshape(len(rows), 2, across + 1), rows, strict=True):
        for ax in two[:, len(block) : across].ravel():
            ax.remove()
        draw(two[:, : len(block)], block, WIDE // max(2, across))
        if before and alike(before, block[0]):  # its scales are those above
            for ax in two[:, across]:
                ax.remove()
        else:
            scales(drawing, two[:, across], block[0], side)
        before = block[0]
    return drawing


def blocks(planes: Sequence[Plane]) -> list[list[Plane]]:
    """Return consecutive runs that share their colour scales, a few in each block.

    They have the same classes and clients. Four are two blocks of two.
    """
    rows: list[list[Plane]] = []
    most = 2 if len(planes) == 4 else BESIDE
    for one in planes:
        before = rows[-1] if rows else []
        if before and len(before) < most and alike(before[0], one):
            before.append(one)
        else:
            rows.append([one])
    return rows


def alike(one: Plane, other: Plane) -> bool:
    return one.classes == other.classes and np.array_equal(one.clients, other.clients)


def draw(two: np.ndarray, block: Sequence[Plane], letters: int) -> None:
    """Draw one block into its two rows of axes.

    letters: number of letters of a title.
    """
    classes, clients = block[0].classes, block[0].clients
    for column, one in zip(two.T, block, strict=True):
        scatter(column[0], one.xy, one.labels, *palette(len(classes)))
        scatter(column[1], one.xy, order(one), *palette(len(clients)))
        set_titles(column[0], one.title, letters=letters)


def scales(drawing: Figure, two: np.ndarray, one: Plane, height: float) -> None:
    """Draw the colour scales of classes and clients into these axes, `height` inches high."""
    names = [plotting.plain(plotting.short(name, 12)) for name in one.classes]
    bar(drawing, two[0], height, "class", names)
    bar(drawing, two[1], height, "client", one.names)


def order(one: Plane) -> np.ndarray:
    """Return the position of each point's client."""
    return np.searchsorted(one.clients, one.whose)


def palette(n: int) -> tuple[ListedColormap, BoundaryNorm]:
    """Return n colours: ten or twenty distinct ones, or for more a scale from dark to light."""
    twenty = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    several = (
        twenty[:n] if n <= len(twenty) else matplotlib.colormaps["turbo"](np.linspace(0, 1, n))
    )
    shades = TEN[:n] if n <= len(TEN) else several
    return ListedColormap(shades), BoundaryNorm(np.arange(n + 1) - 0.5, n)


def scatter(
    ax: Axes, xy: np.ndarray, values: np.ndarray, colours: ListedColormap, norm: BoundaryNorm
) -> None:
    """Draw the points in a random order, so that no colour hides another."""
    mixed = rng.stream(0, "tsne", "drawing").permutation(len(xy))
    size = np.clip(6000 / len(xy), 1.0, 12.0)
    x, y = xy[mixed].T
    ax.scatter(x, y, c=values[mixed], s=size, cmap=colours, norm=norm, linewidth=0, rasterized=True)
    ax.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")  # t-SNE's axes have no unit


def bar(drawing: Figure, ax: Axes, height: float, text: str, names: Sequence[str]) -> None:
    """Draw the colour scale of a row of panels, `height` inches high."""
    colours, norm = palette(len(names))
    scale = matplotlib.cm.ScalarMappable(norm, colours)
    at = plotting.places(len(names), int(height / LINE))
    shown = drawing.colorbar(scale, cax=ax, ticks=at)
    shown.ax.set_yticklabels([names[i] for i in at], fontsize=plotting.SMALL)
    shown.ax.invert_yaxis()
    shown.ax.tick_params(length=0)
    shown.ax.minorticks_off()
    shown.set_label(text, fontsize=plotting.LETTERS)
