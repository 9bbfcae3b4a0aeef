"""Every model: body + head, its shapes, its sizes against the papers, small images, one example
alone.
"""

import copy
import subprocess
import sys
from itertools import product

import pytest
import torch
from torch import nn

from hpcfed.core.errors import ConfigError
from hpcfed.core.rng import scoped
from hpcfed.models import MODELS, build, check
from hpcfed.models.cost import cost, work
from hpcfed.models.layers import (
    BatchNorm2d,
    Conv2d,
    depthwise,
    kernel_part,
    kernel_windows,
    use_group_norm,
)

each_model = pytest.mark.parametrize(
    "name", [name for name, entry in MODELS.items() if entry.takes((1, 28, 28))]
)
IMAGES = [(1, 28, 28), (3, 32, 32), (3, 8, 8)]


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def new(name, shape=(1, 28, 28), classes=10, **options):
    with scoped(1, "init"):
        return build(name, shape, classes, **options)


def images(n, shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(2))


@each_model
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_a_model_is_a_body_of_width_d_and_a_linear_head_or_refuses_the_shape(name, shape):
    if name == "googlenet" and shape[1] == 8:
        with pytest.raises(
            ConfigError, match=r"googlenet .* 15x15 .* \[3, 8, 8\]; use one of: resnet18"
        ):
            new(name, shape)
        return
    model = new(name, shape, classes=7, d=24).eval()
    z = model.body(images(2, shape))
    assert (
        z.shape == (2, 24) if name != "logistic" else z.shape == (2, shape[0] * shape[1] * shape[2])
    )
    assert model(images(2, shape)).shape == (2, 7)
    assert torch.equal(
        model(images(2, shape)), nn.functional.linear(z, model.head.weight, model.head.bias)
    )


@each_model
def test_a_model_works_at_the_smallest_size_that_it_claims(name):
    least = MODELS[name].least or 1
    shape = (1, least, least)
    new(name, shape)(images(1, shape)).sum().backward()
    if least > 1:
        with pytest.raises(ConfigError, match=f"at least {least}x{least}"):
            check(name, (1, 40, least - 1))


@each_model
def test_every_parameter_gets_a_gradient_and_training_survives_one_example(name):
    model = new(name)
    model(images(1, (1, 28, 28))).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@each_model
def test_weights_depend_on_the_global_generator_alone(name):
    first, second = new(name).state_dict(), new(name).state_dict()
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    with scoped(2, "init"):
        other = build(name, (1, 28, 28), 10)
    assert not torch.equal(other.head.weight, first["head.weight"])


def test_models_of_the_paper_have_the_sizes_of_the_authors_models():
    rgb = {name: parameters(new(name, (3, 32, 32)).body) for name in list(MODELS)[:4]}
    assert rgb == {
        "resnet18": 11_439_168,
        "shufflenetv2": 1_778_404,
        "googlenet": 12_504_688 - 6_379_984,  # less the auxiliary heads
        "alexnet": 1_813_632,
    }
    assert parameters(new("alexnet", (3, 32, 32)).head) == 5_130


def test_the_cnn_has_the_size_that_the_fedavg_paper_states():
    assert parameters(new("cnn")) == 1_663_370


@pytest.mark.parametrize(
    ("i", "convs", "fcs"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 3), (5, 3, 3)]
)
def test_fedhenns_models_have_their_convolutions_and_fully_connected_layers(i, convs, fcs):
    layers = list(new(f"fedhenn-{i}").modules())
    assert sum(isinstance(m, nn.Conv2d) for m in layers) == convs
    assert sum(isinstance(m, nn.Linear) for m in layers) == fcs


@pytest.mark.parametrize("d", [3, 20, 512])
def test_the_purely_convolutional_model_takes_any_width(d):
    assert new("fedhenn-1", d=d).body(images(2, (1, 28, 28))).shape == (2, d)


def test_a_relu_head_keeps_its_names_and_clips_the_representation():
    model = new("mlp", d=4, relu_head=True)
    assert [name for name, _ in model.named_parameters()][-2:] == ["head.weight", "head.bias"]
    z = torch.tensor([[1.0, -1.0, 2.0, -3.0]])
    assert torch.equal(model.head(z), model.head(z.clamp(min=0)))
    assert not torch.equal(new("mlp", d=4).head(z), model.head(z))  # same weights, no relu


def test_an_unknown_model_is_named_with_its_nearest_neighbours():
    with pytest.raises(ConfigError, match="no model 'resnet180'; did you mean 'resnet18'"):
        build("resnet180", (1, 28, 28), 10)


def test_tables_are_for_models_that_take_any_shape():
    assert new("mlp", (13,), classes=2)(torch.rand(5, 13)).shape == (5, 2)
    with pytest.raises(ConfigError, match=r"\[13\]; use one of: mlp, .*logistic, ft-transformer"):
        check("cnn", (13,))


def test_names_and_shapes_are_checked_without_torch():
    code = (
        "from hpcfed.models import check; import sys; check('mlp', (13,)); print('torch' in "
        "sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("shape", [(4, 6, 3, 3), (1, 6, 3, 1), (3, 6, 1, 1)], ids=str)
def test_our_batch_norm_is_torchs_bit_for_bit(shape):
    ours, torchs = BatchNorm2d(6), nn.BatchNorm2d(6)
    for n in (shape[0], shape[0] + 1):  # with the second batch, running statistics have a past
        assert torch.equal(ours(images(n, shape[1:])), torchs(images(n, shape[1:])))
    for name in ("running_mean", "running_var"):
        assert torch.equal(getattr(ours, name), getattr(torchs, name))
    ours, torchs = ours.eval(), torchs.eval()
    assert torch.equal(ours(images(shape[0], shape[1:])), torchs(images(shape[0], shape[1:])))


def test_batches_are_counted_only_where_the_count_enters_the_statistics():
    fixed, mean, torchs = (
        BatchNorm2d(6),
        BatchNorm2d(6, momentum=None),
        nn.BatchNorm2d(6, momentum=None),
    )
    for n in (3, 4):
        x = images(n, (6, 3, 3))
        fixed(x)
        assert torch.equal(mean(x), torchs(x))
    assert fixed.num_batches_tracked == 0 and mean.num_batches_tracked == 2
    assert torch.equal(mean.running_var, torchs.running_var)


def test_a_single_value_per_channel_is_normalised_with_the_running_statistics():
    norm = BatchNorm2d(2, eps=0.0)
    norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0]))
    assert norm(torch.tensor([[[[3.0]], [[-1.0]]]])).flatten().tolist() == [
        1.0,
        -1.0,
    ]  # (3-1)/2, (-1-2)/3
    assert norm.running_mean.tolist() == [1.0, 2.0] and norm.num_batches_tracked == 0


def test_two_equal_values_per_channel_do_not_blow_up_the_gradient():
    x = torch.ones(2, 3, 1, 1, requires_grad=True)
    BatchNorm2d(3)(x).square().sum().backward()
    assert x.grad.abs().max() < 10


@pytest.mark.parametrize("name", ["resnet18", "shufflenetv2", "googlenet"])
def test_no_batch_norm_of_torch_is_left(name):
    assert not [m for m in new(name).modules() if type(m) is nn.BatchNorm2d]


def test_the_work_of_small_models_by_hand():
    assert work("logistic", (1, 8, 8), 10) == (64 * 10, 64 + 10, 2)  # flattening, then the head
    assert work("mlp", (13,), 2, d=4) == (13 * 200 + 200 * 4 + 4 * 2, 13 + 200 + 200 + 4 + 2, 5)
    assert work("cnn", (1, 28, 28), 10).multiply_adds == (
        28 * 28 * 32 * 25 + 14 * 14 * 64 * 32 * 25 + 3136 * 512 + 512 * 10
    )
    assert cost("logistic", (1, 8, 8), 10) == 640 + 16 * 74 + 40_000 * 2


def test_cost_draws_nothing_and_ranks_the_paper_models_as_measured():
    before = torch.get_rng_state()
    costs = {name: cost(name, (1, 28, 28), 10) for name in list(MODELS)[:4]}
    assert torch.equal(before, torch.get_rng_state())
    assert sorted(costs, key=costs.__getitem__) == [
        "shufflenetv2",
        "googlenet",
        "resnet18",
        "alexnet",
    ]
    assert 4 < costs["alexnet"] / costs["shufflenetv2"] < 16  # measured: 7 to 9


@pytest.mark.parametrize("name", ["cnn", "cnn@0.5", "googlenet", "resnet18"])
def test_weights_of_convolutions_lie_with_their_channels_last(name: str):
    convolutions = [
        p for p in build(name, (3, 32, 32), 10).parameters() if p.dim() == 4 and min(p.shape) > 1
    ]
    assert convolutions
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in convolutions)


@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (5, 1), (5, 2), (7, 2), (1, 1)])
def test_a_convolution_as_one_matrix_product_gives_the_same_maps_and_gradients(
    kernel: int, stride: int
):
    for size, padding in product(range(1, 9), range(kernel // 2 + 1)):
        if size + 2 * padding >= kernel:
            reference = nn.Conv2d(3, 4, kernel, stride, padding).double()
            as_product = copy.deepcopy(reference)
            as_product.__class__ = Conv2d
            x = torch.linspace(-1, 1, 6 * size * (size + 1), dtype=torch.double).view(
                2, 3, size, size + 1
            )
            for conv in (reference, as_product):
                conv(x).square().sum().backward()
            torch.testing.assert_close(as_product(x), reference(x))
            torch.testing.assert_close(as_product.weight.grad, reference.weight.grad)


def test_all_outputs_of_a_3x3_kernel_see_one_pixel_and_two_pixels_but_not_three():
    assert [kernel_windows(size, 3, 1, 1) for size in (1, 2, 3)] == [
        (slice(1, 2),),
        (slice(1, 3), slice(0, 2)),
        (),
    ]
    assert (kernel_windows(2, 3, 1, 2), kernel_windows(1, 1, 0, 1), kernel_windows(2, 1, 0, 1)) == (
        (slice(1, 3),),
        (slice(0, 1),),
        (),
    )


def test_the_used_part_of_a_kernel_is_a_slice_with_a_gradient_of_one_operation():
    weight = torch.arange(90.0).view(2, 3, 5, 3).requires_grad_()
    part = kernel_part(weight, slice(1, 3), slice(0, 4))
    assert torch.equal(part, weight[:, 1:3, :4])
    ((below, _),) = part.grad_fn.next_functions
    assert below.variable is weight  # no operation between them
    (gradient,) = torch.autograd.grad(part.sum(), [weight])
    assert gradient[:, 1:3, :4].eq(1).all() and gradient.sum() == part.numel()
    assert kernel_part(weight, slice(0, 3), slice(0, 5)) is weight


@pytest.mark.parametrize("outputs", [6, 12])
def test_a_gpus_depthwise_convolution_gets_tensors_with_channels_first_and_has_the_same_values(
    outputs, monkeypatch
):
    layer = nn.Conv2d(6, outputs, 3, stride=2, padding=1, groups=6).double()
    layer = layer.to(memory_format=torch.channels_last)
    x = images(2, (6, 5, 7)).double().to(memory_format=torch.channels_last).requires_grad_()
    expected = layer(x)
    wanted = torch.autograd.grad(expected.square().sum(), [x, *layer.parameters()])
    convolve, strides = nn.functional.conv2d, []

    def watched(x, weight, *more):
        strides.append((x.stride(), weight.stride()))
        return convolve(x, weight, *more)

    monkeypatch.setattr(nn.functional, "conv2d", watched)
    y = depthwise(layer, x)
    # torch takes a tensor for channels-last by its strides, also where an axis has length 1
    assert strides == [((6 * 5 * 7, 5 * 7, 7, 1), (9, 9, 3, 1))]
    torch.testing.assert_close(y, expected)
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    torch.testing.assert_close(gradients, wanted)


def test_the_gradient_of_a_convolution_as_a_matrix_product_lies_as_its_weight_does():
    conv = build("resnet18", (3, 32, 32), 10).body.layer4[1].conv1
    value = conv(torch.ones(2, 512, 1, 1)).sum()
    (gradient,) = torch.autograd.grad(value, [conv.weight])
    assert gradient.stride() == conv.weight.stride()


OWN = """
from torch import nn

def halves(shape, d):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, d // 2), nn.Linear(d // 2, d))

def narrow(shape, d):
    return nn.Flatten()

number = 3
"""


@pytest.fixture
def own_models(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_models")
def test_a_function_of_ones_own_makes_a_body():
    model = new("own_models:halves", (1, 8, 8), classes=5, d=16)
    assert model.training and model(images(3, (1, 8, 8))).shape == (3, 5)
    with pytest.raises(ConfigError, match="not texts"):
        check("own_models:halves", (32,), vocabulary=100)


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    "name, message",
    [
        ("own_models:narrow", r"makes \[2, 64\] of two inputs .* but models.d is 16"),
        ("own_models:number", "no function"),
        ("own_models:none", "own_models.py has no 'none'"),
        ("no_such:body", "there is no no_such.py"),
    ],
)
def test_functions_that_make_no_body_of_the_right_width_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        new(name, (1, 8, 8), d=16)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("resnet18", {64: 32, 512: 32}), ("shufflenetv2", {24: 12, 58: 29, 1024: 32})],
)
def test_group_normalisation_takes_the_place_of_that_of_batches(name: str, groups: dict):
    model = new(f"{name}~groupnorm", (3, 32, 32), 4, d=16).train()
    norms = {m.num_channels: m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)}
    assert groups.items() <= norms.items()
    assert not any(n.endswith("running_mean") for n, _ in model.named_buffers())
    x = images(5, (3, 32, 32))
    torch.testing.assert_close(model.body(x)[:1], model.body(x[:1]), rtol=1e-3, atol=1e-4)


def test_group_normalisation_is_that_of_torch():
    net = use_group_norm(nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6, eps=0.1)))
    x = images(2, (1, 8, 8))
    assert torch.equal(net(x), nn.GroupNorm(3, 6, eps=0.1)(net[0](x)))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d(32), (4, 32)), (nn.BatchNorm2d(32), (4, 32, 1, 1))],
    ids=["vectors", "maps of one pixel"],
)
def test_group_normalisation_of_few_values_is_that_of_all_channels(layer, shape):
    net = use_group_norm(nn.Sequential(layer))
    x = images(4, shape[1:])
    assert torch.equal(net(x), nn.GroupNorm(1, 32)(x))
