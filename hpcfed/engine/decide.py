"""Set-up, first part: rank 0 checks a job and decides all that follows from it, for all ranks.

The first rank of each node reads the data, into memory that the ranks of the node share. All else
is decided on rank 0 alone, and sent once: floating-point results may depend on a rank's processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.clients import edges, profiles, traces
from hpcfed.clients.profiles import Profiles
from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core import rng
from hpcfed.core.errors import DataError
from hpcfed.core.shapes import describe_shape
from hpcfed.data import datasets, edge_cases, modalities
from hpcfed.data.dataset import DataSet, from_arrays, to_arrays
from hpcfed.data.modalities import Held
from hpcfed.data.partition import Partition, split, unseen_tests
from hpcfed.data.sampling import hold_out
from hpcfed.data.synthetic import Synthetic
from hpcfed.engine import (
    adapted,
    changed_code,
    changed_data,
    checks,
    folder,
    job_warnings,
    on_round,
)
from hpcfed.engine.method_trial import rehearse
from hpcfed.engine.world import World, of_clients, population
from hpcfed.machine import speeds
from hpcfed.models.assign import assign
from hpcfed.models.cost import cost, work
from hpcfed.report.sinks import logs

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job

Rows = tuple[np.ndarray, ...]  # rows of a split, client by client


def world(job: Job, comm: Comm) -> World:
    """Return all that follows from a job, the same on all ranks; collective.

    Raises the same HpcfedError on all ranks, rank 0's, for a job that cannot be run.
    """

    def plan() -> tuple[list[DataSet], dict[str, Any] | None]:
        """Read on the first rank of each node, decide on rank 0."""
        sets = read(job) if comm.local_rank == 0 else []
        if comm.rank:
            return sets, None
        speeds.of_ranks(job.run.speeds, comm.node_of, comm.lost)
        return sets, decide(job, *sets).to_tree()

    sets, tree = on_all_ranks(comm, plan)
    # only the ranks that have read the data call the function; each set is freed once it is shared
    shared = [comm.share(lambda: to_arrays(sets.pop(0))) for _ in set_names(job)]
    sent = comm.bcast(tree)
    del tree  # rank 0 holds the values of many clients once
    return World.from_tree(job, sent, *map(from_arrays, shared))


def set_names(job: Job) -> list[str]:
    """Return the names of the job's data sets: the clients', and that of the public examples."""
    return [name for name in (job.data.name, job.data.public_source) if name]


def read(job: Job) -> list[DataSet]:
    """Read the job's data sets, with the modalities that it uses."""
    data = datasets.load_clients(job)
    return [data, *([public_data(job, data)] if job.data.public_source else [])]


def public_data(job: Job, clients: DataSet) -> DataSet:
    """Read the data set of the public examples, with the modalities that the job uses.

    clients: the clients' data, whose classes and units its labels get.
    """
    data = datasets.load_for(job, job.data.public_source)
    if data.modalities:
        data = modalities.select(data, job.modalities)
    y = clients.task.adopt(data.train.y, clients.classes, data.task, data.classes)
    return replace(data, train=replace(data.train, y=y))


def decide(job: Job, data: DataSet, other: DataSet | None = None) -> World:
    """Check the job, and return all that follows from it.

    other: the data set of the public examples, if it is another one.
    """
    logs.check(job.log)
    run, digests = folder.of(job), changed_data.digests(data, other)
    header = folder.results_header(run) if job.resume else {}
    changes = changed_data.check(job, run, header, digests) if header else []
    if job.on_round:
        on_round.load(job.on_round)
    adapted.check(job)
    checks.check_views(job, data)
    checks.check_classes(job, data)
    metrics = checks.metrics(job, data)
    partition, held_out = share_out(job, data)
    public = public_rows(job, data, other, partition)
    client_modalities = modalities_of(job, data, partition)
    original, data = data, of_clients(job, data, partition)

    shape, classes, d = data.shape, len(data.classes), job.models.d
    checks.check_models([*job.models.mix, *filter(None, [job.models.server])], data)
    architectures = assign(
        job, shape, classes, data.modalities, client_modalities.clients if client_modalities else ()
    )
    kinds = sorted(set(architectures))
    checks.check_models(kinds, data)
    checks.check_trained(job, kinds, shape, classes)
    checks.check_heads(job, kinds, shape, classes)
    checks.check_width(job, kinds, shape, classes)
    checksums, heads = checks.check_finetuning(job, kinds, data)

    costs = {kind: cost(kind, shape, classes, d, data.vocabulary) for kind in kinds}
    adds = {kind: work(kind, shape, classes, d, data.vocabulary).multiply_adds for kind in kinds}
    devices = draw_profiles(job, 3.0 * np.maximum(1, per_client(adds, architectures)))
    edge_map = None
    if job.edges.number:
        edge_map = edges.make_map(job.edges, edges.assign(job.edges, job.clients))
    files = changed_data.file_digests(job, devices, edge_map)
    if header:
        changes += changed_data.check_files(job, run, header, files)
        changes += changed_code.check(job, run, header)
    decided = World(
        data,
        partition,
        (other or original).train,
        public,
        architectures,
        per_client(costs, architectures) * partition.sizes,
        devices,
        metrics,
        run,
        client_modalities,
        held_out,
        edge_map,
        checksums,
        folder.run_id(run) if job.resume else "",
        shift=job.shift,
        seed=job.seed,
        unseen=unseen_rows(job, data),
        edge_cases=edge_cases.read(job, data),
        data_digests=digests,
        file_digests=files,
    )
    hints = rehearse(job, decided)
    return replace(
        decided, warnings=(*job_warnings.warnings(job, decided), *hints, *heads, *changes)
    )


def per_client(values: Mapping[str, float], architectures: Sequence[str]) -> np.ndarray:
    """Return the value of each client's architecture, [K], float64."""
    return np.fromiter((values[kind] for kind in architectures), float, len(architectures))


def share_out(job: Job, data: DataSet) -> tuple[Partition | Synthetic, Rows]:
    """Return the partition, and the rows that clients hold out of it for validation.

    Rows that are held out are not part of the partition any more. Raises DataError if no client has
    enough examples for that.
    """
    if data.name == "synthetic":
        return population(job), ()
    settings = job.data.model_copy(update={"public": 0}) if job.data.public_source else job.data
    partition = split(data, settings, job.clients, job.seed, job.unseen_client)
    share, labels = job.evaluate.validation, data.strata
    if not share:
        return partition, ()
    parts = [
        hold_out(labels, rows, share, rng.stream(job.seed, "validation", k))
        for k, rows in enumerate(partition.train)
    ]
    if not any(len(validation) for _, validation in parts):
        raise DataError(
            f"evaluate.validation = {share:g}: no client has enough examples to hold one out; take "
            f"a larger share or fewer clients"
        )
    train, validation = zip(*parts, strict=True)
    return Partition(train, partition.test, partition.public), validation


def unseen_rows(job: Job, data: DataSet) -> np.ndarray | None:
    """Return the rows of the test split that are of the unseen domain; None if there is none."""
    if not job.evaluate.unseen:
        return None
    return unseen_tests(data, job.data, job.unseen_client, job.seed)


def public_rows(
    job: Job, data: DataSet, other: DataSet | None, partition: Partition | Synthetic
) -> np.ndarray:
    """Return the rows of the public examples, of the data or of the other data set.

    Raises DataError if they do not fit the clients' data.
    """
    if other is None:
        return partition.public
    shape, theirs, n = data.shape, other.shape, len(other.train.y)
    if data.text or other.text:
        raise DataError(
            f"data.public_source: texts have the vocabulary of their own data set, so those of "
            f"{other.name} mean "
            f"nothing to models for {data.name}; leave data.public_source empty, and public data "
            f"are taken from it"
        )
    if shape != theirs:
        raise DataError(
            f"data.public_source: {other.name} has inputs of shape {describe_shape(theirs)}, "
            f"{data.name} of {describe_shape(shape)}; "
            "take public data of the same shape"
        )
    ours, others = (
        [(column.name, column.categories) for column in one.encoder.columns]
        for one in (data, other)
    )
    if ours != others:
        raise DataError(
            f"data.public_source: {other.name} has columns of other names or categories than "
            f"{data.name}, so its examples mean nothing to the models; take public data with the "
            f"same columns and values"
        )
    if job.data.public > n:
        raise DataError(
            f"data.public is {job.data.public}, but {other.name} has {n} examples; take at most {n}"
        )
    g = rng.stream(job.seed, "public")
    return np.sort(g.choice(n, job.data.public, replace=False))


def modalities_of(job: Job, data: DataSet, partition: Partition | Synthetic) -> Held | None:
    """Return the modalities of each client; None if inputs have one modality.

    Raises ConfigError.
    """
    if not data.modalities or isinstance(partition, Synthetic):
        return None
    return modalities.assign(
        data.modalities,
        job.modalities,
        job.clients,
        job.seed,
        lambda k: modalities.present(data.train, partition.train[k]),
    )


def draw_profiles(job: Job, example: np.ndarray) -> Profiles:
    """Draw or read the clients' profiles.

    example: [K], multiply-adds of one example, forward and backward.
    """
    trace = traces.read(job.system.trace, job.clients) if job.system.trace else None
    fields = profiles.draw(job.system, job.clients, job.seed, example)
    if trace:  # which changes a client's speed
        fields["speed"] = fields["speed"].copy()
    return Profiles(**fields, example=example, trace=trace)
