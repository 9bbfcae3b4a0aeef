"""Per-FedAvg: clients learn a common start from which one gradient step makes a personal model.

Fallah et al., NeurIPS 2020, arXiv:2002.07948, algorithm 1; approximations FO and HF of section 5.
The outer step, beta in the paper, is the job's optimiser with local.lr.

Objective: F_k(w - alpha grad F_k(w))
Server: w <- mean_k w_k
Round:
1. The server sends the common model to the cohort.
2. A client's step begins with a personal step of alpha down the gradient of a batch.
3. The common model steps down g, the gradient after it on another batch (fo), or g - alpha H g with
   the Hessian H on a third batch, at the common model (hf).
4. The client sends its common model.
5. The server takes the mean; a client is evaluated after `adapt_steps` personal steps.

Deviations: the personal step before evaluation takes all of a client's training examples. Clients
weigh alike, as the paper's clients do. Running statistics of batch normalisation follow all of a
step's forward passes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, LocalSteps, Mean, Params, RoundBased, Upload
from hpcfed.algorithms.base import score_server
from hpcfed.config.conditions import field, other_than
from hpcfed.training.local import Loss, gradient


class PerFedAvg(RoundBased):
    """Per-FedAvg with alpha = 0 equals FedAvg with uniform weights, bit for bit."""

    guide = Guide(
        data="users whose models are to be personal",
        sent="all weights",
        won="few classes per client: above FedAvg after one step",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: its number of training examples, or 1."""
    alpha: NonNegativeFloat = 0.01
    """Step from the common to the personal model."""
    variant: Literal["fo", "hf"] = field("fo", used_if="alpha")
    """Leave out the Hessian (first order), or take its product from the difference of two
    gradients.
    """
    delta: PositiveFloat = field(1e-3, used_if={"variant": other_than("fo")})
    """Variant hf: half the distance between the two gradients."""
    adapt_steps: PositiveInt = field(1, used_if="alpha")
    """Personal steps before a model is evaluated."""

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        loss = partial(self.loss, client, download)
        with LocalSteps(fed, client, t) as steps:
            second, third = steps.others("second"), steps.others("third")
            for x, y in steps:
                value = (
                    self.outer(steps, loss, (x, y), second, third)
                    if self.alpha
                    else steps.value(loss, x, y)
                )
                if not self.alpha:
                    steps.backward(value)
                steps.step(value)
        # gradients that a step computes in addition to that of its batch
        further = {"fo": 1, "hf": 3}[self.variant] if self.alpha else 0
        fed.tallies[client.id].work += further * sum(steps.examples)
        return Upload(Mean.of(client.params(), self.weight(client)), relative_to=download)

    def outer(
        self,
        steps: LocalSteps,
        loss: Loss,
        batch: tuple[Any, Any],
        second: Iterator[tuple[Any, Any]],
        third: Iterator[tuple[Any, Any]],
    ) -> Tensor:
        """Leave the gradient of the loss after a personal step (eqs. 11 and 15) in the model.

        Returns that loss.
        """
        skeleton, n = steps.skeleton, steps.skeleton.layout.gradient_size
        w = skeleton.flat[:n].clone()
        steps.backward(steps.value(loss, *next(second)))
        skeleton.flat[:n] -= self.alpha * skeleton.grad
        value = steps.value(loss, *batch)
        steps.backward(value)
        if self.variant == "hf":
            g, example = skeleton.grad.clone(), next(third)
            skeleton.grad.copy_(g - self.alpha * self.hessian_times(steps, loss, example, w, g))
        skeleton.flat[:n] = w
        return value

    def hessian_times(
        self, steps: LocalSteps, loss: Loss, batch: tuple[Any, Any], w: Tensor, g: Tensor
    ) -> Tensor:
        """Return the Hessian at w times g, from gradients at w + delta g and w - delta g (eq. 14).

        Both gradients have the same dropout mask.
        """
        ends, fed = [], steps.fed
        for sign in (1, -1):
            steps.skeleton.flat[: len(w)] = w + sign * self.delta * g
            with fed.scoped("hessian", steps.t, steps.client.id, len(steps.losses)):
                steps.backward(steps.value(loss, *batch))
            ends.append(steps.skeleton.grad.clone())
        return (ends[0] - ends[1]) / (2 * self.delta)

    def predictor(self, fed: Federation, client: Client, state: Params) -> Callable[[Any], Tensor]:
        """Return the model after personal steps."""
        skeleton, loss = client.skeleton, partial(self.loss, client, state)
        for i in range(self.adapt_steps if self.alpha else 0):
            gradient(fed, client, fed.t, loss, phase=f"adapt {i}", counted=False)
            skeleton.flat[: len(skeleton.grad)] -= self.alpha * skeleton.grad
        return client.model

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return the accuracy of the common model without a personal step.

        No client owns the whole test split, so there are no examples for such a step.
        """
        return score_server(fed, fed.architectures[0], state)
