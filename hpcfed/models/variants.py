"""Variants of an architecture: the changes that a method or a mix makes to clients' networks.

A variant is part of an architecture's name (`hpcfed.core.architecture`): "cnn~pan_add_1.0_0.15" is
cnn with position encodings. So all code that builds a network by its name (clients, server, saved
models) has it. Of several, each changes what those before it have made. What one method alone needs
stands beside that method, and is loaded by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hpcfed.core.architecture import Variant
from hpcfed.core.registry import Entry
from hpcfed.models.hooks import PureHook
from hpcfed.models.model import Head, Model, Pair

PROJECTION = "projection"  # name in the body of the layer that `project` adds


def name_variant(name: str, *options: object) -> str:
    """Return the suffix for an architecture's name: "~name_option_option"."""
    return str(Variant(name, tuple(map(str, options))))


def change(model: Model, variants: Iterable[Variant]) -> Model:
    """Return the model changed as the variants say, the first one first.

    New weights are drawn from torch's global generator. Raises ConfigError if the model cannot be
    changed in this way.
    """
    for variant in variants:
        entry = VARIANTS[variant.name]
        if entry.of_pair:
            continue
        options = (read(text) for read, text in zip(entry.options, variant.options, strict=True))
        model = entry.load()(model, *options)
    return model


def change_pair(pair: Pair, variants: Iterable[Variant]) -> Pair:
    """Return the pair after the changes of its client's own model that need the proxy too."""
    for variant in variants:
        entry = VARIANTS[variant.name]
        pair = entry.load()(pair) if entry.of_pair else pair
    return pair


def project(model: Model, d: int) -> Model:
    """Add a linear layer to d values behind the body, "body.projection", and return the model.

    Its head is a new one, [C, d]. Models of several widths so get a common head.
    """
    head = model.head
    model.body.add_module(PROJECTION, nn.Linear(head.in_features, d))
    if not isinstance(model.body, nn.Sequential):  # whose forward has it already
        model.body.register_forward_hook(Projected())
    model.head = Head(d, head.out_features, head.relu)
    return model


@dataclass(frozen=True)
class Projected(PureHook):
    """A hook that projects what a body returns."""

    def __call__(self, body: Any, inputs: Any, out: Tensor) -> Tensor:
        return body.projection(out)


@dataclass(frozen=True)
class Change(Entry):
    """One variant: its target takes the model and the options, and returns the changed model.

    options: their types.
    of_pair: the target takes the pair of the model and its proxy instead, without options.
    """

    options: tuple[Callable[[str], Any], ...] = ()
    of_pair: bool = False


VARIANTS = {
    "project": Change(
        "hpcfed.models.variants:project", "a linear layer to d values", options=(int,)
    ),
    "groupnorm": Change(
        "hpcfed.models.layers:use_group_norm", "group normalisation in the place of batch's"
    ),
    "pan": Change(
        "hpcfed.algorithms.global_model.fedpan:encode_positions",
        "FedPAN's position encodings",
        options=(str, float, float),
    ),
    "transfer": Change(
        "hpcfed.algorithms.public_data.fedktl:add_transfer",
        "FedKTL's layer to latent vectors",
        options=(int,),
    ),
    "predictor": Change(
        "hpcfed.algorithms.public_data.heterossfl:add_predictor", "a predictor beside body and head"
    ),
    "groups": Change(
        "hpcfed.algorithms.global_model.groups:divide", "Fed2's groups", options=(int, int)
    ),
    "factors": Change(
        "hpcfed.algorithms.personal.factors:factorise",
        "WAFFLe's factorised weights",
        options=(int, float, float, "True".__eq__),
    ),
    "hyper": Change(
        "hpcfed.algorithms.proxies.hyper:generate", "a graph hyper-network", options=(int, int)
    ),
    "fuse": Change(
        "hpcfed.algorithms.proxies.fedmrl:fuse",
        "FedMRL's projector of both representations",
        of_pair=True,
    ),
    "heads": Change(
        "hpcfed.algorithms.personal.fedrod:add_head", "FedRoD's second head of each client"
    ),
    "holds": Change(
        "hpcfed.algorithms.widths.fiarse:hold", "FIARSE's share of the weights", options=(float,)
    ),
    "exits": Change("hpcfed.models.exits:add_exits", "exits behind inner blocks", options=(int,)),
    "mixture": Change(
        "hpcfed.algorithms.personal.apfl:add_model",
        "APFL's second model of each client",
        options=(float, str),
    ),
    "policy": Change(
        "hpcfed.algorithms.personal.fedcp:add_policy",
        "FedCP's second head of each client, and its policy",
        options=(float,),
    ),
    "valve": Change(
        "hpcfed.algorithms.personal.gpfl:add_valve",
        "GPFL's embeddings of classes, and their valve",
    ),
    "adapter": Change("hpcfed.models.clip:attend", "FedCLIP's adapter"),
}
