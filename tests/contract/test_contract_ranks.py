"""Settings beside the examination of every method: they change no bit on other ranks either.

Stacked clients, speeds of ranks, scores of some rounds only, the papers' models, clients that train
alone first.
"""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.comm import Serial
from hpcfed.config.job import Job
from hpcfed.machine.heartbeat import Stopped
from tests import saving
from tests.contract import toy
from tests.contract.examination import DROP, Impatient, drop_out, failure, learned, without_faults
from tests.threads import spmd

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
    "--rounds",
    "2",
)


def equal_on(ranks: int, job: Job, want: toy.Outcome, **how: object) -> None:
    """All ranks compute what is wanted."""
    for got in spmd(ranks, lambda comm: toy.run(comm, job, **how)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize(
    "method", ["fedavg", "fedclassavg"]
)  # without and with weights of the clients' own
def test_the_speeds_of_ranks_place_clients_and_change_no_bit(method: str):
    job, slow = toy.job(method), toy.job(method, "--run.speeds", "1,0.1,0.01")
    values = spmd(
        3, lambda comm: np.bincount(toy.start(comm, slow).fed.placement.ranks, minlength=3).tolist()
    )[0]
    assert values[0] > values[1] >= values[2]
    equal_on(3, slow, toy.run(Serial(), job))


LAST = "afl", "aruba", "ccvr", "fedexp", "fedsam", "fedbabu", "fedhenn"  # they have a last step


@pytest.mark.parametrize("method", LAST)
def test_scores_after_the_last_step_are_the_same_on_any_ranks(method: str):
    job = toy.job(method, *toy.different(method), "--rounds", "1")

    def last(comm):
        rounds = toy.start(comm, job)
        rounds.step()
        return rounds.finish()

    want = last(Serial())
    for row in spmd(3, last):
        assert row.keys() == want.keys()
        assert all(np.array_equal(row[name], want[name], equal_nan=True) for name in want)


def test_seeds_differ():
    runs = [toy.run(Serial(), toy.job("fedavg", "--seed", seed), rounds=1) for seed in ("0", "1")]
    assert toy.differences(*map(learned, runs)) != []


def test_scores_of_clients_that_are_not_evaluated_in_each_round_are_in_the_checkpoint(tmp_path):
    job = toy.job("fedclassavg", "--rounds", "4", "--evaluate.every", "2")
    want = toy.run(Serial(), job)
    spmd(2, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path))
    (got,) = spmd(1, lambda comm: toy.run(comm, job, resume=tmp_path))
    assert toy.differences([got.rows, got.scores], [want.rows[1:], want.scores]) == []


@pytest.fixture(scope="module", params=SERVED)
def stacked(request) -> tuple[Job, toy.Outcome]:
    """A job whose clients train in groups, and its run on one rank."""
    job = toy.job(request.param, *STACKED)
    return job, toy.run(Serial(), job)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_do_not_matter_to_stacked_clients(stacked, ranks: int):
    equal_on(ranks, *stacked)


@pytest.mark.parametrize("before, after", [(3, 2), (1, 3)])
def test_stacked_clients_continue_to_the_same_bits_on_other_ranks(
    stacked, before: int, after: int, tmp_path: Path
):
    job, want = stacked
    spmd(before, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path))
    for got in spmd(after, lambda comm: toy.run(comm, job, resume=tmp_path)):
        assert toy.differences(got.rows, want.rows[1:]) == []
        assert toy.differences([got.state, got.scores], [want.state, want.scores]) == []


def test_a_round_of_stacked_clients_that_a_signal_stops_is_ended_to_the_same_bits(tmp_path: Path):
    job = toy.job("fedavg", *STACKED, "--rounds", "1", "--local.epochs", "2")
    rounds = toy.start(Serial(), job)
    rounds.fed.clock.heartbeat = Impatient(rounds, steps=8, turns=True)
    with pytest.raises(Stopped):
        rounds.step()
    saving.save(rounds, tmp_path)
    equal_on(2, job, toy.run(Serial(), job), resume=tmp_path)


def test_a_client_of_a_group_that_fails_is_one_that_drops_out():
    job = toy.job("fedavg", *STACKED, *DROP, "--rounds", "2", "--participation", "1")
    with failure((3, 1)):
        failed = spmd(2, lambda comm: toy.run(comm, job))[0]
    assert np.argwhere(failed.column("fault")).tolist() == [[1, 3]]
    with drop_out((3, 1)):
        dropped = toy.run(Serial(), job)
    assert toy.differences(without_faults(failed), without_faults(dropped)) == []


@pytest.mark.parametrize(
    "method, mix", [("fedclassavg", "shufflenetv2,alexnet"), ("fedavg", "shufflenetv2")]
)
def test_ranks_do_not_matter_for_the_papers_models(method: str, mix: str):
    job = toy.job(method, "--models.mix", mix, "--rounds", "1", "--evaluate.before", "false")
    equal_on(2, job, toy.run(Serial(), job))


@pytest.mark.parametrize("share", ["head", "all"])
def test_ranks_do_not_matter_if_clients_train_alone_first(share: str):
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
