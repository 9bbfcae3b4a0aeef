"""Federation: all that an algorithm may see and do; the one door between clients and server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from hpcfed import rng
from hpcfed.cluster.clock import Clock
from hpcfed.comm import codec
from hpcfed.errors import DivergedError
from hpcfed.params import Mean, Params
from hpcfed.payload import Tally, nbytes, not_finite, on_device

if TYPE_CHECKING:
    from hpcfed.client import Client, ClientStore, Shard
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job

T = TypeVar("T")
codec.register(Params, "params", dict, Params)


@dataclass(eq=False)
class Federation:
    """One per rank, the same on all but for `clients`, which are this rank's own."""

    job: Job
    comm: Comm
    clients: dict[int, Client]
    store: ClientStore
    architectures: tuple[str, ...]  # of all clients, by id
    sizes: tuple[int, ...]  # training examples of all clients, by id
    classes: int
    mean_pixel: tuple[float, ...]
    std_pixel: tuple[float, ...]
    device: torch.device
    public: Shard  # examples that no client holds; may be empty
    common: Shard  # this rank's part of the whole test split
    pool: Callable[[], Client] | None = None  # a client that holds all clients' data
    make: Callable[[int], Client] | None = None  # client k, without weights
    clock: Clock = field(default_factory=Clock)
    tally: dict[int, Tally] = field(default_factory=dict)
    partial: dict[int, int] = field(default_factory=dict)  # stragglers of this round: epochs or steps they do
    t: int = 0
    last_checkpoint: str = "no checkpoint yet"

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

    def initial(self, wanted: Callable[[str], bool]) -> Params:
        """The initial weights of client 0 with wanted names: what the server starts from."""
        model = self.store.initial(self.architectures[0], 0)
        return model.items(wanted).clone().map(lambda v: v.to(self.device))

    def down(self, client: Client, value: T) -> T:
        """Send a value to a client: its bytes are counted."""
        self.tally[client.id].down += nbytes(value)
        return value

    def mean(self, uploads: Iterable[tuple[int, Mean]], keep: Params, weights: Params | None = None) -> Params:
        """The exact weighted mean over all clients of all ranks; collective, the same bits for any ranks.

        uploads: (client id, its part), one after the other.  keep: values where the weights sum to 0, and the
        shapes.  weights: shapes of the weights where they are tensors.  Raises DivergedError for a value that
        is nan or infinite, naming client and tensor.
        """
        rows = []
        for k, part in uploads:
            self.upload(k, [value for value, _ in part.parts], part.nbytes)
            rows.extend(part.rows())
        if not keep:
            return keep
        self.wait()
        with self.clock("communicate"):
            return Mean.divide(self.comm.sum(rows, Mean.shapes(keep, weights)), keep)

    def gather(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """All clients' values, by id, on all ranks; collective; bytes are counted as uploads."""
        for k, value in by_client.items():
            self.upload(k, value, nbytes(value))
        self.wait()
        with self.clock("communicate"):
            return self.comm.gather(dict(by_client))

    def on_root(self, fn: Callable[[], T]) -> T:
        """The result of server-side work: done on rank 0, then sent to all ranks; collective."""
        value = fn() if self.comm.rank == 0 else None
        self.wait()
        with self.clock("communicate"):
            return self.comm.bcast(value)

    def pooled(self) -> Client:
        """A client that holds all clients' data, for training without a federation; its id is K."""
        assert self.pool is not None
        self.tally.setdefault(self.K, Tally())
        return self.pool()

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

    def wait(self) -> None:
        """Until all ranks are here; what the slowest rank costs the others is timed apart."""
        with self.clock("wait"):
            self.comm.barrier()

    def work(self, client: Client, epochs: int | None = None) -> int:
        """Epochs (or steps, where the job counts in steps) that the client completes in this round."""
        full = self.job.local.steps or self.job.local.epochs
        return epochs or self.partial.get(client.id, full)

    def note(self, client: Client, losses: np.ndarray, examples: list[int], seconds: float) -> None:
        """Add a stretch of local training to the client's tally: mean losses and sizes of its batches."""
        tally = self.tally[client.id]
        tally.loss += float(losses @ np.array(examples, dtype=float))
        tally.examples += sum(examples)
        tally.epochs += sum(examples) / client.n
        tally.seconds += seconds
        self.clock.add("train", seconds)

    def upload(self, k: int, value: Any, size: int) -> None:
        """What client k sends: counted, and refused with a DivergedError where it is not finite."""
        self.tally[k].up += size
        if name := not_finite(value):
            raise DivergedError(
                f"{self.where(self.clients.get(k))}: its {name} is nan or infinite after round {self.t + 1}; "
                f"{self.last_checkpoint}\n  a smaller local.lr may help"
            )

    def where(self, client: Client | None) -> str:
        """Rank and client, as error messages name them."""
        who = f"client {client.id} ({client.architecture})" if client else "server"
        return f"rank {self.comm.rank} of {self.comm.size}: {who}"


def stragglers(job: Job, t: int, cohort: list[int]) -> dict[int, int]:
    """The stragglers of round t and the epochs (or steps) they do: uniform in 1..all, as in FedProx, sec. 5.2."""
    g, full = rng.stream(job.seed, "stragglers", t), job.local.steps or job.local.epochs
    slow = g.choice(cohort, round(job.local.stragglers * len(cohort)), replace=False)
    return {int(k): int(g.integers(1, full + 1)) for k in sorted(slow)}
