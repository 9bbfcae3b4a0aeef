"""Federation: all that an algorithm may see and do; the one door between clients and server."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfed.clients.selection import Choice
from hpcfed.core import rng, user_code
from hpcfed.core.inputs import prepare
from hpcfed.core.params import Mean, Params, Part, Per
from hpcfed.federation.exchange import Exchange
from hpcfed.federation.participants import Participants
from hpcfed.federation.placement import Placement
from hpcfed.federation.replay_log import ReplayLog
from hpcfed.federation.tallies import Tallies
from hpcfed.federation.turns import Turns
from hpcfed.federation.warnings import Warnings
from hpcfed.machine.clock import Clock

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Clients, ClientStore, Shard
    from hpcfed.clients.edges import EdgeMap
    from hpcfed.clients.profiles import Profiles
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.models.flat import Skeleton

T = TypeVar("T")
Item = TypeVar("Item", bound=Hashable)  # an item of server-side work


@dataclass(frozen=True)
class SharedData:
    """What a rank has of the data beside its clients' own.

    public: examples that no client holds; may be empty.  test: this rank's part of the whole test
    split.  mean, std: of each channel of the training images.  test_sizes: examples in the test
    part of each client, [K].  metrics: what evaluation measures (`config.metrics`).
    """

    public: Shard
    test: Shard
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    metrics: tuple[str, ...] = ("accuracy",)


@dataclass
class Gpu:
    """What a rank has of a GPU.

    memory: bytes for this rank; 0 on a CPU.  graphs: whether steps may be captured, where the job
    leaves it open.
    """

    memory: float = 0.0
    graphs: bool = True


class Federation:
    """All clients and the server, as one rank sees them: the same on all ranks but for the clients,
    which are this rank's own.

    What an author of methods uses, in the order in which a method meets it:

    - the job: `job`, `seed`, `K`, `classes`, `d`, `device`;
    - the clients: `architectures`, `modalities`, `sizes`, `largest`, `label_counts`; the examples
      of nobody, `public`;
    - models to start from: `initial`, `shapes`, `module`, `start_alike`;
    - a round: `t`, `sample`, `cohort_size`, `draw_public`;
    - the clients' work: `run`, `stream`, `mine`, `clients`, `work`, `prepare`, `pooled`;
    - what is sent, and counted: `down`, `up`, `mean`, `gather`;
    - what is counted so, moved between ranks: `each`, `at_root`, `from_root`;
    - the server's own work: `on_root` in one piece, `spread` in several.

    The engine uses its parts: `comm`, `exchange` (moves values, counts bytes), `turns` (the
    clients' work, and failures), `replay` (turns that are done), `participation` (who takes part
    in this round), `placement` (which rank has which client), `tallies` (what each client did),
    `warnings`, `clock`, `store` (weights and memories), `choice` (of cohorts), `data`, `gpu`.

    For the parameters see `Placement`, `Exchange`, `Participants`; pool: makes a client that holds
    all clients' data.  modalities: finds those of all clients, where inputs are of several.
    edges: which client has which edge server.
    """

    def __init__(
        self,
        *,
        job: Job,
        comm: Comm,
        clients: Clients,
        store: ClientStore,
        device: torch.device,
        architectures: tuple[str, ...],
        sizes: Sequence[int],
        costs: Sequence[float],
        label_counts: Sequence[np.ndarray],
        classes: int,
        placement: list[int],
        speeds: list[float],
        profiles: Profiles,
        data: SharedData,
        gpu_memory: float = 0.0,
        pool: Callable[[], Client] | None = None,
        modalities: Callable[[], Sequence[tuple[str, ...]]] = tuple,
        edges: EdgeMap | None = None,
    ) -> None:
        self.job = job
        self.device = device
        self.architectures = architectures  # of all clients, by id
        self.sizes = sizes  # training examples of all clients, by id
        self.label_counts = label_counts  # [K, C], examples of each class that each client has
        self.classes = classes
        self.clients = clients  # this rank's, by id
        self.edges = edges  # edge servers between clients and server; None: there are none
        self._pool, self._modalities = pool, modalities

        self.comm = comm
        self.store = store
        self.data = data
        self.gpu = Gpu(gpu_memory)
        self.clock = Clock()
        self.warnings = Warnings(comm)
        self.replay = ReplayLog()
        self.tallies = Tallies()
        self.exchange = Exchange(
            comm, clients, placement, device, self.clock, self.replay, self.tallies, self.warnings
        )
        self.turns = Turns(
            job, comm, store, device, self.clock, self.replay, self.tallies, self.warnings
        )
        self.participation = Participants(
            job,
            profiles,
            sizes,
            clients,
            self.tallies,
            self.replay,
            self._traffic,
        )
        self.choice = Choice(job.selection, job.seed, sizes, self.cohort_size, job.rounds)
        self.placement = Placement(placement, speeds, costs, comm, clients, store, self.replay)

    def _traffic(self, k: int) -> tuple[int, int]:
        """Bytes that client k receives and sends in a round, by its method and by the choice of
        cohorts.
        """
        down, up = self.job.algorithm.traffic(self, k)
        return down, up + self.choice.nbytes

    @property
    def seed(self) -> int:
        """The job's seed."""
        return self.job.seed

    @property
    def K(self) -> int:
        """Number of clients."""
        return self.job.clients

    @property
    def d(self) -> int:
        """Units of the representation (`models.d`)."""
        return self.job.models.d

    @property
    def public(self) -> Shard:
        """Examples that no client holds (`data.public`); may be empty."""
        return self.data.public

    @cached_property
    def modalities(self) -> Sequence[tuple[str, ...]]:
        """The modalities that each client's training examples have, [K].

        None where inputs are of one kind.
        """
        return self._modalities() or ((),) * self.K

    @cached_property
    def largest(self) -> int:
        """Training examples of the client that has most."""
        return int(max(self.sizes))

    # Models to start from

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

    def module(self, architecture: str, shape: tuple[int, ...] | None = None) -> Skeleton:
        """A module of this architecture for the server's own work.

        No client's weights are ever in it.

        shape: of its inputs, where they are no examples but a client's feature maps, say.
        """
        return self.store.skeleton(architecture, f"server {shape}" if shape else "server", shape)

    def start_alike(self) -> None:
        """Give all clients the initial weights of client 0."""
        first = self.initial()
        for client in self.clients.values():
            client.load(first)

    # A round

    @property
    def t(self) -> int:
        """The round that is going on, from 0."""
        return self.tallies.t

    @property
    def cohort_size(self) -> int:
        """Clients of a round's cohort: max(1, ceil(participation K))."""
        return max(1, math.ceil(self.job.participation * self.K - 1e-9))

    def sample(self, t: int, p: np.ndarray | None = None) -> list[int]:
        """A cohort of max(1, ceil(participation K)) clients without replacement, in id order, as
        the job's `selection` has it; the same on all ranks.

        p: probability of each client, [K], where the job's selection is uniform.
        """
        return self.choice.sample(t, p)

    def draw_public(self, t: int, n: int) -> np.ndarray:
        """n of the public examples, drawn anew for round t, the same on all ranks.

        All of them where n is larger.
        """
        N = len(self.public)
        return np.sort(rng.stream(self.seed, "public", t).choice(N, min(n, N), replace=False))

    # The clients' work

    def mine(self, cohort: Iterable[int]) -> list[Client]:
        """This rank's clients of the cohort, in id order."""
        return [self.clients[k] for k in cohort if k in self.clients]

    def run(self, cohort: Iterable[int], work: Callable[[Client], T], job: int = 0) -> dict[int, T]:
        """Every client's turn, in id order: what `work` returned for each of this rank's clients.

        As `stream`, but all of it is done when this returns.
        """
        return dict(self.stream(cohort, work, job=job))

    def stream(
        self,
        cohort: Iterable[int],
        work: Callable[..., T],
        together: Callable[[Sequence[Client]], list[T] | None] | None = None,
        job: int = 0,
        given: tuple[Any, ...] = (),
    ) -> Iterator[tuple[int, T]]:
        """The turns of this rank's clients of the cohort, in id order, as (id, what `work`
        returned), one result in memory at a time; for `mean`. Nothing is done before it is asked.

        work: (client, *given) -> a value that can travel (`comm.codec`), in which all is that it
        leaves elsewhere: a turn that is done is not done again when the round is, its value is used
        again. What a round does to clients outside of turns is undone then, and done again.
        together: the same work for several clients at once (`Turns.grouping`), or None where it
        cannot be done so and each works alone.  job: number of the client's, where it may have
        several in a round.
        With run.on_client_fault = "drop" a client that fails is left out here; all ranks learn of
        it when they meet.
        """
        for group in self.turns.grouping(list(cohort)) if together else [[k] for k in cohort]:
            clients = self.mine(group)
            if not clients:
                continue
            with self.turns.take(clients, job) as turn:
                if turn.values is None and together and len(clients) > 1:
                    turn.values = together(clients)
                if turn.values is None:
                    turn.values = []
                    for client in clients:
                        turn.values.append(work(client, *given))
            yield from turn.uploads()

    def work(self, client: Client, epochs: int | None = None) -> int:
        """Epochs (or steps, where the job counts in steps) that the client completes in this
        round.
        """
        return self.participation.work(client, epochs)

    def prepare(self, x: Tensor) -> Tensor:
        """A batch as it is stored, [n, *shape], to what models take: images normalised, tokens as
        they are.
        """
        self.clock.heartbeat.beats += 1
        return prepare(x, self.data.mean, self.data.std)

    def pooled(self) -> Client:
        """A client that holds all clients' data, for training without a federation; its id is K."""
        assert self._pool is not None
        return self._pool()

    # What is sent: bytes are counted here, and values checked

    def down(self, client: Client, value: T, times: int = 1) -> T:
        """Send a value to a client, or so many of that size: its bytes are counted."""
        return self.exchange.down(client, value, times)

    def up(self, client: Client, value: T, times: int = 1) -> T:
        """Send a client's value to the server, or to so many others: its bytes are counted.

        Not for what `mean` or `gather` count.

        Raises DivergedError for a value that is nan or infinite.
        """
        return self.exchange.up(client, value, times)

    def mean(
        self,
        uploads: Iterable[tuple[int, Mean]],
        keep: Params,
        per: Per = "mean",
        counted: bool = True,
        last: bool = False,
    ) -> Params:
        """The exact weighted mean over all clients of all ranks.

        Collective, the same bits for any ranks.

        uploads: (client id, its part), one after the other.  keep: values where the weights sum to
        0, and the shapes.  per: what has a weight of its own (a whole part, a tensor, a row of it,
        a value).  counted: false for what the server computes itself from earlier uploads.  last:
        no client's own model changes any more in this round, so that it can be evaluated before the
        ranks wait for one another. Raises DivergedError for a value that is nan or infinite, naming
        client and tensor.
        """
        parts: list[Part] = []
        for k, part in uploads:
            if not isinstance(part, Mean):
                raise user_code.OwnError(
                    f"{user_code.caller()}fed.mean gets a {type(part).__name__} from client {k}; "
                    f"give (client id, Mean.of(Params, weight)) for each client"
                )
            self.exchange.upload(k, [p.value for p in part.parts], part.nbytes if counted else 0)
            parts.extend(part.parts)
        if last:
            self.exchange.meanwhile()
        return self.exchange.mean(parts, keep, per) if keep else keep

    def gather(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """All clients' values, by id, on all ranks; collective; bytes are counted as uploads."""
        return self.exchange.gather(by_client)

    # What is counted so, moved between ranks

    def each(self, by_client: Mapping[int, T]) -> Iterator[tuple[int, T]]:
        """All clients' values in id order, on all ranks, one in memory at a time.

        Collective, nothing is counted.

        For what concerns pairs of clients. by_client: this rank's; a client that nobody gives is
        left out.
        """
        return self.exchange.each(by_client)

    def at_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """All clients' values on rank 0, which does the server's work, none elsewhere.

        Collective, not counted.
        """
        return self.exchange.at_root(by_client)

    def from_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Values for clients from rank 0 to the ranks that hold them; collective, not counted."""
        return self.exchange.from_root(by_client)

    def on_root(self, fn: Callable[[], T]) -> T:
        """The result of server-side work: done on rank 0, then sent to all ranks; collective."""
        return self.exchange.on_root(fn)

    def spread(self, items: Iterable[Item], work: Callable[[Item], T]) -> dict[Item, T]:
        """The results of pieces of server-side work, by item, in the items' order, on all ranks.

        Collective, not counted.

        For what is independent by candidate, cluster, student or teacher: item i is done on rank i
        modulo the number of ranks, instead of all on rank 0 while the others wait. The bits are
        those of one rank.

        items: the same on all ranks, each once.  work: item -> a value that can travel
        (`comm.codec`). It may read what all ranks have, and draws from streams that the item names;
        it makes no collective call, and nothing that it leaves elsewhere is kept.
        Raises ValueError where an item comes twice.
        """
        return self.exchange.spread(items, work)
