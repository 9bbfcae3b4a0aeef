"""Checks of the fields of a job against each other, before any data is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import to_jsonable_python

from hpcfed.config.architectures import find as find_model
from hpcfed.config.attack import check_attack
from hpcfed.config.compression import check_compression
from hpcfed.config.datasets import DATASETS
from hpcfed.config.defence import check_defence
from hpcfed.config.effects import format_value, refuse_idle_fields
from hpcfed.config.methods import ALGORITHMS
from hpcfed.config.privacy import refusals
from hpcfed.config.secure import check_secure
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.wording import count_noun
from hpcfed.tasks import METRICS, custom

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
    """Check the fields of a job against one another.

    Raises ConfigError for names that do not exist, for a job that the method cannot run, and for
    fields without effect.
    stored: the job is that of an existing run, which may continue unchanged.
    """
    check_fields(job)
    check_method(job)
    check_selection(job)
    check_edges(job)
    check_compression(job)
    check_privacy(job)
    check_secure(job)
    check_attack(job)
    check_defence(job)
    if not stored:
        refuse_idle_fields(job)
        check_edge_rounds(job)


def check_fields(job: Job) -> None:
    """Check the fields of a job that mean the same with all methods; see `check`."""
    for name in (*job.models.mix, *filter(None, (job.models.proxy, job.models.server))):
        find_model(name)
    for name in filter(None, (job.data.name, job.data.public_source, job.attack.source)):
        check_data_name(name, job.data.root)
    check_columns(job)
    check_metrics(job.evaluate.metrics)
    check_listed(job)
    check_modalities(job)
    check_weights(job)
    population(job)
    check_validation(job)
    check_unseen(job)
    check_adapt(job)


def check_data_name(name: str, root: Path) -> None:
    """Raise ConfigError for a name of data that cannot be found.

    The name may be that of a known data set, a file, an existing folder, or a data set of Hugging
    Face.
    """
    users_data = (
        name.startswith("hf:") or Path(name).suffix or os.path.isdir(os.path.expanduser(name))
    )
    if not users_data and name not in DATASETS and not os.path.isdir(root / name):
        raise ConfigError(
            unknown("data set", name, DATASETS, "hpcfed list datasets")
            + "\n  your own: a .csv, .parquet, .npz or .h5 file, a folder of images, or hf:NAME"
        )


def check_columns(job: Job) -> None:
    """Raise ConfigError if columns or other fields of own data are set for a known data set."""
    if {job.data.name, job.data.public_source} - set(DATASETS) - {""}:
        return
    fields = ("test_file", "held_out", "channels", "image_size")
    settings: dict[str, tuple[Any, Any]] = {
        f"data.{name}": (getattr(job.data, name), type(job.data)) for name in fields
    }
    names = type(job.columns).model_fields
    settings |= {
        f"columns.{name}": (getattr(job.columns, name), type(job.columns)) for name in names
    }
    for name, (value, part) in settings.items():
        usual = part.model_fields[name.partition(".")[2]].get_default()
        if value != usual:
            text = format_value(to_jsonable_python(value))
            raise ConfigError(
                f"{name} = {text} has no effect: {job.data.name} is a data set of hpcfed, "
                f"not a file of your own; remove it, or set data.name"
            )


def check_metrics(names: Sequence[str]) -> None:
    """Raise ConfigError for a metric that does not exist, or is named twice.

    Whether a metric fits the data is checked when the data are loaded (`Task.choose`).
    """
    for i, name in enumerate(names):
        if ":" in name:
            custom.check(name)
        elif name not in METRICS:
            raise ConfigError(
                f"evaluate.metrics: {unknown('metric', name, METRICS, 'hpcfed list metrics')}"
            )
        if name in names[:i]:
            raise ConfigError(f"evaluate.metrics names {name} twice; remove one of them")


def check_weights(job: Job) -> None:
    """Raise ConfigError if models.weights does not fit the architectures, or for sub-models.

    Both need models with the layers of normalisation that their files or full models have.
    """
    weights, kinds = job.models.weights, tuple(dict.fromkeys(job.models.mix))
    if job.models.norm == "group" and (weights or set(job.models.widths) != {1.0}):
        what = "models.weights" if weights else "models.widths: sub-models"
        raise ConfigError(
            f"{what} need the normalisation that the models have; set models.norm = 'batch'"
        )
    if weights and len(weights) not in (1, len(kinds)):
        raise ConfigError(
            f"models.weights has {len(weights)} entries, but models.mix {len(kinds)} architectures "
            f"({', '.join(kinds)}); give one for each, in this order, or one for all"
        )
    if weights and set(job.models.widths) != {1.0}:
        raise ConfigError(
            "models.weights: those of a whole model do not fit its sub-models; set "
            "models.widths = [1]"
        )


def check_validation(job: Job) -> None:
    """Raise ConfigError if validation examples are wanted, but clients make their examples."""
    if job.evaluate.validation and job.data.name == "synthetic":
        raise ConfigError(
            f"evaluate.validation = {job.evaluate.validation:g}: the clients of synthetic make "
            f"their own examples and hold none out; set evaluate.validation = 0"
        )


def check_unseen(job: Job) -> None:
    """Raise ConfigError for an unseen domain that the job's other fields rule out."""
    angles, unseen = job.data.shift.degrees, job.evaluate.unseen
    if not unseen:
        return
    if angles:
        try:
            left = [angle for angle in angles if angle != float(unseen)]
        except ValueError:
            left = list(angles)
        if len(left) == len(angles) or not left:
            raise ConfigError(
                f"evaluate.unseen = {unseen!r} is to be one of several angles in "
                f"data.shift.degrees = {format_value(angles)}; name one of them"
            )
    elif job.data.partition_file is not None:
        raise ConfigError(
            f"evaluate.unseen = {unseen!r}: data.partition_file says which examples clients have; "
            f"remove one of them"
        )


def check_adapt(job: Job) -> None:
    """Raise ConfigError for an adaptation that lacks what it needs."""
    if job.adapt.how == "ewc" and not job.data.public:
        raise ConfigError(
            "adapt.how = 'ewc' needs public data, of which the Fisher information is; set "
            "data.public to the number of public examples"
        )


def check_listed(job: Job) -> None:
    n = len(job.models.mix)
    if job.models.assign == "listed" and n != job.clients:
        raise ConfigError(
            f"models.assign = 'listed' needs one architecture per client: {n} for {job.clients}"
        )


def check_modalities(job: Job) -> None:
    """Raise ConfigError for fields of [modalities] that contradict each other."""
    m = job.modalities
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


def population(job: Job) -> None:
    """Raise ConfigError for fields that do not apply to clients that make their own examples."""
    data = job.data
    if data.public_source == "synthetic":
        raise ConfigError(
            "data.public_source: the examples of synthetic belong to its clients; name another "
            "data set"
        )
    if data.public_source and data.public_source == data.name:
        raise ConfigError(
            f"data.public_source = {data.name!r} is the clients' own data set, so that public "
            f"examples would be theirs; leave it empty, and clients get the others"
        )
    if data.name != "synthetic":
        return
    if data.partition != "natural":
        raise ConfigError(
            f"data.partition = {data.partition!r}: the clients of synthetic make their own "
            f"examples; "
            "set data.partition = 'natural'"
        )
    if job.local.class_weights == "all":
        raise ConfigError(
            "local.class_weights = 'all': the clients of synthetic make their own examples, which "
            "nobody counts; set local.class_weights = 'client'"
        )
    if data.public and not data.public_source:
        raise ConfigError(
            f"data.public = {data.public}: all examples of synthetic belong to clients; "
            "give data.public_source = FILE.npz with inputs of shape [1, 1, 60]"
        )


def check_selection(job: Job) -> None:
    """Raise ConfigError for a selection of cohorts that is impossible or has no effect."""
    chosen = job.selection
    where = f"selection.by = {chosen.by!r}"
    if chosen.by == "uniform":
        return
    m = job.cohort_size
    if not job.algorithm.samples_cohorts:
        raise ConfigError(
            f"{where}: {job.algorithm.name} schedules its clients itself; set "
            f"selection.by = 'uniform'"
        )
    if m == job.clients and chosen.by != "cyclic":
        raise ConfigError(
            f"{where} has no effect if all {m} clients are in every cohort; set a smaller "
            f"participation, or selection.by = 'uniform'"
        )
    if getattr(job.algorithm, "sampling", "uniform") != "uniform":
        raise ConfigError(
            f"{where}: algorithm.sampling = {job.algorithm.sampling!r} sets it too; remove one of "
            f"them"
        )
    if chosen.candidates is not None and not m <= chosen.candidates <= job.clients:
        raise ConfigError(
            f"selection.candidates = {chosen.candidates}: a cohort of {m} is chosen from them; "
            f"give a number from {m} to {job.clients}, the number of clients"
        )


def check_privacy(job: Job) -> None:
    """Raise ConfigError for a job of which no account of privacy can be kept."""
    for text in refusals(job):
        raise ConfigError(f"privacy.by = {job.privacy.by!r}: {text}")


def check_edges(job: Job) -> None:
    """Raise ConfigError for edge servers that cannot work.

    That is the case if fields contradict each other, or if the method cannot be used with edge
    servers.
    """
    edges = job.edges
    if not edges.number:
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
            f"edges.rounds = {edges.rounds}: the server of {job.algorithm.name} computes its "
            f"own step from all uploads, which an edge cannot do; set edges.rounds = 1"
        )
    raise ConfigError(
        f"edges.number = {edges.number}: {job.algorithm.name} does not average one model of all "
        f"clients, so there is nothing that edge servers could add up; remove [edges], or take "
        f"a method that does, as fedavg"
    )


def check_edge_rounds(job: Job) -> None:
    """Raise ConfigError if the job ends before the server aggregates the edges for the first time.

    A run that exists may continue, for more rounds.
    """
    if job.edges.number and job.edges.rounds > job.rounds:
        raise ConfigError(
            f"edges.rounds = {job.edges.rounds}: the job has {count_noun(job.rounds, 'round')}, so "
            f"that the server would never aggregate the edges, and its model would stay at its "
            f"initial weights; set edges.rounds to at most {job.rounds}, or more rounds"
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


def refusal(algorithm: Method, job: Job) -> str | None:
    """Return why the method cannot run the job, as "needs ...; what to set"; None if it can."""
    tests = (unfit_models, unequal_heads, missing_needs, untrained_parts)
    reason = next(filter(None, (test(algorithm, job) for test in tests)), None)
    return reason or algorithm.refuses(job).get("job")


def unfit_models(algorithm: Method, job: Job) -> str | None:
    """Return why the architectures do not suit a method that averages whole models, or None.

    Such a method needs one architecture on all clients, some of them in several widths or depths.
    """
    kinds, widths = sorted(set(job.models.mix)), sorted(set(job.models.widths))
    if algorithm.accepts not in ("one architecture", "widths", "depths"):
        return None
    if job.modalities.encoders == "own":
        return (
            "needs one architecture, but clients have encoders only of their own modalities; "
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
    setting = f"models.train = {list(how.train)}" if how.train else f"models.lora = {how.lora}"
    return f"needs whole models of one width, but {setting}; remove models.train and models.lora"


def missing_needs(algorithm: Method, job: Job) -> str | None:
    """Return what the method needs but the job lacks, or None."""
    have = {"public": job.data.public, "proxy": job.models.proxy, "server": job.models.server}
    ask = {
        "public": "needs public data; set data.public to the number of public examples",
        "proxy": "needs a model that all clients train besides their own; set models.proxy",
        "server": "needs a model on the server; set models.server",
    }
    return next((ask[need] for need in algorithm.needs if not have[need]), None)
