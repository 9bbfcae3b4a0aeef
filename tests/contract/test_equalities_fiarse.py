"""FIARSE: what it becomes with all weights, two rounds in plain torch, and which weights clients
have.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from hpcfed.algorithms.widths import fiarse
from hpcfed.algorithms.widths.fiarse import FIARSE, State
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import referee, toy
from tests.contract.test_equalities import run

SMALL = ("--models.mix", "small")
TWO_SIZES = ("--algorithm.sizes", "1,0.25")


def test_with_all_weights_it_is_fedavg_with_equal_weights():
    ours = run("fiarse", *SMALL, "--algorithm.sizes", "1")
    theirs = run("fedavg", *SMALL, "--algorithm.weighting", "uniform")
    rounds = toy.start(Serial(), toy.job("fiarse", *SMALL, "--algorithm.sizes", "1"))
    weights = Params(ours.state["weights"]), Params(ours.state["statistics"])
    state = {**fiarse.split(fiarse.model_of(rounds.fed), weights[0]), **weights[1].under("1/")}
    assert toy.differences(replace(ours, state=state), theirs) == []


@pytest.mark.parametrize("largest_of", ["model", "layer"])
def test_two_rounds_are_those_of_plain_torch(largest_of: str):
    flags = (*referee.FLAGS, "--participation", "1", "--local.augment", "none", *referee.TWO)
    flags = (*flags, *TWO_SIZES, "--algorithm.largest_of", largest_of)
    rounds = toy.start(Serial(), toy.job("fiarse", *flags))
    model = referee.models_of(rounds)[0]
    model.load_state_dict(rounds.fed.initial())
    w = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(2):
        sums = {name: torch.zeros_like(value) for name, value in w.items()}
        counts = {name: torch.zeros_like(value) for name, value in w.items()}
        for k in range(6):
            x, y = referee.batch_of(rounds, k)
            if k % 2 == 0:
                least = dict.fromkeys(w, torch.tensor(0.0))
            elif largest_of == "model":
                everything = torch.cat([value.abs().flatten() for value in w.values()])
                least = dict.fromkeys(w, everything.sort(descending=True).values[n_of(everything)])
            else:
                least = {}
                for layer in ("body.1", "body.3", "head"):
                    names = [n for n in w if n.startswith(f"{layer}.")]
                    of_layer = torch.cat([w[n].abs().flatten() for n in names])
                    value = of_layer.sort(descending=True).values[n_of(of_layer)]
                    least |= dict.fromkeys(names, value)
            has = {name: value.abs() >= least[name] for name, value in w.items()}
            mine = {name: value * has[name] for name, value in w.items()}
            for _ in range(referee.STEPS):
                large = {n: (v.abs() >= least[n]) & has[n] for n, v in mine.items()}
                with torch.no_grad():
                    for name, value in model.named_parameters():
                        value.copy_(mine[name] * large[name])
                value = F.cross_entropy(model(x), y)
                for name, _, slope in referee.gradient(value, model):
                    size = mine[name].abs()
                    if k % 2:
                        factor = 1 + 2 * least[name] * size / (size + least[name]) ** 2
                        slope = slope * factor * large[name]
                    mine[name] = mine[name] - referee.LR * slope
            for name, value in mine.items():
                sums[name] += value * has[name]
                counts[name] += has[name]
        w = {name: sums[name] / counts[name] for name in w}
        rounds.step()
    ours = fiarse.split(fiarse.model_of(rounds.fed), rounds.state.weights)
    for name, value in w.items():
        assert torch.allclose(ours[name], value, rtol=0, atol=1e-5), name


def n_of(values: torch.Tensor) -> int:
    """The place of the smallest of the values that a quarter of them are."""
    return int(0.25 * len(values)) - 1


def state_of(rounds, values: torch.Tensor) -> State:
    return replace(rounds.state, weights=Params({**rounds.state.weights, "masked": values}))


def test_smaller_clients_have_weights_of_larger_ones_and_ties_do_not_exceed_their_share():
    rounds = toy.start(Serial(), toy.job("fiarse", "--models.mix", "mlp"))
    method, fed = rounds.algorithm, rounds.fed
    values = rounds.state.weights["masked"].round(decimals=1)  # of which many are equal
    for largest_of in ("model", "layer"):
        method = FIARSE(largest_of=largest_of)
        places = [
            set(method.positions(fed, state_of(rounds, values), size).tolist())
            for size in (0.5, 0.25, 0.0625)
        ]
        assert places[0] > places[1] > places[2]
        if largest_of == "model":
            assert [len(p) for p in places] == [int(s * len(values)) for s in (0.5, 0.25, 0.0625)]


def test_a_weight_that_nobody_in_the_round_has_keeps_its_value():
    rounds = toy.start(Serial(), toy.job("fiarse", *SMALL, *TWO_SIZES))
    before, method, fed = rounds.state, rounds.algorithm, rounds.fed
    after = method.round(fed, before, [3], 0)  # who has a quarter
    places = method.positions(fed, before, 0.25)
    same = before.weights["masked"] == after.weights["masked"]
    assert same.sum() >= len(same) - len(places) and not same[places].all()
    others = torch.ones_like(same)
    others[places] = False
    assert same[others].all()
    changed = {n for n, v in before.statistics.items() if not torch.equal(v, after.statistics[n])}
    assert changed and all(name.startswith("0.25/") for name in changed)


def test_bytes_are_those_of_the_weights_and_a_bit_for_each():
    rounds = toy.start(Serial(), toy.job("fiarse", "--models.mix", "mlp", *TWO_SIZES))
    n = len(rounds.state.weights["masked"])
    traffic = [rounds.algorithm.traffic(rounds.fed, k) for k in (0, 1)]
    assert traffic == [(4 * n, 4 * n), (4 * (n // 4) + (n + 7) // 8, 4 * (n // 4))]


# --- golden values


def test_masks_and_factors_by_hand():
    w = torch.tensor([3.0, -2.0, 1.0, 0.5], requires_grad=True)
    places = fiarse.largest(w.detach().abs(), 0.5)
    assert places.tolist() == [0, 1]
    masked = fiarse.mask_weight(w, torch.ones(4, dtype=torch.bool), torch.tensor(2.0))
    assert masked.tolist() == [3, -2, 0, 0]
    masked.sum().backward()
    assert w.grad.tolist() == pytest.approx([1.48, 1.5, 0, 0])


def test_the_factor_of_large_weights_is_one_and_without_a_least_size_too():
    w = torch.tensor([1e6, 0.0], requires_grad=True)
    mask = torch.tensor([True, True])
    fiarse.mask_weight(w, mask, torch.tensor([2.0, 0.0])).sum().backward()
    assert w.grad.tolist() == pytest.approx([1, 1], abs=1e-5)


def test_a_mask_as_bytes_is_the_mask():
    mask = torch.arange(11) % 3 == 0
    packed = fiarse.to_bytes(mask)
    assert packed.dtype == torch.uint8 and packed.tolist() == [0b01001001, 0b00000010]
    assert fiarse.has(Params(mask=packed))[:11].equal(mask)
