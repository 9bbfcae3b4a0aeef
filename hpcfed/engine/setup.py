"""From a job to a federation: data once a node, partition, architectures, clients on their
ranks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfed import models
from hpcfed.clients import profiles
from hpcfed.clients.client import Client, Clients, Shard
from hpcfed.clients.profiles import Profiles
from hpcfed.clients.store import ClientStore
from hpcfed.comm.agree import on_all_ranks
from hpcfed.config.metrics import choose
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.shapes import describe_shape
from hpcfed.data import datasets, modalities
from hpcfed.data.modalities import Held, mislabel
from hpcfed.data.partition import Partition, split
from hpcfed.data.record import DataSet, Split, Text, from_arrays, to_arrays
from hpcfed.data.synthetic import Synthetic
from hpcfed.engine import folder
from hpcfed.federation.federation import Federation, SharedData
from hpcfed.federation.world import World
from hpcfed.machine import speeds
from hpcfed.machine.placement import place
from hpcfed.machine.seat import seat
from hpcfed.models.assign import assign, without_modalities
from hpcfed.models.cost import cost, work
from hpcfed.models.widths import parse
from hpcfed.storage import names

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


def world(job: Job, comm: Comm) -> World:
    """Load, partition, assign; collective. Raises ConfigError or DataError on all ranks alike."""
    data, other = load(job, comm, job.data.name), load(job, comm, job.data.public_source)
    on_all_ranks(comm, lambda: views(job, data))
    on_all_ranks(comm, lambda: measured(job, data))
    partition = share_out(job, comm, data)
    data = replace(data, test=partition.common()) if isinstance(partition, Synthetic) else data
    source, rows = on_all_ranks(comm, lambda: public(job, data, other, partition))
    held = on_all_ranks(comm, lambda: modalities_of(job, data, partition))
    if job.data.wrong_labels:
        on_all_ranks(comm, lambda: has_labels(data))
        wrong = mislabel(
            data.train.y, partition, job.data.wrong_labels, len(data.classes), job.seed
        )
        data = replace(data, train=replace(data.train, y=wrong))
    architectures = assign(job, data.modalities, held.own if held else ())
    shape, classes = data.shape, len(data.classes)
    kinds = sorted(set(architectures))
    on_all_ranks(
        comm,
        lambda: [models.check(name, shape, data.vocabulary) for name in (*kinds, *servers(job))],
    )
    on_all_ranks(comm, lambda: one_width(job, kinds, shape, classes))
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
    return World(data, partition, source, rows, architectures, costs, known, held)


def modalities_of(job: Job, data: DataSet, partition: Partition | Synthetic) -> Held | None:
    """Which client has which modalities; None where inputs are of one kind. Raises ConfigError."""
    if not data.modalities:
        return None
    return modalities.assign(
        data.modalities,
        job.modalities,
        job.clients,
        job.seed,
        lambda k: modalities.present(data.train, partition.train[k]),
    )


def load(job: Job, comm: Comm, name: str) -> DataSet | None:
    """A data set: read by one rank of each node into memory that all ranks of the node share; "":
    none.
    """
    if not name:
        return None
    first = comm.local_rank == 0
    text = Text(job.data.vocabulary, job.data.tokens)

    def read() -> DataSet:
        data = datasets.load(name, job.data.root, job.data.download, text)
        if name == job.data.name:
            modalities.check_idle(data, job.modalities)
        return modalities.select(data, job.modalities) if data.modalities else data

    loaded = on_all_ranks(comm, lambda: read() if first else None)
    return from_arrays(comm.share(lambda: to_arrays(loaded)))


def one_width(job: Job, kinds: list[str], shape: tuple[int, ...], classes: int) -> None:
    """Raises ConfigError where clients share a head, and users' whole models make it of another
    width.
    """
    if job.algorithm.accepts != "a common head" or not any(":" in kind for kind in kinds):
        return
    d = job.models.d
    bases = sorted({parse(kind).base for kind in kinds})
    widths = {base: models.represents(base, shape, classes, d) for base in bases}
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{base} {width}" for base, width in widths.items())
        own = next(width for base, width in widths.items() if ":" in base and width != d)
        raise ConfigError(
            f"{job.algorithm.name} needs a common head, but the last layers of the models read "
            f"different numbers of values: {told}; set models.d = {own}, or let your own models "
            f"have so many units before the last layer as models.d says, {d}"
        )


def servers(job: Job) -> list[str]:
    """The architecture of the server's own model, where the job has one."""
    return [job.models.server] if job.models.server else []


def measured(job: Job, data: DataSet) -> tuple[str, ...]:
    """The metrics of the run. Raises ConfigError for one that the data do not have, and for a
    method that cannot be trained on them.
    """
    method = job.algorithm
    if data.task == "survival" and (not method.survival or method.views > 1):
        raise ConfigError(
            f"{method.name} needs classes, but {data.name} has survival times; use fedavg, "
            "fedprox, scaffold, local or central, or another data set"
        )
    return choose(job.evaluate.metrics, data.task, len(data.classes), data.name)


def has_labels(data: DataSet) -> None:
    """Raises ConfigError where there are no labels that could be wrong."""
    if data.task == "survival":
        raise ConfigError(
            f"data.wrong_labels: {data.name} has survival times, not classes; leave it away"
        )


def views(job: Job, data: DataSet) -> None:
    """Raises ConfigError where other inputs than images would be augmented: views are those of
    images.
    """
    method, policy = job.algorithm, job.local.augment
    images = not data.vocabulary and not data.modalities and len(data.shape) == 3
    if images or (method.views == 1 and policy in ("auto", "none")):
        return
    holds = "several modalities" if data.modalities else "texts" if data.vocabulary else "numbers"
    if method.views > 1:
        raise ConfigError(
            f"{method.name} trains on {method.views} augmented views of a batch, but {data.name} "
            f"holds {holds}, which "
            "are not augmented; switch that off (algorithm.contrastive = false), or take images"
        )
    raise ConfigError(
        f"local.augment = {policy!r}, but {data.name} holds {holds}; set local.augment = 'none'"
    )


def public(
    job: Job, data: DataSet, other: DataSet | None, partition: Partition
) -> tuple[Split, np.ndarray]:
    """Where the public examples are, and their rows. Raises DataError where they do not fit the
    clients' data.
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
    """The clients' profiles, drawn or read on rank 0 for all. example: [K], multiply-adds, forward
    and backward.
    """
    drawn = on_all_ranks(
        comm, lambda: profiles.draw(job.system, job.clients, job.seed) if comm.rank == 0 else None
    )
    given = comm.bcast(drawn) | {"example": example}
    return Profiles(**{name: compact(values) for name, values in given.items()})


def compact(values: np.ndarray) -> np.ndarray:
    """The same values; where all are equal they take no memory."""
    return values if np.ptp(values) else np.broadcast_to(values[0], values.shape)


def share_out(job: Job, comm: Comm, data: DataSet) -> Partition | Synthetic:
    """The partition, drawn on rank 0 for all: its floating point must not depend on a rank's
    processor.
    """
    if data.name == "synthetic":
        return Synthetic(
            job.seed, job.clients, *job.data.synthetic, job.data.examples, job.data.test_share
        )
    settings = job.data.model_copy(update={"public": 0}) if job.data.public_source else job.data
    drawn = on_all_ranks(
        comm, lambda: split(data, settings, job.clients, job.seed) if comm.rank == 0 else None
    )
    return Partition(*comm.bcast((drawn.train, drawn.test, drawn.public) if drawn else None))


def federation(job: Job, comm: Comm, world: World) -> Federation:
    """This rank's federation; its clients are placed by estimated cost."""
    own = seat(job, comm)
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
        own.share / 2,
    )
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
        label_counts=world.partition
        if world.many
        else world.partition.counts(data.train.y, len(data.classes)),
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
    )
    if own.warning:
        fed.warnings.say(own.warning)
    return fed


def client(world: World, store: ClientStore, device: torch.device, k: int) -> Client:
    """Client k, without weights: the store makes or gets those."""
    return Client(k, world.architectures[k], *world.client_data(k, device), store)


def make_pool_client(world: World, store: ClientStore, device: torch.device, job: Job) -> Client:
    """A client beyond the last that holds all clients' data; of sub-models it has the whole
    model.
    """
    own = world.architectures[0]
    own = without_modalities(own)
    architecture = parse(own).base if job.algorithm.accepts == "widths" else own
    train, test, rows = world.data.train, world.data.test, world.partition.everything
    nothing = Shard(test.x, test.y, np.zeros(0, dtype=np.int64), device)
    return Client(job.clients, architecture, Shard(train.x, train.y, rows, device), nothing, store)
