"""Result files of runs that nobody ran: every number follows from its round, client and rank."""

from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.storage.record import FINISHED
from hpcfed.storage.results import Results

KINDS = ("cnn", "mlp")


def header(K: int, R: int, total: int, **about: object) -> dict[str, Any]:
    data = {"name": "digits", "partition": "iid"}
    job = {"algorithm": {"name": "local"}, "data": data, "clients": K, "rounds": total, "seed": 0}
    kinds = [KINDS[k % 2] for k in range(K)]
    return {
        "job": job,
        "ranks": R,
        "architectures": kinds,
        "classes": ["a", "b"],
        "faults": ["", "diverged"],
    } | about


def row(t: int, K: int, R: int, **more: object) -> dict[str, Any]:
    """Round t, from 1: accuracies rise by rounds and fall by clients."""
    return {
        "clients/accuracy": (1 - 1 / (t + 1)) * np.linspace(1.0, 0.5, K),
        "clients/train_loss": np.full(K, 1 / t),
        "clients/loss": np.full(K, 2 / t),
        "clients/cohort": np.ones(K, bool),
        "clients/down": np.full(K, 10 * t),
        "clients/up": np.arange(K) + t,
        **{f"ranks/{phase}": 1.0 + np.arange(R) for phase in ("train", "evaluate")},
        "ranks/wait": np.arange(R)[::-1] / 2.0,
        "rounds/seconds": 0.1 + R,
    } | {name.replace("__", "/"): value for name, value in more.items()}


def run(
    folder: Path, rounds: int = 3, K: int = 4, R: int = 2, total: int | None = None, **about: object
) -> Results:
    """The writer of a run with so many rounds on disk, of `total`; it is finished after all."""
    if rounds == (total or rounds):
        about = {"ended": FINISHED} | about
    folder.mkdir(parents=True, exist_ok=True)
    counts = np.arange(2 * K).reshape(K, 2)
    results = Results(folder, header(K, R, total or rounds, **about), {"label_counts": counts})
    for t in range(1, rounds + 1):
        results.append(row(t, K, R))
    results.finish()
    return results
