"""FedGKT: small clients and a large server model learn from each other by features and logits.

Each client sends the features of all its examples.

He et al., NeurIPS 2020, arXiv:2007.14513, algorithm 1, eqs. 5-8. Labels and feature maps leave the
clients, weights never do. Rank 0 holds the features of a whole cohort: n |H| values. s are soft
predictions at temperature tau.

Objective: CE + alpha tau^2 KL(s_server || s_k)
Server: w <- argmin_w tau^2 KL(s_k || s_w) + alpha CE
Round:
1. Each client trains its small model on labels and, once it has them, on the server's logits.
2. It sends features, logits and labels of all its examples.
3. The server trains its large model w on the features, with the clients' logits and labels.
4. It sends each client its logits of the client's examples.

Deviations: all clients have one architecture (the paper: any with features of one shape). The
server learns from the clients of the round's cohort. Examples are identified by their places in the
client's data, not by batches that must not be shuffled, as in the authors' code. Clients learn from
the logits of the server's model after its training, in eval mode; the authors' code takes those
that its last epoch computes in train mode, while the model still changes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, Model, Paired, Params, RoundBased, Shard, Upload
from hpcfed.config.conditions import Unused, field
from hpcfed.models import MODELS
from hpcfed.models.flat import Skeleton
from hpcfed.models.model import stem
from hpcfed.training.batches import chunks
from hpcfed.training.infer import FORWARD, logits, outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import call, fit, forward, parameters

Parcel = Mapping[str, Tensor]  # a client's features [n, *H], logits [n, C], labels [n], int32


class FedGKT(RoundBased):
    """The client's loss is CE + alpha KL, the server's KL + alpha CE."""

    guide = Guide(
        data="alike to different labels",
        sent="feature maps and scores",
        won="large models with weak devices: 9 to 17 times less work",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    needs: ClassVar[tuple[str, ...]] = ("server",)
    unused: ClassVar[Unused] = {
        "weighting": "nothing is averaged over clients",
    }

    alpha: NonNegativeFloat = 0.5
    """Weight of the server's predictions in the clients' loss, and of the labels in the
    server's.
    """
    tau: PositiveFloat = 3.0
    """Temperature of both divergences, which are multiplied by its square."""
    server_epochs: NonNegativeInt = 2
    """Passes of the server over the features of a round."""
    server_lr: PositiveFloat = field(1e-3, used_if="server_epochs")
    """Learning rate of the server."""
    server_batch: PositiveInt = field(100, used_if="server_epochs")
    """Examples in one step of the server."""
    server_optimiser: Literal["adam", "sgd"] = field("adam", used_if="server_epochs")
    """Optimiser of the server."""
    evaluate: Literal["server", "client"] = "server"
    """A client predicts with the server's model on its own features, or with its own small
    classifier.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        return super().refuses(job) | refuse_models(job)

    def shared(self, name: str) -> bool:
        return False

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return the bytes for all examples of the client, of which a trial has a few."""
        n, features = fed.sizes[k], feature_shape(fed)
        return n * fed.classes * 4, n * (features.numel() + fed.classes + 1) * 4

    def init(self, fed: Federation) -> Params:
        return fed.initial(architecture=fed.job.models.server, shape=feature_shape(fed))

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Any) -> Tensor:
        if isinstance(y, Tensor):  # before the server has answered
            return super().loss(client, state, model, x, y)
        (labels, server), logits = y, model(x)
        return F.cross_entropy(logits, labels) + self.alpha * distil(
            soften(server, self.tau), logits, self.tau
        )

    def predictor(self, fed: Federation, client: Client, state: Params) -> Callable[[Any], Tensor]:
        if self.evaluate == "client":
            return client.model
        return partial(predict_on_features, fed, client, state)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        self.train(fed, client, Params(), t, data=distillation_data(client, "server"))
        return compute_features(fed, client)

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        sent = fed.at_root(fed.run(cohort, lambda client: self.local(fed, client, state, t)))
        how: dict[str, Any] = {
            "epochs": self.server_epochs,
            "size": self.server_batch,
            "optimiser": self.server_optimiser,
        }
        server = fed.on_root(
            lambda: train_server(fed, state, sent, self.server_loss, t, lr=self.server_lr, **how)
        )
        answers = fed.from_root({k: answer(fed, server, parcel) for k, parcel in sent.items()})
        for client in fed.mine(cohort):
            client.memory["server"] = fed.down(client, answers[client.id])
        return server

    def server_loss(self, out: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the server's loss on one batch.

        It depends on the server's logits, the clients' logits and the labels.
        """
        return distil(soften(logits, self.tau), out, self.tau) + self.alpha * F.cross_entropy(
            out, labels
        )


def refuse_models(job: Job) -> dict[str, str]:
    """Return why the job's clients cannot send features, in the form of `refuses`."""
    able = [name for name, entry in MODELS.items() if entry.stem]
    if unable := sorted(set(job.models.mix) - set(able)):
        why = (
            f"needs clients whose first layers run apart, but models.mix has {', '.join(unable)}; "
            f"set models.mix to one of {', '.join(able)}"
        )
        return {"job": why}
    return {}


@torch.no_grad()
def feature_shape(fed: Federation) -> torch.Size:
    """Return the shape of the features of one example, H."""
    body = fed.module(fed.architectures[0]).model.eval().body
    return stem(body)[0](torch.zeros(1, *fed.store.form[0], device=fed.device)).shape[1:]


def server_module(fed: Federation) -> Skeleton:
    """Return the server's module, which takes features."""
    return fed.module(fed.job.models.server, feature_shape(fed))


def compute_features(fed: Federation, client: Client) -> Upload:
    """Return features, logits and labels of all training examples of a client, in eval mode.

    The forward passes are counted as the client's work.
    """
    z = logits(fed, client, client.train)
    fed.tallies[client.id].work += FORWARD * client.n
    features = outputs(fed, stem(client.model.eval().body)[0], client.train)
    labels = torch.from_numpy(client.train.labels).to(z.device).int()
    return Upload(features=features, logits=z, labels=labels)


def distillation_data(client: Client, name: str) -> Shard:
    """Return the client's training examples, with the logits in its memory beside their labels.

    name: key of these logits. Without them the examples have only their labels.
    """
    teacher = client.memory.get(name)
    return client.train if teacher is None else Paired(client.train, teacher, with_labels=True)


def predict_on_features(fed: Federation, client: Client, state: Params, x: Tensor) -> Tensor:
    """Return logits [n, C] of the server's model on the client's features of prepared inputs.

    state: parameters of the server's model.
    """
    skeleton = server_module(fed)
    skeleton.model.eval()
    return call(skeleton, state, stem(client.model.body)[0](x))


def train_server(
    fed: Federation,
    state: Params,
    sent: Mapping[int, Parcel],
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    t: int,
    **how: Any,
) -> Params:
    """Train the server's model on all uploads, on rank 0, and return it.

    loss: (the model's logits, the clients' logits, labels) -> scalar.  how: as `fit` takes it.
    """
    x, z, labels = (
        torch.cat([p[part] for p in sent.values()]) for part in ("features", "logits", "labels")
    )
    skeleton = server_module(fed)
    skeleton.model.train()

    def objective(params: Params, rows: Tensor) -> Tensor:
        return loss(forward(fed, skeleton, params, x[rows]), z[rows], labels[rows].long())

    trained = parameters(skeleton)
    return fit(fed, state, objective, torch.from_numpy, len(x), "server", t, trained=trained, **how)


@torch.no_grad()
def answer(fed: Federation, state: Params, parcel: Parcel) -> Tensor:
    """Return the server's logits of one client's examples, [n, C], in eval mode."""
    skeleton = server_module(fed)
    skeleton.model.eval()
    parts: list[np.ndarray] = chunks(fed, len(parcel["features"]))
    return torch.cat(
        [call(skeleton, state, parcel["features"][torch.from_numpy(rows)]) for rows in parts]
    )
