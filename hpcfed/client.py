"""A client and the store that holds all clients of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed import rng
from hpcfed.models import build
from hpcfed.models.flat import Layout, Skeleton
from hpcfed.models.widths import Units, parse, structure
from hpcfed.params import Params

if TYPE_CHECKING:
    from hpcfed.models import Model


class Shard:
    """Some examples of a split: all examples in memory that ranks share, and the rows that are meant.

    On the CPU each batch is gathered from the shared memory; on a GPU the rows are copied there once.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, rows: np.ndarray, device: torch.device):
        self.x, self.rows, self.device = x, rows, device
        self.labels = y[rows]  # [n], int64, on the host
        self._resident: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, which: np.ndarray) -> Shard:
        """The examples at these positions."""
        part = copy(self)
        part.rows, part.labels, part._resident = self.rows[which], self.labels[which], None
        return part

    def targets(self, which: np.ndarray) -> Tensor:
        """Labels [b] of these positions, on the device."""
        return torch.from_numpy(self.labels[which]).to(self.device, non_blocking=True)

    def batch(self, which: np.ndarray) -> tuple[Tensor, Tensor]:
        """Inputs [b, *shape] as they are stored, and labels [b], on the device. which: positions 0..n-1."""
        y = self.targets(which)
        if self.device.type == "cpu":
            return torch.from_numpy(self.x[self.rows[which]]), y
        if self._resident is None:
            self._resident = torch.from_numpy(self.x[self.rows]).to(self.device)
        return self._resident[torch.from_numpy(which).to(self.device)], y


class Paired(Shard):
    """The same examples with other targets: soft predictions, or a pair of label and teacher's logits.

    targets: [n, ...], one row a position of the shard.  with_labels: targets come as (labels, target rows).
    """

    def __init__(self, shard: Shard, targets: Tensor, with_labels: bool = False):
        self.__dict__ = dict(shard.__dict__)
        self.soft, self.with_labels = targets.to(shard.device), with_labels

    def targets(self, which: np.ndarray) -> Any:
        soft = self.soft[torch.from_numpy(which).to(self.device)]
        return (super().targets(which), soft) if self.with_labels else soft


@dataclass(eq=False)
class Client:
    """One data holder. `memory` is kept between rounds and saved: tensors and numbers by name."""

    id: int
    architecture: str
    train: Shard
    test: Shard
    store: ClientStore
    memory: dict[str, Any] = field(default_factory=dict)

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
        yield self
        self.skeleton.load(before)

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the tensors of these names."""
        skeleton = self.skeleton
        for name, value in values.items():
            skeleton.view(name).copy_(value)


class ClientStore:
    """The models of one rank's clients: one module per architecture, one flat vector of weights per client.

    Never two copies of a model where one serves: a client's vector is copied into the module of its
    architecture when it is used, and back when another client of that architecture is.
    """

    def __init__(
        self, seed: int, shape: tuple[int, ...], classes: int, d: int, relu_head: bool, device: torch.device,
        vocabulary: int = 0,
    ):  # fmt: skip
        self.seed, self.device = seed, device
        self.build = lambda name, other=None: build(name, other or shape, classes, d, relu_head, vocabulary)
        self.form = (shape, classes, d)
        self.layouts: dict[str, Layout] = {}
        self.skeletons: dict[tuple[str, str], Skeleton] = {}  # by architecture and owner
        self.active: dict[str, int] = {}  # architecture -> the client whose weights are in its module
        self.weights: dict[int, Tensor] = {}  # of all clients but the active ones
        self.stateless = False  # every tensor is received anew each round: clients have no weights of their own

    def skeleton(self, architecture: str, owner: str = "clients", shape: tuple[int, ...] | None = None) -> Skeleton:
        """The module of an architecture, whoever's weights it holds; other owners have modules of their own.

        shape: of its inputs, where they are others than the examples.
        """
        if (architecture, owner) not in self.skeletons:
            with rng.scoped(self.seed, "module", architecture):
                self.skeletons[architecture, owner] = Skeleton(self.build(architecture, shape), self.device)
        return self.skeletons[architecture, owner]

    def layout(self, architecture: str) -> Layout:
        """The names and shapes of an architecture's tensors; found once, without weights."""
        if architecture not in self.layouts:
            with torch.device("meta"):
                self.layouts[architecture] = Layout.of(self.build(architecture))
        return self.layouts[architecture]

    def units(self, architecture: str) -> Units:
        """What sub-models of this architecture's full width are cut from. ConfigError where it cannot be cut."""
        return structure(parse(architecture).base, *self.form)

    def initial(self, architecture: str, k: int, shape: tuple[int, ...] | None = None) -> Skeleton:
        """A new model, on the CPU, with the weights that client k starts from: the same on every rank."""
        with rng.scoped(self.seed, "init", k):
            return Skeleton(self.build(architecture, shape))

    def activate(self, client: Client) -> Skeleton:
        """The module of the client's architecture, with the client's weights in it."""
        skeleton = self.skeleton(client.architecture)
        if self.active.get(client.architecture) != client.id:
            self.rest(client.architecture)
            if (flat := self.weights.pop(client.id, None)) is not None:
                skeleton.load(flat)
            elif not self.stateless:
                skeleton.load(self.initial(client.architecture, client.id).flat)
            self.active[client.architecture] = client.id
        return skeleton

    def rest(self, architecture: str) -> None:
        """Put the active client's weights back into its vector."""
        k = self.active.pop(architecture, None)
        if k is not None:
            self.weights[k] = self.skeleton(architecture).flat.clone()

    def flat(self, k: int) -> Tensor | None:
        """Client k's weights, or None if it has none of its own yet."""
        for architecture in [a for a, active in self.active.items() if active == k]:
            self.rest(architecture)
        return self.weights.get(k)

    def put(self, k: int, flat: Tensor | None) -> None:
        """Give client k these weights."""
        self.drop(k)
        if flat is not None:
            self.weights[k] = flat.to(self.device)

    def drop(self, *ks: int) -> None:
        """Forget these clients' weights; they would start from their initial ones again."""
        self.active = {a: active for a, active in self.active.items() if active not in ks}
        for k in ks:
            self.weights.pop(k, None)
