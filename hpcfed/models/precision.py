"""The precision of a model's layers in a run with run.precision = "bf16".

A local objective is computed under torch's autocast: layers multiply in bfloat16, the formulas of
losses and everything that autocast lists are computed in float32. Some layers stay float32 too,
because bfloat16 makes them slower on CPUs that have instructions for it
(`benchmarks/precision.py`). They are chosen by the type of a layer and by shapes alone, so that a
job means the same on every machine:
- products of fewer than SMALL multiply-adds: the conversions cost more than the product saves;
- convolutions of fewer than CONV_GROUP input channels per group (depthwise ones take up to 16 times
  as long in bfloat16);
- group normalisation of fewer than NORM_GROUP channels per group;
- torch's MultiheadAttention, whose kernel takes two to eight times as long in bfloat16.
Weights are float32; autocast converts them once in each step. Copies in bfloat16 that an optimiser
writes beside them, block by block, have the same bits and saved nothing on the whole: steps took
0.98 of the time for ResNet-18 on 128 images, and 1.05 for the FedAvg paper's CNN on batches of 10.

A representation and logits leave body and head as float32, so that losses compute in float32.

A CPU without instructions for bfloat16 computes linear layers and convolutions by products in
float32 of rounded factors, whose sums are rounded: those instructions sum in float32 too. torch's
own kernels take several times as long there.

If no layer of a model is computed in bfloat16 for a batch, its objective is computed without
autocast: the context takes time in each step, which small models would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cache, partial
from math import ceil, inf, prod
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from hpcfed.machine.processor import find_bfloat16
from hpcfed.models.model import Model, Pair
from hpcfed.models.transformer import Attend

SMALL = 5e6  # multiply-adds of a layer for a batch
# times as many for layers of many small products: a GRU's of each token, attention's of each head
FACTORS = {nn.GRU: 8, Attend: 4}
CONV_GROUP = 8  # input channels per group of a convolution
NORM_GROUP = 16  # channels per group of group normalisation
PRODUCTS = (nn.Linear, _ConvNd)  # layers whose weights multiply one input
MULTIPLY = {  # the functions with which these layers, and LoRA, multiply
    *(F.linear, F.conv1d, F.conv2d, F.conv3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm),
}
# those that choose
LAYERS = (*PRODUCTS, nn.RNNBase, nn.GroupNorm, nn.MultiheadAttention, Attend)
is_enabled = torch.is_autocast_enabled  # each layer asks, and may take only 10 us


def autocast(
    precision: str, device: torch.device, model: Any = None, x: Any = None
) -> AbstractContextManager:
    """Return a context in which a local objective is computed in the given precision.

    With "bf16" products are computed in bfloat16, and operations that need its range in float32.
    model, x: a model with its batch of inputs, if these are known; nothing is computed in bfloat16
    if none of the model's layers is for a batch of this size.
    """
    if precision != "bf16" or (model is not None and examples(x) < least_batch(model)):
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def examples(x: Any) -> int:
    """Return the number of examples in a batch of inputs, of all views together."""
    if isinstance(x, Tensor):
        return len(x)
    if isinstance(x, Mapping):
        return len(next(iter(x.values())))
    return sum(map(examples, x))


def least_batch(model: Any) -> float:
    """Return the least batch for which some layer is computed in bfloat16; 0 if it is not known."""
    return getattr(model, "bf16_batch", 0)


class full:
    """Compute in float32 inside the block, under autocast too.

    Tensors computed in bfloat16 before must be converted by `raised`. It sets the thread's switch
    directly: `torch.autocast(enabled=False)` takes longer than a small layer.
    """

    def __init__(self, device: torch.device):
        self.kind = device.type

    def __enter__(self) -> None:
        self.enabled = torch.is_autocast_enabled(self.kind)
        torch.set_autocast_enabled(self.kind, False)

    def __exit__(self, *_: object) -> None:
        torch.set_autocast_enabled(self.kind, self.enabled)


def raised(value: Any) -> Any:
    """Return a bfloat16 tensor as float32, and any other value as it is."""
    if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
        return value.float()
    return value


def choose_precisions(model: nn.Module) -> None:
    """Let each layer of a model choose its precision under autocast by the rules of this module.

    Tensors and their names stay the same, and so does what the model computes without autocast.
    """
    layers = [module for module in model.modules() if isinstance(module, LAYERS)]
    parts = [
        part
        for module in model.modules()
        if isinstance(module, Model)
        for part in (module.body, module.head)
    ]
    for module in {id(module): module for module in (*layers, *parts)}.values():
        if forward := vars(module).get("forward"):  # that a user has set on this module alone
            module.own_forward = forward
    for module in layers:
        module.forward = MethodType(_compute, module)  # type: ignore[method-assign]
    for part in parts:
        part.forward = MethodType(_compute_and_raise, part)


def _compute(module: nn.Module, *args: Any, **named: Any) -> Any:
    """Compute a layer's forward, in float32 if it stays float32 under autocast."""
    if (is_enabled("cpu") or is_enabled("cuda")) and _converts(args):
        return _compute_low(module, args, named)
    # what `_forward` returns, without a call and a bound method, which take 1 us together
    forward = module.__dict__.get("own_forward")
    return forward(*args, **named) if forward else type(module).forward(module, *args, **named)


def _compute_and_raise(module: nn.Module, *args: Any, **named: Any) -> Any:
    """Compute the forward of a body or head, and return float32."""
    if (is_enabled("cpu") or is_enabled("cuda")) and _converts(args):
        return raised(_compute_low(module, args, named))
    forward = module.__dict__.get("own_forward")
    return forward(*args, **named) if forward else type(module).forward(module, *args, **named)


def _converts(args: tuple[Any, ...]) -> bool:
    """Return whether autocast is on for the device of a call's input."""
    x = args[0] if args else None
    gpu = x.is_cuda if isinstance(x, Tensor) else is_enabled("cuda")
    return is_enabled("cuda" if gpu else "cpu")  # x.device.type takes 2 us


def _compute_low(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Compute a module's forward under autocast."""
    x = args[0] if args else None
    if isinstance(module, LAYERS) and isinstance(x, Tensor):
        if stays_float32(module, x):
            with full(x.device):
                return _forward(module)(*_raise_all(args), **_raise_all(named))
        if isinstance(module, PRODUCTS) and not x.is_cuda and is_emulated():
            with full(x.device), _Rounded():
                return _forward(module)(*args, **named)
    return _forward(module)(*args, **named)


@cache
def is_emulated() -> bool:
    """Return whether this processor has no instructions for bfloat16."""
    return find_bfloat16() == ""


class _Rounded(TorchFunctionMode):
    """Computes products inside the block as autocast does, by float32; they return bfloat16.

    All that is multiplied is rounded: inputs, weights, also frozen ones, and what a layer computes
    of its weights, as LoRA's sum of a frozen matrix and a product. Gradients of inputs, weights and
    outputs are rounded as theirs are.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in MULTIPLY:
            return function(*args, **(kwargs or {}))
        return function(*_round(args), **_round(kwargs or {})).bfloat16()


def _round(values: Any) -> Any:
    """Return arguments with their tensors rounded to bfloat16, as float32."""
    return _each_tensor(values, lambda value: value.bfloat16().float())


def _forward(module: nn.Module) -> Any:
    """Return the forward that a user has set on the module, or that of its class."""
    return module.__dict__.get("own_forward") or MethodType(type(module).forward, module)


def _raise_all(values: Any) -> Any:
    """Return arguments with their bfloat16 tensors as float32."""
    return _each_tensor(values, raised)


def _each_tensor(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return arguments with each tensor changed."""
    if isinstance(values, tuple):
        return tuple(_each_tensor(value, change) for value in values)
    if isinstance(values, dict):
        return {name: _each_tensor(value, change) for name, value in values.items()}
    return change(values) if isinstance(values, Tensor) else values


def stays_float32(layer: nn.Module, x: Tensor) -> bool:
    """Return whether a layer is computed in float32 for an input like x, under autocast too."""
    if isinstance(layer, nn.GroupNorm) or always_float32(layer):
        return always_float32(layer)
    return multiply_adds(layer, x) < limit(layer)


def always_float32(layer: nn.Module) -> bool:
    """Return whether a layer is computed in float32 for all inputs."""
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels // layer.num_groups < NORM_GROUP
    if isinstance(layer, _ConvNd) and layer.groups > 1:
        return layer.in_channels // layer.groups < CONV_GROUP
    return isinstance(layer, nn.MultiheadAttention)


def limit(layer: nn.Module) -> float:
    """Return the least multiply-adds for which a layer is computed in bfloat16."""
    return FACTORS.get(type(layer), 1) * SMALL


def multiply_adds(layer: nn.Module, x: Tensor) -> float:
    """Return the multiply-adds of a layer's products for an input like x.

    Borders of an image count as if they were inside.
    """
    if isinstance(layer, nn.Linear):
        return x.numel() * layer.out_features
    if isinstance(layer, _ConvNd):
        products = x.numel() * (layer.out_channels // layer.groups) * prod(layer.kernel_size)
        return products if layer.transposed else products / prod(layer.stride)
    if isinstance(layer, nn.RNNBase):
        return x.numel() / layer.input_size * sum(p.numel() for p in layer.parameters())
    assert isinstance(layer, Attend)  # x: queries [n, heads, L, w]
    return 2 * x.numel() * x.shape[2]


def least_batches(model: nn.Module, x: Any) -> dict[str, float]:
    """Return the least batch for which each layer of a model is computed in bfloat16, by its name.

    It is inf for layers that always stay float32. Under "" is 1 if the model's own code has
    products outside of its layers, which autocast computes in bfloat16 in any batch.

    x: one prepared example, as a batch. The model stays as it is.
    """
    probe = deepcopy(model).eval()
    layers = {name: m for name, m in probe.named_modules() if isinstance(m, LAYERS)}
    # of layers that the model's own forward does not reach, which a loss may use
    batches = {name: inf if always_float32(m) else 1 for name, m in layers.items()}
    handles = [
        layer.register_forward_pre_hook(partial(_note_batch, batches, name))
        for name, layer in layers.items()
    ]
    models = [probe.own, probe.proxy] if isinstance(probe, Pair) else [probe]
    with torch.no_grad():
        for each in models:
            each(x)
    for handle in handles:
        handle.remove()
    outside = _multiplies_outside(layers.values(), models, x)
    return batches | ({"": 1} if outside else {})


def _note_batch(
    batches: dict[str, float], name: str, layer: nn.Module, inputs: tuple[Any, ...]
) -> None:
    """Note the least batch of a layer that gets these inputs of one example."""
    sized = inputs and not isinstance(layer, nn.GroupNorm) and not always_float32(layer)
    if sized and (products := multiply_adds(layer, inputs[0])):
        batches[name] = max(1, ceil(limit(layer) / products))


def _multiplies_outside(layers: Iterable[nn.Module], models: Iterable[nn.Module], x: Any) -> bool:
    """Return whether models compute something in bfloat16 outside of these layers."""
    inside = []

    def enter(layer: nn.Module, _: Any) -> None:
        inside.append(layer)
        torch.set_autocast_enabled("cpu", False)

    def leave(*_: Any) -> None:
        inside.pop()
        torch.set_autocast_enabled("cpu", not inside)

    for layer in layers:
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), _Watch():
            for model in models:
                model(x)
    except _LowError:
        return True
    return False


class _LowError(Exception):
    """An operation has returned bfloat16."""


class _Watch(TorchFunctionMode):
    """Raises _LowError at the first operation that returns bfloat16."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype == torch.bfloat16:
            raise _LowError
        return result
