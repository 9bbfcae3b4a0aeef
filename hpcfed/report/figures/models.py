"""Figures of trained models' predictions: confusion matrices, and CKA of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import PercentFormatter

from hpcfed.core.errors import CheckpointError, ConfigError, DataError
from hpcfed.core.wording import count_noun
from hpcfed.report.figures import plotting
from hpcfed.report.figures.groups import groups
from hpcfed.results.run import Run
from hpcfed.storage import probe
from hpcfed.storage.probe import Probe
from hpcfed.tasks.classification import MOST_CLASSES

BESIDE = 3  # runs side by side, if each has one panel
THIN = 0.1  # inches, the width of a scale
BAR = 0.9  # inches of a scale with its labels
CELLS = 12  # classes up to which shares are written into the cells
WIDE = 96  # letters of a title above a figure as wide as a page
NEAR = 0.05  # checkpoints that are less than this share of the rounds apart show the same
MATRICES = 12  # clients of a figure
DARK = 0.55  # share above which text in a cell is white


def load_probe(run: Run, name: str) -> Probe:
    """Return the run's probe; make it again if it is missing or older than the last checkpoint.

    Raises ConfigError, with this figure's name, if the run has no trained models, its data no
    longer exist, or its models need code of the user's own.
    """
    try:
        if stored := probe.current(run.folder):
            return stored
        from hpcfed.results.trained.probe import anew  # here, for it needs torch

        return anew(run.folder)
    except (CheckpointError, DataError) as error:
        raise ConfigError(f"{name}: {run.name}: {error}") from error
    except ConfigError as error:  # which names the run
        raise ConfigError(f"{name}: {error}") from error


def load_labelled(run: Run, name: str) -> Probe:
    """Return `load_probe`. Raises ConfigError also if the labels of the run are not classes."""
    result = load_probe(run, name)
    if not len(result.labels):
        raise ConfigError(
            f"{name}: {run.name}: its labels are not classes; give a run with classes"
        )
    return result


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix over all clients.

    counts: [C, C], predictions by label and predicted class.
    shares: [C, C], relative to each label; nan if it has none.
    """

    title: str
    classes: list[str]
    counts: np.ndarray
    shares: np.ndarray


def confusions(runs: Sequence[Run]) -> list[Confusion]:
    """Return a matrix for each run, over all its clients and the same test examples.

    Runs that differ only in their seed are one matrix.
    """
    matrices = []
    for group in groups(runs):
        tables = [count_confusions(run.name, load_labelled(run, "confusion")) for run in group.runs]
        alike = all(table.classes == tables[0].classes for table in tables)
        matrices += [pool_seeds(group.label, tables)] if alike and len(tables) > 1 else tables
    return matrices


def pool_seeds(name: str, tables: Sequence[Confusion]) -> Confusion:
    """Return the matrix of the answers of several runs together."""
    counts = np.sum([table.counts for table in tables], axis=0)
    clients = tables[0].title.partition("\n")[2]
    return Confusion(
        f"{name}\n{len(tables)} seeds, each {clients}", tables[0].classes, counts, divide(counts)
    )


def divide(counts: np.ndarray) -> np.ndarray:
    """Return the counts [C, C] relative to the sums of their rows; nan for an empty row."""
    total = counts.sum(1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), np.nan)


def count_confusions(name: str, result: Probe) -> Confusion:
    C, (K, N) = len(result.header["classes"]), result.predictions.shape
    counts = np.zeros((C, C), dtype=np.int64)
    np.add.at(counts, (np.broadcast_to(result.labels, (K, N)), result.predictions), 1)
    return Confusion(
        f"{name}\n{result.of(K)}, {N:,} test examples",
        result.header["classes"],
        counts,
        divide(counts),
    )


def confusion(runs: Sequence[Run]) -> Figure:
    """Draw a confusion matrix for each run: labels downwards, predictions across, rows sum to 1.

    Runs that differ only in their seed are one matrix.
    """
    matrices = confusions(runs)
    across = min(len(matrices), 2 if len(matrices) <= 4 else 3)
    drawing, axes = squares(len(matrices), across, 2.9)
    draw_matrices(drawing, axes, matrices)
    return drawing


def draw_matrices(
    drawing: Figure, axes: Sequence[Axes], matrices: Sequence[Confusion], across: int = 0
) -> None:
    """Draw a matrix in each panel, and one scale.

    across: panels in a row, of which only outer ones then name their axes.
    """
    for i, (ax, one) in enumerate(zip(axes, matrices, strict=True)):
        C = len(one.classes)
        image = heat(ax, one.shares, "Blues")
        names = [plotting.plain(plotting.short(one.classes[c], 12)) for c in plotting.places(C)]
        ax.set_xticks(plotting.places(C), names, rotation=90 if max(map(len, names)) > 2 else 0)
        ax.set_yticks(plotting.places(C), names)
        below = not across or i + across >= len(matrices)
        left = not across or i % across == 0
        set_titles(ax, one.title, "predicted class" if below else "", "class" if left else "")
        write_shares(ax, one.shares, len(matrices))
    bar = colours(drawing, image, axes, "share of the answers to examples of the class")
    bar.formatter = PercentFormatter(1.0, decimals=0)


def client_confusions(run: Run) -> list[Confusion]:
    """Return the matrix of each client's model on its own test examples, at most MATRICES of them.

    Of more clients they are those with the lowest accuracy, the lowest one first.
    """
    record, classes = run.record, run.record.header.get("classes", [])
    if "confusion" not in record.arrays:
        raise ConfigError(
            f"confusion-clients: {run.name}: its clients' answers were not recorded; it needs "
            f"classes, {MOST_CLASSES} at most, and a metric beyond accuracy: run it with "
            f"--evaluate.metrics macro_f1"
        )
    C, names = len(classes), run.client_names
    tables = record.arrays["confusion"].reshape(-1, C, C)
    right = np.trace(tables, axis1=1, axis2=2) / tables.sum((1, 2))
    chosen = np.arange(len(right))
    if len(right) > MATRICES:
        chosen = np.argsort(right, kind="stable")[:MATRICES]
    matrices = []
    for i in chosen.tolist():
        k, n = int(record.arrays["answered"][i]), int(tables[i].sum())
        name = names[k] if k < len(names) else f"client {k}"
        title = f"{name}\n{right[i]:.0%} of {count_noun(n, 'example')} right"
        matrices.append(Confusion(title, classes, tables[i], divide(tables[i])))
    return matrices


def confusion_by_client(runs: Sequence[Run]) -> Figure:
    """Draw a confusion matrix for each client of one run, on the client's own test examples.

    Raises ConfigError for several runs, and for a run without the clients' answers.
    """
    if len(runs) != 1:
        raise ConfigError(
            f"confusion-clients: {len(runs)} runs; it shows the clients of one run: give one"
        )
    matrices, K = client_confusions(runs[0]), len(runs[0].record.arrays["confusion"])
    across = min(len(matrices), 4)
    drawing, axes = squares(len(matrices), across, 2.4)
    draw_matrices(drawing, axes, matrices, across)
    if K > len(matrices):
        drawing.suptitle(
            f"the {len(matrices)} of {K} clients with the lowest accuracy", fontsize=plotting.SMALL
        )
    return drawing


def write_shares(ax: Axes, shares: np.ndarray, panels: int) -> None:
    """Write the shares in per cent into the cells, if there is space."""
    if len(shares) > CELLS:
        return
    points = plotting.SMALL - (1.5 if panels == 1 else 2.0)
    for (i, j), share in np.ndenumerate(shares):
        if np.isfinite(share) and share >= 0.005:
            ax.text(
                j,
                i,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                fontsize=points,
                color="white" if share > DARK else "black",
            )


@dataclass(frozen=True)
class Alike:
    """Similarity of the representations of K clients.

    rounds: [P].
    cka: [P, K, K], 0..1.
    clients: [K], their names or numbers.
    means: [P], over pairs.
    some: number of clients from which they were drawn, as text, if not all.
    """

    name: str
    clients: Sequence[str]
    rounds: np.ndarray
    cka: np.ndarray
    means: np.ndarray
    some: str = ""


def alike(runs: Sequence[Run]) -> list[Alike]:
    """Return the similarities of each run."""
    return [compare_clients(run.name, load_probe(run, "cka")) for run in runs]


def compare_clients(name: str, result: Probe) -> Alike:
    pairs = ~np.eye(len(result.clients), dtype=bool)
    means = np.array([table[pairs].mean() if pairs.any() else np.nan for table in result.cka])
    K = len(result.clients)
    some = result.of(K) if K < result.header.get("of", K) else ""
    shown = apart(result.rounds)
    return Alike(name, result.names, result.rounds[shown], result.cka[shown], means[shown], some)


def apart(rounds: np.ndarray) -> np.ndarray:
    """Return the positions of the rounds that are not just before the next one.

    The last two checkpoints of a run may be a round apart, in which nothing changes.
    rounds: [P], ascending.
    """
    gaps = np.diff(rounds, append=np.inf)
    return np.flatnonzero(gaps > NEAR * rounds.max(initial=0))


def cka(runs: Sequence[Run]) -> Figure:
    """Draw a panel for each round with a checkpoint, in a row for each run.

    If each run has one such round, runs are side by side.
    """
    comparisons = alike(runs)
    most = max(len(one.rounds) for one in comparisons)
    across = most if most > 1 else min(len(comparisons), BESIDE)
    cells = [(one, p) for one in comparisons for p in range(most)]
    drawing, axes = squares(len(cells), across, 2.4)
    shown, least = [], np.floor(10 * min(one.cka.min() for one in comparisons)) / 10
    for i, (ax, (one, p)) in enumerate(zip(axes, cells, strict=True)):
        if p >= len(one.rounds):  # this run has fewer checkpoints
            ax.remove()
            continue
        shown.append(ax)
        image = heat(ax, one.cka[p], "viridis", least)
        width = (drawing.get_figwidth() - BAR) / across
        plotting.name_clients(ax, one.clients, width, both=True)
        mean = f": mean {one.means[p]:.2f}" if np.isfinite(one.means[p]) else ""
        set_titles(
            ax,
            "\n".join(filter(None, (one.name, one.some, f"round {one.rounds[p]}{mean}"))),
            "client" if i + across >= len(cells) else "",
            "" if i % across else "client",
            letters=WIDE // across,
        )
    colours(drawing, image, shown, "linear CKA; above: mean of pairs")
    return drawing


def squares(n: int, across: int, side: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with n square panels, `across` in a row, and space for a colour scale.

    side: the largest width of a panel in inches.
    """
    rows = -(-n // across)
    width = min(plotting.PAGE, max(plotting.COLUMN, side * across + BAR))
    return plotting.grid(n, across, (width, rows * ((width - BAR) / across + 0.45) + 0.1))


def heat(ax: Axes, table: np.ndarray, scale: str, least: float = 0.0) -> AxesImage:
    """Draw a table of shares, from the least up to 1, as colours."""
    return ax.imshow(table, cmap=scale, vmin=least, vmax=1, interpolation="nearest")


def colours(drawing: Figure, image: AxesImage, axes: Sequence[Axes], text: str) -> Colorbar:
    """Draw the colour scale beside these panels, and return it."""
    bar = drawing.colorbar(image, ax=list(axes), aspect=drawing.get_figheight() / THIN, pad=0.02)
    bar.set_label(text, fontsize=plotting.SMALL)
    bar.ax.tick_params(labelsize=plotting.SMALL, length=2)
    return bar


def set_titles(ax: Axes, title: str, x: str = "", y: str = "", letters: int = 42) -> None:
    """Set a panel's title and axis labels.

    letters: maximum length of the title's first line, a run's name.
    """
    name, *rest = title.split("\n")
    lines = map(plotting.plain, (plotting.short(name, letters), *rest))
    ax.set_title("\n".join(lines), fontsize=plotting.SMALL)
    ax.set_xlabel(x, fontsize=plotting.LETTERS)
    ax.set_ylabel(y, fontsize=plotting.LETTERS)
    ax.tick_params(labelsize=plotting.SMALL, length=2)
