"""Every method: neither ranks, nor placement, nor a stop and a new start change a bit of what it
computes.
"""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Serial, spmd
from hpcfed.config.job import Job
from hpcfed.engine.rounds import Rounds
from tests.contract import toy

each_algorithm = pytest.mark.parametrize("method", ALGORITHMS)
SERVED = "fedavg", "fedprox"  # methods whose clients can be stacked
STACKED = (
    "--training.engine",
    "stacked",
    "--training.stack",
    "3",
    "--models.mix",
    "mlp",
    "--clients",
    "8",
    "--data.partition",
    "iid",
    "--participation",
    "0.8",
    "--local.batch",
    "6",
)


def equal_on(ranks: int, job: Job, want: toy.Outcome, **how: object) -> None:
    """All ranks compute what is wanted."""
    for got in spmd(ranks, lambda comm: toy.run(comm, job, **how)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("ranks", [2, 3, 8])  # 8 ranks, 6 clients: some own none
@each_algorithm
def test_ranks_do_not_matter(method: str, ranks: int):
    job = toy.job(method)
    equal_on(ranks, job, toy.run(Serial(), job))


@each_algorithm
def test_ranks_without_a_client_in_the_cohort_do_not_matter(method: str):
    job = toy.job(method, "--participation", "0.01", "--local.keep_optimiser", "true")
    want = toy.run(Serial(), job)
    assert want.column("cohort").sum(1).tolist() == [1, 1, 1]
    equal_on(3, job, want)


@each_algorithm
def test_clients_that_move_to_other_ranks_in_mid_run_do_not_matter(method: str):
    job = toy.job(method, "--local.keep_optimiser", "true", "--rounds", "4")

    def shuffle(rounds: Rounds) -> None:
        if rounds.t == 2:
            seconds = np.array([32, 16, 8, 4, 2, 1]) / np.array(toy.SIZES)
            rounds.balance.seconds = seconds  # as if the smallest clients had been the slowest
            assert rounds.balance.rebalance() > 0

    equal_on(3, job, toy.run(Serial(), job), between=shuffle)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedclassavg"]
)  # without and with weights of the clients' own
def test_the_speeds_of_ranks_place_clients_and_change_no_bit(method: str):
    job, slow = toy.job(method), toy.job(method, "--run.speeds", "1,0.1,0.01")
    held = spmd(
        3, lambda comm: np.bincount(toy.start(comm, slow).fed.placement.ranks, minlength=3).tolist()
    )[0]
    assert held[0] > held[1] >= held[2]
    equal_on(3, slow, toy.run(Serial(), job))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("method", SERVED)
def test_ranks_do_not_matter_to_stacked_clients(method: str, ranks: int):
    job = toy.job(method, *STACKED)
    equal_on(ranks, job, toy.run(Serial(), job))


@pytest.mark.parametrize("before, after", [(3, 2), (1, 3), (2, 1)])
@pytest.mark.parametrize("method", SERVED)
def test_stacked_clients_go_on_to_the_same_bits_on_other_ranks(
    method: str, before: int, after: int, tmp_path: Path
):
    job = toy.job(method, *STACKED)
    want = toy.run(Serial(), job)
    spmd(before, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path))
    for got in spmd(after, lambda comm: toy.run(comm, job, resume=tmp_path)):
        assert toy.differences(got.rows, want.rows[1:]) == []
        assert toy.differences([got.state, got.scores], [want.state, want.scores]) == []


@pytest.mark.parametrize("before, after", [(3, 2), (1, 3), (2, 1)])
@each_algorithm
def test_a_stopped_run_goes_on_to_the_same_bits_on_other_ranks(
    method: str, before: int, after: int, tmp_path: Path
):
    job = toy.job(
        method, "--local.keep_optimiser", "true", "--rounds", "4", "--evaluate.every", "2"
    )
    want = toy.run(Serial(), job)
    first = spmd(before, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path))[0]
    for got in spmd(after, lambda comm: toy.run(comm, job, resume=tmp_path)):
        assert toy.differences(got.rows, want.rows[1:]) == []
        assert (
            toy.differences(
                [got.state, got.weights, got.memory, got.scores],
                [want.state, want.weights, want.memory, want.scores],
            )
            == []
        )
    assert toy.differences(first.rows, want.rows[:1]) == []


@pytest.mark.parametrize(
    "method, mix", [("fedclassavg", "shufflenetv2,alexnet"), ("fedavg", "shufflenetv2")]
)
def test_ranks_do_not_matter_for_the_papers_models(method: str, mix: str):
    job = toy.job(method, "--models.mix", mix, "--rounds", "2", "--evaluate.before", "false")
    equal_on(2, job, toy.run(Serial(), job))


@pytest.mark.parametrize("share", ["head", "all"])
def test_ranks_do_not_matter_where_clients_train_alone_first(share: str):
    job = toy.job(
        "fedclassavg",
        "--preset",
        "authors",
        "--algorithm.share",
        share,
        "--models.mix",
        "small",
        "--local.keep_optimiser",
        "true",
        "--data.sizes",
        "equal",
    )
    equal_on(3, job, toy.run(Serial(), job))
