"""Models cut into blocks, and rows of blocks of several models."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hpcfed.algorithms.public_data.blocks import (
    LAST,
    Block,
    Row,
    cut,
    fits,
    nbytes,
    pooling,
    stitch,
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
    own = row.named(skeleton.items(lambda name: True))
    assert {n.partition(".")[2] for n in own} == set(skeleton.layout.names)
    assert {n.partition(".")[2] for n in row.parameters} == set(skeleton.layout.params)
    assert not row.stitches
    with torch.no_grad():
        assert torch.equal(row.predictor(own)(x), skeleton.model.eval()(x))
        z = skeleton.model.body(x)
        assert torch.equal(row.represent(own, x), z)


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
    assert torch.allclose(stitch(x, after.takes, weight, bias), want, atol=1e-6)
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
    assert row.stitches == {}  # 32 maps both, of one size
    assert torch.equal(params["0.body.0.weight"], one.view("body.0.weight"))
    params["0.body.0.weight"] += 1
    assert not torch.equal(params["0.body.0.weight"], one.view("body.0.weight"))
    wider = Row([cut(one, examples())[0], *cut(made("fedhenn-5"), examples())[2:]])
    assert wider.stitches == {1: (64, 32)}
    assert set(wider.parameters) >= {"1.stitch.weight", "1.stitch.bias"}
