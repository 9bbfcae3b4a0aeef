"""Registry of the models, with the inputs that each takes.

It is in `config` because jobs name models. Each family has one file in `hpcfed.models`, which is
imported only when one of its models is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcfed.core import registry, user_code
from hpcfed.core.architecture import MARKS, Architecture
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.shapes import Modality, Shapes, describe_shape


@dataclass(frozen=True)
class Entry(registry.Entry):
    """One model: its target is called as function(shape, d) and returns the body.

    least: smallest height and width of an image, in pixels; None takes inputs of any shape.
    text: it takes tokens, [L], and nothing else; the target is called as function(shape, d,
    vocabulary).
    table: it takes rows of numbers, [F], and nothing else.
    stem: its body is a sequence of layers whose first ones can run apart
    (`hpcfed.models.model.stem`).
    family: common name of the models that differ only in their number of equal blocks.
    dual: a dual encoder, whose head is made of the names of the classes (`hpcfed.models.clip`).
    modal: it takes several modalities, and nothing else; the target is called as function(shapes,
    d, kinds), with the `Shapes` of the modalities that it has encoders for, and the encoder of each
    by name.
    """

    least: int | None = None
    text: bool = False
    table: bool = False
    stem: bool = False
    modal: bool = False
    family: str = ""
    dual: bool = False

    def takes(self, shape: tuple[int, ...], vocabulary: int = 0) -> bool:
        if self.modal or isinstance(shape, Shapes):
            return (self.modal or self.own) and isinstance(shape, Shapes)
        if self.text or vocabulary:
            return self.text and vocabulary > 0 and len(shape) == 1
        if self.table:
            return len(shape) == 1
        return self.least is None or (len(shape) == 3 and min(shape[1:]) >= self.least)

    @property
    def own(self) -> bool:
        """Whether it is a user's own model, whose inputs are not known."""
        return not self.target.startswith("hpcfed.")


class Encoder(NamedTuple):
    """The inputs that an encoder of one modality takes.

    line: what it is, for lists.  dimensions: numbers of dimensions of shapes that it takes.
    tokens: whether it takes tokens.  least: smallest size of the last dimension.
    """

    line: str
    dimensions: tuple[int, ...]
    tokens: bool = False
    least: int = 1

    def takes(self, modality: Modality) -> bool:
        if modality.vocabulary:
            return self.tokens and modality.shape[-1] >= self.least
        return len(modality.shape) in self.dimensions and modality.shape[-1] >= self.least


ENCODERS = {  # in `hpcfed.models.encoders`; a modality's default is the first that takes it
    "conv1d-gru": Encoder("FedMultimodal's 1-D CNN, then a GRU", (2,), least=8),
    "gru": Encoder("a GRU, over vectors of tokens where it gets those", (2,), tokens=True),
    "conv1d": Encoder("FedMultimodal's 1-D CNN", (2,), tokens=True, least=8),
    "conv2d": Encoder("2 convolutions and a linear layer", (3,), least=4),
    "mlp": Encoder("2 linear layers", (1, 2, 3)),
}


def modalities_of(architecture: Architecture, shapes: Shapes) -> Shapes:
    """Return the modalities that a fusion has encoders for."""
    return shapes.only(architecture.modalities) if architecture.modalities else shapes


def encoders_of(architecture: Architecture, shapes: Shapes) -> dict[str, str]:
    """Return the encoder of each modality of a fusion, by name.

    Raises ConfigError for an encoder that does not exist or cannot take its modality, and for a
    modality that the data lack.
    """
    named = dict(architecture.encoders)
    for name in (*named, *architecture.modalities):
        if name not in shapes.names:
            raise ConfigError(
                f"model {architecture.base}: there is no modality {name!r}; the data have {shapes}"
            )
    parts = modalities_of(architecture, shapes)
    return {part.name: encoder_of(architecture.base, part, named.get(part.name)) for part in parts}


def encoder_of(fusion: str, part: Modality, wanted: str | None) -> str:
    """Return the encoder of a modality: the wanted one, or the first that takes it."""
    fit = [name for name, encoder in ENCODERS.items() if encoder.takes(part)]
    wanted = wanted or next(iter(fit), "")
    if wanted not in fit:
        what = f"{'tokens' if part.vocabulary else 'inputs'} of shape {list(part.shape)}"
        raise ConfigError(
            f"model {fusion}: no encoder {wanted} for {part.name}, {what}; "
            + (f"use one of: {', '.join(fit)}" if fit else "none takes them")
        )
    return wanted


def _fusion(name: str, line: str, cite: str) -> Entry:
    return Entry(f"hpcfed.models.fusion:{name}", line, cite, modal=True)


class OwnEntry(Entry):
    """A model of a user's own."""

    def load(self) -> Any:
        return user_code.load("models.mix", self.target, "module:function")


@dataclass(frozen=True)
class LibraryEntry(Entry):
    """The model `name` of torchvision or timm, or an encoder for texts of transformers.

    A model of torchvision or timm is called as function(shape, num_classes).
    """

    name: str = ""

    def load(self) -> Any:
        return super().load()(self.name)


def _henn(i: int, line: str, least: int) -> Entry:
    return Entry(f"hpcfed.models.fedhenn:fedhenn_{i}", line, "makhija2022", least, stem=True)


def _transformer(name: str, line: str) -> Entry:
    return Entry(f"hpcfed.models.transformer:{name}", line, "vaswani2017", text=True)


def _gkt(name: str, line: str) -> Entry:
    return Entry(f"hpcfed.models.gkt:{name}", line, "he2020,he2016", 1, stem=name == "resnet8")


def _residual(family: str, blocks: int, line: str, least: int | None) -> Entry:
    target = f"hpcfed.models.residual:{family}_{blocks}"
    return Entry(target, line.format(blocks), "he2016", least, family=family)


def _depths(family: str, line: str, least: int | None = None) -> dict[str, Entry]:
    """Return the models of one family, in several depths."""
    return {f"{family}-{n}": _residual(family, n, line, least) for n in (2, 4, 8)}


MODELS: dict[str, Entry] = {
    "resnet18": Entry(
        "hpcfed.models.torchvision_nets:resnet18", "ResNet-18, ImageNet stem", "he2016", 1
    ),
    "shufflenetv2": Entry(
        "hpcfed.models.torchvision_nets:shufflenetv2", "ShuffleNetV2 x1.0", "ma2018", 1
    ),
    "googlenet": Entry(
        "hpcfed.models.torchvision_nets:googlenet", "GoogLeNet, no side heads", "szegedy2015", 15
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
    **_depths("resmlp", "residual network of {} blocks of 2 FC, for any inputs"),
    **_depths("rescnn", "residual network of {} blocks of 2 conv", 1),
    "logistic": Entry(
        "hpcfed.models.mlp:logistic", "logistic regression; d is the input size", "li2020"
    ),
    "resnet8": _gkt("resnet8", "FedGKT's small client, 16 maps and 2 bottleneck blocks"),
    "resnet20-server": _gkt("resnet20_server", "what follows the first maps in ResNet-20"),
    "resnet56-server": _gkt("resnet56_server", "what follows the first maps in ResNet-56"),
    "clip-tiny": Entry(
        "hpcfed.models.clip:TinyDualEncoder",
        "random dual encoder, for FedCLIP",
        "radford2021",
        1,
        dual=True,
    ),
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
    "lstm-char": Entry(
        "hpcfed.models.lstm:CharLstm",
        "LEAF's model for characters, 2 LSTM of d units",
        "caldas2018leaf",
        text=True,
    ),
    "transformer-1": _transformer("text_1", "a transformer for text, 1 layer + 1 FC"),
    "transformer-2": _transformer("text_2", "a transformer for text, 2 layers + 1 FC"),
    "transformer-4": _transformer("text_4", "a transformer for text, 4 layers + 1 FC"),
    "transformer-char": _transformer("char", "a transformer for the next character, 2 layers"),
    "ft-transformer": Entry(
        "hpcfed.models.transformer:TableTransformer",
        "a transformer for tables, a token a column, 3 layers",
        "gorishniy2021",
        table=True,
    ),
    "concat": _fusion("concat", "an encoder for each modality, features side by side", "feng2023"),
    "gated": _fusion("gated", "concat, whose representation gates itself", "wang2022"),
    "mean": _fusion("mean", "an encoder for each modality, mean of features", "ouyang2023"),
    "attention": _fusion(
        "attention", "an encoder for each modality, attention over all steps", "feng2023"
    ),
}


def find(name: str) -> Entry:
    """Return the model that a job names.

    The name is a registered one, for fusions with encoders, "torchvision:NAME", "timm:NAME",
    "hf:NAME", "clip:FOLDER", or "module:function", which takes inputs of any shape but no texts.
    Raises ConfigError if there is none.
    """
    if ":" not in name:
        return find_registered(name)
    if name.startswith("clip:"):
        if any(mark in name for mark in MARKS):
            raise ConfigError(
                f"models.mix: {name}: folders with @, + or ~ in their names cannot be told from "
                f"parts of a model's name; rename the folder"
            )
        line = "a dual encoder in a folder"
        return LibraryEntry("hpcfed.models.clip:of_folder", line, least=1, dual=True, name=name)
    if name.partition(":")[0] in registry.LIBRARIES:
        line = "a model of another package"
        if name.startswith("hf:"):
            return LibraryEntry("hpcfed.models.huggingface:maker", line, text=True, name=name)
        return LibraryEntry("hpcfed.models.library:maker", line, least=1, name=name)
    user_code.load("models.mix", name, "module:function")
    return OwnEntry(name, "a model of your own")


def find_registered(name: str) -> Entry:
    """Return a registered model; name: its own, for a fusion also with encoders."""
    architecture = Architecture.parse(name)
    base = architecture.base
    entry = registry.find("model", base, MODELS)
    if architecture.model != architecture:
        raise ConfigError(
            f"model {name}: name the model alone, {base}; its width is set by models.widths, the "
            f"second model of a pair by models.proxy"
        )
    if name != base and not entry.modal:
        raise ConfigError(
            f"model {name}: {base} has no encoders of modalities; take its name alone"
        )
    for _, encoder in architecture.encoders:
        if encoder not in ENCODERS:
            raise ConfigError(f"model {name}: {unknown('encoder', encoder, ENCODERS)}")
    return entry


def check(name: str, shape: tuple[int, ...], vocabulary: int = 0) -> None:
    """Check that the models of an architecture take inputs of this shape; load nothing.

    shape: one example, [channels, height, width] for images.  vocabulary: number of different
    tokens of texts; 0 for images.
    Raises ConfigError if there is no such model, or it cannot take the shape.
    """
    for part in Architecture.parse(name).parts:
        base = part.base
        entry = find(str(part.model))
        if part.width < 1 and (entry.text or entry.modal or entry.dual or entry.table):
            why = "its gates are not cut" if entry.text else "its encoders are not cut"
            why = "its heads are not cut" if "transformer" in base else why
            raise ConfigError(f"model {base} has no sub-models, for {why}; set models.widths = [1]")
        if entry.modal and isinstance(shape, Shapes):
            encoders_of(part, shape)
        if not entry.takes(shape, vocabulary):
            others = ", ".join(other for other in MODELS if MODELS[other].takes(shape, vocabulary))
            least = f" [channels, height, width] of at least {entry.least}x{entry.least} pixels"
            wants = "rows of numbers" if entry.table else "texts"
            wants = wants if entry.table or entry.text else f"images{least if entry.least else ''}"
            if entry.modal:
                wants = "data with several modalities"
            inputs = f"{'texts' if vocabulary else 'inputs'} of shape {describe_shape(shape)}"
            if isinstance(shape, Shapes):
                wants, inputs = "inputs of one kind", f"several modalities ({shape})"
            raise ConfigError(f"model {base} takes {wants}, not {inputs}; use one of: {others}")
