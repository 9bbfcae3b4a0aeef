"""The optimiser: torch's own steps, bit for bit, on flat moments that a client can keep."""

import copy

import pytest
import torch
from torch.nn import functional as F

from hpcfed.config.sections import Local
from hpcfed.core.rng import scoped
from hpcfed.models import build
from hpcfed.models.flat import Skeleton
from hpcfed.training.engines import gradient
from hpcfed.training.optimisers import Optimiser, clip_gradient

pytestmark = pytest.mark.quick

KINDS = {
    "sgd": ({"optimiser": "sgd"}, lambda p: torch.optim.SGD(p, 0.1, fused=True)),
    "momentum": (
        {"optimiser": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, fused=True),
    ),
    "adam": (
        {"weight_decay": 0.01, "betas": (0.8, 0.99)},
        lambda p: torch.optim.Adam(p, 0.1, betas=(0.8, 0.99), weight_decay=0.01, fused=True),
    ),
}


def start() -> Skeleton:
    with scoped(0, "test"):
        return Skeleton(build("fedhenn-4", (3, 16, 16), 10, 24))


def step(skeleton: Skeleton, optimiser: Optimiser, i: int) -> None:
    """One step on a batch of its own."""
    x = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(i))
    params = [skeleton.parameters[name] for name in optimiser.names]
    optimiser.step(gradient(F.cross_entropy(skeleton.model(x), torch.arange(6)), params))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch(kind: str):
    settings, theirs = KINDS[kind]
    skeleton = start()
    plain = copy.deepcopy(skeleton.model)
    ours, descent = (
        Optimiser(skeleton, Local(**settings), 0.1, None, None),
        theirs(plain.parameters()),
    )
    for i in range(4):
        step(skeleton, ours, i)
        descent.zero_grad()
        x = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(i))
        F.cross_entropy(plain(x), torch.arange(6)).backward()
        descent.step()
    assert all(
        torch.equal(p, q)
        for p, q in zip(plain.parameters(), skeleton.model.parameters(), strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_kept_moments_continue_from_the_last_round(kind: str):
    at_once, parts, settings = start(), start(), Local(**KINDS[kind][0])
    one, moments = Optimiser(at_once, settings, 0.1, None, None), None
    for i in range(4):
        step(at_once, one, i)
        each = Optimiser(parts, settings, 0.1, None, moments)
        step(parts, each, i)
        moments = each.moments
    assert torch.equal(at_once.flat, parts.flat)


def test_only_the_wanted_parameters_have_moments_and_move():
    skeleton = start()
    before = skeleton.items(lambda name: True).clone()
    optimiser = Optimiser(skeleton, Local(), 0.1, lambda name: name.startswith("head."), None)
    step(skeleton, optimiser, 0)
    changed = {
        name
        for name in skeleton.layout.params
        if not torch.equal(skeleton.view(name), before[name])
    }
    assert changed == {"head.weight", "head.bias"} == set(optimiser.names)
    assert [len(v.reshape(-1)) for v in optimiser.lists["exp_avg"]] == [24 * 10, 10]
    assert len(optimiser.moments["exp_avg"]) == 240 + 16  # each begins at a multiple of 64 bytes


def test_without_a_gradient_given_it_steps_down_the_flat_one():
    one, two = start(), start()
    x = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    step(one, Optimiser(one, Local(), 0.1, None, None), 0)
    two.zero_grad()
    F.cross_entropy(two.model(x), torch.arange(6)).backward()
    Optimiser(two, Local(), 0.1, None, None).step()
    assert torch.equal(one.flat, two.flat)


@pytest.mark.parametrize("clip", [0.01, 1e6])
def test_a_clipped_step_is_that_of_torchs_clipped_gradient(clip: float):
    skeleton = start()
    plain = copy.deepcopy(skeleton.model)
    ours = Optimiser(skeleton, Local(optimiser="sgd"), 0.1, None, None, clip)
    theirs = torch.optim.SGD(plain.parameters(), 0.1, fused=True)
    step(skeleton, ours, 0)
    x = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    F.cross_entropy(plain(x), torch.arange(6)).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
    theirs.step()
    assert all(
        torch.equal(p, q)
        for p, q in zip(plain.parameters(), skeleton.model.parameters(), strict=True)
    )


def test_a_clipped_gradient_by_hand():
    pair = [torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])]  # of norm 5
    first, second = clip_gradient(pair, 1.0)
    assert first.item() == pytest.approx(0.6) and second[0].tolist() == pytest.approx([0.0, 0.8])
    assert [v.tolist() for v in clip_gradient(pair, 6.0)] == [[3.0], [[0.0, 4.0]]]
