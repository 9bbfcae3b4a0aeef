"""Facts about a job that are the same on all ranks and never change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcfed.clients.client import Shard
from hpcfed.clients.edges import EdgeMap
from hpcfed.clients.profiles import Profiles
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.modalities import Held
from hpcfed.data.partition import Partition
from hpcfed.data.synthetic import Synthetic


@dataclass(frozen=True)
class World:
    """Data, partition and architectures of a job."""

    data: DataSet
    partition: Partition | Synthetic
    open: Split  # the split that holds the public examples
    public: np.ndarray  # rows of the public examples in `open`
    architectures: tuple[str, ...]
    costs: np.ndarray  # [K], estimated work of one epoch: multiply-adds times examples
    profiles: Profiles  # the clients' devices and network, in virtual time
    held: Held | None = None  # modalities of each client, if there are several
    # rows of the training split that each client holds out for validation, [K]; (): none
    held_out: tuple[np.ndarray, ...] = ()
    edges: EdgeMap | None = None  # edge server of each client, if there are edge servers

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example, or `Shapes` for several modalities."""
        return self.data.shape

    def validation(self, k: int, device: torch.device) -> Shard | None:
        """Return the validation examples that client k holds out, or None without validation."""
        if not self.held_out:
            return None
        train, own = self.data.train, self.held.own[k] if self.held else None
        return Shard(train.x, train.y, self.held_out[k], device, own)

    @property
    def rows(self) -> Partition:
        """The partition of the data's rows, which a population has not."""
        assert isinstance(self.partition, Partition)
        return self.partition

    @property
    def many(self) -> bool:
        """Whether this is a population, whose clients make their own examples."""
        return isinstance(self.partition, Synthetic)

    def client_data(self, k: int, device: torch.device) -> tuple[Shard, Shard]:
        """Return the training and test examples of client k."""
        if isinstance(self.partition, Synthetic):
            first, second = (
                Shard(s.x, s.y, np.arange(len(s.y)), device) for s in self.partition.client_data(k)
            )
            return first, second
        train, test, rows = self.data.train, self.data.test, self.partition
        own, trained = (self.held.own[k], self.held.train[k]) if self.held else (None, None)
        return Shard(train.x, train.y, rows.train[k], device, trained), Shard(
            test.x, test.y, rows.test[k], device, own
        )
