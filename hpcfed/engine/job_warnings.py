"""Warnings about a job and its data: what can be meant, and rarely is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcfed.config.architectures import find as find_model
from hpcfed.config.effects import fields_in_vain, is_set
from hpcfed.config.sections import Data
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data import DATASETS, PARTITIONS
from hpcfed.data.partition import Partition, users_without_training
from hpcfed.engine.world import natural_clients
from hpcfed.results.summary import data_name

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.engine.world import World

FEW = 8  # classes and clients that a warning names


def warnings(job: Job, world: World) -> tuple[str, ...]:
    """Return all warnings about a job and its data, one line each."""
    return (
        *world.data.notes,
        *merged_users(job, world),
        *odd_labels(job, world),
        *only_tests(job, world),
        *without_tests(job, world),
        *texts_in_vain(job, world),
        *odd_settings(job),
    )


def merged_users(job: Job, world: World) -> list[str]:
    """Return a warning if clients have the examples of several natural clients with names."""
    names = natural_clients(job, world)
    several = [
        f"client {k} has {join_few(client_users, FEW)}"
        for k, client_users in enumerate(names)
        if client_users[1:]
    ]
    if not several:
        return []
    column = job.columns.client or "its users"
    total = sum(map(len, names[:: job.data.clients_per_domain]))
    return [
        f"{data_name(job.data.model_dump())}: {column} has {total} values for {job.clients} "
        f"clients, so some are merged: {join_few(several, FEW, '; ')}; set clients = {total} for "
        f"one client each"
    ]


def odd_labels(job: Job, world: World) -> list[str]:
    """Return warnings about the labels of the training data, one line each.

    They name classes that have no example or only one, clients whose examples all have one label,
    and a column of clients that the job does not use.
    """
    data, about = world.data, job.data.model_dump()
    y, task = data.train.y, data.task
    if not isinstance(world.partition, Partition) or not len(y):
        return []
    name, built_in = data_name(about), about["name"] in DATASETS
    lines = [f"{name}: {text}" for text in task.oddities(y, data.classes, built_in)]
    labels = [y[rows] for rows in world.partition.train] if task.has_classes else []
    alike = [
        k
        for k, client_labels in enumerate(labels)
        if len(client_labels) > 1 and client_labels.min() == client_labels.max()
    ]
    scheme = PARTITIONS[job.data.partition]
    # by class, clients of a single label are intended, or nothing unusual
    if alike and len(np.unique(y)) > 1 and not scheme.by_class:
        lines.append(
            f"{name}: all training examples of {count_noun(len(alike), 'client')} have one label "
            f"(client {join_few(alike, FEW)}), so that local accuracy says little there; check "
            f"data.partition = {job.data.partition!r}, unless that is meant"
        )
    used = scheme.by_user or (scheme.by_class and job.data.partition_by == "client")
    if job.columns.client and not used and not job.data.partition_file:
        lines.append(
            f"{name}: column {job.columns.client!r} names clients, but data.partition = "
            f"{job.data.partition!r} shares the examples out otherwise; set data.partition = "
            f"'natural' for one client each"
        )
    elif not (built_in or used) and (users := unused_users(job, world)):
        lines.append(
            f"{name}: names {count_noun(users, 'user')}, but data.partition = "
            f"{job.data.partition!r}, the default, shares the examples out otherwise; set "
            f"data.partition = 'natural' and clients = {users} for one client each"
        )
    return lines


def unused_users(job: Job, world: World) -> int:
    """Return the number of natural clients of the training examples, if the job ignores them."""
    usual = job.data.partition == Data.model_fields["partition"].default
    if not usual or job.resume or is_set(job, "data.partition"):
        return 0
    ignored = not (job.data.partition_file or job.data.domains or job.evaluate.unseen)
    users = world.data.train.users if ignored else None
    return 0 if users is None else len(np.unique(users))


def only_tests(job: Job, world: World) -> list[str]:
    """Return a warning if natural clients have test examples alone, on which nobody is tested."""
    if job.data.partition != "natural" or job.data.name in DATASETS:
        return []
    if not (names := users_without_training(world.data)):
        return []
    return [
        f"{data_name(job.data.model_dump())}: {job.columns.client or 'user'} "
        f"{join_few(names, FEW)}: test examples alone, on which no client is tested; move some "
        f"of them to the training part, or leave them out"
    ]


def without_tests(job: Job, world: World) -> list[str]:
    """Return a warning if clients have no test example."""
    if not isinstance(world.partition, Partition):
        return []
    empty = [k for k, rows in enumerate(world.partition.test) if not len(rows)]
    if not empty:
        return []
    if len(empty) == len(world.partition.test):
        return [
            f"{data_name(job.data.model_dump())}: no client has a test example, so that nothing is "
            f"scored: the test part has none of the clients' classes; check its labels"
        ]
    return [
        f"{data_name(job.data.model_dump())}: of {len(world.partition.test)} clients "
        f"{len(empty)} without a test example (client {join_few(empty, FEW)}), which no accuracy "
        f"counts; give clients more examples, or a larger data.held_out"
    ]


def texts_in_vain(job: Job, world: World) -> list[str]:
    """Return warnings about settings of texts beside data that have none, one line each."""
    if world.data.text:
        return []
    return [
        f"data.{field} is for texts, and {data_name(job.data.model_dump())} has none: it has no "
        f"effect"
        for field in ("vocabulary", "tokens")
        if getattr(job.data, field) != Data.model_fields[field].default
    ]


def odd_settings(job: Job) -> list[str]:
    """Return warnings about settings that can be meant and rarely are, one line each."""
    lines, models, by = [*fields_in_vain(job)], job.models, job.selection.by
    random = [kind for kind in models.mix if not find_model(kind).own and "clip:" not in kind]
    if (models.lora or models.train) and not models.weights and random:
        how = f"models.lora = {models.lora}" if models.lora else "models.train"
        lines.append(
            f"{how} without models.weights: what is not trained of {random[0]} stays at its random "
            f"initial values"
        )
    left = job.rounds % job.edges.rounds if job.edges.number else 0
    if left:
        last = "last round" if left == 1 else f"last {left} rounds"
        lines.append(
            f"edges.rounds = {job.edges.rounds}: the server does not aggregate the work of the "
            f"{last} of {job.rounds}, and its model is that of round {job.rounds - left}; set "
            f"rounds to a multiple of edges.rounds"
        )
    privacy, K = job.privacy, job.clients
    if privacy.has_noise and privacy.by != "examples" and privacy.delta * K >= 1:
        lines.append(
            f"privacy.delta = {privacy.delta:g} is not below 1 / clients: the guarantee holds "
            f"though the data of one in {K:,} are published; set it below {1 / K:.2g}"
        )
    twice = getattr(job.algorithm, "weighting", "") == "samples"
    if by in ("size", "power-of-choice") and twice:
        lines.append(
            f"selection.by = {by!r} draws clients in proportion to their examples, which then "
            f"count again in the mean; set algorithm.weighting = 'uniform'"
        )
    return lines
