"""Units put in another order are the same model, and are found again."""

import numpy as np
import pytest
import torch
from torch.func import functional_call

from hpcfed.algorithms.matching import permutation
from hpcfed.core.params import Params
from hpcfed.models import build
from hpcfed.models.widths import Units, units

SHAPE, CLASSES, D = (1, 8, 8), 4, 16
KINDS = ("mlp", "cnn", "fedhenn-5", "resnet8", "logistic")


def made(kind: str) -> tuple[torch.nn.Module, Params, Units]:
    """A model with random weights and statistics, its tensors, and its groups."""
    model, g = build(kind, SHAPE, CLASSES, D), torch.Generator().manual_seed(0)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    floats = {n: v.detach() for n, v in tensors.items() if v.is_floating_point()}
    weights = {n: torch.rand(v.shape, generator=g) - 0.4 * (v.dim() > 1) for n, v in floats.items()}
    return model.eval(), Params(weights), units(model, SHAPE)


def shuffled(groups: Units, seed: int) -> permutation.Order:
    g = np.random.default_rng(seed)
    return {group: g.permutation(size) for group, size in groups.sizes.items()}


def parameters(model: torch.nn.Module) -> permutation.Wanted:
    return set(dict(model.named_parameters())).__contains__


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_its_units_in_another_order_is_the_same_function(kind: str):
    model, params, groups = made(kind)
    other = permutation.permute(params, groups, shuffled(groups, 1))
    assert bool(groups.sizes) == any(not torch.equal(other[n], v) for n, v in params.items())
    x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1))
    ours, theirs = (functional_call(model, dict(p), (x,)) for p in (params, other))
    assert torch.allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_permuted_model_is_found_exactly(kind: str):
    model, params, groups = made(kind)
    other = permutation.permute(params, groups, shuffled(groups, 2))
    again = permutation.align(other, params, groups, parameters(model))
    assert all(torch.equal(again[name], value) for name, value in params.items())


def test_a_model_keeps_its_order_where_none_is_nearer():
    model, params, groups = made("mlp")
    near = params.map(lambda v: v + 1e-3 * torch.rand_like(v))
    order = permutation.match(near, params, groups, parameters(model))
    assert all((units_ == np.arange(len(units_))).all() for units_ in order.values())


def test_matching_never_ends_farther_from_the_reference_than_it_began():
    model, params, groups = made("fedhenn-5")
    other = params.map(lambda v: torch.rand(v.shape, generator=torch.Generator().manual_seed(5)))
    wanted = parameters(model)
    before = permutation.square_distance(other, params, wanted)
    after = permutation.square_distance(
        permutation.align(other, params, groups, wanted), params, wanted
    )
    assert after < before


def test_the_hungarian_method_finds_the_cheapest_pairs_by_hand():
    """1 + 2 + 2 = 5; greedily 1 + 2 + 9."""
    cost = torch.tensor([[4.0, 1, 3], [2, 0, 5], [3, 2, 2]])
    assert permutation.assign(cost).tolist() == [1, 0, 2]


def test_units_of_a_linear_layer_have_their_weights_bias_and_outgoing_weights():
    groups = Units(
        {0: 2},
        {"a.weight": ((matching_stretch(),),), "b.weight": (fixed(1), (matching_stretch(),))},
    )
    params = Params(
        {"a.weight": torch.tensor([[1.0, 2], [3, 4]]), "b.weight": torch.tensor([[5.0, 6]])}
    )
    rows = permutation.unit_vectors(params, groups, 0, lambda name: True, (0, 1))
    assert rows.tolist() == [[1, 2, 5], [3, 4, 6]]
    assert permutation.unit_vectors(params, groups, 0, lambda name: True, (0,)).tolist() == [
        [1, 2],
        [3, 4],
    ]


def matching_stretch() -> tuple[int, int, int]:
    return (0, 2, 1)


def fixed(size: int) -> tuple[tuple[int, int, int], ...]:
    return ((-1, size, 1),)
