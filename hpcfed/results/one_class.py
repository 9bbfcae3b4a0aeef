"""Runs whose models predict one class for all test examples."""

from __future__ import annotations

import numpy as np

from hpcfed.core.wording import count_noun
from hpcfed.results.columns import column, main_metric, rounds_with_values
from hpcfed.storage.record import Record
from hpcfed.storage.results import FINAL

OWN, RECEIVED = "clients/one_class", f"{FINAL}/one_class_received"


def one_class(record: Record) -> str:
    """Return a warning if all predictions after the last evaluated round are one class, or "".

    The same is said of the global model, if it was evaluated after the last round. Of two classes
    also if it holds for some clients, and is wrong of some of their examples.
    """
    names, t = record.header.get("classes", []), rounds_with_values(record)[-1:]
    main = main_metric(record)
    if OWN not in record.columns or not len(t):
        return ""
    classes, metric = column(record, OWN)[t[0]], column(record, f"clients/{main}")[t[0]]
    if text := pooled_text(classes, metric, record, "all predictions are"):
        return text
    arrays = record.arrays
    if RECEIVED in arrays and (
        text := pooled_text(
            arrays[RECEIVED],
            arrays[f"{FINAL}/{main}_received"],
            record,
            "all predictions of the global model are",
        )
    ):
        return text
    some = int((np.isfinite(classes) & (metric < 1)).sum()) if len(names) == 2 else 0
    whose = count_noun(some, "client")
    return f"the models of {whose} predict one class for all test examples" if some else ""


def pooled_text(classes: np.ndarray, metric: np.ndarray, record: Record, subject: str) -> str:
    """Return a sentence if models predict one class for all clients' test examples, or "".

    classes: the class that each client's model predicts for all of them, [n], nan for several.
    metric: each client's accuracy, [n], nan for clients that were not evaluated.
    All examples may have this class; then there is nothing to say.
    """
    evaluated = np.isfinite(metric)
    predicted = np.unique(classes[evaluated])  # nan is a value too
    if len(predicted) != 1 or np.isnan(predicted[0]) or (metric[evaluated] == 1).all():
        return ""
    number, names = int(predicted[0]), record.header.get("classes", [])
    name = names[number] if number < len(names) else number
    return f"{subject} one class ({name}), so that accuracy is the share of its test examples"
