"""Conversion of a round's record to the numbers that a log shows as curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcfed.results.summary import summary_statistics
from hpcfed.storage.columns import PHASES
from hpcfed.tasks import METRICS

Row = dict[str, Any]  # a round's record, as engine/rounds.py makes it
CLIENTS = {"loss/train": "train_loss", "loss/test": "loss"}  # means over clients


def numbers(row: Row, architectures: list[str], main: str = "accuracy") -> dict[str, float]:
    """Return the known numbers of a round, by name.

    accuracy/mean, std, min, max: over clients, 0..1; before, received: means over clients.
    accuracy_of/A: mean over the clients of architecture A.
    main: name of the main metric, which stands in the place of `accuracy`.
    metrics: other ones, means over clients.
    traffic: bytes of all clients in the round.
    phases: seconds, mean over ranks.
    memory: bytes, peak of any rank so far.
    architectures: of each client, or those that the row's clients/architecture refers to by index.
    """
    values, kinds = np.asarray(row[f"clients/{main}"]), np.array(architectures)
    if "clients/architecture" in row:  # nan where another round had more clients
        kinds = kinds[np.nan_to_num(row["clients/architecture"]).astype(int)]
    elif "clients/id" in row:
        kinds = kinds[row["clients/id"]]
    result = {
        f"{main}/{name}": value
        for name, value in summary_statistics(values).items()
        if name != "clients"
    }
    result |= {
        f"{main}_of/{kind}": mean(values[kinds == kind]) for kind in np.unique(kinds).tolist()
    }
    phases = {f"{main}/{phase}": f"{main}_{phase}" for phase in ("before", "received")}
    result |= {
        name: mean(row.get(f"clients/{column}", np.zeros(0)))
        for name, column in (CLIENTS | phases).items()
    }
    result |= {
        f"metrics/{name}": mean(row[f"clients/{name}"])
        for name in (*METRICS, *custom(row))
        if name != main and f"clients/{name}" in row
    }
    result |= {f"traffic/{way}": float(np.nansum(row[f"clients/{way}"])) for way in ("down", "up")}
    result |= {
        f"phases/{phase}": mean(row[f"ranks/{phase}"])
        for phase in PHASES
        if f"ranks/{phase}" in row
    }
    result |= {
        f"memory/{n}": float(np.nanmax(row[f"ranks/{n}"]))
        for n in ("peak_bytes",)
        if f"ranks/{n}" in row
    }
    result |= {name: float(value) for name, value in row.items() if name.startswith("rounds/")}
    return {
        name: value for name, value in result.items() if value is not None and np.isfinite(value)
    }


def custom(row: Row) -> list[str]:
    """Return the metrics of a row that are functions of the user's own."""
    names = [name.removeprefix("clients/") for name in row if name.startswith("clients/")]
    return [name for name in names if ":" in name and not name.endswith(("_before", "_received"))]


def mean(values: np.ndarray) -> float | None:
    """Return the mean of values that are not nan; None if there are none."""
    return summary_statistics(np.asarray(values))["mean"]
