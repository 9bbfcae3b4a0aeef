"""Set-up, second part: each rank builds its part of the federation from the decided world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfed.algorithms.base import keeps_weights
from hpcfed.clients.client import Client, Clients, LazyClient, Shard, concat_shards
from hpcfed.clients.store import ClientStore
from hpcfed.core.architecture import Architecture
from hpcfed.data.shift import Change
from hpcfed.federation.federation import Federation, Gpu, SharedData
from hpcfed.federation.transforms import install
from hpcfed.machine import speeds
from hpcfed.machine.assignment import place
from hpcfed.machine.cores import cores_of_node
from hpcfed.machine.device_choice import choose_device, resident_bytes
from hpcfed.models.finetuning import Finetuning
from hpcfed.storage import names
from hpcfed.tasks.classification import Classification, inverse_frequencies

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.data.dataset import DataSet
    from hpcfed.data.synthetic import Synthetic
    from hpcfed.engine.world import World
    from hpcfed.tasks import Task


def federation(job: Job, comm: Comm, world: World) -> Federation:
    """Build this rank's federation; clients are placed by estimated cost. Collective."""
    choice = choose_device(job, comm)
    device, data, models = choice.device, world.data, job.models
    store = ClientStore(
        job.seed,
        world.shape,
        len(data.classes),
        models.d,
        models.relu_head,
        device,
        data.vocabulary,
        job.run.resident * 2**30,
        names.spill_folder(world.folder, comm.rank),
        resident_bytes(job, choice.share),
        Finetuning.of(job, world.checksums),
        data.classes,
        data.task,
        job.run.precision,
    )
    fast = speeds.of_ranks(job.run.speeds, comm.node_of, comm.lost)
    if world.many:
        placement = [k % comm.size for k in range(job.clients)]
    else:
        placement = place(world.costs.tolist(), comm.size, fast)
    counts = world.partition.counts(data.train.y, data.task, len(data.classes))
    store.weighted_task = weighted_task(job, data, counts)
    fed = Federation(
        job=job,
        comm=comm,
        clients=Clients(placement, comm.rank, partial(client, world, store, device)),
        store=store,
        architectures=world.architectures,
        sizes=world.partition.sizes,
        costs=world.costs,
        label_counts=counts,
        placement=placement,
        speeds=fast,
        profiles=world.profiles,
        classes=len(data.classes),
        data=SharedData(
            public=Shard(world.open.x, world.open.y, world.public, device),
            make_test=partial(world.common_test, comm.rank, comm.size, job.evaluate.batch, device),
            test_sizes=world.partition.test_sizes,
            metrics=world.metrics,
            groups=data.groups,
            group_names=data.group_names,
            mean=data.mean,
            std=data.std,
            unseen=unseen_tests(job, world, device),
            edge_cases=world.edge_cases,
        ),
        device=device,
        gpu=Gpu(choice.share, choice.ranks),
        cores=cores_of_node(comm),
        pool=cache(partial(make_pool_client, world, store, device, job)),
        modalities=lambda: world.modalities.train if world.modalities else (),
        edges=world.edges,
    )
    store.stateless = not keeps_weights(job.algorithm, fed)
    store.careful = ":" in job.algorithm.name
    if choice.warning:
        fed.warnings.say(choice.warning)
    install(fed)
    return fed


def unseen_tests(job: Job, world: World, device: torch.device) -> Shard | None:
    """Return the test examples of the domain on which no client trains; None if there is none."""
    if world.unseen is None:
        return None
    test, rows = world.data.test, world.unseen
    if job.unseen_degrees is None:
        return Shard(test.x, test.y, rows, device)
    change = Change(degrees=job.unseen_degrees)
    return Shard.of_split(change.apply(test, rows, job.seed, "test"), device)


def weighted_task(
    job: Job, data: DataSet, counts: np.ndarray | Synthetic
) -> Callable[[np.ndarray], Task] | None:
    """Return the function that gives the task of a client's training; None: it is that of the data.

    The function takes the labels of the client's training examples.
    counts: [K, C], training examples of each client and class; of a population they are not summed
    up (`check.population`).
    """
    local, task, C = job.local, data.task, len(data.classes)
    if local.class_weights == "none" and not local.focal:
        return None
    assert isinstance(task, Classification)  # `check_classes`
    if local.class_weights == "client":
        return lambda labels: replace(
            task,
            weights=inverse_frequencies(np.bincount(labels, minlength=C)),
            focal=local.focal,
        )
    weights = local.weights
    if local.class_weights == "all":
        assert isinstance(counts, np.ndarray)
        weights = inverse_frequencies(counts.sum(0))
    weighted = replace(task, weights=weights, focal=local.focal)
    return lambda labels: weighted


def client(world: World, store: ClientStore, device: torch.device, k: int) -> Client:
    """Return client k without weights; the store makes or loads them."""
    if world.makes_examples:
        return LazyClient(k, world.architectures[k], partial(world.client_data, k, device), store)
    train, test, validation = world.client_data(k, device)
    return Client(k, world.architectures[k], train, test, store, validation)


def make_pool_client(world: World, store: ClientStore, device: torch.device, job: Job) -> Client:
    """Return an additional client, with id K, that holds all clients' data.

    If clients have sub-models, it has the full model.
    """
    base = Architecture.parse(world.architectures[0]).only(())
    architecture = str(base.full if job.algorithm.accepts == "widths" else base)
    train, test = world.data.train, world.data.test
    nothing = Shard(test.x, test.y, np.zeros(0, dtype=np.int64), device)
    if not world.shift.active:
        everything = Shard(train.x, train.y, world.partition.everything, device)
        return Client(job.clients, architecture, everything, nothing, store)

    def examples() -> tuple[Shard, Shard, None]:
        parts = enumerate(world.rows.train)
        shards = [world.shard(k, "train", rows, device) for k, rows in parts]
        return concat_shards(shards), nothing, None

    return LazyClient(job.clients, architecture, examples, store)
