"""Digest of all that a run has computed: equal digests mean equal bits, on any number of ranks.

It does not depend on the run's folder either.
"""

import hashlib
from pathlib import Path

import numpy as np

from hpcfed.core.errors import DamagedError
from hpcfed.storage import checkpoint, results
from hpcfed.storage.columns import is_of_machine, stored
from hpcfed.storage.record import same_run


def digest(run: Path) -> str:
    """Return the SHA-256, in hex, of all that a run has computed.

    Covers all columns and arrays of the results but those that the machine determines
    (`is_of_machine`), and the items "state" and "clients/..." of the newest checkpoint: names,
    kinds, dtypes, shapes and bits, in the order of names. -0.0 differs from 0.0; all nan are alike.
    Leaves out header, placement, times, energy, memory and the folder. Raises CheckpointError if
    either file is missing or damaged, if they are of different runs, or if the results end before
    the checkpoint, which means that results are missing.
    """
    record = results.load(run)
    with checkpoint.open_checkpoint(run) as saved:
        same_run(record.header, saved.header, saved.path)
        if record.rounds < saved.rounds:
            record = results.load(run)  # the run may have continued meanwhile
        if record.rounds < saved.rounds:
            raise DamagedError(
                f"{record.path}: holds {record.rounds} rounds, the checkpoint {saved.path} "
                f"{saved.rounds}: results are missing; resume the run, or restore them from a copy"
            )
        total = hashlib.sha256()
        # as they are stored: [T, K] of all columns of a large population would not fit in memory
        for name, column in sorted(stored(record.columns).items()):
            if not is_of_machine(name):
                total.update(_canonical(name, "column", column))
        for name, array in sorted(record.arrays.items()):
            total.update(_canonical(name, "array", array))
        total.update(f"rounds {record.rounds} {saved.rounds}".encode())
        for name in sorted(saved.names("state") + saved.names("clients/")):
            for path, kind, array in saved.leaves(name):
                total.update(_canonical(path, kind, array))
    return total.hexdigest()


def _canonical(name: str, kind: str, array: np.ndarray) -> bytes:
    """Return the same bytes on every machine: little-endian, row by row, with one nan."""
    array = np.array(array, order="C", dtype=array.dtype.newbyteorder("<"))
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return repr((name, kind, array.dtype.str, array.shape)).encode() + array.tobytes()
