"""Models cut into blocks, and rows of blocks of several models."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from hpcfed.algorithms.public_data.blocks import (
    LAST,
    Block,
    Row,
    Stitch,
    cut,
    fits,
    nbytes,
    pooling,
    stitch_shape,
)
from hpcfed.models import build
from hpcfed.models.flat import Skeleton
from hpcfed.models.model import Head, Model

pytestmark = pytest.mark.quick

CUTS = {  # the operations of the blocks, in their order
    "mlp": ["linear", "linear", "linear"],
    "logistic": ["linear"],
    "cnn": ["convolution", "convolution", "linear", "linear"],
    "alexnet": [*["convolution"] * 3, "linear", "linear", "linear"],
    "resnet18": [*["convolution"] * 9, "linear", "linear"],
    "googlenet": [*["convolution"] * 12, "linear", "linear"],
    "shufflenetv2": [*["convolution"] * 18, "linear", "linear"],
}
WIDE = (3, 16, 16)


def made(name: str, shape: tuple[int, ...] = WIDE, classes: int = 4) -> Skeleton:
    torch.manual_seed(0)
    return Skeleton(build(name, shape, classes, 8))


def examples(shape: tuple[int, ...] = WIDE, n: int = 2) -> torch.Tensor:
    return torch.linspace(-1, 1, n * torch.Size(shape).numel()).view(n, *shape)


@pytest.mark.parametrize("name", CUTS)
def test_a_model_is_cut_where_a_layer_with_weights_begins(name: str):
    assert [block.kind for block in cut(made(name), examples())] == CUTS[name]


@pytest.mark.parametrize("name", CUTS)
def test_the_row_of_all_blocks_of_a_model_is_the_model_to_the_bit(name: str):
    skeleton, x = made(name), examples(n=3)
    row = Row(cut(skeleton, examples()))
    params = row.initial([skeleton.items(lambda name: True)] * len(row))
    assert len(params) == len(skeleton.layout.names) and not stitches(row)
    assert len(list(row.parameters())) == len(skeleton.layout.params)
    with torch.no_grad():
        assert torch.equal(row.predictor(params)(x), skeleton.model.eval()(x))
        assert torch.equal(row.run(params, x, represent=True), skeleton.model.body(x))


def stitches(row: Row) -> dict[int, tuple[int, int]]:
    """The outputs and inputs of the stitch before each block that has one."""
    weights = {n: v for n, v in row.named_parameters() if n.endswith(".0.linear.weight")}
    return {int(n.partition(".")[0]): tuple(v.shape) for n, v in weights.items()}


class Residual(nn.Module):
    """Its parts one after the other are not what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(self.one(x).relu())


def test_a_body_that_is_no_row_is_one_block():
    skeleton = Skeleton(Model(Residual(), Head(8, 4)))
    body, head = cut(skeleton, examples((8,)))
    assert [path for path, _ in body.layers] == ["body"] and head.depth == LAST


def block(
    kind: str, depth: int, takes: tuple[int, ...], gives: tuple[int, ...], first: bool = False
) -> Block:
    return Block((), kind, depth, takes, gives, first)


def test_a_block_follows_one_that_is_shallower_and_of_no_later_operation():
    conv, deep = (block("convolution", i, (4, 8, 8), (4, 8, 8)) for i in (1, 2))
    line, other = block("linear", 1, (16,), (8,)), block("linear", 3, (8,), (8,))
    head = block("linear", LAST, (8,), (4,))
    assert fits(conv, deep) and fits(conv, other) and fits(line, other) and fits(conv, head)
    assert not fits(deep, conv) and not fits(deep, line)  # not deeper
    assert not fits(line, deep)  # a convolution after a linear layer
    assert not fits(head, head)


def test_a_stitch_is_a_linear_layer_with_relu_at_each_place_and_pools_to_the_next_size():
    before, after = block("convolution", 0, (), (2, 4, 4)), block("convolution", 1, (3, 2, 2), ())
    assert stitch_shape(before, after) == (3, 2)
    x, weight, bias = examples((2, 4, 4)), examples((2,), 3), torch.tensor([0.1, -0.2, 0.3])
    want = F.adaptive_avg_pool2d(F.relu(F.conv2d(x, weight[:, :, None, None], bias)), 2)
    params = {"linear.weight": weight, "linear.bias": bias}
    got = functional_call(Stitch(before, after), params, (x,))
    assert torch.allclose(got, want, atol=1e-6)
    vector = block("linear", 1, (5,), ())
    assert stitch_shape(before, vector) == (5, 32)
    assert stitch_shape(block("convolution", 0, (), (3, 9, 9)), after) == (0, 0)  # pooled alone
    assert nbytes(before, after) == 4 * 3 * (2 + 1)


@pytest.mark.parametrize("size, wanted", [(8, 3), (5, 5), (3, 7), (1, 4)])
def test_pooling_is_adaptive_average_pooling(size: int, wanted: int):
    x = torch.linspace(0, 1, size) ** 2
    assert torch.allclose(pooling(size, wanted) @ x, F.adaptive_avg_pool1d(x[None], wanted)[0])


def test_a_row_of_two_models_has_copies_of_their_tensors_and_new_stitches():
    one, two = made("cnn"), made("fedhenn-3")
    pieces = [cut(one, examples())[0], *cut(two, examples())[1:]]
    row = Row(pieces)
    weights = [s.items(lambda name: True) for s in (one, two, two, two)]
    params = row.initial(weights)
    assert not stitches(row)  # 32 maps both, of one size
    assert torch.equal(params["0.1.weight"], one.view("body.0.weight"))
    params["0.1.weight"] += 1
    assert not torch.equal(params["0.1.weight"], one.view("body.0.weight"))
    wider = Row([cut(one, examples())[0], *cut(made("fedhenn-5"), examples())[2:]])
    assert stitches(wider) == {1: (64, 32)}
    tensors = wider.initial([s.items(lambda name: True) for s in (one, *[made("fedhenn-5")] * 4)])
    assert tensors["1.0.linear.weight"].shape == (64, 32) and tensors["1.0.linear.bias"].any()
