"""Federation: all that an algorithm may see and do; the one door between clients and server."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hpcfed.clients.turnout import Draws, Turnout
from hpcfed.core import rng
from hpcfed.core.inputs import prepare
from hpcfed.core.params import Params
from hpcfed.core.payload import Tally
from hpcfed.federation.turns import Turns

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.clients.profiles import Profiles
    from hpcfed.models.flat import Skeleton


@dataclass(eq=False, kw_only=True)
class Federation(Turns):
    """One per rank, the same on all but for `clients`, which are this rank's own."""

    architectures: tuple[str, ...]  # of all clients, by id
    sizes: Sequence[int]  # training examples of all clients, by id
    costs: Sequence[float]  # estimated work of one epoch of each client, by id
    label_counts: Sequence[
        np.ndarray
    ]  # [K, C], training examples of each class that each client has
    classes: int
    profiles: Profiles  # the clients' devices and network, in virtual time
    mean_pixel: tuple[float, ...]
    std_pixel: tuple[float, ...]
    public: Shard  # examples that no client holds; may be empty
    common: Shard  # this rank's part of the whole test split
    metrics: tuple[str, ...] = ("accuracy",)  # what evaluation measures (`config.metrics`)
    test_sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [K], by id
    pool: Callable[[], Client] | None = None  # a client that holds all clients' data
    graphs: bool = True  # whether steps may be captured, where the job leaves it open
    turnout: Turnout = field(default_factory=Turnout)  # who reports in this round, and who is lost
    partial: dict[int, int] = field(
        default_factory=dict
    )  # of this round: epochs or steps of those who do not do all

    _announced: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)

    @property
    def draws(self) -> Draws:
        """What becomes of clients in virtual time."""
        return Draws(self.seed, self.job.system, self.job.local, self.profiles, self.sizes)

    @cached_property
    def largest(self) -> int:
        """Training examples of the client that has most."""
        return int(max(self.sizes))

    @property
    def K(self) -> int:
        """Number of clients."""
        return self.job.clients

    @property
    def seed(self) -> int:
        """The job's seed."""
        return self.job.seed

    @property
    def d(self) -> int:
        """Units of the representation (`models.d`)."""
        return self.job.models.d

    def begin(self, t: int, cohort: list[int], keep_stragglers: bool) -> list[int]:
        """Open round t: new tallies; absent clients, stragglers and drop-outs drawn. Returns who
        will report.

        Who is lost received what the method announces, and worked, but sends nothing: that is
        counted. So is who has failed in the round (`journal`).
        """
        self.open(t)
        there = [k for k in cohort if self.draws.reachable(t, k)]
        slow = self.draws.stragglers(t, there)
        turnout = self.draws.turnout(t, there, slow, keep_stragglers, self.announced)
        self.turnout = turnout.without(self.journal.left, self.draws)
        self.partial = self.turnout.partial
        for k, examples in self.turnout.lost.items():
            self.lose(k, examples)
        return self.turnout.reports

    def open(self, t: int) -> None:
        """Round t begins: nothing has been done or sent."""
        self.t, self.tally, self.turnout, self.partial = t, defaultdict(Tally), Turnout(), {}

    def lose(self, k: int, examples: float) -> None:
        """Count what a client that never reports received, and the examples that it worked
        through.
        """
        if k in self.clients:
            self.tally[k].down += self.announced(k)[0]
            self.tally[k].work += examples

    def announced(self, k: int) -> tuple[int, int]:
        """Bytes that the method says client k receives and sends in one round; asked once."""
        if k not in self._announced:
            self._announced[k] = self.job.algorithm.traffic(self, k)
        return self._announced[k]

    @property
    def cohort_size(self) -> int:
        """Clients of a round's cohort: max(1, ceil(participation K))."""
        return max(1, math.ceil(self.job.participation * self.K - 1e-9))

    def sample(self, t: int, p: np.ndarray | None = None) -> list[int]:
        """A cohort of max(1, ceil(participation K)) clients without replacement, in id order; the
        same on all ranks.

        p: probability of each client, [K]; uniform by default.
        """
        chosen = rng.stream(self.seed, "cohort", t).choice(
            self.K, self.cohort_size, replace=False, p=p
        )
        return sorted(chosen.tolist())

    def prepare(self, x: Tensor) -> Tensor:
        """A batch as it is stored, [n, *shape], to what models take: images normalised, tokens as
        they are.
        """
        self.pulse.beats += 1
        return prepare(x, self.mean_pixel, self.std_pixel)

    def initial(
        self,
        wanted: Callable[[str], bool] = lambda name: True,
        k: int = 0,
        architecture: str = "",
        shape: tuple[int, ...] | None = None,
    ) -> Params:
        """The initial weights of client k with wanted names: those of client 0 are what the server
        starts from.

        architecture: another one than that of client k.  shape: of its inputs, where they are no
        examples.
        """
        model = self.store.initial(architecture or self.architectures[k], k, shape)
        return model.items(wanted).clone().map(lambda v: v.to(self.device))

    def shapes(
        self, wanted: Callable[[str], bool] = lambda name: True, k: int = 0, architecture: str = ""
    ) -> Params:
        """The tensors of `initial` without values: for their names, shapes and bytes, which cost
        nothing so.
        """
        layout = self.store.layout(architecture or self.architectures[k])
        named = zip(layout.names, layout.shapes, strict=True)
        return Params(
            {name: torch.empty(shape, device="meta") for name, shape in named if wanted(name)}
        )

    def start_alike(self) -> None:
        """Give all clients the initial weights of client 0."""
        first = self.initial()
        for client in self.clients.values():
            client.load(first)

    def chunks(self, n: int) -> list[np.ndarray]:
        """Positions 0..n-1 in parts of at most evaluate.batch, as many as pass a model at a
        time.
        """
        rows, parts = np.arange(n), -(-n // self.job.evaluate.batch)
        return np.array_split(rows, parts) if parts > 1 else [rows]

    def pooled(self) -> Client:
        """A client that holds all clients' data, for training without a federation; its id is K."""
        assert self.pool is not None
        return self.pool()

    def draw_public(self, t: int, n: int) -> np.ndarray:
        """n of the public examples, drawn anew for round t, the same on all ranks; all of them
        where n is larger.
        """
        N = len(self.public)
        return np.sort(rng.stream(self.seed, "public", t).choice(N, min(n, N), replace=False))

    def module(self, architecture: str, shape: tuple[int, ...] | None = None) -> Skeleton:
        """A module of this architecture for the server's own work; no client's weights are ever in
        it.

        shape: of its inputs, where they are no examples but a client's feature maps, say.
        """
        return self.store.skeleton(architecture, f"server {shape}" if shape else "server", shape)

    def work(self, client: Client, epochs: int | None = None) -> int:
        """Epochs (or steps, where the job counts in steps) that the client completes in this
        round.
        """
        full = self.job.local.steps or self.job.local.epochs
        return epochs or self.partial.get(client.id, full)

    def note(
        self,
        client: Client,
        losses: np.ndarray,
        examples: list[int],
        seconds: float,
        own: bool = True,
        views: int = 1,
        once: float = 0.0,
    ) -> None:
        """Add a stretch of local training to the client's tally: mean losses and sizes of its
        batches.

        own: on its own examples; training on others' (public data) is work, but no epoch and no
        training loss.
        views: copies of each example that went through the model.
        once: of the seconds, those of recordings. They are the rank's, not the client's, which is
        placed by what it takes each time: it was only the first of its architecture.
        """
        tally = self.tally[client.id]
        tally.work += views * sum(examples)
        tally.seconds += seconds - once
        if own:
            tally.loss += float(losses @ np.array(examples, dtype=float))
            tally.examples += sum(examples)
            tally.epochs += sum(examples) / client.n
        self.clock.add("train", seconds)
