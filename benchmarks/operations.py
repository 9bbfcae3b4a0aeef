"""Which layers bfloat16 makes slower than float32 on this processor.

`python benchmarks/operations.py [--passes 7] [--batches 10 64] [--only conv linear]`

Forward and backward pass of one layer on one thread, in turns: float32; bfloat16 (autocast, with
inputs of bfloat16, as between two such layers); and float32 between layers of bfloat16, whose input
and gradient are converted. Times are CPU seconds. `hpcfed/models/precision.py` has the rule that
follows; each row states what the rule chooses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from paired import Row, interleaved, ratio, save
from torch import Tensor, nn

from hpcfed.core.rng import torch_stream
from hpcfed.machine.allocator import keep_memory
from hpcfed.models.precision import LAYERS, autocast, stays_float32
from hpcfed.models.transformer import Attend

CPU = torch.device("cpu")
ENOUGH = 0.004  # CPU seconds of a turn


class Operation(NamedTuple):
    """A layer, and the shape of one example of its input."""

    what: str
    layer: Callable[[], nn.Module]
    shape: tuple[int, ...]


class Recurrent(nn.Module):
    """A recurrent layer, whose outputs are returned without its states."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Attention(nn.Module):
    """Attention of tokens to themselves, without the layers around it.

    layer: `Attend` of this package; None: torch's function.
    """

    def __init__(self, heads: int, layer: nn.Module | None = None):
        super().__init__()
        self.heads, self.layer = heads, layer

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(2, (self.heads, -1)).transpose(1, 2)
        if self.layer is None:
            return nn.functional.scaled_dot_product_attention(q, q, q)
        return self.layer(q, q, q, None)


def conv(
    inputs: int, outputs: int, side: int, size: int, stride: int = 1, groups: int = 1
) -> Operation:
    """A convolution of images of size x size."""
    words = f"convolution {inputs}-{outputs} {side}x{side}"
    words += f" stride {stride}" * (stride > 1) + f" groups {groups}" * (groups > 1)
    layer = partial(
        nn.Conv2d, inputs, outputs, side, stride, padding=side // 2, groups=groups, bias=False
    )
    return Operation(words, layer, (inputs, size, size))


def linear(inputs: int, outputs: int) -> Operation:
    return Operation(f"linear {inputs}-{outputs}", partial(nn.Linear, inputs, outputs), (inputs,))


def recurrent(
    kind: type[nn.LSTM] | type[nn.GRU], inputs: int, hidden: int, tokens: int = 20
) -> Operation:
    def layer() -> nn.Module:
        return Recurrent(kind(inputs, hidden, batch_first=True))

    return Operation(f"{kind.__name__} {inputs}-{hidden}", layer, (tokens, inputs))


def norm(groups: int, channels: int, size: int) -> Operation:
    words = f"group norm, {channels // groups} channels per group"
    return Operation(words, partial(nn.GroupNorm, groups, channels), (channels, size, size))


def attention(width: int, heads: int, tokens: int, ours: bool) -> Operation:
    words = f"attention by {'products' if ours else 'one kernel'} {width}, {heads} heads"
    layer = Attend() if ours else None
    return Operation(words, partial(Attention, heads, layer), (tokens, width))


OPERATIONS = (
    conv(1, 32, 5, 28),
    conv(32, 64, 5, 14),
    conv(3, 64, 3, 32),
    conv(3, 64, 7, 32, 2),
    conv(64, 64, 3, 8),
    conv(64, 128, 3, 16),
    conv(256, 256, 3, 2),
    conv(24, 58, 1, 8),
    conv(58, 58, 1, 8),
    conv(192, 64, 1, 8),
    conv(24, 24, 3, 8, 2, 24),
    conv(116, 116, 3, 2, 1, 116),
    conv(64, 64, 5, 8, 1, 64),
    conv(128, 128, 3, 8, 1, 32),
    conv(128, 128, 3, 8, 1, 16),
    conv(256, 256, 3, 8, 1, 16),
    conv(128, 128, 3, 8, 1, 2),
    linear(512, 10),
    linear(64, 200),
    linear(784, 200),
    linear(2304, 512),
    linear(3136, 512),
    recurrent(nn.LSTM, 8, 64),
    recurrent(nn.LSTM, 8, 256),
    recurrent(nn.GRU, 8, 64),
    recurrent(nn.GRU, 64, 256),
    attention(64, 4, 32, True),
    attention(256, 8, 64, True),
    attention(64, 4, 32, False),
    attention(256, 8, 64, False),
    norm(32, 64, 8),
    norm(8, 64, 8),
    norm(4, 64, 8),
    norm(32, 512, 4),
    Operation("layer norm 256", partial(nn.LayerNorm, 256), (32, 256)),
    Operation("batch norm 64", partial(nn.BatchNorm2d, 64), (64, 16, 16)),
    Operation("batch norm 512", partial(nn.BatchNorm2d, 512), (512, 2, 2)),
    Operation("ReLU", nn.ReLU, (64, 16, 16)),
    Operation("GELU", nn.GELU, (32, 256)),
    Operation("max-pooling 2x2", partial(nn.MaxPool2d, 2), (64, 16, 16)),
    Operation("max-pooling 3x3 stride 2", partial(nn.MaxPool2d, 3, 2, 1), (64, 16, 16)),
    Operation("average of a map 4x4", partial(nn.AdaptiveAvgPool2d, 1), (512, 4, 4)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 64])
    parser.add_argument("--only", nargs="+", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    rows = [
        row
        for batch in options.batches
        for operation in OPERATIONS
        if not options.only or any(word in operation.what for word in options.only)
        for row in measure(operation, batch, options.passes)
    ]
    save("operations", rows, whole=not options.only)


def measure(operation: Operation, batch: int, passes: int) -> Iterator[Row]:
    """Yield the row of an operation: CPU seconds in float32 over those in bfloat16."""
    layer = operation.layer()
    x = torch.randn(batch, *operation.shape, generator=torch_stream(0, "operations"))
    if x.dim() == 4:
        layer = layer.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    low, high = x.bfloat16().requires_grad_(), x.clone().requires_grad_()
    params = list(layer.parameters())

    def float32() -> None:
        differentiate(layer(high), [high, *params])

    def bfloat16() -> None:
        with autocast("bf16", CPU):
            y = layer(low)
        differentiate(y, [low, *params])

    def between() -> None:
        differentiate(layer(low.float()).bfloat16(), [low, *params])

    start = time.process_time()
    float32()
    times = max(1, int(ENOUGH / (time.process_time() - start + 1e-9)))
    turns = {"float32": float32, "bfloat16": bfloat16, "between": between}
    seconds = interleaved(
        {name: partial(repeat, turn, times) for name, turn in turns.items()},
        passes,
        clock=time.process_time,
    )
    details = {
        "rule": chosen(layer, x),
        "float32 between": round(ratio(seconds["float32"], seconds["between"]).median, 2),
        "ms": round(1e3 * min(seconds["float32"]) / times, 3),
    }
    of = ratio(seconds["float32"], seconds["bfloat16"])
    yield Row(f"{operation.what}, batch {batch}: float32 over bfloat16", of, details=details)


def differentiate(y: Tensor, leaves: list[Tensor]) -> None:
    torch.autograd.grad(y, leaves, torch.ones_like(y))


def repeat(turn: Callable[[], None], times: int) -> None:
    for _ in range(times):
        turn()


def chosen(layer: nn.Module, x: Tensor) -> str:
    """What the rule chooses for a layer; "either" if it computes in the type of its input."""
    if isinstance(layer, Recurrent):
        layer = layer.layer
    if isinstance(layer, Attention):
        if layer.layer is None:
            return "float32 (in torch's MultiheadAttention)"
        q = x.unflatten(2, (layer.heads, -1)).transpose(1, 2)
        return "float32" if stays_float32(layer.layer, q) else "bfloat16"
    if not isinstance(layer, LAYERS):
        return "either"
    return "float32" if stays_float32(layer, x) else "bfloat16"


if __name__ == "__main__":
    main()
