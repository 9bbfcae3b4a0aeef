"""The numbers of tables: a line for each run, a line for each client of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcfed.report.page import packed
from hpcfed.report.page.runs import Shown
from hpcfed.results.columns import column, last
from hpcfed.results.columns import phases as spent
from hpcfed.results.summary import data, facts
from hpcfed.storage.record import Record

RUNS = {  # columns of the runs' table: name -> head, how it is shown
    "run": ("run", "text"),
    "method": ("method", "text"),
    "data": ("data", "text"),
    "clients": ("clients", "count"),
    "rounds": ("rounds", "count"),
    "accuracy": ("accuracy", "share"),
    "std": ("std", "share"),
    "best": ("best", "share"),
    "best_round": ("best round", "count"),
    "down": ("down", "bytes"),
    "up": ("up", "bytes"),
    "total": ("traffic", "bytes"),
    "seconds": ("time", "seconds"),
    "virtual": ("virtual", "seconds"),
}
CLIENTS = {  # and of the clients'
    "client": ("client", "count"),
    "architecture": ("architecture", "text"),
    "rank": ("rank", "count"),
    "train": ("train", "count"),
    "test": ("test", "count"),
    "accuracy": ("accuracy", "share"),
    "best": ("best", "share"),
    "before": ("before", "share"),
    "train_loss": ("train loss", "number"),
    "rounds": ("rounds", "count"),
    "lost": ("lost", "count"),
    "traffic": ("traffic", "bytes"),
    "seconds": ("training", "seconds"),
}


def run(one: Shown) -> dict[str, Any]:
    """A line of the runs' table; None for what was not recorded."""
    found, job = facts(one.record), one.job
    accuracy, best, traffic, time = (
        found[part] for part in ("accuracy", "best", "traffic", "time")
    )
    return {
        "run": one.name,
        "method": job["algorithm"]["name"],
        "data": data(job["data"]),
        "clients": job["clients"],
        "rounds": found["rounds"],
        "accuracy": accuracy["mean"],
        "std": accuracy["std"],
        "best": best["mean"],
        "best_round": best["round"],
        "down": traffic["down_per_client_round"],
        "up": traffic["up_per_client_round"],
        "total": traffic["down_total"] + traffic["up_total"],
        "seconds": time["seconds"],
        "virtual": time["virtual_seconds"],
    }


def clients(record: Record, ids: np.ndarray) -> dict[str, list[Any]]:
    """Columns of the clients' table, for these clients; None where a client has no value."""
    if not len(ids):
        return {}
    header, K = record.header, record.header["job"]["clients"]
    cohort, lost, seconds = (
        column(record, f"clients/{name}") for name in ("cohort", "lost", "seconds")
    )
    traffic = column(record, "clients/down") + column(record, "clients/up")
    placement = np.array(header.get("placement") or np.full(K, np.nan), dtype=float)
    found = {
        "client": np.arange(K),
        "rank": placement,
        **sizes(record, K),
        "accuracy": last(record, "clients/accuracy"),
        "best": greatest(column(record, "clients/accuracy")),
        "before": last(record, "clients/accuracy_before"),
        "train_loss": latest(column(record, "clients/train_loss")),
        "rounds": np.nansum(cohort, 0),
        "lost": np.nansum(lost, 0),
        "traffic": np.nansum(traffic, 0),
        "seconds": np.nansum(seconds, 0),
    }
    listed = {name: numbers(values[ids]) for name, values in found.items()}
    kinds = header["architectures"]
    return {
        name: [kinds[k] for k in ids] if name == "architecture" else listed[name]
        for name in CLIENTS
    }


def sizes(record: Record, K: int) -> dict[str, np.ndarray]:
    """Examples of each client, by part."""
    return {
        part: record.arrays.get(f"{part}_sizes", np.full(K, np.nan)) for part in ("train", "test")
    }


def greatest(values: np.ndarray) -> np.ndarray:
    """Of each column [T, K], over the rounds; nan where it has no finite value."""
    top = np.where(np.isfinite(values), values, -np.inf).max(0, initial=-np.inf)
    return np.where(np.isfinite(top), top, np.nan)


def latest(values: np.ndarray) -> np.ndarray:
    """The last finite value of each column [T, K]; nan where there is none."""
    known = np.isfinite(values)
    if not len(values):
        return np.full(values.shape[1], np.nan)
    t = len(values) - 1 - known[::-1].argmax(0)
    return np.where(known.any(0), values[t, np.arange(values.shape[1])], np.nan)


def numbers(values: np.ndarray) -> list[float | int | None]:
    """As JSON has them: whole ones without a point, None for those that are not finite."""
    return [
        None if not np.isfinite(v) else int(v) if float(v).is_integer() else float(v)
        for v in values.tolist()
    ]


def labels(record: Record, ids: np.ndarray) -> dict[str, Any] | None:
    """How many training examples of each class these clients have; None where it was not
    recorded.
    """
    counts = record.arrays.get("label_counts")
    if counts is None or not len(ids):
        return None
    return {
        "classes": list(map(str, record.header["classes"])),
        "counts": packed.exact(counts[ids]),
    }


def phases(record: Record) -> dict[str, list[float | None]]:
    """Seconds of each phase by rank, over all rounds; nothing where no rank was recorded."""
    return {phase: numbers(np.nansum(seconds, 0)) for phase, seconds in spent(record).items()}


def varies(found: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether a column of a table has several values."""
    return len({repr(row[name]) for row in found}) > 1
