"""The tables of this folder: their jobs, rows and seeds, and how learning rates are chosen.

A method's learning rate is the one of a small grid with the best validation score: of runs on a
part of the examples, a tenth of which each client holds out. The runs of a method wait for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from runs import RESULTS, Run, slug

from hpcfed.storage.record import load

HERE = Path(__file__).parent
KEPT = RESULTS / "evidence"

LOCAL, OURS = ("--algorithm.name", "local"), ("--algorithm.name", "fedclassavg")
NO_CL, NO_PR = ("--algorithm.contrastive", "false"), ("--algorithm.rho", "0")
CROP_FLIP = ("--local.augment", "crop-flip")
HOMO = ("--algorithm.name", "fedhenn", "--algorithm.setting", "homogeneous")
HETERO = ("--algorithm.name", "fedhenn", "--algorithm.setting", "heterogeneous")
RAD = ("--algorithm.rad_size", "200", "--algorithm.align_every", "8")
FIVE = ("--models.mix", ",".join(f"miniature:henn_{i}" for i in range(1, 6)))
ADAM, SGD = ("0.0003", "0.001", "0.003"), ("0.01", "0.03", "0.1")


class Row(NamedTuple):
    """A method of a table: its flags, the paper's number as printed, seeds, and CPU seconds of a
    round, measured on a busy core.

    rate_of: the row whose rate this one takes; "": its own.
    """

    flags: tuple[str, ...]
    paper: str = ""
    seeds: tuple[int, ...] = (0,)
    seconds: float = 0.0
    rate_of: str = ""


def ablation(
    rho: str, plain: tuple[str, ...], numbers: Sequence[str], seconds: tuple[float, float]
) -> dict[str, Row]:
    """The rows of FedClassAvg's tables 2 and 4, and local training as it is nowhere reported.

    rho: of the paper's table 1.  plain: the augmentation of the authors' code where there is no
    second view.  numbers: the paper's, of local training, CA, +PR, +CL and +PR, CL.  seconds: CPU
    seconds of a round with one view and with two.
    """
    local, ca, pr, cl, both = numbers
    where = "local, crop and flip" if plain else "local"
    rows = {
        "local": Row(LOCAL),
        "local, crop and flip": Row((*LOCAL, *CROP_FLIP), seeds=(0, 1, 2)),
        "local, FedClassAvg's view": Row((*LOCAL, "--local.augment", "simclr")),
        "local, two views + CL": Row((*LOCAL, "--algorithm.contrastive", "true"), seeds=(0, 1, 2)),
        "CA": Row((*OURS, *NO_CL, *NO_PR, *plain), ca),
        "CA + PR": Row((*OURS, *NO_CL, "--algorithm.rho", rho, *plain), pr),
        "CA + CL": Row((*OURS, *NO_PR), cl),
        "CA + PR + CL (FedClassAvg)": Row((*OURS, "--algorithm.rho", rho), both, (0, 1, 2)),
    }
    rows[where] = rows[where]._replace(paper=local)
    return {name: row._replace(seconds=seconds["CL" in name]) for name, row in rows.items()}


AT_RATE = "local, five models, at FedHeNN's rate"
FEDREP = "--algorithm.name fedrep --algorithm.head_epochs 4 --algorithm.body_epochs 1"
FEDHENN = {  # flags, CPU seconds of a round, the paper's numbers for two and five classes a client:
    # of the personal model (table 2), in brackets of the global one (table 1)
    "FedAvg": (("--algorithm.name", "fedavg"), 7.5, "(44.29)", "(58.14)"),
    "FedProx": (("--algorithm.name", "fedprox", "--algorithm.mu", "0.1"), 7.5, "(53.8)", "(63.3)"),
    "FedRep": ((*FEDREP.split(), "--local.epochs", "1"), 7.5, "85.7", "72.4"),
    "local": (LOCAL, 7.5, "", ""),
    "FedHeNN, homogeneous": ((*HOMO, *RAD), 16, "94.7 (68.8)", "84.37 (70.19)"),
    "FedHeNN, homogeneous, eta0 = 0.1": ((*HOMO, *RAD, "--algorithm.eta0", "0.1"), 16, "", ""),
    "local, five models": ((*LOCAL, *FIVE), 7.5, "", ""),
    AT_RATE: ((*LOCAL, *FIVE), 7.5, "", ""),
    "FedHeNN, heterogeneous": ((*HETERO, *FIVE, *RAD), 13.5, "88.9", "73.01"),
    "FedHeNN, heterogeneous, eta0 = 0.1": (
        (*HETERO, *FIVE, *RAD, "--algorithm.eta0", "0.1"),
        13.5,
        "",
        "",
    ),
}


def fedhenn_rows(column: int) -> dict[str, Row]:
    """The rows of FedHeNN's table. column: of the paper's numbers in FEDHENN."""
    rows = {
        name: Row(flags, paper[column], seconds=seconds)
        for name, (flags, seconds, *paper) in FEDHENN.items()
    }
    return rows | {AT_RATE: rows[AT_RATE]._replace(rate_of="FedHeNN, heterogeneous")}


class Study(NamedTuple):
    """One table: its job, what lies over the job, its rows, and how rates are chosen.

    rates: the grid of local.lr.  tuning: what lies over the job in the runs that choose, each of
    which does as much work as this number of full rounds.  chosen_in: the study whose choice this
    one takes; "": its own.
    """

    job: str
    rows: dict[str, Row]
    rates: tuple[str, ...]
    tuning: Sequence[str]
    whole: float
    over: tuple[str, ...] = ()
    chosen_in: str = ""


IMAGES = ("--rounds", "20", "--data.train_limit", "15000", "--evaluate.every", "20")
FEW = (
    "--rounds",
    "10",
    "--clients",
    "20",
    "--participation",
    "0.25",
    "--data.train_limit",
    "10600",
)
CIFAR10 = (".6894 ± .0665", ".615", ".6311", ".7509", ".7670 ± .0532")  # tables 2 and 4
FASHION = (".8840 ± .0698", ".8578", ".8971", ".924", ".9303 ± .0308")
STUDIES = {
    "cifar10": Study(
        "cifar10.toml",
        ablation("0.1", CROP_FLIP, CIFAR10, (10, 24)),
        ADAM,
        IMAGES,
        6.7,
    ),
    "fashion-mnist": Study(
        "fashion-mnist.toml",
        ablation("0.4662", (), FASHION, (12.5, 30)),
        ADAM,
        IMAGES,
        5.0,
    ),
    "fedhenn-2": Study(
        "fedhenn.toml",
        fedhenn_rows(0),
        SGD,
        FEW,
        5.0,
        ("--data.classes_per_client", "2"),
    ),
    "fedhenn-5": Study(
        "fedhenn.toml",
        fedhenn_rows(1),
        SGD,
        FEW,
        5.0,
        ("--data.classes_per_client", "5"),
        "fedhenn-2",
    ),
}
MAIN = (
    "local, crop and flip",
    "local, two views + CL",
    "CA + PR + CL (FedClassAvg)",
)  # what decides: they come first


class Stage(NamedTuple):
    """Runs that belong together: of these rows and seeds, or those that choose their rates."""

    study: str
    rows: tuple[str, ...]
    seeds: tuple[int, ...] = ()  # none: the runs that choose rates


def others(study: str) -> tuple[str, ...]:
    return tuple(row for row in STUDIES[study].rows if row not in MAIN)


def with_own_rate(study: str) -> tuple[str, ...]:
    return tuple(name for name, row in STUDIES[study].rows.items() if not row.rate_of)


STAGES = {  # most valuable first
    "rates-cifar10": Stage("cifar10", tuple(STUDIES["cifar10"].rows)),
    "cifar10": Stage("cifar10", MAIN, (0,)),
    "cifar10-parts": Stage("cifar10", others("cifar10"), (0,)),
    "rates-fedhenn-2": Stage("fedhenn-2", with_own_rate("fedhenn-2")),
    "fedhenn-2": Stage("fedhenn-2", tuple(FEDHENN), (0,)),
    "rates-fashion-mnist": Stage("fashion-mnist", tuple(STUDIES["fashion-mnist"].rows)),
    "fashion-mnist": Stage("fashion-mnist", MAIN, (0,)),
    "fedhenn-5": Stage("fedhenn-5", tuple(FEDHENN), (0,)),
    "fashion-mnist-parts": Stage("fashion-mnist", others("fashion-mnist"), (0,)),
    "cifar10-seeds": Stage("cifar10", MAIN, (1, 2)),
    "fashion-mnist-seeds": Stage("fashion-mnist", MAIN, (1, 2)),
}


def planned(stage: str) -> list[Run]:
    """The runs of a stage; of methods without a rate none yet."""
    name, rows, seeds = STAGES[stage]
    if not seeds:
        return [tuning_run(name, row, rate) for row in rows for rate in STUDIES[name].rates]
    runs = (planned_run(name, row, seed) for seed in seeds for row in rows)
    return [run for run in runs if run]


def tuning_run(study: str, row: str, rate: str) -> Run:
    """One run that helps to choose a rate: seed 0, a tenth of each client's examples held out."""
    it = STUDIES[study]
    flags = (*it.rows[row].flags, *it.over, *it.tuning, "--evaluate.validation", "0.1")
    path = KEPT / f"rates-{study}" / f"{slug(row)}-lr{rate}.h5"
    return Run(HERE / it.job, (*flags, "--local.lr", rate), path)


def planned_run(study: str, row: str, seed: int) -> Run | None:
    """One run of a table; none where its rate has not been chosen yet."""
    it, rate = STUDIES[study], choice(study, row)
    if rate is None:
        return None
    flags = (*it.rows[row].flags, *it.over, "--local.lr", rate, "--seed", str(seed))
    return Run(HERE / it.job, flags, KEPT / study / f"{slug(row)}-seed{seed}.h5")


def choice(study: str, row: str) -> str | None:
    """The rate with the best validation accuracy after the last round, mean over clients; the lower
    one of equals. None where a run is missing.
    """
    name = STUDIES[study].chosen_in or study
    row = STUDIES[study].rows[row].rate_of or row
    runs = {rate: tuning_run(name, row, rate).kept for rate in STUDIES[name].rates}
    if not all(path.exists() for path in runs.values()):
        return None
    return max(runs, key=lambda rate: validation(runs[rate]))


@cache
def validation(path: Path) -> float:
    return float(np.nanmean(load(path).column("clients/accuracy_validation")[-1]))


def folders() -> dict[str, list[str]]:
    """The folders of results, and the stages that fill each."""
    rates = {name: [] for name in STUDIES} | {f"rates-{s.study}": [] for s in STAGES.values()}
    for name, stage in STAGES.items():
        rates[stage.study if stage.seeds else name].append(name)
    return {name: stages for name, stages in rates.items() if stages}


def of_folder(name: str) -> list[Run]:
    """All runs whose files lie in one folder of results, as far as their rates are chosen."""
    return [run for stage in folders()[name] for run in planned(stage)]
