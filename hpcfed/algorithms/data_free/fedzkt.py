"""FedZKT: different client models and a server model distil each other on generated examples.

Zhang, Wu and Yuan (FedZKT: Zero-Shot Knowledge Transfer towards Resource-Constrained Federated
Learning with Heterogeneous On-Device Models), ICDCS 2022, arXiv:2109.03775. The server has a model
F (models.server) and a generator G, which makes examples of noise z; f is the mean of the logits of
the round's models. The l1 distance of soft predictions is the paper's SL loss; near agreement KL
has vanishing gradients, and the l1 distance of logits unbounded ones.
The implementation is based on the abstract and descriptions of the paper, because the authors have
published no code. The loop follows them; the loss and the numbers are less certain.

Objective: CE + mu ||w - w_received||^2
Server: min_F max_G ||softmax F(G(z)) - softmax f(G(z))||_1;
w_k <- argmin_w KL(softmax F(G(z)) || softmax w(G(z)))
Round:
1. Each client trains its own model near the weights that it received, and sends it.
2. The server's generator G makes examples on which its model F and the mean f of clients differ.
3. F learns from f on other examples of G; both steps alternate.
4. F teaches each of the round's models on examples of G.
5. The weights of each model go back to its client.

Deviations: F teaches by KL of soft predictions. G and F take steps in turn, one each. All numbers
of steps, and the generator (Fang et al., 2019), are our choice. Normalisation in the clients'
models is in eval mode while they are an ensemble, and by the batch while they learn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, Params, RoundBased, Upload, rng
from hpcfed.algorithms.base import score_server
from hpcfed.algorithms.data_free.generators import Generator, check_finite
from hpcfed.config.conditions import Unused, field
from hpcfed.training.losses import distil, proximal, soften
from hpcfed.training.server import call, parameters

RATES = "algorithm.server_lr, algorithm.generator_lr"


@dataclass(frozen=True)
class State:
    """State of the server; the clients keep their models between rounds.

    server: weights of F.
    generator: weights of G.
    """

    server: Params
    generator: Params


class FedZKT(RoundBased):
    """Data-free distillation between any models.

    server_steps = distil_steps = 0 with mu = 0 is local training, bit for bit.
    """

    guide = Guide(
        data="different labels, no public data",
        sent="all weights",
        won="different models without public data, above FedMD",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("server",)
    keeps_weights: ClassVar[bool | None] = True
    unused: ClassVar[Unused] = {
        "weighting": "all models of the ensemble have equal weights",
    }

    mu: NonNegativeFloat = 0.01
    """Weight of the squared distance to the received weights in a client's loss."""
    server_steps: NonNegativeInt = 200
    """Steps of the generator in a round; the server's model takes as many."""
    distil_steps: NonNegativeInt = 50
    """Steps in which the server's model teaches each client's model."""
    server_lr: PositiveFloat = field(0.01, used_if=("server_steps", "distil_steps"))
    """Learning rate of the server's model and of the clients' models that it teaches, by plain SGD.
    """
    generator_lr: PositiveFloat = field(1e-3, used_if="server_steps")
    """Learning rate of the generator, by Adam."""
    server_batch: PositiveInt = field(256, used_if=("server_steps", "distil_steps"))
    """Generated examples in one step of the server; normalisation needs more than one."""
    noise: PositiveInt = field(100, used_if=("server_steps", "distil_steps"))
    """Number of noise values from which the generator makes an example."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.server_batch == 1:
            reasons["job"] = (
                "needs at least two generated examples per step, but has one; set "
                "algorithm.server_batch = 2"
            )
        return reasons

    def init(self, fed: Federation) -> State:
        generator = Generator(fed, self.noise).initial()
        return State(fed.initial(architecture=fed.job.models.server), generator)

    def receive(self, client: Client, state: State) -> None:
        pass  # the client got its weights at the end of its last round

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return score_server(fed, fed.job.models.server, state.server)

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Any) -> Tensor:
        value = super().loss(client, state, model, x, y)
        return value + proximal(model, state, 2 * self.mu) if self.mu else value

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        received = client.params(fed.trainable) if self.mu else Params()
        self.train(fed, client, received, t)
        return Upload(client.params())

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        uploads = fed.stream(cohort, partial(self.local, fed), arguments=(state, t))
        sent = fed.at_root(dict(uploads))
        models: dict[int, Params] = {}  # filled on the server's rank only

        def work() -> tuple[Params, Params]:
            new = self.transfer(fed, state, sent, t)
            models.update(self.teach(fed, new, sent, t))
            return new.server, new.generator

        new = State(*fed.on_root(work))
        back = fed.from_root(models)
        for client in fed.mine(cohort):
            if client.id in back:
                client.load(fed.down(client, back[client.id]))
        return new

    def transfer(self, fed: Federation, state: State, sent: Mapping[int, Params], t: int) -> State:
        """Return F and G after their adversarial training against the round's models."""
        if not sent or not self.server_steps:
            return state
        generator, kind = Generator(fed, self.noise), fed.job.models.server
        make = partial(generator.make, n=self.server_batch, g=noise(fed, "game", t))
        G, Fs = state.generator.clone(), state.server.clone()
        best = torch.optim.Adam([v.requires_grad_() for v in G.values()], self.generator_lr)
        trained = parameters(fed.module(kind))
        leaves = [v.requires_grad_() for name, v in Fs.items() if trained(name)]
        descent = torch.optim.SGD(leaves, self.server_lr)
        with fed.scoped("game", "dropout", t):
            for _ in range(self.server_steps):
                best.zero_grad()
                x = make(G)
                (-disagreement(answer(fed, kind, Fs, x), self.ensemble(fed, sent, x))).backward()
                best.step()
                with torch.no_grad():
                    x = make(G)
                    wanted = self.ensemble(fed, sent, x)
                descent.zero_grad()
                disagreement(answer(fed, kind, Fs, x, learns=True), wanted).backward()
                descent.step()
                fed.clock.heartbeat.step()
        return State(
            check_finite(fed, "model", Fs.clone(), RATES),
            check_finite(fed, "generator", G.clone(), RATES),
        )

    def ensemble(self, fed: Federation, sent: Mapping[int, Params], x: Tensor) -> Tensor:
        """Return the mean of the clients' logits, [n, C]; gradients flow through it to x."""
        every = [answer(fed, fed.architectures[k], model, x) for k, model in sent.items()]
        return torch.stack(every).mean(0)

    def teach(
        self, fed: Federation, state: State, sent: Mapping[int, Params], t: int
    ) -> dict[int, Params]:
        """Return the round's models after F has taught each of them."""
        if not self.distil_steps:
            return dict(sent)
        generator, new = Generator(fed, self.noise), {}
        for k, model in sent.items():
            kind, g = fed.architectures[k], noise(fed, "lessons", t, k)
            learnt, trained = model.clone(), parameters(fed.module(kind))
            leaves = [v.requires_grad_() for name, v in learnt.items() if trained(name)]
            descent = torch.optim.SGD(leaves, self.server_lr)
            with fed.scoped("lessons", "dropout", t, k):
                for _ in range(self.distil_steps):
                    with torch.no_grad():
                        x = generator.make(state.generator, self.server_batch, g)
                        target = soften(answer(fed, fed.job.models.server, state.server, x))
                    descent.zero_grad()
                    distil(target, answer(fed, kind, learnt, x, learns=True)).backward()
                    descent.step()
                    fed.clock.heartbeat.step()
            new[k] = check_finite(fed, f"model of client {k}", learnt.clone(), RATES)
        return new


def noise(fed: Federation, *key: str | int) -> torch.Generator:
    """Return the generator of random numbers for the noise in one part of a round."""
    return rng.torch_stream(fed.seed, "noise", *key)


def answer(
    fed: Federation, kind: str, model: Mapping[str, Tensor], x: Tensor, learns: bool = False
) -> Tensor:
    """Return a model's logits, in eval mode unless it learns.

    If it learns, its statistics are updated.
    """
    module = fed.module(kind)
    module.model.train(learns)
    return call(module, Params(model), x)


def disagreement(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return D, the mean l1 distance of soft predictions, from 0 to 2; logits: [n, C]."""
    return (F.softmax(ours, dim=1) - F.softmax(theirs, dim=1)).abs().sum(1).mean()
