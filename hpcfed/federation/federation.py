"""Federation: the interface between an algorithm and its clients and server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfed.clients.selection import Choice
from hpcfed.core import rng, user_code
from hpcfed.core.inputs import prepare
from hpcfed.core.params import Mean, Params, Per, Term
from hpcfed.core.payload import nbytes, row_major, uncounted
from hpcfed.core.registry import outside
from hpcfed.federation.exchange import Exchange
from hpcfed.federation.label_counts import ChangedCounts
from hpcfed.federation.participants import Participants
from hpcfed.federation.placement import Placement
from hpcfed.federation.replay_log import ReplayLog
from hpcfed.federation.sealed import MeanRule, Sealed, check_open, sealed_parts
from hpcfed.federation.tallies import Tallies
from hpcfed.federation.trial_notes import Trial
from hpcfed.federation.turns import Turns
from hpcfed.federation.upload import Transform, Uplink, Upload
from hpcfed.federation.warnings import Warnings
from hpcfed.machine.clock import Clock

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Clients, ClientStore, Shard
    from hpcfed.clients.edges import EdgeMap
    from hpcfed.clients.profiles import Profiles
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.data.edge_cases import EdgeCases
    from hpcfed.data.synthetic import Synthetic
    from hpcfed.federation.transforms.attack.attackers import Attacking
    from hpcfed.federation.transforms.privacy.account import Account
    from hpcfed.models.flat import Skeleton
    from hpcfed.tasks import Task

T = TypeVar("T")
Item = TypeVar("Item", bound=Hashable)  # item of the server's work


@dataclass(frozen=True)
class SharedData:
    """Data of a rank in addition to its clients' own.

    public: examples that no client holds; may be empty.
    make_test: makes `test`; when it is needed, since images that differ by client take memory.
    mean, std: of each channel of the training images.
    test_sizes: [K], examples in the test part of each client.
    metrics: names of the measures that evaluation computes, the main one first.
    groups: [n], the group of each example of the full test split; None: they are not grouped.
    group_names: names of the groups.
    unseen: test examples of the domain on which no client trains, all of them on each rank.
    edge_cases: images of an attack that no client has.
    """

    public: Shard
    make_test: Callable[[], Shard]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    metrics: tuple[str, ...] = ("accuracy",)
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    unseen: Shard | None = None
    edge_cases: EdgeCases | None = None

    @cached_property
    def test(self) -> Shard:
        """This rank's part of the full test split."""
        return self.make_test()


@dataclass
class Gpu:
    """A rank's share of a GPU.

    memory: bytes for this rank; 0 on a CPU.
    ranks: number of ranks that compute on it; 0 on a CPU.
    graphs: whether steps may be captured as CUDA graphs, if the job leaves it open.
    """

    memory: float = 0.0
    ranks: int = 0
    graphs: bool = True


class Federation:
    """All clients and the server, as one rank sees them.

    Everything is the same on all ranks except `clients`, which are this rank's own.

    What an author of methods uses, in the order in which a method needs it:

    - the job: `job`, `seed`, `K`, `task`, `classes`, `d`, `device`;
    - the clients: `architectures`, `modalities`, `sizes`, `largest`, `label_counts`; the examples
      that no client holds, `public`;
    - models to start from: `initial`, `shapes`, `trainable`, `module`, `start_alike`;
    - a round: `t` (in names of random streams `moment`), `sample`, `cohort_size`, `share`,
      `draw_public`;
    - the clients' work: `run`, `stream`, `mine`, `clients`, `work`, `prepare`, `pooled`;
    - what clients receive: `down`; what they send is the `Upload` that their turn returns;
    - what the server makes of it, and moves between ranks: `mean`, `gather`, `each`, `at_root`,
      `from_root`;
    - the server's own work: `on_root` in one piece, `spread` in several;
    - changes of all uploads and downloads, in the order in which they are made: `transforms`; and
      what stands in the place of the exact mean: `rule`.

    The engine uses these parts: `comm`, `uplink` (the way of uploads), `exchange` (moves values),
    `turns` (the clients' work, and failures), `replay` (completed turns), `participants` (who takes
    part in this round), `placement` (the rank of each client), `tallies` (what each client did),
    `warnings`, `clock`, `store` (weights and memories), `choice` (of cohorts), `edges` (servers
    between clients and this one), `attack` (of clients on the others; None: there is none),
    `account` (what the run has cost in privacy; None: nobody counts it) and its `noise_multiplier`,
    `shapes_of_means` (of tensors of which clients send pieces, by name, as `note_shapes` notes
    them), `begin` (opens a round), `seeded` (draws of a user's hooks), `scoped` (draws of models),
    `data`, `gpu`, `cores`, `trial` (notes, if only shapes and bytes count: then a training takes
    one step or none, and a pass over examples computes three of them), `stays` (whether all that
    clients compute now stays with them, as in a block of `stay_with_clients`), `counting` (labels
    of others than clients' own examples).

    For the parameters see `Placement`, `Exchange` and `Participants`; in addition:
    cores: physical cores that the ranks of rank 0's node may use together.
    pool: makes a client that holds all clients' data.
    modalities: returns those of all clients, if there are several.
    edges: the edge server of each client.
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
        sizes: Sequence[int] | np.ndarray,
        costs: Sequence[float] | np.ndarray,
        label_counts: np.ndarray | Synthetic | ChangedCounts,
        classes: int,
        placement: list[int],
        speeds: list[float],
        profiles: Profiles,
        data: SharedData,
        gpu: Gpu | None = None,
        cores: int = 1,
        pool: Callable[[], Client] | None = None,
        modalities: Callable[[], Sequence[tuple[str, ...]]] = tuple,
        edges: EdgeMap | None = None,
    ) -> None:
        self.job = job
        self.device = device
        self.architectures = architectures  # of all clients, by id
        self.sizes = sizes  # training examples of all clients, by id
        # [K, C], examples of each class that each client has, attackers in their turns
        self.label_counts = label_counts
        self.classes = classes
        self.clients = clients  # this rank's, by id
        self.edges = edges  # edge servers between clients and server; None: there are none
        self._pool, self._modalities = pool, modalities
        self.trial: Trial | None = None
        self.stays = False

        self.comm = comm
        self.store = store
        self.data = data
        self.gpu = gpu or Gpu()
        self.cores = cores
        self.clock = Clock()
        self.warnings = Warnings(comm)
        self.transforms: list[Transform] = []
        self.rule: MeanRule | None = None
        self.attack: Attacking | None = None
        self.account: Account | None = None
        self.shapes_of_means: dict[str, tuple[int, ...]] = {}
        self.uplink = Uplink(self)
        self.replay = ReplayLog()
        self.tallies = Tallies()
        self.exchange = Exchange(comm, clients, placement, device, self.clock, self.replay)
        self.turns = Turns(
            job, comm, store, device, self.clock, self.replay, self.tallies, self.warnings
        )
        self.participants = Participants(
            job,
            profiles,
            sizes,
            clients,
            self.tallies,
            self.replay,
            self._traffic,
        )
        self.choice = Choice(
            job.selection, job.seed, sizes, self.cohort_size, job.rounds, job.participation
        )
        self.placement = Placement(placement, speeds, costs, comm, clients, store, self.replay)

    def _traffic(self, k: int) -> tuple[int, int]:
        """Return the bytes that client k receives and sends in a round.

        Both the method and the selection of cohorts contribute.
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
    def task(self) -> Task:
        """What the labels are, and how they are learned and scored."""
        return self.store.task

    @property
    def public(self) -> Shard:
        """Examples that no client holds (`data.public`); may be empty."""
        return self.data.public

    @cached_property
    def modalities(self) -> Sequence[tuple[str, ...]]:
        """Modalities of each client's training examples, [K]; empty for a single input."""
        return self._modalities() or ((),) * self.K

    @cached_property
    def largest(self) -> int:
        """Number of training examples of the client that has most."""
        return int(max(self.sizes))

    # Models to start from

    def initial(
        self,
        wanted: Callable[[str], bool] = lambda name: True,
        k: int = 0,
        architecture: str = "",
        shape: tuple[int, ...] | None = None,
    ) -> Params:
        """Return the initial weights of client k with wanted names.

        The server starts from those of client 0.
        architecture: another one than that of client k.
        shape: of the model's inputs, if they are not examples.
        """
        model = self.store.initial(architecture or self.architectures[k], k, shape)
        return model.items(wanted).clone().map(lambda v: v.to(self.device))

    def shapes(
        self, wanted: Callable[[str], bool] = lambda name: True, k: int = 0, architecture: str = ""
    ) -> Params:
        """Return the tensors of `initial` on the meta device, without values.

        They give names, shapes and bytes at no cost.
        """
        layout = self.store.layout(architecture or self.architectures[k])
        named = zip(layout.names, layout.shapes, strict=True)
        return Params(
            {name: torch.empty(shape, device="meta") for name, shape in named if wanted(name)}
        )

    def trainable(self, name: str) -> bool:
        """Return whether the tensor of this name is trained in a client's model.

        The others are buffers, such as the statistics of batch normalisation.
        """
        return name in self._trainable

    @cached_property
    def _trainable(self) -> frozenset[str]:
        layouts = map(self.store.layout, sorted(set(self.architectures)))
        return frozenset(name for layout in layouts for name in layout.params)

    def module(self, architecture: str, shape: tuple[int, ...] | None = None) -> Skeleton:
        """Return a module of this architecture for the server's own work.

        It never holds a client's weights.
        shape: of its inputs, if they are not examples but, for instance, a client's feature maps.
        """
        return self.store.skeleton(architecture, f"server {shape}" if shape else "server", shape)

    def start_alike(self) -> None:
        """Give all clients the initial weights of client 0."""
        weights = self.initial()
        for client in self.clients.values():
            client.load(weights)

    # A round

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the bound C, as the account has it; 0: no noise."""
        return self.account.z if self.account else 0.0

    @property
    def t(self) -> int:
        """Index of the current round, from 0."""
        return self.tallies.t

    @property
    def moment(self) -> int | str:
        """The current round in names of random streams: its index, or another name for what comes
        after the last round, which draws anew.
        """
        return f"after {self.t}" if self.stays else self.t

    @property
    def cohort_size(self) -> int:
        """Number of clients in a cohort: max(1, ceil(participation K))."""
        return self.job.cohort_size

    def share(self, cohort: Collection[int]) -> float:
        """Return a cohort's share of the clients, for steps of the server.

        If privacy hides who takes part, it is the expected share, by which sums are divided too.
        """
        expected = self.rule.share_of_cohorts(self) if self.rule else None
        return len(cohort) / self.K if expected is None else expected

    def sample(self, t: int, p: np.ndarray | None = None) -> list[int]:
        """Draw the cohort of round t without replacement, in id order; the same on all ranks.

        The cohort has max(1, ceil(participation K)) clients; with selection.by = "poisson" or
        "cyclic" their number is drawn, its mean is about participation K. The job's `selection`
        decides how they are chosen.
        p: [K], probability of each client, if the job's selection is uniform.
        """
        return self.choice.sample(t, p)

    def draw_public(self, t: int, n: int) -> np.ndarray:
        """Draw n of the public examples for round t; the same on all ranks.

        Returns their positions in order, all of them if n is larger.
        """
        N = len(self.public)
        return np.sort(rng.stream(self.seed, "public", t).choice(N, min(n, N), replace=False))

    @contextmanager
    def seeded(self, *key: str | int) -> Iterator[None]:
        """Seed the global random generators in the block, if the method is the user's own.

        Its hooks may draw from `torch`, `numpy.random` and `random` without a stream. Methods that
        come with hpcfed never do.
        key: names the draws.
        """
        if ":" not in self.job.algorithm.name:
            yield
            return
        with rng.scoped_everywhere(self.seed, "hooks", *key, device=self.device):
            yield

    def scoped(self, *key: str | int) -> AbstractContextManager[Callable[[], bool]]:
        """Seed torch's global generator in a block that calls models, as `rng.scoped` does.

        If a model of the job is the user's own, NumPy's and Python's are seeded too.
        key: names the draws.
        """
        return rng.scoped(self.seed, *key, device=self.device, everywhere=self._has_users_models)

    @cached_property
    def _has_users_models(self) -> bool:
        models = self.job.models
        return any(any(outside(name)) for name in (*models.mix, models.proxy, models.server))

    def _turn(self, group: Sequence[int], task: int) -> tuple[str | int, ...]:
        """Return the name of a turn of these clients, which no other turn of the run has."""
        number = self.replay.requests[group[0]]  # of the client's turns in this round
        return "turn", self.t, int(self.stays), task, number, *group

    def begin(self) -> None:
        """Begin a round, for the first time or again."""
        self.replay.begin()
        if self.trial:
            self.trial.begin()
        if self.rule:
            self.rule.begin()

    # The clients' work

    @contextmanager
    def stay_with_clients(self) -> Iterator[None]:
        """Let nothing that clients compute in the block leave them.

        The block is an evaluation, or what follows the last round. Training in it needs no noise.
        """
        stayed, self.stays = self.stays, True
        try:
            yield
        finally:
            self.stays = stayed

    def mine(self, cohort: Iterable[int]) -> list[Client]:
        """Return this rank's clients of the cohort, in id order."""
        return [self.clients[k] for k in cohort if k in self.clients]

    def run(
        self, cohort: Iterable[int], work: Callable[[Client], Any], task: int = 0
    ) -> dict[int, Any]:
        """Do every client's turn, in id order, and return what this rank's clients sent, by id.

        Like `stream`, but all work is done when this function returns.
        """
        return dict(self.stream(cohort, work, task=task))

    def stream(
        self,
        cohort: Iterable[int],
        work: Callable[..., Any],
        together: Callable[[Sequence[Client]], Any] | None = None,
        task: int = 0,
        arguments: tuple[Any, ...] = (),
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over (id, what was sent) for this rank's clients of the cohort, in id order.

        Each turn is done when its result is requested, so that one is in memory at a time; use it
        with `mean`.
        work: (client, *arguments) -> `Upload`, or None if the client sends nothing; then nothing is
        yielded. The upload must contain all that the turn produces apart from the client's own
        state. When a round is repeated, a completed turn is not done again; its upload is reused.
        Changes that a round makes to clients outside of turns are undone and made again.
        What is yielded is what the server has: the upload's only part, or a dict of its parts,
        after all transforms. If the job hides single uploads (`rule`), these parts are sealed, and
        only `mean` can use them.
        Raises DivergedError, which names client and tensor, for a value that is nan or infinite.
        together: the same work for several clients at once (`Turns.grouping`). It returns None for
        clients that cannot be trained together; each of them then works alone.
        task: number of the client's task, if a client may have several in a round.
        With run.on_client_fault = "drop" a client that fails is left out here. All ranks learn of
        it at their next exchange, and repeat the round, in which it has no turn.
        """
        self.replay.streams += 1
        uploads: dict[int, Upload] = {}
        waits = self.uplink.waits
        cohort = [k for k in cohort if task not in self.replay.left.get(k, ())]
        for group in self.turns.grouping(cohort) if together else [[k] for k in cohort]:
            clients = self.mine(group)
            if not clients:
                continue
            with self.turns.take(clients, task) as turn:
                if turn.values is None:
                    with self._with_examples(clients), self.seeded(*self._turn(group, task)):
                        results = together(clients) if together and len(clients) > 1 else None
                        if results is None:
                            results = []
                            for client in clients:
                                results.append(work(client, *arguments))
                    turn.values = list(map(self.uplink.send, clients, results))
            for k, upload in turn.uploads():
                self.replay.uploads[k] += 1
                if waits:
                    uploads[k] = upload
                else:
                    yield k, self.uplink.received(k, upload)
        if waits:
            yield from self.uplink.received_together(uploads)

    @contextmanager
    def counting(self, labels: Mapping[int, np.ndarray]) -> Iterator[None]:
        """Let `label_counts` count these labels, in the block, in the place of clients' own.

        labels: those on which a client trains, by client.
        """
        counts = self.label_counts
        changed = {k: self.task.counts(y, self.classes) for k, y in labels.items()}
        self.label_counts = ChangedCounts(counts, changed)
        try:
            yield
        finally:
            self.label_counts = counts

    @contextmanager
    def _with_examples(self, clients: Sequence[Client]) -> Iterator[None]:
        """Let clients train, in the block, on the examples that transforms give them."""
        changing = [t for t in self.transforms if type(t).examples is not Transform.examples]
        if not changing:
            yield
            return
        trains = [client.train for client in clients]
        for transform in changing:
            for client in clients:
                client.train = transform.examples(self, client, client.train)
        labels = {
            client.id: client.train.labels
            for client, train in zip(clients, trains, strict=True)
            if client.train.labels is not train.labels
        }
        try:
            with self.counting(labels):
                yield
        finally:
            for client, train in zip(clients, trains, strict=True):
                client.train = train

    def work(self, client: Client, epochs: int | None = None) -> int:
        """Return the epochs or steps, as the job counts, that the client does in this round."""
        return self.participants.work(client, epochs)

    def prepare(self, x: Tensor) -> Tensor:
        """Convert a stored batch [n, *shape] to model inputs.

        Images are normalised, tokens stay as they are.
        """
        self.clock.heartbeat.beats += 1
        return prepare(x, self.data.mean, self.data.std)

    def pooled(self) -> Client:
        """Return a client that holds all clients' data, for centralised training; its id is K."""
        assert self._pool is not None
        return self._pool()

    # What is received

    def down(self, client: Client, value: T) -> T:
        """Send a value to a client, and return what the client receives.

        It passes `fed.transforms`. What comes through is counted, and is all that
        the client has of the server: what it loads and computes with. It is a Params, a tensor or
        an array, or a dict, list or tuple of these.
        """
        if not isinstance(value, Params) and (kind := uncounted(value)):
            raise user_code.OwnError(
                f"{user_code.caller()}fed.down gets a {kind}, whose tensors would be neither "
                f"counted nor compressed; give its parts: a Params, a tensor, or a dict or tuple "
                f"of these"
            )
        bytes_: int | None = None
        for transform in self.transforms:
            value, size = transform.download(self, client, value)
            bytes_ = bytes_ if size is None else size
        extra = sum(transform.extra_download for transform in self.transforms)
        self.tallies[client.id].down += extra + (nbytes(value) if bytes_ is None else bytes_)
        return row_major(value)

    def mean(
        self,
        uploads: Iterable[tuple[int, Any]],
        keep: Any,
        per: Per = "mean",
    ) -> Any:
        """Return the exact weighted mean over all clients of all ranks.

        Collective; the same bits for any number of ranks.
        uploads: pairs (client id, `Mean`), one after the other: what clients sent, or what the
        server made of that.
        keep: Params, values for entries whose weights sum to 0; they also give the shapes. For
        uploads of several parts a dict of Params by part; then the means are a dict as well.
        per: the unit that has its own weight (a complete part, a tensor, a row of it, a value).
        """
        pairs = list(uploads)
        if not isinstance(keep, Params):
            return {
                name: self.mean([(k, parts[name]) for k, parts in pairs], values, per)
                for name, values in keep.items()
            }
        if wrong := [pair for pair in pairs if not isinstance(pair[1], (Mean, Sealed))]:
            k, part = wrong[0]
            raise user_code.OwnError(
                f"{user_code.caller()}fed.mean gets a {type(part).__name__} from client {k}; "
                f"give (client id, Mean.of(Params, weight)) for each client"
            )
        if self.rule:
            return self.rule.mean(self, sealed_parts(pairs, self.rule), keep, per)
        terms = [term for _, part in pairs for term in part.terms]
        self.note_shapes(terms, keep)
        return self.exchange.mean(terms, keep, per) if keep else keep

    def note_shapes(self, terms: Iterable[Term], keep: Params) -> None:
        """Note, in a trial, the shapes of tensors of which clients send pieces, for transforms."""
        for term in terms if self.trial else ():
            if term.at:
                self.shapes_of_means |= {name: tuple(keep[name].shape) for name in term.value}

    # Moves between ranks of what the server has received

    def gather(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Return all clients' values by id, on all ranks; collective; counts no bytes."""
        check_open(by_client.values())
        return self.exchange.gather(by_client)

    def each(self, by_client: Mapping[int, T]) -> Iterator[tuple[int, T]]:
        """Iterate over all clients' values in id order, on all ranks, one in memory at a time.

        Collective; counts no bytes. Meant for computations on pairs of clients.
        by_client: values of this rank's clients. A client without a value is left out.
        """
        check_open(by_client.values())
        return self.exchange.each(by_client)

    def at_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Return all clients' values on rank 0, which does the server's work; {} elsewhere.

        Collective; counts no bytes.
        """
        check_open(by_client.values())
        return self.exchange.at_root(by_client)

    def from_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Send values for clients from rank 0 to the ranks of these clients.

        Collective; counts no bytes.
        """
        return self.exchange.from_root(by_client)

    def on_root(self, fn: Callable[[], T]) -> T:
        """Compute a result of the server on rank 0, and send it to all ranks; collective."""
        where = self._server_work("root")

        def work() -> T:
            with self.seeded(*where):
                return fn()

        return self.exchange.on_root(work)

    def _server_work(self, kind: str) -> tuple[str | int, ...]:
        """Return the name of a piece of the server's work, which no other one of the run has."""
        when, number = self.replay.server_work
        self.replay.server_work = when, number + 1
        return kind, when, self.moment, number

    def spread(self, items: Iterable[Item], work: Callable[[Item], T]) -> dict[Item, T]:
        """Return the results of independent pieces of the server's work, by item, on all ranks.

        Collective; counts no bytes. Results are in the items' order.
        Use it for work that is independent for each candidate, cluster, student or teacher. Rank i
        mod R computes item i, so that the ranks share the work. The bits do not depend on the
        number of ranks.

        items: the same on all ranks, each once.
        work: item -> a value that can be sent (`comm.codec`). It may read what all ranks have, and
        must draw from streams that the item names. It makes no collective call, and has no effect
        beyond its value.
        Raises ValueError if an item comes twice.
        """
        items = list(items)
        places = {item: i for i, item in enumerate(items)}
        where = self._server_work("spread")

        def seeded(item: Item) -> T:
            with self.seeded(*where, places[item]):
                return work(item)

        return self.exchange.spread(items, seeded)
