"""What must hold between the fields of a job: checked before any data is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.algorithms import ALGORITHMS
from hpcfed.data import DATASETS
from hpcfed.errors import ConfigError
from hpcfed.models import MODELS
from hpcfed.registry import find

if TYPE_CHECKING:
    from hpcfed.config.job import Job


def check(job: Job) -> None:
    """ConfigError for names that do not exist and for a method with models that it does not accept."""
    for name in job.models.mix:
        find("model", name, MODELS)
    if not Path(job.data.name).suffix:
        find("data set", job.data.name, DATASETS)
    listed(job)
    accepted(job)
    one_width(job)


def listed(job: Job) -> None:
    n = len(job.models.mix)
    if job.models.assign == "listed" and n != job.clients:
        raise ConfigError(f"models.assign = 'listed' needs one architecture per client: {n} for {job.clients}")


def accepted(job: Job) -> None:
    """Some methods average whole models, so that all clients need one architecture."""
    kinds = sorted(set(job.models.mix))
    if job.algorithm.accepts != "one architecture" or len(kinds) == 1:
        return
    others = [n for n, e in ALGORITHMS.items() if n != job.algorithm.name and mixed(n)]
    raise ConfigError(
        f"{job.algorithm.name} needs one architecture, but models.mix has {', '.join(kinds)}\n"
        f"  use {' or '.join(others)}, or set models.mix = ['{kinds[0]}']"
    )


def one_width(job: Job) -> None:
    """Clients that share a head need representations of one width; that of logistic regression is its input."""
    kinds = set(job.models.mix)
    if job.algorithm.accepts == "a common head" and "logistic" in kinds and len(kinds) > 1:
        raise ConfigError(
            f"{job.algorithm.name} needs a common head, but that of logistic is as wide as its input, that of the "
            f"others models.d = {job.models.d}\n  leave logistic out of models.mix, or use local"
        )


def mixed(name: str) -> bool:
    """Whether the method in its default setting accepts different architectures."""
    return ALGORITHMS[name].load()().accepts != "one architecture"
