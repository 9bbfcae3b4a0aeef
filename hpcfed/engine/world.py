"""The world of a run: all that set-up decides, as one frozen value, the same on all ranks.

Rank 0 makes it (`hpcfed.engine.decide`), it is sent once, and each rank builds its part from it
(`hpcfed.engine.setup`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch

from hpcfed.clients.client import Shard
from hpcfed.clients.edges import EdgeMap
from hpcfed.clients.profiles import Profiles
from hpcfed.clients.traces import Trace
from hpcfed.config.sections import Shift
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.edge_cases import EdgeCases
from hpcfed.data.modalities import Held, mislabel
from hpcfed.data.partition import Partition
from hpcfed.data.shift import images_of, of_client
from hpcfed.data.synthetic import Synthetic

if TYPE_CHECKING:
    from hpcfed.config.job import Job

Label = TypeVar("Label", bound=Hashable)


@dataclass(frozen=True)
class World:
    """Facts about a run that never change.

    open: the split that has the public examples; public: their rows in it.
    costs: [K], estimated work of one epoch: multiply-adds times examples.
    profiles: the clients' devices and network, in virtual time.
    metrics: names of what evaluation measures.
    folder: of the run.
    modalities: modalities of each client, if there are several.
    held_out: [K], rows of the training split that each client holds out for validation; (): none.
    edges: edge server of each client, if there are edge servers.
    checksums: of the files of weights that models start from, by architecture.
    run_id: the identity of the run that is resumed; "": a new one.
    shift: how the images of clients differ.  seed: of the run.
    unseen: rows of the test split in the domain on which no client trains; None: there is none.
    edge_cases: images of an attack that no client has; None: there is no such attack.
    data_digests: of the examples, by array; a changed one is noticed when the run is resumed.
    file_digests: the same of the files of [system] and [edges], by the field that names the file.
    warnings: about job and data, one line each.
    """

    data: DataSet
    partition: Partition | Synthetic
    open: Split
    public: np.ndarray
    architectures: tuple[str, ...]
    costs: np.ndarray
    profiles: Profiles
    metrics: tuple[str, ...]
    folder: Path
    modalities: Held | None = None
    held_out: tuple[np.ndarray, ...] = ()
    edges: EdgeMap | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    warnings: tuple[str, ...] = ()
    shift: Shift = field(default_factory=Shift)
    seed: int = 0
    unseen: np.ndarray | None = None
    edge_cases: EdgeCases | None = None
    data_digests: Mapping[str, str] = field(default_factory=dict)
    file_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example, or `Shapes` for several modalities."""
        return self.data.shape

    @property
    def rows(self) -> Partition:
        """The partition of the data's rows, which a population has not."""
        assert isinstance(self.partition, Partition)
        return self.partition

    @property
    def many(self) -> bool:
        """Whether this is a population, whose clients make their own examples."""
        return isinstance(self.partition, Synthetic)

    @property
    def makes_examples(self) -> bool:
        """Whether clients have examples of their own in memory, not rows of the shared splits."""
        return self.many or self.shift.active

    def client_data(self, k: int, device: torch.device) -> tuple[Shard, Shard, Shard | None]:
        """Return client k's training and test examples, and those it holds out for validation."""
        if isinstance(self.partition, Synthetic):
            train, test = (Shard.of_split(s, device) for s in self.partition.client_data(k))
            return train, test, None
        rows = self.partition
        modalities, trained = None, None
        if self.modalities:
            modalities, trained = self.modalities.clients[k], self.modalities.train[k]
        validation = self.held_out[k] if self.held_out else None
        return (
            self.shard(k, "train", rows.train[k], device, trained),
            self.shard(k, "test", rows.test[k], device, modalities),
            None if validation is None else self.shard(k, "train", validation, device, modalities),
        )

    def shard(
        self,
        k: int,
        part: Literal["train", "test"],
        rows: np.ndarray,
        device: torch.device,
        only: Collection[str] | None = None,
    ) -> Shard:
        """Return these rows of a split as client k has them.  only: its modalities."""
        split = getattr(self.data, part)
        if not self.shift.active:
            return Shard(split.x, split.y, rows, device, only)
        change = of_client(self.shift, k, len(self.architectures))
        return Shard.of_split(change.apply(split, rows, self.seed, part), device)

    def common_test(self, rank: int, ranks: int, size: int, device: torch.device) -> Shard:
        """Return this rank's part of the test split on which the server's model is evaluated.

        If the images of clients differ, this split has the test examples of all clients.
        size: most examples of a batch.
        """
        test = self.data.test
        if not self.shift.active:
            return Shard.of_split(test, device).of_rank(rank, ranks, size)
        owners, rows = self.rows.tests()
        plain = Shard(test.x, test.y, rows, device, ids=np.arange(len(rows)))
        plain = plain.of_rank(rank, ranks, size)
        images = images_of(
            self.shift, len(self.architectures), self.seed, test.x, owners[plain.ids], plain.rows
        )
        shard = Shard(images, plain.labels, np.arange(len(plain)), device, ids=plain.ids)
        shard.lengths = plain.lengths
        return shard

    def to_tree(self) -> dict[str, Any]:
        """Return all but the data sets as plain values, to be sent to other ranks.

        A population follows from the job, and is not sent either.
        """
        rows = None if self.many else (self.rows.train, self.rows.test, self.rows.public)
        profiles = {name: compact(v) for name, v in vars(self.profiles).items() if name != "trace"}
        trace, edges, modalities = self.profiles.trace, self.edges, self.modalities
        return {
            "partition": rows,
            "public": self.public,
            "architectures": to_codes(self.architectures),
            "costs": compact(self.costs),
            "profiles": profiles | {"trace": trace and dict(vars(trace))},
            "metrics": self.metrics,
            "folder": str(self.folder),
            "modalities": modalities and [to_codes(modalities.clients), to_codes(modalities.train)],
            "held_out": self.held_out,
            "edges": edges and dict(vars(edges)),
            "checksums": dict(self.checksums),
            "run_id": self.run_id,
            "unseen": self.unseen,
            "edge_cases": self.edge_cases and list(self.edge_cases),
            "data_digests": dict(self.data_digests),
            "file_digests": dict(self.file_digests),
            "warnings": self.warnings,
        }

    @classmethod
    def from_tree(
        cls, job: Job, tree: dict[str, Any], data: DataSet, other: DataSet | None = None
    ) -> World:
        """Return the world of `to_tree` over these data sets (see `hpcfed.engine.decide.read`)."""
        rows, modalities, edges = tree.pop("partition"), tree["modalities"], tree["edges"]
        partition = Partition(*rows) if rows else population(job)
        public = (other or data).train  # with the true labels
        profiles, trace = tree["profiles"], tree["profiles"].pop("trace")
        profiles = {name: expand(values, job.clients) for name, values in profiles.items()}
        if trace:  # which changes a client's speed: this rank needs a copy of its own
            profiles |= {"speed": profiles["speed"].copy(), "trace": Trace(**trace)}
        decided = {
            "architectures": from_codes(tree["architectures"], job.clients),
            "costs": expand(tree["costs"], job.clients),
            "profiles": Profiles(**profiles),
            "folder": Path(tree["folder"]),
            "shift": job.shift,
            "seed": job.seed,
            "modalities": modalities
            and Held(*(from_codes(one, job.clients) for one in modalities)),
            "edges": edges and EdgeMap(**edges),
            "edge_cases": tree["edge_cases"] and EdgeCases(*tree["edge_cases"]),
        }
        data = of_clients(job, data, partition)
        return cls(data, partition, public, **tree | decided)


def population(job: Job) -> Synthetic:
    """Return the population of a job, whose clients make their own examples."""
    data = job.data
    return Synthetic(job.seed, job.clients, *data.synthetic, data.examples, data.test_share)


def natural_clients(job: Job, world: World) -> list[list[str]]:
    """Return the names of the natural clients whose examples each client has, [K].

    The list is empty if the partition is not natural, or if the data name nobody.
    """
    data, users = world.data, world.data.train.users
    natural = job.data.partition == "natural" and not job.data.partition_file
    if not natural or users is None or not data.user_names:
        return []
    return [[data.user_names[i] for i in np.unique(users[rows])] for rows in world.rows.train]


def of_clients(job: Job, data: DataSet, partition: Partition | Synthetic) -> DataSet:
    """Return the data as the clients have them: a population's own test split, or wrong labels."""
    if isinstance(partition, Synthetic):
        return replace(data, test=partition.common())
    if not job.data.wrong_labels:
        return data
    wrong = mislabel(data.train.y, partition, job.data.wrong_labels, len(data.classes), job.seed)
    return replace(data, train=replace(data.train, y=wrong))


def compact(values: np.ndarray) -> np.ndarray:
    """Return the values of all clients, or one value if all are equal."""
    return values if np.ptp(values) else values[:1].copy()


def expand(values: np.ndarray, clients: int) -> np.ndarray:
    """Return the values of all clients; if they are equal, as a view that takes no memory."""
    return np.broadcast_to(values, (clients,)) if len(values) == 1 else values


def to_codes(labels: Sequence[Any]) -> tuple[list[Any], np.ndarray]:
    """Return the different labels, and the number of each client's: few bytes per client."""
    numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    each = np.fromiter((numbers[label] for label in labels), np.int32, len(labels))
    return list(numbers), compact(each)


def from_codes(codes: tuple[list[Label], np.ndarray], clients: int) -> tuple[Label, ...]:
    """Return the labels of `to_codes`; clients with equal labels share one object."""
    labels, numbers = codes
    return tuple(labels[i] for i in expand(numbers, clients))
