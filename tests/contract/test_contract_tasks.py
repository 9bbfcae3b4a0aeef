"""Every method learns numbers and several labels per example, or says why it needs classes."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.comm import Serial
from hpcfed.config.job import Job
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.engine.rounds import Rounds
from hpcfed.tasks import make
from tests.contract import toy
from tests.threads import spmd

LABELS = {  # of examples of these classes, by task
    "regression": lambda y: np.stack([1e3 * y + np.arange(len(y)), -y / 2], 1),
    "multilabel": lambda y: np.stack([y % 2, y // 2, y == 3], 1),
}
TASKS = tuple(LABELS)
METHODS = [name for name in ALGORITHMS if not load(name)().needs_classes]
WITHOUT = {  # options with which methods do without classes that need them by default
    "fed2": ("--algorithm.pairing", "none", "--algorithm.groups", "2"),
    "fedclassavg": ("--algorithm.contrastive", "false"),
    "fedma": ("--algorithm.class_weights", "clients"),
    "fedrolex": ("--algorithm.mask", "none"),
    "heterofl": ("--algorithm.mask", "none"),
    "pfnm": ("--algorithm.class_weights", "clients"),
}


@cache
def file(task: str, wrong: bool = False) -> Path:
    """Blobs whose class says two numbers, or three labels; wrong: other ones."""
    path = toy.folder() / f"{task}-{wrong}.h5"
    with h5py.File(path, "w") as target:
        for part, n in (("train", 96), ("test", 32)):
            x, y = toy.blobs(n, rng.stream(0, "toy", n))
            y = (y + wrong) % toy.CLASSES
            target[f"{part}/images"] = x
            target[f"{part}/labels"] = LABELS[task](y)
        target.attrs["task"] = task
    return path


def job(method: str, task: str, *flags: str, wrong: bool = False) -> Job:
    words = ["--data.name", str(file(task, wrong)), "--rounds", "2", *toy.different(method)]
    return toy.job(method, *words, *WITHOUT.get(method, ()), *flags)


def weights(rounds: Rounds) -> list:
    """Copies of the server's state and the clients' weights."""
    outcome = toy.outcome(rounds, [])
    return deepcopy([outcome.state, outcome.weights])


def after(rounds: Rounds) -> list:
    """The same after another round."""
    rounds.step()
    return weights(rounds)


# scores after the last round alone; local training of few steps
ONCE = ("--evaluate.before", "false", "--evaluate.every", "2", "--local.batch", "32")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", sorted({*METHODS, *WITHOUT}))
def test_a_method_without_classes_learns_from_labels(method: str, task: str):
    """With the same bits on two ranks, for a few methods: none sees what labels are, and with
    classes the contract's runs are on several ranks.
    """
    usual, learned = job(method, task, "--evaluate.received", *ONCE), []
    want = toy.run(Serial(), usual, between=lambda rounds: learned.append(weights(rounds)))
    if method in toy.CATEGORIES:
        for got in spmd(2, lambda comm: toy.run(comm, usual)):
            assert toy.differences(got, want) == []
    if task == "regression":  # cross-entropy of a single output would not look at the labels
        other = toy.start(Serial(), job(method, task, *ONCE, wrong=True))
        assert any(toy.differences(after(other), right) for right in learned)
    main = make(task).main
    assert any(np.isfinite(row[f"rounds/{main}_pooled"]) for row in want.rows)
    assert not any("accuracy" in name for row in want.rows for name in row)


@pytest.mark.parametrize("method", sorted(ALGORITHMS.keys() - {*METHODS}))
def test_a_method_that_needs_classes_says_why(method: str):
    usual = toy.job(method, "--data.name", str(file("regression")), *toy.different(method))
    with pytest.raises(ConfigError, match=rf"{method} needs classes \(.*\), but regression-False"):
        toy.start(Serial(), usual)


@pytest.mark.parametrize("task", TASKS)
def test_a_stopped_run_continues_to_the_same_bits(task: str, tmp_path: Path):
    usual = job("lgfedavg", task, "--rounds", "4")
    want = toy.run(Serial(), usual)
    spmd(2, lambda comm: toy.run(comm, usual, rounds=2, save=tmp_path))
    for got in spmd(3, lambda comm: toy.run(comm, usual, resume=tmp_path)):
        assert toy.differences([got.rows, got.weights], [want.rows[2:], want.weights]) == []


@pytest.mark.parametrize("task", TASKS)
def test_the_common_score_is_the_main_metric_on_the_full_test_split(task: str):
    usual = job("fedavg", task, "--evaluate.common", "--evaluate.received")
    want = toy.run(Serial(), usual)
    main = make(task).main
    assert np.isfinite(want.rows[-1][f"rounds/{main}_common"])
    for got in spmd(3, lambda comm: toy.run(comm, usual)):
        assert toy.differences(got.rows, want.rows) == []


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_common_error_of_numbers_has_the_same_bits_on_any_ranks(model: str, tmp_path: Path):
    """Each rank computes whole batches: sizes of products decide about their last bits."""
    splits = {}
    for part, n in (("train", 60), ("test", 301)):
        x = rng.stream(0, part).normal(size=(n, 1, 8, 8)).astype(np.float32)
        splits |= {f"x_{part}": x, f"y_{part}": x.reshape(n, -1)[:, :5].sum(1)}
    np.savez(tmp_path / "numbers.npz", **splits)
    words = (
        *("--data.name", str(tmp_path / "numbers.npz"), "--data.task", "regression"),
        *("--clients", "4", "--data.partition", "iid", "--models.mix", model, "--rounds", "1"),
        *("--evaluate.common", "--evaluate.batch", "32"),
    )
    usual = toy.job("fedavg", *words)
    (want,) = toy.run(Serial(), usual).rows
    for ranks in (2, 3):
        for got in spmd(ranks, lambda comm: toy.run(comm, usual)):
            assert got.rows[0]["rounds/mse_common"] == want["rounds/mse_common"]


def test_numbers_are_learned():
    words = ("--participation", "1", "--rounds", "12", "--models.mix", "mlp", "--local.epochs", "3")
    last = toy.run(Serial(), job("fedavg", "regression", *words)).rows[-1]
    assert last["rounds/r2_pooled"] > 0.7
    assert last["rounds/mae_pooled"] < 300  # of 0 to 3,095 and 0 to -1.5: in the data's units
