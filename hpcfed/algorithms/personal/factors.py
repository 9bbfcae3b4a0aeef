"""Networks whose weights are products of common factors with scores of each client: WAFFLe.

W = W_a diag(b r) W_b with W_a [outputs, F], W_b [F, inputs], real scores r and binary scores b. The
prior of b is an Indian buffet process. Hao et al. (WAFFLe), 2020, arXiv:2008.05687.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpcfed import Model
from hpcfed.models.model import Head
from hpcfed.models.precision import full, raised

SCORES = ("scores", "gates", "sticks")  # the parameters of a layer that each client has for itself
LIKELY = 2.0  # the initial logit of each gate
EULER = 0.5772156649015329
SMALL = 1e-6  # least distance of uniform draws and probabilities from 0 and 1


class How(NamedTuple):
    """The settings of a factorisation.

    number: F.  alpha: of the prior.  temperature: of the relaxed gates.
    personal: whether there are scores.
    """

    number: int
    alpha: float
    temperature: float
    personal: bool


class Factors(nn.Module):
    """The weight of a layer, [outputs, inputs], as a product.

    Parameters: left [outputs, F], right [F, inputs]; scores [F], r; gates [F], the logits of b's
    posterior probabilities; sticks [2, F]. softplus of the sticks gives the two parameters of the
    Kumaraswamy posterior of the stick lengths v, whose products are the prior probabilities of b.
    """

    def __init__(self, outputs: int, inputs: int, how: How):
        super().__init__()
        number, self.alpha, self.temperature = how.number, how.alpha, how.temperature
        self.personal = how.personal
        share = 1 / (1 + math.exp(-LIKELY)) if self.personal else 1.0
        self.left = nn.Parameter(torch.empty(outputs, number))
        self.right = nn.Parameter(torch.empty(number, inputs))
        nn.init.normal_(self.left, std=1 / math.sqrt(number * share))
        nn.init.normal_(self.right, std=1 / math.sqrt(3 * inputs))
        if not self.personal:
            return
        self.scores = nn.Parameter(torch.ones(number))
        self.gates = nn.Parameter(torch.full((number,), LIKELY))
        begin = torch.tensor([[self.alpha], [1.0]])  # the prior itself, Beta(alpha, 1)
        self.sticks = nn.Parameter(begin.expm1().log().repeat(1, number))

    def forward(self) -> Tensor:
        if not self.personal:
            return self.left @ self.right
        gate = self.draw_gates() if self.training else (self.gates > 0).to(self.gates.dtype)
        return (self.left * (gate * self.scores)) @ self.right

    def draw_gates(self) -> Tensor:
        """Return relaxed draws of b, [F], in 0..1.

        sigmoid((logit + logistic noise) / temperature).
        Maddison et al., ICLR 2017, arXiv:1611.00712.
        """
        u = draw_uniform(self.gates)
        return relax(self.gates + u.log() - (-u).log1p(), self.temperature)

    def divergence(self) -> Tensor:
        """Return the KL divergence of the posterior of sticks and b from their prior, a scalar.

        The prior of b is computed from a single draw of the sticks.
        """
        c, d = F.softplus(self.sticks)
        u = draw_uniform(c)
        log_stick = (-(u.log() / d).exp()).clamp(min=SMALL - 1).log1p() / c
        prior = log_stick.cumsum(0).exp().clamp(SMALL, 1 - SMALL)
        return stick_divergence(c, d, self.alpha).sum() + gate_divergence(self.gates, prior).sum()


def draw_uniform(like: Tensor) -> Tensor:
    """Return uniform draws in 0..1, in the shape of `like`, from torch's generator.

    They stay SMALL away from 0 and 1.
    """
    return nn.init.uniform_(torch.empty_like(like), SMALL, 1 - SMALL)


def relax(logits: Tensor, temperature: float) -> Tensor:
    """Return gates between 0 and 1; a smaller temperature brings them nearer to (logits > 0)."""
    return torch.sigmoid(logits / temperature)


def stick_divergence(c: Tensor, d: Tensor, alpha: float) -> Tensor:
    """Return KL(Kumaraswamy(c, d) || Beta(alpha, 1)), value by value.

    (c - alpha) / c (-gamma - psi(d) - 1/d) + log(c d / alpha) - (d - 1) / d.
    Nalisnick and Smyth, ICLR 2017, arXiv:1605.06197, appendix A.
    """
    term = (c - alpha) / c * (-EULER - torch.digamma(d) - 1 / d)
    return term + (c * d / alpha).log() - (d - 1) / d


def gate_divergence(logits: Tensor, prior: Tensor) -> Tensor:
    """Return KL(Bernoulli(sigmoid(logits)) || Bernoulli(prior)), value by value.

    prior: inside 0..1.
    """
    p = torch.sigmoid(logits)
    return p * (F.logsigmoid(logits) - prior.log()) + (1 - p) * (
        F.logsigmoid(-logits) - (-prior).log1p()
    )


class FactorLinear(nn.Module):
    """A linear layer whose weight is a product of factors, in float32 for any run.precision."""

    def __init__(self, layer: nn.Linear, how: How):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.factors = Factors(layer.out_features, layer.in_features, how)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        return self.factors()

    def forward(self, x: Tensor) -> Tensor:
        with full(x.device):
            return F.linear(raised(x), self.weight, self.bias)


class FactorHead(FactorLinear):
    """The head, with a weight that is a product of factors."""

    def __init__(self, head: Head, how: How):
        super().__init__(head, how)
        self.relu = head.relu

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(F.relu(z) if self.relu else z)


class FactorConv2d(nn.Module):
    """A convolution whose weight is a product of factors, in float32 for any run.precision.

    The product has shape [outputs, inputs * height * width of the kernel].
    """

    def __init__(self, layer: nn.Conv2d, how: How):
        super().__init__()
        self.shape, self.stride, self.padding = layer.weight.shape, layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups
        self.factors = Factors(self.shape[0], self.shape[1:].numel(), how)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        return self.factors().view(self.shape)

    def forward(self, x: Tensor) -> Tensor:
        stride, padding = self.stride, self.padding
        with full(x.device):
            x = raised(x)
            return F.conv2d(x, self.weight, self.bias, stride, padding, self.dilation, self.groups)


def factorise(model: Model, number: int, alpha: float, temperature: float, personal: bool) -> Model:
    """Factorise the weights of all convolutions and linear layers, and return the model.

    The factors are drawn anew; biases stay. The other parameters are those of `How`.
    """
    how = How(number, alpha, temperature, personal)
    for path, layer in list(model.named_modules()):
        kinds = ((Head, FactorHead), (nn.Linear, FactorLinear), (nn.Conv2d, FactorConv2d))
        make = next((replacement for kind, replacement in kinds if isinstance(layer, kind)), None)
        if make:
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, path.rpartition(".")[2], make(layer, how))
    return model


def divergence(model: nn.Module) -> Tensor:
    """Return the sum of all layers' divergences, a scalar."""
    layers = (m for m in model.modules() if isinstance(m, Factors))
    return torch.stack([layer.divergence() for layer in layers]).sum()
