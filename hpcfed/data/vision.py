"""Image sets of torchvision, with its download, or from HDF5 files of the same names."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.compat import import_torchvision
from hpcfed.core.errors import DataError
from hpcfed.data import check, files
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.download import TIMEOUT, are_present, copy_existing, once
from hpcfed.data.moments import moments

# torchvision's errors for files that are missing, or whose checksums differ
ABSENT = (RuntimeError, FileNotFoundError)
DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class Source:
    """One of torchvision's data sets.

    kind: torchvision's class.
    files: the files it reads, below the data folder.
    archives: the files it downloads, which it does not download again.
    classes: names of the classes; empty if torchvision reads them from its files.
    mean, std: per channel on the 0..1 scale; empty if they are to be computed.
    emnist: the EMNIST split, whose images are stored transposed.
    """

    kind: str
    files: tuple[str, ...]
    archives: tuple[str, ...]
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    emnist: str = ""


def _idx(folder: str, train: str, test: str) -> tuple[str, ...]:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{part}-{kind}" for part in (train, test) for kind in kinds)


def _gz(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}.gz" for name in names)


def _emnist(split: str, classes: str) -> Source:
    names = _idx("EMNIST", f"emnist-{split}-train", f"emnist-{split}-test")
    return Source("EMNIST", names, ("EMNIST/raw/gzip.zip",), tuple(classes), emnist=split)


MNIST = _idx("MNIST", "train", "t10k")
FASHION_MNIST = _idx("FashionMNIST", "train", "t10k")
SVHN = ("train_32x32.mat", "test_32x32.mat")
USPS = ("usps.bz2", "usps.t.bz2")


SOURCES = {
    "cifar10": Source(
        "CIFAR10",
        ("cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch"),
        ("cifar-10-python.tar.gz",),
        CIFAR10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Source(
        "CIFAR100",
        ("cifar-100-python/train", "cifar-100-python/test"),
        ("cifar-100-python.tar.gz",),
        (),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
    ),
    "mnist": Source("MNIST", MNIST, _gz(MNIST), DIGITS, (0.1307,), (0.3081,)),
    "fashion-mnist": Source(
        "FashionMNIST", FASHION_MNIST, _gz(FASHION_MNIST), FASHION, (0.2860,), (0.3530,)
    ),
    "emnist-letters": _emnist("letters", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "emnist-balanced": _emnist("balanced", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"),
    "emnist-digits": _emnist("digits", "0123456789"),
    "svhn": Source(
        "SVHN",
        SVHN,
        SVHN,
        DIGITS,
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
    ),
    "usps": Source("USPS", USPS, USPS, DIGITS),
}


def load(name: str, root: Path, download: bool, *_: object) -> DataSet:
    """Load torchvision's files below root, else root/NAME.h5, else torchvision's download to root.

    name: one of SOURCES.
    If files are damaged, they are downloaded again if that is allowed and torchvision notices the
    damage (CIFAR, SVHN).
    Raises DataError that names the files, the folder and what to do.
    """
    source, hdf5 = SOURCES[name], root / f"{name.replace('-', '_')}.h5"
    present = are_present(root, source.files)
    if os.path.exists(hdf5) and not present:
        return _known(files.read(hdf5), name)
    if not present and not download:
        raise _missing(name, root, "downloading is switched off")
    try:
        with _timeout(TIMEOUT):
            train, test = _obtain(name, root, download)
    except Exception as error:  # torchvision and the network raise exceptions of any type
        raise _missing(name, root, f"torchvision says: {error or type(error).__name__}") from error
    classes = source.classes or train[1]
    check.below(train[0].y, len(classes), f"{name}: training labels")
    return _known(DataSet(name, train[0], test[0], tuple(classes), *moments(train[0].x)), name)


def _known(data: DataSet, name: str) -> DataSet:
    """Return the data set under its own name, with the normalisation constants of the literature.

    Without such constants, its own mean and deviation stay.
    """
    source = SOURCES[name]
    return replace(data, name=name, mean=source.mean or data.mean, std=source.std or data.std)


def _obtain(name: str, root: Path, download: bool) -> list[tuple[Split, list[str]]]:
    """Return `_splits`, after a download if files are missing or damaged.

    Files that are present and intact are only read: nothing is locked or written.
    """
    source = SOURCES[name]
    try:
        return _splits(source, root)
    except ABSENT:
        if not download:
            raise
    once(name, root, partial(_is_intact, source, root), partial(_fetch, source, root))
    return _splits(source, root)


def _is_intact(source: Source, root: Path) -> bool:
    """Return whether the files are present and torchvision notices no damage."""
    try:
        _splits(source, root)
    except ABSENT:
        return False
    return True


def _fetch(source: Source, root: Path, folder: Path) -> None:
    """Let torchvision download to a folder, with the archives that are in root already."""
    copy_existing(root, folder, source.archives)
    _splits(source, folder, download=True)


def _splits(source: Source, root: Path, download: bool = False) -> list[tuple[Split, list[str]]]:
    """Return the training and the test split as torchvision reads them, and their class names."""
    return [_split(source, root, train, download) for train in (True, False)]


def _split(source: Source, root: Path, train: bool, download: bool) -> tuple[Split, list[str]]:
    """Return one split as torchvision reads it, and its class names.

    torchvision unpickles CIFAR's own files, but only after it has verified their checksums.
    """
    which: dict[str, Any] = {"train": train}
    if source.kind == "SVHN":
        which = {"split": "train" if train else "test"}
    if source.emnist:
        which["split"] = source.emnist
    data = getattr(import_torchvision().datasets, source.kind)(root, download=download, **which)
    y = np.asarray(data.labels if source.kind == "SVHN" else data.targets, np.int64)
    if source.emnist == "letters":
        y = y - 1  # the file counts from 1
    if len(y) != len(data.data):
        raise DataError(f"{len(data.data)} images, but {len(y)} labels")
    return Split(_upright(np.asarray(data.data), source), y), getattr(data, "classes", [])


def _upright(x: np.ndarray, source: Source) -> np.ndarray:
    """Return torchvision's pixels as [n, channels, h, w].

    EMNIST's files hold every image transposed.
    """
    if x.ndim == 3:
        return np.ascontiguousarray(x.swapaxes(1, 2) if source.emnist else x)[:, None]
    return np.ascontiguousarray(x if source.kind == "SVHN" else np.moveaxis(x, 3, 1))


def _missing(name: str, root: Path, reason: str) -> DataError:
    hdf5 = f"{name.replace('-', '_')}.h5"
    return DataError(
        f"{name}: cannot be loaded from {root} ({reason})\n"
        f"  expected there: {', '.join(SOURCES[name].files)}, or {hdf5}\n"
        f"  copy them there, name the folder that has them (--data.root), or a file (--data.name "
        f"PATH.h5)"
    )


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Set a timeout for sockets that are opened inside the block.

    torchvision sets none, and a server that does not answer must not stop a run.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
