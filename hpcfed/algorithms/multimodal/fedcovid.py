"""FedCovid: binary records with few positives, on clients of very different sizes.

Wang et al., ECML-PKDD 2022, doi:10.1007/978-3-031-26422-1_27. The model `gated` is the paper's
(section 5.2). It has encoders of age, of person and brand, and of visits; with their features side
by side, h' = W h, and the representation is p = phi h' with phi = sigmoid(h'). The margin loss of
examples and of copies of the positives (section 5.3) is
    L_m = mean_i max(d(p_i, p+_i) - d(p_i, p-_i) + margin, 0).
N_w is the number of parameters. Client k has the weight log n_k (section 5.4). Training goes from
large to small (section 5.5).

Copies are the examples' fused features, before W, with Gaussian noise, as in the authors' code
(JackqqWang/FedCovid). A body without fused features copies its representation.

Objective: CE + lam_c CE_copies + lam_m L_m + (lam_w / N_w) ||w_k - w||^2
Server: w <- sum_k log(n_k) w_k / sum_k log(n_k)
Round:
1. The cohort is drawn from the `large` largest clients in the first `warmup` rounds, then from all.
2. The server sends its model.
3. A client copies its positive examples with noise and trains; small ones do less, at a lower rate.
4. It sends its model.
5. The server takes the mean, weighted by log n_k.

Deviations: d is the cosine distance, as in the code. p+_i is the mean of the other items of i's
side, positive or not, over a batch with its copies; p-_i is the mean of the items of the other
side. An item that lacks one of these means contributes 0. The code takes triplets of logits
instead, and divides the sum of losses by 3. n_k counts as 2 at least, because a client with one
example would otherwise have the weight log 1 = 0. Clients of the warm-up are drawn alike, whatever
selection.by. Not followed, being defects: in the code one network object serves all clients and the
server; the proximal term has no gradient; small clients never train; the area under the
precision-recall curve is that of the largest logit.
"""

import math
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

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
from hpcfed.algorithms.base import OWN_LOSS, warn_of_short_run
from hpcfed.config.conditions import Unused, above, below, field
from hpcfed.models.fusion import Fusion
from hpcfed.models.precision import full, raised
from hpcfed.training.local import learning_rate
from hpcfed.training.losses import proximal

NOISE = "noise"  # key in the loss's state; standard normal, [copies * n, width]


SMALL = {"large": below("clients"), "warmup": below("rounds")}  # small clients train


class FedCovid(RoundBased):
    """FedCovid equals FedAvg in its neutral setting.

    All clients are then large and of one size, and there are no copies, no margin loss and no
    proximal term.
    """

    guide = Guide(
        data="few positives, very different sizes",
        sent="all weights",
        won="COVID-19 prediction in 29 states, above FedAvg and FedProx",
    )
    unused: ClassVar[Unused] = OWN_LOSS

    needs_classes: ClassVar[str] = "it aligns the representations of a class"
    reads_head: ClassVar[bool] = True
    trains_once: ClassVar[bool] = False

    weighting: Literal["log_samples", "samples", "uniform"] = "log_samples"  # type: ignore[assignment]
    """Weight of a client in the mean: the logarithm of its number of examples, that number, or
    1.
    """
    positive: NonNegativeInt = field(1, used_if=("lam_c", "lam_m"))
    """The class of the positives."""
    copies: PositiveInt = field(4, used_if=("lam_c", "lam_m"))
    """Copies of each positive example in a batch."""
    noise: NonNegativeFloat = field(0.2, used_if=("lam_c", "lam_m"))
    """Standard deviation of the noise added to a copy."""
    lam_c: NonNegativeFloat = 1.0
    """Weight of the cross-entropy of the copies."""
    lam_m: NonNegativeFloat = 1.0
    """Weight of the margin loss."""
    margin: NonNegativeFloat = field(0.2, used_if="lam_m")
    """Margin by which the other class has to be farther than the example's own, in cosine
    distance.
    """
    lam_w: NonNegativeFloat = 0.5
    """Weight of the proximal term, which is a mean over parameters."""
    large: PositiveInt = 10
    """Number of large clients: those with most examples."""
    warmup: NonNegativeInt = field(200, used_if={"large": below("clients")})
    """Rounds in which only large clients take part; 0: none."""
    small_epochs: Share = field(
        0.5, used_if=({**SMALL, "local.steps": above(1)}, {**SMALL, "local.epochs": above(1)})
    )
    """Epochs, or steps, of a small client, as a part of the job's; at least one."""
    small_lr: NonNegativeFloat = field(0.2, used_if=SMALL)
    """Learning rate of a small client, as a part of the job's."""

    def init(self, fed: Federation) -> Params:
        if self.large < fed.K:
            never = f"only the {self.large} largest of {fed.K} clients train"
            warn_of_short_run(fed, "warmup", never)
        return super().init(fed)

    @property
    def augments(self) -> bool:
        return self.lam_c > 0 or self.lam_m > 0

    def largest(self, fed: Federation) -> list[int]:
        """Return the large clients, in id order; of equal ones those with the lowest ids."""
        return sorted(sorted(range(fed.K), key=lambda k: (-fed.sizes[k], k))[: self.large])

    def cohort(self, fed: Federation, t: int) -> list[int]:
        large = self.largest(fed)
        if t >= self.warmup or len(large) == fed.K:
            return fed.sample(t)
        size = min(fed.cohort_size, len(large))
        chosen = rng.stream(fed.seed, "cohort", t).choice(large, size, replace=False)
        return sorted(chosen.tolist())

    def weight(self, client: Client) -> float:
        if self.weighting == "log_samples":
            return math.log(max(client.n, 2))
        return super().weight(client)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        how: dict[str, Any] = {}
        if client.id not in self.largest(fed):
            local = fed.job.local
            amount = max(1, round(self.small_epochs * (local.steps or local.epochs)))
            how = {"amount" if local.steps else "epochs": amount}
            how["lr"] = self.small_lr * learning_rate(fed, t)
        if not self.augments:
            self.train(fed, client, download, t, **how)
        else:
            self.train_with_copies(fed, client, download, t, **how)
        sent = client.params(self.shared)
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def train_with_copies(
        self, fed: Federation, client: Client, received: Params, t: int, **how: Any
    ) -> None:
        """Train the client's model on batches with noisy copies of their positives."""
        draws = rng.torch_stream(fed.seed, "copies", t, client.id, device=fed.device)
        body: Any = client.model.body
        width: Any = (
            body.fusion.width if isinstance(body, Fusion) else client.model.head.in_features
        )
        with LocalSteps(fed, client, t, **how) as steps:
            for x, y in steps:
                size = self.copies * len(y), width
                noise = torch.randn(size, generator=draws, device=fed.device)
                noisy = Params({**received, NOISE: noise})
                steps.learn(partial(self.loss, client, noisy), x, y)

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        body: Any = model.body
        fused = isinstance(body, Fusion)
        h = body.fuse(x) if fused else body(x)
        p = body.represent(h) if fused else h
        value = F.cross_entropy(model.head(p), y)
        if self.augments:
            # copy all examples, so that shapes do not depend on labels; only positives count
            more = h.repeat(self.copies, 1)
            more = more + self.noise * state[NOISE]
            more, labels = body.represent(more) if fused else more, y.repeat(self.copies)
            positive = labels == self.positive
            each = F.cross_entropy(model.head(more), labels, reduction="none")
            copied = torch.where(positive, each, 0.0).sum() / positive.sum().clamp(min=1)
            value = value + self.lam_c * copied
            if self.lam_m:
                counts = torch.cat([torch.ones_like(y, dtype=torch.bool), positive])
                sides = torch.cat([y, labels]) == self.positive
                value = value + self.lam_m * margin_loss(
                    torch.cat([p, more]), sides, counts, self.margin
                )
        if self.lam_w:
            number = sum(parameter.numel() for parameter in model.parameters())
            value = value + proximal(model, anchor=state, mu=2 * self.lam_w / number)
        return value


def margin_loss(p: Tensor, side: Tensor, counts: Tensor, margin: float) -> Tensor:
    """Return the mean margin loss over the items that count, a scalar.

    The loss of an item is max(d(p_i, own side) - d(p_i, other side) + margin, 0), where d is the
    cosine distance to the mean of the items of a side that count, without i itself. An item without
    one of the means contributes 0.

    p: [n, d].  side: [n], bool.  counts: [n], bool.
    """
    p = raised(p)
    member = torch.stack([side & counts, ~side & counts], 1).to(p.dtype)  # [n, 2]
    with full(p.device):  # a sum minus p would have the rounding of the sum
        sums, sizes = member.T @ p, member.sum(0)  # [2, d], [2]
    same_side, other_side = torch.where(side, 0, 1), torch.where(side, 1, 0)
    near = (sums[same_side] - p) / (sizes[same_side] - 1).clamp(min=1)[:, None]
    far = sums[other_side] / sizes[other_side].clamp(min=1)[:, None]
    apart = F.cosine_similarity(p, far, dim=1) - F.cosine_similarity(p, near, dim=1)
    defined = counts & (sizes[same_side] > 1) & (sizes[other_side] > 0)
    return torch.where(defined, (apart + margin).relu(), 0.0).sum() / counts.sum()
