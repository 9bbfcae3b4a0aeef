"""The tables and learning curves of this folder, of the runs that are there: `run.py table`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
import studies
from pictures import reduce_colours

from hpcfed.core.errors import HpcfedError
from hpcfed.report.compare import compare
from hpcfed.storage.record import Record, load

mpl.use("Agg")
from matplotlib import pyplot as plt

OPEN = "not run yet"
IMAGES, CLASSES = ("cifar10", "fashion-mnist"), ("fedhenn-2", "fedhenn-5")
TITLES = {
    "cifar10": "CIFAR-10, 20 clients, Dirichlet(0.5)",
    "fashion-mnist": "Fashion-MNIST, 20 clients, Dirichlet(0.5)",
    "fedhenn-2": "CIFAR-10, 100 clients, 2 classes each",
    "fedhenn-5": "CIFAR-10, 100 clients, 5 classes each",
}
CURVES = "![Test accuracy over rounds, mean over clients, seed 0, a line for each row](curves.png)"
BASELINES = ("local, crop and flip", "local, two views + CL")
NOTE = """
Last round; mean and population deviation over clients of seed 0, as the paper has them, then mean
and deviation over seeds. Rate: the Adam rate of {rates} with the best validation score in 20 rounds
on 15,000 examples, a tenth of them held out by the clients (`*`: an end of the grid). The paper has
larger networks and one rate for all rows: its column shows the order, not what is to be met.
"""
NOTE_HENN = """
Last round, in percent, seed 0: personal models on their clients' tests and, in brackets, the global
one. Rate: the SGD rate of {rates} with the best validation score of 20 clients with two classes
each in 10 rounds, a tenth of their examples held out; for five classes the same (`*`: an end of the
grid).
"""


def write() -> str:
    """Write tables, curves and comparisons of all studies of which there is a run; returns the
    tables.
    """
    written = []
    for name in IMAGES:
        if files := finished(name, 0):
            folder = studies.KEPT / name
            written.append(images(name))
            (folder / "table.md").write_text(written[-1])
            (folder / "compare.txt").write_text(differences(name))
            draw(name, files, folder / "curves.png")
    if any(finished(name, 0) for name in CLASSES):
        written.append(fedhenn())
        (studies.KEPT / "fedhenn.md").write_text(written[-1])
        for name in CLASSES:
            if files := finished(name, 0):
                draw(name, files, studies.KEPT / name / "curves.png")
    return "\n".join(written) or "no run is there yet"


def finished(study: str, seed: int) -> dict[str, Path]:
    """The result files of a study's rows that are there."""
    runs = {row: studies.planned_run(study, row, seed) for row in studies.STUDIES[study].rows}
    return {row: run.kept for row, run in runs.items() if run and run.kept.exists()}


@cache
def record(path: Path) -> Record:
    return load(path)


def scores(path: Path, column: str = "accuracy") -> np.ndarray:
    """The last accuracy of each client, [K]."""
    return record(path).column(f"clients/{column}")[-1]


def rate(study: str, row: str) -> str:
    """The chosen rate, with a star where the grid ends there."""
    rates, chosen = studies.STUDIES[study].rates, studies.choice(study, row)
    if chosen is None:
        return OPEN
    return f"{chosen}*" if chosen in (rates[0], rates[-1]) else chosen


def images(study: str) -> str:
    """FedClassAvg's tables 2 and 4 for one data set."""
    lines = [
        f"# {TITLES[study]}\n",
        "| row | rate | accuracy | over seeds | over local, crop and flip, by seed | paper |",
        "|---|---|---|---|---|---|",
    ]
    seeds = [finished(study, seed) for seed in range(3)]
    for row, it in studies.STUDIES[study].rows.items():
        values = [float(np.nanmean(scores(files[row]))) for files in seeds if row in files]
        gains = [
            f"{np.nanmean(scores(files[row])) - np.nanmean(scores(files[BASELINES[0]])):+.4f}"
            for files in seeds
            if row in files and BASELINES[0] in files
        ]
        baseline = (
            f"{values[0]:.4f} ± {np.nanstd(scores(seeds[0][row])):.4f}" if row in seeds[0] else OPEN
        )
        spread = f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
        cells = (row, rate(study, row), baseline, spread, ", ".join(gains), it.paper)
        lines.append(f"| {' | '.join(cells)} |")
    note = NOTE.format(rates=", ".join(studies.STUDIES[study].rates))
    return "\n".join([*lines, note, f"{CURVES}\n"])


def fedhenn() -> str:
    """FedHeNN's tables 1 and 2, for CIFAR-10 and 100 clients."""
    lines = [
        "| CIFAR-10, 100 clients | rate | 2 classes | paper | 5 classes | paper |",
        "|---|---|---|---|---|---|",
    ]
    files = {study: finished(study, 0) for study in CLASSES}
    for row in studies.FEDHENN:
        cells = [row, rate(CLASSES[0], row)]
        for study in CLASSES:
            path, paper = files[study].get(row), studies.STUDIES[study].rows[row].paper
            cells += [personal_and_global(path) if path else OPEN, paper]
        lines.append(f"| {' | '.join(cells)} |")
    rates = ", ".join(studies.STUDIES[CLASSES[0]].rates)
    return "\n".join([*lines, NOTE_HENN.format(rates=rates)])


def personal_and_global(path: Path) -> str:
    """Percent, of what clients would receive too where the method has a global model."""
    personal, received = (
        100 * np.nanmean(scores(path, c)) for c in ("accuracy", "accuracy_received")
    )
    flags = record(path).header["job"]["algorithm"]
    common = flags["name"] in ("fedavg", "fedprox") or flags.get("setting") == "homogeneous"
    return f"{personal:.2f} ({received:.2f})" if common else f"{personal:.2f}"


def differences(study: str) -> str:
    """What `hpcfed compare` says: all rows of seed 0, and those of several seeds."""
    files = finished(study, 0)
    several = [*files.values(), *finished(study, 1).values(), *finished(study, 2).values()]
    main = [path for path in several if path.stem.rpartition("-seed")[0] in slugs()]
    parts = [
        part
        for base in BASELINES
        if base in files
        for part in (
            told(f"seed 0, against {base}", [*files.values()], files[base]),
            told(f"all seeds, against {base}", main, files[base]) if len(main) > 3 else "",
        )
    ]
    return "\n".join(filter(None, parts))


def slugs() -> set[str]:
    return {studies.slug(row) for row in studies.MAIN}


def told(title: str, runs: Sequence[Path], base: Path) -> str:
    """One comparison under a title; "" where there is nothing to compare."""
    try:
        return f"{title}\n\n{compare(runs, baseline=str(base))}\n"
    except HpcfedError as error:
        return f"{title}: {error}\n"


def draw(study: str, files: dict[str, Path], out: Path) -> None:
    """Accuracy over rounds, mean over clients, a line for each row."""
    figure, axes = plt.subplots(figsize=(9, 4.5))
    for row, path in files.items():
        values = record(path).column("clients/accuracy")
        at = np.flatnonzero(~np.isnan(values).all(axis=1))
        axes.plot(at + 1, np.nanmean(values[at], axis=1), label=row, linewidth=1.2)
    axes.set(xlabel="round", ylabel="test accuracy, mean over clients", title=TITLES[study])
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=150)
    reduce_colours(out)
    plt.close(figure)


def left(names: Sequence[str]) -> str:
    """What is to be run, stage by stage, and about how many core-hours that takes."""
    rows = [*map(cost, names)]
    hours = sum(h for _, _, h in rows)
    lines = [f"{name:24}{count:4} runs {h:6.1f} core-hours" for name, count, h in rows]
    return "\n".join([*lines, f"{'in all':24}{sum(c for _, c, _ in rows):4} runs {hours:6.1f}"])


def cost(stage: str) -> tuple[str, int, float]:
    """A stage, its runs that are not there, and their core-hours."""
    seconds = [*times(stage)]
    return stage, len(seconds), sum(seconds) / 3600


def times(stage: str) -> Iterator[float]:
    """CPU seconds of each run of a stage that is not there; start and evaluation about 5 %."""
    study, rows, seeds = studies.STAGES[stage]
    it = studies.STUDIES[study]
    rounds = 50 if study in CLASSES else 100
    for row in rows:
        if not seeds:
            files = [studies.tuning_run(study, row, r).kept for r in it.rates]
            yield from (it.rows[row].seconds * it.whole + 6 for k in files if not k.exists())
        for seed in seeds:
            run = studies.planned_run(study, row, seed)
            if run is None or not run.kept.exists():
                yield it.rows[row].seconds * rounds * 1.05
