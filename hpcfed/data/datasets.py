"""A data set by its name; a path to an HDF5 or NPZ file is a name too."""

import os
from pathlib import Path

from hpcfed.core.errors import ConfigError, DataError, unknown
from hpcfed.data import DATASETS
from hpcfed.data.dataset import TEXT, DataSet, Text


def load(name: str, root: Path, download: bool = True, text: Text = TEXT) -> DataSet:
    """The data set of that name, or the one in the file of that name.

    name: one of DATASETS, or a path that ends in .h5, .hdf5 or .npz (as it stands, else below
    root).
    root: folder of the data files, where downloads go too.  text: how texts become numbers.  Call
    it once a
    node: it reads all examples.
    Raises ConfigError for an unknown name, DataError for data that are missing, damaged or
    unusable.
    """
    if name in DATASETS:
        return DATASETS[name].load()(name, Path(root), download, text)
    if not name.endswith((".h5", ".hdf5", ".npz")):
        raise ConfigError(
            unknown("data set", name, DATASETS, "hpcfed list datasets")
            + ", or a path that ends in .h5, .hdf5 or .npz"
        )
    from hpcfed.data import files

    path = Path(os.path.expanduser(name))
    found = next((place for place in (path, Path(root) / path) if os.path.exists(place)), None)
    if found is None:
        also = "" if path.is_absolute() else f", nor in {root} (data.root)"
        raise DataError(f"{path}: no such file{also}; check --data.name")
    return files.read(found, text)
