"""CCVR and the methods that match units or make examples: what they become in neutral settings, and
their steps by hand.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from hpcfed.algorithms.data_free import fedzkt
from hpcfed.algorithms.data_free.generators import Generator
from hpcfed.algorithms.global_model import ccvr
from hpcfed.algorithms.matching import nonparametric, otfusion, permutation
from hpcfed.algorithms.matching.nonparametric import Prior
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from hpcfed.models import MODELS, Entry
from hpcfed.models.trace import FIXED, Stretch
from hpcfed.models.widths import Units, place, take
from hpcfed.training.infer import represent
from hpcfed.training.server import in_layout
from tests.contract import toy
from tests.contract.test_equalities import run
from tests.threads import spmd
from tests.unit.test_matching import made, parameters, shuffled

MLP = ("--models.mix", "mlp")
FINAL = "--algorithm.final_epochs"


def begun(method: str, *flags: str) -> Rounds:
    return toy.start(Serial(), toy.job(method, *flags))


def test_ccvr_is_fedavg_until_the_last_round_is_over():
    ours, theirs = run("ccvr"), run("fedavg")
    for part in ("state", "weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part


def test_ccvr_pools_the_clients_statistics_to_those_of_all_features_together():
    rounds = begun("ccvr", *MLP)
    fed, method, state = rounds.fed, rounds.algorithm, rounds.state
    keep = Params(
        mean=torch.zeros(4, toy.D, dtype=torch.float64),
        square=torch.zeros(4, toy.D, toy.D, dtype=torch.float64),
    )
    fed.participants.open(0)
    mine = fed.mine(range(fed.K))
    sent = fed.run(range(fed.K), lambda client: method.send(fed, client, state))
    parts = [(k, method.moments(fed, statistics)) for k, statistics in sent.items()]
    pooled = fed.mean(parts, keep=keep, per="row")
    z = torch.cat([represent(fed, c, c.train) for c in mine]).double()
    y = torch.cat([torch.from_numpy(c.train.labels) for c in mine])
    for c in range(4):
        rows = z[y == c]
        assert torch.allclose(pooled["mean"][c], rows.mean(0), atol=1e-6)
        assert torch.allclose(ccvr.pool(pooled, c, len(rows)), rows.T.cov(), atol=1e-5)
    n_classes, d = int((fed.label_counts[5] > 0).sum()), toy.D
    assert fed.tallies[5].up == 4 * (4 + n_classes * (d * d + d))


def test_ccvr_trains_only_the_head_and_without_epochs_nothing():
    assert begun("ccvr", FINAL, "0").algorithm.finish(None, None, 0) is None
    calls = {}
    for more in ((), (FINAL, "5"), ("--algorithm.final_samples", "9"),
                 ("--algorithm.final_balance", "shares"), ("--algorithm.final_lr", "0.1"),
                 ("--algorithm.final_batch", "7")):  # fmt: skip
        rounds = begun("ccvr", *MLP, *more)
        before = rounds.state.clone()
        rounds.t = 1
        rounds.finish()
        changed = {n for n in before if not torch.equal(before[n], rounds.state[n])}
        assert changed == {"head.weight", "head.bias"}
        calls[more] = rounds.state["head.weight"]
    every = list(calls.values())
    assert not any(torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])


def test_after_ccvrs_last_step_clients_have_the_calibrated_model():
    rounds = begun("ccvr", *MLP, "--algorithm.final_lr", "0.5")
    rounds.step()
    before = rounds.evaluation.received(range(6), rounds.state)
    last = rounds.finish()
    assert toy.differences(last["accuracy"], last["accuracy_received"]) == []
    assert toy.differences(last["loss"], last["loss_received"]) == []
    assert last["loss"][4] != before[4].loss
    for client in rounds.fed.clients.values():
        assert toy.differences(client.params(), rounds.state) == []


def test_ccvr_ends_with_the_same_bits_on_any_ranks():
    def ended(comm):
        rounds = toy.start(comm, toy.job("ccvr", "--rounds", "1"))
        rounds.step()
        rounds.finish()
        return rounds.state

    (one,), three = spmd(1, ended), spmd(3, ended)
    assert all(toy.differences(one, other) == [] for other in three)


def test_ccvr_leaves_out_a_class_of_one_example_and_shares_the_others_by_hand():
    method = toy.job("ccvr", "--algorithm.final_samples", "10").algorithm
    N = torch.tensor([1, 2, 6, 0])
    assert method.count_virtual(N).tolist() == [0, 10, 10, 0]
    by_share = toy.job(
        "ccvr", "--algorithm.final_samples", "10", "--algorithm.final_balance", "shares"
    ).algorithm
    assert by_share.count_virtual(N).tolist() == [0, 5, 15, 0]


def test_virtual_features_have_the_mean_and_the_covariance_asked_for():
    mean = torch.tensor([1.0, -2], dtype=torch.float64)
    spread = torch.tensor([[2.0, 0.5], [0.5, 1]], dtype=torch.float64)
    z = ccvr.draw(mean, spread, 20000, torch.Generator().manual_seed(0))
    assert torch.allclose(z.mean(0), mean, atol=0.05)
    assert torch.allclose(z.T.cov(), spread, atol=0.06)


def test_options_of_the_head_are_refused_if_it_is_not_trained():
    with pytest.raises(ConfigError, match="final_lr"):
        toy.given("ccvr", FINAL, "0", "--algorithm.final_lr", "0.5")


# PFNM, FedMA, OT fusion

KINDS = ("mlp", "cnn", "resnet8", "logistic")
MEAN = ("--algorithm.estimate", "mean")
ALONE = ("--clients", "1", "--data.train_limit", "30")
METHODS = (("pfnm", *MEAN), ("fedma", "--algorithm.head", "matched"), ("otfusion",))


def shallow(shape: tuple[int, ...], d: int) -> nn.Module:
    """A body of one hidden layer: [n, c, h, w] -> [n, d]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], d), nn.ReLU())


def wavy(shape: tuple[int, ...], d: int) -> nn.Module:
    """A body with a function that cannot be followed."""
    return nn.Sequential(shallow(shape, d), nn.Tanh())


@pytest.fixture(autouse=True, scope="module")
def shallow_model() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        target = "tests.contract.test_equalities_matching:shallow"
        patch.setitem(MODELS, "shallow", Entry(target, "of the tests"))
        patch.setitem(MODELS, "wavy", Entry(target.replace("shallow", "wavy"), "of the tests"))
        yield


def permuted(kind: str, copies: int) -> tuple[list[Params], Params, Units, object]:
    """So many copies of one network with their units in orders of their own."""
    model, params, units = made(kind)
    orders = [shuffled(units, seed) for seed in range(copies)]
    models = [permutation.permute(params, units, order) for order in orders]
    return models, params, units, parameters(model)


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_permuted_copies_of_one_network_are_matched_back_exactly(kind: str, up: bool):
    """From the inputs up as FedMA does, from the classes down as PFNM does; the network is then
    the first copy.
    """
    models, _, units, wanted = permuted(kind, 4)
    prior = Prior(sigma0=10.0, gamma=1e-3)
    plan = sorted(units.sizes, reverse=not up)
    wide = nonparametric.match_models(models, units, plan, wanted, prior, sweeps=2)
    assert wide.units.sizes == units.sizes
    mean = nonparametric.fuse(wide, [1.0, 5, 2, 7], side=lambda name: 0 if up else 1)
    assert toy.differences(mean, models[0]) == []
    for model, order in zip(models, wide.orders, strict=True):
        assert toy.differences(take(mean, wide.units.places(order)), model) == []


@pytest.mark.parametrize("kind", KINDS)
def test_permuted_copies_are_moved_onto_the_network_exactly(kind: str):
    models, params, units, wanted = permuted(kind, 3)
    for model in models:
        aligned = otfusion.align(model, params, units, wanted)
        assert toy.differences(aligned, params) == []


def test_little_entropy_moves_units_as_the_exact_plan_does():
    (model,), params, units, wanted = permuted("mlp", 1)
    aligned = otfusion.align(model, params, units, wanted, regularise=1e-3)
    assert all(torch.allclose(aligned[n], v, atol=1e-4) for n, v in params.items())
    mixed = otfusion.align(model, params, units, wanted, regularise=1.0)
    assert not torch.allclose(mixed["body.1.weight"], params["body.1.weight"], atol=1e-2)


def test_a_sinkhorn_plan_has_uniform_marginals_and_much_entropy_makes_it_uniform():
    cost = torch.tensor([[0.0, 1], [1, 0]], dtype=torch.float64)
    plan = otfusion.sinkhorn(cost, 1.0)
    e = np.exp(-1.0)  # by hand: 1 / (1 + e) on the diagonal
    assert plan.flatten().tolist() == pytest.approx(
        [1 / (1 + e), e / (1 + e), e / (1 + e), 1 / (1 + e)]
    )
    assert torch.allclose(otfusion.sinkhorn(cost, 1e6), torch.full((2, 2), 0.5).double(), atol=1e-5)


def gains(v, total, counts, J, prior, precision=1.0, mean=0.0):
    """Gains where every value of every client has one precision and one prior mean."""
    mask = np.ones(v.shape[1])
    return nonparametric.gains(
        v,
        precision * mask,
        precision * total,
        precision * counts[:, None] * mask,
        mean * mask,
        counts,
        J,
        prior,
    )


def test_gains_of_a_unit_by_hand():
    """J = 3 clients; a unit of the wide model that two others have, and new ones."""
    v, total, counts = np.array([[2.0, 0]]), np.array([[3.0, 1]]), np.array([2.0])
    gain = 26 / 4 - 10 / 3 + 2 * np.log(2 / 1)  # |(5, 1)|^2 / (1 + 2 + 1) - |(3, 1)|^2 / (1 + 2)
    new = 4 / 2 + 2 * np.log(0.5 / 3)
    prior = Prior(gamma=0.5)
    assert gains(v, total, counts, 3, prior).tolist() == [pytest.approx([gain, new])]
    two = np.vstack([v, v])
    later = gains(two, total, counts, 3, prior)[0]
    assert later.tolist() == pytest.approx([gain, new, new - 2 * np.log(2)])
    narrow = Prior(sigma=0.25, sigma0=4.0, gamma=0.5)  # variances: precisions 4 and 1 / 4
    gain = 16 * (26 / 12.25 - 10 / 8.25) + 2 * np.log(2)
    assert gains(v, total, counts, 3, narrow, 4.0)[0, 0] == pytest.approx(gain)


def test_a_weight_towards_a_class_counts_by_the_clients_share_of_it_and_biases_have_a_prior_mean():
    """One hidden unit v = (bias .5, weight 2 towards the class) of a client with a quarter of the
    class; a unit of the wide model that one other client has, (bias 1, weight 4, three quarters).
    """
    v, total = np.array([[0.5, 2.0]]), np.array([[1.0, 0.75 * 4]])
    precision, mass = np.array([1.0, 0.25]), np.array([[1.0, 0.75]])
    mean, prior = np.array([0.1, 0.0]), Prior(sigma0=2.0, gamma=0.5)
    gain = (1.05 + 0.5) ** 2 / 2.5 - 1.05**2 / 1.5 + (3 + 0.5) ** 2 / 1.5 - 3**2 / 1.25
    new = (0.05 + 0.5) ** 2 / 1.5 - 0.05**2 / 0.5 + 0.5**2 / 0.75 + 2 * np.log(0.5 / 2)
    gains = nonparametric.gains(v, precision, total, mass, mean, np.array([1.0]), 2, prior)
    assert gains.tolist() == [pytest.approx([gain, new])]  # log(n / (J - n)) = 0


def test_precisions_of_a_unit_have_the_order_of_unit_vectors():
    _, params, units = made("mlp")
    prior = Prior(sigma=0.5, bias_mean=0.1)
    shares = [torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), torch.tensor([0.9, 0.8, 0.7, 0.6])]
    top, low = max(units.sizes), min(units.sizes)
    names = {top: ("body.3.bias", "head.weight"), low: ("body.1.bias", "body.1.weight")}
    for group, wanted in names.items():
        counts = wanted.__contains__
        unit = nonparametric.describe_unit(params, units, group, counts, prior, 2, shares)
        vectors = permutation.unit_vectors(params, units, group, counts, (0, 1))
        assert unit.mean.shape == (vectors.shape[1],) == unit.precisions[0].shape
        bias = (vectors[0] == params[wanted[0]][0]).numpy()
        assert (unit.mean == np.where(bias, 0.1, 0)).all()
        for precision, share in zip(unit.precisions, shares, strict=True):
            want = 2 * share.double().numpy() if group == top else 2
            assert (precision[bias] == 2).all()
            assert precision[~bias] == pytest.approx(want)


def two_units(weights: list[list[float]]) -> nonparametric.Wide:
    """Two clients of one hidden unit each, which were not matched: the wide model has two units.

    weights: [2, C], each client's weights towards the classes.
    """

    def axes(size: int) -> dict[str, tuple[tuple[Stretch, ...], ...]]:
        unit, classes = (Stretch(0, size, 1),), (Stretch(FIXED, 2, 1),)
        return {
            "body.0.bias": (unit,),
            "head.weight": (classes, unit),
            "head.bias": (classes,),
        }

    wide = Units({0: 2}, axes(2))
    orders = [{0: np.array([0])}, {0: np.array([1])}]
    models = [
        place(
            Params(
                {
                    "body.0.bias": torch.tensor([1.0]),
                    "head.weight": torch.tensor(row)[:, None],
                    "head.bias": torch.tensor([1.0, 2.0]),
                }
            ),
            wide.places(order),
            wide,
        )
        for row, order in zip(weights, orders, strict=True)
    ]
    return nonparametric.Wide(models, orders, wide)


def test_in_the_mean_of_the_last_layer_a_unit_that_a_client_lacks_counts_as_0():
    wide = two_units([[8.0, 4.0], [1.0, 2.0]])
    mean = nonparametric.fuse(wide, [1.0, 3.0], side=lambda name: 0)
    assert mean["head.weight"].tolist() == [[2.0, 0.75], [1.0, 1.5]]  # weights 1/4 and 3/4
    assert mean["body.0.bias"].tolist() == [1.0, 1.0]  # a unit of one client is that client's
    fused = nonparametric.fuse(wide, [1.0, 3.0], side=lambda name: 1)
    assert fused["head.weight"].tolist() == [[8.0, 1.0], [4.0, 2.0]]


def test_class_weights_count_by_shares_and_posterior_means_by_hand():
    wide = two_units([[8.0, 4.0], [1.0, 2.0]])
    shares = [torch.tensor([0.25, 1.0]), torch.tensor([0.75, 0.0])]
    mean = nonparametric.fuse(wide, [1.0, 1.0], lambda name: 0, shares)
    assert mean["head.weight"].tolist() == [[2.0, 0.75], [4.0, 0.0]]
    assert mean["head.bias"].tolist() == [1.0, 2.0]
    prior = Prior(sigma0=2.0, sigma=1.0, bias_mean=0.1)
    fused = nonparametric.fuse(wide, [1.0, 1.0], lambda name: 1, shares, prior)
    # (m / 2 + sum w v) / (1 / 2 + sum w)
    want = [2 / 0.75, 0.75 / 1.25, 4 / 1.5, 0.0]
    assert fused["head.weight"].flatten().tolist() == pytest.approx(want)
    assert fused["head.bias"].tolist() == pytest.approx([1.05 / 1.5, 2.05 / 1.5])
    assert fused["body.0.bias"].tolist() == pytest.approx([1.05 / 1.5] * 2)
    lost = [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])]  # nobody of unit 0 has class 0
    assert nonparametric.fuse(wide, [1.0, 1.0], lambda name: 1, lost)["head.weight"].tolist() == [
        [0.0, 1.0],
        [4.0, 0.0],
    ]


def test_shares_of_a_class_sum_to_one_and_are_equal_if_no_client_has_it():
    method = toy.job("pfnm").algorithm
    sent = [
        {"model": Params(), "counts": Params(examples=torch.tensor(row, dtype=torch.int32))}
        for row in ([1, 0, 0], [3, 2, 0])
    ]
    assert [s.tolist() for s in method.shares(sent)] == [[0.25, 0, 0.5], [0.75, 1, 0.5]]
    assert method.shares([{"model": Params()}]) == []


def match_units(vectors, prior: Prior) -> list[np.ndarray]:
    """Matched units where every value counts alike."""
    f = vectors[0].shape[1]
    unit = nonparametric.Unit(np.zeros(f), np.ones((len(vectors), f)))
    return nonparametric.match_units(vectors, unit, prior, sweeps=3)


def test_units_that_have_nothing_in_common_make_the_layer_wider_and_the_common_ones_come_first():
    a = np.array([[9.0, 0], [0, 9]])
    b = np.array([[0, 9.0], [-9, -9]])
    matches = match_units([a, b], Prior())
    assert [at.tolist() for at in matches] == [[1, 0], [0, 2]]
    assert match_units([a], Prior())[0].tolist() == [0, 1]


@pytest.mark.parametrize("words", METHODS, ids=lambda words: words[0])
def test_of_one_client_it_is_that_clients_model_as_fedavgs_is(words):
    flags = ("--models.mix", "shallow") if words[0] == "fedma" else MLP
    ours, theirs = run(*words, *flags, *ALONE), run("fedavg", *flags, *ALONE)
    state = ours.state["model"] if words[0] != "otfusion" else ours.state
    assert toy.differences(state, theirs.state) == []
    for column in ("train_loss", "accuracy", "down"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column
    counts = 0 if words[0] == "otfusion" else 4 * 4  # of the examples of each class
    assert (ours.column("up") == theirs.column("up") + counts).all()


@pytest.mark.parametrize("estimate", ["mean", "map"])
def test_fedma_of_one_hidden_layer_is_pfnm_to_the_bit(estimate):
    flags = ("--models.mix", "shallow", "--algorithm.estimate", estimate)
    if estimate == "mean":
        flags += ("--algorithm.weighting", "samples")
    matched = ("fedma", "--algorithm.head", "matched", *flags)
    ours, theirs = run(*matched), run("pfnm", *flags)
    for part in ("state", "weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part


def test_pfnms_posterior_mean_is_the_mean_drawn_to_the_prior():
    flags = ("--models.mix", "shallow", "--rounds", "1", "--participation", "1", *ALONE)
    ours = run("pfnm", "--algorithm.sigma0", "2", *flags).state["model"]
    mean = run("fedavg", *flags).state
    for name, value in mean.items():  # (m / sigma0 + v / sigma) / (1 / sigma0 + 1 / sigma)
        prior = 0.05 if name.endswith("bias") else 0.0
        assert torch.allclose(ours[name], (prior + value) / 1.5, rtol=1e-5), name


def test_fedma_fixes_the_layers_that_are_matched_and_sends_each_once(monkeypatch):
    rounds = begun("fedma", *MLP, "--participation", "1")
    fed, method = rounds.fed, rounds.algorithm
    layers = method.layers(fed, method.units(fed))
    assert [sorted(layer) for layer in layers] == [
        ["body.1.bias", "body.1.weight"],
        ["body.3.bias", "body.3.weight"],
        ["head.bias", "head.weight"],
    ]
    calls, module = [], "hpcfed.algorithms.base.sgd"

    def watched(fed, client, t, loss, **how):
        before = client.params()
        from hpcfed.training.local import sgd

        sgd(fed, client, t, loss, **how)
        after = client.params()
        calls.append({n for n in before if torch.equal(before[n], after[n])})

    monkeypatch.setattr(module, watched)
    outcome = toy.outcome(rounds, [rounds.step()[0]])
    fixed = [set(), layers[0], layers[0] | layers[1]]
    assert calls == [names for names in fixed for _ in range(fed.K)]
    size = fed.shapes().nbytes
    size_of_counts = 4 * fed.classes
    assert outcome.column("up")[0].tolist() == [size + size_of_counts] * fed.K
    head = fed.shapes(layers[2].__contains__).nbytes
    assert outcome.column("down")[0].tolist() == [2 * size - head] * fed.K


@pytest.mark.parametrize("method", ["pfnm", "fedma", "otfusion"])
def test_clients_may_start_from_their_own_weights(method):
    flags = (*MLP, "--rounds", "1", "--participation", "1", "--algorithm.start", "own")
    apart, alike = run(method, *flags), run(method, *flags[:-2])
    assert toy.differences(apart.column("down"), alike.column("down")) == []
    assert toy.differences(apart.column("train_loss"), alike.column("train_loss"))
    if method == "fedma":  # whose clients train more than once
        return
    local = run("local", *MLP, "--rounds", "1", "--participation", "1")
    assert toy.differences(apart.column("train_loss"), local.column("train_loss")) == []


def test_models_that_began_apart_are_moved_onto_the_first_clients_or_the_servers():
    flags = (*MLP, "--rounds", "1", "--participation", "1", "--algorithm.start", "own")
    reference = run("otfusion", *flags)
    server = run("otfusion", *flags, "--algorithm.reference", "server")
    assert toy.differences(reference.state, server.state)


def test_a_client_continues_from_the_units_that_its_own_were_matched_to():
    rounds = begun("pfnm", *MLP, *MEAN, "--participation", "1", "--algorithm.gamma", "1e9")
    rounds.step()
    method, state, fed = rounds.algorithm, rounds.state, rounds.fed
    assert state.sizes[0] > 200  # so large a mass keeps units apart
    for k, client in fed.clients.items():
        offered = method.offer(fed, client, state)
        assert {n: v.shape for n, v in offered.items()} == {
            n: v.shape for n, v in fed.shapes().items()
        }
        leader = method.order(fed, state, k)[0]
        assert torch.equal(offered["body.1.bias"], state.model["body.1.bias"][leader])


@pytest.mark.parametrize("mix", ["mlp", "fedhenn-1"])
def test_a_model_that_has_become_wider_is_evaluated(mix):
    words = ("--models.mix", mix, "--algorithm.gamma", "1e9", "--evaluate.common", "true")
    rounds = begun("pfnm", *words, *MEAN)
    sizes = rounds.state.sizes.clone()
    rounds.step()
    assert (rounds.state.sizes > sizes).all()
    accuracy = rounds.algorithm.columns(rounds.fed, rounds.state)["accuracy_common"]
    assert 0 <= accuracy <= 1


def test_a_wider_tensor_gets_the_layout_of_the_narrower_one():
    model = torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)
    wide = torch.arange(5 * 3 * 2 * 2.0).view(5, 3, 2, 2)
    laid_out = in_layout(wide, model)
    assert torch.equal(laid_out, wide)
    assert laid_out.is_contiguous(memory_format=torch.channels_last)


def test_models_with_unknown_units_are_refused():
    with pytest.raises(ConfigError, match="otfusion matches the units of models"):
        begun("otfusion", "--models.mix", "wavy")


# FedZKT

NO_SERVER = ("--algorithm.server_steps", "0", "--algorithm.distil_steps", "0")


def test_fedzkt_without_a_server_that_learns_is_local_training():
    ours = toy.run(Serial(), toy.given("fedzkt", *NO_SERVER, "--algorithm.mu", "0"))
    theirs = toy.run(Serial(), toy.given("local"))
    for part in ("weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part


def test_disagreement_by_hand():
    far = torch.tensor([[100.0, 0]]), torch.tensor([[0.0, 100]])
    assert float(fedzkt.disagreement(*far)) == 2.0
    half = torch.tensor([[0.0, 0]]), torch.tensor([[100.0, 0]])
    assert float(fedzkt.disagreement(*half)) == 1.0


def test_a_server_that_agrees_with_all_clients_gives_the_generator_no_gradient():
    rounds = begun("fedzkt", *MLP)
    fed, method, state = rounds.fed, rounds.algorithm, rounds.state
    weights = state.generator.clone().map(lambda v: v.requires_grad_())
    x = Generator(fed, method.noise).make(weights, 6, fedzkt.noise(fed, "test"))
    assert x.shape == (6, *toy.SHAPE)
    answers = fedzkt.answer(fed, "mlp", state.server, x)
    value = fedzkt.disagreement(
        answers, method.ensemble(fed, {0: state.server, 2: state.server}, x)
    )
    value.backward()
    assert value.item() == 0 and all(not v.grad.any() for v in weights.values())
    assert x.detach().std() > 0.5  # normalised, as images are


def test_the_generator_widens_the_disagreement_that_the_server_then_narrows():
    flags = (
        "--algorithm.server_batch",
        "32",
        "--models.mix",
        "small,mlp",
        "--models.server",
        "mlp",
    )
    steps = ("--algorithm.server_steps", "20", "--algorithm.server_lr", "0.1")
    rounds = begun("fedzkt", *flags, *steps)
    fed, method, state = rounds.fed, rounds.algorithm, rounds.state
    fed.participants.open(0)
    sent = {k: fed.clients[k].params() for k in (0, 1, 2)}

    def apart(server: Params, generator: Params) -> float:
        with torch.no_grad():
            x = Generator(fed, method.noise).make(generator, 64, fedzkt.noise(fed, "test"))
            ours = fedzkt.answer(fed, "mlp", server, x)
            return float(fedzkt.disagreement(ours, method.ensemble(fed, sent, x)))

    new = method.transfer(fed, state, sent, 0)
    assert apart(state.server, new.generator) > apart(state.server, state.generator)
    assert apart(new.server, new.generator) < apart(state.server, new.generator)
    assert toy.differences(sent, {k: fed.clients[k].params() for k in sent}) == []
    taught = method.teach(fed, new, sent, 0)
    assert all(toy.differences(taught[k], sent[k]) for k in sent)


def test_a_strong_pull_holds_a_client_at_the_weights_that_it_received():
    flags = (
        *NO_SERVER,
        *MLP,
        "--local.optimiser",
        "sgd",
        "--local.lr",
        "0.01",
        "--local.epochs",
        "6",
    )

    def moved(mu: str) -> float:
        rounds = toy.start(Serial(), toy.given("fedzkt", *flags, "--algorithm.mu", mu))
        before = rounds.fed.clients[5].params()
        rounds.fed.participants.open(0)
        rounds.algorithm.local(rounds.fed, rounds.fed.clients[5], rounds.state, 0)
        after = rounds.fed.clients[5].params()
        return float(sum((after[n] - before[n]).square().sum() for n in before) ** 0.5)

    assert moved("50") < 0.5 * moved("0")  # lr * 2 mu = 1: a step undoes all those before
