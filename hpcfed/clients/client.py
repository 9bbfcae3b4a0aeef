"""Clients, their examples, and all clients of one rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.inputs import Inputs, join
from hpcfed.core.params import Params
from hpcfed.core.shapes import each, parts
from hpcfed.data.sampling import even_parts

if TYPE_CHECKING:
    from hpcfed.clients.store import ClientStore
    from hpcfed.data.dataset import Split
    from hpcfed.models import Model
    from hpcfed.models.flat import Skeleton
    from hpcfed.tasks import Task

MADE = 1000  # client objects that stay between rounds; others are made again at their next use


class Shard:
    """A subset of a split: rows of arrays that all ranks of a host share.

    On the CPU each batch is gathered from the shared memory. On a GPU the rows are copied to the
    device once.
    labels: [n, ...], those of its own examples, on the host. Its own inputs are those of `batch`.
    x: inputs of all examples of the split, of other clients too: an array, or a dict of arrays by
    modality. A batch's inputs are then a dict of the modalities in `only`.
    y: labels of all examples of the split, in the form of their task.
    rows: [n], positions of its own examples in `x` and `y`.
    ids: [n], numbers of the examples in a split of which other ranks have the others; default:
    rows.
    lengths: of the batches in which they are evaluated, if other ranks have the others; None: they
    are batches of their own number.
    """

    def __init__(
        self,
        x: Any,
        y: np.ndarray,
        rows: np.ndarray,
        device: torch.device,
        only: Collection[str] | None = None,
        ids: np.ndarray | None = None,
    ):
        if only is not None:
            x = {name: part for name, part in x.items() if name in only}
        self.x, self.rows, self.device = x, rows, device
        self.ids = rows if ids is None else ids
        self.lengths: list[int] | None = None
        self.labels = y[rows]  # [n, ...], on the host; of classes [n], int64
        self._resident: Inputs | None = None
        self._resident_labels: tuple[np.ndarray, Tensor] | None = None  # on the host, the device

    @classmethod
    def of_split(cls, split: Split, device: torch.device) -> Shard:
        """Return the shard of all examples of a split."""
        return cls(split.x, split.y, np.arange(len(split.y)), device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def values(self) -> int:
        """Number of values of one example."""
        return sum(math.prod(part.shape[1:]) for part in parts(self.x))

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities of these examples; empty for inputs of one kind."""
        return tuple(self.x) if isinstance(self.x, Mapping) else ()

    def holds(self, other: Shard) -> bool:
        """Return whether this shard contains all examples of another shard."""
        if other.rows is self.rows:
            return True
        return same(other.x, self.x) and bool(np.isin(other.rows, self.rows).all())

    def pick(self, which: np.ndarray) -> Shard:
        """Return the shard of the examples at these positions."""
        part = copy(self)
        part.rows, part.labels, part._resident = self.rows[which], self.labels[which], None
        part.ids, part.lengths = self.ids[which], None
        part._resident_labels = None
        return part

    def of_rank(self, rank: int, ranks: int, size: int) -> Shard:
        """Return the part of the examples that this of several ranks evaluates.

        It is complete batches, so that a model's outputs have the same bits on any number of ranks.
        size: most examples of a batch.
        """
        batches = even_parts(len(self), size)[rank::ranks]
        part = self.pick(np.concatenate(batches) if batches else np.arange(0))
        part.lengths = list(map(len, batches))
        return part

    def kept_lengths(self, kept: np.ndarray) -> list[int] | None:
        """Return the lengths of the batches if some examples are left out.  kept: [n], bool."""
        if self.lengths is None:
            return None
        batches = np.split(kept, np.cumsum(self.lengths)[:-1])
        return [int(n) for n in map(np.count_nonzero, batches) if n]

    def divide(self, share: float, order: np.random.Generator) -> tuple[Shard, Shard]:
        """Return the other examples and this share of them, drawn from a stream.

        If one of both would be empty, both are all examples.
        """
        n = round(share * len(self))
        if n in (0, len(self)):
            return self, self
        positions = order.permutation(len(self))
        return self.pick(np.sort(positions[n:])), self.pick(np.sort(positions[:n]))

    @property
    def gathers_on_device(self) -> bool:
        """Whether batches are gathered from the device's memory, not from the host's."""
        return self.device.type != "cpu"

    def positions(self, which: np.ndarray) -> Tensor:
        """Return these positions as a tensor on the device."""
        return torch.from_numpy(which).to(self.device, non_blocking=True)

    def targets(self, which: np.ndarray) -> Tensor:
        """Return the labels [b, ...] of these positions, on the device."""
        return torch.from_numpy(self.labels[which]).to(self.device, non_blocking=True)

    def targets_at(self, at: Tensor) -> Any:
        """Return what `targets` returns, for positions that are on the device already."""
        return self.resident_labels[at]

    def batch(self, which: np.ndarray, at: Tensor | None = None) -> tuple[Any, Any]:
        """Return the inputs [b, *shape] and labels [b] of these positions, on the device.

        which: positions 0..n-1.
        at: the same positions on the device, if they are there already.
        The inputs are as stored; with several modalities they are a dict by modality.
        """
        if self.gathers_on_device:
            at = self.positions(which) if at is None else at
            return each(self.resident, lambda x: x[at]), self.targets_at(at)
        rows, y = self.rows[which], self.targets(which)
        return each(self.x, lambda x: torch.from_numpy(x[rows])), y

    def batches(self, plan: Sequence[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        """Yield the batch of each item of a plan; all positions go to the device in one copy."""
        if not (plan and self.gathers_on_device):
            yield from map(self.batch, plan)
            return
        places = self.positions(np.concatenate(plan)).split([len(which) for which in plan])
        for which, at in zip(plan, places, strict=True):
            yield self.batch(which, at)

    @property
    def resident(self) -> Any:
        """All inputs [n, *shape] on the device; copied there at the first use."""
        if self._resident is None:
            self._resident = each(self.x, lambda x: torch.from_numpy(x[self.rows]).to(self.device))
        return self._resident

    @property
    def resident_labels(self) -> Tensor:
        """All labels [n] on the device; copied there at the first use."""
        if self._resident_labels is None or self._resident_labels[0] is not self.labels:
            self._resident_labels = self.labels, torch.from_numpy(self.labels).to(self.device)
        return self._resident_labels[1]


def concat_shards(shards: Sequence[Shard]) -> Shard:
    """Return the examples of several shards, one after the other; all have the same modalities."""
    result = copy(shards[0])
    if all(same(s.x, result.x) for s in shards):
        result.rows = np.concatenate([s.rows for s in shards])
    else:  # a population's clients have memory of their own
        if isinstance(result.x, Mapping):
            result.x = {m: np.concatenate([s.x[m][s.rows] for s in shards]) for m in result.x}
        else:
            result.x = np.concatenate([s.x[s.rows] for s in shards])
        result.rows = np.arange(sum(map(len, shards)))
    result.labels, result.ids = np.concatenate([s.labels for s in shards]), result.rows
    result._resident = join(s.resident for s in shards) if result.gathers_on_device else None
    result._resident_labels = None
    return result


def same(x: Any, other: Any) -> bool:
    """Return whether two shards use the same arrays."""
    both = isinstance(x, Mapping), isinstance(other, Mapping)
    if not all(both):
        return x is other
    return list(x) == list(other) and all(x[name] is other[name] for name in x)


class Paired(Shard):
    """A shard with other targets, such as a teacher's soft predictions.

    targets: [n, ...], one row for each position of the shard.
    with_labels: batches yield the pair (labels, rows of targets) instead of the rows alone.
    """

    def __init__(self, shard: Shard, targets: Tensor, with_labels: bool = False):
        self.__dict__ = dict(shard.__dict__)
        self.soft, self.with_labels = targets.to(shard.device), with_labels

    def targets(self, which: np.ndarray) -> Any:
        soft = self.soft[self.positions(which)]
        return (super().targets(which), soft) if self.with_labels else soft

    def targets_at(self, at: Tensor) -> Any:
        soft = self.soft[at]
        return (super().targets_at(at), soft) if self.with_labels else soft


class Extended(Shard):
    """A client's own examples followed by examples that a method has made for it.

    Training on this shard counts as training on the client's own examples.
    """

    def __init__(self, local: Shard, generated: Shard):
        self.__dict__ = dict(concat_shards([local, generated]).__dict__)
        self.local = local

    def holds(self, other: Shard) -> bool:
        return self.local.holds(other)


@dataclass(eq=False)
class Client:
    """One data holder."""

    id: int
    architecture: str
    train: Shard
    test: Shard
    store: ClientStore
    validation: Shard | None = None  # held out of its training examples (evaluate.validation)
    # labels, and their task, whose weights are those of the labels' classes
    _task: tuple[np.ndarray, Task] | None = field(default=None, init=False, repr=False)

    @property
    def memory(self) -> dict[str, Any]:
        """Tensors and numbers by name that the client keeps between rounds; checkpoints save them.

        Read this property again after other clients have been used.
        """
        return self.store.own(self.id).memory

    @memory.setter
    def memory(self, values: dict[str, Any]) -> None:
        self.store.own(self.id).memory = values

    def recall(self, name: str) -> Any:
        """Return a value of the client's memory, or None; it is for reading only.

        The server reads with it what it remembers of a client. A use of `memory` outside of the
        client's turns counts as a change of the client in this round, after which no turn of it is
        logged; this does not.
        """
        state = self.store.states.peek(self.id)
        return state.memory.get(name) if state else None

    @property
    def task(self) -> Task:
        """What the labels are, and the loss by which they are learned."""
        weighted = self.store.weighted_task
        if not weighted:
            return self.store.task
        labels = self.train.labels
        if self._task is None or self._task[0] is not labels:  # an attacker changes its labels
            self._task = labels, weighted(labels)
        return self._task[1]

    @property
    def n(self) -> int:
        """Number of training examples."""
        return len(self.train)

    @property
    def skeleton(self) -> Skeleton:
        """Flat buffers of this client's model; valid until another client's model is used."""
        return self.store.activate(self)

    @property
    def model(self) -> Model:
        """Module with this client's weights; valid until another client's model is used."""
        return self.skeleton.model

    def params(self, wanted: Callable[[str], bool] = lambda name: True) -> Params:
        """Return copies of the model's floating-point parameters and buffers with wanted names."""
        return self.skeleton.copies(wanted)

    def gradient(self) -> Params:
        """Return a copy of the gradient that was computed last, by parameter."""
        return Params(self.skeleton.gradients).clone()

    @contextmanager
    def borrowed(self) -> Iterator[Client]:
        """Yield the client, and restore its weights after the block."""
        before = self.skeleton.flat.clone()
        try:
            yield self
        finally:
            self.skeleton.load(before)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors of these names."""
        self.skeleton.assign(values)


class LazyClient(Client):
    """A client that makes its examples at their first use.

    Such a client may receive a model long before it trains, or only its state may be needed.
    data: makes its training and test examples, and those that it holds out.
    """

    def __init__(
        self,
        id: int,
        architecture: str,
        data: Callable[[], tuple[Shard, Shard, Shard | None]],
        store: ClientStore,
    ):
        self.id, self.architecture, self.store = id, architecture, store
        self._data = data

    @cached_property
    def _examples(self) -> tuple[Shard, Shard, Shard | None]:
        return self._data()

    @cached_property
    def train(self) -> Shard:  # type: ignore[override]  # a field there
        return self._examples[0]

    @property
    def test(self) -> Shard:  # type: ignore[override]  # a field there
        return self._examples[1]

    @property
    def validation(self) -> Shard | None:  # type: ignore[override]  # a field there
        return self._examples[2]


class Clients(Mapping[int, Client]):
    """Mapping from id to client for one rank, in id order; clients are made at their first use.

    What clients keep between rounds is in the store.
    placement: the rank of each client, shared with the federation.
    make: makes client k.
    """

    def __init__(self, placement: list[int], rank: int, make: Callable[[int], Client]):
        self.placement, self.rank, self.make = placement, rank, make
        self.objects: dict[int, Client] = {}

    def __contains__(self, k: object) -> bool:
        return 0 <= k < len(self.placement) and self.placement[k] == self.rank  # type: ignore[operator, call-overload]

    def __iter__(self) -> Iterator[int]:
        return (k for k, rank in enumerate(self.placement) if rank == self.rank)

    def __len__(self) -> int:
        return self.placement.count(self.rank)

    def __getitem__(self, k: int) -> Client:
        if k not in self:
            raise KeyError(k)
        if k not in self.objects:
            self.objects[k] = self.make(k)
        return self.objects[k]

    def trim(self, keep: Collection[int] = ()) -> None:
        """Discard the client objects that were made, if there are many, except these."""
        if len(self.objects) > MADE + len(keep):
            self.objects = {k: self.objects[k] for k in keep if k in self.objects}
