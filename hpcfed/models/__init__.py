"""The registry of models: which there are, and how one is built.

Every model is a body, images to representation [n, *shape] -> [n, d], and a linear head, [n, d] -> [n, C]
(`hpcfed.models.model`). One family a file; a file is imported only when one of its models is built, so that
names and shapes are checked without loading torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcfed import registry
from hpcfed.errors import ConfigError

if TYPE_CHECKING:
    from hpcfed.models.model import Model, Pair


@dataclass(frozen=True)
class Entry(registry.Entry):
    """One model: its target is called as function(shape, d) and returns the body.

    least: smallest height and width of an image, in pixels; None takes inputs of any shape.
    """

    least: int | None = None

    def takes(self, shape: tuple[int, ...]) -> bool:
        return self.least is None or (len(shape) == 3 and min(shape[1:]) >= self.least)


def _henn(i: int, line: str, least: int) -> Entry:
    return Entry(f"hpcfed.models.fedhenn:fedhenn_{i}", line, "makhija2022", least)


MODELS: dict[str, Entry] = {
    "resnet18": Entry("hpcfed.models.resnet:resnet18", "ResNet-18, ImageNet stem", "he2016", 1),
    "shufflenetv2": Entry("hpcfed.models.shufflenet:shufflenetv2", "ShuffleNetV2 x1.0", "ma2018", 1),
    "googlenet": Entry("hpcfed.models.googlenet:googlenet", "GoogLeNet, no side heads", "szegedy2015", 15),
    "alexnet": Entry("hpcfed.models.alexnet:alexnet", "FedClassAvg's AlexNet", "jang2022,krizhevsky2012", 1),
    "cnn": Entry("hpcfed.models.cnn:cnn", "the FedAvg paper's CNN, 2 conv + 2 FC", "mcmahan2017", 4),
    "fedhenn-1": _henn(1, "FedHeNN's simplest CNN, 1 conv + 1 FC", 2),
    "fedhenn-2": _henn(2, "FedHeNN's CNN with 1 conv + 2 FC", 2),
    "fedhenn-3": _henn(3, "FedHeNN's CNN with 2 conv + 2 FC", 4),
    "fedhenn-4": _henn(4, "FedHeNN's homogeneous CNN, 2 conv + 3 FC", 4),
    "fedhenn-5": _henn(5, "FedHeNN's largest CNN, 3 conv + 3 FC", 8),
    "mlp": Entry("hpcfed.models.mlp:mlp", "one hidden layer of 200 units", "mcmahan2017"),
    "logistic": Entry("hpcfed.models.mlp:logistic", "logistic regression; d is the input size", "li2020"),
}


def check(name: str, shape: tuple[int, ...]) -> None:
    """Whether the models of this name take inputs of this shape; loads nothing.

    name: as in `build`.  shape: one example, [channels, height, width] for images.
    Raises ConfigError if there is no model of that name, or it cannot take the shape.
    """
    for part in name.split("+"):
        base = part.partition("@")[0]
        entry = registry.find("model", base, MODELS)
        if not entry.takes(shape):
            others = ", ".join(other for other in MODELS if MODELS[other].takes(shape))
            raise ConfigError(
                f"model {base} takes images [channels, height, width] of at least {entry.least}x{entry.least} "
                f"pixels, not inputs of shape {list(shape)}; use one of: {others}"
            )


def build(
    name: str, shape: tuple[int, ...], classes: int, d: int = 512, relu_head: bool = False
) -> Model | Pair:
    """A new model, in train mode, on torch's default device.

    name: one of MODELS; with "@0.5" its sub-model of half the width; "a+b": the pair of the models a and b.
    shape: one example, [channels, height, width] for images.  classes: C.  d: width of the representation;
    logistic regression alone has no layer that could set it, its d is the input size.
    relu_head: a ReLU between representation and head, as in FedClassAvg's code.
    The weights are drawn from torch's global generator and nothing else: wrap the call in
    `rng.scoped(seed, "init", k)`.
    Raises ConfigError for an unknown name or a shape that the model cannot take.
    """
    from hpcfed.models.model import Head, Model, Pair

    check(name, shape)
    own, plus, proxy = name.partition("+")
    if plus:
        return Pair(build(own, shape, classes, d, relu_head), build(proxy, shape, classes, d, relu_head))
    base, at, width = name.partition("@")
    body = MODELS[base].load()(shape, d)
    model = Model(body, Head(math.prod(shape) if base == "logistic" else d, classes, relu_head))
    if at:
        from hpcfed.models.widths import narrow

        return narrow(model, shape, float(width))
    return model
