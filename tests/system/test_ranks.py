"""Rank count never matters: the same bits on 1 and 3 ranks, and on more ranks than clients."""

import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hpcfed import cli
from hpcfed.storage import results
from hpcfed.storage.digest import digest
from tests import forked
from tests.mpirun import environment, mpirun
from tests.system.several import LIMIT, SMALL, Outcome, together

pytestmark = pytest.mark.timeout(5 * LIMIT)
RANKS = (1, 3)
# Dropout is in AlexNet and GoogLeNet, batch normalisation in all but AlexNet; clients move after
# round 1.
PAPER = shlex.split(
    "--clients 4 --models.mix resnet18,shufflenetv2,googlenet,alexnet --data.train_limit 48 "
    "--data.test_share 0.5 --rounds 2 --evaluate.every 1 --run.rebalance 1"
)


METRICS = shlex.split(
    "--algorithm.name lgfedavg --clients 5 --participation 0.6 --models.mix mlp --models.d 8 "
    "--data.name digits --data.train_limit 100 --rounds 2 --evaluate.metrics macro_f1,kappa"
)


FAULTY = shlex.split(
    "--models.mix mlp --algorithm.name tests.system.faulty:Faulty --run.on_client_fault drop "
    "--participation 1"
)
TWO_CLIENTS = [*SMALL, "--clients", "2"]
CARELESS = [
    *SMALL,
    *shlex.split("--algorithm.name tests.system.careless:Careless --models.mix mlp"),
]
# with a method of hpcfed, which seeds nothing for its own hooks
DRAWING = [
    *SMALL,
    *shlex.split("--models.mix tests.system.careless:Drawing --algorithm.name fedavg"),
    *shlex.split("--evaluate.metrics tests.system.careless:bootstrap"),
]
CASES = {
    "paper": PAPER,
    "metrics": METRICS,
    "two": TWO_CLIENTS,
    "faulty": [*SMALL, *FAULTY],
    "careless": [*SMALL, *CARELESS],
    "drawing": DRAWING,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the runs are: of each case on each number of ranks."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def outcomes(folder) -> dict[int, dict[str, list[Outcome]]]:
    """The outcomes of all cases by ranks, each number of them in the same processes."""
    outcomes = {}
    for ranks in RANKS:
        words = {
            name: [*flags, "--out", str(folder / name / str(ranks))]
            for name, flags in CASES.items()
        }
        outcomes[ranks] = together(ranks, folder / "said" / str(ranks), words)
        assert all(not rank.status for name in CASES for rank in outcomes[ranks][name]), outcomes
    return outcomes


@pytest.fixture(scope="module")
def runs(folder, outcomes) -> dict[int, Path]:
    """PAPER, by ranks."""
    return {ranks: folder / "paper" / str(ranks) for ranks in RANKS}


def test_the_four_architectures_give_the_same_bits_on_1_and_3_ranks(runs):
    assert {ranks: digest(folder) for ranks, folder in runs.items()} == dict.fromkeys(
        RANKS, digest(runs[1])
    )


@pytest.mark.parametrize("case", ["careless", "drawing"])
def test_draws_of_users_methods_models_and_metrics_have_the_same_bits_on_any_ranks(
    folder, outcomes, case
):
    digests = [digest(folder / case / str(ranks)) for ranks in RANKS]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    "name", ["accuracy", "accuracy_before", "loss", "train_loss", "down", "up", "examples"]
)
def test_every_recorded_number_but_times_is_the_same_on_any_ranks(runs, name):
    columns = [results.load(folder).column(f"clients/{name}") for folder in runs.values()]
    assert np.isfinite(columns[0]).all()
    assert [np.array_equal(columns[0], column) for column in columns] == [True] * len(RANKS)


def test_clients_were_spread_over_the_ranks(runs):
    placements = {ranks: results.load(folder).header["placement"] for ranks, folder in runs.items()}
    assert {ranks: len(set(placement)) for ranks, placement in placements.items()} == {
        r: r for r in RANKS
    }


def test_the_digest_command_prints_the_digest(runs):
    command = [forked.python(), "-m", "hpcfed.cli", "digest", str(runs[1])]
    done = subprocess.run(
        command, env=environment({}), capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert done.stdout == digest(runs[1]) + os.linesep


def test_metrics_are_the_same_bits_on_1_and_3_ranks_and_a_table_shows_them(
    folder, outcomes, capsys
):
    one, three = (results.load(folder / "metrics" / str(ranks)) for ranks in RANKS)
    assert one.header["metrics"] == three.header["metrics"] == ["accuracy", "macro_f1", "kappa"]
    names = [n for n in one.columns if "macro_f1" in n or "kappa" in n or "pooled" in n]
    assert len(names) == 2 * 2 * 3 + 3
    for name in names:
        np.testing.assert_array_equal(one.column(name), three.column(name))
    pooled = one.column("rounds/kappa_pooled")[-1]
    assert (
        cli.main(["table", str(folder / "metrics/1"), "--metric", "kappa", "--value", "pooled"])
        == 0
    )
    assert f"{pooled:.4f}" in capsys.readouterr().out


def test_a_client_that_fails_leaves_every_round_on_one_rank_and_on_three(folder, outcomes):
    for ranks in RANKS:
        message, *others = (outcome.err for outcome in outcomes[ranks]["faulty"])
        assert "client 2 (mlp): the loss is nan in round 1, epoch 1, batch 1" in message
        assert not any(others)
        leaves = "client 2 leaves the round, as run.on_client_fault = 'drop' has it"
        assert message.count(leaves) == 1
    digests = [digest(folder / "faulty" / str(ranks)) for ranks in RANKS]
    assert len(set(digests)) == 1
    record = results.load(folder / "faulty" / "1")
    assert (
        record.column("clients/fault").tolist()
        == record.column("clients/lost").tolist()
        == [[0, 0, 1, 0]] * 2
    )


def test_five_ranks_with_two_clients_give_the_same_bits_and_a_warning_about_the_idle_ones(
    folder, outcomes
):
    (alone,) = outcomes[1]["two"]
    words = [*TWO_CLIENTS, "--quiet", "--out", str(folder / "two" / "5")]
    many = mpirun(5, "-m", "hpcfed.main", *words, timeout=LIMIT)
    assert digest(folder / "two" / "5") == digest(folder / "two" / "1")
    assert many.stderr.count("warning: 3 of 5 ranks have no client") == 1
    assert "warning" not in alone.out + alone.err
