"""FedType: a large private model and a small proxy learn from each other; only the proxy is sent.

Any method for one architecture aggregates the proxies. The private model learns from the proxy
where their conformal sets agree.

Wang et al. (Bridging Model Heterogeneity in Federated Learning via Uncertainty-based Asymmetrical
Reciprocity Learning), 2024, arXiv:2407.03247. On each batch the private model g takes a step, then
the proxy w. The imitation loss is
    L(x) = mean of max(0, z_out - z_in + margin) over classes in and outside of the proxy's set S_s,
with g's logits z. Sets are those of RAPS, with temperatures and thresholds of this round's models
on calibration examples. c(x) is |S_g & S_s| over |S_g | S_s|, or over |S_s| if S_g is larger. If
the private model's training accuracy has changed by D < 0 since the client's last round, the
proxy's lam is lam_small - (1 - lam_small) D, between lam_small and 1. `aggregation` says how
proxies are trained and averaged: as in FedAvg, FedProx, pFedMe or pFedBayes.

Objective: CE(g) + imitation mean_x c(x) L(x); CE(w) + kl KL(g || w)
Server: w <- sum_k p_k w_k
Round:
1. The server sends the proxy w to the cohort.
2. Each client calibrates the conformal sets of both models.
3. Its private model g learns from labels, and from the proxy as far as the sets agree, c(x).
4. The proxy learns from labels and from the private model, and w_k is sent.
5. The server takes the weighted mean of the proxies; `aggregation` says how they are trained.

Deviations: calibration examples are held out of the training (`calibration`). The authors' code
(JackqqWang/FedType, preset `authors`) calibrates on its training examples, which gives less
coverage than promised. The accuracy that adapts lam is measured when sets are made; in the code it
is that of an epoch's batches, compared with the epoch before. The two models step in turn by batch,
in the code by epoch. Sets are not randomised. c(x) weighs each example; in the code the batch's
mean weighs all. Not followed, being defects: in the code the ranking loss has the wrong sign and no
gradient, the adapted lam is thrown away, and KL is divided by the number of classes.
"""

from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed import (
    Client,
    Federation,
    Guide,
    LocalSteps,
    Mean,
    Params,
    Shard,
    Share,
    Upload,
    rng,
)
from hpcfed.algorithms.base import OWN_BATCHES, OWN_LOSS, score_server
from hpcfed.algorithms.bayesian.gaussian import RHO, means
from hpcfed.algorithms.bayesian.pfedbayes import PFedBayes
from hpcfed.algorithms.personal.pfedme import PFedMe, check_step
from hpcfed.algorithms.proxies import conformal
from hpcfed.algorithms.proxies.pairs import AveragedProxy, in_proxy
from hpcfed.algorithms.proxies.proxy_training import PROXIES
from hpcfed.config.conditions import Unused, field
from hpcfed.models.model import Pair
from hpcfed.training.infer import FORWARD, outputs
from hpcfed.training.losses import distil, proximal, soften

SETS = "sets/"  # prefix of the temperature, cost and threshold of a client's sets


class FedType(AveragedProxy):
    """With imitation = 0 and kl = 0 the private models and the proxies are trained independently.

    Private models are then trained locally, and proxies as in the method of `aggregation`.
    """

    guide = Guide(
        data="different labels",
        sent="the small proxy",
        won="private models above their proxies, without public data",
    )
    unused: ClassVar[Unused] = {**OWN_LOSS, **OWN_BATCHES}

    needs_classes: ClassVar[str] = "it builds prediction sets of classes"
    trains_once: ClassVar[bool] = False

    aggregation: Literal["fedavg", "fedprox", "pfedme", "pfedbayes"] = field(
        "fedavg", used_if="averaging"
    )
    """The method that proxies are trained and averaged by."""
    imitation: NonNegativeFloat = 1.0
    """Weight of the imitation loss of the private model; 0: it learns from labels alone."""
    kl: NonNegativeFloat = 1.0
    """Weight of the proxy's KL to the private model."""
    margin: NonNegativeFloat = field(0.0, used_if="imitation")
    """Margin of logits in the proxy's set above those outside."""
    alpha: Annotated[float, Field(gt=0, lt=1)] = field(0.1, used_if="imitation")
    """Sets contain the label with probability at least 1 - alpha."""
    k_reg: PositiveInt = field(5, used_if="imitation")
    """RAPS: number of classes of a set without penalty."""
    lam_small: Share = field(0.5, used_if="imitation")
    """RAPS: penalty of each further class of a proxy's set."""
    lam_large: NonNegativeFloat = field(1.0, used_if="imitation")
    """RAPS: penalty of each further class of a private model's set."""
    adapt: bool = field(True, used_if="imitation")
    """Whether further classes of a proxy's set cost more than lam_small once the private model's
    training accuracy has fallen.
    """
    calibration: Annotated[float, Field(ge=0, lt=1)] = field(0.2, used_if="imitation")
    """Share of a client's training examples that calibrates; 0: all calibrate, and train too."""
    mu: NonNegativeFloat = field(0.1, used_if={"aggregation": "fedprox"})
    """FedProx: weight of the proximal term."""
    inner_steps: PositiveInt = field(5, used_if={"aggregation": ("pfedme", "pfedbayes")})
    """pFedMe, pFedBayes: steps of the personal proxy on each batch."""
    lam: NonNegativeFloat = field(15.0, used_if={"aggregation": "pfedme"})
    """pFedMe: weight of the distance between personal and common proxy."""
    eta: PositiveFloat = field(0.005, used_if="lam")
    """pFedMe: step of the common proxy towards the personal one, times lam."""
    zeta: NonNegativeFloat = field(10.0, used_if={"aggregation": "pfedbayes"})
    """pFedBayes: weight of the divergence between personal and common distribution."""
    rho: float = field(-3.0, used_if=("eps_std", "zeta"))
    """pFedBayes: initial value of all rho."""
    eps_std: NonNegativeFloat = field(1.0, used_if={"aggregation": "pfedbayes"})
    """pFedBayes: standard deviation of the noise that weights are drawn with."""

    @model_validator(mode="after")
    def contracts(self) -> Self:
        if self.aggregation == "pfedme":
            check_step(self.eta, self.lam)
        return self

    @property
    def training(self) -> str:
        """The method that proxies are trained by; others' terms pull to what was received."""
        return self.aggregation if self.averaging else "fedavg"

    def pfedme(self) -> PFedMe:
        return PFedMe(lam=self.lam, eta=self.eta, inner_steps=self.inner_steps)

    def pfedbayes(self) -> PFedBayes:
        return PFedBayes(zeta=self.zeta, eps_std=self.eps_std, inner_steps=self.inner_steps)

    def warn(self, fed: Federation) -> None:
        """Warn if there are too few classes or too few examples for sets that leave a class out."""
        if not self.imitation:
            return
        if self.k_reg >= fed.classes:
            fed.warnings.say(
                f"fedtype: algorithm.k_reg = {self.k_reg} of {fed.classes} classes cost "
                f"nothing, so that lam_small, lam_large and adapt have no effect; set a smaller one"
            )
        apart = [round(self.calibration * n) for n in fed.sizes]
        sizes = [m if 0 < m < n else n for m, n in zip(apart, fed.sizes, strict=True)]
        n_small = sum(not conformal.enough(int(n), self.alpha) for n in sizes)
        if n_small:
            fed.warnings.say(
                f"fedtype: {n_small} of {fed.K} clients have too few examples to calibrate "
                f"on: with algorithm.alpha = {self.alpha:g} their sets hold all classes, and "
                f"their private models do not imitate; set a larger algorithm.calibration or alpha"
            )

    def init(self, fed: Federation) -> Params:
        self.warn(fed)
        proxy = fed.initial(self.shared)
        if self.training != "pfedbayes":
            return proxy
        rho = proxy.pick(fed.trainable).map(lambda v: torch.full_like(v, self.rho))
        return Params({**proxy, **rho.prefixed(RHO)})

    def receive(self, client: Client, state: Params) -> None:
        """Load the common proxy.

        With pFedBayes a client that has trained keeps its own distribution instead.
        """
        if "rho" not in client.memory:
            client.load(means(state))

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        server = state.under("proxy.")
        return score_server(fed, fed.job.models.proxy, server) if server else {}

    def loss(self, client: Client, state: Params, model: Pair, x: Any, y: Tensor) -> Tensor:
        """Return the private model's loss.

        state: also holds the temperatures, costs and thresholds of the sets, if the model imitates.
        """
        z = model.own(x)
        value = F.cross_entropy(z, y)
        settings = state.under(SETS)
        if not settings:
            return value
        inside = {}
        for name, logits in {"own": z.detach(), "proxy": eval_logits(model.proxy, x)}.items():
            t, lam, limit = (settings[f"{name}/{part}"] for part in ("t", "lam", "limit"))
            inside[name] = conformal.sets(conformal.scores(logits, t, lam, self.k_reg), limit)
        weight = conformal.consensus(inside["proxy"], inside["own"])
        apart = conformal.imitation(z, inside["proxy"], self.margin)
        return value + self.imitation * (weight * apart).mean()

    def proxy_loss(self, received: Params, model: Pair, x: Any, y: Tensor) -> Tensor:
        """Return the proxy's loss, without the terms of pFedMe and pFedBayes."""
        z = model.proxy(x)
        value = F.cross_entropy(z, y)
        if self.kl:
            value = value + self.kl * distil(soften(eval_logits(model.own, x)), z)
        if self.training == "fedprox":
            value = value + proximal(model, anchor=received, mu=self.mu)
        return value

    def calibrate(self, fed: Federation, client: Client, train: Shard, data: Shard) -> Params:
        """Return temperature, cost of a class and threshold of both models.

        train: the client's training examples.  data: those that calibrate.
        """
        model: Any = client.model.eval()
        y, settings = torch.from_numpy(data.labels).to(fed.device), Params()
        costs = {"own": self.lam_large, "proxy": self.adapted_lam(fed, client, train)}
        for name, lam in costs.items():
            fed.tallies[client.id].work += FORWARD * len(data)
            z = outputs(fed, getattr(model, name), data)
            t = conformal.fit_temperature(z, y, fed.job.local.batch)
            score = conformal.scores(z, t, lam, self.k_reg).gather(1, y[:, None])[:, 0]
            limit = conformal.threshold(score, self.alpha)
            settings |= {f"{name}/t": t, f"{name}/lam": t.new_tensor(lam), f"{name}/limit": limit}
        return Params(settings).prefixed(SETS)

    def adapted_lam(self, fed: Federation, client: Client, train: Shard) -> float:
        """Return lam of the proxy's sets; the private model is in eval mode."""
        if not self.adapt:
            return self.lam_small
        model: Any = client.model
        fed.tallies[client.id].work += FORWARD * len(train)
        best = outputs(fed, model.own, train).argmax(1).cpu()
        accuracy = float((best == torch.from_numpy(train.labels)).double().mean())
        change = min(0.0, accuracy - client.memory.get("accuracy", accuracy))
        client.memory["accuracy"] = accuracy
        return self.lam_small - (1 - self.lam_small) * change

    def split(self, fed: Federation, client: Client) -> tuple[Shard, Shard]:
        """Return the examples to train on and those to calibrate on, the same in all rounds."""
        share = self.calibration if self.imitation else 0.0
        return client.train.divide(share, rng.stream(fed.seed, "calibration", client.id))

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        data, calibration = self.split(fed, client)
        settings = self.calibrate(fed, client, data, calibration) if self.imitation else Params()
        loss = partial(self.loss, client, Params({**download, **settings}))
        is_private = lambda name: not in_proxy(name)  # noqa: E731
        with LocalSteps(fed, client, t, data=data, only=is_private) as steps:
            client.model.requires_grad_(True)  # the proxy learns too, by an optimiser of its own
            proxy = PROXIES[self.training](self, download, steps)
            for x, y in steps:
                value = steps.value(loss, x, y)
                steps.backward(value)
                steps.optimiser.step()
                steps.done(value.detach() + proxy.learn(x, y))
        return Upload(Mean.of(proxy.end(), self.weight(client)), relative_to=download)


@torch.no_grad()
def eval_logits(model: nn.Module, x: Any) -> Tensor:
    """Return logits in eval mode, and leave the model in train mode."""
    model.eval()
    z = model(x)
    model.train()
    return z
