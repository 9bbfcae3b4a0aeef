"""The numbers of tables: a line for each run, and a line for each client of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcfed.results.columns import (
    client_names,
    column,
    is_high,
    is_share,
    last,
    main_metric,
    metrics,
    title_metric,
)
from hpcfed.results.run import Run
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
EPSILON = {"epsilon": ("epsilon", "number")}  # one more, if a run has an account of privacy
FIRST_METRIC = {"first_metric": ("first metric", "text")}  # one more, if these differ
NAME = {"name": ("name", "text")}  # a column of the clients' table, if clients have names
CLIENTS = {  # its other columns
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


MIXED = "metric"  # name of the column if the runs' first metrics differ


def page_metric(runs: Sequence[Run]) -> str:
    """Return the metric of a page: the first one of all runs, or `metric` if they differ."""
    mains = {run.main_metric for run in runs}
    return mains.pop() if len(mains) == 1 else MIXED


def heads(columns: dict[str, tuple[str, str]], metric: str) -> dict[str, tuple[str, str]]:
    """Return columns of a table with this metric in place of accuracy."""
    kind = kind_of(metric)
    return {
        metric if name == "accuracy" else name: (
            title_metric(metric) if name == "accuracy" else text,
            kind if shown == "share" else shown,
        )
        for name, (text, shown) in columns.items()
    }


def kind_of(metric: str) -> str:
    """Return how a metric is shown."""
    return "share" if is_share(metric) and metric != MIXED else "number"


def further_metrics(runs: Sequence[Run]) -> list[str]:
    """Return the metrics of these runs besides their main ones."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    return [name for name in names if name not in {run.main_metric for run in runs}]


def curve_metrics(runs: Sequence[Run]) -> list[str]:
    """Return the metrics that have curves: the first one of each run, then the others."""
    return [*dict.fromkeys(run.main_metric for run in runs), *further_metrics(runs)]


def run_heads(runs: Sequence[Run], metric: str) -> dict[str, tuple[str, str]]:
    """Return the columns of the runs' table."""
    private = any(one.record.header.get("privacy") for one in runs)
    columns: dict[str, tuple[str, str]] = {}
    for name, head in heads(RUNS | (EPSILON if private else {}), metric).items():
        columns |= FIRST_METRIC if name == MIXED else {}
        columns[name] = head
    return columns


def client_heads(
    runs: Sequence[Run], metric: str, others: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Return the columns of the clients' table. others: further metrics."""
    number, *rest = CLIENTS.items()
    named = NAME if any(run.client_names for run in runs) else {}
    return heads(dict([number]) | named | dict(rest), metric) | further_heads(others)


def further_heads(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the columns of the clients' table for further metrics."""
    return {name: (title_metric(name), kind_of(name)) for name in names}


def run(one: Run, metric: str = "accuracy") -> dict[str, Any]:
    """Return a line of the runs' table; None for values that were not recorded.

    metric: from `page_metric`; if the runs' metrics differ, a run's own one is named.
    """
    summary, job = facts(one.record), one.job
    main = summary["metrics"][one.main_metric]
    top, traffic, time = main["best"], summary["traffic"], summary["time"]
    return {
        "run": one.name,
        "method": one.method_title,
        "data": data(job["data"]),
        "clients": job["clients"],
        "rounds": summary["rounds"],
        metric: main["mean"],
        "std": main["std"],
        "best": top["mean"],
        "best_round": top["round"],
        "down": traffic["down_per_client_round"],
        "up": traffic["up_per_client_round"],
        "total": traffic["down_total"] + traffic["up_total"],
        "seconds": time["seconds"],
        "virtual": time["virtual_seconds"],
        "epsilon": summary.get("privacy", {}).get("epsilon"),
    } | ({"first_metric": title_metric(one.main_metric)} if metric == MIXED else {})


def clients(record: Record, ids: np.ndarray, metric: str = "accuracy") -> dict[str, list[Any]]:
    """Return columns of the clients' table, for these clients; None if a client has no value.

    metric: from `page_metric`. Further metrics follow, those of the last evaluated round.
    """
    if not len(ids):
        return {}
    header, K, main = record.header, record.header["job"]["clients"], main_metric(record)
    cohort, lost, seconds = (
        column(record, f"clients/{name}") for name in ("cohort", "lost", "seconds")
    )
    traffic = column(record, "clients/down") + column(record, "clients/up")
    placement = np.array(header.get("placement") or np.full(K, np.nan), dtype=float)
    columns = {
        "client": np.arange(K),
        "rank": placement,
        **sizes(record, K),
        metric: last(record, f"clients/{main}"),
        "best": best(column(record, f"clients/{main}"), is_high(main)),
        "before": last(record, f"clients/{main}_before"),
        "train_loss": latest(column(record, "clients/train_loss")),
        "rounds": np.nansum(cohort, 0),
        "lost": np.nansum(lost, 0),
        "traffic": np.nansum(traffic, 0),
        "seconds": np.nansum(seconds, 0),
    }
    lists = {name: numbers(values[ids]) for name, values in columns.items()}
    kinds = header["architectures"]
    table = {
        name: [kinds[k] for k in ids] if name == "architecture" else lists[name]
        for name in heads(CLIENTS, metric)
    }
    others = [name for name in metrics(record) if name != main]
    if names := client_names(record):
        table = {"client": table["client"], "name": [names[k] for k in ids]} | table
    return table | {name: numbers(last(record, f"clients/{name}")[ids]) for name in others}


def sizes(record: Record, K: int) -> dict[str, np.ndarray]:
    """Return the number of examples of each client, by part."""
    return {
        part: record.arrays.get(f"{part}_sizes", np.full(K, np.nan)) for part in ("train", "test")
    }


def best(values: np.ndarray, high: bool) -> np.ndarray:
    """Return the best value of each column [T, K] over rounds; nan if it has no finite value.

    high: whether higher is better.
    """
    sign = 1 if high else -1
    top = np.where(np.isfinite(values), sign * values, -np.inf).max(0, initial=-np.inf)
    return np.where(np.isfinite(top), sign * top, np.nan)


def latest(values: np.ndarray) -> np.ndarray:
    """Return the last finite value of each column [T, K]; nan if there is none."""
    finite = np.isfinite(values)
    if not len(values):
        return np.full(values.shape[1], np.nan)
    t = len(values) - 1 - finite[::-1].argmax(0)
    return np.where(finite.any(0), values[t, np.arange(values.shape[1])], np.nan)


def numbers(values: np.ndarray) -> list[float | int | None]:
    """Return values for JSON: integers as int, None for those that are not finite."""
    return [
        None if not np.isfinite(v) else int(v) if float(v).is_integer() else float(v)
        for v in values.tolist()
    ]
