"""Heart disease at four hospitals, prepared as in FLamby.

The last three of the 13 columns, mostly empty, are left out, then the rows with gaps; 740 rows
remain. Chest pain and resting electrocardiogram become a 0 or 1 for each kind but the first.
Numbers are standardised by the training examples of their own hospital, with the deviation over
n - 1. There are 13 features. A hospital is a natural client, with test examples of its own, 34 % of
each label.
Ogier du Terrail et al., "FLamby", NeurIPS 2022, arXiv:2210.04620, Fed-Heart-Disease; Janosi et al.,
UCI, 1988.
Deviations: the rows of the test examples are drawn from a stream of hpcfed; their numbers are
FLamby's.
"""

import os
from pathlib import Path

import numpy as np

from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular
from hpcfed.core.rng import stream
from hpcfed.data import check
from hpcfed.data.absent import absent
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.download import are_present, once, retrieve
from hpcfed.data.user_arrays import Nodes, hdf5, readable, whole
from hpcfed.tasks.binary import Binary

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
FILES = tuple(f"processed.{name}.data" for name in HOSPITALS)
FILE = "heart_disease.h5"
COLUMNS, USED = 13, 10
# categorical columns and their categories: chest pain, electrocardiogram
KINDS = {2: (1, 2, 3, 4), 6: (0, 1, 2)}
TEST = 0.34
PARTS = ("train", "test")
Patients = tuple[np.ndarray, np.ndarray, np.ndarray]  # features, labels, hospitals


def load(name: str, root: Path, download: bool = True, *_: object) -> DataSet:
    """Load UCI's four files below root, else root/heart_disease.h5, else download the four.

    HDF5: groups `train` and `test` with `features` [n, 13], nan for missing values, `labels` and
    `hospital`, 0..3. All examples are divided anew into training and test examples. A hospital is a
    natural client, with test examples of its own.
    Raises DataError.
    """
    if are_present(root, FILES):
        rows = [read(root / file) for file in FILES]
    elif os.path.exists(root / FILE):
        rows = read_hdf5(root / FILE)
    else:
        if download:
            fetch(root)
        if not are_present(root, FILES):
            raise missing(name, root)
        rows = [read(root / file) for file in FILES]
    parts = [prepare(table, hospital) for hospital, table in enumerate(rows)]
    train, test = (join([part[which] for part in parts]) for which in (0, 1))
    width = train.x.shape[1]
    still = (0.0,) * width, (1.0,) * width  # each hospital has standardised its own
    classes = ("absent", "present")
    return DataSet(name, train, test, classes, *still, task=Binary(), own_tests=True)


def join(parts: list[Patients]) -> Split:
    """Return the examples of all hospitals."""
    x, y, hospital = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Split(x, y, hospital)


def missing(name: str, root: Path) -> DataError:
    return absent(name, root, f"{', '.join(FILES)}, or {FILE}", f"the files are at {URL}")


def fetch(root: Path, url: str = URL) -> None:
    """Download the four files to root; raises DataError."""

    def fetch_files(folder: Path) -> None:
        for file in FILES:
            retrieve(url + file, folder / file)

    try:
        once("heart-disease", root, lambda: are_present(root, FILES), fetch_files)
    except (OSError, ValueError) as error:
        raise DataError(f"{missing('heart-disease', root)}\n  the download: {error}") from error


def read(path: Path) -> np.ndarray:
    """Read one of UCI's files: [n, 14], float64, with nan for "?".

    The last column is the label.
    Raises DataError.
    """
    rows = []
    with readable(path, "download it again"):
        lines = regular(path).read_text(encoding="latin-1").splitlines()
    for number, line in enumerate(filter(str.strip, lines), start=1):
        fields = line.split(",")
        try:
            rows.append([float("nan") if f.strip() == "?" else float(f) for f in fields])
        except ValueError as error:
            raise DataError(f"{path}: row {number}: {error}; download it again") from error
        if len(fields) != COLUMNS + 1:
            raise DataError(
                f"{path}: row {number} has {len(fields)} values, not {COLUMNS + 1}; download it "
                f"again"
            )
    if not rows:
        raise DataError(f"{path}: is empty; download it again")
    return np.array(rows)


def read_hdf5(path: Path) -> list[np.ndarray]:
    """Read the tables of the four hospitals, as `read`, from one HDF5 file."""
    with readable(path, "copy it again"), hdf5(path) as file:
        nodes = Nodes(file)
        x, y, hospital = (
            np.concatenate([whole(nodes[f"{p}/{key}"], f"{path}: {p}/{key}") for p in PARTS])
            for key in ("features", "labels", "hospital")
        )
    if x.shape != (len(x), COLUMNS) or x.dtype.kind != "f":
        raise DataError(f"{path}: features are {x.dtype} {list(x.shape)}, not [n, {COLUMNS}]")
    y = check.labels(y, len(x), f"{path}: labels")
    hospital = check.labels(hospital, len(x), f"{path}: hospital")
    check.below(hospital, len(HOSPITALS), f"{path}: hospital")
    table = np.concatenate([x.astype(np.float64), y[:, None]], 1)
    return [table[hospital == k] for k in range(len(HOSPITALS))]


def prepare(table: np.ndarray, hospital: int) -> tuple[Patients, Patients]:
    """Return a hospital's training and test examples.

    table: [n, 14].
    """
    x, y = table[:, :USED], (table[:, -1] > 0).astype(np.int64)
    full = ~np.isnan(x).any(1)
    x, y = x[full], y[full]
    test = stratified(y, hospital)
    if not len(y) or test.all() or not test.any():
        raise DataError(f"heart-disease: {HOSPITALS[hospital]} has {len(y)} rows without gaps")
    inputs = []
    for column in range(USED):
        if column in KINDS:
            inputs += [x[:, column] == kind for kind in KINDS[column][1:]]
        else:
            inputs.append(x[:, column])
    features = np.stack(inputs, 1).astype(np.float64)
    training = features[~test]
    std = training.std(0, ddof=1 if len(training) > 1 else 0)
    features = (features - training.mean(0)) / np.where(std > 0, std, 1)
    rows = features.astype(np.float32)
    who = np.full(len(y), hospital)
    return (rows[~test], y[~test], who[~test]), (rows[test], y[test], who[test])


def stratified(y: np.ndarray, hospital: int) -> np.ndarray:
    """Return which examples are for tests, [n], bool: ceil(0.34 n), of each label in proportion."""
    from hpcfed.data.sampling import apportion, take

    rows = take(
        y, apportion(int(np.ceil(TEST * len(y))), np.bincount(y)), stream(0, "heart", hospital)
    )
    test = np.zeros(len(y), bool)
    test[rows] = True
    return test
