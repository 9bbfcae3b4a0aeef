"""From a job to a federation: data once a node, partition, architectures, clients on their ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfed import models, rng
from hpcfed.client import Client, ClientStore, Shard
from hpcfed.cluster import devices
from hpcfed.cluster.placement import place
from hpcfed.comm.agree import agreed
from hpcfed.data import datasets
from hpcfed.data.partition import Partition, split
from hpcfed.data.record import DataSet, Split, from_arrays, to_arrays
from hpcfed.errors import DataError
from hpcfed.federation import Federation
from hpcfed.models.cost import cost

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job


@dataclass(frozen=True)
class World:
    """What is the same on all ranks and never changes: data, who holds which, who has which architecture."""

    data: DataSet
    partition: Partition
    open: Split  # where the public examples are
    public: np.ndarray  # rows of the public examples there
    architectures: tuple[str, ...]
    costs: tuple[float, ...]  # [K], estimated work of one epoch: multiply-adds times examples

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.data.train.x.shape[1:]


def world(job: Job, comm: Comm) -> World:
    """Load, partition, assign; collective. Raises ConfigError or DataError on all ranks alike."""
    data, other = load(job, comm, job.data.name), load(job, comm, job.data.public_source)
    partition = share_out(job, comm, data)
    source, rows = agreed(comm, lambda: public(job, data, other, partition))
    architectures = assign(job)
    shape, classes = data.train.x.shape[1:], len(data.classes)
    kinds = sorted(set(architectures))
    agreed(comm, lambda: [models.check(name, shape) for name in kinds])
    work = {name: cost(name, shape, classes, job.models.d) for name in kinds}
    costs = tuple(work[a] * len(rows) for a, rows in zip(architectures, partition.train, strict=True))
    return World(data, partition, source, rows, architectures, costs)


def load(job: Job, comm: Comm, name: str) -> DataSet | None:
    """A data set: read by one rank of each node into memory that all ranks of the node share; "": none."""
    if not name:
        return None
    first = comm.local_rank == 0
    loaded = agreed(comm, lambda: datasets.load(name, job.data.root, job.data.download) if first else None)
    return from_arrays(comm.share(lambda: to_arrays(loaded)))


def public(job: Job, data: DataSet, other: DataSet | None, partition: Partition) -> tuple[Split, np.ndarray]:
    """Where the public examples are, and their rows. Raises DataError where they do not fit the clients' data."""
    if other is None:
        return data.train, partition.public
    shape, theirs, n = data.train.x.shape[1:], other.train.x.shape[1:], len(other.train.y)
    if shape != theirs:
        raise DataError(
            f"data.public_source: {other.name} has inputs of shape {list(theirs)}, {data.name} of {list(shape)}; "
            "take public data of the same shape"
        )
    if job.data.public > n:
        raise DataError(f"data.public is {job.data.public}, but {other.name} has {n} examples; take at most {n}")
    g = rng.stream(job.seed, "public")
    return other.train, np.sort(g.choice(n, job.data.public, replace=False))


def share_out(job: Job, comm: Comm, data: DataSet) -> Partition:
    """The partition, drawn on rank 0 for all: its floating point must not depend on a rank's processor."""
    settings = job.data.model_copy(update={"public": 0}) if job.data.public_source else job.data
    drawn = agreed(comm, lambda: split(data, settings, job.clients, job.seed) if comm.rank == 0 else None)
    return Partition(*comm.bcast((drawn.train, drawn.test, drawn.public) if drawn else None))


def assign(job: Job) -> tuple[str, ...]:
    """The architecture of each client, the same on any number of ranks."""
    mix, widths, proxy = job.models.mix, job.models.widths, "proxy" in job.algorithm.needs
    names = []
    for k in range(job.clients):
        own, width = mix[k % len(mix)], widths[k % len(widths)]
        if job.models.assign == "random":
            own = mix[rng.stream(job.seed, "models", k).integers(len(mix))]
            width = widths[rng.stream(job.seed, "widths", k).integers(len(widths))]
        names.append(own + (f"@{width:g}" if width < 1 else "") + (f"+{job.models.proxy}" if proxy else ""))
    return tuple(names)


def federation(job: Job, comm: Comm, world: World) -> Federation:
    """This rank's federation; its clients are placed by estimated cost."""
    device = agreed(comm, lambda: devices.choose(job.run.device, comm.local_rank))
    devices.prepare(device, job.run.threads)
    data, models_ = world.data, job.models
    store = ClientStore(job.seed, world.shape, len(data.classes), models_.d, models_.relu_head, device)
    placement = place(world.costs, comm.size)
    make = partial(client, world, store, device)
    return Federation(
        job=job,
        comm=comm,
        clients={k: make(k) for k in range(job.clients) if placement[k] == comm.rank},
        store=store,
        architectures=world.architectures,
        sizes=tuple(map(len, world.partition.train)),
        label_counts=world.partition.counts(data.train.y, len(data.classes)),
        placement=placement,
        classes=len(data.classes),
        mean_pixel=data.mean,
        std_pixel=data.std,
        device=device,
        public=Shard(world.open.x, world.open.y, world.public, device),
        common=Shard(data.test.x, data.test.y, np.arange(comm.rank, len(data.test.y), comm.size), device),
        pool=cache(partial(pooled, world, store, device, job.clients)),
        make=make,
    )


def client(world: World, store: ClientStore, device: torch.device, k: int) -> Client:
    """Client k, without weights: the store makes or gets those."""
    train, test, rows = world.data.train, world.data.test, world.partition
    return Client(
        k,
        world.architectures[k],
        Shard(train.x, train.y, rows.train[k], device),
        Shard(test.x, test.y, rows.test[k], device),
        store,
    )


def pooled(world: World, store: ClientStore, device: torch.device, k: int) -> Client:
    """A client k beyond the last that holds all clients' data."""
    train, test, rows = world.data.train, world.data.test, np.concatenate(world.partition.train)
    nothing = Shard(test.x, test.y, np.zeros(0, dtype=np.int64), device)
    return Client(k, world.architectures[0], Shard(train.x, train.y, rows, device), nothing, store)
