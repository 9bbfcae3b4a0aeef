"""The name of a client's network in its parts.

    cnn                            a model that jobs name
    concat(audio=gru)[audio&video] a fusion: the encoder of audio, and the modalities that it has
    cnn~pan_add_1.0_0.15           the model with a change that a method or a mix makes to it
    cnn@0.5                        its sub-model of half the width
    cnn+mlp                        the pair of a client's own model and its proxy

All parts may stand together, in this order. Results, checkpoints and random streams use the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from hpcfed.core.errors import ConfigError

MARKS = "~@+"  # after a model: a change, a width, a proxy
FUSION = re.compile(r"([^()\[\]]+)(?:\(([^()\[\]]*)\))?(?:\[([^()\[\]]*)\])?")


class Variant(NamedTuple):
    """A change of a model, by name (`hpcfed.models.variants`), with its options."""

    name: str
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        # of 1e+20 without the plus, which stands before a proxy
        return "~" + "_".join((self.name, *self.options)).replace("e+", "e")


@dataclass(frozen=True)
class Architecture:
    """One network.

    base: a registered model, or one of another package, of a folder or of the user ("timm:NAME").
    encoders: of a fusion, pairs of a modality and its encoder; other modalities have the default.
    modalities: those that a fusion has encoders for; (): all of the data.
    variants: changes of the model, the first one first.
    width: share of each layer's units.
    proxy: the second model of a pair.
    """

    base: str
    encoders: tuple[tuple[str, str], ...] = ()
    modalities: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    width: float = 1.0
    proxy: Architecture | None = None

    @staticmethod
    @cache
    def parse(text: str) -> Architecture:
        """Return the parts of a name. Raises ConfigError for text that is no such name."""
        main, _, proxy = text.partition("+")
        changed, _, width = main.partition("@")
        model, *variants = changed.split("~")
        return Architecture(
            *parse_model(model),
            tuple(Variant(name, tuple(options)) for name, *options in map(split, variants)),
            parse_width(text, width) if width else 1.0,
            Architecture.parse(proxy) if proxy else None,
        )

    def __str__(self) -> str:
        pairs = ";".join(f"{modality}={encoder}" for modality, encoder in self.encoders)
        encoders = f"({pairs})" if pairs else ""
        modalities = f"[{'&'.join(self.modalities)}]" if self.modalities else ""
        width = f"@{self.width!r}" if self.width < 1 else ""
        proxy = f"+{self.proxy}" if self.proxy else ""
        return self.base + encoders + modalities + "".join(map(str, self.variants)) + width + proxy

    @property
    def own(self) -> Architecture:
        """The client's own model of a pair, or the model itself."""
        return replace(self, proxy=None)

    @property
    def parts(self) -> tuple[Architecture, ...]:
        """The one or two models that it consists of."""
        return (self.own, self.proxy) if self.proxy else (self,)

    @property
    def full(self) -> Architecture:
        """The client's own model at full width."""
        return replace(self, width=1.0, proxy=None)

    @property
    def model(self) -> Architecture:
        """The client's own model at full width, without changes."""
        return replace(self, variants=(), width=1.0, proxy=None)

    def at(self, width: float) -> Architecture:
        """Return the client's own model at this width."""
        return replace(self, width=width, proxy=None)

    def only(self, modalities: tuple[str, ...]) -> Architecture:
        """Return the same with encoders of these modalities alone; (): of all."""
        return replace(self, modalities=modalities)


def parse_model(text: str) -> tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return base, encoders and modalities of a model. A base with ":" has no others."""
    if ":" in text.partition("(")[0]:
        return text, (), ()
    match = FUSION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"model {text!r}: write it as concat, or concat(MODALITY=ENCODER;MODALITY=ENCODER)"
        )
    base, pairs, modalities = match.groups()
    split = [pair.partition("=") for pair in (pairs or "").split(";") if pair]
    encoders = tuple((modality.strip(), encoder.strip()) for modality, _, encoder in split)
    return base, encoders, tuple(filter(None, (modalities or "").split("&")))


def split(variant: str) -> list[str]:
    """Return the name of a variant and its options."""
    return variant.split("_")


def parse_width(text: str, width: str) -> float:
    try:
        return float(width)
    except ValueError:
        raise ConfigError(f"model {text}: {width!r} is not a width; write it as cnn@0.5") from None
