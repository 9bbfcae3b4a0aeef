"""`hpcfed matched METHOD`: the job of local training that does the same work as a method's clients.

What a method gains over this job comes from the other clients. What it gains over other local
training may come from more epochs, augmented views, terms of the loss or another learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfed.config.effects import table_defaults, tables
from hpcfed.config.job import Job
from hpcfed.config.load import load, load_derived
from hpcfed.config.write import OF_ONE_CALL, to_toml
from hpcfed.core.errors import ConfigError
from hpcfed.storage.fields import covers, flat

# tables of what happens to messages, of which there are none
OF_MESSAGES = ("compression", "privacy", "secure", "attack", "defence", "edges")


def matched(method: str, words: Sequence[str]) -> str:
    """Return the job as TOML, without the fields at their defaults.

    words: job files, and then fields, of the method's own job; none: the embedded job.
    Raises ConfigError for a job that the method, or training alone, cannot run.
    """
    job = load([*words, "--algorithm.name", method])
    comment = f"# what a client of {job.algorithm.name} does, without the other clients\n"
    changed = {name.partition(".")[0] for name in changed_fields(job)}
    if left_out := ", ".join(f"[{table}]" for table in OF_MESSAGES if table in changed):
        comment += f"# without {left_out}, as nothing is sent\n"
    return comment + to_toml(matched_job(job)).rstrip()


def matched_job(job: Job) -> dict[str, Any]:
    """Return the fields of the matched job, nested, without those at their defaults.

    Raises ConfigError for a round of steps and epochs.
    """
    method = job.algorithm
    if job.local.steps and method.extra_epochs:
        raise ConfigError(
            f"{method.name}: a round has {job.local.steps} local steps and "
            f"{method.extra_epochs} epochs beside them, which no one amount of local training "
            f"matches\n  set local.epochs in place of local.steps"
        )
    amount, extra = ("steps", 0) if job.local.steps else ("epochs", method.extra_epochs)
    times = getattr(job.local, amount) * method.steps_per_batch + extra
    changes = {f"local.{amount}": times} | method.alone
    dropped: tuple[str, ...] = (*OF_ONE_CALL, *OF_MESSAGES)
    if changes.get("algorithm.name", job.algorithm.name) != job.algorithm.name:
        dropped = (*dropped, "algorithm", "models.proxy", "models.server")
    fields = {
        name: value for name, value in changed_fields(job).items() if not covers(dropped, name)
    }
    fields = {name: value for name, value in (fields | changes).items() if value is not None}
    return load_derived(fields)[0]


def changed_fields(job: Job) -> dict[str, Any]:
    """Return the fields of a job that differ from their defaults, by name."""
    usual = dict(table_defaults("", type(job)))
    for table, section in tables(job):
        usual |= table_defaults(table, type(section))
    usual.pop("algorithm.name", None)
    return {n: v for n, v in flat(job.plain()).items() if n not in usual or usual[n] != v}
