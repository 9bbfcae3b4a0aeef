"""Digest of all results of a run: equal digests mean equal bits, on any number of ranks.

It does not depend on the run's folder either.
"""

import hashlib
from pathlib import Path

import numpy as np

from hpcfed.core.errors import DamagedError
from hpcfed.storage import checkpoint, results
from hpcfed.storage.record import Record, same_run


def columns(record: Record) -> tuple[str, ...]:
    """Return the columns that a digest covers: main metric, also before training, and losses."""
    main = (record.header.get("metrics") or ["accuracy"])[0]
    return f"clients/{main}", f"clients/{main}_before", "clients/train_loss"


def digest(run: Path) -> str:
    """Return the SHA-256, in hex, of a run's metric, training losses, server state and clients.

    Covers `columns`, and the items "state" and "clients/..." of the newest checkpoint: names,
    kinds, dtypes, shapes and bits, in the order of names. -0.0 differs from 0.0; all nan are alike.
    Leaves out header, placement, times, bytes sent and the folder. Raises CheckpointError if either
    file is missing or damaged, if they are of different runs, or if the results end before the
    checkpoint, which means that results are missing.
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
        for name in columns(record):
            if name in record.columns:
                total.update(_canonical(name, "column", record.column(name)))
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
