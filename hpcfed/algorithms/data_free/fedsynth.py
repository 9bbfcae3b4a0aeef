"""Learning by synthetic data: clients send a few synthetic examples instead of their models.

Goetz and Tewari (Federated Learning via Synthetic Data), 2020, arXiv:2008.04489; FedSynth of Hu et
al. (2022) is another method. g(x, y) is the gradient at w of the cross-entropy of n examples x with
soft labels y; the objective is differentiated through it. The examples represent the model w -
||H_k|| g / ||g||. A client sends n (|x| + C) + 2 numbers, and what the deviations name.
The implementation is based on the abstract, the first page and descriptions of the paper; no code
of the authors is public. Message, norm and selection are theirs; Adam, its number of steps and the
number of examples are our choice.

Objective: F_k(w); 1 - cos(g(x, y), w - w_k)
Server: w <- w - sum_k p_k ||H_k|| g_k / ||g_k||
Round:
1. The server sends its model w to the cohort.
2. Each client trains it, which gives its update H_k, w - w_k.
3. It optimises n examples and their labels by Adam so that g has the direction of H_k. After every
   pass it scores the model that they represent on its own examples, and keeps the best ones so far.
4. It sends these examples, their labels, the length of H_k, and the cosine between H_k and the
   update that the examples represent.
5. The server computes each g_k at w, and averages the models that result.

Deviations: the cosine is one number more than the paper's message, for the record; it is counted.
Examples and labels are initialised with noise. Wherever a gradient of synthetic examples is
computed, by client or server, dropout is off and batch normalisation is in eval mode. The
statistics of batch normalisation, which no gradient carries, are sent as they are, and counted. If
g = 0 the model does not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload, rng
from hpcfed.algorithms.data_free.generators import example_shape
from hpcfed.training.infer import FORWARD, outputs
from hpcfed.training.local import count_work
from hpcfed.training.server import call, predictor

# x [n, *shape], labels [n, C], norm [], statistics by name, and in a client's message how well its
# examples represent its update, as "cosine" []
Sent = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """State of the server: its model, and how well the last synthetic examples represented updates.

    model: w.
    cosine: weighted mean over the last cohort of the cosine between each client's update and the
    update that its examples represent, []; nan before the first round.
    """

    model: Params
    cosine: Tensor


class FedSynth(RoundBased):
    """FedAvg with updates that are sent as synthetic examples.

    If a client takes one full-batch step of SGD, its real examples represent its update exactly.
    """

    guide = Guide(
        data="alike to moderately different",
        sent="synthetic examples instead of weights",
        won="fewer bytes up on small models",
    )

    needs_classes: ClassVar[str] = "it makes examples with soft class labels"

    examples: PositiveInt = 10
    """n, number of examples that a client makes and sends."""
    passes: PositiveInt = 10
    """Number of passes; after each the examples are scored, and the best ones so far are kept."""
    steps: PositiveInt = 20
    """Steps of Adam in each pass."""
    examples_lr: PositiveFloat = 0.1
    """Learning rate of examples and labels, by Adam."""

    def init(self, fed: Federation) -> State:
        example_shape(fed)  # raises ConfigError for texts
        return State(fed.initial(), torch.full((), torch.nan, device=fed.device))

    def model(self, state: State) -> Params:
        return state.model

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return super().columns(fed, state) | {"cosine_updates": float(state.cosine)}

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Sent]]) -> State:
        models, cosines = [], []
        for k, sent in uploads:
            weight = self.weight(fed.clients[k])
            with fed.clock("server"):
                model = rebuild(fed, fed.architectures[k], state.model, sent)
            models.append((k, Mean.of(model, weight)))
            cosines.append((k, Mean.of(Params(cosine=sent["cosine"]), weight)))
        model = fed.mean(models, keep=state.model)
        return State(model, fed.mean(cosines, keep=Params(cosine=state.cosine))["cosine"])

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        w = fed.down(client, self.offer(fed, client, state))
        self.receive(client, w)
        self.train(fed, client, w, t)
        trained = client.params()
        message, model = self.imitate(fed, client, w, trained, t)
        update, theirs = ((w - new).pick(fed.trainable) for new in (trained, model))
        return Upload(**message, cosine=cosine(theirs, update).float())

    def imitate(
        self, fed: Federation, client: Client, w: Params, trained: Params, t: int
    ) -> tuple[dict[str, Any], Params]:
        """Return what a client sends for its model, and the model that this represents.

        It is the best of the examples that the client makes.
        """
        kind, is_trained = client.architecture, fed.trainable
        update = (w - trained).pick(is_trained)
        statistics = trained.pick(lambda name: not is_trained(name))
        beside: dict[str, Any] = {"norm": length(update).float()}
        beside |= {"statistics": statistics} if statistics else {}
        g = rng.torch_stream(fed.seed, "synthetic", t, client.id)
        x = torch.randn(self.examples, *example_shape(fed), generator=g).to(fed.device)
        z = torch.randn(self.examples, fed.classes, generator=g).to(fed.device)
        descent = torch.optim.Adam([x.requires_grad_(), z.requires_grad_()], self.examples_lr)
        best: dict[str, Any] = {}
        best_model, least = w, float("inf")
        # a step needs the gradient of a gradient, which takes about as long as two steps
        work = 2 * self.examples * self.steps + FORWARD * client.n
        with count_work(fed, client, self.passes * work):
            for _ in range(self.passes):
                for _ in range(self.steps):
                    slopes = gradient(fed, kind, w, x, F.softmax(z, 1), through=True)
                    x.grad, z.grad = torch.autograd.grad(1 - cosine(slopes, update), [x, z])
                    descent.step()
                    fed.clock.heartbeat.step()
                now = {"x": x.detach().clone(), "labels": F.softmax(z.detach(), 1), **beside}
                model = rebuild(fed, kind, w, now)
                score = self.score(fed, client, model)
                if not best or score < least:
                    best, best_model, least = now, model, score
        return best, best_model

    def score(self, fed: Federation, client: Client, model: Params) -> float:
        """Return the cross-entropy of a model on the client's own examples."""
        answers = outputs(fed, predictor(fed, client.architecture, model), client.train)
        return float(F.cross_entropy(answers, client.train.targets(np.arange(client.n))))


def gradient(
    fed: Federation, kind: str, w: Params, x: Tensor, labels: Tensor, through: bool = False
) -> Params:
    """Return the gradient at w of the cross-entropy of examples and soft labels, by parameter.

    labels: [n, C].
    through: whether gradients flow through the result to the examples.
    """
    skeleton = fed.module(kind)
    skeleton.model.eval()
    leaves = {name: w[name].detach().requires_grad_() for name in skeleton.layout.params}
    value = F.cross_entropy(call(skeleton, Params({**w, **leaves}), x), labels)
    slopes = torch.autograd.grad(
        value, list(leaves.values()), create_graph=through, materialize_grads=True
    )
    return Params(zip(leaves, slopes, strict=True))


def rebuild(fed: Federation, kind: str, w: Params, sent: Sent) -> Params:
    """Return the model that synthetic examples represent, w - |H| g / |g|, with sent statistics.

    w: the model at which they were made.
    """
    g = gradient(fed, kind, w, sent["x"], sent["labels"])
    size = float(length(g))
    factor = float(sent["norm"]) / size if size else 0.0
    parameters = {name: w[name] - factor * step for name, step in g.items()}
    return Params({**w, **parameters, **sent.get("statistics", {})})


def length(values: Params) -> Tensor:
    """Return the Euclidean norm of all tensors together, float64, []."""
    return dot(values, values).sqrt()


def dot(a: Params, b: Params) -> Tensor:
    """Return the inner product of all tensors together, float64, []."""
    return torch.stack([(v.double() * b[name].double()).sum() for name, v in a.items()]).sum()


def cosine(a: Params, b: Params) -> Tensor:
    """Return the cosine between two sets of tensors, float64, []; 0 if one has norm 0."""
    return dot(a, b) / (dot(a, a) * dot(b, b)).clamp(min=1e-30).sqrt()
