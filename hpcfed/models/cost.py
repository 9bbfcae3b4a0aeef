"""The computational cost of a model, by which clients are placed on ranks."""

from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from hpcfed.core import rng
from hpcfed.core.architecture import Architecture
from hpcfed.core.inputs import zeros
from hpcfed.models import build
from hpcfed.models.finetuning import is_transposed
from hpcfed.models.transformer import Attend

VALUE = 16  # multiply-adds that cost as much as one value that a layer writes
LAYER = 40_000  # the same for the start of a layer, per example in a batch of 64; see `cost`


class Work(NamedTuple):
    """The work of one forward pass of one example.

    multiply_adds: those in convolutions, linear and recurrent layers.
    values: number of values that all layers write.
    layers: number of layers; a recurrent layer counts once for each token.
    """

    multiply_adds: int
    values: int
    layers: int


@cache
def work(
    name: str, shape: tuple[int, ...], classes: int, d: int = 512, vocabulary: int = 0
) -> Work:
    """Return the work of one forward pass of one example; random streams stay as they are.

    Raises ConfigError as `build`.
    """
    if len(pair := Architecture.parse(name).parts) > 1:
        both = (work(str(part), shape, classes, d, vocabulary) for part in pair)
        return Work(*map(sum, zip(*both, strict=True)))
    parts: list[Work] = []
    # not on torch's meta device: its convolutions import sympy and its linear layers the compiler,
    # a second each rank
    with rng.scoped(0, "work", everywhere=True), torch.no_grad():
        model = build(name, shape, classes, d, vocabulary=vocabulary).eval()
        for module in model.modules():
            if not list(module.children()) or makes_weight(module):
                module.register_forward_hook(lambda m, _, y: parts.append(_work(m, y)))
        model(zeros(shape, 1, vocabulary))
    return Work(*map(sum, zip(*parts, strict=True)))


def _work(layer: nn.Module, out: Any) -> Work:
    """Return the work of one layer, from its output.

    An output of a convolution or linear layer is a dot product with a part of weight [outputs,
    ...]. An LSTM layer multiplies all its matrices once for each token, and writes four gates, the
    cell and the state; a GRU writes three gates and the state. Each value that attention writes is
    a product of L scores and values, and each score one of queries and keys.
    """
    if isinstance(layer, nn.LSTM | nn.GRU):
        tokens, gates = out[0].shape[1], 6 if isinstance(layer, nn.LSTM) else 4
        matrices = sum(
            w.numel() for name, w in layer.state_dict().items() if name.startswith("weight")
        )
        return Work(
            tokens * matrices,
            tokens * layer.num_layers * gates * layer.hidden_size,
            tokens * layer.num_layers,
        )
    if isinstance(layer, Attend):  # out: [n, heads, L, w]
        return Work(2 * out.numel() * out.shape[2], out.numel(), 1)
    product = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear) or makes_weight(layer)
    dots = cast(torch.Tensor, layer.weight)[0].numel() if product else 0
    if is_transposed(layer):  # its weight is [inputs, outputs]
        dots = len(cast(torch.Tensor, layer.weight))
    return Work(out.numel() * dots, out.numel(), 1)


def makes_weight(layer: nn.Module) -> bool:
    """Return whether a layer computes its weight from other tensors."""
    return hasattr(type(layer), "weight")


def cost(
    name: str, shape: tuple[int, ...], classes: int, d: int = 512, vocabulary: int = 0
) -> float:
    """Return the estimated time of one example, in units of one multiply-add.

    Only ratios between models matter. Multiply-adds alone, or parameters, would mislead:
    ShuffleNetV2 has 39 times fewer multiply-adds than the small AlexNet but is only 8 times as
    fast, because memory and its many layers limit it. So values written and layers count too. Their
    two weights were fitted to training steps of 64 images on one CPU thread, 8 models,
    channels-last, at 16x16, 28x28 and
    32x32: estimates lie within 0.64 and 1.36 of the measured times (multiply-adds alone: 0.18 and
    1.31). Raises ConfigError as `build`.
    """
    multiply_adds, values, layers = work(name, shape, classes, d, vocabulary)
    return float(multiply_adds + VALUE * values + LAYER * layers)
