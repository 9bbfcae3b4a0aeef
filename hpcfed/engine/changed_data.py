"""The examples of a job, and whether they have changed since a run began."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from hpcfed.config.job import READING
from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import join_few
from hpcfed.data.dataset import to_arrays
from hpcfed.engine.changed_code import ANEW
from hpcfed.storage.fields import covers, flat

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.data.dataset import DataSet

FEW = 8  # arrays that a message names


def digests(data: DataSet, other: DataSet | None = None) -> dict[str, str]:
    """Return the digest of each array of a job's examples by its name, such as "train x".

    other: the data set of the public examples, if it is another one; its training split is used.
    """
    arrays = {name: array for name, array in to_arrays(data).items() if name != "facts"}
    for name, array in to_arrays(other).items() if other else ():
        if name.startswith("train"):
            arrays[f"public {name}"] = array
    return {name.replace("_", " ", 1): digest(array) for name, array in arrays.items()}


def digest(array: np.ndarray) -> str:
    """Return dtype, shape, and the CRC-32 of all values, which takes 0.1 s for 1 GB in memory."""
    return f"{array.dtype} {list(array.shape)} {crc32(np.ascontiguousarray(array)):08x}"


def changed(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of arrays that are other than those with which a run began."""
    names = {**stored, **now} if stored else {}
    return [name for name in names if stored.get(name) != now.get(name)]


def check(job: Job, folder: Path, header: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Check the data of a run that is to be resumed, and return warnings.

    header: of the run's results.  now: digests of the job's data.
    Raises ConfigError if the data have changed, unless the job accepts that.
    """
    fields, before = flat(job.identity()), flat(header.get("job", {}))
    if any(before.get(name) != fields[name] for name in fields if covers(READING, name)):
        return []  # the job has changed, which the checkpoint refuses
    differ = changed(header.get("data_digests", {}), now)
    if not differ:
        return []
    change = f"the data {job.data.name} have changed since {folder} began ({join_few(differ, FEW)})"
    if job.own_changed:
        return [change]
    raise ConfigError(
        f"{change}, so its rounds would be of two data sets; restore the data, {ANEW}"
    )
