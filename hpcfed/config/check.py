"""Checks of the fields of a job against each other, before any data is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import to_jsonable_python

from hpcfed.config.architectures import find as find_model
from hpcfed.config.datasets import DATASETS
from hpcfed.config.methods import ALGORITHMS
from hpcfed.config.metrics import METRICS
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.storage.fields import flat

if TYPE_CHECKING:
    from hpcfed.config.job import Job


SHOWN = 6  # largest number of methods that a refusal names


class Method(Protocol):
    """The parts of a method that these checks need, as defined in `hpcfed.algorithms.base`."""

    @property
    def accepts(self) -> str: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def trains_parts(self) -> bool: ...
    def refuses(self, job: Job) -> dict[str, str]: ...


def check(job: Job, stored: bool = False) -> None:
    """Check a job as a whole.

    Raises ConfigError for names that do not exist, for a job that the method cannot run, and for
    fields without effect.
    stored: the job is that of an existing run, which may go on as it was.
    """
    check_fields(job, stored)
    check_method(job)
    check_selection(job)
    check_edges(job, stored)
    if not stored:
        refuse_idle_fields(job)


def check_fields(job: Job, stored: bool = False) -> None:
    """Check the fields of a job that mean the same with all methods; see `check`."""
    for name in (*job.models.mix, *filter(None, (job.models.proxy, job.models.server))):
        find_model(name)
    for name in filter(None, (job.data.name, job.data.public_source)):
        check_data_name(name, job.data.root)
    check_columns(job)
    check_partition(job)
    check_metrics(job.evaluate.metrics)
    check_listed(job)
    check_modalities(job)
    check_weights(job)
    population(job)
    check_validation(job, stored)
    check_adapt(job, stored)


def check_data_name(name: str, root: Path) -> None:
    """Raise ConfigError for a name of data that cannot be found.

    The name may be that of a known data set, a file, an existing folder, or a data set of Hugging
    Face.
    """
    own = name.startswith("hf:") or Path(name).suffix or os.path.isdir(os.path.expanduser(name))
    if not own and name not in DATASETS and not os.path.isdir(root / name):
        raise ConfigError(
            unknown("data set", name, DATASETS, "hpcfed list datasets")
            + "\n  your own: a .csv, .parquet, .npz or .h5 file, a folder of images, or hf:NAME"
        )


def check_columns(job: Job) -> None:
    """Raise ConfigError if columns or other fields of own data are set for a known data set."""
    if {job.data.name, job.data.public_source} - set(DATASETS) - {""}:
        return
    fields = ("test_file", "held_out", "channels", "image_size")
    given: dict[str, tuple[Any, Any]] = {
        f"data.{name}": (getattr(job.data, name), type(job.data)) for name in fields
    }
    names = type(job.columns).model_fields
    given |= {f"columns.{name}": (getattr(job.columns, name), type(job.columns)) for name in names}
    for name, (value, part) in given.items():
        usual = part.model_fields[name.partition(".")[2]].get_default()
        if value != usual:
            told = format_value(to_jsonable_python(value))
            raise ConfigError(
                f"{name} = {told} has no effect: {job.data.name} is a data set that hpcfed knows, "
                f"not a file of your own; leave it away, or set data.name"
            )


def check_partition(job: Job) -> None:
    """Raise ConfigError for a field of [data] that only other partitions read."""
    data = job.data
    readers = {
        "client_sizes": ("sizes", "inner-dirichlet"),
        "class_choice": ("pathological",),
        "distribution": ("distribution",),
        "preassigned": ("distribution",),
        "rescale": ("distribution",),
    }
    for name, partitions in readers.items():
        value, usual = getattr(data, name), type(data).model_fields[name].get_default()
        if value != usual and data.partition not in partitions:
            raise ConfigError(
                f"data.{name} = {format_value(to_jsonable_python(value))} has no effect with "
                f"data.partition = {data.partition!r}; set that to {' or '.join(partitions)}, or "
                f"leave {name} away"
            )


def check_metrics(names: Sequence[str]) -> None:
    """Raise ConfigError for a metric that does not exist, or is named twice.

    Whether a metric fits the data is checked when the data are loaded (`metrics.choose`).
    """
    for i, name in enumerate(names):
        if name not in METRICS:
            raise ConfigError(f"evaluate.metrics: {unknown('metric', name, METRICS)}")
        if name in names[:i]:
            raise ConfigError(f"evaluate.metrics names {name} twice; leave one of them away")


def check_weights(job: Job) -> None:
    """Raise ConfigError if models.weights does not fit the architectures, or for sub-models."""
    given, kinds = job.models.weights, tuple(dict.fromkeys(job.models.mix))
    if given and len(given) not in (1, len(kinds)):
        raise ConfigError(
            f"models.weights has {len(given)} entries, but models.mix {len(kinds)} architectures "
            f"({', '.join(kinds)}); give one for each, in this order, or one for all"
        )
    if given and set(job.models.widths) != {1.0}:
        raise ConfigError(
            "models.weights: those of a whole model do not fit its sub-models; set "
            "models.widths = [1]"
        )


def check_validation(job: Job, stored: bool = False) -> None:
    """Raise ConfigError if validation examples are wanted, but clients make their examples.

    Also if a model is named for a validation that there is none of.
    """
    chosen = job.evaluate.validation_model
    if chosen != "own" and not job.evaluate.validation and not stored:
        raise ConfigError(
            f"evaluate.validation_model = {chosen!r} has no effect with evaluate.validation = 0; "
            f"leave it away, or set evaluate.validation = 0.2"
        )
    if job.evaluate.validation and job.data.name == "synthetic":
        raise ConfigError(
            f"evaluate.validation = {job.evaluate.validation:g}: the clients of synthetic make "
            f"their own examples and hold none out; set evaluate.validation = 0"
        )


def check_adapt(job: Job, stored: bool = False) -> None:
    """Raise ConfigError for an adaptation that lacks what it needs, or fields without effect."""
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


def check_modalities(job: Job) -> None:
    """Raise ConfigError for fields of [modalities] that contradict each other or have no effect."""
    m = job.modalities
    need = {
        "rate": (m.rate != 1, m.clients == "drawn" and not m.sets, "clients = 'drawn', no sets"),
        "sets": (m.sets, m.clients in ("drawn", "listed"), "clients = 'drawn' or 'listed'"),
        "shares": (m.shares, m.clients == "drawn" and m.sets, "clients = 'drawn' and sets"),
    }
    for name, (given, used, wants) in need.items():
        if given and not used:
            value = format_value(getattr(m, name))
            raise ConfigError(
                f"modalities.{name} = {value} has no effect without modalities.{wants}; leave it "
                f"away, or set that"
            )
    for name in ("least", "missing_labels"):
        if (value := getattr(job.data, name)) and job.data.partition_file:
            raise ConfigError(
                f"data.{name} = {value} has no effect on a partition that is read; leave it away, "
                f"or data.partition_file"
            )
    if m.clients == "listed" and not m.sets:
        raise ConfigError(
            "modalities.clients = 'listed' needs modalities.sets, as ['audio', 'audio+video']"
        )
    if m.clients == "drawn" and not m.sets and m.rate == 1:
        raise ConfigError(
            "modalities.clients = 'drawn' needs modalities.rate below 1, or modalities.sets"
        )
    if m.shares and len(m.shares) != len(m.sets):
        raise ConfigError(
            f"modalities.shares has {len(m.shares)} numbers for {len(m.sets)} sets; give as many"
        )
    if len(m.sets) > job.clients and m.clients == "listed":
        raise ConfigError(
            f"modalities.sets lists {len(m.sets)} clients, the job has {job.clients}; list as many"
        )
    if m.encoders == "own" and m.clients == "all":
        raise ConfigError(
            "modalities.encoders = 'own' has no effect where modalities.clients = 'all'; leave it "
            "away, or say which clients have which"
        )


def population(job: Job) -> None:
    """Raise ConfigError for fields that do not apply to clients that make their own examples."""
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
        for name in (
            "partition_file",
            "train_limit",
            "sort_clients",
            "halve",
            "least",
            "wrong_labels",
            "missing_labels",
        )
        if getattr(data, name)
    }
    if data.imbalance > 1:
        wrong["imbalance"] = data.imbalance
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


def check_selection(job: Job) -> None:
    """Raise ConfigError for a selection of cohorts that is impossible or has no effect."""
    chosen, usual = job.selection, type(job.selection)()
    where = f"selection.by = {chosen.by!r}"
    owners = {"candidates": "power-of-choice"}
    owners |= dict.fromkeys(("quota", "quota_after", "eta"), "e3cs")
    for name, by in owners.items():
        if chosen.by != by and getattr(chosen, name) != getattr(usual, name):
            raise ConfigError(
                f"selection.{name} = {getattr(chosen, name)} has no effect with {where}; leave it "
                f"away, or set selection.by = {by!r}"
            )
    if chosen.quota_after and not chosen.quota:
        raise ConfigError(
            f"selection.quota_after = {chosen.quota_after:g} has no effect with "
            f"selection.quota = 0; leave it away, or set a quota"
        )
    if chosen.by == "uniform":
        return
    m = job.cohort_size
    if not getattr(job.algorithm, "samples_cohorts", False):
        raise ConfigError(
            f"{where}: {job.algorithm.name} says itself who works when; set "
            f"selection.by = 'uniform'"
        )
    if m == job.clients:
        raise ConfigError(
            f"{where} has no effect where all {m} clients are in every cohort; set a smaller "
            f"participation, or selection.by = 'uniform'"
        )
    if getattr(job.algorithm, "sampling", "uniform") != "uniform":
        raise ConfigError(
            f"{where}: algorithm.sampling = {job.algorithm.sampling!r} says it too; leave one of "
            f"them away"
        )
    if chosen.candidates is not None and not m <= chosen.candidates <= job.clients:
        raise ConfigError(
            f"selection.candidates = {chosen.candidates}: a cohort of {m} is chosen from them; "
            f"give a number from {m} to {job.clients}, the number of clients"
        )


def check_edges(job: Job, stored: bool = False) -> None:
    """Raise ConfigError for edge servers that cannot work.

    That is the case if fields are missing, contradict each other or have no effect, or if the
    method cannot be used with edge servers.
    """
    edges, usual = job.edges, type(job.edges)()
    if not edges.number:
        for name in type(edges).model_fields:
            value = getattr(edges, name)
            if value != getattr(usual, name) and not stored:
                raise ConfigError(
                    f"edges.{name} = {format_value(to_jsonable_python(value))} has no effect "
                    f"without edge servers; set edges.number, or leave it away"
                )
        return
    if edges.number > job.clients:
        raise ConfigError(
            f"edges.number = {edges.number}: there are {job.clients} clients, and an edge has at "
            f"least one; set edges.number to at most {job.clients}"
        )
    if edges.clients and len(edges.clients) != job.clients:
        raise ConfigError(
            f"edges.clients names the edge of {len(edges.clients)} clients, the job has "
            f"{job.clients}; name one for each"
        )
    can = getattr(job.algorithm, "edges", "")
    if can == "models" or (can == "sums" and edges.rounds == 1):
        return
    if can == "sums":
        raise ConfigError(
            f"edges.rounds = {edges.rounds}: the server of {job.algorithm.name} makes a step of "
            f"its own from what all clients send, which an edge cannot do alone; set "
            f"edges.rounds = 1"
        )
    raise ConfigError(
        f"edges.number = {edges.number}: {job.algorithm.name} does not average one model of all "
        f"clients, so there is nothing that edge servers could add up; leave [edges] away, or take "
        f"a method that does, as fedavg"
    )


def check_method(job: Job) -> None:
    """Raise ConfigError if the method cannot run this job, with the reason and other methods."""
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


def refuse_idle_fields(job: Job) -> None:
    """Raise ConfigError for fields that are set, though they change nothing in this job."""
    idle = {name: why for name, why in job.algorithm.refuses(job).items() if name != "job"}
    fields, usual = flat(job.plain()), defaults(job)
    kept = job.sources()  # values of a preset or a method, which the user has not set
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
    """Return the defaults of the fields of [local] and of the method, by name."""
    parts = {"local": job.local, "algorithm": job.algorithm}
    return {
        f"{part}.{name}": to_jsonable_python(field.get_default(call_default_factory=True))
        for part, values in parts.items()
        for name, field in type(values).model_fields.items()
        if not field.is_required()
    } | {
        f"local.{name}": to_jsonable_python(value)
        for name, value in job.algorithm.local_defaults.items()
    }


def format_value(value: Any) -> str:
    """Return a value as it is written in a job file."""
    return "none" if value is None else json.dumps(value)


def refusal(algorithm: Method, job: Job) -> str | None:
    """Return why the method cannot run the job, as "needs ...; what to set"; None if it can."""
    tests = (unfit_models, unequal_heads, missing_needs, untrained_parts)
    found = next(filter(None, (test(algorithm, job) for test in tests)), None)
    return found or algorithm.refuses(job).get("job")


def unfit_models(algorithm: Method, job: Job) -> str | None:
    """Return why the architectures do not suit a method that averages whole models, or None.

    Such a method needs one architecture on all clients, some of them in several widths or depths.
    """
    kinds, widths = sorted(set(job.models.mix)), sorted(set(job.models.widths))
    if algorithm.accepts not in ("one architecture", "widths", "depths"):
        return None
    if job.modalities.encoders == "own":
        return (
            "needs one architecture, but clients have encoders of their own modalities alone; "
            "set modalities.encoders = 'all'"
        )
    if algorithm.accepts == "depths":
        families = {find_model(kind).family or kind for kind in kinds if ":" not in kind}
        if len(families) > 1:
            return (
                f"needs one architecture, or one family in several depths, but models.mix has "
                f"{', '.join(kinds)}; set models.mix = ['resmlp-2', 'resmlp-4', 'resmlp-8']"
            )
    elif len(kinds) > 1:
        return (
            f"needs one architecture, but models.mix has {', '.join(kinds)}; "
            f"set models.mix = ['{kinds[0]}']"
        )
    if set(widths) != {1} and algorithm.accepts == "depths":
        return (
            "needs models of one width, but models.widths has sub-models; set models.widths = [1]"
        )
    if len(widths) > 1 and algorithm.accepts != "widths":
        return (
            f"needs models of one width, but models.widths has {', '.join(map(str, widths))}; "
            f"set one width"
        )
    return None


def unequal_heads(algorithm: Method, job: Job) -> str | None:
    """Return why the representations do not suit a method with a common head, or None.

    Clients that share a head need representations of one width. That of logistic regression is its
    input.
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


def untrained_parts(algorithm: Method, job: Job) -> str | None:
    """Return why a method cannot train only a part of a model, or None."""
    how = job.models
    if not (how.train or how.lora):
        return None
    if algorithm.trains_parts and set(algorithm.needs) <= {"public"} and set(how.widths) == {1.0}:
        return None
    given = f"models.train = {list(how.train)}" if how.train else f"models.lora = {how.lora}"
    return f"needs whole models of one width, but {given}; leave models.train and models.lora away"


def missing_needs(algorithm: Method, job: Job) -> str | None:
    """Return what the method needs but the job lacks, or None."""
    have = {"public": job.data.public, "proxy": job.models.proxy, "server": job.models.server}
    ask = {
        "public": "needs public data; set data.public to the number of public examples",
        "proxy": "needs a model that all clients train besides their own; set models.proxy",
        "server": "needs a model on the server; set models.server",
    }
    return next((ask[need] for need in algorithm.needs if not have[need]), None)
