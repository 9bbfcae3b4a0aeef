"""pFedMe: each client trains a personal model near a common model, which moves towards it.

The common model descends the gradient of the Moreau envelopes of the clients' losses.

Dinh et al., NeurIPS 2020, arXiv:2006.08848, algorithm 1. A batch of the job is one local round of
the paper (R is local.steps); the step of the personal model is the job's optimiser with local.lr.

Objective: F_k(theta) + lam / 2 ||theta - w_k||^2
Server: w <- (1 - beta) w + beta mean_k w_k
Round:
1. The server sends the common model to the cohort.
2. On each batch a client takes `inner_steps` steps of its personal model theta.
3. Then its copy w_k of the common model takes the step w_k <- w_k - eta lam (w_k - theta).
4. It sends w_k; theta stays, and is evaluated.
5. The server goes the share beta of the way to the mean.

Deviations: the authors' code adds a small L2 term to the personal objective (here
local.weight_decay). Personal models start from the received one in each round, as in that code.
beta > 1 does not apply to batch statistics.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from hpcfed import Client, Federation, Guide, LocalSteps, Mean, Params, RoundBased, Upload
from hpcfed.config.conditions import field
from hpcfed.training.losses import proximal


class PFedMe(RoundBased):
    """A client's own model is its personal model.

    The client uploads the common model that it received and moved, and does not keep it.
    """

    guide = Guide(
        data="few classes per client",
        sent="all weights",
        won="personal models, above FedAvg and Per-FedAvg",
    )

    keeps_weights: ClassVar[bool | None] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: its number of training examples, or 1."""
    lam: NonNegativeFloat = 15.0
    """Weight of the distance between personal and common model."""
    inner_steps: PositiveInt = 5
    """Steps of the personal model on each batch (K of the paper)."""
    eta: PositiveFloat = field(0.005, used_if="lam")
    """Step of the common model towards the personal one, times lam."""
    beta: NonNegativeFloat = 1.0
    """The server's step from its old model to the mean; 1 is the mean itself, and the paper goes up
    to 4.
    """

    @model_validator(mode="after")
    def contracts(self) -> Self:
        check_step(self.eta, self.lam)
        return self

    @property
    def steps_per_batch(self) -> int:
        return self.inner_steps

    @property
    def trains_once(self) -> bool:
        """Whether a personal model takes one step per batch."""
        return self.inner_steps == 1

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        anchor, loss = client.params(fed.trainable), partial(self.loss, client, download)
        with LocalSteps(fed, client, t) as steps:
            for x, y in steps:
                self.learn(client, anchor, partial(steps.value, loss, x, y), steps.descend)
        sent = Params({**client.params(), **anchor})
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def learn(
        self,
        client: Client,
        anchor: Params,
        value: Callable[[], Tensor],
        descend: Callable[[Tensor], None],
    ) -> None:
        """Train the personal model on a batch, and move the common model towards it.

        anchor: the common model, which is changed; only the tensors that it names are trained.
        value: computes the loss on the batch.  descend: takes a step down a loss.
        """
        for _ in range(self.inner_steps):
            descend(value() + proximal(client.skeleton.model, anchor, self.lam))
        for name, w in anchor.items():
            w -= self.eta * self.lam * (w - client.skeleton.view(name))

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        if self.beta == 1:
            return mean
        # a variance stays >= 0
        step = {n: self.beta if fed.trainable(n) else min(self.beta, 1.0) for n in mean}
        return Params(
            {name: (1 - step[name]) * state[name] + step[name] * v for name, v in mean.items()}
        )


def check_step(eta: float, lam: float) -> None:
    """Raise ValueError if the common model would move beyond the personal one."""
    if eta * lam >= 1:
        raise ValueError(f"eta * lam = {eta * lam:g} must be < 1, else the common model oversteps")
