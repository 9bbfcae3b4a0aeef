"""The curves of a run over its rounds: in double precision, of its clients in single."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcfed.core.wording import evenly
from hpcfed.report.page import encode
from hpcfed.results.columns import (
    by_round,
    column,
    mean_and_std,
    rounds_with_values,
    so_far,
    title_metric,
)
from hpcfed.storage.record import Record

MOST_ROUNDS = 1_000  # rounds of a curve: more than a screen has columns
MOST_VALUES = 600_000  # values of clients for each quantity, in all runs together
LIVE_VALUES = 100_000  # the same on a served page, which gets them again each round

X = {  # x axes of curves: name -> text, unit
    "round": ("round", ""),
    "epochs": ("local epochs per client", ""),
    "bytes": ("traffic per client, down + up", "B"),
    "virtual": ("virtual time", "s"),
    "wall": ("wall time", "s"),
    "epsilon": ("epsilon so far", ""),
}
Y = {  # and quantities
    "accuracy": ("test accuracy", ""),
    "train_loss": ("training loss", ""),
    "traffic": ("traffic per client so far, down + up", "B"),
    "seconds": ("time of a round (of a client: of its training)", "s"),
}


def y_axes(metrics: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the quantities drawn, with these metrics in place of accuracy."""
    return {name: (f"test {title_metric(name)}", "") for name in metrics} | {
        name: words for name, words in Y.items() if name != "accuracy"
    }


@dataclass(frozen=True)
class Chosen:
    """The positions of rounds and clients for which the page has values; all if not too many."""

    rounds: np.ndarray
    clients: np.ndarray


def choose_curves(record: Record, runs: int, live: bool = False) -> Chosen:
    """Return evenly chosen rounds and clients for the page.

    If there are too many rounds, those with an evaluation are preferred.
    live: whether the page is served.
    A population has no curves of clients, because its rounds have different ones.
    """
    t = np.arange(record.rounds)
    if len(t) > MOST_ROUNDS:
        evaluated = rounds_with_values(record)
        t = evaluated if len(evaluated) else t
        t = t[evenly(len(t), MOST_ROUNDS)]
    K = 0 if "clients/id" in record.columns else record.header["job"]["clients"]
    most = (LIVE_VALUES if live else MOST_VALUES) // (runs * max(1, len(t)))
    return Chosen(t, evenly(K, max(1, most)))


def by_client(record: Record, metrics: Sequence[str] = ("accuracy",)) -> dict[str, np.ndarray]:
    """Return the quantities of clients, each [T, K]; nan if a client has no value in a round.

    metrics: those of the page, of which the run may not have measured all.
    """
    measured = {name: column(record, f"clients/{name}") for name in metrics}
    names = ("train_loss", "seconds", "examples", "down", "up")
    loss, seconds, examples, down, up = (column(record, f"clients/{name}") for name in names)
    traffic = np.nancumsum(down + up, 0)
    worked = (
        np.where(np.nan_to_num(examples) > 0, seconds, np.nan)
        if "clients/examples" in record.columns
        else seconds
    )
    rest = {"train_loss": loss, "traffic": traffic, "seconds": worked}
    return measured | rest


def axes(record: Record) -> dict[str, np.ndarray]:
    """Return the x axes of curves, each [T] and never falling; nan if it was not recorded."""
    wall = np.nancumsum(by_round(record, "seconds"))
    return {"round": np.arange(1, record.rounds + 1), **so_far(record), "wall": wall}


def of_run(
    record: Record,
    clients: dict[str, np.ndarray],
    metrics: Sequence[str] = ("accuracy",),
) -> dict[str, np.ndarray]:
    """Return the quantities of the run itself, each [T].

    These are the x axes, means over clients and standard deviations.
    """
    x = axes(record)
    bands = {}
    for name in (*metrics, "train_loss"):
        bands[name], bands[f"{name}_std"] = mean_and_std(clients[name])
    quantities = {**bands, "traffic": x["bytes"], "seconds": by_round(record, "seconds")}
    return {f"x_{name}": values for name, values in x.items()} | quantities


def content(
    record: Record, choice: Chosen, metrics: Sequence[str] = ("accuracy",)
) -> dict[str, Any]:
    """Return the curves in the format of the page."""
    values = by_client(record, metrics)
    run = of_run(record, values, metrics)
    t, k = choice.rounds, choice.clients
    table = np.array([column[t] for column in run.values()], dtype=float).reshape(len(run), len(t))
    of_clients = (
        {name: encode.curves(rows[np.ix_(t, k)]) for name, rows in values.items()} if len(k) else {}
    )
    return {"columns": list(run), "values": encode.exact(table), "clients": of_clients}
