"""Loading of a data set by its name, or from the path of a file or a folder of images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.core.errors import ConfigError, DataError, unknown
from hpcfed.data import DATASETS
from hpcfed.data.dataset import READING, DataSet, Reading, Text

if TYPE_CHECKING:
    from hpcfed.config.job import Job

ARRAYS = (".h5", ".hdf5", ".npz")
TABLES = (".csv", ".parquet")
HUGGING_FACE = "hf:"  # prefix of data sets that Hugging Face's `datasets` loads


def load(name: str, root: Path, download: bool = True, how: Reading = READING) -> DataSet:
    """Load the data set of this name, with its labels prepared for training; see `read`.

    Raises also ConfigError for a task that the job names and the data do not have.
    """
    data = read(name, root, download, how)
    if how.domains:
        data = data.of_domains(how.domains, own=name not in DATASETS)
    data = data.fitted()
    if how.task not in ("", data.task.name):
        raise ConfigError(
            f"data.task = {how.task!r}, but the labels of {name} are "
            f"{data.task.describe(len(data.classes))} ({data.task.name}); remove it"
        )
    return data


def read(name: str, root: Path, download: bool, how: Reading) -> DataSet:
    """Load the data set of this name, or the one in the file or folder of this name.

    name: one of DATASETS; a path that ends in .h5, .hdf5, .npz, .csv or .parquet, or that of a
    folder of images (as it stands, else below root); or hf:NAME.
    root: folder of the data files, which also receives downloads.
    how: settings for reading own data.
    Call it once per node, because it reads all examples.
    Raises ConfigError for an unknown name, and DataError for data that are missing, damaged or
    unusable.
    """
    if name in DATASETS:
        return DATASETS[name].load()(name, Path(root), download, how)
    if name.startswith(HUGGING_FACE):
        from hpcfed.data import hugging_face

        return hugging_face.load(name, download, how)
    path = Path(os.path.expanduser(name))
    data_path = next((place for place in (path, Path(root) / path) if os.path.exists(place)), None)
    if data_path is not None and os.path.isdir(data_path):
        from hpcfed.data import image_folder

        return image_folder.read(data_path, how)
    if not name.endswith(ARRAYS + TABLES):
        raise ConfigError(
            unknown("data set", name, DATASETS, "hpcfed list datasets")
            + f", or a path that ends in {', '.join(ARRAYS + TABLES)}, or of a folder of images"
        )
    if data_path is None:
        also = "" if path.is_absolute() else f", nor in {root} (data.root)"
        raise DataError(f"{path}: no such file{also}; check --data.name")
    if name.endswith(TABLES):
        from hpcfed.data import tables

        return tables.read(data_path, how)
    from hpcfed.data import files

    return files.read(data_path, how)


def load_for(job: Job, name: str) -> DataSet:
    """Load a data set that a job names, with the job's settings; raises as `load`."""
    return load(name, job.data.root, job.data.download, reading(job, name))


def load_clients(job: Job) -> DataSet:
    """Load the data that a job's clients have, with the modalities that it uses.

    If groups of clients reuse the images, the training split has a copy for each.
    Raises as `load`, and ConfigError for settings of modalities or images that other data have.
    """
    from hpcfed.data import modalities, shift  # they import torch

    data = load_for(job, job.data.name)
    modalities.check_idle(data, job.modalities)
    if data.modalities:
        data = modalities.select(data, job.modalities)
    shift.check(job.data.shift, data)
    return shift.repeat(data, job.data.shift.copies)


def reading(job: Job, name: str) -> Reading:
    """Return a job's settings for reading a data set that it names."""
    data = job.data
    test = data.test_file if name == data.name else None
    task = data.task if name == data.name else ""
    text = Text(data.vocabulary, data.tokens)
    groups = job.evaluate.groups if name == data.name else ""
    domains = data.domains if name == data.name else ()
    return Reading(
        text,
        job.columns,
        test,
        data.held_out,
        data.image_size,
        data.channels,
        task,
        groups,
        domains,
    )
