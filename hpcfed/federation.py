"""Federation: all that an algorithm may see and do; the one door between clients and server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed import rng
from hpcfed.data.augment import prepare
from hpcfed.exchange import Exchange
from hpcfed.params import Params
from hpcfed.payload import Tally, on_device

if TYPE_CHECKING:
    from hpcfed.client import Client, ClientStore, Shard
    from hpcfed.config.job import Job
    from hpcfed.models.flat import Skeleton


@dataclass(eq=False, kw_only=True)
class Federation(Exchange):
    """One per rank, the same on all but for `clients`, which are this rank's own."""

    job: Job
    store: ClientStore
    architectures: tuple[str, ...]  # of all clients, by id
    sizes: tuple[int, ...]  # training examples of all clients, by id
    label_counts: np.ndarray  # [K, C], training examples of each class that each client has
    classes: int
    mean_pixel: tuple[float, ...]
    std_pixel: tuple[float, ...]
    device: torch.device
    public: Shard  # examples that no client holds; may be empty
    common: Shard  # this rank's part of the whole test split
    pool: Callable[[], Client] | None = None  # a client that holds all clients' data
    make: Callable[[int], Client] | None = None  # client k, without weights
    partial: dict[int, int] = field(default_factory=dict)  # stragglers of this round: epochs or steps they do

    @property
    def K(self) -> int:
        return self.job.clients

    @property
    def seed(self) -> int:
        return self.job.seed

    @property
    def d(self) -> int:
        return self.job.models.d

    def begin(self, t: int, cohort: list[int], keep_stragglers: bool) -> list[int]:
        """Open round t: new tallies, stragglers drawn. Returns the clients that will report."""
        self.t, self.tally = t, {k: Tally() for k in self.clients}
        self.partial = stragglers(self.job, t, cohort)
        return [k for k in cohort if keep_stragglers or k not in self.partial]

    def sample(self, t: int, p: np.ndarray | None = None) -> list[int]:
        """A cohort of max(1, ceil(participation K)) clients without replacement, in id order; the same on all ranks.

        p: probability of each client, [K]; uniform by default.
        """
        m = max(1, math.ceil(self.job.participation * self.K - 1e-9))
        chosen = rng.stream(self.seed, "cohort", t).choice(self.K, m, replace=False, p=p)
        return sorted(int(k) for k in chosen)

    def mine(self, cohort: Iterable[int]) -> list[Client]:
        """This rank's clients of the cohort, in id order."""
        return [self.clients[k] for k in cohort if k in self.clients]

    def prepare(self, x: Tensor) -> Tensor:
        """A batch as it is stored, [n, *shape], to what models take: images normalised, tokens as they are."""
        return prepare(x, self.mean_pixel, self.std_pixel)

    def initial(self, wanted: Callable[[str], bool] = lambda name: True, k: int = 0, architecture: str = "") -> Params:
        """The initial weights of client k with wanted names: those of client 0 are what the server starts from.

        architecture: another one than that of client k.
        """
        model = self.store.initial(architecture or self.architectures[k], k)
        return model.items(wanted).clone().map(lambda v: v.to(self.device))

    def pooled(self) -> Client:
        """A client that holds all clients' data, for training without a federation; its id is K."""
        assert self.pool is not None
        self.tally.setdefault(self.K, Tally())
        return self.pool()

    def draw_public(self, t: int, n: int) -> np.ndarray:
        """n of the public examples, drawn anew for round t, the same on all ranks; all of them where n is larger."""
        N = len(self.public)
        return np.sort(rng.stream(self.seed, "public", t).choice(N, min(n, N), replace=False))

    def module(self, architecture: str) -> Skeleton:
        """A module of this architecture for the server's own work; no client's weights are ever in it."""
        return self.store.skeleton(architecture, "server")

    def hand_over(self, k: int, src: int, dst: int) -> None:
        """Move client k, with weights and memory, from one rank to another; collective."""
        rank, leaving = self.comm.rank, self.clients.pop(k, None)
        parcel = {"weights": self.store.flat(k), "memory": leaving.memory} if leaving else None
        parcel = self.comm.move(parcel, src, dst)
        self.store.drop(k)
        if rank == dst:
            self.clients[k] = self.make(k)
            self.restore(k, parcel)
            self.clients = dict(sorted(self.clients.items()))

    def restore(self, k: int, saved: dict[str, Any]) -> None:
        """Give client k of this rank saved weights and memory."""
        self.store.put(k, saved["weights"])
        self.clients[k].memory = on_device(saved["memory"], self.device)

    def work(self, client: Client, epochs: int | None = None) -> int:
        """Epochs (or steps, where the job counts in steps) that the client completes in this round."""
        full = self.job.local.steps or self.job.local.epochs
        return epochs or self.partial.get(client.id, full)

    def note(self, client: Client, losses: np.ndarray, examples: list[int], seconds: float, own: bool = True) -> None:
        """Add a stretch of local training to the client's tally: mean losses and sizes of its batches.

        own: on its own examples; training on others' (public data) is work, but no epoch and no training loss.
        """
        tally = self.tally[client.id]
        tally.work += sum(examples)
        tally.seconds += seconds
        if own:
            tally.loss += float(losses @ np.array(examples, dtype=float))
            tally.examples += sum(examples)
            tally.epochs += sum(examples) / client.n
        self.clock.add("train", seconds)


def stragglers(job: Job, t: int, cohort: list[int]) -> dict[int, int]:
    """The stragglers of round t and the epochs (or steps) they do: uniform in 1..all, as in FedProx, sec. 5.2."""
    g, full = rng.stream(job.seed, "stragglers", t), job.local.steps or job.local.epochs
    slow = g.choice(cohort, round(job.local.stragglers * len(cohort)), replace=False)
    return {int(k): int(g.integers(1, full + 1)) for k in sorted(slow)}
