"""The registry of models: which there are, and how one is built.

Every model is a body, images or texts to representation [n, *shape] -> [n, d], and a linear head,
[n, d] -> [n, C] (`hpcfed.models.model`). One family a file; a file is imported only when one of its
models is built, so that names and shapes are checked without loading torch.

A model of your own needs no line here: `models.mix = ["mine:tiny"]` is function tiny(shape, d) of
mine.py, in the folder where you start or anywhere on Python's path; it returns the body, or a whole
model that ends in a linear layer (`hpcfed.models.whole`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcfed import own, registry
from hpcfed.errors import ConfigError

if TYPE_CHECKING:
    from hpcfed.models.model import Model, Pair


@dataclass(frozen=True)
class Entry(registry.Entry):
    """One model: its target is called as function(shape, d) and returns the body.

    least: smallest height and width of an image, in pixels; None takes inputs of any shape.
    text: it takes tokens, [L], and nothing else; the target is called as function(shape, d,
    vocabulary).
    stem: its body is a row of layers of which the first run apart (`hpcfed.models.model.stem`).
    """

    least: int | None = None
    text: bool = False
    stem: bool = False

    def takes(self, shape: tuple[int, ...], vocabulary: int = 0) -> bool:
        if self.text or vocabulary:
            return self.text and vocabulary > 0 and len(shape) == 1
        return self.least is None or (len(shape) == 3 and min(shape[1:]) >= self.least)


def _henn(i: int, line: str, least: int) -> Entry:
    return Entry(f"hpcfed.models.fedhenn:fedhenn_{i}", line, "makhija2022", least, stem=True)


def _gkt(name: str, line: str) -> Entry:
    return Entry(f"hpcfed.models.gkt:{name}", line, "he2020,he2016", 1, stem=name == "resnet8")


MODELS: dict[str, Entry] = {
    "resnet18": Entry("hpcfed.models.resnet:resnet18", "ResNet-18, ImageNet stem", "he2016", 1),
    "shufflenetv2": Entry(
        "hpcfed.models.shufflenet:shufflenetv2", "ShuffleNetV2 x1.0", "ma2018", 1
    ),
    "googlenet": Entry(
        "hpcfed.models.googlenet:googlenet", "GoogLeNet, no side heads", "szegedy2015", 15
    ),
    "alexnet": Entry(
        "hpcfed.models.alexnet:alexnet", "FedClassAvg's AlexNet", "jang2022,krizhevsky2012", 1
    ),
    "cnn": Entry(
        "hpcfed.models.cnn:cnn",
        "the FedAvg paper's CNN, 2 conv + 2 FC",
        "mcmahan2017",
        4,
        stem=True,
    ),
    "fedhenn-1": _henn(1, "FedHeNN's simplest CNN, 1 conv + 1 FC", 2),
    "fedhenn-2": _henn(2, "FedHeNN's CNN with 1 conv + 2 FC", 2),
    "fedhenn-3": _henn(3, "FedHeNN's CNN with 2 conv + 2 FC", 4),
    "fedhenn-4": _henn(4, "FedHeNN's homogeneous CNN, 2 conv + 3 FC", 4),
    "fedhenn-5": _henn(5, "FedHeNN's largest CNN, 3 conv + 3 FC", 8),
    "mlp": Entry(
        "hpcfed.models.mlp:mlp", "one hidden layer of 200 units", "mcmahan2017", stem=True
    ),
    "logistic": Entry(
        "hpcfed.models.mlp:logistic", "logistic regression; d is the input size", "li2020"
    ),
    "resnet8": _gkt("resnet8", "FedGKT's small client, 16 maps and 2 bottleneck blocks"),
    "resnet20-server": _gkt("resnet20_server", "what follows the first maps in ResNet-20"),
    "resnet56-server": _gkt("resnet56_server", "what follows the first maps in ResNet-56"),
    "lstm-1": Entry(
        "hpcfed.models.lstm:lstm_1",
        "FedHeNN's model for text, 1 LSTM + 2 FC",
        "makhija2022",
        text=True,
    ),
    "lstm-2": Entry(
        "hpcfed.models.lstm:lstm_2",
        "FedHeNN's model for text, 2 LSTM + 2 FC",
        "makhija2022",
        text=True,
    ),
}


def find(name: str) -> Entry:
    """The model of this name: a registered one, or "module:function", which takes inputs of any
    shape but no texts.

    ConfigError if there is none.
    """
    if ":" not in name:
        return registry.find("model", name, MODELS)
    own.load("models.mix", name, "module:function")
    return Entry(name, "a model of your own")


def represents(name: str, shape: tuple[int, ...], classes: int, d: int) -> int:
    """The width of the representation that a model makes; draws nothing that counts.

    Raises ConfigError as `build`.
    """
    import torch

    if ":" not in name:
        return math.prod(shape) if name == "logistic" else d
    with torch.device("meta"):
        return build(name, shape, classes, d).head.in_features


def check(name: str, shape: tuple[int, ...], vocabulary: int = 0) -> None:
    """Whether the models of this name take inputs of this shape; loads nothing.

    name: as in `build`.  shape: one example, [channels, height, width] for images.  vocabulary: how
    many different tokens texts have; 0 for images.
    Raises ConfigError if there is no model of that name, or it cannot take the shape.
    """
    for part in name.split("+"):
        base, at, _ = part.partition("@")
        entry = find(base)
        if at and entry.text:
            raise ConfigError(
                f"model {base} has no sub-models, for its gates are not cut; set models.widths = "
                f"[1]"
            )
        if not entry.takes(shape, vocabulary):
            others = ", ".join(other for other in MODELS if MODELS[other].takes(shape, vocabulary))
            least = f" [channels, height, width] of at least {entry.least}x{entry.least} pixels"
            wants = "texts" if entry.text else f"images{least if entry.least else ''}"
            given = "texts" if vocabulary else "inputs"
            raise ConfigError(
                f"model {base} takes {wants}, not {given} of shape {list(shape)}; use one of: "
                f"{others}"
            )


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    d: int = 512,
    relu_head: bool = False,
    vocabulary: int = 0,
) -> Model | Pair:
    """A new model, in train mode, on torch's default device.

    name: one of MODELS, or "module:function" or "module:Class"; with "@0.5" its sub-model of half
    the width; "a+b": the pair of the models a and b.
    shape: one example, [channels, height, width] for images.  classes: C.  d: width of the
    representation; logistic regression and a user's whole model have no layer that could set it,
    their d is the width of what the head reads.
    relu_head: a ReLU between representation and head, as in FedClassAvg's code.  vocabulary: how
    many different tokens texts have; 0 for images.
    The weights are drawn from torch's global generator and nothing else: wrap the call in
    `rng.scoped(seed, "init", k)`.
    Raises ConfigError for an unknown name or a shape that the model cannot take.
    """
    from hpcfed.models.model import Head, Model, Pair

    check(name, shape, vocabulary)
    first, plus, proxy = name.partition("+")
    if plus:
        return Pair(
            *(build(part, shape, classes, d, relu_head, vocabulary) for part in (first, proxy))
        )
    base, at, width = name.partition("@")
    target = find(base).load()
    if ":" in base:
        model = build_own(base, target, shape, classes, d, relu_head)
    else:
        body = target(shape, d, *([vocabulary] if vocabulary else []))
        model = Model(body, Head(math.prod(shape) if base == "logistic" else d, classes, relu_head))
    if at:
        from hpcfed.models.widths import narrow

        model = narrow(model, shape, float(width))
    return model.to(memory_format=model.memory_format)


def build_own(
    name: str, target: Any, shape: tuple[int, ...], classes: int, d: int, relu_head: bool
) -> Model:
    """A user's model. Where it is whole, its last linear layer is the head, as wide as it is."""
    import torch

    from hpcfed.models.model import Head, Model
    from hpcfed.models.whole import head_of, make, split

    body, linear = split(name, make(name, target, shape, classes, d), shape, classes, d)
    if linear is None:
        return Model(body, Head(d, classes, relu_head))
    model = Model(body, head_of(linear, classes, relu_head))
    model.memory_format = torch.contiguous_format
    return model
