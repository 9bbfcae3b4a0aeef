"""FD (FedDistill): clients exchange their mean output of each class and learn from the others'.

Jeong et al. (Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation), 2018, arXiv:1811.11479, algorithm 1.

Objective: CE(f(x), y) + gamma KL(r_ky || softmax f(x))
Server: q_y <- sum_(k has y) q_ky / M_y; r_ky = (M_y q_y - q_ky) / (M_y - 1)
Round:
1. The server sends client k the mean output r_ky of the other clients for each class y.
2. The client trains on its labels and on these outputs.
3. It averages its soft predictions by class over all its steps.
4. It sends these means q_ky.
5. The server averages them over the M_y clients that have the class.

Deviations: the second term is the KL divergence, whose gradient is that of the paper's
cross-entropy. M_y counts the clients of the round that have the class; the paper's clients have all
classes. A class that no other client has sent adds no term. The federated augmentation of the paper
is not implemented. A public port uses raw logits as probabilities, and a client's own output in
place of the others' mean; neither is followed.
"""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import (
    Client,
    Federation,
    Guide,
    Job,
    LocalSteps,
    Mean,
    Model,
    Params,
    RoundBased,
    Upload,
)
from hpcfed.config.conditions import above, field
from hpcfed.training import examples
from hpcfed.training.infer import class_sums, logits
from hpcfed.training.losses import soften, to_soft_targets

NEVER = -1  # round of a class that no client has sent yet


class FD(RoundBased):
    """Federated distillation of mean soft predictions by class.

    The state holds:
    mean: soft predictions by class, [C, C]; nan for classes that no client has sent yet.
    weight: total weight of the clients in each row, [C].
    round: round in which each row was made, [C].
    """

    guide = Guide(
        data="different labels",
        sent="mean outputs of each class",
        won="26 times fewer bytes than FedAvg on MNIST, some points below",
    )

    needs_classes: ClassVar[str] = "it averages soft predictions by class"
    accepts: ClassVar[str] = "any models"

    weighting: Literal["samples", "uniform"] = field("uniform", used_if="gamma")
    """Weight of a client in the mean of a class: 1, or its number of examples of the class."""
    gamma: NonNegativeFloat = field(1.0, used_if={"clients": above(1)})
    """Weight of the distance to the other clients' mean output; 0 is local training."""
    distance: Literal["kl", "mse"] = field("kl", used_if="gamma")
    """Distance to the others' mean output: KL divergence, or squared difference of probabilities.
    """
    outputs: Literal["during", "after"] = field("during", used_if="gamma")
    """Outputs are averaged over all local steps, as in the paper, or over all examples after these
    steps.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.outputs == "during" and job.local.steps:
            reasons["job"] = (
                "needs whole epochs to see all classes of a client; set local.epochs instead of "
                "steps, or algorithm.outputs = 'after'"
            )
        return reasons

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> Params:
        C, device = fed.classes, fed.device
        return Params(
            mean=torch.full((C, C), torch.nan, device=device),
            weight=torch.zeros(C, dtype=torch.float64, device=device),
            round=torch.full((C,), NEVER, dtype=torch.float64, device=device),
        )

    def offer(self, fed: Federation, client: Client, state: Params) -> Params:
        """Return the mean output of the other clients for each class, [C, C].

        A row is nan if no other client has sent the class.
        """
        mean, sent = state["mean"], client.memory.get("received mean")
        if sent is None:
            return Params(target=mean)
        weight = client.memory["received weight"]
        part = torch.where(state["round"] == client.memory["round"], weight, 0.0)
        rest = (state["weight"] - part)[:, None]
        others = (state["weight"][:, None] * mean.double() - part[:, None] * sent.double()) / rest
        target = torch.where(rest > 0, others.float(), torch.nan)
        return Params(target=torch.where(part[:, None] > 0, target, mean))

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        z = model(x)
        value = client.task.loss(z, y)
        if not self.gamma:
            return value
        return value + self.gamma * to_soft_targets(z, state["target"][y], self.distance)

    def collect(
        self, fed: Federation, client: Client, received: Params, t: int
    ) -> tuple[Tensor, np.ndarray]:
        """Train locally and return the outputs of all steps, [n * epochs, C], and their labels.

        labels: [n * epochs].
        It takes the steps itself: where an engine records steps, values that a loss stores would be
        lost.
        """
        soft, labels = [], []

        def loss(model: Model, x: Any, y: Tensor) -> Tensor:
            z = model(x)
            soft.append(soften(z))
            labels.append(y)
            cached: Any = lambda x: z  # noqa: E731, one forward pass for both
            return self.loss(client, received, cached, x, y)

        with LocalSteps(fed, client, t) as steps:
            if steps.private:
                examples.refuse(fed, "its clients send means of outputs of their examples")
            for x, y in steps:
                steps.learn(loss, x, y)
        return torch.cat(soft), torch.cat(labels).cpu().numpy()

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        if self.outputs == "during":
            soft, labels = self.collect(fed, client, download, t)
        else:
            self.train(fed, client, download, t)
            soft, labels = soften(logits(fed, client, client.train)), client.train.labels
        sums, count = class_sums(soft, labels, fed.classes)
        classes, examples = map(
            torch.from_numpy, np.unique(client.train.labels, return_counts=True)
        )
        # whole epochs see all of these classes, but the only step of a trial does not
        means = Params(mean=(sums / count.clamp(min=1)[:, None])[classes.to(fed.device)].float())
        sizes = Params(mean=examples[:, None].float().to(fed.device))
        weight = sizes if self.weighting == "samples" else 1.0
        return Upload(Mean.of(means, weight, at={"mean": (classes,)}))

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Mean]]) -> Params:
        for k, sent in uploads:
            fed.clients[k].memory |= {"round": fed.t, **received_rows(state, sent)}
        mean = fed.mean(uploads, keep=state.pick("mean".__eq__), per="row")["mean"]
        weights = fed.gather({k: fed.clients[k].memory["received weight"] for k, _ in uploads})
        total = sum(weights.values(), torch.zeros_like(state["weight"]))
        new = total > 0
        return Params(
            mean=mean,
            weight=torch.where(new, total, state["weight"]),
            round=torch.where(new, float(fed.t), state["round"]),
        )


def received_rows(state: Params, sent: Mean) -> dict[str, Tensor]:
    """Return what the server keeps of a client: its mean outputs, [C, C], and their weights, [C].

    Both are 0 for classes that the client has not sent.
    """
    term = sent.terms[0]
    rows = torch.as_tensor(term.at["mean"][0], device=state["mean"].device)
    mean, weight = torch.zeros_like(state["mean"]), torch.zeros_like(state["weight"])
    mean[rows] = term.value["mean"]
    sent_weight = term.weight["mean"][:, 0] if isinstance(term.weight, Params) else term.weight
    weight[rows] = torch.as_tensor(sent_weight, dtype=weight.dtype, device=weight.device)
    return {"received mean": mean, "received weight": weight}
