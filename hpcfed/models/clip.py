"""Dual encoders, which represent images and texts in one space.

There is a tiny one with random weights, and CLIP from a folder written by Hugging Face's
transformers. Radford et al. (CLIP), ICML 2021, arXiv:2103.00020, section 2.

The head of such a model is made of texts. Row c of its weights is exp(s) times the normalised
representation of "a picture of a NAME", where NAME is the name of class c; its bias is 0. So logits
are exp(s) times the cosines of image and text. The text encoder is not needed after that and is no
part of the model. Nothing is ever downloaded.
Deviations: images are resized bilinearly to the size for which a checkpoint was made, grey ones get
three equal channels, and all are normalised by the mean and standard deviation of the data set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.core.compat import prepare_torchvision
from hpcfed.core.errors import ConfigError
from hpcfed.core.optional_imports import import_extra
from hpcfed.models.hooks import PureHook
from hpcfed.models.model import Head, Model

PROMPT = "a picture of a {}"  # as in the public code of FedCLIP
SCALE = 1 / 0.07  # exp(s) at the start of training, Radford et al., section 2.5
BYTES, UNITS = 256, 64


class DualEncoder(nn.Module):
    """The image encoder, as a body: [n, c, h, w] -> representations [n, d] of length 1.

    d: width of the representations.
    normalises: whether they are divided by their length; false if an adapter does that afterwards.
    """

    d: int
    normalises = True

    def encode(self, x: Tensor) -> Tensor:
        """Return representations before normalisation, [n, d]."""
        raise NotImplementedError

    def class_weights(self, names: Sequence[str]) -> Tensor:
        """Return the head's weights for classes of these names, [C, d].

        It can be called only once, because it drops the text encoder.
        """
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        return F.normalize(z, dim=1) if self.normalises else z


class TinyDualEncoder(DualEncoder):
    """A small dual encoder for tests and examples.

    It has two convolutions for images, and bytes with one attention layer for texts.
    """

    def __init__(self, shape: tuple[int, ...], d: int):
        super().__init__()
        self.d = d
        self.image = nn.Sequential(
            nn.Conv2d(shape[0], 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, d),
        )
        layer = nn.TransformerEncoderLayer(UNITS, 2, UNITS, dropout=0.0, batch_first=True)
        parts = {"bytes": nn.Embedding(BYTES, UNITS), "layer": layer, "last": nn.Linear(UNITS, d)}
        self.text: nn.Sequential | None = nn.Sequential(OrderedDict(parts))

    def encode(self, x: Tensor) -> Tensor:
        z: Tensor = self.image(x)
        return z

    @torch.no_grad()
    def class_weights(self, names: Sequence[str]) -> Tensor:
        parts: Any = self.text
        embed, layer, last = parts
        rows = []
        for name in names:
            codes = torch.tensor([list(PROMPT.format(name).encode())]).to(
                next(last.parameters()).device
            )
            rows.append(last(layer(embed(codes)).mean(1))[0])
        self.text = None
        return SCALE * F.normalize(torch.stack(rows), dim=1)


class HuggingFaceDualEncoder(DualEncoder):
    """The two encoders of a `CLIPModel` in a folder.

    d is the width of the model's projection.
    """

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder
        clip = new_clip(folder)
        self.d = int(clip.config.projection_dim)
        self.size = int(clip.config.vision_config.image_size)
        self.vision, self.projection = clip.vision_model, clip.visual_projection
        self.texts: Any = [clip]  # in a list, so that it is not registered as a submodule

    def encode(self, x: Tensor) -> Tensor:
        x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
        if x.shape[2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear")
        z: Tensor = self.projection(self.vision(pixel_values=x).pooler_output)
        return z

    @torch.no_grad()
    def class_weights(self, names: Sequence[str]) -> Tensor:
        (clip,) = self.texts
        self.texts = []
        scale = clip.logit_scale.exp()
        if scale.is_meta:
            return torch.empty(len(names), self.d)
        tokens = tokenizer(self.folder)(
            [PROMPT.format(name) for name in names], padding=True, return_tensors="pt"
        )
        z = clip.text_projection(clip.text_model(**tokens).pooler_output)
        return scale * F.normalize(z, dim=1)


def of_folder(name: str) -> Any:
    """Return a function (shape, d) -> the dual encoder in the folder of "clip:FOLDER".

    The width d of the representation is the encoder's own. Raises ConfigError if the folder holds
    no such encoder, and for images that have neither 1 nor 3 channels.
    """
    folder = name.partition(":")[2]
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(
            f"models.mix: {name}: {folder or '.'} holds no config.json; give the folder to which "
            f"transformers' CLIPModel.save_pretrained and CLIPProcessor.save_pretrained wrote"
        )

    def build(shape: tuple[int, ...], d: int) -> nn.Module:
        if shape[0] not in (1, 3):
            raise ConfigError(
                f"models.mix: {name} reads grey or RGB images, but these have {shape[0]} channels"
            )
        return HuggingFaceDualEncoder(folder)

    return build


def library(folder: str) -> Any:
    prepare_torchvision()  # transformers imports it by itself
    return import_extra("transformers", "hf", f"models.mix = ['clip:{folder}']")


def new_clip(folder: str) -> Any:
    """Return a new `CLIPModel` with the weights of the folder, on torch's meta device without."""
    transformers = library(folder)
    if torch.empty(0).is_meta:
        config = transformers.CLIPConfig.from_pretrained(folder, local_files_only=True)
        return transformers.CLIPModel(config)
    model = transformers.CLIPModel(read_clip(folder).config)
    model.load_state_dict(read_clip(folder).state_dict())
    return model


@lru_cache(maxsize=1)
def read_clip(folder: str) -> Any:
    """Read the `CLIPModel` of a folder, from safetensors files only, which run no code.

    Raises ConfigError if it cannot be read.
    """
    try:
        return library(folder).CLIPModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"models.mix: clip:{folder}: cannot be read: {error}; give a folder with config.json "
            f"and model.safetensors of a CLIPModel"
        ) from error


@lru_cache(maxsize=1)
def tokenizer(folder: str) -> Any:
    """Return the folder's tokenizer. Raises ConfigError if it cannot be read."""
    try:
        return library(folder).AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"models.mix: clip:{folder}: its tokenizer cannot be read: {error}; save it into the "
            f"same folder"
        ) from error


def make_head(body: DualEncoder, classes: int, names: Sequence[str]) -> Head:
    """Return the head made of the texts.

    names: the names of the classes; if empty, their numbers.
    """
    head = Head(body.d, classes)
    with torch.no_grad():
        head.weight.copy_(body.class_weights(names or [str(c) for c in range(classes)]))
        head.bias.zero_()
    return head


class Adapter(nn.Sequential):
    """FedCLIP's attention over the values of a representation: [n, d] -> [n, d], rows of sum 1.

    softmax(W2 tanh(W1 z + b1) + b2).
    """

    def __init__(self, d: int):
        super().__init__(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d), nn.Softmax(dim=1))


def attend(model: Model) -> Model:
    """Add an adapter after the body, and return the model.

    The representation z becomes a(z) z, divided by its length. For a model that is not a dual
    encoder its length is exp(s) = 1 / 0.07 instead of 1; in a dual encoder this factor is in the
    head.
    Lu et al. (FedCLIP), arXiv:2302.13485.
    """
    dual = isinstance(model.body, DualEncoder)
    if dual:
        model.body.normalises = False  # type: ignore[assignment]
    model.adapter = adapter = Adapter(model.head.in_features)
    length = 1.0 if dual else SCALE
    model.body.register_forward_hook(Adapted(adapter, length))
    return model


@dataclass(frozen=True)
class Adapted(PureHook):
    """A hook that weights the values z of a representation by an adapter, and gives it a length."""

    adapter: nn.Module
    length: float

    def __call__(self, body: nn.Module, inputs: Any, z: Tensor) -> Tensor:
        return self.length * F.normalize(self.adapter(z) * z, dim=1)
