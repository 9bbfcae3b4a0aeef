"""A run's record as tidy tables: columns of one length, by name, with one row for each entity.

Rounds are counted from 1, as in the output of runs; clients and ranks from 0. Seconds, bytes and
shares are as they were recorded; nan if they were not. A column is float if some of its rounds have
no value.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.results.columns import client_names, column, metrics
from hpcfed.results.summary import summary_statistics
from hpcfed.storage.record import Record

Table = dict[str, np.ndarray]


def of_rounds(record: Record) -> Table:
    """Return a table with a row for each round.

    It has accuracy and other metrics (mean and population standard deviation over clients), losses
    (means) and bytes (sums).
    """
    table = {"round": np.arange(1, record.rounds + 1)}
    for name in metrics(record):
        statistics = [summary_statistics(row) for row in column(record, f"clients/{name}")]
        table[name] = numbers([s["mean"] for s in statistics])
        table[f"{name}_std"] = numbers([s["std"] for s in statistics])
    for name in ("train_loss", "loss"):
        table[name] = numbers(
            [summary_statistics(row)["mean"] for row in column(record, f"clients/{name}")]
        )
    for name in ("down", "up"):
        table[name] = np.nansum(column(record, f"clients/{name}"), 1).astype(np.int64)
    return table | {name: c for name, c in below(record, "rounds/").items() if c.ndim == 1}


def of_clients(record: Record) -> Table:
    """Return a table with a row for each round and client: its name, architecture and columns.

    With more than 10,000 clients a round has only those that took part or were evaluated.
    """
    columns = below(record, "clients/")
    shape = next((c.shape for c in columns.values()), (0, 0))
    ids = columns.pop("id", np.broadcast_to(np.arange(shape[1]), shape))
    kinds = columns.pop("architecture", ids)
    present = np.isfinite(ids)
    names = np.array(record.header["architectures"], dtype=object)
    table = {"round": np.nonzero(present)[0] + 1, "client": ids[present].astype(np.int64)}
    table |= named(record, table["client"])
    table["architecture"] = names[kinds[present].astype(np.int64)]
    return table | {name: c[present] for name, c in columns.items()}


def of_ranks(record: Record) -> Table:
    """Return a table with a row for each round and rank: seconds by phase, peak memory in bytes."""
    columns = below(record, "ranks/")
    some = [np.isfinite(c) for c in columns.values()]
    present = np.any(some, axis=0) if some else np.zeros((0, 0), bool)
    rounds, ranks = np.nonzero(present)
    return {"round": rounds + 1, "rank": ranks} | {name: c[present] for name, c in columns.items()}


def of_labels(record: Record) -> Table:
    """Return a table with a row for each client and class: its number of training examples.

    It is empty if that was not recorded.
    """
    counts = record.arrays.get("label_counts", np.zeros((0, 0), np.int64))
    clients, classes = np.indices(counts.shape)
    names = np.array(record.header.get("classes", []), dtype=object)
    of = {"class": names[classes.ravel()], "examples": counts.ravel()}
    return {"client": clients.ravel()} | named(record, clients.ravel()) | of


def named(record: Record, clients: np.ndarray) -> Table:
    """Return a column of the names of these clients; none if they have no names."""
    names = np.array(client_names(record), dtype=object)
    return {"name": names[clients]} if len(names) else {}


TABLES: dict[str, Callable[[Record], Table]] = {
    "rounds": of_rounds,
    "clients": of_clients,
    "ranks": of_ranks,
    "labels": of_labels,
}


def table(record: Record, name: str) -> Table:
    """Return one of the four tables. Raises ConfigError for another name."""
    if name not in TABLES:
        raise ConfigError(unknown("table", name, TABLES))
    return TABLES[name](record)


def below(record: Record, prefix: str) -> Table:
    """Return the columns with a prefix, without it."""
    return {
        name.removeprefix(prefix): c
        for name, c in record.columns.items()
        if name.startswith(prefix)
    }


def numbers(values: list[float | None]) -> np.ndarray:
    """Return the values as floats, with nan for None."""
    return np.array(values, dtype=np.float64)
