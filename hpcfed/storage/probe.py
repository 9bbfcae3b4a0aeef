"""What the trained models of a run answer to the same test examples: one file beside the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcfed.content import reading
from hpcfed.errors import CheckpointError, DamagedError
from hpcfed.storage import checkpoint, names, tree
from hpcfed.storage.atomic import opened, replacing
from hpcfed.storage.header import Answers
from hpcfed.storage.seal import identity
from hpcfed.storage.untrusted import Budget, array, child, subgroup


@dataclass(frozen=True)
class Probe:
    """Answers of K clients to N test examples.

    header: rounds, checkpoint (its identity), architectures and classes.
    clients: [K], their numbers.  rows: [N], of the test split.  labels: [N].  predictions: [K, N].
    representations: K arrays [N, d], whose widths may differ.
    image: position of the example whose conductance was taken, -1 where there is none (texts).
    conductance: K arrays [d], or [0] of clients that did not predict its label.
    rounds: [P], of up to four checkpoints, ascending.  cka: [P, K, K], linear CKA of each two
    clients then.
    """

    header: dict[str, Any]
    clients: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    representations: list[np.ndarray]
    image: int
    conductance: list[np.ndarray]
    rounds: np.ndarray
    cka: np.ndarray


TABLES = ("clients", "rows", "labels", "predictions", "rounds", "cka")
LISTS = ("representations", "conductance")  # an array for each client


def write(run: Path, probe: Probe) -> Path:
    """Put it beside the run, in the place of an older one; returns the path. WriteError."""
    path = names.probe_file(run)
    with replacing(path, names.PROBE) as file:
        tree.write_json(file, "header", probe.header)
        tree.write_json(file, "image", probe.image)
        for name in TABLES:
            file[name] = getattr(probe, name)
        for name in LISTS:
            group = file.create_group(name)
            for k, array in zip(probe.clients.tolist(), getattr(probe, name), strict=True):
                group[str(k)] = array
    return path


def current(run: Path) -> Probe | None:
    """That of a run; None where there is none that is whole, or the run has a newer checkpoint."""
    newest = checkpoint.newest(run)
    try:
        found = read(run)
        return found if newest is None or found.header["checkpoint"] == identity(newest) else None
    except (
        CheckpointError,
        OSError,
    ):  # of the probe, or of a checkpoint that is just being deleted
        return None


def read(run: Path) -> Probe:
    """That of a run. Raises DamagedError where there is none, or it is damaged."""
    path = names.probe_file(run)
    with opened(path, names.PROBE) as file, reading(path):
        tables = {name: array(child(file, name)) for name in TABLES}
        budget = Budget(file)
        lists = {name: listed(subgroup(file, name), tables["clients"], budget) for name in LISTS}
        header, image = tree.read_json(file, "header"), tree.read_json(file, "image")
        found = Probe(header, **tables, **lists, image=image)
        check(found)
        return found


def listed(group: h5py.Group, clients: np.ndarray, budget: Budget) -> list[np.ndarray]:
    found = []
    for k in clients.tolist():
        node = child(group, str(k))
        budget.take(node)
        found.append(array(node))
    return found


def check(probe: Probe) -> None:
    """DamagedError for tables whose sizes do not belong together."""
    Answers.model_validate(probe.header)
    K, N, P = (getattr(probe, name).shape for name in ("clients", "rows", "rounds"))
    C = len(probe.header["classes"])
    fits = (
        (len(K), len(N), len(P)) == (1, 1, 1)
        and probe.labels.shape == N
        and probe.predictions.shape == (*K, *N)
        and probe.cka.shape == (*P, *K, *K)
        and len(probe.header["architectures"]) == K[0]
        and all(z.ndim == 2 and len(z) == N[0] for z in probe.representations)
        and all(c.ndim == 1 for c in probe.conductance)
        and isinstance(probe.image, int)
        and -1 <= probe.image < N[0]
        and all(
            x.dtype.kind in "iu" and not ((x < 0) | (x >= C)).any()
            for x in (probe.labels, probe.predictions)
        )
    )
    if not fits:
        raise DamagedError(f"{names.PROBE}: its arrays do not belong together")
