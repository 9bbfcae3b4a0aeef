"""Models of other packages by name, such as "torchvision:resnet50" and "timm:resnet18".

They are built without weights, for the classes of the data. The last linear layer becomes the head
(`hpcfed.models.user_model`). Nothing is ever downloaded.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from hpcfed.core.compat import import_torchvision, prepare_torchvision
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.optional_imports import import_extra
from hpcfed.models.layers import for_small_images, stem

NAME = re.compile(r"[A-Za-z0-9_.\-]+")
COLOURS = 3  # channels of the images for which models of torchvision are made


def maker(name: str) -> Callable[..., nn.Module]:
    """Return a function (shape, num_classes) -> model for "torchvision:NAME" or "timm:NAME".

    Raises ConfigError if there is no such model, or if timm is not installed.
    """
    library, _, model = name.partition(":")
    if not NAME.fullmatch(model):
        raise ConfigError(f"models.mix: {name}: write it as {library}:resnet18")
    return {"torchvision": of_torchvision, "timm": of_timm}[library](model)


def of_torchvision(name: str) -> Callable[..., nn.Module]:
    """Return a maker of a torchvision classification model; see `maker`."""
    models = import_torchvision().models
    names = models.list_models(module=models)
    if name not in names:
        raise ConfigError(f"models.mix: torchvision:{name}: {unknown('model', name, names)}")

    return partial(make_torchvision, name)


def make_torchvision(name: str, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a model of torchvision without weights.

    Its first convolution is replaced if images do not have 3 channels. Auxiliary heads are left
    out. Vision transformers are made for images of this size.
    """
    models = import_torchvision().models
    takes = inspect.signature(models.get_model_builder(name)).parameters
    arguments: dict[str, Any] = {"weights": None, "num_classes": num_classes}
    if name in ("googlenet", "inception_v3"):
        arguments |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_") and "kwargs" in takes:
        arguments["image_size"] = shape[1]
    with explain(f"torchvision:{name}"):
        net = models.get_model(name, **arguments)
    replace_first(net, shape[0])
    return for_small_images(net)


def of_timm(name: str) -> Callable[..., nn.Module]:
    """Return a maker of a timm model; see `maker`."""
    prepare_torchvision()  # timm imports it by itself
    timm = import_extra("timm", "timm", f"models.mix = ['timm:{name}']")
    if not timm.is_model(name):
        names = timm.list_models()
        raise ConfigError(f"models.mix: timm:{name}: {unknown('model', name, names)}")

    return partial(make_timm, timm, name)


def make_timm(timm: Any, name: str, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return a model of timm without weights, for images of this shape."""
    arguments: dict[str, Any] = {"num_classes": num_classes, "in_chans": shape[0]}
    if getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        arguments["img_size"] = tuple(shape[1:])
    with explain(f"timm:{name}"):
        return for_small_images(timm.create_model(name, pretrained=False, **arguments))


@contextmanager
def explain(name: str) -> Iterator[None]:
    """Convert any exception of a library that makes a model to a ConfigError."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise ConfigError(
            f"models.mix: {name} cannot be made for these data: {reason}; take another model"
        ) from error


def replace_first(net: nn.Module, channels: int) -> None:
    """Replace the first convolution by one for images of these channels."""
    for path, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels == COLOURS != channels:
                parent, _, last = path.rpartition(".")
                setattr(net.get_submodule(parent), last, stem(layer, channels))
            return
