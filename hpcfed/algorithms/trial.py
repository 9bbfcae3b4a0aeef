"""Bytes that clients receive, send and keep, measured on a trial before anything is run.

A trial is two rounds of a few clients of the job, in a federation of their own, on the CPU of one
rank. Bytes follow from shapes and not from values, so that it computes as little as possible: a
client has three examples of each of its classes, training takes one step, and passes over examples
compute three of them (`Federation.trial`). The most of both rounds counts, because in the first one
a server may have nothing to send yet; a method with the default round needs one.

Clients of one architecture with the same modalities are alike, unless clients with the fewest and
the most classes differ. Then a third one is measured. If each class costs the same, the others
follow; else one client is measured for each number of classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from hpcfed.algorithms.base import is_plain, keeps_weights
from hpcfed.algorithms.decentralised.peers import Peers
from hpcfed.algorithms.events import EventBased, Work
from hpcfed.clients.client import Client
from hpcfed.comm import Serial
from hpcfed.config.edges import Edges
from hpcfed.config.selection import Selection
from hpcfed.config.system import System
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, DivergedError, everywhere
from hpcfed.core.params import Params, Term
from hpcfed.core.payload import nbytes
from hpcfed.federation.exchange import Exchange
from hpcfed.federation.federation import Federation
from hpcfed.federation.trial_notes import Shortened, Trial, TrialUplink, UploadedParts
from hpcfed.models.assign import widest
from hpcfed.tasks import Task
from hpcfed.training import examples

if TYPE_CHECKING:
    from hpcfed.clients.client import Shard
    from hpcfed.clients.store import ClientStore
    from hpcfed.config.job import Job

EXAMPLES = 3  # of each class that a client has
COMPARED = 100  # clients of a kind, the first ones, whose numbers of classes are compared
RATE = 1e-3  # largest learning rate, so that a trial does not diverge where the run may
LOOPS = ("steps", "epochs", "iterations", "passes", "matchings")  # endings of fields, set to 1
# down, up, of uploads in memory, and down without the messages of secure sums
Bytes = tuple[int, int, int, int]
Kind = tuple[str, tuple[str, ...]]  # of a client: its architecture and its modalities


class Counting(Exchange):
    """Counts the bytes that ranks add up on their way, and those that they move one by one."""

    def __init__(self, uploaded: UploadedParts, *parts: Any) -> None:
        super().__init__(*parts)
        self.bytes_summed = self.bytes_moved = 0
        self._uploaded = uploaded

    def mean(self, terms: list[Term], *rest: Any, **named: Any) -> Params:
        self.bytes_summed += sum(term.value.nbytes for term in terms)
        return super().mean(terms, *rest, **named)

    def gather(self, by_client: Mapping[int, Any]) -> dict[int, Any]:
        self._note(dict(by_client))
        return super().gather(by_client)

    def from_client(self, k: int, value: Any) -> Any:
        self._note(value)
        return super().from_client(k, value)

    def to_client(
        self, k: int, by_client: Mapping[int, Any], senders: Iterable[int]
    ) -> dict[int, Any]:
        self._note(dict(by_client))
        return super().to_client(k, by_client, senders)

    def at_root(self, by_client: Mapping[int, Any]) -> dict[int, Any]:
        self._note(dict(by_client))
        return super().at_root(by_client)

    def _note(self, values: Any) -> None:
        self.bytes_moved += nbytes(values)
        self._uploaded.move(values)


class HiddenCounts:
    """Label counts of clients, which each client alone may read if the job hides uploads.

    hidden_by: the setting of the job that hides them.
    """

    def __init__(self, fed: Federation, hidden_by: str) -> None:
        self._fed, self._counts, self._hidden_by = fed, fed.label_counts, hidden_by

    def __getitem__(self, k: int) -> np.ndarray:
        active = self._fed.turns.active
        if k not in active:
            who = "another client" if active else "the server"
            raise ConfigError(
                f"{self._hidden_by}: with {self._fed.job.algorithm.name} {who} reads how many "
                f"examples of each class a client has, which no noise hides; take another "
                f"method, such as fedavg"
            )
        return self._counts[k]


def hide_counts(fed: Federation, hidden_by: str) -> None:
    """Let each client of a trial alone read how many examples of each class it has."""
    fed.label_counts = HiddenCounts(fed, hidden_by)  # type: ignore[assignment]


class Measured:
    """Bytes of a round by kind of client and number of classes.

    encoded: whether messages are what the job's transforms make of them.
    uploads: largest number of uploads of a client in a round.
    moves: whether most of what clients send is moved between ranks one by one, not added up.
    uploaded: what the server does with the parts of uploads.
    """

    def __init__(self, fed: Federation, encoded: bool = True) -> None:
        self._fed, self._encoded = fed, encoded
        self._first = first_of_kinds(fed)
        # bytes by number of classes, by kind; if they do not depend on it, by 0
        self._bytes: dict[Kind, dict[int, Bytes]] = {}
        self._memory: dict[Kind, int] = {}
        self.moves = False
        self.uploads = 0
        self.uploaded = UploadedParts()
        self._compare()

    def traffic(self, k: int) -> tuple[int, int]:
        """Return the bytes that client k receives and sends in a round."""
        down, up, *_ = self._of(k)
        return down, up

    def download(self, k: int) -> int:
        """Return the bytes that client k receives in a round beside messages of secure sums."""
        return self._of(k)[3]

    def upload_memory(self, k: int) -> int:
        """Return the bytes of memory that the uploads of client k take in a round, decoded.

        Its rank keeps them until the round ends (`hpcfed.federation.replay_log`).
        """
        method = self._fed.job.algorithm
        # a method whose bytes a trial does not have; peers only send their upload to more clients
        if not (is_plain(method, "traffic") or isinstance(method, Peers)):
            return method.traffic(self._fed, k)[1]
        return self._of(k)[2]

    def _of(self, k: int) -> Bytes:
        bytes_ = self._bytes[self._kind(k)]
        if 0 in bytes_:
            return bytes_[0]
        number = classes(self._fed, k)
        if number not in bytes_:
            bytes_[number] = on_line(bytes_, number) or self._try([k])[k]
        return bytes_[number]

    def memory(self, k: int) -> int:
        """Return the bytes that client k keeps from round to round beside its weights."""
        return self._memory[self._kind(k)]

    def _compare(self) -> None:
        """Measure the clients with the fewest and the most classes of each kind."""
        extremes = {}
        for kind, start in self._first.items():
            near = range(start, min(start + COMPARED, self._fed.K))
            alike = [k for k in near if self._kind(k) == kind]
            # of clients with as many classes, the one with the most examples
            numbers = {k: (classes(self._fed, k), -self._fed.sizes[k]) for k in alike}
            extremes[kind] = (
                min(alike, key=numbers.__getitem__),
                max(alike, key=numbers.__getitem__),
            )
        measured = self._try({k for pair in extremes.values() for k in pair})
        for kind, (fewest, most) in extremes.items():
            differ = measured[fewest] != measured[most]
            self._bytes[kind] = {
                classes(self._fed, k) if differ else 0: measured[k] for k in (fewest, most)
            }

    def _kind(self, k: int) -> Kind:
        return self._fed.architectures[k], self._fed.modalities[k]

    def _try(self, ks: Collection[int]) -> dict[int, Bytes]:
        """Return the bytes of these clients, measured beside one client of each kind."""
        alone = self._first.keys() - set(map(self._kind, ks))
        ids = in_order(self._fed, {*ks, *(self._first[kind] for kind in alone)})
        with trial(self._fed, ids, self._encoded) as fed:
            bytes_, uploads = perform(fed)
            exchange: Any = fed.exchange
            self.moves = exchange.bytes_moved > exchange.bytes_summed
            self.uploads = max(self.uploads, uploads)
            if fed.trial:
                self.uploaded.means |= fed.trial.uploaded.means
                self.uploaded.single |= fed.trial.uploaded.single
            for i, k in enumerate(ids):
                self._memory.setdefault(self._kind(k), nbytes(fed.clients[i].memory))
            self._fed.shapes_of_means |= fed.shapes_of_means
            if self._fed.rule and fed.rule:
                self._fed.rule.learn(fed.rule)
        return dict(zip(ids, bytes_, strict=True))


def first_of_kinds(fed: Federation) -> dict[Kind, int]:
    """Return the first client of each kind."""
    clients: dict[Kind, int] = {}
    for k, kind in enumerate(zip(fed.architectures, fed.modalities, strict=True)):
        clients.setdefault(kind, k)
    return clients


def in_order(fed: Federation, ks: Iterable[int]) -> list[int]:
    """Return clients in the order that they have in a trial.

    Client 0, or one like it, comes first: the server's model is often like that of client 0.
    """
    names = fed.architectures
    return sorted(ks, key=lambda k: (names[k] != names[0], k))


MEASURED: WeakKeyDictionary[Federation, dict[bool, Measured]] = WeakKeyDictionary()


def measure(fed: Federation, encoded: bool = True) -> Measured:
    """Return what is measured of the rounds of a federation; see `Measured`."""
    by_form = MEASURED.setdefault(fed, {})
    if encoded not in by_form:
        by_form[encoded] = Measured(fed, encoded)
    return by_form[encoded]


def download(fed: Federation, k: int) -> int:
    """Return the bytes that client k receives in a round beside messages of secure sums."""
    if fed.rule and is_plain(fed.job.algorithm, "traffic"):
        return measure(fed).download(k)
    return fed.participants.announced(k)[0]


def check_privacy(fed: Federation) -> None:
    """Raise ConfigError, on all ranks, for a method that reads what the job hides.

    These are uploads, or with DP-SGD examples. The trial shows it, before anything is trained.
    """
    job, private = fed.job, fed.job.privacy.by != "none"
    if (fed.rule and fed.rule.seals) or private:
        try:
            if job.privacy.by == "examples":
                examples.check_settings(job)
            if private:
                check_repetitions(job)
            _, sent = measure(fed).traffic(0)
            if private and not sent:
                raise ConfigError(
                    f"privacy.by = {job.privacy.by!r} has no effect: the clients of "
                    f"{job.algorithm.name} send nothing; set privacy.by = 'none'"
                )
        except ConfigError as error:
            raise everywhere(error) from None


def check_repetitions(job: Job) -> None:
    """Raise ConfigError if a client that fails may make others send other values in a round.

    Their noise would be the same, and the account counts the round once.
    """
    method = job.algorithm
    in_rounds = not isinstance(method, EventBased)
    if job.run.on_client_fault == "drop" and not (in_rounds and one_exchange(method)):
        raise ConfigError(
            f"privacy.by = {job.privacy.by!r}: if a client of {method.name} fails, the round is "
            f"repeated with what clients have sent already, which no account counts; set "
            f"run.on_client_fault = 'stop', or take a method with one exchange a round, such as "
            f"fedavg"
        )


def on_line(bytes_: Mapping[int, Bytes], number: int) -> Bytes | None:
    """Return the bytes for a number of classes if each class costs the same; else None.

    bytes_: measured, by number of classes.  Three of them tell whether it is so.
    """
    if len(bytes_) < 3:
        return None
    (a, low), *others = sorted(bytes_.items())
    slopes = {
        tuple(Fraction(v - v0, b - a) for v0, v in zip(low, high, strict=True))
        for b, high in others
    }
    if len(slopes) > 1:
        return None
    slope = slopes.pop()
    return tuple(  # type: ignore[return-value]  # as many as `low` has
        int(v + by * (number - a)) for v, by in zip(low, slope, strict=True)
    )


def classes(fed: Federation, k: int) -> int:
    """Return the number of classes of which the client has training examples."""
    return int(np.count_nonzero(fed.label_counts[k]))


def perform(fed: Federation) -> tuple[list[Bytes], int]:
    """Run the rounds of a trial; return the most bytes of each client, and uploads of one.

    If losses are nan from the start, these are the bytes until then: the run itself then ends with
    the message that names its client.
    """
    method = fed.job.algorithm
    state, most, uploads = method.init(fed), [(0, 0, 0, 0)] * fed.K, 0
    once = one_exchange(method) and not fed.transforms  # which may learn in the first round
    for t in range(1 if once else 2):
        state = rehearse(fed, state, t)
        uploads = max(uploads, *fed.replay.uploads.values(), 0)
        memory = fed.trial.upload_memory if fed.trial else {}
        most = [
            (
                max(down, fed.tallies[k].down),
                max(up, fed.tallies[k].up),
                max(stored, memory.get(k, 0)),
                max(download, fed.tallies[k].down - fed.tallies.sum_messages[k]),
            )
            for k, (down, up, stored, download) in enumerate(most)
        ]
        if fed.rule:
            fed.rule.close(fed, uploads, [fed.rule.report()])
    if fed.rule or fed.job.privacy.by != "none":
        check_finish(fed, state, t)
    if fed.rule and fed.rule.empty_cohorts:
        check_empty_cohort(fed, state)
    return most, uploads


def rehearse(fed: Federation, state: Any, t: int) -> Any:
    """Run round t of a trial, in which all clients take part, and return the new state.

    A round in which losses are nan ends there, and the state stays as it is.
    """
    method = fed.job.algorithm
    fed.begin()
    fed.participants.open(t)
    with suppress(DivergedError):
        if isinstance(method, EventBased):
            for client in fed.clients.values():
                work_once(fed, method, client, state, t)
        else:
            state = method.round(fed, state, list(range(fed.K)), t)
    return state


def check_finish(fed: Federation, state: Any, t: int) -> None:
    """Raise ConfigError if privacy is lost after the last round, or a rule cannot do its mean.

    Training by which only the client's own model changes needs no noise.
    """
    fed.begin()
    with fed.stay_with_clients():
        fed.job.algorithm.finish(fed, state, t)
    if not fed.replay.uploads.total():
        return
    if fed.job.privacy.by == "examples":
        examples.refuse(fed, "its clients send something after the last round, without noise")
    if fed.job.privacy.by != "none":
        raise ConfigError(
            f"privacy.by = {fed.job.privacy.by!r}: clients of {fed.job.algorithm.name} send "
            f"something after the last round, which no account counts; take another method, such "
            f"as fedavg"
        )


def check_empty_cohort(fed: Federation, state: Any) -> None:
    """Raise ConfigError for a method that cannot run a round in which nobody takes part."""
    method = fed.job.algorithm
    fed.begin()
    fed.participants.open(fed.t + 1)
    fed.participants.cohort = frozenset()
    with suppress(DivergedError):
        try:
            method.round(fed, state, [], fed.t)
        except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"selection.by = 'poisson' draws cohorts that may be empty, and {method.name} has "
                f"no round without clients ({type(error).__name__}: {error}); set participation = "
                f"1, or selection.by = 'uniform' with privacy.neighbours = 'replace'"
            ) from error


def one_exchange(method: Any) -> bool:
    """Return whether all rounds of a method are alike: a download, training, an upload."""
    return isinstance(method, EventBased) or is_plain(method, "round", "aggregate")


def work_once(
    fed: Federation, method: EventBased, client: Client, state: object, number: int
) -> None:
    """Do one job of a client of an event-based method."""
    client.memory["download"] = method.offer(fed, client, state)
    job = Work(client.id, number, start=0.0, finish=0.0, amount=1)

    def turn(client: Client) -> Any:
        result = method.work(fed, client, job)
        return result if method.to_server else method.send(fed, client)

    fed.run([client.id], turn)


@contextmanager
def trial(fed: Federation, ids: list[int], encoded: bool = True) -> Iterator[Federation]:
    """Make a federation of these clients for a trial, which draws from streams of its own.

    encoded: as in `shrink`.
    """
    with rng.scoped(fed.seed, "trial"):
        small = shrink(fed, ids, encoded)
        try:
            yield small
        finally:
            small.store.close()


def shrink(fed: Federation, ids: list[int], encoded: bool) -> Federation:
    """Return a federation of these clients, renumbered, on the CPU of this rank.

    encoded: whether it has the transforms and the rule of the federation.
    """
    method, job = fed.job.algorithm, shorten(fed.job, len(ids))
    store, cpu = fed.store.fresh(), torch.device("cpu")
    names = [fed.architectures[k] for k in ids]
    if method.draws_widths:
        names = [widest(fed.job, name) for name in names]
    clients = {}
    for i, k in enumerate(ids):
        client = fed.clients.make(k)
        clients[i] = Client(i, names[i], few(client.train, fed.task), on_host(client.test), store)
    federation = Federation(
        job=job,
        comm=Serial(),
        clients=clients,  # type: ignore[arg-type]  # as small as that a dict will do
        store=store,
        device=cpu,
        architectures=tuple(names),
        sizes=[client.n for client in clients.values()],
        costs=[1.0] * len(ids),
        label_counts=np.stack([fed.label_counts[k] for k in ids]),
        classes=fed.classes,
        placement=[0] * len(ids),
        speeds=[1.0],
        profiles=fed.participants.profiles,
        data=replace(
            fed.data, public=on_host(fed.public), make_test=lambda: on_host(fed.data.test)
        ),
        pool=lambda: pooled(fed, len(ids), store),
        modalities=lambda: [fed.modalities[k] for k in ids],
    )
    federation.trial = Trial(fed.job.local)
    federation.uplink = TrialUplink(federation, federation.trial.uploaded)
    if encoded:
        federation.transforms = [transform.of_trial() for transform in fed.transforms]
    if fed.rule and encoded:
        federation.rule = fed.rule.fresh()
        if fed.rule.hides_counts:
            hide_counts(federation, fed.rule.hidden_by)
    if fed.job.privacy.by == "local" and encoded:
        hide_counts(federation, "privacy.by = 'local'")
    federation.exchange = Counting(
        federation.trial.uploaded,
        federation.comm,
        clients,
        [0] * len(ids),
        cpu,
        federation.clock,
        federation.replay,
    )
    store.stateless = not keeps_weights(method, federation)
    federation.warnings.quiet = True
    examples.hide(federation)
    return federation


def pooled(fed: Federation, k: int, store: ClientStore) -> Client:
    """Return the client that stands for all together."""
    client = fed.pooled()
    return Client(k, client.architecture, few(client.train, fed.task), on_host(client.test), store)


def shorten(job: Job, clients: int) -> Job:
    """Return the job of a trial: all clients take part, and loops end after one small step."""
    fields: dict[str, Any] = {
        name: Shortened(value)
        for name, value in job.algorithm
        if name.endswith(LOOPS) and isinstance(value, int) and value > 1
    }
    fields |= {
        name: min(value, RATE)
        for name, value in job.algorithm
        if name.endswith("lr") and isinstance(value, float)
    }
    lr = min(job.local.lr, RATE)
    local = job.local.model_copy(update={"epochs": 1, "steps": 1, "stragglers": 0.0, "lr": lr})
    return job.model_copy(
        update={
            "algorithm": job.algorithm.model_copy(update=fields),
            "clients": clients,
            "participation": 1.0,
            "local": local,
            "training": job.training.model_copy(update={"engine": "eager"}),
            "selection": Selection(),
            "system": System(),
            "edges": Edges(),
        }
    )


def few(shard: Shard, task: Task) -> Shard:
    """Return the first examples of each class, on the CPU; without classes, the first ones."""
    groups = task.strata(shard.labels)
    rows = [np.flatnonzero(groups == group)[:EXAMPLES] for group in np.unique(groups)]
    return on_host(shard.pick(np.sort(np.concatenate(rows))))


def on_host(shard: Shard) -> Shard:
    """Return the same examples on the CPU."""
    host = copy(shard)
    host.device, host._resident, host._resident_labels = torch.device("cpu"), None, None
    return host
