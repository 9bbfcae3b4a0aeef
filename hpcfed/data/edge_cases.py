"""Images that no client has, to which attackers of the kind "edge-case" give a class."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.shapes import describe_shape
from hpcfed.data import datasets
from hpcfed.data.dataset import DataSet

if TYPE_CHECKING:
    from hpcfed.config.job import Job

MOST = 1_000  # images of each split, which all ranks have


class EdgeCases(NamedTuple):
    """Images of one class of another data set, [n, C, H, W], as those of the clients."""

    train: np.ndarray
    test: np.ndarray


def read(job: Job, data: DataSet) -> EdgeCases | None:
    """Return the images that a job's attackers add to their own; None if its attack adds none.

    data: the clients'.
    Raises ConfigError for a class that the other data set lacks, and DataError if its images are
    not of the form of the clients'.
    """
    attack = job.attack
    if attack.by != "edge-case":
        return None
    other = datasets.load_for(job, attack.source)
    ours, theirs = data.train.x, other.train.x
    if data.modalities or other.modalities or len(data.shape) != 3:
        raise DataError(
            f"attack.source: the inputs of {data.name} and {attack.source} have to be images"
        )
    if (ours.shape[1:], ours.dtype) != (theirs.shape[1:], theirs.dtype):
        raise DataError(
            f"attack.source: {attack.source} has images of shape {describe_shape(other.shape)} "
            f"({theirs.dtype}), {data.name} of {describe_shape(data.shape)} ({ours.dtype}); take a "
            f"data set with images of the same form"
        )
    splits = [
        split.x[np.flatnonzero(split.y == attack.source_class)[:MOST]]
        for split in (other.train, other.test)
    ]
    if not all(map(len, splits)):
        raise ConfigError(
            f"attack.source_class = {attack.source_class}: {attack.source} has no such images; its "
            f"classes are 0..{len(other.classes) - 1}"
        )
    return EdgeCases(*splits)
