"""MOCHA: federated multi-task learning of linear models, whose relations are learned too.

Clients ascend the dual by coordinates.

Smith et al. (Federated Multi-Task Learning), NeurIPS 2017, arXiv:1705.10467, algorithm 1 and
section 3.3; compared with the authors' code (gingsmith/fmtl).

W and B have one column per client, w_k and b_k. The objective is over all clients. Sigma =
Omega^-1, hinge(c) = max(0, 1 - c), and a_i is the dual variable of example i. A client goes over
its examples:
    a <- y clip(lam n (1 - y x.(w_k + rho dw)) / (Sigma_kk rho |x|^2) + y a, 0, 1),
    dw += Sigma_kk da x / (lam n).
It sends db_k = sum da x / n. With rho = max_k sum_s |Sigma_ks| / Sigma_kk the dual never falls.
Partial work of stragglers counts, as in the paper. The recorded loss is that of the received model.

The paper's models are linear (models.mix = "logistic"). Of other models only the head is trained,
on the features that the body of the server's first model computes.

Objective: sum_k mean_i hinge(y_i x_i w_k) + lam / 2 tr(W Omega W^T)
Server: b_k <- sum_i a_i x_i / n_k; W <- B Sigma / lam; Sigma <- (W^T W)^(1/2) / tr((W^T W)^(1/2))
Round:
1. The server sends each client of the cohort its column w_k of W, Sigma_kk and rho.
2. The client ascends the dual, one example after the other.
3. It sends the change db_k of its column of B.
4. The server adds it to B, from which W follows.
5. Every `sigma_rounds` rounds it learns the relations Sigma from W, and computes W anew.

Deviations: each of C classes has a hinge loss against the rest, all with one Sigma; with two
classes this is the paper's problem twice. The bias is the weight of a constant 1. Examples come in
the job's epochs of batches, without replacement. W is computed anew when Sigma changes, where the
authors' code keeps it. Eigenvalues of Sigma have a floor of 1e-7.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, LocalSteps, Model, Params, RoundBased, Upload
from hpcfed.algorithms.base import OWN_LOSS, warn_of_short_run
from hpcfed.config.conditions import Unused, field, other_than
from hpcfed.models.model import in_head

FLOOR = 1e-7  # lower bound of the eigenvalues of Sigma


@dataclass(frozen=True)
class State:
    """The server's state: the dual sums and relations of the clients, and the fixed body.

    b: [K, C (d + 1)], float64, X_k^T alpha_k / n_k of each client.
    sigma: [K, K], float64.
    body: the layers below the linear models, which are not trained.
    """

    b: Tensor
    sigma: Tensor
    body: Params


DUAL = "clients ascend the dual exactly, coordinate by coordinate"


class MOCHA(RoundBased):
    """Each client keeps its dual variables alpha, [n, C], in its memory; they start at 0."""

    guide = Guide(
        data="related tasks, linear models",
        sent="weights of a linear model",
        won="above one global and separate linear models; tolerates stragglers",
    )

    needs_classes: ClassVar[str] = "its hinge loss separates classes"
    keeps_stragglers: ClassVar[bool] = True
    reads_head: ClassVar[bool] = True
    keeps_weights: ClassVar[bool | None] = False
    unused: ClassVar[Unused] = {
        **OWN_LOSS,
        "weighting": "nothing is averaged",
        "local.optimiser": DUAL,
        "local.lr": DUAL,
        "local.weight_decay": DUAL,
        "local.schedule": DUAL,
    }

    lam: PositiveFloat = 0.01
    """Weight of the relations of the models; the paper picks it from 1e-5 to 10."""
    relations: Literal["learned", "fixed"] = "learned"
    """Sigma follows the models, or stays the identity over K, so that clients learn alone."""
    sigma_rounds: PositiveInt = field(10, used_if={"relations": other_than("fixed")})
    """Rounds from one Sigma to the next."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if job.local.augment not in ("auto", "none") or (
            job.local.augment == "auto" and job.data.name == "digits"
        ):
            reasons["job"] = (
                "needs the same examples in each round, because each has a dual variable; set "
                "local.augment = 'none'"
            )
        return reasons

    def init(self, fed: Federation) -> State:
        if self.relations == "learned":
            never = "Sigma stays the identity, so that clients learn alone"
            warn_of_short_run(fed, "sigma_rounds", never, begins=self.sigma_rounds - 1)
        size = sum(v.numel() for v in fed.shapes(in_head).values())
        options: dict[str, Any] = {"dtype": torch.float64, "device": fed.device}
        return State(
            torch.zeros(fed.K, size, **options),
            torch.eye(fed.K, **options) / fed.K,
            fed.initial(lambda name: not in_head(name)),
        )

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        w = (state.sigma[client.id] @ state.b / self.lam).view(fed.classes, -1).float()
        head = {"head.weight": w[:, :-1].contiguous(), "head.bias": w[:, -1].contiguous()}
        return Params({**state.body, **head})

    def loss(self, client: Client, state: Any, model: Model, x: Any, y: Tensor) -> Tensor:
        out = model(x)
        signs = 2.0 * torch.nn.functional.one_hot(y, out.shape[1]) - 1
        return (1 - signs * out).clamp(min=0).sum(1).mean()

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state).pick(in_head))
        self.receive(client, Params({**state.body, **download}))  # the body is known from the start
        constants = torch.stack([state.sigma[client.id, client.id], rho_of(state.sigma)])
        sigma, rho = fed.down(client, constants).tolist()
        w = (
            torch.cat([download["head.weight"], download["head.bias"][:, None]], 1)
            .double()
            .cpu()
            .numpy()
        )
        alpha = (
            torch.as_tensor(client.memory.get("alpha", self.none(fed, client))).cpu().numpy().copy()
        )
        before, db = alpha.copy(), np.zeros_like(w)
        dual = partial(ascend, w=w, db=db, lam_n=self.lam * client.n, sigma=sigma, rho=rho)
        loss, row_of = partial(self.loss, client, state), {}
        with torch.no_grad(), LocalSteps(fed, client, t) as steps:
            steps.model.eval()  # so that an example's features are the same in every epoch
            for x, y in steps:
                value = steps.value(loss, x, y)
                rows = features(steps.model, x)
                for i, row, label in zip(steps.rows, rows, y.tolist(), strict=True):
                    alpha[i] = dual(alpha[i], row, label)
                    row_of[int(i)] = row
                steps.done(value)
        # sum the changes alone: each example counts once, whatever the order
        exact = sum((np.outer(alpha[i] - before[i], row_of[i]) for i in sorted(row_of)), 0 * w)
        exact = exact / client.n
        client.memory["alpha"] = torch.from_numpy(alpha)
        new = torch.from_numpy(w + sigma / self.lam * exact).float().to(fed.device)
        client.load({"head.weight": new[:, :-1], "head.bias": new[:, -1]})
        return Upload(torch.from_numpy(exact).float().flatten().to(fed.device))

    def none(self, fed: Federation, client: Client) -> Tensor:
        """Return the dual variables of a client that has not trained yet."""
        return torch.zeros(client.n, fed.classes, dtype=torch.float64)

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Tensor]]) -> State:
        b = state.b.clone()
        for k, db in fed.gather(dict(uploads)).items():
            b[k] += db.to(b)
        sigma = state.sigma
        if self.relations == "learned" and (fed.t + 1) % self.sigma_rounds == 0:
            sigma = fed.on_root(lambda: relate(sigma @ b / self.lam))
        return State(b, sigma, state.body)

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return {}  # there is no common model


def features(model: Model, x: Any) -> np.ndarray:
    """Return the inputs of the linear model with a constant 1, [n, d + 1], float64."""
    z = model.body(x).double().cpu()
    return torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1).numpy()


def ascend(
    alpha: np.ndarray,
    x: np.ndarray,
    label: int,
    *,
    w: np.ndarray,
    db: np.ndarray,
    lam_n: float,
    sigma: float,
    rho: float,
) -> np.ndarray:
    """Return the new dual variables of an example, [C].

    db: [C, d + 1], n times the db_k of this module's docstring; the change of the dual variables is
    added to it in place.
    """
    y = np.where(np.arange(len(alpha)) == label, 1.0, -1.0)
    size = float(x @ x)
    if not size:
        return alpha
    margin = y * ((w + rho * sigma / lam_n * db) @ x)
    new = y * np.clip(lam_n * (1 - margin) / (sigma * rho * size) + y * alpha, 0, 1)
    db += np.outer(new - alpha, x)
    return new


def rho_of(sigma: Tensor) -> Tensor:
    """Return max_k sum_s |Sigma_ks| / Sigma_kk."""
    return (sigma.abs().sum(1) / sigma.diagonal()).max()


def relate(w: Tensor) -> Tensor:
    """Return (W^T W)^(1/2) / trace for models as rows, [K, D] -> [K, K].

    Eigenvalues have the lower bound FLOOR.
    """
    values, vectors = torch.linalg.eigh(w @ w.T)
    values = values.clamp(min=0).sqrt()
    if not values.sum():
        return torch.eye(len(w), dtype=w.dtype, device=w.device) / len(w)
    values = (values / values.sum()).clamp(min=FLOOR)
    return (vectors * (values / values.sum())) @ vectors.T
