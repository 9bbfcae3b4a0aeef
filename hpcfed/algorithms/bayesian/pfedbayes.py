"""pFedBayes: each client has a Gaussian over its weights, which is kept near a common Gaussian.

Zhang et al., ICML 2022, arXiv:2206.07977, algorithm 1. Each weight has a Gaussian N(mu,
softplus(rho)^2). On a batch a client takes `inner_steps` steps of its personal distribution q down
CE(w) + (zeta / n) KL(q || p), with w drawn from q. It then takes one step of its copy of the common
distribution p down (zeta / n) KL(q || p). The copy is uploaded, and the server averages the copies.
All steps are those of the job's optimiser. Evaluation uses the network of the means mu.

Deviations: mu and rho are averaged (not sigma). The preset `authors` follows an unofficial code
(AllenBeau/pFedBayes), which draws its noise with standard deviation 0.001 instead of 1, so that its
networks are almost deterministic. It weighs clients by examples, has no beta, and divides the
divergence not by n but by the 20 batches of a round, beside a sum over the 100 examples of a batch:
by 2000 beside their mean (`divisor`). Buffers of batch
normalisation are averaged like means. Weight decay applies to the personal mu alone.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from hpcfed import (
    Client,
    Federation,
    Guide,
    LocalSteps,
    Mean,
    Params,
    RoundBased,
    Share,
    Upload,
    rng,
)
from hpcfed.algorithms.bayesian.gaussian import RHO, flatten, follower, means, pull
from hpcfed.config.conditions import field
from hpcfed.training.optimisers import Optimiser, keep_moments


class PFedBayes(RoundBased):
    """FedAvg of distributions, with a personal distribution on each client.

    A client's own model is the means of its personal distribution; its memory holds `rho`,
    [values].
    """

    guide = Guide(
        data="few examples a client",
        sent="means and deviations of weights",
        won="small data, above pFedMe and Per-FedAvg",
    )

    keeps_weights: ClassVar[bool | None] = True

    weighting: Literal["samples", "uniform"] = field("uniform", used_if="beta")
    """Weight of a client in the mean: its number of training examples, or 1."""
    zeta: NonNegativeFloat = 10.0
    """Weight of the divergence between personal and common distribution; 0: they are independent,
    and the common one never moves.
    """
    divisor: NonNegativeInt = field(0, used_if="zeta")
    """Number that zeta is divided by; 0: the client's number of training examples, n."""
    rho: float = field(-3.0, used_if=("eps_std", "zeta"))
    """Initial value of all rho: standard deviations of softplus(rho), 0.05 for -3."""
    eps_std: NonNegativeFloat = 1.0
    """Standard deviation of the noise with which weights are drawn; 0: they are the means."""
    inner_steps: PositiveInt = 5
    """Steps of the personal distribution on each batch, before one step of the copy of the common
    one.
    """
    beta: Share = field(1.0, used_if="zeta")
    """The server's step from its old distribution to the mean; 1 is the mean itself."""

    @property
    def trains_once(self) -> bool:
        """Whether a personal distribution takes one step per batch."""
        return self.inner_steps == 1

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        return (fed.shapes(k=k).nbytes + fed.shapes(fed.trainable, k).nbytes,) * 2

    def init(self, fed: Federation) -> Params:
        mu = fed.initial()
        rho = mu.pick(fed.trainable).map(lambda value: torch.full_like(value, self.rho))
        return Params({**mu, **rho.prefixed(RHO)})

    def receive(self, client: Client, state: Params) -> None:
        client.load(means(state))

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        given, own = fed.down(client, state), client.memory.get("rho")
        if own is None:
            self.receive(client, given)
        layout, settings = client.skeleton.layout, fed.job.local
        mu, deviation = flatten(layout, given), flatten(layout, given.under(RHO))
        rho = (deviation if own is None else own).clone()
        with LocalSteps(fed, client, t) as steps:
            spread = follower(fed, client, steps.lr, "rho", rho)
            copy = follower(fed, client, steps.lr, "copy", mu, deviation)
            noise = rng.torch_stream(fed.seed, "weights", t, client.id, device=fed.device)
            loss = partial(self.loss, client, given)
            for x, y in steps:
                for _ in range(self.inner_steps):
                    self.personal_step(steps, loss, (x, y), spread, rho, (mu, deviation), noise)
                if self.zeta:
                    q = client.skeleton.flat[: len(rho)], rho
                    copy.step(self.pull(client, q, (mu, deviation))[1][2:])
        keep_moments(client, spread, settings, "rho")
        keep_moments(client, copy, settings, "copy")
        client.memory["rho"] = rho
        sent = {**layout.views(mu), **Params(layout.views(deviation)).prefixed(RHO)}
        buffers = client.params(lambda name: name not in sent)
        new = Params({**sent, **buffers}).clone()
        return Upload(Mean.of(new, self.weight(client)), relative_to=given)

    def personal_step(
        self,
        steps: LocalSteps,
        loss: Any,
        batch: tuple[Any, Any],
        spread: Optimiser,
        rho: Tensor,
        common: tuple[Tensor, Tensor],
        noise: torch.Generator,
    ) -> None:
        """Take one step of the personal mean and rho, on weights drawn from them.

        The personal mean is in the model.
        """
        skeleton, n = steps.skeleton, len(rho)
        mu = skeleton.flat[:n].clone()
        eps = self.eps_std * torch.randn(n, generator=noise, device=rho.device)
        skeleton.flat[:n] += F.softplus(rho) * eps
        value = steps.value(loss, *batch)
        steps.backward(value)
        skeleton.flat[:n] = mu
        slope = (
            skeleton.grad * eps * rho.sigmoid()
        )  # gradient of rho; sigmoid is softplus's derivative
        if self.zeta:
            divergence, (of_mu, of_rho, *_) = self.pull(steps.client, (mu, rho), common)
            skeleton.grad.add_(of_mu)
            value, slope = value.detach() + divergence, slope + of_rho
        spread.step([slope])
        steps.step(value)

    def pull(
        self, client: Client, q: tuple[Tensor, Tensor], p: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the divergence of q from p as it counts in a client's loss, and its gradients."""
        return pull(self.zeta, self.divisor or client.n, q, p)

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        return mean if self.beta == 1 else (1 - self.beta) * state + self.beta * mean
