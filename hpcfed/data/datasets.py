"""The data sets by name; a path to an HDF5 or NPZ file is a name too.

The registry is cheap to import: a loader imports its libraries when it is called.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hpcfed.data.record import Arrays, DataSet, Split, from_arrays, to_arrays
from hpcfed.errors import ConfigError, unknown

__all__ = ["DATASETS", "Arrays", "DataSet", "Entry", "Split", "from_arrays", "load", "to_arrays"]


class Entry(NamedTuple):
    """loader(root, download) -> DataSet; one line that describes the data; the BibTeX key of its source."""

    loader: Callable[[Path, bool], DataSet]
    about: str
    cite: str


def _vision(name: str, root: Path, download: bool) -> DataSet:
    from hpcfed.data import vision

    return vision.load(name, root, download)


def _digits(root: Path, download: bool) -> DataSet:
    from hpcfed.data import digits

    return digits.load()


_VISION = {
    "cifar10": ("photographs, 10 classes, 50,000 + 10,000, 3x32x32", "krizhevsky2009cifar"),
    "cifar100": ("photographs, 100 classes, 50,000 + 10,000, 3x32x32", "krizhevsky2009cifar"),
    "mnist": ("handwritten digits, 10 classes, 60,000 + 10,000, 1x28x28", "lecun1998mnist"),
    "fashion-mnist": ("clothes, 10 classes, 60,000 + 10,000, 1x28x28", "xiao2017fashion"),
    "emnist-letters": ("handwritten letters, 26 classes, 124,800 + 20,800, 1x28x28", "cohen2017emnist"),
    "emnist-balanced": ("digits and letters, 47 classes, 112,800 + 18,800, 1x28x28", "cohen2017emnist"),
    "emnist-digits": ("handwritten digits, 10 classes, 240,000 + 40,000, 1x28x28", "cohen2017emnist"),
    "svhn": ("house numbers, 10 classes, 73,257 + 26,032, 3x32x32", "netzer2011svhn"),
    "usps": ("digits from envelopes, 10 classes, 7,291 + 2,007, 1x16x16", "hull1994usps"),
}
_DIGITS = ("small scans of digits, 10 classes, 1,437 + 360, 1x16x16; no download", "alpaydin1998digits")

DATASETS: dict[str, Entry] = {name: Entry(partial(_vision, name), *text) for name, text in _VISION.items()}
DATASETS["digits"] = Entry(_digits, *_DIGITS)


def load(name: str, root: Path, download: bool = True) -> DataSet:
    """The data set of that name, or the one in the file of that name.

    name: one of DATASETS, or a path that ends in .h5, .hdf5 or .npz (as it stands, else below root).
    root: folder of the data files, where downloads go too.  Call it once a node: it reads all examples.
    Raises ConfigError for an unknown name, DataError for data that are missing, damaged or unusable.
    """
    if name in DATASETS:
        return DATASETS[name].loader(Path(root), download)
    if not name.endswith((".h5", ".hdf5", ".npz")):
        raise ConfigError(unknown("data set", name, DATASETS) + ", or a path that ends in .h5, .hdf5 or .npz")
    from hpcfed.data import files

    path = Path(name).expanduser()
    return files.read(path if path.exists() else Path(root) / path)
