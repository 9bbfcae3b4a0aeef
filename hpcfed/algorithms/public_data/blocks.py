"""Models cut into blocks, and rows of blocks of several models with stitches between them.

A block is a layer with weights and what follows it up to the next one: normalisation, activation,
pooling. Bodies that run their parts one after the other are cut in this way: rows of layers, and
torchvision's ResNets and GoogLeNet, whose residual and inception modules are one block each. Any
other body is a single block. The head is the last block. A stitch is a linear layer between two
blocks of different widths.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed import Params
from hpcfed.core.shapes import each
from hpcfed.models.flat import Skeleton
from hpcfed.models.precision import choose_precisions, full, raised
from hpcfed.training.recorded_step import alike

KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (  # the first match is a block's kind
    ("convolution", (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    ("recurrence", (nn.RNNBase,)),
    ("attention", (nn.MultiheadAttention,)),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("linear", (nn.Linear,)),
)
# operations in the order in which models have them
ORDER = ("embedding", "convolution", "recurrence", "attention", "other", "linear")
NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
LAST = 1 << 30  # the depth of heads: beyond all other blocks
MAPS = 3  # dimensions of maps [c, h, w]
Layer = tuple[str, nn.Module]  # with its name in the model; "" if it has no weights


@dataclass(frozen=True)
class Block:
    """Some layers of a model, run one after the other.

    kind: the kind of operation, one of ORDER.
    depth: place in the model, from 0; heads are at LAST.
    takes, gives: shapes of one example at the input and at the output.
    takes_data: whether the input is the data themselves.
    """

    layers: tuple[Layer, ...]
    kind: str
    depth: int
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    takes_data: bool = False

    @property
    def last(self) -> bool:
        return self.depth == LAST

    @property
    def values(self) -> int:
        """Number of values in the parameters and float buffers."""
        return sum(v.numel() for _, layer in self.layers for _, v in float_tensors(layer))


def float_tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and float buffers of a layer, by name."""
    for name, value in (*layer.named_parameters(), *layer.named_buffers()):
        if value.is_floating_point():
            yield name, value


class MeanOfPlaces(nn.Module):
    """The means of maps: [n, c, h, w] -> [n, c]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@torch.no_grad()
def cut(skeleton: Skeleton, x: Any) -> tuple[Block, ...]:
    """Return the blocks of a model, the head last.

    x: prepared examples, which give the shapes. A body that is not a Sequential is cut only if its
    children, run one after the other, return for these examples what the body returns.
    """
    model, x = skeleton.model.eval(), each(x, torch.clone)  # because layers may work in place
    groups: list[list[Layer]] = [[]]
    for path, layer in (*row("body", model.body, x), ("head", model.head)):
        begins = weighs(layer) and not isinstance(layer, NORMS)
        if begins and any(weighs(member) for _, member in groups[-1]):
            groups.append([])
        groups[-1].append((path, layer))
    blocks = []
    for i, layers in enumerate(groups):
        takes = tuple(x.shape[1:]) if isinstance(x, Tensor) else ()
        for _, layer in layers:
            x = layer(x)
        depth = LAST if i == len(groups) - 1 else i
        kind = operation(layers)
        blocks.append(
            Block(tuple(layers), kind, depth, takes, tuple(x.shape[1:]), takes_data=i == 0)
        )
    return tuple(blocks)


def weighs(layer: nn.Module) -> bool:
    """Return whether a layer has parameters."""
    return next(layer.parameters(), None) is not None


def row(path: str, module: nn.Module, x: Any) -> list[Layer]:
    """Return the layers that a module runs one after the other.

    Layers in a nested Sequential are included, and a flattening or mean between maps and a linear
    layer is a layer of its own. A module that does anything else is returned as a single layer.
    """
    if type(module).forward is nn.Sequential.forward:
        flat = []
        for name, child in module.named_children():
            flat += row(f"{path}.{name}", child, x)
            x = child(each(x, torch.clone))
        return flat
    if isinstance(module, NORMS) or not list(module.children()):
        return [(path, module)]
    try:
        expected, layers, value = module(each(x, torch.clone)), [], each(x, torch.clone)
        for name, child in module.named_children():
            parts = joined(f"{path}.{name}", child, value)
            layers += parts
            for _, layer in parts:
                value = layer(value)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return [(path, module)]  # the children cannot run one after the other
    same = isinstance(value, Tensor) and value.shape == expected.shape
    return layers if same and torch.allclose(value, expected) else [(path, module)]


def joined(path: str, layer: nn.Module, x: Any) -> list[Layer]:
    """Return the layers for a child of a body whose input is x.

    The body's forward may flatten maps, or average them, before a linear layer; such a step becomes
    a layer before the child.
    """
    if isinstance(layer, nn.Linear) and isinstance(x, Tensor) and x.dim() == 1 + MAPS:
        flat = x.flatten(1).shape[1] == layer.in_features
        return [("", nn.Flatten() if flat else MeanOfPlaces()), (path, layer)]
    if type(layer).forward is nn.Sequential.forward:
        return row(path, layer, x)
    return [(path, layer)]


def operation(layers: Sequence[Layer]) -> str:
    """Return the kind of layers that a block has, one of ORDER."""
    inner = [module for _, layer in layers for module in layer.modules()]
    for kind, types in KINDS:
        if any(isinstance(module, types) for module in inner):
            return kind
    return "other"


def fits(before: Block, after: Block) -> bool:
    """Return whether a block may follow another block.

    It must be deeper in its model, its operation must not come earlier in ORDER, and its input must
    be possible to make from the other block's output.
    """
    deeper = after.depth > before.depth and not before.last
    ordered = ORDER.index(after.kind) >= ORDER.index(before.kind)
    gives, takes = len(before.gives), len(after.takes)
    feasible = takes == 1 or takes == gives == MAPS or before.gives == after.takes
    return deeper and ordered and feasible


def stitch_shape(before: Block, after: Block) -> tuple[int, int]:
    """Return the numbers of outputs and inputs of the stitch between two blocks.

    The result is (0, 0) if the widths agree and no stitch is needed. Maps are stitched at each
    place, so the number of weights does not depend on the size of the maps.
    """
    gives, takes = before.gives, after.takes
    if len(gives) > len(takes):  # places become values
        return takes[0], math.prod(gives)
    return (0, 0) if gives[0] == takes[0] or gives == takes else (takes[0], gives[0])


class Stitch(nn.Module):
    """ReLU(W x + b) at each place if widths differ, resized to the places that a block takes.

    W and b have no values here: `Row.initial` draws them.
    """

    def __init__(self, before: Block, after: Block):
        super().__init__()
        self.takes = after.takes
        width, inputs = stitch_shape(before, after)
        self.linear = nn.Linear(inputs, width, device="meta") if width else None
        choose_precisions(self)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() - 1 > len(self.takes):
            x = x.flatten(1)
        maps = x.dim() == 1 + MAPS
        if self.linear is not None:
            x = F.relu(self.linear(x.movedim(1, -1) if maps else x))
            x = x.movedim(-1, 1) if maps else x
        for dim in (2, 3) if maps else ():
            if x.shape[dim] != self.takes[dim - 1]:
                x = raised(x)
                means = pooling(x.shape[dim], self.takes[dim - 1]).to(x)
                with full(x.device):
                    x = torch.tensordot(x, means, dims=([dim], [1])).movedim(-1, dim)
        return x


@cache
def pooling(size: int, wanted: int) -> Tensor:
    """Return adaptive average pooling along one side as a matrix, [wanted, size].

    A matrix product adds in a fixed order; the backward pass of torch's pooling does not on a GPU.
    """
    rows = torch.zeros(wanted, size)
    for i in range(wanted):
        start, stop = i * size // wanted, -(-(i + 1) * size // wanted)
        rows[i, start:stop] = 1 / (stop - start)
    return rows


class Row(nn.Sequential):
    """Blocks of any models one after the other, each behind a stitch from the one before.

    The modules belong to their models, so weights are passed at each call (`run`). They are named
    "0.1.weight": block 0, its first layer. "1.0.linear.weight" is the stitch before block 1.
    """

    def __init__(self, blocks: Sequence[Block]):
        joints = [nn.Identity(), *(Stitch(*pair) for pair in pairwise(blocks))]
        super().__init__(
            *(
                nn.Sequential(joint, *(layer for _, layer in block.layers))
                for joint, block in zip(joints, blocks, strict=True)
            )
        )
        self.row = tuple(blocks)

    def initial(self, models: Sequence[Mapping[str, Tensor]]) -> Params:
        """Return copies of the blocks' tensors, and new stitches.

        models: the tensors of the model of which block i is, by i. The stitches are drawn from
        torch's global generator. Tensors get the memory layout of the models' modules, because
        results depend on it in their last bits.
        """
        new = Params()
        for i, (block, model) in enumerate(zip(self.row, models, strict=True)):
            for j, (path, layer) in enumerate(block.layers, start=1):
                for name, value in float_tensors(layer):
                    new[f"{i}.{j}.{name}"] = alike(model[f"{path}.{name}"], value).detach().clone()
            part: Any = self[i]
            linear = getattr(part[0], "linear", None)
            if linear is not None:
                fresh = nn.Linear(linear.in_features, linear.out_features)
                for name, value in fresh.to(next(iter(new.values())).device).named_parameters():
                    new[f"{i}.0.linear.{name}"] = value.detach()
        return new

    def forward(
        self, x: Any, look: Callable[[Any], None] = lambda x: None, represent: bool = False
    ) -> Tensor:
        """Return the logits [n, C], or with `represent` what the last linear layer reads, [n, d].

        look: is called with the input of each block.
        """
        parts: Any = list(self)
        for block in parts[:-1]:
            look(x)
            x = block(x)
        look(x)
        layers = list(parts[-1])
        for layer in layers[:-1]:
            x = layer(x)
        return x if represent else layers[-1](x)

    def run(self, params: Mapping[str, Tensor], x: Any, **how: Any) -> Tensor:
        """Return the output with these tensors instead of the modules' own."""
        return functional_call(self, dict(params), (x,), how)

    def predictor(self, params: Mapping[str, Tensor]) -> Callable[..., Tensor]:
        """Return the function of these tensors, inputs to logits; sets the modules to eval mode."""
        self.eval()
        laid_out = dict(float_tensors(self))
        return partial(self.run, {name: alike(v, laid_out[name]) for name, v in params.items()})


def nbytes(before: Block | None, block: Block) -> int:
    """Return the bytes of a block in a row, and of the stitch before it."""
    width, inputs = stitch_shape(before, block) if before else (0, 0)
    return 4 * (block.values + width * (inputs + 1))
