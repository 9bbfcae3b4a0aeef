"""The examples of a job and its files about clients, and what has changed since a run began."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from isal.isal_zlib import crc32

from hpcfed.clients.profiles import read_measured
from hpcfed.config.job import READING
from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import join_few
from hpcfed.data.dataset import to_arrays
from hpcfed.engine.changed_code import ANEW
from hpcfed.storage.fields import covers, flat

if TYPE_CHECKING:
    from hpcfed.clients.edges import EdgeMap
    from hpcfed.clients.profiles import Profiles
    from hpcfed.config.job import Job
    from hpcfed.data.dataset import DataSet

FEW = 8  # arrays that a message names
TABLES = ("system", "edges")  # of the job, whose files say what clients and edges are like


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


def file_digests(job: Job, profiles: Profiles, edge_map: EdgeMap | None) -> dict[str, str]:
    """Return the digest of what each file of [system] and [edges] says, by the field that names it.

    profiles, edge_map: as read, before the first round.
    """
    system, arrays = job.system, dict[str, list[np.ndarray]]()
    if system.file is not None:
        p = profiles
        arrays["system.file"] = [p.speed, p.bandwidth, p.latency, p.availability]
    if system.measured is not None:
        arrays["system.measured"] = [read_measured(system.measured, job.clients)]
    if profiles.trace:
        arrays["system.trace"] = [*vars(profiles.trace).values()]
    if edge_map and job.edges.file is not None:
        arrays["edges.file"] = [edge_map.of]
    return {name: ", ".join(map(digest, columns)) for name, columns in arrays.items()}


def changed(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of arrays that are other than those with which a run began."""
    names = {**stored, **now} if stored else {}
    return [name for name in names if stored.get(name) != now.get(name)]


def check(job: Job, folder: Path, header: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Check the data of a run that is to be resumed, and return warnings.

    header: of the run's results.  now: digests of the job's data.
    Raises ConfigError if the data have changed, unless the job accepts that.
    """
    differ = changed(header.get("data_digests", {}), now)
    if not differ or other_fields(job, header, READING):
        return []
    change = f"the data {job.data.name} have changed since {folder} began ({join_few(differ, FEW)})"
    if job.own_changed:
        return [change]
    raise ConfigError(
        f"{change}, so its rounds would be of two data sets; restore the data, {ANEW}"
    )


def check_files(
    job: Job, folder: Path, header: Mapping[str, Any], now: Mapping[str, str]
) -> list[str]:
    """Check the files of [system] and [edges] of a run that is to be resumed; return warnings.

    header: of the run's results.  now: digests of what the files say.
    Raises ConfigError if one has changed, unless the job accepts that.
    """
    differ = changed(header.get("file_digests", {}), now)
    if not differ or other_fields(job, header, TABLES):
        return []
    fields = flat(job.plain())
    changes = [f"{name}: {fields[name]} has changed since {folder} began" for name in differ]
    if job.own_changed:
        return changes
    raise ConfigError(
        f"{'; '.join(changes)}, so its rounds would be of two systems; restore the file, {ANEW}"
    )


def other_fields(job: Job, header: Mapping[str, Any], tables: tuple[str, ...]) -> bool:
    """Return whether a field of these tables has changed since the run; the checkpoint refuses it.

    header: of the run's results.
    """
    fields, before = flat(job.identity()), flat(header.get("job", {}))
    return any(before.get(name) != fields[name] for name in fields if covers(tables, name))
