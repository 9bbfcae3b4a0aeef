"""Dual encoders, which represent images and texts in one space: a tiny random one, and CLIP from a
folder that Hugging Face's transformers wrote.

Radford et al. (CLIP), ICML 2021, arXiv:2103.00020, section 2. The head of such a model is made of
texts: row c of its weights is exp(s) times the normalised representation of "a picture of a NAME",
NAME being that of class c, its bias is 0; so logits are exp(s) times the cosines of image and text.
The encoder of texts has done its work then and is no part of the model. Nothing is ever downloaded.
Deviations: images are enlarged bilinearly to the size for which a checkpoint was made, grey ones
get three equal channels, and all are normalised by the mean and deviation of the data set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.core.compat import prepare_torchvision
from hpcfed.core.errors import ConfigError
from hpcfed.core.optional_imports import import_extra
from hpcfed.models.model import Head, Model

PROMPT = "a picture of a {}"  # as in the public code of FedCLIP
SCALE = 1 / 0.07  # exp(s) where training begins, Radford et al., section 2.5
BYTES, UNITS = 256, 64


class DualEncoder(nn.Module):
    """The encoder of images, as a body: [n, c, h, w] -> representations [n, d] of length 1.

    d: their width.  normalises: whether they are divided by their length; not where an adapter does
    it after its own work.
    """

    d: int
    normalises = True

    def encode(self, x: Tensor) -> Tensor:
        """Representations as they come, [n, d]."""
        raise NotImplementedError

    def class_weights(self, names: Sequence[str]) -> Tensor:
        """The head's weights for classes of these names, [C, d].

        Once, for the encoder of texts is dropped.
        """
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        return F.normalize(z, dim=1) if self.normalises else z


class TinyDualEncoder(DualEncoder):
    """Two convolutions for images, bytes and one attention layer for texts.

    For tests and examples.
    """

    def __init__(self, channels: int, d: int):
        super().__init__()
        self.d = d
        self.image = nn.Sequential(
            nn.Conv2d(channels, 32, 3, stride=2, padding=1),
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
        made: Tensor = self.image(x)
        return made

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
    """The two encoders of a `CLIPModel` in a folder; d is what it projects to."""

    def __init__(self, folder: str):
        super().__init__()
        self.folder = folder
        whole = new_clip(folder)
        self.d = int(whole.config.projection_dim)
        self.size = int(whole.config.vision_config.image_size)
        self.vision, self.projection = whole.vision_model, whole.visual_projection
        self.texts: Any = [whole]  # in a list, so that it is no part of the module

    def encode(self, x: Tensor) -> Tensor:
        x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
        if x.shape[2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear")
        made: Tensor = self.projection(self.vision(pixel_values=x).pooler_output)
        return made

    @torch.no_grad()
    def class_weights(self, names: Sequence[str]) -> Tensor:
        (whole,) = self.texts
        self.texts = []
        scale = whole.logit_scale.exp()
        if scale.is_meta:
            return torch.empty(len(names), self.d)
        tokens = tokenizer(self.folder)(
            [PROMPT.format(name) for name in names], padding=True, return_tensors="pt"
        )
        made = whole.text_projection(whole.text_model(**tokens).pooler_output)
        return scale * F.normalize(made, dim=1)


def clip_tiny(shape: tuple[int, ...], d: int) -> nn.Module:
    """Random encoders of images and texts: [n, c, h, w] -> [n, d]."""
    return TinyDualEncoder(shape[0], d)


def of_folder(name: str) -> Any:
    """A function (shape, d) -> the dual encoder in the folder of "clip:FOLDER"; its d is its own.

    Raises ConfigError for a folder that holds none, and for images of two channels, say.
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
    """A new `CLIPModel` with the weights of the folder; on torch's meta device without."""
    transformers = library(folder)
    if torch.empty(0).is_meta:
        config = transformers.CLIPConfig.from_pretrained(folder, local_files_only=True)
        return transformers.CLIPModel(config)
    own = transformers.CLIPModel(read_clip(folder).config)
    own.load_state_dict(read_clip(folder).state_dict())
    return own


@lru_cache(maxsize=1)
def read_clip(folder: str) -> Any:
    """The folder's `CLIPModel`; of safetensors alone, which run no code. Raises ConfigError."""
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
    """The folder's tokenizer. Raises ConfigError."""
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
    """The head that the texts give. names: of the classes; none: their numbers."""
    head = Head(body.d, classes)
    with torch.no_grad():
        head.weight.copy_(body.class_weights(names or [str(c) for c in range(classes)]))
        head.bias.zero_()
    return head


class Adapter(nn.Sequential):
    """FedCLIP's attention over the values of a representation: [n, d] -> [n, d], rows that sum to
    1: softmax(W2 tanh(W1 z + b1) + b2).
    """

    def __init__(self, d: int):
        super().__init__(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d), nn.Softmax(dim=1))


def attend(model: Model) -> Model:
    """An adapter after the body: the representation z becomes a(z) z, divided by its length.

    Of a model that is no dual encoder it gets the length exp(s) = 1 / 0.07 instead of 1, which is
    in the head of a dual one.  Lu et al. (FedCLIP), arXiv:2302.13485.
    """
    dual = isinstance(model.body, DualEncoder)
    if dual:
        model.body.normalises = False  # type: ignore[assignment]
    model.adapter = adapter = Adapter(model.head.in_features)
    length = 1.0 if dual else SCALE

    def adapt(body: nn.Module, given: Any, z: Tensor) -> Tensor:
        return length * F.normalize(adapter(z) * z, dim=1)

    model.body.register_forward_hook(adapt)
    return model
