"""Values that Tab completes: of the fields of a job, and of the arguments of commands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hpcfed.config.architectures import MODELS
from hpcfed.config.datasets import DATASETS
from hpcfed.config.fields import annotation_of, choices_of, field_names
from hpcfed.config.job import job_model
from hpcfed.config.methods import ALGORITHMS
from hpcfed.report.catalogue import REGISTRIES, registry
from hpcfed.tasks import METRICS

NAMES: dict[str, Collection[str]] = {  # fields that name entries of registries
    "algorithm.name": ALGORITHMS,
    "data.name": DATASETS,
    "data.public_source": DATASETS,
    "attack.source": DATASETS,
    "models.mix": MODELS,
    "models.proxy": MODELS,
    "models.server": MODELS,
    "evaluate.metrics": METRICS,
}


def field_values() -> dict[str, list[str]]:
    """Return the flags of all fields, those of all methods too, with the words that they take."""
    flags: dict[str, dict[str, None]] = {}
    for method in ALGORITHMS:
        model = job_model(method)
        for name in field_names(model):
            values = NAMES.get(name) or choices_of(annotation_of(model, name.split(".")))
            flags.setdefault(f"--{name.replace('_', '-')}", {}).update(dict.fromkeys(values))
    return {flag: list(values) for flag, values in flags.items()}


def names() -> list[str]:
    """Return the names of all registries."""
    return sorted({name for kind in REGISTRIES for name in registry(kind)})


VALUES: dict[str, Callable[[], Sequence[str]]] = {  # by the name of a command's argument
    "name": names,
    "metric": lambda: list(METRICS),
    "baseline": lambda: list(ALGORITHMS),
}
