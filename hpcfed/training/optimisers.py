"""The local optimiser: learning rates, trained parameters, and the moments that clients keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hpcfed.core.aligned import padded
from hpcfed.core.errors import ConfigError

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.sections import Local
    from hpcfed.federation.federation import Federation
    from hpcfed.models.flat import Skeleton

Gradient = tuple[Tensor, ...] | list[Tensor]  # by trained parameter
Wanted = Callable[[str], bool]  # by the name of a parameter
# flat vectors by their names in torch.optim, and Adam's number of steps
Moments = dict[str, Tensor]
EPS = 1e-8  # of Adam, torch's default
RATE = {
    "cpu": torch.float64,
    "cuda": torch.float32,
}  # type of a learning rate that the kernels read from memory


def learning_rate(fed: Federation, t: int) -> float:
    """Return the learning rate of round t (0-based) by the job's schedule."""
    settings = fed.job.local
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * t / fed.job.rounds))
    passed = sum(t >= m for m in settings.milestones) if settings.schedule == "step" else 0
    return settings.lr * settings.decay**passed


class Optimiser:
    """The job's optimiser for the trained parameters of one client, all in one kernel.

    The steps are those of torch.optim.SGD and Adam with fused = true, bit for bit. The kernels are
    called directly, because the Python code of torch.optim takes several times as long as a step of
    a small model. The learning rate and Adam's count of steps are in the device's memory, so that
    Python decides nothing within a step.

    only: whether a parameter is trained, by name; None: all are.
    previous: moments of the last round, as `moments_to_keep` returned them.
    clip: largest norm of the gradient of all trained parameters; a longer one is scaled down. 0:
    any.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        settings: Local,
        lr: float,
        only: Wanted | None,
        previous: Moments | None,
        clip: float = 0.0,
    ):
        self.skeleton, self.settings, device = skeleton, settings, skeleton.flat.device
        self.clip = clip
        self.lr = torch.full((), lr, dtype=RATE[device.type], device=device)
        self.names = tuple(name for name in skeleton.layout.params if only is None or only(name))
        if not self.names:
            raise ConfigError(
                "a phase of this method, which trains body and head in turn, has nothing to train: "
                "models.train, or requires_grad = False in the model, leaves no parameter there; "
                "let some of both be trained"
            )
        self.params = [skeleton.view(name) for name in self.names]
        self.moments = (
            {name: v.clone() for name, v in previous.items()} if previous else self.fresh()
        )
        self.lists = {name: self.cut(v) for name, v in self.moments.items() if name != "step"}

    def fresh(self) -> Moments:
        """Return the moments before the first step, flat vectors over all trained parameters."""
        size = sum(padded(p.shape) for p in self.params)
        device = self.skeleton.flat.device
        flat = {name: torch.zeros(size, device=device) for name in buffers(self.settings)}
        if self.settings.optimiser == "adam":
            flat["step"] = torch.zeros((), device=device)
        return flat

    def moments_to_keep(self) -> Moments:
        """Return the moments that the client keeps."""
        return self.moments

    def cut(self, flat: Tensor) -> list[Tensor]:
        """Return a flat vector of moments as one view for each parameter, in its memory layout."""
        parts = zip(flat.split([padded(p.shape) for p in self.params]), self.params, strict=True)
        return [part.as_strided(p.shape, p.stride()) for part, p in parts]

    @torch.no_grad()
    def step(self, gradient: Gradient | None = None) -> None:
        """Make one step.

        gradient: by parameter, in its memory layout; default: what is in the flat gradient.
        """
        if gradient is None:
            gradient = [self.skeleton.gradients[name] for name in self.names]
        if self.clip:
            gradient = clip_gradient(gradient, self.clip)
        if self.settings.optimiser == "adam":
            self.adam(gradient)
        else:
            self.sgd(gradient)

    def adam(self, gradient: Gradient) -> None:
        """Make a step of Adam: Kingma and Ba, ICLR 2015, algorithm 1."""
        how, (beta1, beta2) = self.settings, self.settings.betas
        self.moments["step"] += 1
        torch._fused_adam_(
            self.params,
            gradient,
            self.lists["exp_avg"],
            self.lists["exp_avg_sq"],
            [],
            [self.moments["step"]] * len(self.params),
            lr=self.lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=how.weight_decay,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )

    def sgd(self, gradient: Gradient) -> None:
        """Make a step of SGD, with momentum as in torch.

        In torch the momentum buffer starts as the first gradient; here it starts as 0, to which the
        first gradient is added.
        """
        how = self.settings
        torch._fused_sgd_(
            self.params,
            gradient,
            self.lists.get("momentum_buffer", []),
            weight_decay=how.weight_decay,
            momentum=how.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )


def buffers(settings: Local) -> tuple[str, ...]:
    """Return the names of the optimiser's moments, as in torch.optim; each is a flat vector."""
    if settings.optimiser == "adam":
        return "exp_avg", "exp_avg_sq"
    return ("momentum_buffer",) if settings.momentum else ()


def clip_gradient(gradient: Gradient, limit: float) -> Gradient:
    """Return the gradient, scaled down to this norm if it is longer.

    It is torch's clip_grad_norm_ without synchronisation with the host.
    """
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradient))))
    return torch._foreach_mul(list(gradient), (limit / (length + 1e-6)).clamp(max=1.0))


def make_optimiser(
    client: Client,
    settings: Local,
    lr: float,
    only: Wanted | None = None,
    phase: str = "train",
    clip: float = 0.0,
) -> Optimiser:
    """Return the job's optimiser for a client's model.

    It starts with the moments of the client's last round if clients keep them.
    """
    previous = client.memory.get(moments(phase)) if settings.keep_optimiser else None
    return Optimiser(client.skeleton, settings, lr, only, previous, clip)


def keep_moments(
    client: Client, optimiser: Optimiser, settings: Local, phase: str = "train"
) -> None:
    """Store the moments in the client's memory, if the job has local.keep_optimiser."""
    if settings.keep_optimiser and optimiser.moments:
        client.memory[moments(phase)] = optimiser.moments_to_keep()


def moments(phase: str) -> str:
    """Return the name of an optimiser's moments in a client's memory.

    Each phase of a round has its own optimiser.
    """
    return "optimiser" if phase == "train" else f"optimiser of {phase}"


@contextmanager
def freeze(model: nn.Module, only: Wanted | None) -> Iterator[None]:
    """Compute no gradients for parameters that are not trained, inside the block."""
    rest = [p for name, p in model.named_parameters() if not only(name)] if only else []
    for p in rest:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in rest:
            p.requires_grad_(True)
