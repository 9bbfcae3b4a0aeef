"""Set-up of a federation from a job: data, partition, architectures, and clients on their ranks.

Each node loads the data once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed import models
from hpcfed.clients import edges, profiles, traces
from hpcfed.clients.client import Client, Clients, PopulationClient, Shard
from hpcfed.clients.edges import EdgeMap
from hpcfed.clients.profiles import Profiles
from hpcfed.clients.store import ClientStore
from hpcfed.clients.traces import Trace
from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.config.architectures import find, plain
from hpcfed.config.metrics import choose
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.shapes import describe_shape
from hpcfed.data import datasets, modalities
from hpcfed.data.dataset import DataSet, Split, from_arrays, to_arrays
from hpcfed.data.modalities import Held, mislabel
from hpcfed.data.partition import Partition, split
from hpcfed.data.sampling import hold_out
from hpcfed.data.synthetic import Synthetic
from hpcfed.engine import folder
from hpcfed.federation.federation import Federation, SharedData
from hpcfed.federation.world import World
from hpcfed.machine import speeds
from hpcfed.machine.assignment import place
from hpcfed.machine.device_choice import choose_device, resident_bytes
from hpcfed.models.assign import assign, without_modalities
from hpcfed.models.cost import cost, work
from hpcfed.models.finetuning import Finetuning
from hpcfed.models.flat import Layout
from hpcfed.models.widths import parse
from hpcfed.storage import names

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


Rows = tuple[np.ndarray, ...]  # rows of a split, client by client


def world(job: Job, comm: Comm) -> World:
    """Load and partition the data, and assign architectures; collective.

    Raises ConfigError or DataError on all ranks alike.
    """
    data = load(job, comm, job.data.name)
    other = load(job, comm, job.data.public_source) if job.data.public_source else None
    on_all_ranks(comm, lambda: views(job, data))
    on_all_ranks(comm, lambda: measured(job, data))
    partition, validation = share_out(job, comm, data)
    data = replace(data, test=partition.common()) if isinstance(partition, Synthetic) else data
    source, rows = on_all_ranks(comm, lambda: public(job, data, other, partition))
    held = on_all_ranks(comm, lambda: modalities_of(job, data, partition))
    if job.data.wrong_labels:
        on_all_ranks(comm, lambda: has_labels(data))
        assert isinstance(partition, Partition)  # a population makes its own examples
        wrong = mislabel(
            data.train.y, partition, job.data.wrong_labels, len(data.classes), job.seed
        )
        data = replace(data, train=replace(data.train, y=wrong))
    shape, classes = data.shape, len(data.classes)
    on_all_ranks(comm, lambda: check_models([*job.models.mix, *servers(job)], data))
    own = held.own if held else ()
    architectures = on_all_ranks(comm, lambda: assign(job, shape, classes, data.modalities, own))
    kinds = sorted(set(architectures))
    on_all_ranks(comm, lambda: check_models(kinds, data))
    on_all_ranks(comm, lambda: check_heads(job, kinds, shape, classes))
    on_all_ranks(comm, lambda: one_width(job, kinds, shape, classes))
    on_all_ranks(comm, lambda: check_finetuning(job, kinds, data))
    each = on_all_ranks(
        comm,
        lambda: {name: cost(name, shape, classes, job.models.d, data.vocabulary) for name in kinds},
    )
    costs = np.array([each[a] for a in architectures]) * partition.sizes
    adds = {
        name: work(name, shape, classes, job.models.d, data.vocabulary).multiply_adds
        for name in kinds
    }
    known = draw_profiles(job, comm, np.array([3.0 * max(1, adds[a]) for a in architectures]))
    between = edge_servers(job, comm)
    return World(
        data, partition, source, rows, architectures, costs, known, held, validation, between
    )


def check_models(kinds: list[str], data: DataSet) -> None:
    """Raise ConfigError if a model does not take the data's inputs."""
    for kind in kinds:
        models.check(kind, data.shape, data.vocabulary)


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


def load(job: Job, comm: Comm, name: str) -> DataSet:
    """Load a data set on one rank of each node, into memory that all ranks of the node share."""
    first = comm.local_rank == 0

    def read() -> DataSet:
        data = datasets.load_for(job, name)
        if name == job.data.name:
            modalities.check_idle(data, job.modalities)
        return modalities.select(data, job.modalities) if data.modalities else data

    loaded = on_all_ranks(comm, lambda: read() if first else None)
    # called by the ranks that have read it
    return from_arrays(comm.share(lambda: to_arrays(loaded)))  # type: ignore[arg-type]


def check_heads(job: Job, kinds: list[str], shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError if a method reads the head of models and a model has none."""
    method, adapts = job.algorithm, job.adapt.how == "head"
    reads = method.reads_head or method.accepts in ("a common head", "widths")
    if not reads and not adapts:
        return
    for kind in kinds:
        for part in kind.split("+"):
            if reason := models.missing_head(part, shape, classes, job.models.d):
                who = method.name if reads else "adapt.how = 'head'"
                raise ConfigError(
                    f"{who} needs the head of each model, its last linear layer, or what that "
                    f"layer reads: {reason}; let it end in nn.Linear(width, num_classes), or take "
                    f"a method that reads neither, such as fedavg, fedprox or local"
                )


def one_width(job: Job, kinds: list[str], shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError if clients share a head but users' own models give it different widths."""
    if job.algorithm.accepts != "a common head" or not any(":" in kind for kind in kinds):
        return
    d = job.models.d
    bases = sorted({parse(kind).base for kind in kinds})
    widths = {base: models.represents(base, shape, classes, d) for base in bases}
    if len(set(widths.values())) > 1:
        described = ", ".join(f"{base} {width}" for base, width in widths.items())
        user_widths = {width for base, width in widths.items() if find(plain(base)).own}
        advice = f"let the last hidden layers of your own models have {d} units (models.d)"
        if len(user_widths) == 1:
            advice = f"set models.d = {min(user_widths)}, or {advice}"
        raise ConfigError(
            f"{job.algorithm.name} needs a common head, but the last layers of the models read "
            f"different numbers of values: {described}; {advice}, or take a method for any "
            f"models, such as fd (hpcfed list algorithms)"
        )


def check_finetuning(job: Job, kinds: list[str], data: DataSet) -> None:
    """Raise ConfigError if a file of weights does not fit, or if nothing would be trained."""
    finetuning, how = Finetuning.of(job), job.models
    if not finetuning.some and not finetuning.weights:
        return
    shape = data.train.x.shape[1:]
    for kind in kinds:
        with rng.scoped(0, "work"):
            model = models.build(
                kind, shape, len(data.classes), how.d, how.relu_head, data.vocabulary, data.classes
            )
        finetuning.start(model, kind)
        if finetuning.some:
            method, before = job.algorithm, Layout.of(model).names
            finetuning.check(model, kind)
            finetuning.restrict(model, None)
            if any(map(method.shared, before)) and not any(
                map(method.shared, Layout.of(model).names)
            ):
                raise ConfigError(
                    f"models.train leaves nothing that {method.name} exchanges of {kind}; name "
                    f"more, or leave models.train and models.lora away"
                )


def servers(job: Job) -> list[str]:
    """Return the architecture of the server's own model as a list; [] if the job has none."""
    return [job.models.server] if job.models.server else []


def measured(job: Job, data: DataSet) -> tuple[str, ...]:
    """Return the names of the run's metrics.

    Raises ConfigError for a metric that the data do not have, and for a method that cannot be
    trained on them.
    """
    method = job.algorithm
    if data.task == "survival" and (not method.survival or method.views > 1):
        raise ConfigError(
            f"{method.name} needs classes, but {data.name} has survival times; use fedavg, "
            "fedprox, scaffold, local or central, or another data set"
        )
    return choose(job.evaluate.metrics, data.task, len(data.classes), data.name)


def has_labels(data: DataSet) -> None:
    """Raise ConfigError if the data have no class labels, for data.wrong_labels."""
    if data.task == "survival":
        raise ConfigError(
            f"data.wrong_labels: {data.name} has survival times, not classes; leave it away"
        )


def views(job: Job, data: DataSet) -> None:
    """Raise ConfigError if the job would augment inputs other than images."""
    method, policy = job.algorithm, job.local.augment
    images = not data.vocabulary and not data.modalities and len(data.shape) == 3
    if images or (method.views == 1 and policy in ("auto", "none")):
        return
    holds = "several modalities" if data.modalities else "texts" if data.vocabulary else "numbers"
    if method.views > 1:
        off = "set algorithm.contrastive = false, or " if hasattr(method, "contrastive") else ""
        raise ConfigError(
            f"{method.name} trains on {method.views} augmented views of a batch, but {data.name} "
            f"holds {holds}, which are not augmented; {off}take another method, such as lgfedavg "
            f"(algorithm.name), which has no views"
        )
    raise ConfigError(
        f"local.augment = {policy!r}, but {data.name} holds {holds}; set local.augment = 'none'"
    )


def public(
    job: Job, data: DataSet, other: DataSet | None, partition: Partition | Synthetic
) -> tuple[Split, np.ndarray]:
    """Return the split that has the public examples, and their rows.

    Raises ConfigError or DataError if they do not fit the clients' data.
    """
    if other is None:
        return data.train, partition.public
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
    if job.data.public > n:
        raise DataError(
            f"data.public is {job.data.public}, but {other.name} has {n} examples; take at most {n}"
        )
    g = rng.stream(job.seed, "public")
    return other.train, np.sort(g.choice(n, job.data.public, replace=False))


def draw_profiles(job: Job, comm: Comm, example: np.ndarray) -> Profiles:
    """Draw or read the clients' profiles on rank 0 for all ranks; collective.

    example: [K], multiply-adds of one example, forward and backward.
    """

    def draw_or_read() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        path = job.system.trace
        trace = traces.read(path, job.clients) if path else None
        drawn = profiles.draw(job.system, job.clients, job.seed, example)
        return drawn, dict(vars(trace)) if trace else {}

    drawn, lines = comm.bcast(
        on_all_ranks(comm, lambda: draw_or_read() if comm.rank == 0 else None)
    )
    given: dict[str, Any] = {
        name: compact(values) for name, values in (drawn | {"example": example}).items()
    }
    if not lines:
        return Profiles(**given)
    given["speed"] = np.array(given["speed"])  # a copy of this rank's own, because it changes
    return Profiles(**given, trace=Trace(**lines))


def edge_servers(job: Job, comm: Comm) -> EdgeMap | None:
    """Read the edge server of each client on rank 0 for all ranks; None if the job has no edges."""
    if not job.edges.number:
        return None
    first = comm.rank == 0
    of = on_all_ranks(comm, lambda: edges.assign(job.edges, job.clients) if first else None)
    return edges.make_map(job.edges, comm.bcast(of))


def compact(values: np.ndarray) -> np.ndarray:
    """Return the same values; if all are equal, as a view that takes no memory."""
    return values if np.ptp(values) else np.broadcast_to(values[0], values.shape)


def share_out(job: Job, comm: Comm, data: DataSet) -> tuple[Partition | Synthetic, Rows]:
    """Return the partition, and the rows that clients hold out of it for validation.

    Rows that are held out are no part of the partition any more. Rank 0 draws for all ranks,
    because floating-point results may depend on a rank's processor.
    """
    if data.name == "synthetic":
        made = Synthetic(
            job.seed, job.clients, *job.data.synthetic, job.data.examples, job.data.test_share
        )
        return made, ()
    settings = job.data.model_copy(update={"public": 0}) if job.data.public_source else job.data
    drawn = on_all_ranks(
        comm,
        lambda: (
            divide(job, data, split(data, settings, job.clients, job.seed))
            if comm.rank == 0
            else None
        ),
    )
    train, test, apart, held = comm.bcast(drawn)
    return Partition(train, test, apart), held


def divide(job: Job, data: DataSet, drawn: Partition) -> tuple[Rows, Rows, np.ndarray, Rows]:
    """Return the partition's training, test and public rows, and the validation rows.

    The validation rows are held out of the training rows. Raises DataError if no client has enough
    examples for that.
    """
    share, labels = job.evaluate.validation, data.train.strata
    if not share:
        return drawn.train, drawn.test, drawn.public, ()
    parts = [
        hold_out(labels, part, share, rng.stream(job.seed, "validation", k))
        for k, part in enumerate(drawn.train)
    ]
    if not any(len(held) for _, held in parts):
        raise DataError(
            f"evaluate.validation = {share:g}: no client has enough examples to hold one out; take "
            f"a larger share or fewer clients"
        )
    return tuple(rest for rest, _ in parts), drawn.test, drawn.public, tuple(h for _, h in parts)


def federation(job: Job, comm: Comm, world: World) -> Federation:
    """Return this rank's federation; clients are placed by estimated cost."""
    own = choose_device(job, comm)
    device, data, models_ = own.device, world.data, job.models
    store = ClientStore(
        job.seed,
        world.shape,
        len(data.classes),
        models_.d,
        models_.relu_head,
        device,
        data.vocabulary,
        job.run.resident * 2**30,
        names.spill_folder(on_all_ranks(comm, lambda: folder.of(job)), comm.rank),
        resident_bytes(job, own.share),
        Finetuning.of(job),
        data.classes,
    )
    on_all_ranks(comm, lambda: store.finetuning.checksums)  # now: a file may be replaced meanwhile
    fast = on_all_ranks(comm, lambda: speeds.of_ranks(job.run.speeds, comm.node_of, comm.lost))
    dealt = [k % comm.size for k in range(job.clients)] if world.many else []
    placement = dealt or place(world.costs.tolist(), comm.size, fast)
    rows = np.arange(comm.rank, len(data.test.y), comm.size)  # of the test split, on this rank
    fed = Federation(
        job=job,
        comm=comm,
        clients=Clients(placement, comm.rank, partial(client, world, store, device)),
        store=store,
        architectures=world.architectures,
        sizes=world.partition.sizes,
        costs=world.costs,
        label_counts=world.partition.counts(data.train.y, len(data.classes)),
        placement=placement,
        speeds=fast,
        profiles=world.profiles,
        classes=len(data.classes),
        data=SharedData(
            public=Shard(world.open.x, world.open.y, world.public, device),
            test=Shard(data.test.x, data.test.y, rows, device),
            test_sizes=world.partition.test_sizes,
            metrics=measured(job, data),
            mean=data.mean,
            std=data.std,
        ),
        device=device,
        gpu_memory=own.share,
        pool=cache(partial(make_pool_client, world, store, device, job)),
        modalities=lambda: world.held.train if world.held else (),
        edges=world.edges,
    )
    if own.warning:
        fed.warnings.say(own.warning)
    return fed


def client(world: World, store: ClientStore, device: torch.device, k: int) -> Client:
    """Return client k without weights; the store makes or loads them."""
    if world.many:
        data = partial(world.client_data, k, device)
        return PopulationClient(k, world.architectures[k], data, store)
    return Client(
        k, world.architectures[k], *world.client_data(k, device), store, world.validation(k, device)
    )


def make_pool_client(world: World, store: ClientStore, device: torch.device, job: Job) -> Client:
    """Return an additional client, with id K, that holds all clients' data.

    If clients have sub-models, it has the whole model.
    """
    own = world.architectures[0]
    own = without_modalities(own)
    architecture = parse(own).base if job.algorithm.accepts == "widths" else own
    train, test, rows = world.data.train, world.data.test, world.partition.everything
    nothing = Shard(test.x, test.y, np.zeros(0, dtype=np.int64), device)
    return Client(job.clients, architecture, Shard(train.x, train.y, rows, device), nothing, store)
