"""DP-SGD: gradients in which each example counts for little, with Gaussian noise.

A step of local training takes a Poisson batch: each of the client's n examples is in it with
probability q = B / n, independently. The gradient is (sum_i clip(g_i) + N(0, (z C)^2 I)) / L, with
g_i the gradient of the loss of example i alone, clipped to the norm C, and L = q n the expected
size of a batch, not the size of this one. Abadi et al., CCS 2016, arXiv:1607.00133. So a term of
the loss that does not depend on examples is clipped with them.

Gradients of single examples come from `torch.func.vmap`; a loss that it cannot compute is
differentiated example by example. In a trial (`Federation.trial`) a loss whose value on a batch is
not the mean of its values on single examples is refused, since it has no such gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hpcfed.clients.client import Shard
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, first_line
from hpcfed.federation.trial_notes import Training
from hpcfed.models.precision import autocast
from hpcfed.training.objective import flat, like, title
from hpcfed.training.optimisers import Gradient
from hpcfed.training.recorded_step import Whole, alike

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.models.flat import Skeleton
    from hpcfed.training.local import Loss

AT_ONCE = 1 << 25  # values of gradients of single examples in memory: 128 MiB
PIECE = 512  # values whose squares are added up in float32
CLOSE = 1e-4  # relative difference that rounding may cause between a batch and its examples


def protects(fed: Federation, client: Client, data: Shard) -> bool:
    """Return whether training on these examples has to hide each of them.

    It has not where all that comes of it stays with the client (`Federation.stay_with_clients`).
    """
    if fed.job.privacy.by != "examples" or fed.stays:
        return False
    return client.train.holds(data) or data.holds(client.train)


def refuse(fed: Federation, what: str) -> NoReturn:
    """Raise ConfigError for a method or model that DP-SGD does not know.

    what: "its loss couples ...", for example.
    """
    raise ConfigError(
        f"privacy.by = 'examples': {fed.job.algorithm.name}: {what}\n  take privacy.by = "
        f"'central' or 'local', or a method that trains by gradients of single examples, such as "
        f"fedavg"
    )


class Hidden(Shard):
    """A client's examples in a trial with DP-SGD: only steps of training may read them.

    Whatever else is computed of them (prototypes, statistics, numbers of classes) would be released
    without noise, so reading them raises ConfigError.
    """

    def __init__(self, shard: Shard, fed: Federation) -> None:
        self.__dict__ |= shard.__dict__
        self.shown, self.fed = shard, fed

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        refuse(
            self.fed,
            "its clients read their examples, or count their classes, outside of the steps of "
            "training, for prototypes, statistics or the like, which no noise covers",
        )

    labels = property(_refuse)
    resident = resident_labels = property(_refuse)
    batch = batches = targets = targets_at = pick = _refuse
    __getitem__ = _refuse  # in the place of a federation's numbers of classes


def hide(fed: Federation) -> None:
    """Let only steps of training read the examples of a trial's clients, if the job has DP-SGD."""
    if fed.job.privacy.by == "examples":
        for client in fed.clients.values():
            client.train = Hidden(client.train, fed)
            fed.label_counts = client.train  # type: ignore[assignment]


def check_stream(fed: Federation, key: tuple[str, int, int]) -> None:
    """Raise ConfigError in a trial if the noise of these phase, round and client is used again."""
    assert fed.trial
    if key in fed.trial.streams:
        refuse(fed, f"it trains twice in a round under the name {key[0]!r}, with the same noise")
    fed.trial.streams.add(key)


def count_releases(fed: Federation, client: Client, training: Training, number: int) -> None:
    """Count the noisy gradients that a client has computed in a training.

    number: of them; a trial notes the training, in which it makes one step.
    """
    if fed.trial:
        fed.trial.note(client.id, training)
    elif number:
        q, _ = training.releases(client.n)
        fed.tallies[client.id].releases += ((q, number),)


def check_settings(job: Job) -> None:
    """Raise ConfigError for settings that use examples beside the gradients of DP-SGD."""
    local = job.local
    for setting, used in {
        f"local.class_weights = {local.class_weights!r} uses the numbers of examples of each "
        "class": local.class_weights in ("client", "all"),
        "local.balanced_batches draws examples by their classes": local.balanced_batches,
        f"selection.by = {job.selection.by!r} reads the clients' losses": (
            job.selection.reads_losses
        ),
    }.items():
        if used:
            raise ConfigError(
                f"privacy.by = 'examples': {setting}, which no noise covers; leave it out"
            )


def readable(data: Shard) -> Shard:
    """Return the examples for a step of training."""
    return data.shown if isinstance(data, Hidden) else data


class PrivateGradient:
    """Gradients of a client's model in one phase of a round, each with its own noise.

    names: of the trained parameters.
    size: the expected number of examples of a batch.
    phase: names the random stream of the noise.
    """

    def __init__(
        self, fed: Federation, client: Client, t: int, phase: str, names: Sequence[str], size: float
    ) -> None:
        skeleton, privacy = client.skeleton, fed.job.privacy
        if fed.trial:
            check_stream(fed, (phase, t, client.id))
        self.fed, self.client, self.model, self.size = fed, client, skeleton.model, size
        self.names, self.leaves = names, [skeleton.parameters[name] for name in names]
        assert privacy.clip is not None
        self.clip, self.std = privacy.clip, fed.noise_multiplier * privacy.clip
        self.draws = rng.torch_stream(
            fed.seed, phase, "privacy", t, client.id, device=skeleton.flat.device
        )
        self.total = [torch.zeros_like(p) for p in self.leaves]  # of the parts that `add` got
        self.single = False  # whether examples are differentiated one by one

    def __call__(self, loss: Loss, x: Any, y: Any) -> tuple[Tensor, Gradient]:
        """Return the mean loss of a batch, 0 if it is empty, and the noisy gradient."""
        total, value = self.sums(loss, x, y)
        return value / max(1, len(flat(y)[0])), self.noisy(total)

    def add(self, loss: Loss, x: Any, y: Any) -> Tensor:
        """Add the clipped gradients of a part of a batch, and return the mean loss of the part."""
        total, value = self.sums(loss, x, y)
        self.total = [a + b for a, b in zip(self.total, total, strict=True)]
        return value / max(1, len(flat(y)[0]))

    def store(self, skeleton: Skeleton) -> None:
        """Make the noisy gradient of all parts the flat gradient of a model."""
        for name, g in zip(self.names, self.noisy(self.total), strict=True):
            skeleton.gradients[name].copy_(g)

    def sums(self, loss: Loss, x: Any, y: Any) -> tuple[list[Tensor], Tensor]:
        """Return the sum of the clipped gradients, by parameter, and that of the losses."""
        if self.fed.trial:
            self.probe(loss, x, y)
        n = len(flat(y)[0])
        total = [torch.zeros_like(p) for p in self.leaves]
        value = torch.zeros((), device=self.draws.device)
        several = max(1, AT_ONCE // sum(p.numel() for p in self.leaves))
        for start in range(0, n, several):
            stop = min(n, start + several)
            values, gradients = self.each(loss, part(x, start, stop), part(y, start, stop))
            factors = self.factors(gradients)
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += torch.tensordot(factors, g, dims=1)
            value += values.sum()
        return total, value

    def noisy(self, total: list[Tensor]) -> list[Tensor]:
        """Return a sum of clipped gradients with noise, over the expected size of a batch."""
        if self.std:
            for sum_ in total:
                noise = torch.empty(sum_.shape, device=sum_.device)
                sum_ += self.std * noise.normal_(generator=self.draws)
        return [alike(sum_ / self.size, p) for sum_, p in zip(total, self.leaves, strict=True)]

    def factors(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the factor of each example's gradient, at most 1, that clips it, [b]."""
        b = len(gradients[0])
        squares = torch.zeros(b, dtype=torch.float64, device=gradients[0].device)
        for g in gradients:
            squares += sum_squares(g.reshape(b, -1))
        return (self.clip / squares.sqrt()).clamp(max=1.0).float()

    def each(self, loss: Loss, x: Any, y: Any) -> tuple[Tensor, list[Tensor]]:
        """Return the losses [b] of single examples, and their gradients [b, *shape]."""
        if not self.single:
            try:
                return self.together(loss, x, y)
            except Exception as why:  # torch raises many types of errors
                self.single = True
                if not self.fed.trial:
                    self.fed.warnings.say(
                        f"{title(loss)}: gradients of single examples are computed one by one, "
                        f"since torch.func.vmap cannot ({first_line(why)})"
                    )
        results = [
            self.one(loss, part(x, i, i + 1), part(y, i, i + 1)) for i in range(len(flat(y)[0]))
        ]
        gradients = zip(*(gradient for _, gradient in results), strict=True)
        return torch.stack([value for value, _ in results]), list(map(torch.stack, gradients))

    def together(self, loss: Loss, x: Any, y: Any) -> tuple[Tensor, list[Tensor]]:
        """Compute what `each` returns for all examples at once."""
        m = len(flat(x))

        def objective(model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
            alone = [v.unsqueeze(0) for v in inputs]
            one, label = like(x, alone[:m]), like(y, alone[m:])
            with autocast(self.fed.job.run.precision, self.fed.device, model, one):
                return loss(model, one, label)  # type: ignore[arg-type]

        module = Whole(self.model, objective)

        def of(weights: dict[str, Tensor], *inputs: Tensor) -> Tensor:
            return functional_call(module, weights, inputs)

        inputs = [*flat(x), *flat(y)]
        weights = {
            f"model.{name}": p.detach() for name, p in zip(self.names, self.leaves, strict=True)
        }
        every = vmap(grad_and_value(of), (None, *(0 for _ in inputs)), randomness="different")
        gradient, values = every(weights, *inputs)
        return values, list(gradient.values())

    def one(self, loss: Loss, x: Any, y: Any) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of one example and its gradient."""
        with autocast(self.fed.job.run.precision, self.fed.device, self.model, x):
            value = loss(self.model, x, y)
        gradient = torch.autograd.grad(value, self.leaves, materialize_grads=True)
        return value.detach(), list(gradient)

    @torch.no_grad()
    def probe(self, loss: Loss, x: Any, y: Any) -> None:
        """Raise ConfigError for a loss whose examples depend on one another."""
        for module in self.model.modules():
            if isinstance(module, _BatchNorm) and module.training:
                refuse(
                    self.fed,
                    f"{self.client.architecture} has {type(module).__name__}, whose outputs for an "
                    f"example depend on the others of its batch, so that there is no gradient of "
                    f"one example; set models.norm = 'group', or take another model",
                )
        n = len(flat(y)[0])
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        with without_dropout(self.model):
            try:
                alone = [loss(self.model, part(x, i, i + 1), part(y, i, i + 1)) for i in range(n)]
                together = loss(self.model, x, y)
            except ConfigError:
                raise
            except Exception as why:  # a loss may raise anything for a batch of one
                refuse(self.fed, f"its loss has no value for one example ({first_line(why)})")
            for name, value in self.model.named_buffers():
                if not torch.equal(value, buffers[name]):
                    refuse(
                        self.fed,
                        f"the buffer {name} of {self.client.architecture} changes in training, and "
                        f"what clients send of it has no noise; set models.norm = 'group' if it is "
                        f"of a normalisation, or take another model",
                    )
        if n and not torch.allclose(together, torch.stack(alone).mean(), CLOSE, CLOSE):
            refuse(
                self.fed,
                "its loss on a batch is not the mean of the losses of single examples: it compares "
                "examples with one another, steps up the gradient of the batch, or draws at random",
            )


def sum_squares(rows: Tensor) -> Tensor:
    """Return the sum of squares of each row, float64, to 1e-6.

    Pieces of PIECE values are added up in float32, which takes a twentieth of the time of float64.
    """
    end = rows.shape[1] // PIECE * PIECE
    pieces = (rows[:, :end].unflatten(1, (-1, PIECE)), rows[:, end:])
    norms = [torch.linalg.vector_norm(piece, dim=-1).double().square() for piece in pieces]
    return norms[0].sum(1) + norms[1]


def part(batch: Any, start: int, stop: int) -> Any:
    """Return some examples of a batch's inputs or targets."""
    return like(batch, [v[start:stop] for v in flat(batch)])


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch off the layers that draw at random, inside the block."""
    layers = [
        module
        for module in model.modules()
        if isinstance(module, _DropoutNd | nn.RNNBase | nn.MultiheadAttention) and module.training
    ]
    for module in layers:
        module.training = False
    try:
        yield
    finally:
        for module in layers:
            module.training = True
