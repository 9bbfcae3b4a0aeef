"""FedPD, FedSplit, FedAvg then Reptile, ARUBA, semi-cyclic SGD, MOCHA: what they become in neutral
settings, and where they lead.
"""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from tests.contract import toy
from tests.contract.test_equalities import near

ALL = ("--participation", "1")
MLP = ("--models.mix", "mlp")
SGD = ("--local.optimiser", "sgd", "--local.lr", "0.1")
UNIFORM = ("--algorithm.weighting", "uniform")


def begun(method: str, *flags: str) -> Rounds:
    return toy.start(Serial(), toy.job(method, *flags))


def gone(method: str, *flags: str) -> toy.Outcome:
    return toy.run(Serial(), toy.job(method, *flags))


# --- FedPD, FedSplit

QUADRATIC = (  # method: its settings, and where its model is in the state
    ("feddyn", ("--algorithm.alpha", "1"), lambda state: state["x"]),
    ("fedpd", ("--algorithm.eta", "1"), lambda state: state),
    ("fedsplit", ("--algorithm.s", "1"), lambda state: state),
    ("scaffold", ("--local.steps", "2"), lambda state: state["x"]),
)


@pytest.fixture
def distance(monkeypatch: pytest.MonkeyPatch):
    """How far models lie from the optimum of six quadratics of different curvature and centre."""
    g = torch.Generator().manual_seed(0)
    curve = torch.rand(6, 260, generator=g) + 0.5  # a row a client
    centre = torch.randn(6, 260, generator=g)

    def flat(tensors):
        return torch.cat([v.flatten() for v in tensors])

    def quadratic(self, client, state, model, x, y):
        apart = flat(model.parameters()) - centre[client.id]
        return 0.5 * (curve[client.id] * apart.square()).sum()

    monkeypatch.setattr("hpcfed.algorithms.base.Method.loss", quadratic)

    def measure(model: Params, weights: torch.Tensor | None = None) -> float:
        w = torch.ones(6) if weights is None else weights
        best = (w[:, None] * curve * centre).sum(0) / (w[:, None] * curve).sum(0)
        return (flat(model.values()) - best).abs().max().item()

    return measure


HEAD = (
    *("--models.mix", "logistic", "--local.optimiser", "sgd", "--local.lr", "0.5"),
    *("--local.steps", "8", "--rounds", "15", "--evaluate.every", "1000"),
    *("--evaluate.before", "false"),
)


@pytest.mark.parametrize("method, flags, model", QUADRATIC, ids=[q[0] for q in QUADRATIC])
def test_corrected_methods_reach_the_optimum_of_different_quadratics_and_fedavg_does_not(
    method, flags, model, distance
):
    assert distance(model(gone(method, *HEAD, *ALL, *UNIFORM, *flags).state)) < 1e-3


def test_fedavg_and_fedprox_stay_biased_on_different_quadratics(distance):
    for method in ("fedavg", "fedprox"):
        assert distance(gone(method, *HEAD, *ALL, *UNIFORM, "--rounds", "4").state) > 0.05


@pytest.mark.parametrize("method", ["fedpd", "fedsplit"])
def test_weights_by_examples_lead_to_the_optimum_of_the_weighted_sum(method, distance):
    state = gone(method, *HEAD, *ALL, "--algorithm.weighting", "samples").state
    assert distance(state, torch.tensor(toy.SIZES, dtype=torch.float)) < 1e-3 < distance(state)


def test_the_optimum_is_reached_though_half_the_clients_take_part(distance):
    flags = ("--participation", "0.5", "--rounds", "30")
    for method in ("fedpd", "fedsplit"):
        assert distance(gone(method, *HEAD, *flags, *UNIFORM).state) < 0.02, method


def test_a_round_of_fedpd_without_communication_costs_no_traffic():
    outcome = gone("fedpd", *MLP, *SGD, *ALL, "--algorithm.p", "0.5", "--rounds", "8")
    sent, received = outcome.column("up"), outcome.column("down")
    silent = ~sent.any(1)
    assert 0 < silent.sum() < len(silent) and (received[0] > 0).all()
    assert not received[1:][silent[:-1]].any() and (received[1:][~silent[:-1]] > 0).all()


def test_fedpd_that_starts_at_the_anchor_is_feddyn():
    flags = (*ALL, *MLP, *SGD, *UNIFORM)
    anchor = ("--algorithm.start", "anchor", "--algorithm.eta", "2")
    ours = gone("fedpd", *flags, *anchor).state
    theirs = gone("feddyn", *flags, "--algorithm.alpha", "0.5").state["x"]
    assert near(Params(ours), theirs, 1e-5)


def test_the_first_rounds_of_fedpd_and_fedsplit_go_twice_as_far_as_fedprox():
    flags = (*ALL, *MLP, *SGD, *UNIFORM, "--rounds", "1")
    start = begun("fedpd", *flags).state
    prox = Params(gone("fedprox", *flags, "--algorithm.mu", "0.5").state)
    pd = Params(gone("fedpd", *flags, "--algorithm.eta", "2").state)
    split = Params(gone("fedsplit", *flags, "--algorithm.s", "2").state)
    assert near(pd, 2 * prox - start, 1e-5) and near(split, pd, 1e-6)


def test_from_the_second_round_on_fedpd_and_fedsplit_differ():
    flags = (*ALL, *MLP, *SGD, "--rounds", "2")
    assert not near(Params(gone("fedpd", *flags).state), gone("fedsplit", *flags).state, 1e-4)


def test_fedpds_model_is_the_mean_of_the_clients_last_uploads():
    rounds = begun("fedpd", *MLP, *SGD, "--participation", "0.5")
    for _ in range(3):
        rounds.step()
    initial = rounds.fed.initial()
    sent = [Params(c.memory.get("sent", initial)) for c in rounds.fed.clients.values()]
    assert near(rounds.state, (1 / 6) * sum(sent[1:], sent[0]), 1e-5)


# --- FedAvg then Reptile

PLAIN = ("--algorithm.first_momentum", "0")


def test_reptiles_first_phase_is_fedavg():
    flags = ("--algorithm.first_rounds", "3", *PLAIN)
    ours, theirs = gone("reptile", *flags), gone("fedavg")
    assert toy.differences(ours.state["x"], theirs.state) == []
    assert toy.differences(ours.scores, theirs.scores) == []


def test_reptiles_second_phase_with_a_plain_server_is_fedavg_of_equal_clients():
    flags = ("--clients", "3", "--data.train_limit", "48", "--data.partition", "iid", *MLP)
    second = ("--algorithm.first_rounds", "0", "--algorithm.server_optimiser", "sgd")
    rate = ("--algorithm.server_lr", "1", "--algorithm.inner_steps", "2")
    ours = gone("reptile", *flags, "--local.batch", "8", *second, *rate)
    theirs = gone("fedavg", *flags, "--local.batch", "8", "--local.steps", "2")
    assert toy.differences(ours.state["x"], theirs.state) == []


def test_one_step_of_reptile_is_fedsgds_direction():
    flags = (*ALL, *MLP, "--rounds", "1", "--local.batch", "1000", *UNIFORM)
    second = ("--algorithm.first_rounds", "0", "--algorithm.server_optimiser", "sgd")
    one = ("--algorithm.server_lr", "1", "--algorithm.inner_steps", "1", *SGD)
    ours = toy.run(Serial(), toy.given("reptile", *flags[:-2], *second, *one)).state["x"]
    assert near(Params(ours), gone("fedsgd", *flags, "--local.lr", "0.1").state, 1e-6)


def test_adams_moments_begin_with_the_second_phase():
    flags = (*MLP, *SGD, "--algorithm.first_rounds", "1", "--algorithm.first_momentum", "0.9")
    rounds = begun("reptile", *flags)
    rounds.step()
    assert any(m.any() for m in rounds.state.m.values()) and not int(rounds.state.steps)
    before = rounds.state
    rounds.step()
    after, method = rounds.state, rounds.algorithm
    for n, m in after.m.items():  # of the change of this round alone
        assert torch.allclose(after.v[n] * (1 - method.b1) ** 2, m**2 * (1 - method.b2), rtol=1e-4)
    assert not near(after.x, before.x, 1e-6)


# --- ARUBA


def test_aruba_that_learns_nothing_is_fedavg():
    ours = gone("aruba", "--algorithm.learn", "false", *SGD)
    theirs = gone("fedavg", *SGD)
    assert toy.differences(ours.state["x"], theirs.state) == []
    for column in ("down", "up", "train_loss"):
        assert toy.differences(ours.column(column), theirs.column(column)) == []


def test_arubas_first_round_has_the_rates_of_local_training():
    ours = gone("aruba", *SGD, *MLP, "--rounds", "1").state["x"]
    assert near(Params(ours), gone("fedavg", *SGD, *MLP, "--rounds", "1").state, 1e-6)


def test_aruba_sends_one_vector_more_each_way_and_one_number_of_one_rate():
    size, more = {}, {"weight": 2, "all": 1}
    for scope in more:
        fed = begun("aruba", *MLP, "--algorithm.scope", scope).fed
        size[scope] = fed.job.algorithm.traffic(fed, 0)
        nbytes = fed.shapes().nbytes
        extra = nbytes if scope == "weight" else 4
        assert size[scope] == (nbytes + extra,) * 2


@pytest.mark.parametrize("scope", ["weight", "all"])
def test_arubas_sums_are_those_of_the_clients(scope: str):
    rounds = begun("aruba", *ALL, *MLP, *SGD, "--local.batch", "1000", "--algorithm.scope", scope)
    x, clients = rounds.state.x, rounds.fed.clients
    squares = {n: torch.zeros_like(v, dtype=torch.float64) for n, v in x.items()}
    for client in clients.values():
        client.load(x)
        sgd_of(rounds, client)
        for n, p in client.model.named_parameters():
            squares[n] += p.grad.double().square()
        client.skeleton.zero_grad()
    rounds.step()
    prior = sum(1 / (t + 1) for t in range(1, 7))
    # one rate has the sums of all weights: their first values and priors are added up, too
    weights = 1 if scope == "weight" else rounds.fed.store.layout("mlp").n_params
    for n, g in rounds.state.g.items():
        want = squares[n] if scope == "weight" else sum(v.sum() for v in squares.values())
        assert torch.allclose(g.double(), want + weights * (1 + prior), rtol=1e-5)
    for n, b in rounds.state.b.items():  # one step: every move is lr times the gradient
        want = squares[n] if scope == "weight" else sum(v.sum() for v in squares.values())
        assert torch.allclose(b.double(), 0.01 * (want / 2 + weights * (1 + prior)), rtol=1e-4)
    assert int(rounds.state.clients) == 6


def sgd_of(rounds: Rounds, client) -> None:
    """Leave the gradient over all of a client's examples in its model."""
    x, y = client.train.batch(torch.arange(client.n).numpy())
    client.skeleton.zero_grad()
    client.model.train()
    F.cross_entropy(client.model(rounds.fed.prepare(x)), y).backward()


def test_aruba_personalises_with_learned_rates_and_with_its_own_squares_more_slowly():
    changes = {}
    for c in ("0", "1000"):
        rounds = begun("aruba", *MLP, *SGD, "--algorithm.final_epochs", "1", "--algorithm.c", c)
        rounds.step()
        x = rounds.state.x
        assert rounds.finish()
        changes[c] = sum((rounds.fed.clients[5].params()[n] - x[n]).norm() for n in x)
    assert 0 < changes["1000"] < 0.9 * changes["0"]


def test_arubas_own_squares_count_from_the_second_step_on():
    flags = (*MLP, *SGD, "--algorithm.final_epochs", "1", "--local.batch", "1000")
    ended = []
    for c in ("0", "1000"):
        rounds = begun("aruba", *flags, "--algorithm.c", c)
        rounds.finish()
        ended.append(rounds.fed.clients[5].params())
    assert toy.differences(*ended) == []


def test_arubas_personalisation_and_adaptation_exclude_each_other():
    with pytest.raises(ConfigError, match="final_epochs = 1 has no effect: adapt.how = 'all'"):
        begun("aruba", "--algorithm.final_epochs", "1", "--adapt.how", "all")


# --- semi-cyclic SGD

DAY = ("--algorithm.blocks", "2", *MLP, "--rounds", "6")


def test_one_block_is_fedavg():
    flags = ("--algorithm.blocks", "1", "--algorithm.predict", "common")
    ours, theirs = gone("semicyclic", *flags), gone("fedavg")
    assert (
        toy.differences({f"0.{n}": v for n, v in theirs.state.items()}, ours.state["chains"]) == []
    )


def test_the_chain_is_fedavgs_with_the_same_cohorts(monkeypatch: pytest.MonkeyPatch):
    ours = begun("semicyclic", *DAY)
    cohorts = [ours.algorithm.cohort(ours.fed, t) for t in range(6)]
    assert [{k // 3 for k in cohort} for cohort in cohorts] == [{0}, {1}] * 3
    theirs = begun("fedavg", *MLP, "--rounds", "6")
    monkeypatch.setattr(type(theirs.algorithm), "cohort", lambda self, fed, t: cohorts[t])
    for _ in range(6):
        ours.step()
        theirs.step()
    assert toy.differences(ours.state.chains.under("0."), theirs.state) == []


def test_a_read_out_is_the_mean_of_only_its_blocks_models():
    rounds, visits = begun("semicyclic", *DAY, "--algorithm.block_rounds", "2"), {0: [], 1: []}
    for t in range(6):
        rounds.step()
        visits[t // 2 % 2].append(rounds.state.chains.under("0."))
    for i, models in visits.items():
        mean = (1 / len(models)) * sum(models[1:], models[0])
        assert near(rounds.state.readouts.under(f"{i}."), mean, 1e-6)
    assert rounds.state.counts.tolist() == [4, 2]


def test_a_separate_chain_is_not_changed_by_other_blocks():
    rounds = begun("semicyclic", *DAY, "--algorithm.chain", "separate")
    for t in range(4):
        before = rounds.state.chains
        rounds.step()
        after, other = rounds.state.chains, f"{1 - t % 2}."
        assert toy.differences(before.under(other), after.under(other)) == []
        assert toy.differences(before.under(f"{t % 2}."), after.under(f"{t % 2}.")) != []


def test_clients_predict_with_the_read_out_of_their_block():
    rounds = begun("semicyclic", *DAY, "--algorithm.predict", "last")
    for _ in range(3):
        rounds.step()
    fed, state = rounds.fed, rounds.state
    for k, block in ((0, 0), (4, 1)):
        with fed.clients[k].borrowed() as client:
            rounds.algorithm.predictor(fed, client, state)
            assert toy.differences(client.params(), state.readouts.under(f"{block}.")) == []
    assert toy.differences(state.readouts.under("0."), state.chains.under("0.")) == []


# --- MOCHA

LINEAR = ("--models.mix", "logistic", *ALL, "--algorithm.lam", "0.1")


def values_of(rounds: Rounds) -> tuple[float, float]:
    """Primal and dual value of MOCHA's problem."""
    fed, state, lam = rounds.fed, rounds.state, rounds.algorithm.lam
    pull = (state.b * (state.sigma @ state.b)).sum().item() / (2 * lam)
    primal, dual = pull, -pull
    for client in fed.clients.values():
        x, y = client.train.batch(torch.arange(client.n).numpy())
        signs = 2.0 * F.one_hot(y, fed.classes) - 1
        with client.borrowed(), torch.no_grad():
            rounds.algorithm.receive(client, rounds.algorithm.offer(fed, client, state))
            out = client.model(fed.prepare(x))
        primal += (1 - signs * out).clamp(min=0).sum(1).mean().item()
        dual += (signs * torch.as_tensor(client.memory["alpha"])).sum(1).mean().item()
    return primal, dual


@pytest.mark.parametrize("relations", ["fixed", "learned"])
def test_mochas_dual_rises_to_the_primal_while_relations_stay(relations: str):
    # where they are learned: once, after the fifth round
    n = 30 if relations == "learned" else 14
    fields = ("--algorithm.relations", relations, "--rounds", str(n))
    fields += ("--algorithm.sigma_rounds", "15") if relations == "learned" else ()
    rounds, duals = begun("mocha", *LINEAR, *fields), []
    for _ in range(n - 1):
        rounds.step()
        duals.append(values_of(rounds)[1])
    steps = [b - a for a, b in pairwise(duals)]
    if relations == "learned":
        del steps[13]  # the problem is another one from there on
    assert all(step > -1e-6 for step in steps)
    primal, dual = values_of(rounds)
    assert -1e-5 < primal - dual < 0.2 * primal


def test_mochas_b_follows_from_the_dual_variables():
    rounds = begun("mocha", *LINEAR, "--participation", "0.5")
    for _ in range(3):
        rounds.step()
    for k, client in rounds.fed.clients.items():
        x, _ = client.train.batch(torch.arange(client.n).numpy())
        z = rounds.fed.prepare(x).flatten(1).double()
        z = torch.cat([z, torch.ones(len(z), 1)], 1)
        alpha = torch.as_tensor(client.memory.get("alpha", torch.zeros(client.n, 4))).double()
        want = (alpha.T @ z / client.n).flatten()
        assert torch.allclose(rounds.state.b[k], want, atol=1e-5)


def test_clients_of_fixed_relations_learn_alone(monkeypatch: pytest.MonkeyPatch):
    flags = (*LINEAR, "--algorithm.relations", "fixed", "--rounds", "2")
    all_tasks, part = begun("mocha", *flags), begun("mocha", *flags)
    all_tasks.step()
    monkeypatch.setattr(type(part.algorithm), "cohort", lambda self, fed, t: [4])
    part.step()
    assert torch.equal(all_tasks.state.b[4], part.state.b[4]) and not part.state.b[0].any()
