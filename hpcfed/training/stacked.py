"""Training of several clients of one architecture as one, with their weights in one buffer.

Each operation of a step is one call for all clients (`torch.func.vmap`). It pays if a model is so
small that a step consists mostly of the overhead of calls. A batched product may round differently
from a single one, and differently for another number of clients. So groups are formed from the
cohort alone, and each group trains on one rank, which gives the same bits for any number of ranks.
They differ from the other engines' bits in the last places.

Methods whose clients keep something are not stacked. Weights of a client stay on its rank, and a
group may be on any rank. Methods with memory (SCAFFOLD, FedDyn, ...) replace `local`: before the
training they read the memory, which corrects each step or the objective, and afterwards they write
it, from the model of one client. And turns of a group cannot be replayed alone: if a client fails,
groups are formed anew, and turns of former groups are done again (`ReplayLog.next`), when the
memory has changed already.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.clients.client import concat_shards
from hpcfed.core.errors import first_line
from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import finite
from hpcfed.core.shapes import Shapes
from hpcfed.federation.upload import Upload
from hpcfed.training.batches import plan_batches, policy, prepare_batches
from hpcfed.training.divergence import check_finite, on_host
from hpcfed.training.engines import with_tensors
from hpcfed.training.objective import Unshareable, extract_tensors, is_users, title
from hpcfed.training.optimisers import Optimiser, learning_rate
from hpcfed.training.stacked_step import Stack, StackedStep

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.models.model import Model

# multiply-adds of a step, forward, up to which a stacked step takes at most 2/3 of the time of an
# eager one
TINY = 5e5
# the same on a GPU, estimated: a captured step of a few layers takes 0.3 ms to start its kernels,
# and its arithmetic, 6 operations a multiply-add at 30 TFLOP/s, takes a fifth of that
SMALL_ON_GPU = 3e8
# weights of a client, on a GPU: a step reads and writes them some ten times, at 3 TB/s in a fifth
# of that time; 64 clients then have 1 GiB of weights
LIGHT_ON_GPU = 4e6
# clients in a cohort: 32 of logistic regression as one take 0.4 of the time of eager steps; and on
# a GPU the stacked step is not captured, and starts its kernels ten times as slowly as a captured
# one
MANY = 32


class Trained(Protocol):
    """The part of a method that stacking uses: the hooks of RoundBased by these names."""

    @property
    def views(self) -> int: ...
    @property
    def step_passes(self) -> int: ...
    @property
    def default_client_round(self) -> bool: ...
    def offer(self, fed: Federation, client: Client, state: Any) -> Any: ...
    def loss(self, client: Client, state: Any, model: Model, x: Any, y: Tensor) -> Tensor: ...
    def shared(self, name: str) -> bool: ...
    def weight(self, client: Client) -> float: ...


def resolve_engine(fed: Federation, method: Trained, gpus: bool) -> Job:
    """Return the job, with the engine `stacked` instead of `auto` if that pays for all clients.

    The decision depends on nothing that may change when a run is resumed on the same type of
    device: neither on ranks nor on rounds.
    gpus: whether all ranks compute on GPUs.
    """
    job, kinds = fed.job, sorted(set(fed.architectures))
    if (
        job.training.engine != "auto"
        or np.ptp(fed.sizes) > 0
        or not (many_small_on_gpu if gpus else many_tiny)(fed, kinds)
        or any(against(fed, method, kind) or is_users(method.loss, kind) for kind in kinds)
    ):
        return job
    return job.model_copy(
        update={"training": job.training.model_copy(update={"engine": "stacked"})}
    )


def many_tiny(fed: Federation, kinds: Sequence[str]) -> bool:
    """Return whether clients of one size have tiny models, and are many or enough for a group."""
    short = all(fed.store.work(kind) * fed.job.local.batch <= TINY for kind in kinds)
    return short and fed.cohort_size >= min(MANY, fed.job.training.stack)


def many_small_on_gpu(fed: Federation, kinds: Sequence[str]) -> bool:
    """Return whether clients of one size are so small and many that a GPU trains them as one.

    One captured step at a time is then bound by the start of its kernels, not by their work. If a
    step is large enough to keep the GPU busy, stacking gains nothing, and convolutions of several
    clients may be slower than those of one.
    """
    batch = min(fed.job.local.batch, fed.largest)
    return (
        len(kinds) == 1
        and fed.store.work(kinds[0]) * batch <= SMALL_ON_GPU
        and fed.store.layout(kinds[0]).size <= LIGHT_ON_GPU
        and fed.cohort_size >= MANY
        and fed.job.training.stack >= MANY
    )


def against(fed: Federation, method: Trained, architecture: str) -> str:
    """Return why clients of an architecture cannot be trained together; "" if they can."""
    layout = fed.store.layout(architecture)
    reasons = {
        "the data have several modalities": isinstance(fed.store.form[0], Shapes),
        "only a part of the model is trained": fed.store.finetuning.some,
        "the method trains clients in its own way": not method.default_client_round,
        "each example's gradient is clipped": fed.job.privacy.by == "examples",
        "clients keep weights": not fed.store.stateless,
        "each client has its own class weights": fed.job.local.class_weights == "client",
        "local.keep_optimiser is set": fed.job.local.keep_optimiser,
        "what changes uploads keeps a state of each client": any(
            transform.keeps_state for transform in fed.transforms
        ),
        "batches are augmented": method.views > 1 or policy(fed.job, 1) != "none",
        f"{architecture} has buffers": bool(layout.buffers or layout.integers),
        f"{architecture} is recurrent": is_recurrent(fed.store.skeleton(architecture).model),
    }
    return next((words for words, holds in reasons.items() if holds), "")


def is_recurrent(model: nn.Module) -> bool:
    """Return whether a model has a recurrent layer, which torch computes client by client."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def groups(fed: Federation, method: Trained, cohort: Sequence[int]) -> list[list[int]]:
    """Return the cohort in groups that train together, the same on all ranks.

    A group has clients of one architecture with equal batches, in id order. Groups are as few and
    as equal as training.stack, the most clients of one, lets them be. Clients that cannot be
    stacked are groups of one.
    """
    settings = fed.job.training
    if settings.engine != "stacked":
        return [[k] for k in cohort]
    reasons = {
        kind: against(fed, method, kind) for kind in sorted({fed.architectures[k] for k in cohort})
    }
    for reason in filter(None, reasons.values()):
        fed.warnings.say(f"clients cannot be stacked ({reason}); they train one by one")
    alike = defaultdict(list)
    for k in cohort:
        kind = fed.architectures[k]
        work = fed.participants.partial.get(k)
        alike[k if reasons[kind] else (kind, fed.sizes[k], work)].append(k)
    parts = (np.array_split(ks, math.ceil(len(ks) / settings.stack)) for ks in alike.values())
    return sorted(part.tolist() for split in parts for part in split)


def train(
    fed: Federation, method: Trained, clients: Sequence[Client], state: Any, t: int
) -> list[Upload] | None:
    """Train a group, and return the upload of each client.

    The result is None, with one warning, if the objective cannot be computed for all at once.
    """
    before = {client.id: copy(fed.tallies[client.id]) for client in clients}
    try:
        group = Group(fed, method, clients, state, t)
        group.train()
    except Unshareable as why:
        fed.warnings.say(
            f"{title(method.loss)} cannot be stacked ({why}); its clients train one by one"
        )
        fed.tallies |= before
        return None
    return list(group.uploads())


class Group:
    """The local training of several clients with equal batches in one round."""

    def __init__(
        self, fed: Federation, method: Trained, clients: Sequence[Client], state: Any, t: int
    ):
        self.start = perf_counter()
        self.fed, self.method, self.clients, self.t = fed, method, clients, t
        self.downloads = [fed.down(client, method.offer(fed, client, state)) for client in clients]
        # then one serves all clients
        common = all(down is self.downloads[0] for down in self.downloads)
        pairs = list(zip(clients, self.downloads, strict=True))[: 1 if common else None]
        skeleton, key = fed.store.skeleton(clients[0].architecture), ("stack", len(clients))
        if key not in skeleton.captured:
            skeleton.captured[key] = Stack(skeleton, len(clients))
        self.stack: Stack = skeleton.captured[key]
        self.stack.load([down for _, down in pairs])
        self.opened = [
            extract_tensors(partial(method.loss, client, down)) for client, down in pairs
        ]
        self.dims = None if common else 0
        self.loss_tensors = [
            torch.stack(v) if self.dims == 0 else v[0]
            for v in zip(*(o[1] for o in self.opened), strict=True)
        ]
        how = fed.job.local
        self.plans = [
            plan_batches(fed, c, t, c.train, how.batch, fed.work(c), bool(how.steps))
            for c in clients
        ]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs [G, b, ...] and targets [G, b] of each step."""
        data, n, G = (
            concat_shards([client.train for client in self.clients]),
            self.clients[0].n,
            len(self.clients),
        )
        starts = n * np.arange(G)[:, None]  # where each client's examples begin
        plan = [(np.stack(rows) + starts).ravel() for rows in zip(*self.plans, strict=True)]
        for _, x, y in prepare_batches(self.fed, data, plan, 1, None):
            yield x.unflatten(0, (G, -1)), y.unflatten(0, (G, -1))

    def train(self) -> None:
        """Make all steps. Raises Unshareable if they cannot be computed for all at once."""
        self.stack.model.train()
        optimiser = Optimiser(
            self.stack,  # type: ignore[arg-type]  # it takes the place of a Skeleton
            self.fed.job.local,
            learning_rate(self.fed, self.t),
            None,
            None,
        )
        self.losses: list[Tensor] = []
        step: StackedStep | None = None
        for x, y in self.batches():
            step = step or self.step(x, y)
            try:
                values, gradient = step([*self.loss_tensors, x, y])
            except Unshareable:
                raise
            except Exception as why:  # torch raises many types of errors; eager steps need no stack
                raise Unshareable(first_line(why)) from why
            optimiser.step(gradient)
            self.losses.append(values)
            self.fed.clock.heartbeat.step()

    def step(self, x: Tensor, y: Tensor) -> StackedStep:
        """Return the step of all clients for batches like this one."""
        _, _, refill = self.opened[0]
        objective = with_tensors(self.fed, refill, len(self.loss_tensors), x, y)
        return self.stack.step(objective, (*(self.dims for _ in self.loss_tensors), 0, 0))

    def uploads(self) -> Iterator[Upload]:
        """Yield the upload of each client.

        It also counts the client's work, and stores the client's weights for evaluation. Raises
        DivergedError if losses or weights are not finite.
        """
        fed, G, examples = self.fed, len(self.clients), [len(rows) for rows in self.plans[0]]
        rows, losses = self.stack.rows(), on_host(self.losses).reshape(len(examples), G).T
        if not (np.isfinite(losses).all() and finite(rows)):
            lr, n = learning_rate(fed, self.t), self.clients[0].n
            for client, row, values in zip(self.clients, rows, losses, strict=True):
                check_finite(fed, client, self.t, values, row, examples, lr, n)
        seconds, copies = (perf_counter() - self.start) / G, self.method.step_passes
        for client, down, row, values in zip(
            self.clients, self.downloads, rows, losses, strict=True
        ):
            fed.tallies.add_training(client, values, examples, seconds, copies=copies)
            fed.clock.add("train", seconds)
            fed.store.put(client.id, row)
            sent = Params(self.stack.layout.views(row)).pick(self.method.shared)
            yield Upload(Mean.of(sent, self.method.weight(client)), relative_to=down)
