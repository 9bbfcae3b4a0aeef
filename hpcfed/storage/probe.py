"""The probe file: predictions of a run's trained models for the same test examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.core.wording import count_noun
from hpcfed.storage import checkpoint, names, tree
from hpcfed.storage.atomic import open_file, replace_file
from hpcfed.storage.checksum import identity
from hpcfed.storage.header import Answers
from hpcfed.storage.untrusted import Budget, GroupID, array, child, subgroup


@dataclass(frozen=True)
class Probe:
    """Predictions and representations of K clients for N test examples.

    header: rounds, checkpoint (its identity), architectures, classes, client_names, and `of`, the
    number of clients of the run.
    clients: [K], their numbers.
    rows: [N], indices in the test split.
    labels: [N].
    predictions: [K, N].
    representations: K arrays [N, d], whose widths may differ.
    images: [M], indices in the test split of the images whose conductance was computed; the same
    for all runs on the same data, whatever their seeds; empty if inputs are texts.
    image_labels: [M].
    image_predictions: [K, M].
    conductance: K arrays [M, d], for the scores of the images' labels.
    rounds: [P], of up to four checkpoints, ascending.
    cka: [P, K, K], linear CKA of each pair of clients in that round.
    """

    header: dict[str, Any]
    clients: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    representations: list[np.ndarray]
    images: np.ndarray
    image_labels: np.ndarray
    image_predictions: np.ndarray
    conductance: list[np.ndarray]
    rounds: np.ndarray
    cka: np.ndarray

    @property
    def names(self) -> list[str]:
        """The clients' names, or their numbers if they have no names."""
        return self.header.get("client_names") or [str(k) for k in self.clients]

    def of(self, n: int) -> str:
        """Return n of the run's clients in words: `3 clients`, `3 of 20 clients`."""
        total = self.header["of"]
        return (f"{n} of " if n < total else "") + count_noun(total, "client")


TABLES = (
    "clients",
    "rows",
    "labels",
    "predictions",
    "rounds",
    "cka",
    "images",
    "image_labels",
    "image_predictions",
)
LISTS = ("representations", "conductance")  # an array for each client


def write(run: Path, probe: Probe) -> Path:
    """Write the probe beside the run, replacing an older one, and return its path.

    Raises WriteError.
    """
    path = names.probe_file(run)
    with replace_file(path, names.PROBE) as file:
        tree.write_json(file, "header", probe.header)
        for name in TABLES:
            file[name] = getattr(probe, name)
        for name in LISTS:
            group = file.create_group(name)
            for k, array in zip(probe.clients.tolist(), getattr(probe, name), strict=True):
                group[str(k)] = array
    return path


def current(run: Path) -> Probe | None:
    """Return the probe of a run if it is up to date, else None.

    It is not if the file is missing or damaged, or if the run has newer models.
    """
    newest = next(iter(checkpoint.with_models(run)), None)
    try:
        probe = read(run)
        fresh = newest is None or probe.header["checkpoint"] == identity(newest)
        return probe if fresh else None
    # of the probe, or of a checkpoint that is just being deleted
    except (CheckpointError, OSError):
        return None


def read(run: Path) -> Probe:
    """Return the probe of a run. Raises DamagedError if it is missing or damaged."""
    path = names.probe_file(run)
    with open_file(path, names.PROBE) as file:
        budget = Budget(file.id)
        tables = {name: array(child(file.id, name)) for name in TABLES}
        lists = {
            name: read_arrays(subgroup(file.id, name), tables["clients"], budget) for name in LISTS
        }
        parts: dict[str, Any] = {**tables, **lists}
        probe = Probe(tree.read_json(file, "header"), **parts)
        check(probe)
        return probe


def read_arrays(group: GroupID, clients: np.ndarray, budget: Budget) -> list[np.ndarray]:
    arrays = []
    for k in clients.tolist():
        arrays.append(array(child(group, str(k), budget), budget=budget))
    return arrays


def check(probe: Probe) -> None:
    """Raise DamagedError for arrays whose sizes do not fit together."""
    Answers.model_validate(probe.header)
    K, N, P, M = (getattr(probe, name).shape for name in ("clients", "rows", "rounds", "images"))
    C = len(probe.header["classes"])
    fits = (
        (len(K), len(N), len(P), len(M)) == (1, 1, 1, 1)
        and probe.labels.shape in (N, (0,))  # none where labels are not classes
        and probe.predictions.shape == (*K, *probe.labels.shape)
        and probe.image_labels.shape == M
        and probe.image_predictions.shape == (*K, *M)
        and probe.cka.shape == (*P, *K, *K)
        and len(probe.header["architectures"]) == K[0]
        and all(z.ndim == 2 and len(z) == N[0] for z in probe.representations)
        and all(c.ndim == 2 and len(c) == M[0] for c in probe.conductance)
        and all(
            not x.size or (x.dtype.kind in "iu" and not ((x < 0) | (x >= C)).any())
            for x in (probe.labels, probe.predictions, probe.image_labels, probe.image_predictions)
        )
    )
    if not fits:
        raise DamagedError(f"{names.PROBE}: its arrays do not belong together")
