"""Sub-models: which units are cut together, what a window keeps, and the smaller model, for every
family of models.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hpcfed.algorithms.widths.fjord import within
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.models import MODELS, build
from hpcfed.models.cost import cost
from hpcfed.models.layers import BatchNorm2d
from hpcfed.models.model import Head, Model
from hpcfed.models.widths import (
    count_units,
    draw_units,
    roll_units,
    structure,
    take,
    units,
)

SHAPE, CLASSES, D = (3, 32, 32), 10, 32
REFUSED = ("shufflenetv2",)
CUT = [  # of a family of several depths the shallowest
    name
    for name, entry in MODELS.items()
    if not (entry.text or entry.modal or entry.dual or entry.table or name in REFUSED)
    and (not entry.family or name.endswith("-2"))
]
each_model = pytest.mark.parametrize("name", CUT)
WIDTHS = (0.5, 0.3)


def new(name: str, seed: int = 0, d: int = D) -> Model:
    with rng.scoped(seed, "init"):
        return build(name, SHAPE, CLASSES, d)


def tensors(model: nn.Module) -> Params:
    """Parameters and float buffers by name."""
    return Params({n: v for n, v in model.state_dict().items() if v.is_floating_point()})


def images(n: int) -> torch.Tensor:
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(2))


def paste(old: Params, pieces: Params, window: dict) -> Params:
    """The tensors with these pieces in their places."""
    new_ = old.clone()
    for name, value in pieces.items():
        at = window.get(name, ())
        new_[name][np.ix_(*at) if at else ...] = value
    return new_


def test_ceil_decides_how_many_units_are_kept_and_one_always_is():
    assert [count_units(10, w) for w in (1.0, 0.5, 0.25, 0.1, 0.01)] == [10, 5, 3, 1, 1]
    assert (
        count_units(200, 0.29) == 58 and count_units(100, 0.07) == 7
    )  # 0.29 * 200 is 57.99..., 0.07 * 100 is 7.00...1


def test_the_groups_of_a_small_net_by_hand():
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 6),
    )
    groups = units(Model(body, Head(6, 3)), (1, 4, 4))
    window = groups.window(0.5)
    assert list(groups.sizes.values()) == [4, 6]  # the convolution's channels, the representation
    assert {name: [list(axis) for axis in axes] for name, axes in window.items()} == {
        "body.0.weight": [[0, 1], [0]],
        "body.0.bias": [[0, 1]],
        "body.1.weight": [[0, 1]],
        "body.1.bias": [[0, 1]],
        "body.1.running_mean": [[0, 1]],
        "body.1.running_var": [[0, 1]],
        "body.5.weight": [
            [0, 1, 2],
            [0, 1, 2, 3, 4, 5, 6, 7],
        ],  # a channel is four places of the flattened map
        "body.5.bias": [[0, 1, 2]],
        "head.weight": [[0, 1, 2], [0, 1, 2]],  # all classes
    }


def test_a_residual_sum_makes_one_group_of_two():
    net = structure("resnet18", SHAPE, CLASSES, D)
    stage = ["body.conv1", "body.layer1.0.conv2", "body.layer1.1.conv2"]
    groups = {net.axes[f"{layer}.weight"][0][0].group for layer in stage}
    assert len(groups) == 1 and net.axes["body.layer1.0.conv1.weight"][0][0].group not in groups
    assert (
        net.axes["body.layer2.0.downsample.0.weight"][0]
        == net.axes["body.layer2.0.conv2.weight"][0]
    )


def test_a_concatenation_puts_groups_side_by_side():
    axes = structure("googlenet", SHAPE, CLASSES, D).axes
    parts = ("branch1", "branch2.1", "branch3.1", "branch4.1")
    want = tuple(axes[f"body.inception3a.{part}.conv.weight"][0][0] for part in parts)
    assert axes["body.inception3b.branch1.conv.weight"][1] == want


@each_model
def test_every_tensor_has_its_place_and_the_count_falls_with_the_square_of_the_width(name: str):
    full = new(name, d=512)
    net = structure(name, SHAPE, CLASSES, 512)
    assert set(net.axes) == set(tensors(full))
    for tensor, axes in net.axes.items():
        lengths = [sum(size * repeat for _, size, repeat in axis) for axis in axes]
        assert lengths == list(tensors(full)[tensor].shape[: len(axes)])
    sizes = [
        sum(v.numel() for v in model.parameters()) for model in (full, new(f"{name}@0.5", d=512))
    ]
    shallow = {
        "logistic": (1, 1),
        "fedhenn-1": (0.5, 0.51),
        "mlp": (0.4, 0.5),
        "resmlp-2": (0.4, 0.5),
    }  # where inputs and classes weigh most
    low, high = shallow.get(name, (0.25, 0.29))
    assert low <= sizes[1] / sizes[0] <= high


@each_model
def test_the_narrow_model_is_the_leading_slice_and_takes_and_gives_what_the_full_one_does(
    name: str,
):
    """And computes what the full model does with its other units silent."""
    full = new(name)
    weights, net = tensors(full).clone(), structure(name, SHAPE, CLASSES, D)
    for width in WIDTHS:
        small, window = new(f"{name}@{width}"), net.window(width)
        pieces = take(weights, window)
        assert all(torch.equal(value, pieces[n]) for n, value in tensors(small).items())
        silent = paste(weights * 0.0, pieces, window)
        silent |= {n: v for n, v in weights.items() if "running_var" in n}
        full.load_state_dict(silent, strict=False)
        z = small.eval()(images(2))
        assert z.shape == (2, CLASSES)
        assert torch.allclose(full.eval()(images(2)), z, atol=1e-5)
        assert small.body(images(2)).shape[1] == small.head.in_features
        small.train()(images(3)).square().sum().backward()
        assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())


@each_model
def test_a_slice_pasted_back_changes_nothing_and_fits_the_narrow_model(name: str):
    """And a window of all units is the model."""
    weights, net = tensors(new(name)), structure(name, SHAPE, CLASSES, D)
    shapes = {n: v.shape for n, v in tensors(new(f"{name}@0.5")).items()}
    for choose in (roll_units(3), roll_units(7), draw_units(rng.stream(0, "window"))):
        window = net.window(0.5, choose)
        pieces = take(weights, window)
        assert {n: v.shape for n, v in pieces.items()} == shapes
        pasted = paste(weights, pieces, window)
        assert all(torch.equal(pasted[n], value) for n, value in weights.items())
        everything = take(weights, net.window(1.0, choose))
        assert all(torch.equal(value, weights[n]) for n, value in everything.items())


def test_a_rolling_window_has_no_unit_twice_and_covers_all_evenly():
    net = structure("cnn", SHAPE, CLASSES, D)
    group = net.axes["body.0.weight"][0][0]
    uses = np.zeros(group.size, int)
    for t in range(group.size):
        unit = net.window(0.3, roll_units(t))["body.0.bias"][0]
        assert len(set(unit)) == len(unit) == count_units(group.size, 0.3)
        uses[unit] += 1
    assert (uses == count_units(group.size, 0.3)).all()
    wrapped = net.window(0.3, roll_units(group.size - 2))["body.0.bias"][0]
    assert wrapped.tolist() == [
        *range(count_units(group.size, 0.3) - 2),
        group.size - 2,
        group.size - 1,
    ]


def test_drawn_windows_are_reproducible_even_and_nested_by_width():
    net, uses = structure("cnn", SHAPE, CLASSES, D), np.zeros(32, int)
    for k in range(400):
        wide, slim = (
            net.window(w, draw_units(rng.stream(0, "window", k)))["body.0.bias"][0]
            for w in (0.5, 0.25)
        )
        assert set(slim) < set(wide) and len(wide) == 16
        assert np.array_equal(
            wide, net.window(0.5, draw_units(rng.stream(0, "window", k)))["body.0.bias"][0]
        )
        uses[wide] += 1
    assert abs(uses - 200).max() < 50  # five standard deviations of a fair draw


@pytest.mark.parametrize("name", ["cnn", "alexnet", "googlenet"])
def test_a_narrower_window_lies_within_a_wider_one(name: str):
    weights, net = tensors(new(name)), structure(name, SHAPE, CLASSES, D)
    wide, slim = net.window(0.5), net.window(0.25)
    direct, twice = take(weights, slim), take(take(weights, wide), within(slim, wide))
    assert all(torch.equal(direct[n], twice[n]) for n in weights)
    assert within(slim, {}) == slim


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_mixes_channels_otherwise_is_refused_before_it_is_used(name: str):
    with pytest.raises(
        ConfigError, match=r"ShuffleNetV2 cannot be cut .*; set models.widths = \[1\]"
    ):
        cost(f"{name}@0.5", SHAPE, CLASSES, D)


def test_sums_that_cannot_be_tied_are_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x) + x

    class Scaled(Odd):
        def forward(self, x):
            return F.layer_norm(self.a(x), (4,))

    with pytest.raises(ConfigError, match="a sum with the inputs"):
        units(Model(Odd(), Head(4, 2)), (4,))
    with pytest.raises(ConfigError, match="layer_norm"):
        units(Model(Scaled(), Head(4, 2)), (4,))


def test_a_narrow_model_costs_less():
    full, half = (cost(name, SHAPE, CLASSES, D) for name in ("cnn", "cnn@0.5"))
    assert half < 0.6 * full
