"""FedCP: a policy network divides each representation between a common head and the client's own.

Zhang et al. (FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy), KDD 2023, arXiv:2307.01217, algorithm 1. b is the body with representations
z = b(x), g the common head, h_k the client's own, q the policy, v the sum of the rows of h_k's
weights, divided by its length. a(z), [d], are the values' shares for the own head: a softmax over
two scores of each value, which are the outputs of q, a linear layer d -> 2d with layer
normalisation and a ReLU, for the input z v. In training the scores have Gumbel noise. MMD is the
maximum mean discrepancy of the representations of a batch to those of the received body.

Objective: CE(h_k(a(z) z) + g((1 - a(z)) z), y) + lam MMD(b(x), b_t(x))
Server: (b, q, g) <- sum_k p_k (b_k, q_k, (h_k + g) / 2)
Round:
1. The server sends body b, policy q and head g to the cohort.
2. Each client computes v of its own head h_k.
3. It trains b, q and h_k; g and the received body b_t are fixed.
4. It sends b_k, q_k and the mean of both heads; h_k stays.
5. The server takes the weighted mean.

Deviations: defaults are those of the authors' scripts, where lam is 5; their code's own default is
0. Predictions are without noise; that code draws it in tests too. There new policies and heads g
reach the clients of the last cohort alone, and the kernels of MMD have the variances 10, 15, 20 and
50 for representations of any length; here all clients of a cohort receive them, and the variances
are the same.
"""

from typing import Any, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from hpcfed import Client, Federation, Guide, Mean, Model, Params, Upload
from hpcfed.algorithms.personal.second import WithSecond
from hpcfed.models.model import in_head
from hpcfed.models.personal import WithPersonal, in_personal
from hpcfed.models.variants import name_variant
from hpcfed.training.losses import mean_discrepancy

VARIANCES = (10.0, 15.0, 20.0, 50.0)  # of the kernels of MMD


class FedCP(WithSecond):
    """With lam = 0, all shares 1 and a head g without bias it is FedPer."""

    guide = Guide(
        data="different labels",
        sent="all weights, and those of a policy network",
        won="images and texts with Dirichlet labels or few classes: above Ditto, FedRep, FedRoD",
    )

    reads_head: ClassVar[bool] = True

    lam: NonNegativeFloat = 5.0
    """Weight of the discrepancy to the representations of the received body."""
    tau: PositiveFloat = 1.0
    """Temperature of the shares; smaller ones are nearer to 0 and 1."""

    @property
    def variants(self) -> tuple[str, ...]:
        return (name_variant("policy", self.tau),)

    def shared(self, name: str) -> bool:
        return not in_personal(name)

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        z = model.body(x)
        value = client.task.loss(model.classify(z, state["v"]), y)
        if not self.lam:
            return value
        body = dict(state.under("body."))
        # copies, for a batch would change the running statistics of the fixed body
        body |= {name: body[name].clone() for name, _ in model.body.named_buffers() if name in body}
        fixed = functional_call(model.body, body, (x,))
        return value + self.lam * mean_discrepancy(z, fixed, VARIANCES)

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return nothing: what the server has predicts only together with a client's own head."""
        return {}

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        model: Any = client.model
        fixed = download.pick(lambda name: name.startswith("body."))
        constants = Params({**fixed, "v": model.context()})
        self.train(fed, client, constants, t, only=lambda name: not in_head(name))
        sent = client.params(self.shared)
        for name, value in client.params(in_personal).under("personal.").items():
            sent[f"head.{name}"] = (value + download[f"head.{name}"]) / 2
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)


class Gated(WithPersonal):
    """A common model, a client's own head, and a policy that divides representations between both.

    tau: temperature of the shares.
    """

    def __init__(self, model: Model, tau: float):
        super().__init__(model, "head")
        d = model.head.in_features
        self.policy = nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.ReLU())
        self.tau = tau

    def forward(self, x: Any) -> Tensor:
        return self.classify(self.body(x), self.context())

    def context(self) -> Tensor:
        """Return v, the sum of the rows of the own head's weights, of length 1, [d]; a constant."""
        return F.normalize(self.personal.weight.detach().sum(0), dim=0)

    def classify(self, z: Tensor, v: Tensor) -> Tensor:
        """Return the logits of both heads, [n, C]."""
        a = self.share(z, v)
        return self.personal(a * z) + self.head((1 - a) * z)

    def share(self, z: Tensor, v: Tensor) -> Tensor:
        """Return the own head's share of each value, [n, d]; with noise in train mode."""
        scores = self.policy(z * v).unflatten(1, (2, -1))  # [n, 2, d]
        if self.training:
            return F.gumbel_softmax(scores, self.tau, dim=1)[:, 0]
        return F.softmax(scores / self.tau, dim=1)[:, 0]


def add_policy(model: Model, tau: float) -> Gated:
    """Return the model with a second head, "personal", and a "policy"."""
    return Gated(model, tau)
