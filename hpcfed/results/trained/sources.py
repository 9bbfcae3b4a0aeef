"""The data of a finished run, read when they are first used: most models need none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from hpcfed.clients.client import Client, Shard
from hpcfed.clients.store import ClientStore
from hpcfed.config.job import Job
from hpcfed.data import datasets, modalities, shift
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.partition_file import Partition
from hpcfed.data.synthetic import Synthetic
from hpcfed.storage import names

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sources:
    """The data of a run's clients.

    run_id: the run's identity in its files; "" if unknown.
    Properties raise DataError if the data no longer exist.
    """

    job: Job
    run: Path
    run_id: str = ""

    @cached_property
    def data(self) -> DataSet:
        return datasets.load_clients(self.job)

    def held(self, names: tuple[str, ...]) -> modalities.Held:
        """Return which client has which of these modalities of the data, as the run drew it."""
        job, cache = self.job, self._held
        if names not in cache:
            cache[names] = modalities.assign(
                names,
                job.modalities,
                job.clients,
                job.seed,
                lambda k: modalities.present(self.data.train, self.shares.train[k]),
            )
        return cache[names]

    @cached_property
    def _held(self) -> dict[tuple[str, ...], modalities.Held]:
        """Cache of `held`."""
        return {}

    @cached_property
    def partition(self) -> Partition | Synthetic:
        """The partition that the run wrote."""
        job, data = self.job, self.job.data
        if data.name == "synthetic":
            return Synthetic(job.seed, job.clients, *data.synthetic, data.examples, data.test_share)
        return Partition.load(names.partition_file(self.run), self.run_id)

    @cached_property
    def shares(self) -> Partition:
        """The partition, after checking that it fits these data."""
        rows, data = self.partition, self.data
        assert isinstance(rows, Partition)  # a population has no rows
        path = names.partition_file(self.run)
        rows.check(path, self.job.clients, data.name, len(data.train.y), len(data.test.y))
        return rows

    @property
    def label_counts(self) -> np.ndarray | Synthetic:
        """Training examples of each class that each client has, [K, C]."""
        return self.partition.counts(self.data.train.y, self.data.task, len(self.data.classes))

    @property
    def test(self) -> Split:
        """The test split; if the images of clients differ, the test examples of all of them."""
        if isinstance(self.partition, Synthetic):
            return self.partition.common()
        test, job = self.data.test, self.job
        if not job.shift.active:
            return test
        owners, rows = self.shares.tests()
        x = shift.images_of(job.shift, job.clients, job.seed, test.x, owners, rows)
        return Split(x, test.y[rows])

    def client_data(self, k: int, which: str) -> Shard:
        """Return examples of client k, as it has them. which: "train" or "test"."""
        if isinstance(self.partition, Synthetic):
            return Shard.of_split(self.partition.client_data(k)[which == "test"], CPU)
        split, rows, only = getattr(self.data, which), getattr(self.shares, which)[k], None
        if self.data.modalities:
            assignment = self.held(self.data.modalities)
            only = (assignment.train if which == "train" else assignment.clients)[k]
        if self.job.shift.active:
            change = shift.of_client(self.job.shift, k, self.job.clients)
            return Shard.of_split(change.apply(split, rows, self.job.seed, which), CPU)
        return Shard(split.x, split.y, rows, CPU, only)


class Owner(Client):
    """A client whose examples are read when they are first used."""

    def __init__(self, k: int, architecture: str, sources: Sources, store: ClientStore):
        self.id, self.architecture, self.sources, self.store = k, architecture, sources, store

    @cached_property
    def train(self) -> Shard:  # type: ignore[override]  # read when it is first used
        return self.sources.client_data(self.id, "train")

    @cached_property
    def test(self) -> Shard:  # type: ignore[override]
        return self.sources.client_data(self.id, "test")
