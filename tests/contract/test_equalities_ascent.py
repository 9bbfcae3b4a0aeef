"""FedSAM, FedASAM and FedSpeed, whose gradients are those after one step of ascent: golden values,
what they become in neutral settings, all engines, and two rounds in plain torch.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from hpcfed.algorithms.global_model.fedasam import FedASAM
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.training.losses import ascent, at_ascent
from tests.contract import toy
from tests.contract.referee import TWO, Referee, cross_entropy, equal_mean, gradient, mean
from tests.contract.test_equalities import near, run

ASCENTS = ("fedsam", "fedasam", "fedspeed")
NEUTRAL = {  # method: the method that it is without the ascent, and its state beside the model
    "fedsam": ("fedavg", ()),
    "fedasam": ("fedavg", ()),
    "fedspeed": ("feddyn", ("h",)),
}


class Bowl(nn.Module):
    """(x_1^2 + 4 x_2^2) / 2 of its weights, from (1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self) -> torch.Tensor:
        return (torch.tensor([0.5, 2.0]) * self.weight.square()).sum()


@pytest.mark.parametrize(
    "rho, eta, step, after",
    [
        (0.1, None, [0.024254, 0.097014], [0.897575, 0.561194]),
        (0.7, 0.2, [0.203730, 0.814920], [0.879627, 0.274032]),
    ],
)
def test_a_step_after_the_ascent_by_hand(rho, eta, step, after):
    model = Bowl()
    value = at_ascent(lambda model, x, y: model(), model, None, None, rho, eta)
    (slope,) = torch.autograd.grad(value, [model.weight])
    assert (model.weight - 0.1 * slope).tolist() == pytest.approx(after, abs=1e-6)
    shift = ascent({"weight": model.weight}, [torch.tensor([1.0, 4.0])], rho, eta)["weight"]
    assert shift.tolist() == pytest.approx(step, abs=1e-6)
    assert torch.equal(model.weight, torch.ones(2))


def test_the_ascent_has_length_rho_and_is_zero_without_a_gradient():
    g = torch.Generator().manual_seed(0)
    weights = {"a.weight": torch.randn(4, 3, generator=g), "a.bias": torch.randn(4, generator=g)}
    slopes = [torch.randn(v.shape, generator=g) for v in weights.values()]
    shift = ascent(weights, slopes, 0.3)
    assert sum(v.square().sum() for v in shift.values()).sqrt().item() == pytest.approx(0.3)
    for eta in (None, 0.2):
        still = ascent(weights, [0 * slope for slope in slopes], 0.3, eta)
        assert all(torch.equal(v, torch.zeros_like(v)) for v in still.values())
    ones = {name: torch.where(v < 0, -1.0, 1.0) for name, v in weights.items()}
    adaptive = ascent(ones, slopes, 0.3, 0.0)
    assert all(torch.equal(v, shift[name]) for name, v in adaptive.items())


@pytest.mark.parametrize("method", ASCENTS)
def test_without_the_ascent_a_method_is_its_plain_one_to_the_bit(method: str):
    plain, parts = NEUTRAL[method]
    alpha = ("--algorithm.alpha", "0.1") if plain == "feddyn" else ()
    flags = ("--models.mix", "small", *alpha)
    ours, theirs = run(method, "--algorithm.rho", "0", *flags), run(plain, *flags)
    x = theirs.state["x"] if parts else theirs.state
    assert toy.differences(ours.state["x"], x) == []
    for name in parts:
        assert toy.differences(ours.state[name], theirs.state[name]) == []
    for column in ("train_loss", "accuracy", "loss", "examples", "work"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


@pytest.mark.parametrize("method", ASCENTS)
def test_all_engines_make_the_same_steps(method: str):
    flags = ("--models.mix", "mlp", "--rounds", "2", "--local.steps", "3")
    runs = {}
    for engine in ("eager", "traced", "stacked"):
        job = toy.given(method, *flags, "--training.engine", engine)
        rounds = toy.start(Serial(), job)
        lines: list[str] = []
        rounds.fed.warnings.say = lines.append  # type: ignore[method-assign]
        work = [rounds.step()[0]["clients/work"].tolist() for _ in range(2)]
        one_by_one = "its own way" if method == "fedspeed" else "no reason"
        assert not [line for line in lines if "cannot" in line and one_by_one not in line]
        runs[engine] = rounds.state.x, work
    eager, traced, stacked = runs.values()
    assert toy.differences(eager[0], traced[0]) == []
    assert near(eager[0], stacked[0], 1e-5)
    assert eager[1] == traced[1] == stacked[1]


def test_the_ascent_doubles_the_work_of_a_round():
    flags = ("--models.mix", "mlp", "--rounds", "1")
    ours, theirs = run("fedsam", *flags).column("work"), run("fedavg", *flags).column("work")
    assert np.array_equal(ours, 2 * theirs) and theirs.max() > 0


def test_statistics_of_batches_are_those_before_the_ascent():
    """After one step of one batch they do not depend on rho."""
    flags = ("--models.mix", "small", "--rounds", "1", "--local.steps", "1")
    ours, theirs = run("fedsam", *flags), run("fedavg", *flags)
    running = {name: v for name, v in ours.state["x"].items() if "running" in name}
    assert running
    assert toy.differences(running, {name: theirs.state[name] for name in running}) == []
    head = ours.state["x"]["head.weight"]
    assert not torch.equal(head, theirs.state["head.weight"])


# --- SWA


def test_swa_is_the_running_mean_and_leaves_the_models_as_they_are():
    flags = ("--models.mix", "mlp", "--rounds", "4", "--algorithm.average_from", "0")
    swa = toy.start(Serial(), toy.given("fedsam", *flags, "--algorithm.average_every", "1"))
    plain = toy.start(Serial(), toy.given("fedsam", "--models.mix", "mlp", "--rounds", "4"))
    models = []
    for _ in range(4):
        swa.step()
        plain.step()
        assert toy.differences(swa.state.x, plain.state.x) == []
        models.append(swa.state.x)
        assert near(swa.state.mean, equal_mean(dict(enumerate(models))), 1e-6)
    swa.finish()
    assert near(swa.state.x, equal_mean(dict(enumerate(models))), 1e-6)
    plain.finish()
    assert toy.differences(plain.state.x, models[-1]) == []


def test_swa_averages_every_second_model_of_the_last_three_quarters():
    method = FedASAM(average_every=2, average_from=0.25)
    job = toy.job("fedasam", "--rounds", "8")
    w = [Params(w=torch.tensor([float(t)])) for t in range(8)]
    fed = toy.start(Serial(), job).fed
    state = method.init(fed)
    for t in range(8):
        fed.tallies.open(t)
        state = method.server(fed, state, w[t], [])
    assert state.n == 3 and state.mean["w"].item() == pytest.approx((3 + 5 + 7) / 3)


def test_swa_that_averages_nothing_is_refused():
    with pytest.raises(ConfigError, match="needs more than 11 rounds"):
        toy.start(Serial(), toy.job("fedsam", "--algorithm.average_every", "10"))


# --- Referee


def after_ascent(model, x, y, rho: float, eta: float | None):
    """The gradient of the cross-entropy after one step of ascent, as an objective of torch.optim's
    kind: a value whose gradient is that one.
    """
    slopes = gradient(cross_entropy(model, x, y), model)
    with torch.no_grad():
        before = {name: p.clone() for name, p, _ in slopes}
        t = {
            name: p.abs() + eta if eta is not None and "weight" in name else torch.ones_like(p)
            for name, p in before.items()
        }
        norm = sum((t[name] * g).square().sum() for name, _, g in slopes).sqrt()
        for name, p, g in slopes:
            p += rho * t[name] ** 2 * g / norm
    after = gradient(cross_entropy(model, x, y), model)
    with torch.no_grad():
        for name, p, _ in after:
            p.copy_(before[name])
    return sum((g * p).sum() for _, p, g in after)


@pytest.mark.parametrize("method, rho, eta", [("fedsam", 0.5, None), ("fedasam", 2.0, 0.2)])
def test_two_rounds_of_fedsam_and_fedasam_in_plain_torch(method, rho, eta):
    referee = Referee(method, *TWO, "--algorithm.rho", str(rho))
    w = referee.initial()
    objective = partial(after_ascent, rho=rho, eta=eta)
    for cohort in referee.run():
        w = mean({k: referee.train(k, w, objective) for k in cohort})
    assert near(referee.rounds.state.x, w, 1e-6)


def test_two_rounds_of_fedspeed_in_plain_torch():
    """As the authors' code: h_k += w_k - w; the mean of all h_k is added to that of the models."""
    referee = Referee("fedspeed", *TWO, "--algorithm.rho", "0.5", "--algorithm.alpha", "0.2")
    w = referee.initial()
    h = {k: 0 * w for k in range(6)}
    for cohort in referee.run():
        models = {}
        for k in cohort:

            def objective(model, x, y, k=k, w=w):
                value = after_ascent(model, x, y, 0.5, None)
                for name, p in model.named_parameters():
                    value = value + 0.2 * (
                        0.5 * (p - w[name]).square().sum() + (h[k][name] * p).sum()
                    )
                return value

            models[k] = referee.train(k, w, objective)
        for k, model in models.items():
            h[k] = h[k] + (model - w)
        w = equal_mean(models) + equal_mean(h)
    assert near(referee.rounds.state.x, w, 1e-6)
