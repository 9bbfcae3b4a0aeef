"""FedHeNN without its pull is FedAvg, or local training; bit for bit."""

import numpy as np
import pytest

from tests.contract import toy
from tests.contract.test_equalities import run

HOMOGENEOUS = ("--algorithm.setting", "homogeneous", "--models.mix", "small")
OFF = ("--algorithm.eta0", "0")


def test_without_the_pull_the_homogeneous_setting_is_fedavg():
    ours, theirs = run("fedhenn", *HOMOGENEOUS, *OFF), run("fedavg")
    assert toy.differences(ours.state, theirs.state) == []
    for column in (
        "train_loss",
        "accuracy_before",
        "loss_before",
        "examples",
        "down",
        "up",
        "work",
    ):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column
    member = ours.column("cohort")
    for column in (
        "accuracy",
        "loss",
    ):  # the others keep their models here, and receive the new one there
        assert toy.differences(ours.column(column)[member], theirs.column(column)[member]) == [], (
            column
        )


def test_without_the_pull_the_received_model_is_fedavgs():
    received = ("--evaluate.received", "true")
    ours, theirs = run("fedhenn", *HOMOGENEOUS, *OFF, *received), run("fedavg", *received)
    for column in ("accuracy_received", "loss_received"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_without_the_pull_the_heterogeneous_setting_is_local_training():
    ours, theirs = run("fedhenn", *OFF), run("local")
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    for column in (
        "train_loss",
        "accuracy",
        "loss",
        "accuracy_before",
        "examples",
        "work",
        "down",
        "up",
    ):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


@pytest.mark.parametrize("setting", [(), HOMOGENEOUS])
def test_the_pull_changes_the_models_but_not_the_random_draws(setting: tuple[str, ...]):
    pulled, free = (
        run("fedhenn", *setting, "--rounds", "1", "--algorithm.eta0", eta) for eta in ("1e-9", "0")
    )
    for k, weights in free.weights.items():
        assert weights is None or np.allclose(weights, pulled.weights[k], atol=1e-2)
    strong = run("fedhenn", *setting, "--rounds", "1", "--algorithm.eta0", "5").weights
    trained = [k for k, weights in free.weights.items() if weights is not None]
    assert any(not np.allclose(strong[k], free.weights[k], atol=1e-2) for k in trained)
