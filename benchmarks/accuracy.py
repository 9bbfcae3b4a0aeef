"""Accuracy with run.precision = "bf16" beside float32: three methods, two data sets, three seeds.

`python benchmarks/accuracy.py [--seeds 0,1,2] [--side-by-side 1] [--methods fedavg] [--data
cifar10]`

Both runs of a pair have the same job, seed and cohorts, and differ in the precision alone. Writes
one result file a run, and the differences of the last scores with their 95 % interval over the
pairs that are done, to benchmarks/results/accuracy/. Runs that are there already are not run again,
and a stopped one continues. `hpcfed plot` of the result files draws the curves.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runs import RESULTS, Run, run_all

from hpcfed.results.summary import facts
from hpcfed.storage.results import load

METHODS = ("fedavg", "fedclassavg", "fedproto")
DATA = ("fashion-mnist", "cifar10")
PRECISIONS = ("float32", "bf16")
FOLDER = RESULTS / "accuracy"
# of Student's distribution, two-sided, by degrees of freedom; 1.96 for more
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 8: 2.306, 11: 2.201, 17: 2.11}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--table", action="store_true", help="only the table of finished runs")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not options.table:
        run_all(planned(options.seeds, options.methods, options.data), options.side_by_side)
    rows = differences()
    (FOLDER / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(row)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def planned(seeds: Sequence[int], methods: Sequence[str], data: Sequence[str]) -> list[Run]:
    """The runs, both precisions of a pair one after the other."""
    job = Path(__file__).with_suffix(".toml")
    return [
        Run(
            job,
            (
                *("--algorithm.name", method, "--data.name", name, "--seed", str(seed)),
                *("--run.precision", precision),
            ),
            file(name, method, seed, precision),
        )
        for seed in seeds
        for name in data
        for method in methods
        for precision in PRECISIONS
    ]


def file(data: str, method: str, seed: int, precision: str) -> Path:
    return FOLDER / f"{data}-{method}-{precision}-seed{seed}.h5"


def differences() -> list[dict[str, Any]]:
    """The row of each data set and method with finished pairs, and one of all pairs.

    Differences are bf16 minus float32, in points of the mean accuracy of clients.
    """
    rows, everything = [], []
    for data in DATA:
        for method in METHODS:
            pairs = [p for seed in range(100) if (p := pair(data, method, seed)) is not None]
            if pairs:
                rows.append({"data": data, "method": method} | summary(pairs))
                everything += pairs
    return [*rows, {"data": "all", "method": "all"} | summary(everything)] if rows else []


def pair(data: str, method: str, seed: int) -> tuple[float, float] | None:
    """The last accuracies of both runs of a pair; None if one is not done."""
    files = [file(data, method, seed, precision) for precision in PRECISIONS]
    if not all(path.exists() for path in files):
        return None
    low, high = (100 * facts(load(path))["accuracy"]["mean"] for path in files)
    return low, high


def summary(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Means of both precisions, and of their differences with half the width of its interval."""
    apart = [high - low for low, high in pairs]
    n = len(apart)
    half = None
    if n > 1:
        half = QUANTILES.get(n - 1, 1.96) * statistics.stdev(apart) / math.sqrt(n)
    return {
        "pairs": n,
        "float32": round(statistics.mean(low for low, _ in pairs), 2),
        "bf16": round(statistics.mean(high for _, high in pairs), 2),
        "difference": round(statistics.mean(apart), 3),
        "half of the 95 % interval": None if half is None else round(half, 3),
    }


if __name__ == "__main__":
    main()
