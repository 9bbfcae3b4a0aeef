"""Runs whose models predict one class for all test examples, told from their recorded metrics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcfed.core.wording import count_noun
from hpcfed.results.columns import by_round, last, rounds_with_values
from hpcfed.storage.record import Record

NEAR = 1e-12  # distance of a metric from its value for such predictions
METRICS = ("accuracy", "f1", "kappa", "balanced_accuracy")


def one_class(record: Record) -> str:
    """Return a warning if all predictions after the last evaluated round are one class, or "".

    Of two classes also if that holds for some clients. Runs that measure accuracy alone do not
    tell.
    """
    names, t = record.header.get("classes", []), rounds_with_values(record)[-1:]
    pooled = {name: by_round(record, f"{name}_pooled")[t] for name in METRICS}
    if is_one_class(pooled, max(1, len(names))).any():
        accuracy, f1 = pooled["accuracy"][-1], pooled["f1"][-1]
        which = f" ({names[0] if f1 < NEAR else names[1]})" if np.isfinite(f1) else ""
        return (
            f"all predictions are one class{which}; the accuracy, {accuracy:.4f}, is its share of "
            f"the test examples"
        )
    by_client = {name: last(record, f"clients/{name}") for name in METRICS}
    n_clients = is_one_class(by_client, 2).sum() if np.isfinite(by_client["f1"]).any() else 0
    whose = count_noun(int(n_clients), "client")
    return f"the models of {whose} predict one class for all test examples" if n_clients else ""


def is_one_class(metrics: Mapping[str, np.ndarray], classes: int) -> np.ndarray:
    """Return where all predictions are one class, [n], bool.

    metrics: [n] each, by the names in METRICS; nan where not measured.
    Cohen's kappa is then 0 and the balanced accuracy 1 / C. They may be so by chance too, but of
    two classes not if F1 is also 0 (no positive prediction is right), or 2 a / (1 + a) with the
    accuracy a (all are positive). Without kappa and balanced accuracy the result is False.
    """
    accuracy, f1, kappa, balanced = (metrics[name] for name in METRICS)
    unknown = np.isnan(kappa) & np.isnan(balanced)
    chance = (np.isnan(kappa) | (abs(kappa) < NEAR)) & (
        np.isnan(balanced) | (abs(balanced - 1 / classes) < NEAR)
    )
    sure = np.isnan(f1) | (f1 < NEAR) | (abs(f1 - 2 * accuracy / (1 + accuracy)) < NEAR)
    return ~unknown & chance & sure
