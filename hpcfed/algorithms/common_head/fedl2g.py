"""FedL2G: the server learns vectors that guide the clients' outputs to a smaller loss on new data.

Zhang et al., 2024, arXiv:2410.06490, algorithm 1. v_c is the guiding vector of class c, which the
logits f of its examples approach, [C], or their representations (guides = "features"), [d]. Each
client sets quiz examples apart, on which it never trains; a study batch is drawn from the others.

Objective: CE + lam ||f - v_y||^2 / C
Server: v_c <- v_c - eta_s mean_k G_kc; G_kc = grad_v CE_quiz(u_k);
u_k = w_k - eta grad_w (CE + lam ||f - v_y||^2 / C)
Round:
1. The server sends the guiding vectors v.
2. Each client trains its own model with them; not in the first `warmup` rounds.
3. It takes one more step on a study batch, to weights u_k, and computes their loss on the quiz; it
   continues from its weights before that step.
4. It sends the gradient G_kc of this loss with respect to the vector of each class c that it has.
5. The server takes a step along the mean of these gradients over the clients of a class.

Deviations: G is computed without a second derivative. The guidance is quadratic, so that G_kc is
2 eta lam / (C n) times a sum over those of the n study examples that have class c: of their
Jacobian times the gradient of the quiz loss at u_k. The meta step is one of plain SGD with
local.lr, in eval mode. A client has at most half of its examples in its quiz, and weight 0 if it
has only one. Clients of a class are those that have it in the study batch of this round. The
authors' code leaves out the last batch of an epoch if it is smaller, so that small clients have no
batch at all.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor
from torch.func import functional_call, jvp

from hpcfed import (
    Client,
    ConfigError,
    Federation,
    Guide,
    Mean,
    Model,
    Params,
    RoundBased,
    Shard,
    Upload,
    rng,
)
from hpcfed.algorithms.base import warn_of_short_run
from hpcfed.config.conditions import Unused, above, field, unless
from hpcfed.core.payload import map_tensors
from hpcfed.training import examples
from hpcfed.training.local import count_work
from hpcfed.training.optimisers import learning_rate

Batch = tuple[Any, Tensor]  # prepared inputs and labels
ONE_AT_A_TIME = Lock()  # all threads of a process share torch's levels of forward derivatives


class FedL2G(RoundBased):
    """Learned guidance; the state is one vector per class, [C, C] or [C, d]."""

    guide: ClassVar[Guide] = Guide(
        data="different labels",
        sent="a guiding vector per class",
        won="above FedProto and FedTGP with many architectures",
    )

    needs_classes: ClassVar[str] = "it learns a vector of each class"
    per: ClassVar[str] = "row"
    unused: ClassVar[Unused] = {
        "local.balanced_batches": unless({"lam": 0.0}),  # else some examples are in the quiz
    }

    weighting: Literal["samples", "uniform"] = field("uniform", used_if="lam")
    """Weight of a client in the mean of a class: 1, or its number of training examples."""
    guides: Literal["logits", "features"] = field("logits", used_if="lam")
    """What the vectors guide: logits, of any models, or representations of one width."""
    lam: NonNegativeFloat = 1.0
    """Weight of the squared distance to the guiding vectors; 0 is local training."""
    warmup: NonNegativeInt = field(50, used_if="lam")
    """Rounds before the clients train, in which only the vectors are learned."""
    server_lr: NonNegativeFloat = field(0.1, used_if="lam")
    """Learning rate of the vectors; representations need larger ones, in the paper 100."""
    clip: PositiveFloat = field(100.0, used_if={"lam": above(0), "server_lr": above(0)})
    """Largest norm of the mean gradient of all vectors."""

    @property
    def accepts(self) -> str:
        return "a common head" if self.guides == "features" else "any models"

    @property
    def reads_head(self) -> bool:
        return self.guides == "features"

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> Params:
        if self.lam:
            never = "clients never train, and the models stay as they start"
            warn_of_short_run(fed, "warmup", never)
        width = fed.initial()["head.weight"].shape[1] if self.reads_head else fed.classes
        draws = rng.torch_stream(fed.seed, "guiding vectors")
        return Params(v=torch.randn(fed.classes, width, generator=draws).to(fed.device))

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        z = model.body(x)
        logits = model.head(z)
        value = client.task.loss(logits, y)
        if not self.lam:
            return value
        return value + self.lam * F.mse_loss(self.guided(z, logits), state["v"][y])

    def guided(self, z: Tensor, logits: Tensor) -> Tensor:
        """Return what the vectors guide, of representations and logits."""
        return z if self.guides == "features" else logits

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload | None:
        if not self.lam:
            self.train(fed, client, state, t)
            return None
        download = fed.down(client, state)
        if examples.protects(fed, client, client.train):
            examples.refuse(fed, "its clients send gradients of batches of their examples")
        study, quiz = split_quiz(fed, client)
        if t >= self.warmup:
            self.train(fed, client, download, t, data=study)
        rows = rng.stream(fed.seed, "study", t, client.id).permutation(len(study))
        study_batch = prepare(fed, study, np.sort(rows[: fed.job.local.batch]))
        quiz_batch = prepare(fed, quiz, np.arange(len(quiz)))
        in_batch = F.one_hot(study_batch[1], fed.classes).any(0).float()
        slopes = torch.zeros_like(download["v"])
        if len(quiz):
            with count_work(fed, client, 2 * (len(study_batch[1]) + len(quiz_batch[1]))):
                lr = learning_rate(fed, t)
                slopes = self.meta_step(client, download, study_batch, quiz_batch, lr)
        present = torch.from_numpy(np.unique(client.train.labels))
        classes = present.to(fed.device)
        weight = self.weight(client) if len(quiz) else 0.0
        weights = Params(v=(weight * in_batch)[classes, None])
        return Upload(Mean.of(Params(v=slopes[classes]), weights, at={"v": (present,)}))

    def meta_step(
        self, client: Client, state: Params, study: Batch, quiz: Batch, lr: float
    ) -> Tensor:
        """Return G, the gradient of the quiz loss after one step by the guiding vectors, [C, m]."""
        model, (x, y), v = client.model.eval(), study, state["v"]
        weights = {name: value.detach() for name, value in model.named_parameters()}

        def answer(at: Mapping[str, Tensor], x: Any) -> tuple[Tensor, Tensor]:
            at = Params(at)
            z = functional_call(model.body, dict(at.under("body.")), (x,))
            logits = functional_call(model.head, dict(at.under("head.")), (z,))
            return self.guided(z, logits), logits

        def study_loss(at: Mapping[str, Tensor]) -> Tensor:
            guided, logits = answer(at, x)
            return client.task.loss(logits, y) + self.lam * F.mse_loss(guided, v[y])

        slopes = differentiate(study_loss, weights)
        u = {name: value - lr * slopes[name] for name, value in weights.items()}
        direction = differentiate(lambda at: client.task.loss(answer(at, quiz[0])[1], quiz[1]), u)
        try:
            # [n, m]
            guided, change = derive_along(direction, lambda at, x: answer(at, x)[0], weights, x)
        except NotImplementedError as why:
            raise ConfigError(
                f"fedl2g: {client.architecture} of models.mix has a layer without a forward-mode "
                f"derivative in this torch ({str(why).splitlines()[0]})\n  take other models"
            ) from why
        share = 2 * lr * self.lam / guided.numel()
        return share * (F.one_hot(y, len(v)).to(change.dtype).T @ change.detach())

    def averaged(self, fed: Federation, state: Params) -> Params:
        return state * 0.0  # gradients, which are 0 for classes that nobody sends

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        norm = torch.linalg.vector_norm(mean["v"])
        return state - self.server_lr * (self.clip / norm.clamp(min=self.clip)) * mean


def derive_along(
    direction: Any, fn: Callable[..., Tensor], weights: Any, x: Any
) -> tuple[Tensor, Tensor]:
    """Return fn(weights, x), and its derivative by the weights along this direction."""
    with ONE_AT_A_TIME:
        if isinstance(x, Tensor) and not x.is_floating_point():  # tokens
            outputs: Any = jvp(lambda at: fn(at, x), (weights,), (direction,))
        else:  # torch makes the zero of a constant on the host
            outputs = jvp(fn, (weights, x), (direction, map_tensors(x, torch.zeros_like)))
    return outputs


def differentiate(loss: Any, at: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of a function of tensors by name."""
    leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
    slopes = torch.autograd.grad(loss(leaves), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, slopes, strict=True))


def prepare(fed: Federation, data: Shard, rows: np.ndarray) -> Batch:
    """Return these examples as a model takes them, and their labels."""
    x, y = data.batch(rows)
    return fed.prepare(x), y


def split_quiz(fed: Federation, client: Client) -> tuple[Shard, Shard]:
    """Return the client's examples for training, and its quiz: a batch, at most half of all.

    They are the same in all rounds.
    """
    n = client.n
    order = rng.stream(fed.seed, "quiz", client.id).permutation(n)
    size = min(fed.job.local.batch, n // 2)
    return client.train.pick(np.sort(order[size:])), client.train.pick(np.sort(order[:size]))
