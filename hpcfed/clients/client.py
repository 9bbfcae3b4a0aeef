"""A client, its examples, and all clients of one rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.inputs import Inputs, join
from hpcfed.core.params import Params
from hpcfed.core.shapes import each, parts

if TYPE_CHECKING:
    from hpcfed.clients.store import ClientStore
    from hpcfed.models import Model
    from hpcfed.models.flat import Skeleton

MADE = 1000  # clients that may be there between rounds; more are made anew when they are used


class Shard:
    """Some examples of a split: all examples in memory that ranks share, and the rows that are
    meant.

    On the CPU each batch is gathered from the shared memory; on a GPU the rows are copied there
    once.
    x: an array, or a dict of arrays by modality; a batch's inputs are then such a dict, of the
    modalities in `only`.
    """

    def __init__(
        self,
        x: Any,
        y: np.ndarray,
        rows: np.ndarray,
        device: torch.device,
        only: Collection[str] | None = None,
    ):
        if only is not None:
            x = {name: part for name, part in x.items() if name in only}
        self.x, self.rows, self.device = x, rows, device
        self.labels = y[rows]  # [n], int64, on the host
        self._resident: Inputs | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def values(self) -> int:
        """Values of one example."""
        return sum(math.prod(part.shape[1:]) for part in parts(self.x))

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that these examples have; none where inputs are of one kind."""
        return tuple(self.x) if isinstance(self.x, Mapping) else ()

    def holds(self, other: Shard) -> bool:
        """Whether all examples of another shard are of this one."""
        if other.rows is self.rows:
            return True
        return same(other.x, self.x) and bool(np.isin(other.rows, self.rows).all())

    def pick(self, which: np.ndarray) -> Shard:
        """The examples at these positions."""
        part = copy(self)
        part.rows, part.labels, part._resident = self.rows[which], self.labels[which], None
        return part

    def targets(self, which: np.ndarray) -> Tensor:
        """Labels [b] of these positions, on the device."""
        return torch.from_numpy(self.labels[which]).to(self.device, non_blocking=True)

    def batch(self, which: np.ndarray) -> tuple[Any, Tensor]:
        """Inputs [b, *shape] as they are stored, by modality where there are several, and labels
        [b], on the device. which: positions 0..n-1.
        """
        y = self.targets(which)
        if self.device.type == "cpu":
            rows = self.rows[which]
            return each(self.x, lambda x: torch.from_numpy(x[rows])), y
        at = torch.from_numpy(which).to(self.device, non_blocking=True)
        return each(self.resident, lambda x: x[at]), y

    @property
    def resident(self) -> Any:
        """All inputs [n, *shape] on the device; copied there at the first use."""
        if self._resident is None:
            self._resident = each(self.x, lambda x: torch.from_numpy(x[self.rows]).to(self.device))
        return self._resident


def concat_shards(shards: Sequence[Shard]) -> Shard:
    """The examples of several shards, one after the other; all have the same modalities."""
    first = copy(shards[0])
    if all(same(s.x, first.x) for s in shards):
        first.rows = np.concatenate([s.rows for s in shards])
    else:  # a population's clients have memory of their own
        if isinstance(first.x, Mapping):
            first.x = {m: np.concatenate([s.x[m][s.rows] for s in shards]) for m in first.x}
        else:
            first.x = np.concatenate([s.x[s.rows] for s in shards])
        first.rows = np.arange(sum(map(len, shards)))
    first.labels = np.concatenate([s.labels for s in shards])
    first._resident = None if first.device.type == "cpu" else join(s.resident for s in shards)
    return first


def same(x: Any, other: Any) -> bool:
    """Whether two shards have the same arrays."""
    both = isinstance(x, Mapping), isinstance(other, Mapping)
    if not all(both):
        return x is other
    return list(x) == list(other) and all(x[name] is other[name] for name in x)


class Paired(Shard):
    """The same examples with other targets: soft predictions, or a pair of label and teacher's
    logits.

    targets: [n, ...], one row a position of the shard.  with_labels: targets come as (labels,
    target rows).
    """

    def __init__(self, shard: Shard, targets: Tensor, with_labels: bool = False):
        self.__dict__ = dict(shard.__dict__)
        self.soft, self.with_labels = targets.to(shard.device), with_labels

    def targets(self, which: np.ndarray) -> Any:
        soft = self.soft[torch.from_numpy(which).to(self.device, non_blocking=True)]
        return (super().targets(which), soft) if self.with_labels else soft


class Extended(Shard):
    """A client's own examples, and after them others that a method has made for it: training on
    them is training on its own.
    """

    def __init__(self, own: Shard, made: Shard):
        self.__dict__ = dict(concat_shards([own, made]).__dict__)
        self.own = own

    def holds(self, other: Shard) -> bool:
        return self.own.holds(other)


@dataclass(eq=False)
class Client:
    """One data holder."""

    id: int
    architecture: str
    train: Shard
    test: Shard
    store: ClientStore
    validation: Shard | None = None  # held out of its training examples (evaluate.validation)

    @property
    def memory(self) -> dict[str, Any]:
        """Kept between rounds and saved: tensors and numbers by name.

        Ask for it anew after using other clients.
        """
        return self.store.own(self.id).memory

    @memory.setter
    def memory(self, values: dict[str, Any]) -> None:
        self.store.own(self.id).memory = values

    @property
    def n(self) -> int:
        """Training examples."""
        return len(self.train)

    @property
    def skeleton(self) -> Skeleton:
        """The flat buffers of this client's model; valid until another client's model is used."""
        return self.store.activate(self)

    @property
    def model(self) -> Model:
        """The module with this client's weights; valid until another client's model is used."""
        return self.skeleton.model

    def params(self, wanted: Callable[[str], bool] = lambda name: True) -> Params:
        """Copies of the model's floating tensors with wanted names: parameters and buffers."""
        return Params(self.skeleton.items(wanted)).clone()

    @contextmanager
    def borrowed(self) -> Iterator[Client]:
        """The client, whose weights are after the block as they were before it."""
        before = self.skeleton.flat.clone()
        try:
            yield self
        finally:
            self.skeleton.load(before)

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors of these names."""
        skeleton = self.skeleton
        for name, value in values.items():
            skeleton.view(name).copy_(value)


class PopulationClient(Client):
    """A client that makes its examples when they are first asked for, and not before: one of a
    large population may be sent a model long before it works, or only be asked for what it keeps.

    data: makes its training and test examples.
    """

    def __init__(
        self,
        id: int,
        architecture: str,
        data: Callable[[], tuple[Shard, Shard]],
        store: ClientStore,
    ):
        self.id, self.architecture, self.store = id, architecture, store
        self.validation, self._data = None, data

    @cached_property
    def _examples(self) -> tuple[Shard, Shard]:
        return self._data()

    @property
    def train(self) -> Shard:  # type: ignore[override]  # a field there
        return self._examples[0]

    @property
    def test(self) -> Shard:  # type: ignore[override]  # a field there
        return self._examples[1]


class Clients(Mapping[int, Client]):
    """One rank's clients by id, in id order, each made when it is asked for: what they keep is in
    the store.

    placement: the rank of each client, shared with the federation.  make: client k.
    """

    def __init__(self, placement: list[int], rank: int, make: Callable[[int], Client]):
        self.placement, self.rank, self.make = placement, rank, make
        self.made: dict[int, Client] = {}

    def __contains__(self, k: object) -> bool:
        return 0 <= k < len(self.placement) and self.placement[k] == self.rank  # type: ignore[operator, call-overload]

    def __iter__(self) -> Iterator[int]:
        return (k for k, rank in enumerate(self.placement) if rank == self.rank)

    def __len__(self) -> int:
        return self.placement.count(self.rank)

    def __getitem__(self, k: int) -> Client:
        if k not in self:
            raise KeyError(k)
        if k not in self.made:
            self.made[k] = self.make(k)
        return self.made[k]

    def trim(self, keep: Collection[int] = ()) -> None:
        """Forget the clients that were made, where they are many, but for these."""
        if len(self.made) > MADE + len(keep):
            self.made = {k: self.made[k] for k in keep if k in self.made}
