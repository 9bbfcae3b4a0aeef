"""UCI-HAR: six activities of 30 people, from a smartphone's accelerometer and gyroscope.

Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN
2013. There are 7,352 + 2,947 windows of 128 steps at 50 Hz. A person is a natural client. The
authors' test people are not among their training people.
Deviations from Feng et al. (FedMultimodal), KDD 2023: they divide each person into five clients by
Dirichlet(alpha); here a person is one client, or partitions are drawn by label.
"""

import os
import shutil
import zipfile
from pathlib import Path

import numpy as np

from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular
from hpcfed.data import check
from hpcfed.data.absent import absent
from hpcfed.data.dataset import DataSet, Split, several
from hpcfed.data.download import once, retrieve
from hpcfed.data.user_arrays import readable

FOLDER = "UCI HAR Dataset"
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip"
CLASSES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")
SENSORS = {"accelerometer": "total_acc", "gyroscope": "body_gyro"}
STEPS = 128


def load(name: str, root: Path, download: bool = True, *_: object) -> DataSet:
    """Load the authors' text files in root/UCI HAR Dataset, else download their archive to root.

    The files are train/Inertial Signals/total_acc_x_train.txt and the other signals,
    train/y_train.txt, train/subject_train.txt, and the same for test. The modalities are
    accelerometer and gyroscope, [n, 3, 128] each. A person is a natural client.
    Raises DataError.
    """
    if not is_present(root):
        if not download:
            raise missing(name, root)
        fetch(name, root)
    train, test = (read(root / FOLDER, part) for part in ("train", "test"))
    return several(name, train, test, CLASSES)


def is_present(root: Path) -> bool:
    return os.path.isdir(root / FOLDER)


def missing(name: str, root: Path) -> DataError:
    return absent(
        name,
        root,
        f"the folder '{FOLDER}' with train/Inertial Signals/*.txt, train/y_train.txt, "
        f"train/subject_train.txt, and the same for test",
        f"the archive is at {URL}",
    )


def fetch(name: str, root: Path, url: str = URL) -> None:
    """Download the archive and unpack the files that are read; raises DataError."""

    def fetch_archive(folder: Path) -> None:
        archive = folder / "uci-har.zip"
        retrieve(url, archive)
        unpack(archive, folder)
        archive.unlink()

    try:
        once(name, root, lambda: is_present(root), fetch_archive)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{missing(name, root)}\n  the download: {error}") from error


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the files that are read."""
    with zipfile.ZipFile(archive) as packed:
        for part in ("train", "test"):
            for file in files(part):
                target = folder / FOLDER / file
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(f"{FOLDER}/{file}") as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out)


def files(part: str) -> list[str]:
    """Return the files that are read for a split."""
    signals = [
        f"{part}/Inertial Signals/{sensor}_{axis}_{part}.txt"
        for sensor in SENSORS.values()
        for axis in "xyz"
    ]
    return [*signals, f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt"]


def read(folder: Path, part: str) -> Split:
    """Read one split: accelerometer and gyroscope, [n, 3, 128] each."""
    *signals, y, users = [table(folder / file) for file in files(part)]
    n = len(y)
    for file, values in zip(files(part), signals, strict=False):
        if values.shape != (n, STEPS):
            raise DataError(
                f"{folder / file}: {list(values.shape)}, not [{n}, {STEPS}]; unpack it again"
            )
    axes = np.stack(signals, 1).astype(np.float32)  # [n, 6, 128]
    where = str(folder / part)
    labels = check.labels(y, n, f"{where}: labels") - 1
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise DataError(f"{where}: labels lie in 1..{len(CLASSES)}; unpack it again")
    x = {"accelerometer": axes[:, :3].copy(), "gyroscope": axes[:, 3:].copy()}
    return Split(x, labels, check.labels(users, n, f"{where}: subjects"))


def table(path: Path) -> np.ndarray:
    """Return the numbers of a text file, [n, columns]; raises DataError."""
    with readable(path, "unpack it again"):
        numbers = np.loadtxt(regular(path), ndmin=2)
    if not numbers.size or not np.isfinite(numbers).all():
        raise DataError(f"{path}: is empty or not finite; unpack it again")
    return numbers
