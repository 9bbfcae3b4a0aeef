"""FedPAC: clients share a body, and each gets the mixture of all heads that suits its classes.

Xu et al. (Personalized Federated Learning with Feature Alignment and Classifier Collaboration),
ICLR 2023, arXiv:2306.11867, algorithm 1. P_c is the share of class c in a client's n examples, mu_c
the mean of its representations z, and the row h_c = P_c mu_c. q are prototypes, the clients' means
of z by class, each of n_kc examples. b are bodies and g heads.

Objective: CE + lam ||z - q_y||^2 / d
Server: b <- sum_k p_k b_k; q_c <- sum_k n_kc q_kc / sum_k n_kc; g_i <- sum_j a_ij g_j
Round:
1. The server sends the body b, the prototypes q and client i's mixture g_i of heads.
2. With these a client computes h and the variance v = (mean ||z||^2 - ||h||^2) / n.
3. It trains the head alone, then the body alone, whose z approach the prototypes.
4. It sends body, head, prototypes, h and v.
5. The server takes the means, and weights of least sum_j a_ij^2 v_j + ||h_i - sum_j a_ij h_j||^2.

Deviations: the weights, >= 0 and of sum 1, are exact, where the authors' code (JianXu95/FedPAC)
raises eigenvalues. As there, weights below 0.001 become 0, a class without prototype has the
client's own from before training, and the first round has no prototypes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Model, Params, RoundBased, Upload
from hpcfed.algorithms.decentralised.mixing import mix
from hpcfed.config.conditions import field
from hpcfed.models.model import in_head
from hpcfed.training.infer import class_sums, represent
from hpcfed.training.losses import to_prototypes

LEAST = 1e-3  # smaller weights of heads become 0


@dataclass(frozen=True)
class State:
    """State of the server; it also remembers each client's mixture of heads.

    body: the common body.
    proto: [C, d], prototypes; a row is nan if no client has sent the class yet.
    """

    body: Params
    proto: Tensor


class FedPAC(RoundBased):
    """With lam = 0, and if each head were given back as it is, it is FedRep with one head epoch."""

    guide = Guide(
        data="different labels",
        sent="all weights, class means and statistics of representations",
        won="few classes per client, on images: above FedAvg, FedRep and ten others",
    )

    needs_classes: ClassVar[str] = "it averages prototypes of classes"
    reads_head: ClassVar[bool] = True
    trains_once: ClassVar[bool] = False

    lam: NonNegativeFloat = 1.0
    """Weight of the distance of representations to their class's prototype."""
    head_epochs: NonNegativeInt = 1
    """Epochs in which the head is trained; those of the body are local.epochs."""
    head_lr: PositiveFloat = field(0.1, used_if="head_epochs")
    """Learning rate of the head."""

    @property
    def extra_epochs(self) -> int:
        return self.head_epochs

    def shared(self, name: str) -> bool:
        return not in_head(name)

    def init(self, fed: Federation) -> State:
        fed.start_alike()
        proto = torch.full_like(fed.initial(in_head)["head.weight"], torch.nan)
        return State(fed.initial(self.shared), proto)

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        head = client.recall("mixture") or fed.initial(in_head)
        return Params({**state.body, **head, "proto": state.proto})

    def receive(self, client: Client, state: Params) -> None:
        client.load(state.pick(lambda name: name != "proto"))

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        z = model.body(x)
        value = client.task.loss(model.head(z), y)
        return value + self.lam * to_prototypes(z, state["proto"][y]) if "proto" in state else value

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        means, shares, square = self.measure(fed, client)
        h = shares[:, None] * means
        v = (square - h.square().sum()).clamp(min=0) / client.n
        if self.head_epochs:
            self.train(
                fed,
                client,
                Params(),
                t,
                epochs=self.head_epochs,
                only=in_head,
                lr=self.head_lr,
                phase="head",
            )
        self.train(fed, client, self.targets(download["proto"], means), t, only=self.shared)
        means, shares, _ = self.measure(fed, client)
        present = shares.nonzero()[:, 0]
        counts = Params(proto=(shares[present, None] * client.n).float())
        proto = Params(proto=means[present].float())
        return Upload(
            body=Mean.of(client.params(self.shared), self.weight(client)),
            proto=Mean.of(proto, counts, at={"proto": (present.cpu(),)}),
            head=client.params(in_head),
            h=h.float(),
            v=v.float(),
            relative_to={"body": download.pick(self.shared), "head": download.pick(in_head)},
        )

    def measure(self, fed: Federation, client: Client) -> tuple[Tensor, Tensor, Tensor]:
        """Return statistics of the client's representations, in float64.

        They are the means of each class, [C, d], 0 for an absent one, the shares of classes, [C],
        and the mean square of a representation.
        """
        z = represent(fed, client, client.train)
        sums, counts = class_sums(z, client.train.labels, fed.classes)
        means = sums / counts.clamp(min=1)[:, None]
        return means, counts / client.n, z.double().square().sum(1).mean()

    def targets(self, proto: Tensor, means: Tensor) -> Params:
        """Return the prototypes that a client's representations approach; none: an empty Params.

        means: the client's own, for classes without a prototype.
        """
        missing = proto.isnan()
        if not self.lam or missing.all():
            return Params()
        return Params(proto=torch.where(missing, means.float(), proto))

    def aggregate(
        self, fed: Federation, state: State, uploads: list[tuple[int, dict[str, Any]]]
    ) -> State:
        self.mix_heads(fed, dict(uploads))
        body = fed.mean(((k, parts["body"]) for k, parts in uploads), keep=state.body)
        protos = ((k, parts["proto"]) for k, parts in uploads)
        proto = fed.mean(protos, keep=Params(proto=state.proto), per="row")
        return State(body, proto["proto"])

    def mix_heads(self, fed: Federation, uploads: dict[int, dict[str, Any]]) -> None:
        """Mix the heads for each client of this rank; the server remembers its mixture; collective.

        uploads: parts by client.
        """
        statistics = fed.gather({k: [parts["h"], parts["v"]] for k, parts in uploads.items()})
        ids = list(statistics)
        h = np.stack([part.double().flatten().cpu().numpy() for part, _ in statistics.values()])
        v = np.array([float(part) for _, part in statistics.values()])
        rows = {}
        for k in uploads:
            rows[k] = np.zeros(fed.K)
            rows[k][ids] = weights_of_heads(h, v, ids.index(k))
        heads = fed.each({k: parts["head"] for k, parts in uploads.items()})
        for k, mixture in mix(rows, heads).items():
            fed.clients[k].memory["mixture"] = mixture.map(Tensor.float)


def weights_of_heads(h: np.ndarray, v: np.ndarray, i: int) -> np.ndarray:
    """Return a >= 0 of sum 1 with the least sum_j a_j^2 v_j + ||h_i - sum_j a_j h_j||^2, [m].

    h: [m, C d], of m clients, of which i is one.  v: [m], variances.

    The value is ||A a||^2. The x >= 0 with the least ||A x||^2 + (sum x - 1)^2 has the direction of
    the best a, because along each direction the least is f / (1 + f), with f the value of its a.
    """
    from scipy.optimize import nnls  # here: runs of other methods do not load scipy

    rows = np.vstack([(h - h[i]).T, np.diag(np.sqrt(v.clip(0)))])
    A = np.asarray(np.linalg.qr(rows, mode="r"))
    A = A / (np.abs(A).max() or 1.0)
    x, _ = nnls(np.vstack([A, np.ones(len(v))]), np.append(np.zeros(len(A)), 1.0))
    a = x / x.sum()
    a[a < LEAST] = 0.0
    return a / a.sum()
