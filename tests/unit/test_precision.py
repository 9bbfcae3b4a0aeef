"""run.precision = "bf16": which layers are computed in bfloat16, and what stays float32."""

from __future__ import annotations

import math
from copy import deepcopy
from types import MethodType

import pytest
import torch
from torch import Tensor, nn

from hpcfed.algorithms.personal.factors import factorise
from hpcfed.core import rng
from hpcfed.models import build, precision
from hpcfed.models.finetuning import Finetuning
from hpcfed.models.model import Head, Model
from hpcfed.models.precision import (
    SMALL,
    autocast,
    choose_precisions,
    full,
    least_batches,
    stays_float32,
)
from hpcfed.models.transformer import Attend
from hpcfed.training.losses import at_ascent

pytestmark = pytest.mark.quick
CPU = torch.device("cpu")


def dtypes(model: nn.Module, x: Tensor) -> dict[str, torch.dtype]:
    """Return the type of each layer's output under autocast, by the layer's name."""
    types: dict[str, torch.dtype] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, y, name=name: types.update({name: y.dtype}))
    with autocast("bf16", CPU), torch.no_grad():
        model(x)
    return types


@pytest.mark.parametrize(
    ("layer", "shape", "float32"),
    [
        (nn.Linear(1000, 500), (9, 1000), True),  # 4.5 million multiply-adds
        (nn.Linear(1000, 500), (10, 1000), False),  # 5 million
        (nn.Conv2d(32, 64, 5, padding=2), (10, 32, 14, 14), False),
        (nn.Conv2d(32, 64, 5, padding=2), (1, 32, 7, 7), True),
        (nn.Conv2d(512, 512, 3, padding=1, groups=512), (64, 512, 32, 32), True),
        (nn.Conv2d(256, 256, 3, padding=1, groups=64), (64, 256, 8, 8), True),
        (nn.Conv2d(256, 256, 3, padding=1, groups=32), (64, 256, 8, 8), False),
        (nn.Conv2d(64, 64, 3, stride=2), (64, 64, 2, 2), True),  # a quarter of the products
        (nn.ConvTranspose2d(64, 32, 4, stride=2), (64, 64, 8, 8), False),
        (nn.LSTM(8, 256, batch_first=True), (64, 20, 8), False),
        (nn.LSTM(8, 64, batch_first=True), (10, 20, 8), True),
        (nn.GRU(8, 64, batch_first=True), (64, 20, 8), True),
        (nn.GRU(64, 256, batch_first=True), (64, 20, 64), False),
        (nn.GroupNorm(32, 64), (64, 64, 8, 8), True),
        (nn.GroupNorm(4, 64), (64, 64, 128, 128), False),
        (nn.MultiheadAttention(256, 8), (64, 64, 256), True),
        (Attend(), (64, 8, 64, 32), False),
        (Attend(), (64, 4, 32, 16), True),
    ],
)
def test_the_shape_of_a_layer_decides_its_precision(
    layer: nn.Module, shape: tuple[int, ...], float32: bool
):
    assert stays_float32(layer, torch.empty(shape)) == float32


def test_the_cnn_multiplies_in_bfloat16_and_returns_float32():
    model = build("cnn", (1, 28, 28), 10, 512)
    choose_precisions(model)
    types = dtypes(model, torch.randn(10, 1, 28, 28))
    low = {name for name, dtype in types.items() if dtype == torch.bfloat16}
    assert {"body.0", "body.3", "body.7"} <= low  # both convolutions, and the linear layer
    assert types["body"] == types["head"] == types[""] == torch.float32


def test_depthwise_convolutions_stay_float32():
    model = build("shufflenetv2", (3, 32, 32), 10, 64)
    choose_precisions(model)
    types = dtypes(model, torch.randn(64, 3, 32, 32))
    depthwise = [n for n, m in model.named_modules() if getattr(m, "groups", 1) > 1]
    assert depthwise and all(types[name] == torch.float32 for name in depthwise)
    assert torch.bfloat16 in types.values()


def test_without_autocast_nothing_changes():
    model, x = build("resnet18", (3, 32, 32), 10, 64), torch.randn(4, 3, 32, 32)
    other = deepcopy(model)
    choose_precisions(other)
    assert torch.equal(model(x), other(x))


def test_a_copy_computes_with_its_own_weights():
    model = build("mlp", (20,), 4, 8)
    choose_precisions(model)
    other, x = deepcopy(model), torch.randn(3, 20)
    before = model(x)
    with torch.no_grad():
        other.head.weight.zero_()
    assert torch.equal(model(x), before) and not torch.equal(other(x), before)


def test_full_switches_autocast_off_inside_and_on_again_after_it():
    a = torch.randn(4, 4)
    with autocast("bf16", CPU):
        with full(CPU):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16
    with full(CPU):
        pass
    assert (a @ a).dtype == torch.float32


def test_a_layer_under_the_limit_has_the_bits_of_float32_behind_one_above_it():
    layer, low = nn.Linear(8, 4), torch.randn(5, 8).bfloat16()
    net = nn.Sequential(layer)
    choose_precisions(net)
    assert 5 * 8 * 4 < SMALL
    with autocast("bf16", CPU):
        y = net(low)
    assert torch.equal(y, nn.functional.linear(low.float(), layer.weight, layer.bias))


class Products(nn.Module):
    """A body that multiplies in its own forward, outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_the_least_batch_of_a_layer_follows_from_its_multiply_adds():
    batches = least_batches(build("mlp", (784,), 10, 512), torch.zeros(1, 784))
    assert batches == {
        "body.1": math.ceil(SMALL / (784 * 200)),
        "body.3": math.ceil(SMALL / (200 * 512)),
        "head": math.ceil(SMALL / (512 * 10)),
    }


def test_layers_that_stay_float32_have_no_least_batch():
    model = build("shufflenetv2", (3, 32, 32), 10, 64)
    batches = least_batches(model, torch.zeros(1, 3, 32, 32))
    depthwise = [n for n, m in model.named_modules() if getattr(m, "groups", 1) > 1]
    assert depthwise and all(batches[name] == math.inf for name in depthwise)
    assert min(batches.values()) == 11


@pytest.mark.parametrize("n", [10, 11])
def test_the_least_batch_is_that_from_which_layers_are_computed_in_bfloat16(n: int):
    model = build("shufflenetv2", (3, 32, 32), 10, 64)
    batches = least_batches(model, torch.zeros(1, 3, 32, 32))
    choose_precisions(model)
    types = dtypes(model, torch.randn(n, 3, 32, 32))
    assert {name for name in batches if types[name] == torch.bfloat16} == {
        name for name, least in batches.items() if least <= n and name != "head"
    }


def test_products_outside_of_layers_count_from_a_batch_of_one():
    model = Model(Products(), Head(8, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = least_batches(model, torch.zeros(1, 20))
    assert batches[""] == 1 and batches["head"] > 1e5
    assert model.training and not torch.is_autocast_enabled("cpu")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_without_a_layer_in_bfloat16_is_computed_without_autocast():
    model = build("mlp", (784,), 10, 512)
    model.bf16_batch = min(least_batches(model, torch.zeros(1, 784)).values())
    views, one = [torch.zeros(16, 784), torch.zeros(16, 784)], {"a": torch.zeros(31, 784)}
    for x, low in ((torch.zeros(31, 784), False), (views, True), (one, False)):
        with autocast("bf16", CPU, model, x):
            assert torch.is_autocast_enabled("cpu") == low
    with autocast("bf16", CPU, nn.Linear(2, 2), torch.zeros(1, 2)):  # it is not known
        assert torch.is_autocast_enabled("cpu")


def test_a_forward_that_a_user_has_set_on_one_module_is_what_it_computes():
    """On a layer, and on a body; in a copy with the copy's weights."""
    layer = nn.Linear(20, 8)
    layer.forward = MethodType(lambda self, x: nn.functional.linear(x, 2 * self.weight), layer)
    body = nn.Sequential(layer)
    body.forward = MethodType(lambda self, x: self[0](x) + 1, body)
    model, x = Model(body, Head(8, 3)), torch.randn(5, 20)
    want = model(x)
    choose_precisions(model)
    assert torch.equal(model(x), want)
    with autocast("bf16", CPU):
        assert torch.equal(model(x), want)  # all layers are small
    other = deepcopy(model)
    with torch.no_grad():
        other.body[0].weight.zero_()
    assert torch.equal(other.body(x), torch.ones(5, 8))
    assert torch.equal(model(x), want)


def is_rounded(value: Tensor) -> bool:
    return torch.equal(value, value.bfloat16().to(value.dtype))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(1000, 500), (16, 1000)),
        (nn.Linear(1000, 500, bias=False), (16, 1000)),
        (nn.Conv1d(32, 64, 5, padding=2), (16, 32, 64)),
        (nn.Conv2d(32, 64, 3, stride=2, padding=1, padding_mode="reflect"), (4, 32, 24, 24)),
        (nn.Conv3d(16, 16, 3, groups=2), (4, 16, 8, 8, 8)),
    ],
)
def test_without_its_instructions_bfloat16_is_computed_by_float32(
    layer: nn.Module, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    """Outputs and gradients are those of torch's kernels, whose sums are rounded more often."""
    tensors = {}
    choose_precisions(layer)
    for emulated in (False, True):
        monkeypatch.setattr(precision, "is_emulated", lambda emulated=emulated: emulated)
        layer.zero_grad()
        x = torch.linspace(-1, 1, math.prod(shape)).sin().reshape(shape).requires_grad_()
        with autocast("bf16", CPU):
            y = layer(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        tensors[emulated] = [y.detach(), x.grad, *(weight.grad for weight in layer.parameters())]
    for ours, torchs in zip(tensors[True], tensors[False], strict=True):
        assert is_rounded(ours) == is_rounded(torchs)  # not the gradients of reflected borders
        assert torch.dist(ours.float(), torchs.float()) < 0.02 * torchs.float().norm()


def test_frozen_and_lora_weights_are_rounded_as_autocast_does_without_its_instructions(
    monkeypatch: pytest.MonkeyPatch,
):
    """LoRA's product is rounded, and so is its sum with the frozen weight; frozen layers too."""
    frozen, lora = nn.Linear(1000, 500), nn.Linear(1000, 500)
    Finetuning(train=("none",)).restrict(frozen, None)
    assert not list(frozen.parameters())
    with rng.scoped(0, "init", 0):
        Finetuning(lora=4).restrict(lora, None)
    with torch.no_grad():
        lora.parametrizations.weight[0].b.copy_(torch.linspace(-1, 1, 2000).sin().reshape(500, 4))
    x = torch.linspace(-1, 1, 16_000).sin().reshape(16, 1000)
    for layer in (frozen, lora):
        choose_precisions(layer)
        outputs = {}
        for emulated in (False, True):
            monkeypatch.setattr(precision, "is_emulated", lambda emulated=emulated: emulated)
            with autocast("bf16", CPU):
                outputs[emulated] = layer(x)
        differs = outputs[True] != outputs[False]
        assert differs.double().mean() < 0.01  # the sums' order


def test_a_layers_own_forward_is_computed_where_bfloat16_is_emulated(
    monkeypatch: pytest.MonkeyPatch,
):
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    monkeypatch.setattr(precision, "is_emulated", lambda: True)
    plain, doubled = nn.Linear(1000, 500), Doubled(1000, 500)
    doubled.load_state_dict(plain.state_dict())
    choose_precisions(plain)
    choose_precisions(doubled)
    x = torch.ones(16, 1000)
    with autocast("bf16", CPU), torch.no_grad():
        torch.testing.assert_close(doubled(x), 2 * plain(x), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("model, x", [("cnn", (1, 28, 28)), ("mlp", (20,))])
def test_layers_whose_weights_are_products_of_factors_stay_float32(
    model: str, x: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(precision, "SMALL", 0)
    factorised = factorise(build(model, x, 10, 32), 4, 4.0, 1.0, personal=False)
    choose_precisions(factorised)
    assert set(dtypes(factorised, torch.randn(10, *x)).values()) == {torch.float32}
    assert least_batches(factorised, torch.zeros(1, *x)) == {}


def test_the_ascent_of_a_small_layer_is_computed_in_float32():
    """Its gradient is taken inside of the loss, where autocast would reach its products."""
    model, x, y = nn.Linear(20, 3), torch.randn(8, 20), torch.arange(8) % 3
    choose_precisions(model)
    losses = []
    for name in ("float32", "bf16"):
        with autocast(name, CPU):
            losses.append(at_ascent(cross_entropy, model, x, y, rho=1.0))
    assert torch.equal(*losses)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)
