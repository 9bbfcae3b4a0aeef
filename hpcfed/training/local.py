"""The local training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpcfed.core import rng
from hpcfed.data.sampling import even_parts
from hpcfed.federation.trial_notes import Training, of_job
from hpcfed.machine.devices import wait
from hpcfed.models.model import Model
from hpcfed.models.precision import autocast
from hpcfed.training import engines, examples
from hpcfed.training.batches import batches, draw_shares, inputs, plan_batches, prepare_batches
from hpcfed.training.divergence import check_finite, on_host
from hpcfed.training.infer import FEW
from hpcfed.training.optimisers import (
    Gradient,
    freeze,
    keep_moments,
    learning_rate,
    make_optimiser,
)

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation

Loss = Callable[[Model, Any, Tensor], Tensor]


class LocalSteps:
    """The local steps of one client in one round: an iterator over its batches, and the optimiser.

    `with LocalSteps(fed, client, t) as steps: for x, y in steps: steps.descend(loss)` is local
    training; a method with other steps makes them between two batches. Inside the context, dropout
    and augmentation draw from the client's own streams. At its end the losses are checked and the
    work is added to the client's tally.

    views: augmented copies of a batch; x is [b, *shape], or with more than one view a list of them.
    passes: passes forward and backward in a step, which count as work.
    epochs: passes over the data, instead of the job's.  amount: number of steps, instead of passes.
    data: other examples than the client's own (a `Shard`; a `Paired` one gives its targets as y).
    only: whether a parameter is trained, by name; the others stay exactly as they are.
    phase: names the random streams; another phase of the same round needs another name.
    lr, size: learning rate and examples in a step, instead of the job's.
    clip: largest norm of the gradient of a step of `sgd`, `learn` or `descend`; 0: any.
    counted: false for training that is only work, without part in the training loss and epochs.
    """

    def __init__(
        self,
        fed: Federation,
        client: Client,
        t: int,
        views: int = 1,
        epochs: int | None = None,
        amount: int | None = None,
        data: Shard | None = None,
        only: Callable[[str], bool] | None = None,
        phase: str = "train",
        lr: float | None = None,
        size: int | None = None,
        clip: float = 0.0,
        counted: bool = True,
        passes: int = 1,
    ):
        self.clip, self.counted, self.passes = clip, counted, passes
        self.fed, self.client, self.t, self.views, self.phase = fed, client, t, views, phase
        self.data, self.only, self.skeleton = data or client.train, only, client.skeleton
        self.settings = settings = fed.job.local
        self.size, in_steps = (
            size or settings.batch,
            bool(amount if epochs or amount else settings.steps),
        )
        self.private = examples.protects(fed, client, self.data)
        self.training = self._training(epochs, amount)
        amount = amount or fed.work(client, epochs)
        poisson = self.private and not fed.trial  # whose batches may be empty
        self.plan = plan_batches(
            fed, client, t, self.data, self.size, amount, in_steps, phase, poisson
        )
        if fed.trial:
            self.plan = [rows[:FEW] for rows in self.plan[:1]]
        self.lr = learning_rate(fed, t) if lr is None else lr
        self.losses: list[Tensor] = []  # of the steps done
        self.examples: list[int] = []  # sizes of their batches
        self.once = 0.0  # seconds of recordings, which serve all clients

    def _training(self, epochs: int | None, amount: int | None) -> Training:
        """Return the training as the account of privacy counts it, with the numbers of the job."""
        local = self.fed.trial.local if self.fed.trial else self.settings
        others = len(self.data) - self.client.n
        if amount or not (epochs or local.steps is None):
            return Training(self.size, steps=of_job(amount or local.steps or 1), others=others)
        return Training(self.size, epochs=of_job(epochs or local.epochs), others=others)

    @cached_property
    def draws(self) -> torch.Generator:
        """The generator from which augmentation draws."""
        return rng.torch_stream(
            self.fed.seed, self.phase, "augment", self.t, self.client.id, device=self.fed.device
        )

    @property
    def model(self) -> Model:
        return self.skeleton.model

    def __enter__(self) -> LocalSteps:
        fed, key = self.fed, (self.t, self.client.id)
        self.start = perf_counter()
        self.optimiser = make_optimiser(
            self.client, self.settings, self.lr, self.only, self.phase, self.clip
        )
        self.leaves = [self.skeleton.parameters[name] for name in self.optimiser.names]
        # numbers of batches and of noisy gradients, and whether there is one of this batch
        self.read, self.releases, self.released = 0, 0, False
        if self.private:
            self.noisy = examples.PrivateGradient(
                fed, self.client, self.t, self.phase, self.optimiser.names, self.batch_mean
            )
        if not self.model.training:
            self.model.train()
        self.stack = ExitStack()
        self.stack.enter_context(freeze(self.model, self.only))
        self.stack.enter_context(fed.scoped(self.phase, "dropout", *key))
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self.stack.close()
        if kind:
            return
        if self.private:
            self.count_releases()
        keep_moments(self.client, self.optimiser, self.settings, self.phase)
        values, weights = on_host(self.losses), self.skeleton.flat
        check_finite(
            self.fed,
            self.client,
            self.t,
            values,
            weights,
            self.examples,
            self.lr,
            len(self.data),
            self.phase,
        )
        complete = self.data.holds(self.client.train)  # perhaps with generated examples beside them
        size = len(self.data) if complete else None
        on_own_data = self.counted and (complete or self.client.train.holds(self.data))
        seconds = perf_counter() - self.start
        # recordings count as the rank's time, not the client's: the placement uses a client's usual
        # time, and this client was only the first of its architecture
        copies = self.views * self.passes
        self.fed.tallies.add_training(
            self.client, values, self.examples, seconds - self.once, on_own_data, copies, size
        )
        self.fed.clock.add("train", seconds)

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def batch_mean(self) -> float:
        """The expected number of examples of a batch."""
        return min(self.size, len(self.data))

    def count_releases(self) -> None:
        """Count the noisy gradients in the client's tally.

        Raises ConfigError if the method has trained without one for each batch.
        """
        if self.releases != self.read:
            examples.refuse(self.fed, "it trains in its own way, without a gradient per batch")
        examples.count_releases(self.fed, self.client, self.training, self.releases)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        data = examples.readable(self.data)
        for rows, x, y in prepare_batches(
            self.fed, data, self.plan, self.views, lambda: self.draws
        ):
            self.rows, self.released = rows, False
            self.read += 1
            yield x, y

    def others(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Yield batches of the same data without end, in a separate random order.

        They are for steps that need a second batch.  name: names their random streams.
        """
        key = self.fed.seed, self.phase, name
        if self.private:
            examples.refuse(self.fed, "it takes further batches of the same examples")
        order = rng.stream(*key, "batches", self.t, self.client.id)
        draws = rng.torch_stream(*key, "augment", self.t, self.client.id, device=self.fed.device)
        shares = draw_shares(self.fed, self.client, self.data)
        while True:
            for rows in batches(len(self.data), self.size, 1, False, order, shares):
                x, y = self.data.batch(rows)
                yield inputs(self.fed, x, self.views, draws), y

    def value(self, loss: Loss, x: Any, y: Any) -> Tensor:
        """Return the loss of the model on a batch, in the run's precision."""
        with autocast(self.fed.job.run.precision, self.fed.device, self.model, x):
            return loss(self.model, x, y)

    def backward(self, value: Tensor) -> None:
        """Set the flat gradient to that of this loss."""
        if self.private:
            examples.refuse(self.fed, "it differentiates the loss of a batch in its own way")
        self.skeleton.zero_grad()
        value.backward()

    def gradient(self, loss: Loss, x: Any, y: Any) -> tuple[Tensor, Gradient]:
        """Return the loss on a batch and its gradient by trained parameter.

        With privacy.by = "examples" it has noise, and can be computed once for each batch.
        """
        if not self.private:
            value = self.value(loss, x, y)
            return value, engines.gradient(value, self.leaves)
        if self.released:
            examples.refuse(self.fed, "it takes several gradients of one batch")
        self.released = True
        self.releases += 1
        return self.noisy(loss, x, y)

    def learn(self, loss: Loss, x: Any, y: Any) -> None:
        """Make one step of the optimiser down a loss on a batch, and record the loss."""
        self.step(*self.gradient(loss, x, y))

    def descend(self, value: Tensor) -> None:
        """Make one step of the optimiser down this loss, and record the loss.

        It is for values that are no loss of a batch alone; others take `learn`.
        """
        if self.private:
            examples.refuse(self.fed, "it differentiates the loss of a batch in its own way")
        self.step(value, engines.gradient(value, self.leaves))

    def step(self, value: Tensor, gradient: Gradient | None = None) -> None:
        """Make one step of the optimiser, and record the loss.

        value: the loss.  gradient: by trained parameter, in its memory layout; default: what
        `backward` has computed.
        """
        if self.private and not self.released:
            examples.refuse(self.fed, "it computes gradients in its own way")
        self.optimiser.step(gradient)
        self.done(value)

    def done(self, value: Tensor) -> None:
        """Record the loss of a step; a signal may end the client's work here."""
        self.losses.append(value.detach())
        self.examples.append(len(self.rows))
        self.fed.clock.heartbeat.step()


def sgd(fed: Federation, client: Client, t: int, loss: Loss, views: int = 1, **how: Any) -> int:
    """Train the client's model on its data by the job's optimiser, batch size and epochs or steps.

    loss: (model, x, y) -> scalar.  how: further arguments of `LocalSteps`.
    Returns the number of steps.
    Raises DivergedError if a loss is nan or infinite, naming round, epoch and batch.
    """
    with LocalSteps(fed, client, t, views, **how) as steps:
        step = engines.engine(steps, loss)  # of the job's engine
        for x, y in steps:
            step(x, y)
    return len(steps)


@contextmanager
def count_work(fed: Federation, client: Client, examples: float) -> Iterator[None]:
    """Count the block as a client's work that does not train its model.

    examples: number of examples whose training takes as long. The time of the block counts as the
    client's time.
    """
    start = perf_counter()
    yield
    wait(fed.device)  # else the time would be that of the launches
    seconds = perf_counter() - start
    fed.tallies[client.id].work += examples
    fed.tallies[client.id].seconds += seconds
    fed.clock.add("train", seconds)


def gradient(
    fed: Federation, client: Client, t: int, loss: Loss, phase: str = "train", counted: bool = True
) -> None:
    """Compute the mean gradient over all of the client's data, and leave it in its model.

    It is one pass in the job's batches.

    phase: names the random streams.  counted: false for evaluation, which does not count as
    training.
    Raises DivergedError if a loss is not finite.
    """
    start, skeleton, losses = perf_counter(), client.skeleton, []
    plan, data = even_parts(client.n, fed.job.local.batch), examples.readable(client.train)
    draws = rng.torch_stream(fed.seed, phase, "augment", t, client.id, device=fed.device)
    noisy = None
    if examples.protects(fed, client, data):
        names = tuple(skeleton.layout.params)
        noisy = examples.PrivateGradient(fed, client, t, phase, names, client.n)
    skeleton.model.train()
    skeleton.zero_grad()
    with fed.scoped(phase, "dropout", t, client.id):
        for rows in plan:
            x, y = data.batch(rows)
            prepared = inputs(fed, x, 1, draws)
            if noisy:
                value = noisy.add(loss, prepared, y)
            else:
                with autocast(fed.job.run.precision, fed.device, skeleton.model, prepared):
                    value = loss(skeleton.model, prepared, y)
                (value * (len(rows) / client.n)).backward()
            losses.append(value.detach())
            fed.clock.heartbeat.step()
    if noisy:
        noisy.store(skeleton)
        examples.count_releases(fed, client, Training(size=0), 1)
    sizes = [len(rows) for rows in plan]
    values = on_host(losses)
    # a client that fails in an evaluation has no round to leave
    if counted or fed.job.run.on_client_fault == "stop":
        check_finite(fed, client, t, values, skeleton.flat, sizes, learning_rate(fed, t), client.n)
    if counted:
        seconds = perf_counter() - start
        fed.tallies.add_training(client, values, sizes, seconds)
        fed.clock.add("train", seconds)
