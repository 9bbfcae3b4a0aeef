"""What a method changes of the networks of its clients: a variant of an architecture, named after
"~" in the architecture's name: "cnn~pan_add_1.0_0.15" is cnn with position encodings.

A variant is the network itself, so all that builds one by its name (clients, server, saved models)
has it. Options follow the variant's name after underscores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hpcfed.models.model import Model

LAYERS = (nn.Conv2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def name_variant(name: str, *options: object) -> str:
    """What is appended to an architecture's name: "~name_option_option"."""
    return "~" + "_".join([name, *map(str, options)])


def change(model: Model, variant: str, shape: tuple[int, ...]) -> Model:
    """The model changed as the variant says.

    Draws from torch's global generator where it has new weights.

    variant: as `name_variant` without "~".  shape: one example.
    Raises ConfigError where the model cannot be changed so.
    """
    name, *options = variant.split("_")
    return VARIANTS[name](model, *options)


def encode_positions(model: Model, kind: str, frequency: str, amplitude: str) -> Model:
    """FedPAN's position-aware neurons: after each convolution and linear layer of the body, or what
    normalises it, h becomes h + e or h (1 + e); e_j = A sin(2 pi T j / n) for unit j of n.

    kind: add or mul.  frequency: T.  amplitude: A.  Li et al., CVPR 2022, section 4.
    """
    modules = [m for m in model.body.modules() if not list(m.children())]
    for layer, following in zip(modules, [*modules[1:], None], strict=True):
        if isinstance(layer, LAYERS):
            encoded = following if isinstance(following, NORMS) else layer
            encoded.register_forward_hook(encoding_hook(kind, float(frequency), float(amplitude)))
    return model


def encoding_hook(kind: str, frequency: float, amplitude: float) -> Callable[..., Tensor]:
    """A hook that encodes the positions of a layer's units (dimension 1 of its output)."""

    def encode(layer: Any, given: Any, out: Tensor) -> Tensor:
        e = encode_units(out.shape[1], frequency, amplitude, out.device)
        e = e.to(out.dtype).view(-1, *[1] * (out.dim() - 2))
        return out + e if kind == "add" else out * (1 + e)

    return encode


def encode_units(
    n: int, frequency: float, amplitude: float, device: torch.device | str = "cpu"
) -> Tensor:
    """A sin(2 pi T j / n) for j = 0..n-1, float64, [n]."""
    places = torch.arange(n, dtype=torch.float64, device=device)
    return amplitude * torch.sin(2 * math.pi * frequency / n * places)


def add_predictor(model: Model) -> Model:
    """A predictor beside body and head, [n, d] -> [n, d], of which only a loss makes use: two
    linear layers, the hidden one of d / 4 units.  Chen and He (SimSiam), CVPR 2021,
    arXiv:2011.10566, section 3.
    """
    d = model.head.in_features
    hidden = max(1, d // 4)
    model.predictor = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, d))
    return model


def divide_groups(model: Model, groups: str, depth: str) -> Model:
    """Fed2's groups, see `hpcfed.models.groups`."""
    from hpcfed.models.groups import divide

    return divide(model, int(groups), int(depth))


def factorise_weights(
    model: Model, number: str, alpha: str, temperature: str, personal: str
) -> Model:
    """WAFFLe's factors, see `hpcfed.models.factors`."""
    from hpcfed.models.factors import How, factorise

    how = How(int(number), float(alpha), float(temperature), personal == "True")
    return factorise(model, how)


def make_weights(model: Model, hidden: str, rounds: str) -> Model:
    """A graph hyper-network in the place of weights, see `hpcfed.models.hyper`."""
    from hpcfed.models.hyper import generate

    return generate(model, int(hidden), int(rounds))


def adapt_features(model: Model) -> Model:
    """FedCLIP's adapter, see `hpcfed.models.clip`."""
    from hpcfed.models.clip import attend

    return attend(model)


VARIANTS: dict[str, Callable[..., Model]] = {
    "pan": encode_positions,
    "predictor": add_predictor,
    "groups": divide_groups,
    "factors": factorise_weights,
    "hyper": make_weights,
    "adapter": adapt_features,
}
