"""Asynchronous and decentralised methods that must become simpler ones: bit for bit unless a
tolerance is named.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.algorithms.decentralised.peers import consensus
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import toy
from tests.contract.test_equalities import near, run
from tests.threads import spmd

ONE = ("--clients", "1", "--data.train_limit", "30", "--models.mix", "small", "--rounds", "4")
ALL = (
    "--models.mix",
    "mlp",
    "--participation",
    "1",
    "--local.optimiser",
    "sgd",
    "--local.lr",
    "0.1",
)
COMPLETE = ("--algorithm.topology", "complete")
SECONDS = "rounds/virtual_seconds"
IN_STEP = ("--system.speed", "1e15")  # work takes no time, so that all wait for their equal traffic


@pytest.mark.parametrize(
    "flags",
    [
        ("fedasync", "--algorithm.alpha", "1", "--algorithm.rho", "0"),
        ("swift",),
        ("dsgd",),
        ("dsgd", "--algorithm.i1", "2", "--algorithm.order", "step-first"),
    ],
)
def test_one_client_is_sequential_training(flags: tuple[str, ...]):
    ours, alone = run(*flags, *ONE), run("local", *ONE)
    layout = toy.start(Serial(), toy.job("local", *ONE)).fed.store.skeleton("small").layout
    got, want = ours.state or layout.views(ours.weights[0]), layout.views(alone.weights[0])
    assert toy.differences(got, want) == []
    for column in ("train_loss", "examples"):
        assert toy.differences(ours.column(column), alone.column(column)) == []


def mean_model(method: str, *flags: str) -> Params:
    """The mean of all clients' models after all rounds."""
    rounds = toy.start(Serial(), toy.job(method, *flags))
    for _ in range(3):
        rounds.step()
    return consensus(rounds.fed)


@pytest.mark.parametrize("order", ["average-first", "step-first"])
def test_dsgd_on_a_complete_graph_is_parallel_sgd_on_the_mean(order: str):
    flags = (*ALL, "--local.steps", "1", "--local.batch", "8")
    want = run("fedavg", *flags, "--algorithm.weighting", "uniform").state
    assert near(mean_model("dsgd", *flags, *COMPLETE, "--algorithm.order", order), want, 1e-6)


def test_with_the_gradient_at_the_old_models_the_first_round_is_parallel_sgd():
    flags = (*ALL, "--local.steps", "1", "--rounds", "1")
    rounds = toy.start(Serial(), toy.job("dsgd", *flags, *COMPLETE))
    rounds.step()
    want = run("fedavg", *flags, "--algorithm.weighting", "uniform").state
    assert near(consensus(rounds.fed), want, 1e-6)


def test_stepped_models_that_are_averaged_over_a_complete_graph_are_all_the_same():
    outcome = run("dsgd", *ALL, *COMPLETE, "--algorithm.order", "step-first")
    assert all(
        torch.allclose(w, outcome.weights[0], rtol=0, atol=1e-6) for w in outcome.weights.values()
    )


@pytest.mark.parametrize(
    "flags", [(), ("--algorithm.i1", "1"), ("--algorithm.i1", "1", "--algorithm.i2", "2")]
)
def test_swift_in_step_is_dsgd(flags: tuple[str, ...]):
    swift = run("swift", *ALL, *COMPLETE, *IN_STEP, "--algorithm.weights", "metropolis", *flags)
    dsgd = run("dsgd", *ALL, *COMPLETE, *IN_STEP, *flags)
    assert toy.differences(swift.weights, dsgd.weights) == []
    assert toy.differences(swift.column("accuracy"), dsgd.column("accuracy")) == []


def test_swifts_weights_by_rates_are_those_for_equal_speeds_if_speeds_are_equal():
    flags = (*ALL, *IN_STEP, "--algorithm.topology", "ring", "--algorithm.weights")
    by_rates, equal = run("swift", *flags, "ccs-rates"), run("swift", *flags, "ccs")
    assert toy.differences(by_rates.weights, equal.weights) == []
    slow = run("swift", *ALL, "--system.speed", "1e5", "--algorithm.weights", "ccs-rates")
    assert toy.differences(slow.weights, run("swift", *ALL, "--system.speed", "1e5").weights) != []


@pytest.mark.parametrize(
    "i1, i2, pattern",
    [(0, 1, [1] * 6), (1, 1, [0, 1] * 3), (2, 1, [0, 0, 1] * 2), (1, 2, [0, 1, 1] * 2)],
)
def test_models_travel_in_averaging_steps_alone(i1: int, i2: int, pattern: list[int]):
    flags = (
        "--algorithm.topology",
        "ring",
        "--algorithm.i1",
        str(i1),
        "--algorithm.i2",
        str(i2),
        "--rounds",
        "6",
    )
    outcome = run("dsgd", *ALL, *flags)
    bytes_ = 2 * toy.start(Serial(), toy.job("dsgd", *ALL)).fed.initial().nbytes
    assert (outcome.column("up") == bytes_ * np.array(pattern)[:, None]).all()
    assert (outcome.column("down") == outcome.column("up")).all()


@pytest.mark.parametrize("method", ["dsgd", "swift"])
def test_averaging_keeps_the_mean_and_brings_models_together(
    method: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpcfed.algorithms.decentralised.dsgd.DSGD.train", lambda *_: 0)
    monkeypatch.setattr("hpcfed.algorithms.decentralised.swift.train", lambda *_: None)
    rounds = toy.start(Serial(), toy.job(method, *ALL, *IN_STEP, "--algorithm.topology", "ring"))
    rounds.fed.participants.open(0)
    for client in rounds.fed.clients.values():
        client.load({"head.bias": torch.full((toy.CLASSES,), float(client.id**2))})
        client.memory["before"] = client.params()
    before, last = consensus(rounds.fed), 1e9
    for _ in range(4):
        row, _ = rounds.step()
        assert near(consensus(rounds.fed), before, 1e-5)
        assert (
            row["rounds/consensus_distance"] < 0.7 * last
        )  # second eigenvalue of a ring of six: 2 / 3
        last = row["rounds/consensus_distance"]


@pytest.mark.parametrize(
    "flags",
    [
        ("dsgd", "--participation", "0.5"),
        ("swift", "--participation", "1", "--system.distribution", "file"),
    ],
)
def test_no_variance_becomes_negative_where_some_have_worked_more_often(
    flags: tuple[str, ...], tmp_path: Path
):
    lines = [f"{k},{1e5 if k == 5 else 1e7},1e9,0.0,1" for k in range(6)]
    (tmp_path / "p.csv").write_text(
        "\n".join(["client,speed,bandwidth,latency,availability", *lines])
    )
    file = ("--system.file", str(tmp_path / "p.csv")) if "file" in flags else ()
    rounds = toy.start(
        Serial(), toy.job(*flags, *file, "--models.mix", "small", "--local.epochs", "10")
    )
    for _ in range(6):
        row, _ = rounds.step()
        models = [client.params() for client in rounds.fed.clients.values()]
        assert all(
            (v > 0).all() for model in models for n, v in model.items() if n.endswith("running_var")
        )
    assert np.isfinite(row["clients/loss"][:5]).sum() >= 4


def test_the_common_score_is_that_of_the_mean_model():
    rounds = toy.start(
        Serial(), toy.job("dsgd", *ALL, "--evaluate.common", "true", "--rounds", "2")
    )
    row = [rounds.step()[0] for _ in range(2)][-1]
    pooled, fed = rounds.fed.pooled(), rounds.fed
    pooled.load(consensus(fed))
    x, y = fed.data.test.batch(np.arange(len(fed.data.test)))
    right = (pooled.model.eval()(fed.prepare(x)).argmax(1) == y).double().mean().item()
    assert row["rounds/accuracy_common"] == pytest.approx(right) and right > 0.25


def test_swift_and_dsgd_are_charged_the_same_for_latency_and_for_both_directions():
    """Where work takes no time, a step of both lasts as long as its exchange."""
    ring = (*ALL, "--algorithm.topology", "ring", "--system.bandwidth", "1e6")
    ring = (*ring, "--system.latency", "0.25", "--local.steps", "1", "--rounds", "1")

    def last(method: str, *flags: str) -> float:
        return float(toy.start(Serial(), toy.job(method, *ring, *flags)).step()[0][SECONDS])

    nbytes = 2 * toy.start(Serial(), toy.job("dsgd", *ring)).fed.initial().nbytes  # two neighbours
    exchange = 0.25 + 2 * nbytes / 1e6
    assert last("swift", *IN_STEP) == pytest.approx(exchange, rel=1e-6)
    assert last("dsgd", *IN_STEP) == pytest.approx(exchange, rel=1e-6)


def test_fedbuff_of_all_clients_in_step_begins_as_fedavg():
    flags = ("--algorithm.K", "6", "--algorithm.staleness", "const", "--rounds", "1")
    got = run("fedbuff", *ALL, *IN_STEP, *flags).state["model"]
    want = run("fedavg", *ALL, "--algorithm.weighting", "uniform", "--rounds", "1").state
    assert near(got, want, 1e-6)


def test_fedbuff_of_single_updates_by_one_client_is_sequential_training():
    sgd = (*ONE, "--local.optimiser", "sgd", "--local.lr", "0.05")
    got = run("fedbuff", *sgd, "--algorithm.K", "1").state["model"]
    layout = toy.start(Serial(), toy.job("local", *sgd)).fed.store.skeleton("small").layout
    assert near(got, layout.views(run("local", *sgd).weights[0]), 1e-5)


def test_fedcompass_of_one_client_with_alpha_one_is_sequential_training():
    flags = (*ONE, "--local.steps", "4")
    settings = ("--algorithm.alpha", "1", "--algorithm.min_steps", "4")
    got = run("fedcompass", *flags, *settings).state["model"]
    layout = toy.start(Serial(), toy.job("local", *flags)).fed.store.skeleton("small").layout
    assert near(got, layout.views(run("local", *flags).weights[0]), 1e-6)


def test_a_users_server_draws_the_same_on_any_ranks():
    job = toy.given("tests.contract.cheats:Jitters", "--models.mix", "mlp", "--rounds", "1")
    want = toy.run(Serial(), job)
    for got in spmd(2, lambda comm: toy.run(comm, job)):
        assert toy.differences(got.state, want.state) == []
