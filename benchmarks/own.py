"""Methods on data of their own kind, in the layout of their papers' tables, with their numbers.

`python benchmarks/own.py [NAME ...] [--side-by-side 2]`: fedcovid, harmony, fedtype, fesem, fedgh
and pfedhr; default: all. Three seeds each. Writes one result file a run to results/own/NAME, and
all tables as Markdown to results/own/table.md. Runs that are there already are not run again; what
was stopped is continued. A row whose method is not registered is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import archive
import numpy as np
from runs import FOLDER, RESULTS, Run, run_all, slug

from hpcfed.config.methods import ALGORITHMS
from hpcfed.storage.record import load

HERE, KEPT = Path(__file__).parent / "own", RESULTS / "own"
SEEDS = (0, 1, 2)
ROOT = ("--data.root", "../shared/data")


class Row(NamedTuple):
    """Flags, of which the first is the method's name, and the paper's numbers as printed."""

    flags: str
    paper: tuple[str, ...] = ()


class Table(NamedTuple):
    """title: where the numbers beside ours are from.  columns: head, and the column of a result
    file whose last value it shows, over clients their mean; in percent.
    """

    title: str
    columns: dict[str, str]
    rows: dict[str, Row]


SETS = "accelerometer,skeleton" + ",accelerometer+skeleton" * 6
SOME = f"--modalities.clients listed --modalities.sets {SETS}"
# how FeSEM's authors split clusters
GAP = "--algorithm.rule gap --algorithm.linkage average --algorithm.scope head --algorithm.after 5"
CONCAT = "--models.mix concat(visits=conv1d)"
OURS = "fedcovid --algorithm.warmup 20"
ORDINARY = "fedcovid --algorithm.warmup 0 --algorithm.small_epochs 1 --algorithm.small_lr 1"
CE_ONLY = f"{OURS} --algorithm.lam_c 0 --algorithm.lam_m 0 --algorithm.lam_w 0"
ONE = "--models.mix fedhenn-4"
POOLED = {
    "F1": "rounds/f1_pooled",
    "kappa": "rounds/kappa_pooled",
    "PR-AUC": "rounds/pr_auc_pooled",
}
PERSONAL = {"accuracy": "clients/accuracy"}
TABLES = {
    "fedcovid": Table(
        "FedCovid, tables 4 and 5, on its own records",
        POOLED,
        {
            "central CNN": Row(f"central {CONCAT}", ("48.55", "42.79", "42.70")),
            "local": Row(f"local {CONCAT}"),
            "FedAvg": Row(f"fedavg {CONCAT}", ("40.81", "31.38", "13.76")),
            "FedProx": Row(f"fedprox {CONCAT}", ("40.83", "31.29", "13.68")),
            "Per-FedAvg": Row(f"perfedavg {CONCAT}", ("37.22", "26.69", "13.61")),
            "FedCovid": Row(OURS, ("46.69", "36.97", "31.56")),
            "FedCovid, records concatenated": Row(f"{OURS} {CONCAT}", ("43.65", "33.56", "28.32")),
            "FedCovid, cross-entropy only": Row(CE_ONLY, ("41.50", "27.75", "22.04")),
            "FedCovid, average aggregation": Row(
                f"{OURS} --algorithm.weighting uniform", ("44.86", "30.93", "29.96")
            ),
            "FedCovid, normal training": Row(ORDINARY, ("43.06", "32.66", "28.17")),
        },
    ),
    "harmony": Table(
        "Harmony; its numbers are of other splits of UTD-MHAD, and not shown",
        PERSONAL,
        {
            "local": Row(f"local {SOME}"),
            "FedAvg, accelerometer": Row("fedavg --modalities.use accelerometer"),
            "FedAvg, skeleton": Row("fedavg --modalities.use skeleton"),
            "FedAvg, fused": Row(f"fedavg {SOME}"),
            "Harmony": Row(f"harmony {SOME} --algorithm.stage1_rounds 19 --algorithm.clusters 2"),
        },
    ),
    "fedtype": Table(
        "FedType, Fashion-MNIST, aggregation by FedAvg",
        {"personal": "clients/accuracy", "global proxy": "rounds/accuracy_common"},
        {
            f"Dir({alpha}), {what}": Row(f"fedtype --data.alpha {alpha}{flags}", (number, common))
            for alpha, common, numbers in (
                ("1", "84.11", ("87.26", "86.09")),
                ("0.5", "83.93", ("91.22", "89.45")),
                ("0.1", "81.32", ("94.77", "93.16")),
            )
            for what, flags, number in (
                ("private", "", numbers[0]),
                ("proxy", " --algorithm.inference proxy", numbers[1]),
            )
        },
    ),
    "fesem": Table(
        "FeSEM, micro-accuracy on FEMNIST",
        PERSONAL,
        {
            "NoFed": Row("local", ("79.0",)),
            "FedSGD": Row("fedsgd --local.epochs 1", ("70.1",)),
            "FedAvg": Row("fedavg", ("84.9",)),
            "FedDist": Row("feddist", ("79.3",)),
            "Robust (TKM)": Row("tkm", ("78.4",)),
            "FedCluster": Row(f"cfl {GAP}", ("84.1",)),
            "HypoCluster, 3": Row("ifca --algorithm.clusters 3", ("82.5",)),
            "FedDANE": Row("feddane", ("40.0",)),
            "FedProx": Row("fedprox", ("72.6",)),
            "FeSEM, 2": Row("fesem --algorithm.clusters 2", ("84.8",)),
            "FeSEM, 3": Row("fesem --algorithm.clusters 3", ("87.0",)),
            "FeSEM, 4": Row("fesem --algorithm.clusters 4", ("90.3",)),
            "FeSEM-MA, 3": Row("fesemma --algorithm.clusters 3", ("90.4",)),
        },
    ),
    "fedgh": Table(
        "FedGH, CIFAR-10, 10 clients",
        PERSONAL,
        {
            "standalone": Row("local", ("93.13",)),
            "FedAvg, one model": Row(f"fedavg {ONE}", ("94.34",)),
            "FML": Row("fml --models.proxy fedhenn-2", ("92.39",)),
            "FedKD": Row("fedkd --models.proxy fedhenn-2", ("92.65",)),
            "LG-FedAvg": Row("lgfedavg", ("93.54",)),
            "FD": Row("fd", ("93.63",)),
            "FedProto": Row("fedproto", ("95.99",)),
            "FedGH": Row("fedgh --algorithm.server_epochs 10", ("96.33",)),
        },
    ),
    "pfedhr": Table(
        "pFedHR, CIFAR-10, two shards a client; the last three without public labels",
        PERSONAL,
        {
            "FedMD": Row("fedmd --algorithm.digest_batch 20", ("66.13",)),
            "FedGH": Row("fedgh --algorithm.server_epochs 10", ("70.27",)),
            "pFedHR": Row("pfedhr", ("71.74",)),
            "FedKEMF": Row(
                "fedkemf --models.proxy fedhenn-2 --algorithm.server_batch 20", ("66.93",)
            ),
            "FCCL": Row(
                "fccl --algorithm.pretrain_epochs 2 --algorithm.public_batch 20", ("66.49",)
            ),
            "pFedHR, unlabelled": Row("pfedhr --algorithm.public_labels false", ("68.01",)),
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*TABLES, []], metavar="NAME")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of unfinished runs")
    options = parser.parse_args()
    archive.unpack(KEPT)
    tables = {}
    for name in options.names or TABLES:
        run_all(planned(name), options.side_by_side, options.folder)
        tables[name] = markdown(name)
        print(tables[name])
    archive.pack(KEPT)
    begun = [name for name in TABLES if any((KEPT / name).glob("*.h5"))]
    page = [tables[name] if name in tables else markdown(name) for name in begun]
    (KEPT / "table.md").write_text("\n".join(page))


def planned(name: str, seeds: Sequence[int] = SEEDS) -> list[Run]:
    """The runs of one table, seed by seed; of registered methods."""
    return [
        Run(HERE / f"{name}.toml", (*flags(row), "--seed", str(seed)), path(name, label, seed))
        for seed in seeds
        for label, row in TABLES[name].rows.items()
        if row.flags.split()[0] in ALGORITHMS
    ]


def flags(row: Row) -> tuple[str, ...]:
    return ("--algorithm.name", *row.flags.split(), *ROOT)


def path(name: str, label: str, seed: int) -> Path:
    return KEPT / name / f"{slug(label)}-seed{seed}.h5"


def markdown(name: str) -> str:
    """The table of the runs that are there: percent, mean and deviation over seeds."""
    it = TABLES[name]
    heads = [head for column in it.columns for head in (column, "paper")]
    lines = [f"**{it.title}**", "", f"| method | {' | '.join(heads)} |"]
    lines.append("|---" * (1 + len(heads)) + "|")
    for label, row in it.rows.items():
        if row.flags.split()[0] not in ALGORITHMS:
            continue
        paths = [path(name, label, seed) for seed in SEEDS]
        cells = [label]
        for i, column in enumerate(it.columns.values()):
            cells.append(spread([last(one, column) for one in paths if one.exists()]))
            cells.append(row.paper[i] if i < len(row.paper) else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def last(path: Path, column: str) -> float:
    """The last value of a column, in percent; of clients their mean."""
    return 100 * float(np.nanmean(load(path).column(column)[-1]))


def spread(values: list[float]) -> str:
    if not values:
        return "not run yet"
    return f"{np.mean(values):.2f}" + (
        f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    )


if __name__ == "__main__":
    main()
