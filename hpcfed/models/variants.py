"""Variants of an architecture: the changes that a method or a mix makes to clients' networks.

The name of a variant follows "~" in the architecture's name: "cnn~pan_add_1.0_0.15" is cnn with
position encodings. Options follow the variant's name after underscores. A variant is part of the
network, so all code that builds a network by its name (clients, server, saved models) has it. Of
several, "timm:resnet18~project_512~predictor", each changes what those before it have made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hpcfed.models.model import Head, Model

LAYERS = (nn.Conv2d, nn.Linear)
PROJECTION = "projection"  # name in the body of the layer that `project` adds
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def name_variant(name: str, *options: object) -> str:
    """Return the suffix for an architecture's name: "~name_option_option"."""
    return "~" + "_".join([name, *map(str, options)])


def change(model: Model, variant: str, shape: tuple[int, ...]) -> Model:
    """Return the model changed as the variant says.

    variant: as `name_variant` without the first "~".  shape: one example.
    New weights are drawn from torch's global generator. Raises ConfigError if the model cannot be
    changed in this way.
    """
    for part in variant.split("~"):
        name, *options = part.split("_")
        model = VARIANTS[name](model, *options)
    return model


def project(model: Model, d: str) -> Model:
    """Add a linear layer to d values behind the body, "body.projection", and return the model.

    Its head is a new one, [C, d]. Models of several widths so get a common head.
    """
    head = model.head
    model.body.add_module(PROJECTION, nn.Linear(head.in_features, int(d)))
    if not isinstance(model.body, nn.Sequential):  # whose forward has it already
        model.body.register_forward_hook(lambda body, given, out: body.projection(out))
    model.head = Head(int(d), head.out_features, head.relu)
    return model


def encode_positions(model: Model, kind: str, frequency: str, amplitude: str) -> Model:
    """Add FedPAN's position encodings to the units of the body, and return the model.

    After each convolution and linear layer of the body, or the normalisation that follows it, h
    becomes h + e or h (1 + e); e_j = A sin(2 pi T j / n) for unit j of n.
    kind: add or mul.  frequency: T.  amplitude: A.  Li et al., CVPR 2022, section 4.
    """
    modules = [m for m in model.body.modules() if not list(m.children())]
    for layer, following in zip(modules, [*modules[1:], None], strict=True):
        if isinstance(layer, LAYERS):
            encoded = following if isinstance(following, NORMS) else layer
            encoded.register_forward_hook(encoding_hook(kind, float(frequency), float(amplitude)))
    return model


def encoding_hook(kind: str, frequency: float, amplitude: float) -> Callable[..., Tensor]:
    """Return a hook that encodes the positions of a layer's units (dimension 1 of its output)."""

    def encode(layer: Any, given: Any, out: Tensor) -> Tensor:
        e = encode_units(out.shape[1], frequency, amplitude, out.device)
        e = e.to(out.dtype).view(-1, *[1] * (out.dim() - 2))
        return out + e if kind == "add" else out * (1 + e)

    return encode


def encode_units(
    n: int, frequency: float, amplitude: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Return A sin(2 pi T j / n) for j = 0..n-1, float64, [n].

    frequency: T.  amplitude: A.
    """
    places = torch.arange(n, dtype=torch.float64, device=device)
    return amplitude * torch.sin(2 * math.pi * frequency / n * places)


def add_predictor(model: Model) -> Model:
    """Add a predictor beside body and head, [n, d] -> [n, d], and return the model.

    Only losses use it. It has two linear layers, the hidden one with d / 4 units.
    Chen and He (SimSiam), CVPR 2021, arXiv:2011.10566, section 3.
    """
    d = model.head.in_features
    hidden = max(1, d // 4)
    model.predictor = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, d))
    return model


def divide_groups(model: Model, groups: str, depth: str) -> Model:
    """Divide the model into Fed2's groups; see `hpcfed.models.groups`."""
    from hpcfed.models.groups import divide

    return divide(model, int(groups), int(depth))


def factorise_weights(
    model: Model, number: str, alpha: str, temperature: str, personal: str
) -> Model:
    """Factorise the weights as WAFFLe does; see `hpcfed.models.factors`."""
    from hpcfed.models.factors import How, factorise

    how = How(int(number), float(alpha), float(temperature), personal == "True")
    return factorise(model, how)


def make_weights(model: Model, hidden: str, rounds: str) -> Model:
    """Replace the weights by a graph hyper-network; see `hpcfed.models.hyper`."""
    from hpcfed.models.hyper import generate

    return generate(model, int(hidden), int(rounds))


def adapt_features(model: Model) -> Model:
    """Add FedCLIP's adapter; see `hpcfed.models.clip`."""
    from hpcfed.models.clip import attend

    return attend(model)


VARIANTS: dict[str, Callable[..., Model]] = {
    "project": project,
    "pan": encode_positions,
    "predictor": add_predictor,
    "groups": divide_groups,
    "factors": factorise_weights,
    "hyper": make_weights,
    "adapter": adapt_features,
}
