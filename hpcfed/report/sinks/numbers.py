"""Conversion of a round's record to the numbers that a log shows as curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcfed.config.metrics import METRICS
from hpcfed.results.summary import summary_statistics
from hpcfed.storage.columns import PHASES

Row = dict[str, Any]  # a round's record, as engine/rounds.py makes it
CLIENTS = {
    "loss/train": "train_loss",
    "loss/test": "loss",
    "accuracy/before": "accuracy_before",
    "accuracy/received": "accuracy_received",
}  # means over clients


def numbers(row: Row, architectures: list[str]) -> dict[str, float]:
    """Return the known numbers of a round, by name.

    accuracy/mean, std, min, max: over clients, 0..1.
    accuracy_of/A: mean over the clients of architecture A.
    metrics: other ones, means over clients.
    traffic: bytes of all clients in the round.
    phases: seconds, mean over ranks.
    memory: bytes, peak of any rank so far.
    architectures: of each client, or those that the row's clients/architecture refers to by index.
    """
    accuracy, kinds = np.asarray(row["clients/accuracy"]), np.array(architectures)
    if "clients/architecture" in row:  # nan where another round had more clients
        kinds = kinds[np.nan_to_num(row["clients/architecture"]).astype(int)]
    elif "clients/id" in row:
        kinds = kinds[row["clients/id"]]
    found = {
        f"accuracy/{name}": value
        for name, value in summary_statistics(accuracy).items()
        if name != "clients"
    }
    found |= {
        f"accuracy_of/{kind}": mean(accuracy[kinds == kind]) for kind in np.unique(kinds).tolist()
    }
    found |= {
        name: mean(row.get(f"clients/{column}", np.zeros(0))) for name, column in CLIENTS.items()
    }
    found |= {
        f"metrics/{name}": mean(row[f"clients/{name}"])
        for name in METRICS
        if name != "accuracy" and f"clients/{name}" in row
    }
    found |= {f"traffic/{way}": float(np.nansum(row[f"clients/{way}"])) for way in ("down", "up")}
    found |= {
        f"phases/{phase}": mean(row[f"ranks/{phase}"])
        for phase in PHASES
        if f"ranks/{phase}" in row
    }
    found |= {
        f"memory/{n}": float(np.nanmax(row[f"ranks/{n}"]))
        for n in ("peak_bytes",)
        if f"ranks/{n}" in row
    }
    found |= {name: float(value) for name, value in row.items() if name.startswith("rounds/")}
    return {
        name: value for name, value in found.items() if value is not None and np.isfinite(value)
    }


def mean(values: np.ndarray) -> float | None:
    """Return the mean of values that are not nan; None if there are none."""
    return summary_statistics(np.asarray(values))["mean"]
