"""pFedBayes: each client has a Gaussian over its weights, which is kept near a common Gaussian.

Zhang et al., ICML 2022, arXiv:2206.07977, algorithm 1. Each weight has a Gaussian N(mu,
softplus(rho)^2). n is the client's number of examples. All steps are those of the job's optimiser.
Evaluation uses the network of the means mu.

Objective: CE(w) + zeta / n KL(q || p_k)
Server: p <- (1 - beta) p + beta mean_k p_k
Round:
1. The server sends the common distribution p to the cohort; a client's copy p_k begins there.
2. On each batch a client takes `inner_steps` steps of its personal q, with weights w drawn from q.
3. Then it takes one step of its copy p_k down the divergence alone, zeta / n KL(q || p_k).
4. It sends its copy p_k; q stays.
5. The server goes the share beta, by default all, of the way to the mean of the copies.

Deviations: mu and rho are averaged (not sigma). The preset `authors` follows an unofficial code
(AllenBeau/pFedBayes), which draws its noise with standard deviation 0.001 instead of 1, so that its
networks are almost deterministic. It weighs clients by examples, has no beta, and divides the
divergence not by n but by the 20 batches of a round, beside a sum over the 100 examples of a batch:
by 2000 beside their mean (`divisor`). Buffers of batch
normalisation are averaged like means. Weight decay applies to the personal mu alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal

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
from hpcfed.algorithms.bayesian.gaussian import RHO, follower, means, pull
from hpcfed.config.conditions import field
from hpcfed.training.optimisers import keep_moments


class PFedBayes(RoundBased):
    """FedAvg of distributions, with a personal distribution on each client.

    A client's own model is the means of its personal distribution; its memory holds `rho`,
    [values].
    """

    guide = Guide(
        data="few examples per client",
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

    def init(self, fed: Federation) -> Params:
        mu = fed.initial()
        rho = mu.pick(fed.trainable).map(lambda value: torch.full_like(value, self.rho))
        return Params({**mu, **rho.prefixed(RHO)})

    def receive(self, client: Client, state: Params) -> None:
        client.load(means(state))

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        if "rho" not in client.memory:
            self.receive(client, download)
        loss = partial(self.loss, client, download)
        with LocalSteps(fed, client, t) as steps:
            gaussians = Gaussians(self, steps, download, steps.optimiser.names)
            for x, y in steps:
                gaussians.learn(partial(steps.value, loss, x, y), steps.step)
        buffers = client.params(lambda name: not fed.trainable(name))
        sent = Params({**gaussians.end(), **buffers})
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def pull(
        self, client: Client, q: tuple[Tensor, Tensor], p: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the divergence of q from p as it counts in a client's loss, and its gradients."""
        return pull(self.zeta, self.divisor or client.n, q, p)

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        return mean if self.beta == 1 else (1 - self.beta) * state + self.beta * mean


class Gaussians:
    """A client's personal distribution and its copy of the common one in a round.

    The personal means are in the client's model.
    names: parameters that have a distribution; neighbours in the vector of the model.
    """

    def __init__(
        self, method: PFedBayes, steps: LocalSteps, received: Params, names: Sequence[str]
    ) -> None:
        fed, client = steps.fed, steps.client
        self.method, self.steps, self.names = method, steps, names
        self.layout, slots = client.skeleton.layout, client.skeleton.layout.slots
        self.at = slice(slots[names[0]].start, slots[names[-1]].stop)
        self.mu, self.deviation = self.flatten(received), self.flatten(received.under(RHO))
        rho = client.memory.get("rho", self.deviation)
        self.rho = rho.clone()
        self.spread = follower(fed, client, steps.lr, "rho", self.rho)
        self.copy = follower(fed, client, steps.lr, "copy", self.mu, self.deviation)
        self.noise = rng.torch_stream(fed.seed, "weights", steps.t, client.id, device=fed.device)

    def flatten(self, values: Params) -> Tensor:
        """Return the values of the parameters as one new vector, in the layout's order."""
        vector = self.steps.skeleton.flat.new_zeros(self.layout.gradient_size)
        views = self.layout.views(vector)
        for name in self.names:
            views[name].copy_(values[name])
        return vector[self.at].clone()

    def unflatten(self, values: Tensor) -> Params:
        vector = values.new_zeros(self.layout.gradient_size)
        vector[self.at] = values
        views = self.layout.views(vector)
        return Params({name: views[name] for name in self.names})

    def learn(self, value: Callable[[], Tensor], descend: Callable[[Tensor], None]) -> None:
        """Train the personal distribution on a batch, and then the copy of the common one.

        value: computes the loss on the batch.  descend: takes a step with the flat gradient.
        """
        for _ in range(self.method.inner_steps):
            self.personal_step(value, descend)
        if self.method.zeta:
            q = self.steps.skeleton.flat[self.at], self.rho
            pulled = self.method.pull(self.steps.client, q, (self.mu, self.deviation))
            self.copy.step(pulled[1][2:])

    def personal_step(self, value: Callable[[], Tensor], descend: Callable[[Tensor], None]) -> None:
        """Take one step of the personal mean and rho, on weights drawn from them."""
        method, skeleton, rho = self.method, self.steps.skeleton, self.rho
        weights = skeleton.flat[self.at]
        mu = weights.clone()
        eps = method.eps_std * torch.randn(len(rho), generator=self.noise, device=rho.device)
        weights += F.softplus(rho) * eps
        loss = value()
        self.steps.backward(loss)
        weights.copy_(mu)
        # gradient of rho; sigmoid is softplus's derivative
        slope = skeleton.grad[self.at] * eps * rho.sigmoid()
        if method.zeta:
            common = self.mu, self.deviation
            divergence, (of_mu, of_rho, *_) = method.pull(self.steps.client, (mu, rho), common)
            skeleton.grad[self.at].add_(of_mu)
            loss, slope = loss.detach() + divergence, slope + of_rho
        self.spread.step([slope])
        descend(loss)

    def end(self) -> Params:
        """Return the copy of the common distribution; the personal one stays with the client."""
        client, settings = self.steps.client, self.steps.fed.job.local
        keep_moments(client, self.spread, settings, "rho")
        keep_moments(client, self.copy, settings, "copy")
        client.memory["rho"] = self.rho
        deviations = self.unflatten(self.deviation).prefixed(RHO)
        return Params({**self.unflatten(self.mu), **deviations})
