"""The registry of models, and which inputs each takes: a job names them, so it stands here. One
family a file in `hpcfed.models`, imported only when one of its models is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcfed.core import own, registry
from hpcfed.core.errors import ConfigError


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


class OwnEntry(Entry):
    """A model of a user's own."""

    def load(self) -> Any:
        return own.load("models.mix", self.target, "module:function")


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
    return OwnEntry(name, "a model of your own")


def plain(name: str) -> str:
    """The name of a model without what a method changes of it: "cnn" of "cnn~pan_add_1_0.15"."""
    return name.partition("~")[0]


def check(name: str, shape: tuple[int, ...], vocabulary: int = 0) -> None:
    """Whether the models of this name take inputs of this shape; loads nothing.

    name: as in `build`.  shape: one example, [channels, height, width] for images.  vocabulary: how
    many different tokens texts have; 0 for images.
    Raises ConfigError if there is no model of that name, or it cannot take the shape.
    """
    for part in name.split("+"):
        base, at, _ = plain(part).partition("@")
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
