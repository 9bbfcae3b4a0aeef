"""Rank count never matters: the same bits on 1 and 3 ranks (on 7: test_many_processes.py)."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcfed import cli
from hpcfed.storage import results
from hpcfed.storage.digest import digest
from tests.mpirun import environment
from tests.system.several import LIMIT, together

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run of PAPER on each number of ranks, and beside it one of METRICS, by the same
    processes.
    """
    folder = tmp_path_factory.mktemp("runs")
    for ranks in RANKS:
        cases = {"paper": PAPER, "metrics": METRICS}
        words = {
            name: [*flags, "--out", str(folder / name / str(ranks))]
            for name, flags in cases.items()
        }
        done = together(ranks, folder / "said" / str(ranks), words)
        assert all(not rank.status for name in cases for rank in done[name]), done
    return folder


@pytest.fixture(scope="module")
def runs(folder) -> dict[int, Path]:
    """PAPER, by ranks."""
    return {ranks: folder / "paper" / str(ranks) for ranks in RANKS}


def test_the_four_architectures_give_the_same_bits_on_1_and_3_ranks(runs):
    assert {ranks: digest(folder) for ranks, folder in runs.items()} == dict.fromkeys(
        RANKS, digest(runs[1])
    )


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
    command = [sys.executable, "-m", "hpcfed.cli", "digest", str(runs[1])]
    done = subprocess.run(
        command, env=environment({}), capture_output=True, text=True, check=True, timeout=LIMIT
    )
    assert done.stdout == digest(runs[1]) + os.linesep


def test_metrics_are_the_same_bits_on_1_and_3_ranks_and_a_table_shows_them(folder, capsys):
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
