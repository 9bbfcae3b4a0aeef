"""FedGen: a generator at the server makes representations of each class, on which clients train.

Zhu, Hong and Zhou, ICML 2021, arXiv:2105.10056, algorithm 1. G makes a representation z of noise
eps and a class y; h is a model's head, f its logits and s its soft predictions. The first argument
of KL has no gradient. Generated classes i are drawn from those of the federation. p_ky is client
k's share of the examples of class y, and D falls as different noise gives different
representations; eta is the field `diversity`. alpha and beta fall by the factor `decay` per round,
to 1e-4 at least; alpha also has the factor generated / batch.

Objective: CE + alpha CE(h(G(eps, i)), i) + beta KL(softmax h(G(eps, y)) || s)
Server: w <- sum_k p_k w_k; G <- argmin_G sum_k p_ky CE(h_k(G(eps, y)), y) + eta D;
D = e^(-mean_(a,b) ||eps_a - eps_b||^2 ||z_a - z_b||_1)
Round:
1. The server sends its model w, the generator G, and how often each class occurs.
2. Each client trains; its head also learns generated representations, and its logits come near to
   those of generated representations of the same classes. In the first round it does not use the
   generator, which is untrained.
3. It sends its model w_k and its number of examples of each class.
4. The server takes the weighted mean of the models.
5. It trains the generator so that the clients' heads recognise its representations.

Deviations: with share = "head" bodies may differ and only heads are sent and averaged, as in
HtFLlib, whose clients use the untrained generator, because the trained one is never saved, and have
alpha = 1, beta = 0, no decay and ensemble = "logits". The paper draws Gaussian noise, all public
codes uniform noise in its place (preset authors). The authors count examples per batch, plus 1;
here all of the client's count. They stop using the generator after 20 local epochs, which is not
followed. Norms in D are means over components.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from hpcfed import (
    Client,
    Federation,
    Guide,
    LocalSteps,
    Mean,
    Model,
    Params,
    RoundBased,
    Share,
    Upload,
    rng,
)
from hpcfed.algorithms.data_free.generators import apply_layers, check_finite
from hpcfed.config.conditions import field
from hpcfed.models.model import in_head
from hpcfed.training import examples
from hpcfed.training.losses import distil, soften

LEAST = 1e-4  # of the weights of the generator's terms, which decay
TERMS = ("alpha", "beta")


@dataclass(frozen=True)
class State:
    """State of the server.

    x: the model, or its head.
    generator: weights of G, and the running statistics of its batch normalisation.
    moments: of the generator's Adam, "m/name" and "v/name".
    steps: steps of that Adam, [], int64.
    counts: number of examples of each class in the last round that had the class, [C].
    """

    x: Params
    generator: Params
    moments: Params
    steps: Tensor
    counts: Tensor


class FedGen(RoundBased):
    """With alpha = beta = 0 FedGen is FedAvg, and with share = "head" LG-FedAvg, bit for bit."""

    guide: ClassVar[Guide] = Guide(
        data="different labels",
        sent="all weights, and a generator of representations",
        won="above FedAvg, FedProx and distillation, with fewer rounds",
    )

    needs_classes: ClassVar[str] = "it generates representations of classes"
    reads_head: ClassVar[bool] = True

    share: Literal["all", "head"] = "all"
    """Exchange whole models of one architecture, or heads of different models."""
    alpha: NonNegativeFloat = 10.0
    """Weight of the cross-entropy of generated representations, for as many as in a batch."""
    beta: NonNegativeFloat = 10.0
    """Weight of the KL from the prediction for a generated representation of an example's class."""
    decay: Share = field(0.98, used_if=TERMS)
    """Factor of both weights per round."""
    generated: PositiveInt = field(32, used_if="alpha")
    """Generated representations in one step of a client."""
    draw: Literal["uniform", "counts"] = field("uniform", used_if="alpha")
    """Their classes: evenly of those of the federation, or by their number of examples."""
    noise: Literal["normal", "uniform"] = field("normal", used_if=TERMS)
    """Distribution of the generator's noise."""
    noise_size: PositiveInt = field(32, used_if=TERMS)
    """Number of noise values."""
    hidden: PositiveInt = field(256, used_if=TERMS)
    """Units of the generator's hidden layer."""
    server_steps: NonNegativeInt = field(50, used_if=TERMS)
    """Steps of the generator in a round, by Adam."""
    server_lr: PositiveFloat = field(3e-4, used_if="server_steps")
    """Learning rate of the generator in the first round; it has the factor `server_decay` per
    round.
    """
    server_decay: Share = field(0.98, used_if="server_steps")
    """Factor of the generator's learning rate per round."""
    server_weight_decay: NonNegativeFloat = field(1e-2, used_if="server_steps")
    """Weight decay of the generator."""
    server_batch: PositiveInt = field(32, used_if="server_steps")
    """Generated representations in one step of the server; normalisation needs more than one."""
    ensemble: Literal["losses", "logits"] = field("losses", used_if="server_steps")
    """The generator descends the clients' losses, weighted by their share of the class, or the loss
    of the mean of their logits, weighted by `weighting`.
    """
    diversity: NonNegativeFloat = field(1.0, used_if="server_steps")
    """Weight of D, the similarity of what different noise gives."""

    @property
    def accepts(self) -> str:
        return "one architecture" if self.share == "all" else "a common head"

    def shared(self, name: str) -> bool:
        return self.share == "all" or in_head(name)

    @property
    def teaches(self) -> bool:
        """Whether the generator has an effect."""
        return bool(self.alpha or self.beta)

    def init(self, fed: Federation) -> State:
        C, d = fed.shapes()["head.weight"].shape
        with rng.scoped(fed.seed, "generator"):
            network = nn.Sequential(
                nn.Linear(self.noise_size + C, self.hidden),
                nn.BatchNorm1d(self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, d),
            ).to(fed.device)
        zero = torch.zeros((), dtype=torch.int64, device=fed.device)
        weights = Params(network.named_parameters()).clone()
        statistics = Params(
            {n: b.clone() for n, b in network.named_buffers() if b.is_floating_point()}
        )
        moments = Params({**(weights * 0).prefixed("m/"), **(weights * 0).prefixed("v/")})
        counts = torch.zeros(fed.classes, device=fed.device)
        generator = Params({**weights, **statistics})
        return State(fed.initial(self.shared), generator, moments, zero, counts)

    def model(self, state: State) -> Params:
        return state.x

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        if not self.teaches:
            return state.x
        generator = state.generator.prefixed("generator/")
        return Params({**state.x, **generator, "classes/counts": state.counts})

    def receive(self, client: Client, state: Params) -> None:
        client.load(state.pick(lambda name: "/" not in name))

    def make(
        self,
        weights: Params,
        labels: Tensor,
        g: torch.Generator,
        training: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return representations of these classes, [n, d], and their noise.

        weights: of the generator, and its running statistics.  labels: [n].  training: batch
        normalisation takes the batch's statistics, which also update the running ones.
        """
        size = len(labels), self.noise_size
        draw = torch.randn if self.noise == "normal" else torch.rand
        eps = draw(*size, generator=g).to(labels.device, non_blocking=True)
        classes = weights["0.weight"].shape[1] - self.noise_size
        # one_hot would look at the labels, for which a GPU has to be waited
        member = labels[:, None] == torch.arange(classes, device=labels.device)
        inputs = torch.cat([eps, member.to(eps.dtype)], 1)
        return apply_layers(weights, inputs, training), eps

    def objective(
        self,
        client: Client,
        received: Params,
        weights: tuple[float, float],
        fake: tuple[Tensor, Tensor],
        of_batch: Tensor,
        model: Model,
        x: Any,
        y: Tensor,
    ) -> Tensor:
        """Return the local objective on one batch.

        weights: of both terms of the generator.  fake: generated representations and their classes.
        of_batch: generated representations of the batch's classes, [n, d].
        """
        (alpha, beta), logits = weights, model(x)
        cached: Any = lambda x: logits  # noqa: E731, one forward pass for both
        value = self.loss(client, received, cached, x, y)
        if alpha:
            value = value + alpha * F.cross_entropy(model.head(fake[0]), fake[1])
        return value + beta * distil(soften(model.head(of_batch)), logits) if beta else value

    def train_with(self, fed: Federation, client: Client, received: Params, t: int) -> None:
        """Train the client's model on its examples and on generated representations."""
        generator, counts = received.under("generator/"), received["classes/counts"]
        # before any client has reported, all classes are alike
        present = ((counts > 0) | (counts.sum() == 0)).to(counts.dtype)
        chances = counts.clamp(min=1) * present if self.draw == "counts" else present
        limits = (chances / chances.sum()).cumsum(0)  # of each class, within 0 and 1
        g = rng.torch_stream(fed.seed, "generated", t, client.id)
        decay = self.decay**t
        alpha, beta = (max(w * decay, LEAST) if w else 0.0 for w in (self.alpha, self.beta))
        alpha *= self.generated / fed.job.local.batch
        with LocalSteps(fed, client, t) as steps:
            if steps.private:
                examples.refuse(fed, "its batches have generated representations beside examples")
            for x, y in steps:
                with torch.no_grad():
                    places = torch.rand(self.generated, generator=g)
                    places = places.to(limits.device, non_blocking=True)
                    labels = torch.searchsorted(limits, places, right=True)
                    labels = labels.clamp(max=len(limits) - 1)
                    fake, _ = self.make(generator, labels, g)
                    of_batch, _ = self.make(generator, y, g)
                loss = partial(
                    self.objective, client, received, (alpha, beta), (fake, labels), of_batch
                )
                steps.learn(loss, x, y)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        if self.teaches and t:  # in round 0 the generator is untrained
            self.train_with(fed, client, download, t)
        else:
            self.train(fed, client, download, t)
        model = Mean.of(client.params(self.shared), self.weight(client))
        references = {"model": download.pick(lambda name: "/" not in name)}
        if not self.teaches:
            return Upload(model=model, relative_to=references)
        counts = torch.from_numpy(fed.label_counts[client.id]).float().to(fed.device)
        return Upload(model=model, counts=counts, relative_to=references)

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> State:
        x = fed.mean(((k, sent["model"]) for k, sent in uploads), keep=state.x)
        if not self.teaches:
            return replace(state, x=x)
        heads = {
            k: {
                "head": sent["model"].terms[0].value.under("head."),
                "counts": sent["counts"],
                "weight": self.weight(fed.clients[k]),
            }
            for k, sent in uploads
        }
        sent = fed.at_root(heads)
        return State(x, *fed.on_root(lambda: self.learn(fed, state, list(sent.values()))))

    def learn(
        self, fed: Federation, state: State, sent: list[dict[str, Any]]
    ) -> tuple[Params, Params, Tensor, Tensor]:
        """Return the generator after its steps, its moments, their number, and the class counts."""
        counts = torch.stack([client["counts"] for client in sent])  # [clients, C]
        total = counts.sum(0)
        last = torch.where(total > 0, total, state.counts)
        classes = (total > 0).nonzero()[:, 0]
        if not len(classes):
            return state.generator, state.moments, state.steps, last
        new = state.generator.clone()
        leaves = {name: new[name].requires_grad_() for name in state.moments.under("m/")}
        lr = self.server_lr * self.server_decay**fed.t
        adam = torch.optim.Adam(leaves.values(), lr, weight_decay=self.server_weight_decay)
        for name, leaf in leaves.items():
            adam.state[leaf] = {
                "step": state.steps.float().cpu(),
                "exp_avg": state.moments[f"m/{name}"].clone(),
                "exp_avg_sq": state.moments[f"v/{name}"].clone(),
            }
        g = rng.torch_stream(fed.seed, "generated", fed.t)
        for _ in range(self.server_steps):
            places = torch.randint(len(classes), (self.server_batch,), generator=g)
            y = classes[places.to(classes.device)]
            z, eps = self.make(new, y, g, training=True)
            adam.zero_grad()
            value = self.generator_loss(sent, counts / total.clamp(min=1), z, y)
            (value + self.diversity * similarity(eps, z)).backward()
            adam.step()
            fed.clock.heartbeat.step()
        moments = {
            f"{short}/{name}": adam.state[leaf][long]
            for short, long in (("m", "exp_avg"), ("v", "exp_avg_sq"))
            for name, leaf in leaves.items()
        }
        check_finite(fed, "generator", new.clone(), "algorithm.server_lr")
        return new.clone(), Params(moments), state.steps + self.server_steps, last

    def generator_loss(
        self, sent: list[dict[str, Any]], shares: Tensor, z: Tensor, y: Tensor
    ) -> Tensor:
        """Return the loss of representations with the clients' heads, a scalar.

        shares: each client's share of the examples of a class, [clients, C].  z: [n, d].  y: [n].
        """
        logits = torch.stack(
            [F.linear(z, one["head"]["weight"], one["head"]["bias"]) for one in sent]
        )
        if self.ensemble == "logits":
            weights = logits.new_tensor([one["weight"] for one in sent])
            return F.cross_entropy(torch.tensordot(weights / weights.sum(), logits, 1), y)
        losses = torch.stack([F.cross_entropy(f, y, reduction="none") for f in logits])
        return (shares[:, y] * losses).sum(0).mean()


def similarity(eps: Tensor, z: Tensor) -> Tensor:
    """Return D of noise, [n, size], and its representations, [n, d]: from 0 to 1."""
    of_noise = (eps[:, None] - eps).square().mean(2)
    of_layer = (z[:, None] - z).abs().mean(2)
    return (-(of_noise * of_layer).mean()).exp()
