"""One model is one flat buffer: a skeleton trains as the plain module, bit for bit, client after
client.
"""

import copy
from functools import cache

import pytest
import torch
from torch.nn import functional as F

from hpcfed.core.aligned import BOUNDARY
from hpcfed.core.rng import scoped
from hpcfed.models import build
from hpcfed.models.flat import Layout, Skeleton

SHAPE = (1, 16, 16)
CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
CASES = [
    (name, 4, CONTIGUOUS) for name in ("resnet18", "shufflenetv2", "googlenet", "alexnet", "mlp")
]
CASES += [
    ("shufflenetv2", 4, CHANNELS_LAST),
    ("alexnet", 4, CHANNELS_LAST),
    ("resnet18", 1, CONTIGUOUS),
]
each_case = pytest.mark.parametrize(("name", "n", "form"), CASES)
each_format = pytest.mark.parametrize("form", [CONTIGUOUS, CHANNELS_LAST])


def new(name, key=0, form=CONTIGUOUS):
    with scoped(1, "init", key):
        return build(name, SHAPE, 10).to(memory_format=form)


def batch(n, key=0):
    with scoped(2, "batch", key):
        return torch.rand(n, *SHAPE), torch.randint(10, (n,))


def adam(params):
    return torch.optim.Adam(params, lr=0.01, foreach=False)


def train(model, zero, optimiser, n, key=0, steps=2):
    for step in range(steps):
        zero()
        x, y = batch(n, key + step)
        with scoped(3, "dropout", key, step):
            F.cross_entropy(model(x), y).backward()
        optimiser.step()


def train_plain(model, n, key=0):
    optimiser = adam(model.parameters())
    train(model, optimiser.zero_grad, optimiser, n, key)


def train_flat(skeleton, n, key=0):
    train(skeleton.model, skeleton.zero_grad, adam(skeleton.model.parameters()), n, key)


@cache
def trained(name, n, form):
    """A plain module and a skeleton after the same steps."""
    plain = new(name, form=form)
    skeleton = Skeleton(copy.deepcopy(plain))
    train_plain(plain, n)
    train_flat(skeleton, n)
    return plain, skeleton


def same(model, other):
    state = other.state_dict()
    return all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def within(tensor, flat):
    """Whether the tensor lies in the flat vector's memory."""
    return tensor.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


@each_case
def test_a_skeleton_trains_as_the_plain_module_bit_for_bit(name, n, form):
    plain, skeleton = trained(name, n, form)
    assert same(plain, skeleton.model)
    pairs = zip(plain.parameters(), skeleton.model.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs)


@each_case
def test_training_leaves_every_tensor_in_the_flat_buffers(name, n, form):
    _, skeleton = trained(name, n, form)
    for p in skeleton.model.parameters():
        assert within(p, skeleton.flat) and within(p.grad, skeleton.grad)
    floats = [b for b in skeleton.model.buffers() if b.is_floating_point()]
    assert all(within(buffer, skeleton.flat) for buffer in floats)


@pytest.mark.parametrize("name", ["shufflenetv2", "alexnet"])
def test_two_clients_on_one_skeleton_are_two_models(name):
    models = [new(name, key) for key in range(2)]
    skeleton = Skeleton(new(name, key=2))
    flats = [skeleton.layout.flatten(model.state_dict()) for model in models]
    for visit in range(2):
        for k, model in enumerate(models):
            train_plain(model, 3, key=10 * visit + k)
            skeleton.load(flats[k])
            train_flat(skeleton, 3, key=10 * visit + k)
            flats[k].copy_(skeleton.flat)
    assert all(
        torch.equal(flat, skeleton.layout.flatten(model.state_dict()))
        for flat, model in zip(flats, models, strict=True)
    )


@each_format
def test_load_and_flat_are_a_round_trip_and_keep_no_link(form):
    model = new("shufflenetv2", form=form)
    skeleton = Skeleton(new("shufflenetv2", key=1, form=form))
    flat = skeleton.layout.flatten(model.state_dict())
    skeleton.load(flat)
    assert same(model, skeleton.model) and torch.equal(skeleton.flat, flat)
    skeleton.flat.zero_()
    assert flat.any()


def test_a_vector_of_another_size_is_refused():
    with pytest.raises(RuntimeError, match="size"):
        Skeleton(new("mlp")).load(torch.zeros(3))


def test_the_flat_vector_holds_every_value_once_and_parameters_first():
    model = new("shufflenetv2")
    layout = Layout.of(model)
    assert layout.n_params == sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    covered = torch.zeros(layout.size)
    for view in layout.views(covered).values():
        view += 1
    assert set(covered.tolist()) == {0, 1} and covered.sum() == layout.n_params + buffers
    assert covered[: layout.gradient_size].sum() == layout.n_params
    assert layout.params == tuple(name for name, _ in model.named_parameters())
    assert all(name.endswith("num_batches_tracked") for name in layout.integers)
    assert set(layout.names) | set(layout.integers) == set(model.state_dict())


def test_layouts_are_equal_if_architecture_and_memory_format_are():
    assert (
        Layout.of(new("alexnet"))
        == Layout.of(new("alexnet", key=1))
        == Skeleton(new("alexnet")).layout
    )
    assert Layout.of(new("alexnet")) != Layout.of(new("mlp"))
    assert Layout.of(new("alexnet")) != Layout.of(new("alexnet", form=CHANNELS_LAST))
    assert hash(Layout.of(new("mlp"))) == hash(Layout.of(new("mlp")))


def test_a_view_is_the_parameter_and_writing_to_it_changes_the_model():
    skeleton = Skeleton(new("mlp"))
    skeleton.view("head.bias").fill_(2.0)
    assert skeleton.model.head.bias.tolist() == [2.0] * 10
    slot = skeleton.layout.slots["head.bias"]
    assert skeleton.flat[slot].tolist() == [2.0] * 10


@each_format
def test_every_tensor_and_gradient_begins_where_new_memory_would(form):
    # else cuDNN's batch normalisation ends with "misaligned address"
    for name in ("shufflenetv2", "resnet18", "mlp"):
        skeleton = Skeleton(new(name, form=form))
        tensors = [*skeleton.model.parameters(), *skeleton.gradients.values()]
        tensors += [b for b in skeleton.model.buffers() if b.is_floating_point()]
        assert not any(v.data_ptr() % BOUNDARY for v in tensors)


def test_items_are_the_wanted_tensors_by_name():
    skeleton = Skeleton(new("shufflenetv2"))
    head = skeleton.items(lambda name: name.startswith("head."))
    assert list(head) == ["head.weight", "head.bias"] and within(head["head.weight"], skeleton.flat)
    assert tuple(skeleton.items(lambda name: True)) == skeleton.layout.names


def test_zero_grad_keeps_the_gradients_attached():
    skeleton = Skeleton(new("cnn"))
    x, y = batch(4)
    skeleton.zero_grad()
    F.cross_entropy(skeleton.model(x), y).backward()
    assert skeleton.grad.any()
    skeleton.zero_grad()
    assert not skeleton.grad.any() and all(
        within(p.grad, skeleton.grad) for p in skeleton.model.parameters()
    )
