"""The formulas of losses; each is defined once, and is a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed.models.precision import full, raised
from hpcfed.models.scores import nearest  # noqa: F401, methods take it from here
from hpcfed.training.recorded_step import Whole
from hpcfed.training.similarity import squared_distances

if TYPE_CHECKING:
    from hpcfed.models.model import Model


def supcon(
    z: Tensor, y: Tensor, tau: float = 0.07, base: float | None = None, normalise: bool = True
) -> Tensor:
    """Return the supervised contrastive loss, the mean over anchors of their mean over positives.

    For anchor i with positives P(i), the other rows of its label:
    -1/|P(i)| sum_{p in P(i)} log( exp(z_i.z_p / tau) / sum_{a != i} exp(z_i.z_a / tau) ).
    z: [n, d], y: [n]; all views of a batch as rows. An anchor without positives contributes 0.
    tau: temperature > 0. base: the loss is multiplied by tau / base (None: by 1).
    normalise: rows of z are scaled to length 1 first.
    With run.precision = "bf16" this is computed in float32: divided by tau, the rounding of z_i.z_p
    to bfloat16 would be an error of 0.03 in the logits.
    Khosla et al., NeurIPS 2020, arXiv:2004.11362, eq. 2 (L_out). Deviations: none with the
    defaults.
    """
    z = raised(z)
    z = F.normalize(z, dim=1) if normalise else z
    self_pair = torch.eye(len(z), dtype=torch.bool, device=z.device)
    with full(z.device):
        similar = (z @ z.T / tau).masked_fill(self_pair, -torch.inf)  # [n, n]
    log_share = similar - similar.logsumexp(dim=1, keepdim=True)
    positive = (y[:, None] == y[None, :]) & ~self_pair
    per_anchor = -torch.where(positive, log_share, 0.0).sum(1) / positive.sum(1).clamp(min=1)
    return per_anchor.mean() * (1.0 if base is None else tau / base)


def contrastive_cross_entropy(
    model: Model,
    x: list[Tensor],
    y: Tensor,
    tau: float,
    base: float | None = None,
    normalise: bool = True,
    supervised: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> Tensor:
    """Return cross-entropy on the first view plus the contrastive loss on all views.

    Both are computed in one forward pass.
    x: views, each [b, *shape].  tau, base, normalise: as in `supcon`.  supervised: the loss of
    logits and labels in place of cross-entropy.
    Jang et al., ICPP 2022, eq. 4 without its last term.
    """
    z = model.body(torch.cat(x))  # [views * b, d]
    return supervised(model.head(z[: len(y)]), y) + supcon(
        z, y.repeat(len(x)), tau, base, normalise
    )


def proximal(model: nn.Module, anchor: Mapping[str, Tensor], mu: float) -> Tensor:
    """Return mu / 2 * squared Euclidean distance of the model's parameters to the anchor's.

    Only parameters that the anchor names count; buffers never do. Li et al., MLSys 2020, eq. 2.
    """
    return 0.5 * mu * sum((d.square().sum() for d in differences(model, anchor)), torch.zeros(()))


def distance(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Return the Euclidean distance, not squared, of the model's parameters to the anchor's.

    It is taken over all tensors together. Its gradient has length 1; at distance 0 it is 0.
    Jang et al., ICPP 2022, eq. 5.
    """
    return torch.linalg.vector_norm(torch.cat([d.flatten() for d in differences(model, anchor)]))


def elastic(
    model: nn.Module, anchor: Mapping[str, Tensor], weights: Mapping[str, Tensor], lam: float
) -> Tensor:
    """Return lam / 2 sum_i weights_i (parameter_i - anchor_i)^2, over parameters with weights.

    weights: by name, for example the diagonal of the Fisher information. Kirkpatrick et al., PNAS
    2017, arXiv:1612.00796, eq. 3.
    """
    pairs = ((v - anchor[n], weights[n]) for n, v in model.named_parameters() if n in weights)
    return 0.5 * lam * sum(((w * d.square()).sum() for d, w in pairs), torch.zeros(()))


def half_mean_squares(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Return half the sum over tensors of the mean squared difference to the anchor.

    It is the proximal term of FedClassAvg's public code.
    """
    return 0.5 * sum((d.square().mean() for d in differences(model, anchor)), torch.zeros(()))


def differences(model: nn.Module, anchor: Mapping[str, Tensor]) -> Iterable[Tensor]:
    """Return parameter minus anchor for each parameter that the anchor names."""
    return (value - anchor[name] for name, value in model.named_parameters() if name in anchor)


def at_ascent(
    loss: Callable[[Any, Any, Any], Tensor],
    model: nn.Module,
    x: Any,
    y: Any,
    rho: float,
    eta: float | None = None,
) -> Tensor:
    """Return the loss of a batch where one step of ascent leads from the weights: F(w + e).

    e = rho g / ||g||, with g the gradient of F at w on the same batch, over all trained parameters
    together; if g is 0, so is e. For the gradient of the result e is a constant: it is the gradient
    of F at w + e. With rho = 0 the result is F(w).

    loss: F, (model, x, y) -> scalar.
    eta: e = rho T (T g) / ||T g||, with T = |w| + eta for parameters with "weight" in their names,
    and 1 for the others, so that e follows the scale of weights. None: T = 1.
    The model's weights stay. Running statistics of batch normalisation are those of w, and each of
    both passes draws its own dropout. With privacy.by = "examples" a run is refused, because each
    example would have a step of its own. A method that uses it declares `step_passes = 2`.
    Foret et al. (SAM), ICLR 2021, arXiv:2010.01412, eq. 2. Kwon et al. (ASAM), ICML 2021,
    arXiv:2102.11600, eq. 5, and public code.
    """
    if not rho:
        return loss(model, x, y)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        value = loss(model, x, y)
        with full(value.device):  # else products of float32 layers' gradients are in bfloat16
            slopes = torch.autograd.grad(value, list(trained.values()), materialize_grads=True)
    shift = ascent(trained, slopes, rho, eta)
    shifted = {f"model.{name}": p + shift[name] for name, p in trained.items()}
    # which the second pass may change
    statistics = {f"model.{name}": buffer.clone() for name, buffer in model.named_buffers()}
    objective = Whole(model, lambda model, batch: loss(model, *batch))
    return functional_call(objective, shifted | statistics, (x, y))


def ascent(
    weights: Mapping[str, Tensor], slopes: Iterable[Tensor], rho: float, eta: float | None = None
) -> dict[str, Tensor]:
    """Return the step e of `at_ascent` by name, from the gradient at these weights."""
    scales = {
        n: w.detach().abs() + eta for n, w in weights.items() if eta is not None and "weight" in n
    }

    def scale(name: str, value: Tensor) -> Tensor:
        return scales[name] * value if name in scales else value

    steps = {n: scale(n, g) for n, g in zip(weights, slopes, strict=True)}
    norms = [torch.linalg.vector_norm(step) for step in steps.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor = rho / norm.clamp(min=torch.finfo(norm.dtype).tiny)
    return {n: factor * scale(n, step) for n, step in steps.items()}


def distil(target: Tensor, logits: Tensor, tau: float = 1.0) -> Tensor:
    """Return tau^2 KL(target || softmax(logits / tau)), summed over classes, mean over examples.

    target: [n, C], probabilities, already softened by the same temperature.  logits: [n, C], the
    student's. The factor tau^2 makes the size of the gradient independent of the temperature.
    Values of the target below 0, which lossy compression or noise may leave, count as 0.
    Hinton et al., 2015, arXiv:1503.02531, section 2.
    """
    student = F.log_softmax(logits / tau, dim=1)
    return tau**2 * F.kl_div(student, target.clamp(min=0), reduction="batchmean")


def soften(logits: Tensor, tau: float = 1.0) -> Tensor:
    """Return soft predictions, softmax(logits / tau), [n, C], without gradient."""
    return F.softmax(logits.detach() / tau, dim=1)


def inner_product(model: nn.Module, direction: Mapping[str, Tensor]) -> Tensor:
    """Return <direction, parameters>, over the parameters that the direction names.

    Its gradient is the direction.
    """
    pairs = (
        (value, direction[name]) for name, value in model.named_parameters() if name in direction
    )
    return sum((torch.vdot(d.flatten(), value.flatten()) for value, d in pairs), torch.zeros(()))


def to_prototypes(z: Tensor, proto: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Return the mean over examples of the squared distance of a representation to its prototype.

    z, proto: [n, d]; a row of proto that is nan has no prototype yet and contributes 0.  reduction:
    over the d components, their mean (torch's MSELoss, as in the authors' code) or their sum (eq.
    8), which is d times as large. Tan et al. (FedProto), AAAI 2022, arXiv:2105.00243, eq. 8.
    """
    valid = ~proto.isnan().any(1)
    total = torch.where(valid[:, None], z - proto.nan_to_num(), 0.0).square().sum()
    return total / (z.numel() if reduction == "mean" else len(z))


def to_soft_targets(
    logits: Tensor, target: Tensor, distance: Literal["kl", "mse"] = "kl"
) -> Tensor:
    """Return the mean over examples of the distance of soft predictions to their targets.

    logits: [n, C].  target: [n, C], probabilities; a row of nan is not a target and contributes 0.
    distance: KL(target || softmax(logits)), or the squared difference of both, summed over classes.
    Jeong et al. (FD), 2018, arXiv:1811.11479, algorithm 1.
    """
    if distance == "kl":
        return distil(target.nan_to_num(), logits)  # a row of zeros has divergence 0
    valid = ~target.isnan().any(1, keepdim=True)
    apart = F.softmax(logits, dim=1) - target.nan_to_num()
    return torch.where(valid, apart, 0.0).square().sum(1).mean()


def cross_correlation(z: Tensor, target: Tensor, lam: float) -> Tensor:
    """Return the loss of the cross-correlation M of logits and targets over a batch, a scalar.

    sum_u (1 - M_uu)^2 + lam sum_{u != v} (1 + M_uv)^2.
    z, target: logits [B, C]; no gradient flows back through the target.  M_uv = 1/B sum_b zhat_bu
    that_bv, with each column standardised over the batch by its mean and its standard deviation
    (divisor B). A constant column is 0, and so are its entries of M. It is computed in float32 for
    any run.precision. Raises ValueError for a batch of one. Huang et al. (FCCL), CVPR 2022,
    doi:10.1109/CVPR52688.2022.00985.
    """
    if len(z) < 2:
        raise ValueError(f"a correlation needs two examples at least, not {len(z)}")
    z, target = raised(z), raised(target.detach())
    with full(z.device):
        m = standardise(z).T @ standardise(target) / len(z)  # [C, C]
    diagonal = m.diagonal()
    off = (1 + m).square().sum() - (1 + diagonal).square().sum()
    return (1 - diagonal).square().sum() + lam * off


def standardise(z: Tensor, least: float = 1e-10) -> Tensor:
    """Return columns of mean 0 and variance 1, divisor n; a constant column becomes 0.

    z: [n, d].  least: is added to the variances.
    """
    centred = z - z.mean(0)
    return centred / (centred.square().mean(0) + least).sqrt()


def decorrelation(z: Tensor, scale: Literal["code", "paper"]) -> Tensor:
    """Return FedDecorr's loss of decorrelation, a scalar, from the correlations M [d, d] of z.

    z: representations [n, d].  scale: "paper", the mean over all u, v of M_uv^2; or "code", (n -
    1)^2 / n times the mean over u != v. Constant components are correlated with none, and one
    example adds nothing. It is computed in float32 for any run.precision. Shi et al. (FedDecorr),
    ICLR 2023, arXiv:2210.00226, eq. 6, and public code (bytedance/FedDecorr), of which 1e-8 in the
    variances is: a component that is almost constant would have too large a gradient.
    """
    n, d = z.shape
    if n == 1:
        return z.sum() * 0
    z = standardise(raised(z), least=1e-8)
    with full(z.device):
        squares = (z.T @ z / n).square()  # [d, d]
    if scale == "paper":
        return squares.mean()
    off_diagonal = squares.sum() - squares.diagonal().sum()
    return (n - 1) ** 2 / n * off_diagonal / max(d * (d - 1), 1)


def model_contrast(z: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """Return MOON's model-contrastive loss, the mean over examples.

    -log(e^(cos(z, near) / tau) / (e^(cos(z, near) / tau) + e^(cos(z, far) / tau))).
    z, near, far: representations [n, d]. It is computed in float32 for any run.precision. Li et al.
    (MOON), CVPR 2021, arXiv:2103.16257, eq. 3.
    """
    z, near, far = raised(z), raised(near), raised(far)
    with full(z.device):
        apart = F.cosine_similarity(z, far) - F.cosine_similarity(z, near)
        return F.softplus(apart / tau).mean()


def moment_distance(x: Tensor, mean: Tensor, variance: Tensor, eps: float = 1e-5) -> Tensor:
    """Return the squared distance of the batch's mean and standard deviation to stored ones.

    It is the sum over channels of the squared differences of both.
    x: [n, C, ...], the input of a layer of batch normalisation, whose statistics are `mean` and
    `variance`, [C]. As in that layer, a variance is divided by one less than the number of values.
    Standard deviations are sqrt(variance + eps).  Haroush et al. (The Knowledge Within), CVPR 2020,
    arXiv:1912.01274, and Yin et al. (DeepInversion), CVPR 2020, arXiv:1912.08795, eq. 4, match such
    statistics.
    """
    dims = [d for d in range(x.dim()) if d != 1]
    single = x.numel() == x.shape[1]
    var, mu = torch.var_mean(x, dims, correction=0 if single else 1)
    deviations = (var + eps).sqrt() - (variance + eps).sqrt()
    return (mu - mean).square().sum() + deviations.square().sum()


def cosines(z: Tensor, vectors: Tensor) -> Tensor:
    """Return the cosines of the rows of z [n, d] and of vectors [m, d], [n, m].

    They are computed in float32 for any run.precision.
    """
    z, vectors = raised(z), raised(vectors)
    with full(z.device):
        return F.normalize(z, dim=1) @ F.normalize(vectors, dim=1).T


def mean_discrepancy(z: Tensor, target: Tensor, variances: Iterable[float]) -> Tensor:
    """Return the squared maximum mean discrepancy of two batches, summed over RBF kernels.

    E k(z, z') + E k(t, t') - 2 E k(z, t), over all pairs of rows, with k(p, q) = exp(-||p - q||^2 /
    (2 variance)).
    z, target: representations [n, d] and [m, d]; no gradient flows back through the target. It is
    computed in float32 for any run.precision. Gretton et al., JMLR 2012, eq. 5.
    """
    z, target = raised(z), raised(target.detach())
    with full(z.device):
        within, of_target, across = (
            torch.stack([torch.exp(-squares / (2 * s)).mean() for s in variances]).sum()
            for squares in (
                squared_distances(z, z),
                squared_distances(target, target),
                squared_distances(z, target),
            )
        )
    return within + of_target - 2 * across


def gaussian_divergence(m1: Tensor, s1: Tensor, m2: Tensor, s2: Tensor) -> Tensor:
    """Return KL(N(m1, s1^2) || N(m2, s2^2)), value by value; the deviations are > 0.

    log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2.
    """
    return (s2 / s1).log() + (s1.square() + (m1 - m2).square()) / (2 * s2.square()) - 0.5


def to_vectors(z: Tensor, y: Tensor, vectors: Tensor, tau: float) -> Tensor:
    """Return the mean over examples of -log softmax_c(z . v_c / tau) at their class c.

    The softmax is over the classes whose vectors are known.
    z: [n, d], scaled to length 1 here.  vectors: [C, d], rows of length 1 or nan; an example whose
    class has none contributes 0.  FedRare, public code (wnn2000/FedRare).
    """
    valid = ~vectors.isnan().any(1)
    z = F.normalize(raised(z), dim=1)
    with full(z.device):
        similar = z @ vectors.nan_to_num().T / tau
    share = F.log_softmax(similar.masked_fill(~valid, torch.finfo(similar.dtype).min), 1)
    log_share = share.gather(1, y[:, None])[:, 0]
    return -torch.where(valid[y], log_share, 0.0).sum() / len(y)
