"""`hpcfed table --choose FIELDS`: selection of hyper-parameters by validation score.

The test score is never used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun
from hpcfed.report.cases import ASIDE, MACHINE, SEED
from hpcfed.results.columns import (
    column,
    is_high,
    main_metric,
    rounds_with_values,
    title_metric,
)
from hpcfed.results.run import Run
from hpcfed.storage.fields import covers
from hpcfed.storage.record import Record
from hpcfed.tasks import METRICS

LOSS = "clients/loss_validation"
MODEL = "evaluate.validation_model"  # field of a job: which model these columns score
MODELS = {"own": "clients' own models", "received": "the models that clients would receive"}


def choose_values(runs: Sequence[Run], fields: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Return the runs with the best values of these fields, and notes on the values chosen.

    For each method, data set and other difference these are the values with the best
    validation score, mean over clients and then over seeds. The fields are removed from the runs'
    jobs, so that no axis distinguishes them. Raises ConfigError for a field that no job has, and
    for runs without validation examples.
    """
    names = {name for run in runs for name in run.fields}
    for name in fields:
        if name not in names:
            raise ConfigError(
                f"table: --choose {name}: no such field in the jobs of these runs; it is written "
                f"as local.lr"
            )
    scored = sorted({run.fields.get(MODEL, "own") for run in runs if run.finished})
    if len(scored) > 1:
        raise ConfigError(
            f"table: --choose: {MODEL} is {' in some of these runs and '.join(scored)} in others; "
            f"give runs with one of them"
        )
    others = sorted(
        name
        for name in names - {SEED, *MACHINE, *fields}
        if not covers(ASIDE, name) and len({run.at([name]) for run in runs}) > 1
    )
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Run]]] = {}
    for run in runs:
        groups.setdefault(run.at(others), {}).setdefault(run.at(fields), []).append(run)
    chosen: list[Run] = []
    whose = MODELS[scored[0]] if scored else "models"
    notes = [
        f"{', '.join(fields)} chosen by validation {title(runs)} of {whose} on "
        f"examples that clients held out of their training examples (evaluate.validation), not by "
        f"test examples:"
    ]
    for key, tried in groups.items():
        scores = {values: mean_score(cases) for values, cases in tried.items()}
        done = {values: score for values, score in scores.items() if score is not None}
        if not done:
            chosen += [strip(run, fields) for run in next(iter(tried.values()))]
            continue
        best = max(done, key=lambda values: done[values])
        chosen += [strip(run, fields) for run in tried[best]]
        named = found_name(tried[best][0], others)
        text = ", ".join(f"{f} = {v}" for f, v in zip(fields, best, strict=True) if v) or "none"
        open_ = len(tried) - len(done)
        seeds = {values: len({run.at([SEED]) for run in tried[values]}) for values in done}
        n, most = seeds[best], max(seeds.values())
        fewer = f"; by {count_noun(n, 'seed')}, others have up to {most}" if n < most else ""
        notes.append(
            f"{named + ': ' if key and named else ''}{text}, of {count_noun(len(tried), 'choice')}"
            f"{f'; {open_} not finished' if open_ else ''}"
            f"{fewer}"
        )
    return chosen, notes


def found_name(run: Run, others: Sequence[str]) -> str:
    """Return the fields that distinguish a group from the others, as text."""
    parts = [
        value if name.endswith(".name") else f"{name} = {value}"
        for name in sorted(others, key=lambda name: name != "algorithm.name")
        if (value := run.at([name])[0])
    ]
    return ", ".join(parts[:4])


def strip(run: Run, fields: Sequence[str]) -> Run:
    return run.with_fields({n: v for n, v in run.fields.items() if n not in fields})


def mean_score(cases: Sequence[Run]) -> float | None:
    """Return the mean score over seeds; None if a run is not finished."""
    if any(not run.finished for run in cases):
        return None
    return float(np.mean([score(run.record) for run in cases]))


def score(record: Record) -> float:
    """Return the validation score of a run after its last evaluated round, mean over clients.

    Higher is better: it is the main metric, or minus that metric if less is better, or minus the
    loss where the metric is often undefined for the few examples that a client holds out.
    """
    if LOSS not in record.columns:
        raise ConfigError(
            f"table: --choose, but {record.path} held no examples out; run it with "
            f"evaluate.validation = 0.2"
        )
    name, high = scored_column(record)
    rounds = rounds_with_values(record, name)
    if not len(rounds):
        return -np.inf
    value = float(np.nanmean(column(record, name)[rounds[-1]]))
    return value if high else -value


def score_by_round(record: Record) -> dict[int, float]:
    """Return the validation score of each round that has one, from 1, as `score` computes it."""
    if LOSS not in record.columns:
        return {}
    name, high = scored_column(record)
    values, rounds = column(record, name), rounds_with_values(record, name)
    return {t + 1: float(np.nanmean(values[t])) * (1 if high else -1) for t in rounds.tolist()}


def scored_column(record: Record) -> tuple[str, bool]:
    """Return the column by which runs are chosen, and whether higher is better."""
    main = main_metric(record)
    name = f"clients/{main}_validation"
    if main in METRICS and METRICS[main].each and len(rounds_with_values(record, name)):
        return name, is_high(main)
    return LOSS, False


def title(runs: Sequence[Run]) -> str:
    """Return the name of the score by which runs are chosen."""
    records = [run.record for run in runs if run.finished and LOSS in run.record.columns]
    names = {scored_column(record)[0] for record in records}
    named = {title_metric(main_metric(r)) for r in records} if LOSS not in names else {"loss"}
    return named.pop() if len(named) == 1 else "score" if named else "accuracy"
