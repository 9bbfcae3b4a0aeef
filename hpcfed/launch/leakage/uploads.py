"""What a server receives of one client: its upload after clipping, noise and compression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcfed.algorithms.base import RoundBased
from hpcfed.algorithms.trial import work_once
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params
from hpcfed.core.wording import join_few
from hpcfed.federation.transforms.attack.attackers import attackers
from hpcfed.federation.transforms.compression.vote import MajorityVote
from hpcfed.federation.transforms.values import is_encoded
from hpcfed.federation.upload import Transform, Upload
from hpcfed.launch.leakage.inversion import Turn
from hpcfed.training.optimisers import learning_rate

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation

SHOWN = 4  # names in a message
ROUNDED = 1e-3  # relative difference of values that are taken to be equal


class Sent(Exception):
    """Ends the turn of the client whose upload has been received."""

    def __init__(self, upload: Upload) -> None:
        self.upload = upload


class Sender(Transform):
    """Notes what a client sends, its weights and its last gradient: the first transform."""

    def __init__(self, k: int) -> None:
        self.k, self.sent = k, Upload(torch.zeros(0))
        self.weights, self.gradient = Params(), Params()

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        if client.id == self.k:
            self.sent, self.weights, self.gradient = upload, client.params(), client.gradient()
        return upload

    def change(self, start: Params, lr: float) -> Params:
        """Return what the turn made of the weights; if it left them, a step down its gradient."""
        change = Params({name: self.weights[name] - start[name] for name in self.gradient})
        return change if change.dot(change) else -lr * self.gradient


class Receiver(Transform):
    """Notes what a client receives, and ends its turn with what the server receives first."""

    def __init__(self, k: int) -> None:
        self.k, self.downloads = k, list[Any]()

    def download(self, fed: Federation, client: Client, value: Any) -> tuple[Any, int | None]:
        if client.id == self.k:
            self.downloads.append(value)
        return value, None

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        if client.id == self.k:
            raise Sent(upload)
        return upload


@dataclass(frozen=True)
class Received:
    """What the server has of a client's turn.

    received: weights and float buffers that the client received, by name, all of its model.
    change: of these weights and buffers, as the server has it.
    """

    received: Params
    change: Params


def check_visible(fed: Federation) -> None:
    """Raise ConfigError for a job whose server gets no single upload that it can read."""
    job = fed.job
    if job.secure.by != "none":
        raise ConfigError(
            f"secure.by = {job.secure.by!r}: the server gets the sum of masked uploads and no "
            f"single one, so that there is nothing to attack; secure.by = 'none' shows what the "
            f"masks hide"
        )
    if job.privacy.by == "distributed":
        raise ConfigError(
            "privacy.by = 'distributed': a client sends rotated integers with its share of the "
            "noise, which only their sum is decoded from; privacy.by = 'local' has all noise in "
            "each upload, and 'none' shows what is hidden"
        )


@contextmanager
def one_batch(fed: Federation, client: Client, batch: Shard, steps: int) -> Iterator[None]:
    """Let a client's turn be this number of steps, each on all of these examples, in the block."""
    job, train = fed.job, client.train
    local = job.local.model_copy(
        update={
            "batch": len(batch),
            "steps": steps,
            "augment": "none",
            "balanced_batches": False,
            "keep_optimiser": False,
        }
    )
    training = job.training.model_copy(update={"engine": "eager"})
    fed.job = job.model_copy(update={"local": local, "training": training})
    client.train = batch
    try:
        yield
    finally:
        fed.job, client.train = job, train


def receive(rounds: Rounds, k: int, batch: Shard | None = None, steps: int = 0) -> Received:
    """Return what the server receives of client k in the next round, which is then undone.

    batch, steps: the client takes `steps` steps on these examples, instead of its turn in the job.
    Raises ConfigError if the client does not send all that it trains.
    """
    fed, client = rounds.fed, rounds.fed.clients[k]
    if k in attackers(fed.job):
        raise ConfigError(f"client {k} is an attacker in this job (attack); take another one")
    sender, receiver = Sender(k), Receiver(k)
    transforms, undo_log = fed.transforms, fed.store.undo_log
    fed.transforms = [sender, *transforms, receiver]
    try:
        with undo_log.set_recording():
            if batch is None:
                upload = first_upload(rounds, k)
            else:
                with one_batch(fed, client, batch, steps):
                    upload = first_upload(rounds, k, steps)
    finally:
        fed.transforms = transforms
        undo_log.undo()
        fed.replay.clear()
    if upload is None:
        raise ConfigError(f"the clients of {fed.job.algorithm.name} send nothing")
    return change_in(rounds, client, upload, sender, receiver.downloads)


def first_upload(rounds: Rounds, k: int, steps: int = 0) -> Upload | None:
    """Return what the server receives first of client k in a round in which it is alone."""
    fed, method = rounds.fed, rounds.algorithm
    t = min(rounds.t, fed.job.rounds - 1)
    state = rounds.schedule.state_of(k, rounds.state)
    fed.begin()
    fed.participants.open(t)
    if steps:
        fed.participants.partial = {k: steps}
    try:
        if isinstance(method, RoundBased):
            method.round(fed, state, [k], t)
        else:
            work_once(fed, method, fed.clients[k], state, 0)
    except Sent as sent:
        return sent.upload
    return None


def change_in(
    rounds: Rounds, client: Client, upload: Upload, sender: Sender, downloads: list[Any]
) -> Received:
    """Return the change of the client's model that an upload holds.

    Raises ConfigError if it holds no complete model.
    """
    fed = rounds.fed
    layout = fed.store.layout(client.architecture)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))

    def is_model(value: Params) -> bool:
        return all(n in value and tuple(value[n].shape) == shapes[n] for n in layout.params)

    received = [params for value in downloads for params in params_in(value) if is_model(params)]
    both = (upload.parts, sender.sent.parts)
    complete = (n for n in upload.parts if all(is_model(values_of(p.get(n))) for p in both))
    part = next(complete, None)
    if part is None:
        raise ConfigError(not_complete(fed, sender.sent))
    value, sent = model_in(fed, upload, part), values_of(sender.sent[part])
    for start in reversed(received):
        change = sender.change(start, rate(rounds))
        if form := form_of(sent, start, change):
            base, scale = form
            names = value.keys() & start.keys() & shapes.keys()
            start, value = (part.pick(names.__contains__).clone() for part in (start, value))
            return Received(start, (1 / scale) * (value - start if base else value))
    if any(all(torch.equal(sent[n], start[n]) for n in layout.params) for start in received):
        raise ConfigError(
            f"client {client.id} sends the model that it received: its turn changes no weight, so "
            f"that there is nothing to attack; take another client, or a larger local.lr"
        )
    name = fed.job.algorithm.name
    raise ConfigError(
        f"{name}: what its clients send is not the change of a model that the server has sent "
        f"them, from which the attacks start; take another method, such as fedavg"
    )


def model_in(fed: Federation, upload: Upload, part: str) -> Params:
    """Return the values that a part of an upload stands for.

    A sign stands for the step that the majority's vote makes of it.
    """
    value = values_of(upload[part])
    if part not in upload.updates:
        return value
    start = upload.relative_to[part]
    if not isinstance(fed.rule, MajorityVote):
        return value + start
    eta = fed.rule.eta
    return Params({n: start[n] + eta * v if is_encoded(n, v) else v for n, v in value.items()})


def rate(rounds: Rounds) -> float:
    """Return the learning rate of the next round, or of the last one after the end of a run."""
    return learning_rate(rounds.fed, min(rounds.t, rounds.fed.job.rounds - 1))


def values_of(part: Any) -> Params:
    """Return the values of a part of an upload; none if they are no Params."""
    if isinstance(part, Mean) and len(part.terms) == 1:
        part = part.terms[0].value
    return part if isinstance(part, Params) else Params()


def form_of(value: Params, start: Params, change: Params) -> tuple[bool, float] | None:
    """Return how a sent value follows from the weights before a turn and their change in it.

    (True, s): start + s change, a model.  (False, s): s change.  None: it is something else.
    """
    length = change.dot(change)
    for base in (True, False):
        update = Params({n: value[n] - start[n] if base else value[n] for n in change})
        scale = update.dot(change) / length if length else 0.0
        rest = update - scale * change
        if scale and rest.dot(rest) < ROUNDED**2 * update.dot(update):
            return base, scale
    return None


def params_in(value: Any) -> Iterator[Params]:
    """Iterate over the Params in nested mappings, sequences and dataclasses."""
    if isinstance(value, Params):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from params_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from params_in(part)
    elif is_dataclass(value):
        for each in fields(value):
            yield from params_in(getattr(value, each.name))


def not_complete(fed: Federation, upload: Upload) -> str:
    """Return the message for clients that do not send complete models."""
    sent: list[str] = []
    for name, part in upload.parts.items():
        sent += list(values_of(part)) or [name or "values"]
    return (
        f"{fed.job.algorithm.name}: its clients send {join_few(sent, SHOWN)}; the attacks need "
        f"all weights that a client trains, as those of fedavg"
    )


def turn_of(rounds: Rounds, client: Client, received: Params, steps: int) -> Turn:
    """Return a client's local steps as the server knows them."""
    fed = rounds.fed
    local, layout = fed.job.local, fed.store.layout(client.architecture)
    module = deepcopy(fed.module(client.architecture).model).train()
    for part in module.modules():
        if isinstance(part, nn.Dropout | nn.Dropout2d):
            part.eval()  # nobody but the client knows its masks
    return Turn(
        module,
        received,
        tuple(layout.params),
        steps,
        rate(rounds),
        local.momentum,
        local.weight_decay,
    )
