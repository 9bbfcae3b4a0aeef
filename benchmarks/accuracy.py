"""Accuracy with run.precision = "bf16" beside float32: three methods, two data sets, three seeds.

`python benchmarks/accuracy.py [--seeds 0 1 2] [--methods fedavg] [--data cifar10]
[--side-by-side 2]`

Both runs of a pair have the same job, seed and cohorts, and differ in the precision alone. A run in
float32 on two threads of one seed, whose sums have another order, shows what other rounding does by
itself. Each finished run leaves a row in results/accuracy/rows.jsonl.xz, with the mean accuracy of
clients in all evaluated rounds; table and picture are made of the rows. The same command continues
with the rows that are missing.

All runs take 1.5 core-hours on a processor with instructions for bfloat16 (`hpcfed doctor` says),
and 2.6 on one that has AVX2 and emulates them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grid
import numpy as np
from matplotlib.figure import Figure
from pictures import reduce_colours
from runs import RESULTS

from hpcfed.machine.processor import find_bfloat16
from hpcfed.report.differences import t_interval
from hpcfed.storage.results import load

JOB = Path(__file__).with_suffix(".toml")
# by which accuracy of clients a method is judged, and its flags over the job
METHODS = {
    "fedavg": ("received", "--evaluate.received true"),
    "fedclassavg": ("own", ""),
    "fedproto": ("own", ""),
}
DATA = ("fashion-mnist", "cifar10")
PRECISIONS = ("float32", "bf16")
SEEDS = (0, 1, 2)
CONTROL, OF_CONTROL = 1, "float32 --run.threads 2"  # its seed, and its precision
KEPT = RESULTS / "accuracy"
ROWS = KEPT / "rows.jsonl.xz"
SIZE, POINTS = (7.0, 3.0), 8  # inches of the picture, and of its letters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=SEEDS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    options = parser.parse_args()
    wanted = cells(options.seeds, options.data, options.methods)
    failed = grid.fill(ROWS, wanted, figures, options.side_by_side)
    if rows := grid.read(ROWS):
        text = "\n".join(table(rows))
        (KEPT / "table.md").write_text(f"# Accuracy with bfloat16\n\n{text}\n")
        print(text)
        draw(rows)
    if failed:
        raise SystemExit("\n".join(failed))


def cells(
    seeds: Sequence[int], names: Sequence[str], methods: Sequence[str]
) -> Iterator[grid.Cell]:
    """All runs, those of a pair one after the other, and those of a seed together."""
    for seed in seeds:
        for data in names:
            for method in methods:
                for precision in (*PRECISIONS, *([OF_CONTROL] if seed == CONTROL else ())):
                    start = f"--algorithm.name {method} --data.name {data} --seed {seed}"
                    flags = f"{start} {METHODS[method][1]} --run.precision {precision}"
                    yield grid.Cell(
                        key(data, method, precision, seed), JOB, " ".join(flags.split())
                    )


def key(data: str, method: str, precision: str, seed: int) -> str:
    return f"{data}/{method}/{precision}/{seed}"


def figures(cell: str, path: Path) -> dict[str, Any]:
    """Mean accuracy of clients in the last round and in all evaluated ones, that of the worst
    tenth, bytes that a client sends in a round, the commit, and the processor.
    """
    record = load(path)
    column = grid.COLUMNS[METHODS[cell.split("/")[1]][0]]
    return {
        **grid.of_clients(record, column),
        "curve": curve(record.column(column)),
        "processor": f"{record.header['hardware']['cpu']} ({find_bfloat16() or 'emulated'})",
    }


def curve(scores: np.ndarray) -> dict[str, float]:
    """The mean over clients of each evaluated round, by its number from 1 on.

    scores: [T, K]; nan without an evaluation.
    """
    return {
        str(t): round(float(np.nanmean(row)), 5)
        for t, row in enumerate(scores, 1)
        if np.isfinite(row).any()
    }


def pairs(
    rows: Mapping[str, Any],
    data: str,
    method: str,
    seeds: Sequence[int] = SEEDS,
    other: str = PRECISIONS[1],
) -> list[tuple[float, float]]:
    """The last accuracies, in points, of float32 and another precision, of each seed whose runs are
    done.
    """
    lines = [
        [rows.get(key(data, method, p, seed)) for p in (PRECISIONS[0], other)] for seed in seeds
    ]
    return [
        (100 * first["accuracy"], 100 * second["accuracy"])
        for first, second in lines
        if first and second and "accuracy" in first and "accuracy" in second
    ]


def table(rows: Mapping[str, Any]) -> Iterator[str]:
    """Accuracies of both precisions, the mean difference with its 95 % interval, and that of the
    control.
    """
    yield "| data | method | pairs | float32 | bf16 | difference | that of two threads |"
    yield "|---|---|---|---|---|---|---|"
    everything: list[tuple[float, float]] = []
    controls: list[tuple[float, float]] = []
    for data in DATA:
        for method in METHODS:
            control = pairs(rows, data, method, (CONTROL,), OF_CONTROL)
            if of_method := pairs(rows, data, method):
                yield line(data, method, of_method, control)
                everything += of_method
                controls += control
    if everything:
        yield line("all", "all", everything, controls)
    commits, processors = (
        ", ".join(sorted({row[name] for row in rows.values() if name in row}))
        for name in ("commit", "processor")
    )
    total = sum(1 for _ in cells(SEEDS, DATA, list(METHODS)))
    yield ""
    yield (
        "Mean accuracy of clients in the last round, in points; difference: bf16 minus float32, "
        "with its 95 % interval and, in brackets, its root mean square. That of two threads: "
        f"float32 on two threads minus on one, seed {CONTROL}. {len(rows)} of {total} runs. "
        f"Commits: {commits}. "
        f"Processors, and what computes bfloat16 there: {processors}."
    )


def line(
    data: str,
    method: str,
    of_method: Sequence[tuple[float, float]],
    control: Sequence[tuple[float, float]],
) -> str:
    first, second = (statistics.mean(scores) for scores in zip(*of_method, strict=True))
    texts = (f"{first:.2f}", f"{second:.2f}", difference(of_method), difference(control))
    return f"| {data} | {method} | {len(of_method)} | {' | '.join(texts)} |"


def difference(scores: Sequence[tuple[float, float]]) -> str:
    """The mean of second minus first; of several with its interval and root mean square."""
    differences = np.array([second - first for first, second in scores])
    if len(differences) < 2:
        return "".join(f"{value:+.2f}" for value in differences)
    mean = differences.mean()
    reach, size = t_interval(differences)[1] - mean, np.sqrt(np.mean(differences**2))
    return f"{mean:+.2f} ± {reach:.2f} ({size:.2f})"


def draw(rows: Mapping[str, Any]) -> None:
    """Draw accuracy over rounds: a colour per method, a line style per precision; lines are means
    over seeds, bars reach from the lowest to the highest seed.
    """
    figure = Figure(figsize=SIZE, layout="constrained")
    panels = figure.subplots(1, len(DATA))
    for data, axes in zip(DATA, panels, strict=True):
        for i, method in enumerate(METHODS):
            for precision, style in zip(PRECISIONS, ("-", "--"), strict=True):
                lines = [rows.get(key(data, method, precision, seed), {}) for seed in SEEDS]
                curves = [row["curve"] for row in lines if "curve" in row]
                if not curves:
                    continue
                rounds = [int(t) for t in curves[0]]
                scores = np.array([list(curve.values()) for curve in curves])
                label = f"{method}, {precision}"
                axes.plot(rounds, scores.mean(0), style, color=f"C{i}", linewidth=1, label=label)
                low, high = scores.min(0), scores.max(0)
                axes.vlines(rounds, low, high, color=f"C{i}", linewidth=0.5)
        axes.set_title(data, fontsize=POINTS)
        axes.set_xlabel("round", fontsize=POINTS)
        axes.set_ylabel("accuracy, mean over clients", fontsize=POINTS)
        axes.tick_params(labelsize=POINTS)
        axes.grid(alpha=0.3)
    handles, labels = max((axes.get_legend_handles_labels() for axes in panels), key=len_of)
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=POINTS - 1)
    figure.savefig(KEPT / "curves.png", dpi=90)
    reduce_colours(KEPT / "curves.png")


def len_of(entries: tuple[list[Any], list[str]]) -> int:
    return len(entries[1])


if __name__ == "__main__":
    main()
