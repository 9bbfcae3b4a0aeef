"""Pictures of runs, from result files alone: `hpcfed plot`.

Drawn through matplotlib's objects, without pyplot: no display is needed and nothing global changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from hpcfed.errors import ConfigError, told
from hpcfed.paths import regular
from hpcfed.report.summary import column, title
from hpcfed.storage.results import Record, load

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
DASHES = ("-", "--", ":", "-.")  # the next seven runs
FORMATS = (".png", ".svg", ".pdf")
SMALL = 8  # points, of tick labels
FAR = 1e30  # virtual seconds; more cannot be drawn, and mean nothing


@dataclass(frozen=True)
class Curve:
    """One run over its evaluated rounds, each [E].

    rounds: counted from 1. epochs, traffic: local epochs, bytes down and up so far, mean over all clients.
    seconds: virtual ones so far; 0 where none were recorded.
    mean, std: of the evaluated clients' test accuracy, 0..1; std is that of the population.
    """

    rounds: np.ndarray
    epochs: np.ndarray
    traffic: np.ndarray
    seconds: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, record: Record) -> Curve:
        accuracy = column(record, "clients/accuracy")  # [T, K]
        t = np.flatnonzero(np.isfinite(accuracy).any(1))
        columns = (column(record, f"clients/{name}") for name in ("epochs", "down", "up"))
        K = record.header["job"]["clients"]
        epochs, down, up = (np.nan_to_num(values).sum(1).cumsum()[t] / K for values in columns)
        now = record.columns.get("rounds/virtual_seconds", np.zeros(record.rounds))[t]
        now = now if (now < FAR).all() else np.zeros(len(t))
        return cls(t + 1, epochs, down + up, now, np.nanmean(accuracy[t], 1), np.nanstd(accuracy[t], 1))


def plot(runs: Sequence[Path], out: Path | None = None, format: str | None = None) -> str:
    """Draw the learning curves of all runs, and beside them the labels of the first run's clients.

    Without out: curves (of several runs: comparison) and labels in the first run's folder. Returns the paths.
    Raises CheckpointError for a run without results, ConfigError for a picture that cannot be written.
    """
    records = [load(run) for run in runs]
    folders = [run if os.path.isdir(run) else run.parent for run in runs]
    path = out or folders[0] / ("curves.png" if len(runs) == 1 else "comparison.png")
    if not path.name:
        raise ConfigError(f"{path}: is a folder, not a picture; end the name in {', '.join(FORMATS)}")
    path = path.with_suffix(f".{format}") if format else path
    beside = path.with_name(f"{path.stem}-labels{path.suffix}" if out else f"labels{path.suffix}")
    names = [folder.resolve().name for folder in folders]
    drawn = [curves(records, path, names)]
    if "label_counts" in records[0].arrays:  # a population has none
        drawn.append(labels(records[0], beside))
    return "\n".join(map(str, drawn))


def curves(records: Sequence[Record], path: Path, names: Sequence[str] = ()) -> Path:
    """Mean accuracy with a band of one standard deviation over clients: by round, epoch, traffic, virtual time.

    names: of the runs, for the legend; default: none but the algorithms'. Returns path. Raises
    ConfigError as `save`.
    """
    lines = [Curve.of(record) for record in records]
    figure = Figure(figsize=(14, 3.6 + 0.2 * len(records) / 3), layout="constrained")
    axes = figure.subplots(1, 4, sharey=True)
    for i, line in enumerate(lines):
        for ax, x in zip(axes, (line.rounds, line.epochs, line.traffic, line.seconds), strict=True):
            draw(ax, x, line, style(i))
    frame(axes[0], "round")
    frame(axes[1], "local epochs per client")
    for ax, text, unit, x in ((axes[2], "traffic per client, down + up", "B", "traffic"),
                              (axes[3], "virtual time", "s", "seconds")):  # fmt: skip
        frame(ax, text)
        scale(ax, [getattr(line, x)[-1] for line in lines if getattr(line, x).any()], len(lines), unit)
    axes[0].set_ylabel("test accuracy, mean ± std over clients")
    explain(figure, records, names)
    return save(figure, path)


def style(i: int) -> dict[str, str]:
    """Colour and dashes of the i-th run."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}


def draw(ax: Axes, x: np.ndarray, line: Curve, look: dict[str, str]) -> None:
    """One run in one panel; its last accuracy as a level where x stays 0 (no traffic)."""
    if not x.any():
        for level in line.mean[-1:]:
            ax.axhline(level, **look)
        return
    ax.plot(x, line.mean, marker="o" if len(x) <= 30 else "", markersize=3, **look)
    low, high = (line.mean - line.std).clip(min=0), (line.mean + line.std).clip(max=1)
    if len(x) == 1:  # a band has no width
        ax.errorbar(x, line.mean, [line.mean - low, high - line.mean], capsize=4, **look)
    ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def frame(ax: Axes, text: str) -> None:
    ax.set_xlabel(text)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=text == "round", min_n_ticks=1))
    ax.tick_params(labelsize=SMALL)
    ax.grid(alpha=0.3, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)


def scale(ax: Axes, totals: Sequence[float], runs: int, unit: str = "B") -> None:
    """Ticks in B, kB, MB (or s, ks); logarithmic for runs whose totals differ widely; says what a level line is."""
    if totals and max(totals) > 20 * min(totals):
        ax.set_xscale("log")
        ax.autoscale(axis="x")
    ax.xaxis.set_major_formatter(EngFormatter(unit) if totals else NullFormatter())
    if len(totals) < runs:
        ax.set_xlabel(f"{ax.get_xlabel()} (level line: none)")


def explain(figure: Figure, records: Sequence[Record], names: Sequence[str]) -> None:
    """A title for one run, a legend below for several."""
    if len(records) == 1:
        figure.suptitle(plain(title(records[0])), fontsize=10)
        return
    methods = [record.header["job"]["algorithm"]["name"] for record in records]
    texts = [plain(f"{m} ({n})") for m, n in zip(methods, names, strict=True)] if names else methods
    lines = [Line2D([], [], **style(i)) for i in range(len(records))]
    figure.legend(lines, texts, loc="outside lower center", ncols=3, fontsize=SMALL, frameon=False)


def plain(text: str) -> str:
    """A user's words as they are: dollar signs would begin a formula, and no font has control characters."""
    return told(text).replace("$", r"\$")


def labels(record: Record, path: Path) -> Path:
    """How many training examples of each class each client has, as the area of a dot.

    As figures 2 and 3 of Jang et al., ICPP 2022. Returns path. Raises ConfigError as `save`.
    """
    counts = record.arrays["label_counts"]  # [K, C]
    K, C = counts.shape
    width, height = (n * min(0.25, 12 / n) for n in (K, C))
    figure = Figure(figsize=(max(width, 2) + 1.6, max(height, 1) + 1.2), layout="constrained")
    ax = figure.subplots()
    ax.set(xlim=(-0.6, K - 0.4), ylim=(C - 0.4, -0.6), xlabel="client", ylabel="class")
    ax.set_xticks(range(0, K, step(K)))
    ax.set_yticks(range(0, C, step(C)), [plain(name) for name in record.header["classes"][:: step(C)]])
    ax.tick_params(labelsize=SMALL, length=2)
    ax.set_title(f"dot area: training examples (largest {counts.max():,})", fontsize=SMALL, loc="left")
    figure.draw_without_rendering()  # so that the panel has its final size
    panel = ax.get_window_extent()
    cell = min(panel.width / (K + 0.2), panel.height / (C + 0.2)) * 72 / figure.dpi  # points
    k, c = counts.nonzero()
    ax.scatter(k, c, (0.95 * cell) ** 2 * counts[k, c] / counts.max(), color=COLOURS[0], linewidth=0)
    return save(figure, path)


def step(n: int) -> int:
    """Every how many of n places get a tick, so that at most 30 do."""
    return next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000, n) if n / s <= 30)


def save(figure: Figure, path: Path) -> Path:
    """Write the picture in the format of the path's ending; returns path. ConfigError where it fails."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: no picture format {path.suffix!r}; end the name in {', '.join(FORMATS)}")
    try:
        if os.path.exists(path):
            regular(path)  # a pipe without a reader would never open
        figure.savefig(path, dpi=150)
    except OSError as error:
        advice = "choose another place with -o"
        raise ConfigError(f"{path}: cannot write the picture: {error.strerror}; {advice}") from error
    return path
