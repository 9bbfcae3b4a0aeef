"""Survival after breast cancer in six regions, as in FLamby.

The data are clinical data of 1,088 patients in 39 columns, the age in years and 38 of 0 and 1,
after Andreux et al., arXiv:2006.08997. Labels are days until death, or until the last contact if
the patient was alive then. A region is a natural client, with the test patients that FLamby names.
Numbers are as in FLamby's file, not standardised. Patients that FLamby's split does not name are
left out, as there.
Ogier du Terrail et al., "FLamby", NeurIPS 2022, arXiv:2210.04620, Fed-TCGA-BRCA; The Cancer Genome
Atlas.
Deviations: none.
The data are not downloaded, because users have to agree to the terms of the Genomic Data Commons.
"""

import csv
import os
import re
from pathlib import Path

import numpy as np

from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular
from hpcfed.data.absent import absent
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.user_arrays import readable
from hpcfed.tasks.survival import RISK, Survival

FILE = "brca.csv"
SPLITS = ("train_test_split.csv", "dataset_creation_scripts/train_test_split.csv")
URL = "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_tcga_brca"
REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")
FEATURES = 39
HEAD = ("pid", "age_at_index", "E", "T")  # the first two and the last two columns
FOLD = re.compile(r"(train|test)_([0-5])")
AGAIN = "copy it again"


def load(name: str, root: Path, download: bool = True, *_: object) -> DataSet:
    """Load root/brca.csv and its split, which is beside it or below it as in FLamby's folder.

    A label is the time in days, and 1 if the patient died at that time, else 0. A region is a
    natural client, with test patients of its own.
    Raises DataError.
    """
    splits = [root / split for split in SPLITS if os.path.exists(root / split)]
    if not (splits and os.path.exists(root / FILE)):
        source = (
            f"both are in FLamby's repository, {URL}; its README has the terms to which who uses "
            f"them agrees"
        )
        raise absent(name, root, f"{FILE} and {SPLITS[0]}", source)
    folds = read_folds(splits[0])
    pids, x, y = read_patients(root / FILE)
    parts = [folds.get(pid, ("", -1)) for pid in pids]
    which, region = np.array([part for part, _ in parts]), np.array([k for _, k in parts])
    for k, place in enumerate(REGIONS):
        for part in ("train", "test"):
            if not ((which == part) & (region == k)).any():
                raise DataError(f"{root / FILE}: has no {part} patient of region {k} ({place})")
    train, test = (
        Split(x[which == part], y[which == part], region[which == part])
        for part in ("train", "test")
    )
    still = (0.0,) * FEATURES, (1.0,) * FEATURES
    return DataSet(name, train, test, RISK, *still, task=Survival(), own_tests=True)


def read_folds(path: Path) -> dict[str, tuple[str, int]]:
    """Return the part and region of each patient in FLamby's split: columns pid, fold, fold2."""
    folds = {}
    for number, line in enumerate(lines(path), start=2):
        fold = FOLD.fullmatch(line.get("fold2") or "")
        if not line.get("pid") or not fold:
            raise DataError(
                f"{path}: line {number}: fold2 is {line.get('fold2')!r}, not train_0 to train_5 or "
                f"test_0 to test_5; {AGAIN}"
            )
        folds[line["pid"]] = (fold[1], int(fold[2]))
    return folds


def read_patients(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return ids, features [n, 39] and survival times [n, 2], float32; raises DataError."""
    rows = lines(path)
    names = list(rows[0]) if rows else []
    if len(names) != FEATURES + 3 or (*names[:2], *names[-2:]) != HEAD:
        raise DataError(
            f"{path}: has the columns {', '.join(names[:2])} ... {', '.join(names[-2:])}, "
            f"{len(names)} in all, not {HEAD[0]}, {FEATURES} features, {HEAD[2]} and {HEAD[3]}; "
            f"{AGAIN}"
        )
    values = np.empty((len(rows), FEATURES + 2))
    for i, line in enumerate(rows):
        try:
            values[i] = [float(line[name]) for name in names[1:]]
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: line {i + 2}: {error}; {AGAIN}") from error
    x = values[:, :FEATURES].astype(np.float32)
    if not np.isfinite(x).all():
        number = int(np.flatnonzero(~np.isfinite(x).all(1))[0]) + 2
        raise DataError(f"{path}: line {number}: a feature is not a finite number; {AGAIN}")
    y = Survival().check(values[:, [FEATURES + 1, FEATURES]], len(rows), f"{path}: T, E")
    return [line["pid"] for line in rows], x, y


def lines(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file by column; raises DataError if there are none."""
    with readable(path, AGAIN), regular(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise DataError(f"{path}: is empty; {AGAIN}")
    return rows
