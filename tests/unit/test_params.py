"""Params reads like a formula; Mean is a weighted mean, exact in any order."""

import numpy as np
import pytest
import torch

from hpcfed.core.params import Mean, Params
from tests.on_device import mean_on_both

pytestmark = pytest.mark.quick


def params(**values: float | list) -> Params:
    return Params({name: torch.tensor(value) for name, value in values.items()})


def value(mean: Mean, keep: Params, per: str = "mean") -> Params:
    return mean_on_both(mean.terms, keep, per)


def test_a_formula_is_computed_tensor_by_tensor():
    mixed = (
        0.5 * params(a=2.0, b=[4.0, 0.0])
        + params(a=1.0, b=[1.0, 1.0]) * 2.0
        - params(a=0.5, b=[0.0, 1.0])
    )
    assert mixed["a"].item() == 2.5 and mixed["b"].tolist() == [4.0, 1.0]
    assert isinstance(mixed, Params)


def test_names_that_the_other_side_lacks_are_an_error():
    with pytest.raises(KeyError, match="b"):
        params(a=1.0, b=1.0) + params(a=1.0)


def test_pick_keeps_the_wanted_names_in_their_order():
    assert list(params(c=1.0, a=2.0, b=3.0).pick(lambda name: name != "a")) == ["c", "b"]


def test_a_clone_shares_no_memory_and_has_no_gradient():
    source = Params(a=torch.ones(2, requires_grad=True))
    copy = source.clone()
    copy["a"][0] = 7.0
    assert source["a"].tolist() == [1.0, 1.0] and not copy["a"].requires_grad


def test_bytes_are_those_of_the_tensors():
    assert (
        Params(a=torch.zeros(3, 5), b=torch.zeros(2, dtype=torch.float64)).nbytes == 4 * 15 + 8 * 2
    )
    assert Mean.of(Params(a=torch.zeros(3)), 5.0).nbytes == 12  # a number travels in the header
    assert Mean.of(Params(a=torch.zeros(3, 4)), Params(a=torch.zeros(3, 1))).nbytes == 48 + 12


def test_a_weighted_mean_by_hand():
    parts = Mean.of(params(a=[1.0, 0.0]), 1.0) + Mean.of(params(a=[5.0, 4.0]), 3.0)
    assert value(parts, keep=params(a=[9.0, 9.0]))["a"].tolist() == [4.0, 3.0]


def test_without_any_weight_the_old_value_stays():
    assert value(Mean(), keep=params(a=[9.0]))["a"].tolist() == [9.0]
    assert value(Mean.of(params(a=[1.0]), 0.0), keep=params(a=[9.0]))["a"].tolist() == [9.0]


def test_weights_by_entry_divide_each_entry_by_its_own_sum_and_broadcast():
    masks = params(a=[[1.0], [0.0], [0.0]]), params(a=[[3.0], [2.0], [0.0]])  # [3, 1]
    parts = [
        Mean.of(params(a=[[v, -v]] * 3), mask) for v, mask in zip((1.0, 5.0), masks, strict=True)
    ]
    got = value(parts[0] + parts[1], keep=params(a=[[9.0, 9.0]] * 3), per="row")
    assert got["a"].tolist() == [[4.0, -4.0], [5.0, -5.0], [9.0, 9.0]]


def test_the_mean_of_equal_values_is_that_value_to_the_bit():
    same = Params(a=torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    parts = sum((Mean.of(same, float(n)) for n in (1, 3, 7, 11, 240)), Mean())
    assert torch.equal(value(parts, keep=same * 0)["a"], same["a"])


def test_the_order_of_the_parts_does_not_matter():
    g = np.random.default_rng(0)
    uploads = [
        Mean.of(Params(a=torch.from_numpy(g.normal(size=50) * 10.0**k)), float(k + 1))
        for k in range(6)
    ]
    keep = Params(a=torch.zeros(50, dtype=torch.float64))
    assert torch.equal(
        value(sum(uploads, Mean()), keep)["a"], value(sum(uploads[::-1], Mean()), keep)["a"]
    )


def test_the_mean_has_the_type_of_the_value_that_it_replaces():
    half = Params(a=torch.ones(2, dtype=torch.bfloat16))
    assert value(Mean.of(half, 3.0), keep=half)["a"].dtype == torch.bfloat16


def test_rows_that_a_client_does_not_have_keep_their_old_value_and_cost_no_bytes():
    part = Mean.of(params(a=[[1.0, 2.0]]), params(a=[[3.0]]), at={"a": ([2],)})
    other = Mean.of(
        params(a=[[5.0, 6.0], [7.0, 8.0]]),
        params(a=[[1.0], [1.0]]),
        at={"a": (torch.tensor([2, 0]),)},
    )
    got = value(part + other, keep=params(a=[[9.0, 9.0]] * 3), per="row")
    assert got["a"].tolist() == [[7.0, 8.0], [9.0, 9.0], [2.0, 3.0]] and part.nbytes == 8 + 4


def test_a_piece_fills_the_places_where_its_rows_and_columns_cross():
    part = Mean.of(params(a=[[1.0, 2.0]]), 2.0, at={"a": ([1], [2, 0])})
    mean = Mean.of(params(a=[[4.0] * 3] * 2), 1.0)
    got = value(part + mean, keep=params(a=[[9.0] * 3] * 2), per="value")
    assert got["a"].tolist() == [[4.0, 4.0, 4.0], [pytest.approx(8 / 3), 4.0, 2.0]]


def test_tensors_that_a_part_lacks_keep_their_old_value():
    got = value(Mean.of(params(b=1.0), 2.0), keep=params(a=9.0, b=9.0), per="tensor")
    assert got["a"].item() == 9.0 and got["b"].item() == 1.0


def test_an_unknown_or_fractional_part_is_refused():
    with pytest.raises(ValueError, match="per = tensor, row or value"):
        value(Mean.of(params(b=1.0)), keep=params(a=9.0, b=9.0))
    with pytest.raises(KeyError, match="no tensor 'c' among"):
        value(Mean.of(params(c=1.0)), keep=params(a=9.0))


def test_prefixes_put_several_params_into_one_and_take_them_out_again():
    both = Params({**params(a=1.0).prefixed("x/"), **params(a=2.0).prefixed("c/")})
    assert list(both) == ["x/a", "c/a"] and both.under("c/")["a"].item() == 2.0
