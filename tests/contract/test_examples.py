"""DP-SGD: gradients of single examples, clipped, with noise."""

import math
from collections import Counter, defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms import load as algorithm
from hpcfed.algorithms.trial import check_privacy
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.engine.noisy_gradients import NoisyGradients
from hpcfed.federation.transforms.privacy.accounting import Accountant, Release
from hpcfed.federation.transforms.privacy.examples import Gradients, costliest
from hpcfed.federation.upload import Upload
from hpcfed.training import examples
from hpcfed.training.batches import plan_batches
from tests.contract import toy
from tests.threads import spmd

pytest.importorskip("dp_accounting", reason="needs hpcfed[privacy]")
MLP = ("--rounds", "2", "--models.mix", "mlp")
OPACUS = 0.04712077, 0.03915775, 0.13580175, 0.13917004
PRIVATE = (*MLP, "--privacy.accountant", "rdp", "--privacy.by", "examples", "--privacy.clip")


def gradient_of(model: nn.Module, clip: float, noise: float = 0.0, size: float = 1.0):
    """The gradients of a model, as of client 3 in round 5."""
    parameters = dict(model.named_parameters())
    skeleton = SimpleNamespace(
        model=model, parameters=parameters, flat=torch.zeros(1), gradients=parameters
    )
    fed = SimpleNamespace(
        trial=False,
        seed=0,
        noise_multiplier=noise,
        device=torch.device("cpu"),
        job=SimpleNamespace(
            privacy=SimpleNamespace(clip=clip, noise=noise, by="examples"),
            run=SimpleNamespace(precision="float32"),
            algorithm=SimpleNamespace(name="fedavg"),
        ),
        warnings=SimpleNamespace(say=lambda line: None),
    )
    client = SimpleNamespace(id=3, skeleton=skeleton, architecture="mlp")
    return examples.PrivateGradient(fed, client, 5, "train", tuple(parameters), size)


def line() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def half_square(model, x, y):
    return 0.5 * model(x).square().mean()


def classify(model, x, y):
    return F.cross_entropy(model(x), y)


def two_layers() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.randn(7, 5), torch.randint(0, 3, (7,))


def test_gradients_are_clipped_one_by_one():
    x, y = torch.tensor([[1.0], [2.0]]), torch.zeros(2)
    value, (g,) = gradient_of(line(), clip=1.0)(half_square, x, y)
    assert value == 1.25  # (1 + 4) / 2 / 2
    assert g.item() == pytest.approx(2.0)  # 1 and 4, clipped to 1 each
    assert gradient_of(line(), clip=1e6)(half_square, x, y)[1][0].item() == pytest.approx(5.0)
    assert gradient_of(line(), clip=3.0, size=2.0)(half_square, x, y)[1][0].item() == 2.0


def test_without_a_bound_the_sum_is_the_gradient_of_the_batch():
    model, x, y = two_layers()
    _, gradient = gradient_of(model, clip=1e6, size=len(y))(classify, x, y)
    want = torch.autograd.grad(classify(model, x, y), list(model.parameters()))
    for g, w in zip(gradient, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-7)


def test_clipped_gradients_are_those_of_opacus():
    model, x, y = two_layers()
    _, gradient = gradient_of(model, clip=0.7, size=10)(classify, x, y)
    # Opacus 1.6.0, GradSampleModule and DPOptimizer(noise_multiplier=0, max_grad_norm=0.7,
    # expected_batch_size=10), for this model and batch; its factor is C / (norm + 1e-6)
    norms = [g.norm().item() for g in gradient]
    assert norms == pytest.approx(OPACUS, abs=1e-6)


@pytest.mark.parametrize("n", [1, 511, 512, 40_001])
def test_norms_are_precise(n: int):
    rows = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
    want = rows.double().square().sum(1)
    torch.testing.assert_close(examples.sum_squares(rows), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("at_once", [1, 200, 10**9])
def test_parts_of_a_batch_add_up(at_once, monkeypatch):
    model, x, y = two_layers()
    _, want = gradient_of(model, clip=0.5)(classify, x, y)
    monkeypatch.setattr(examples, "AT_ONCE", at_once)
    value, gradient = gradient_of(model, clip=0.5)(classify, x, y)
    assert value.item() == pytest.approx(classify(model, x, y).item())
    for g, w in zip(gradient, want, strict=True):
        torch.testing.assert_close(g, w)


def test_a_loss_beyond_vmap_is_differentiated_example_by_example():
    model, x, y = two_layers()

    def decides(model, x, y):
        return classify(model, x, y) * (1 if x.sum().item() > 1e9 else 2)

    _, gradient = gradient_of(model, clip=0.5)(decides, x, y)
    _, want = gradient_of(model, clip=0.5)(lambda m, x, y: 2 * classify(m, x, y), x, y)
    for g, w in zip(gradient, want, strict=True):
        torch.testing.assert_close(g, w)


def test_an_empty_batch_is_noise_alone():
    model, x, y = two_layers()
    value, gradient = gradient_of(model, clip=2.0, noise=0.5, size=4.0)(classify, x[:0], y[:0])
    flat = torch.cat([g.flatten() for g in gradient])
    assert value == 0
    assert flat.std().item() == pytest.approx(0.25, rel=0.2)  # 0.5 * 2 / 4
    again = gradient_of(model, clip=2.0, noise=0.5, size=4.0)(classify, x[:0], y[:0])[1]
    assert torch.equal(torch.cat([g.flatten() for g in again]), flat)


def test_poisson_batches_have_the_right_size_in_the_mean():
    fed, client = SimpleNamespace(seed=1), SimpleNamespace(id=0)
    draw = partial(plan_batches, fed, client, 0, np.arange(50), poisson=True)
    rows = draw(10, 4000, True)
    assert len(rows) == 4000
    assert np.mean([len(r) for r in rows]) == pytest.approx(10, abs=0.2)
    assert np.bincount(np.concatenate(rows), minlength=50).min() > 700
    assert len(draw(16, 2, False)) == 8  # two epochs
    assert [len(r) for r in draw(64, 3, True)] == [50, 50, 50]  # q = 1


def test_without_noise_and_clipping_a_run_is_the_plain_method():
    flags = ("--local.batch", "64", "--local.epochs", "2", "--local.optimiser", "sgd")
    plain = toy.run(Serial(), toy.job("fedavg", *MLP, *flags))
    private = toy.run(Serial(), toy.job("fedavg", *PRIVATE, "1e9", *flags))
    for name, value in plain.state.items():
        torch.testing.assert_close(private.state[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedmd", "fedbuff"])
def test_ranks_and_resuming_change_no_bit(method, tmp_path):
    job = toy.job(method, *PRIVATE, "1", "--privacy.noise", "0.5")
    want = toy.run(Serial(), job)
    for got in spmd(2, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path)):
        assert len(got.rows) == 1
    (got,) = spmd(1, lambda comm: toy.run(comm, job, resume=tmp_path))
    assert toy.differences([got.state, got.weights], [want.state, want.weights]) == []
    assert got.rows[-1]["rounds/epsilon"] == want.rows[-1]["rounds/epsilon"]
    quiet = toy.run(Serial(), toy.job(method, *PRIVATE, "1"))
    assert toy.differences([quiet.state, quiet.weights], [want.state, want.weights]) != []


def test_epsilon_is_that_of_the_client_that_costs_most():
    flags = ("--privacy.noise", "1.5", "--participation", "1", "--local.batch", "8")
    outcome = toy.run(Serial(), toy.job("fedavg", *PRIVATE, "1", *flags, "--local.epochs", "3"))
    accountant = Accountant(1e-5, "rdp")
    # 2 rounds of 3 epochs: clients of 1 to 32 examples, batches of 8
    costs = [
        accountant.epsilon([Release(1.5, min(1, 8 / n), 2 * 3 * math.ceil(n / 8))])
        for n in toy.SIZES
    ]
    assert outcome.rows[-1]["rounds/epsilon"] == pytest.approx(max(costs))
    assert outcome.rows[0]["rounds/epsilon"] < max(costs)


def test_a_target_finds_the_noise_and_a_budget_ends_the_run():
    flags = ("--privacy.epsilon", "9", "--participation", "1")
    outcome = toy.run(Serial(), toy.job("fedavg", *PRIVATE, "1", *flags))
    assert 8.9 < outcome.rows[-1]["rounds/epsilon"] <= 9
    rounds = toy.start(Serial(), toy.job("fedavg", *PRIVATE, "1", *flags, "--privacy.noise", "1.1"))
    while not rounds.over:
        row, _ = rounds.step()
    assert rounds.t == 1
    assert row["rounds/epsilon"] <= 9
    assert "privacy budget" in rounds.early_end


def test_training_twice_in_a_round_counts_twice():
    rounds = toy.start(Serial(), toy.job("ditto", *PRIVATE, "1", "--privacy.noise", "2"))
    rounds.step()
    numbers = [gradients.total() for gradients in rounds.fed.account.gradients.values()]
    assert max(numbers) == 4  # the client with 32 examples, in batches of 16


def refusal(method: str, *flags: str) -> str:
    rounds = toy.start(Serial(), toy.job(method, *PRIVATE, "1", *flags))
    with pytest.raises(ConfigError) as error:
        check_privacy(rounds.fed)
    return str(error.value)


def test_what_has_no_gradients_of_single_examples_is_refused_with_the_reason():
    assert "small has BatchNorm2d" in refusal("fedavg", "--models.mix", "small")
    assert "compares examples with one another" in refusal("fedclassavg")
    assert "steps up the gradient of the batch" in refusal("fedsam")
    assert "several gradients" in refusal("pfedme") or "in its own way" in refusal("pfedme")
    assert "prototypes" in refusal("fedproto")
    assert "means of outputs" in refusal("fd")
    assert "count their classes" in refusal("fedrs")
    assert "count their classes" in refusal("ccvr")  # after the last round
    assert "class_weights" in refusal("fedavg", "--local.class_weights", "client")
    assert "balanced_batches" in refusal("fedavg", "--local.balanced_batches", "true")


def test_noise_needs_a_bound_and_somebody_from_whom_to_hide():
    with pytest.raises(ConfigError, match=r"privacy\.clip"):
        toy.job("fedavg", *MLP, "--privacy.by", "examples", "--privacy.noise", "1")
    assert "send nothing" in refusal("local")


def test_other_engines_are_refused():
    with pytest.raises(ConfigError, match=r"training\.engine"):
        toy.job("fedavg", *PRIVATE, "1", "--training.engine", "traced")


@pytest.fixture
def noisy_steps(monkeypatch: pytest.MonkeyPatch) -> dict[int, Counter[float]]:
    """The noisy gradients of each client outside of trials, by the q of their batches."""
    counts: dict[int, Counter[float]] = defaultdict(Counter)
    add_noise = examples.PrivateGradient.noisy

    def noisy(self, total):
        if not self.fed.trial:
            counts[self.client.id][self.size / self.client.n] += 1
        return add_noise(self, total)

    monkeypatch.setattr(examples.PrivateGradient, "noisy", noisy)
    return counts


def largest_epsilon(counts: dict[int, Counter[float]], z: float) -> float:
    """Epsilon of the client that costs most, of numbers of noisy gradients by q."""
    accountant = Accountant(1e-5, "rdp")
    return max(
        accountant.epsilon([Release(z, q, n) for q, n in sorted(each.items())])
        for each in counts.values()
    )


@pytest.mark.parametrize("method", ALGORITHMS)
def test_every_method_stays_within_its_budget_or_is_refused_with_the_reason(
    method: str, noisy_steps
):
    flags = ("--privacy.epsilon", "3", *toy.without_norm(method), "--local.epochs", "2")
    job = toy.job(
        method, *PRIVATE, "1", *flags, "--evaluate.before", "false", "--evaluate.clients", "1"
    )
    try:
        rounds = toy.start(Serial(), job)
        check_privacy(rounds.fed)
    except ConfigError as error:
        # pfedknow needs batch normalisation, which has no gradients of single examples
        assert str(error).startswith(("privacy.by = 'examples'", "pfedknow prunes channels"))
        return
    while not rounds.over:
        row, _ = rounds.step()
        trained = [tally for tally in rounds.fed.tallies.values() if tally.examples]
        assert all(tally.releases for tally in trained)
    assert rounds.t == 2  # the noise is that for all rounds
    assert row["rounds/epsilon"] == largest_epsilon(noisy_steps, rounds.fed.noise_multiplier) <= 3


def foreseen(method: str, *flags: str) -> NoisyGradients:
    job = toy.job(method, *PRIVATE, "1", "--privacy.noise", "1", "--participation", "1", *flags)
    return NoisyGradients(toy.start(Serial(), job).fed)


def test_a_ramp_and_a_warm_up_are_foreseen_round_by_round():
    """Client 5 has 32 examples, of which a batch has 16."""
    ramp = foreseen("ktpfl", "--algorithm.ramp", "3", "--local.epochs", "2", "--rounds", "200")
    assert [ramp.of_round(t)[5][0.5] for t in (0, 1, 2, 3, 150)] == [2, 4, 6, 6, 6]
    steps = ("--algorithm.first_rounds", "90", "--algorithm.inner_steps", "7")
    warm_up = foreseen("reptile", *steps, "--local.epochs", "3", "--rounds", "200")
    assert [warm_up.of_round(t)[5][0.5] for t in (0, 89, 90, 199)] == [6, 6, 7, 7]
    assert warm_up.total()[5] == {0.5: 90 * 6 + 110 * 7}


def test_what_clients_do_before_their_first_round_is_foreseen_once():
    schedule = foreseen("fedmd", "--algorithm.transfer_epochs", "4", "--rounds", "9")
    assert schedule.once(5) == {0.5: 8}
    assert schedule.total()[5] == {0.5: 8 + 9 * 2}


def test_tasks_in_virtual_time_are_foreseen_one_by_one(noisy_steps):
    schedule = foreseen("fedbuff", "--rounds", "3")
    toy.run(Serial(), schedule.fed.job)
    assert schedule.total() == noisy_steps


def test_gradients_of_several_probabilities_are_counted_by_their_own(noisy_steps):
    """The control variate takes all examples, each step 8 of them."""
    flags = ("--privacy.noise", "2", "--algorithm.control", "gradient", "--local.batch", "8")
    outcome = toy.run(Serial(), toy.job("scaffold", *PRIVATE, "1", *flags))
    assert max(len(counts) for counts in noisy_steps.values()) == 2
    assert outcome.rows[-1]["rounds/epsilon"] == largest_epsilon(noisy_steps, 2.0)


def test_a_client_is_compared_with_others_only_if_none_exceeds_it():
    several, rare, once = Gradients({0.5: 3}), Gradients({0.25: 3}), Gradients({1.0: 1})
    assert costliest([rare, several, once, several]) == [once.parts, several.parts]
    assert costliest([Gradients({1.0: 1, 0.1: 5}), once]) == [((0.1, 5), (1.0, 1))]


def test_a_round_that_costs_more_than_was_foreseen_is_not_recorded():
    flags = ("--privacy.epsilon", "3", "--participation", "1")
    rounds = toy.start(Serial(), toy.job("fedavg", *PRIVATE, "1", *flags))
    rounds.fed.account.gradients[5] = Gradients({1.0: 10_000})
    with pytest.raises(ConfigError, match="cost more than expected"):
        rounds.step()
    assert rounds.t == 0


@pytest.mark.parametrize(
    ("method", "flags"), [("fedbabu", ()), ("fedavg", ("--adapt.how", "all", "--adapt.lr", "0.1"))]
)
def test_what_stays_with_clients_after_the_last_round_has_no_noise(method, flags, noisy_steps):
    rounds = toy.start(Serial(), toy.job(method, *PRIVATE, "1", "--privacy.noise", "2", *flags))
    while not rounds.over:
        rounds.step()
    weights, steps = rounds.fed.clients[5].params(), sum(c.total() for c in noisy_steps.values())
    rounds.finish()
    assert sum(counts.total() for counts in noisy_steps.values()) == steps
    assert toy.differences(rounds.fed.clients[5].params(), weights)


def test_sending_after_the_last_round_is_refused(monkeypatch: pytest.MonkeyPatch):
    def finish(self, fed, state, t):
        fed.run(range(fed.K), lambda client: Upload(client.params()))

    monkeypatch.setattr(algorithm("fedbabu"), "finish", finish)
    assert "after the last round" in refusal("fedbabu")


class Remembers(nn.Module):
    """A body with a buffer that each forward pass in training changes."""

    def __init__(self, shape, d):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], d))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.last.copy_(x.mean())
        return self.layers(x)


def test_a_buffer_that_training_changes_is_refused():
    words = refusal("fedavg", "--models.mix", "tests.contract.test_examples:Remembers")
    assert "the buffer body.last" in words and "has no noise" in words


def test_a_model_with_group_normalisation_in_the_place_of_that_of_batches_is_private():
    flags = ("--models.mix", "small,mlp", "--privacy.noise", "0.5", "--models.norm", "group")
    job = toy.job("fedmd", *PRIVATE, "1", *flags)
    rounds = toy.start(Serial(), job)
    check_privacy(rounds.fed)
    assert rounds.fed.architectures[:2] == ("small~groupnorm", "mlp")
    row, _ = rounds.step()
    assert row["rounds/epsilon"] > 0
    with pytest.raises(ConfigError, match="no effect"):
        toy.start(Serial(), toy.job("fedavg", *MLP, "--models.norm", "group"))
    with pytest.raises(ConfigError, match=r"models\.norm = 'batch'"):
        toy.job("heterofl", "--models.norm", "group", "--models.widths", "1,0.5")
