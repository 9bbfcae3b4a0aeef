"""What must hold between the fields of a job: checked before any data is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import to_jsonable_python

from hpcfed.config.architectures import find as find_model
from hpcfed.config.datasets import DATASETS
from hpcfed.config.methods import ALGORITHMS
from hpcfed.config.metrics import METRICS
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.registry import find
from hpcfed.storage.fields import flat

if TYPE_CHECKING:
    from hpcfed.config.job import Job


SHOWN = 6  # methods that a refusal names


class Method(Protocol):
    """What is asked of a method here, as `hpcfed.algorithms.base` has it."""

    @property
    def accepts(self) -> str: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    def refuses(self, job: Job) -> dict[str, str]: ...


def check(job: Job, stored: bool = False) -> None:
    """ConfigError for names that do not exist, for a job that the method cannot run, and for fields
    without effect.

    stored: the job is that of a run, which may go on as it was.
    """
    for name in (*job.models.mix, *filter(None, (job.models.proxy, job.models.server))):
        find_model(name)
    for name in filter(None, (job.data.name, job.data.public_source)):
        if not Path(name).suffix:
            find("data set", name, DATASETS)
    check_metrics(job.evaluate.metrics)
    check_listed(job)
    population(job)
    check_adapt(job, stored)
    check_method(job)
    if not stored:
        effective(job)


def check_metrics(names: Sequence[str]) -> None:
    """ConfigError for a metric that does not exist, or is named twice. Whether it fits the data is
    known when these are loaded (`metrics.choose`).
    """
    for i, name in enumerate(names):
        if name not in METRICS:
            raise ConfigError(f"evaluate.metrics: {unknown('metric', name, METRICS)}")
        if name in names[:i]:
            raise ConfigError(f"evaluate.metrics names {name} twice; leave one of them away")


def check_adapt(job: Job, stored: bool = False) -> None:
    """ConfigError for an adaptation that lacks what it needs, or whose fields change nothing."""
    adapt = job.adapt
    if adapt.how == "ewc" and not job.data.public:
        raise ConfigError(
            "adapt.how = 'ewc' needs public data, of which the Fisher information is; set "
            "data.public to the number of public examples"
        )
    own = {"lam": ("ewc",), "alpha": ("distil",), "tau": ("distil",)}
    usual = type(adapt)()
    for name in type(adapt).model_fields:
        kinds = own.get(name, ("all", "head", "ewc", "distil"))
        value, default = getattr(adapt, name), getattr(usual, name)
        if name != "how" and not stored and adapt.how not in kinds and value != default:
            raise ConfigError(
                f"adapt.{name} = {format_value(value)} has no effect: adapt.how = {adapt.how!r}\n"
                f"  leave it away, or set its default, {format_value(default)}"
            )


def check_listed(job: Job) -> None:
    n = len(job.models.mix)
    if job.models.assign == "listed" and n != job.clients:
        raise ConfigError(
            f"models.assign = 'listed' needs one architecture per client: {n} for {job.clients}"
        )


def population(job: Job) -> None:
    """ConfigError for what a population cannot have, whose clients make their own examples."""
    data = job.data
    if data.public_source == "synthetic":
        raise ConfigError(
            "data.public_source: the examples of synthetic belong to its clients; name another "
            "data set"
        )
    if data.name != "synthetic":
        return
    wrong = {
        name: getattr(data, name)
        for name in ("partition_file", "train_limit", "halve")
        if getattr(data, name)
    }
    for name, value in wrong.items():
        raise ConfigError(
            f"data.{name} = {value}: there is nothing to share out in synthetic; leave {name} away"
        )
    if data.partition != "natural":
        raise ConfigError(
            f"data.partition = {data.partition!r}: the clients of synthetic make their own "
            f"examples; "
            "set data.partition = 'natural'"
        )
    if data.public and not data.public_source:
        raise ConfigError(
            f"data.public = {data.public}: all examples of synthetic belong to clients; "
            "give data.public_source = FILE.npz with inputs of shape [1, 1, 60]"
        )


def check_method(job: Job) -> None:
    """ConfigError with the reason why the method cannot run this job, and methods that could."""
    reason = refusal(job.algorithm, job)
    if reason is None:
        return
    message, _, hint = reason.partition("; ")
    others = [
        n
        for n in ALGORITHMS
        if n != job.algorithm.name and refusal(ALGORITHMS[n].load()(), job) is None
    ]
    more = ["..."] if len(others) > SHOWN else []
    raise ConfigError(
        f"{job.algorithm.name} {message}\n  use {' or '.join(others[:SHOWN] + more)}, or {hint}"
    )


def effective(job: Job) -> None:
    """ConfigError for fields that are set, though they change nothing in this job."""
    idle = {name: why for name, why in job.algorithm.refuses(job).items() if name != "job"}
    fields, usual = flat(job.plain()), defaults(job)
    kept = job.sources()  # a preset's values, and those that come with a method, are nobody's wish
    wrong = [name for name in idle if name not in kept and fields[name] != usual[name]]
    if wrong:
        method = job.algorithm.name
        lines = (
            f"{method}: {name} = {format_value(fields[name])} has no effect: {idle[name]}\n"
            f"  leave it away, or set its default, {format_value(usual[name])}"
            for name in wrong
        )
        raise ConfigError("\n".join(lines))


def defaults(job: Job) -> dict[str, Any]:
    """Defaults of the fields of [local] and of the method, by name."""
    parts = {"local": job.local, "algorithm": job.algorithm}
    return {
        f"{part}.{name}": to_jsonable_python(field.get_default(call_default_factory=True))
        for part, values in parts.items()
        for name, field in type(values).model_fields.items()
        if not field.is_required()
    } | {f"local.{name}": value for name, value in job.algorithm.local_defaults.items()}


def format_value(value: Any) -> str:
    """A value as a job file has it."""
    return "none" if value is None else json.dumps(value)


def refusal(algorithm: Method, job: Job) -> str | None:
    """ "needs ...; what to set", or None where the method can run the job."""
    tests = (models, one_width, needs)
    found = next(filter(None, (test(algorithm, job) for test in tests)), None)
    return found or algorithm.refuses(job).get("job")


def models(algorithm: Method, job: Job) -> str | None:
    """Some methods average whole models, so that all clients need one architecture, some in several
    widths.
    """
    kinds, widths = sorted(set(job.models.mix)), sorted(set(job.models.widths))
    if algorithm.accepts not in ("one architecture", "widths"):
        return None
    if len(kinds) > 1:
        return (
            f"needs one architecture, but models.mix has {', '.join(kinds)}; "
            f"set models.mix = ['{kinds[0]}']"
        )
    if len(widths) > 1 and algorithm.accepts != "widths":
        return (
            f"needs models of one width, but models.widths has {', '.join(map(str, widths))}; "
            f"set one width"
        )
    return None


def one_width(algorithm: Method, job: Job) -> str | None:
    """Clients that share a head need representations of one width; that of logistic regression is
    its input.
    """
    if algorithm.accepts != "a common head":
        return None
    kinds = set(job.models.mix)
    if "logistic" in kinds and len(kinds) > 1:
        return (
            f"needs heads (last layers) of one shape, but that of logistic is as wide as its "
            f"input, that of the others models.d = {job.models.d}; leave logistic out of models.mix"
        )
    if len(set(job.models.widths)) > 1:
        return (
            "needs heads (last layers) of one shape, but those of sub-models are narrower; "
            "set one width in models.widths"
        )
    return None


def needs(algorithm: Method, job: Job) -> str | None:
    """What a method cannot do without."""
    have = {"public": job.data.public, "proxy": job.models.proxy, "server": job.models.server}
    ask = {
        "public": "needs public data; set data.public to the number of public examples",
        "proxy": "needs a model that all clients train besides their own; set models.proxy",
        "server": "needs a model on the server; set models.server",
    }
    return next((ask[need] for need in algorithm.needs if not have[need]), None)
