"""Every method: jobs that it cannot run are refused, and what diverges is named."""

import re

import pytest
import torch
from torch import Tensor

from hpcfed.algorithms import ALGORITHMS, base, load
from hpcfed.comm import Serial, spmd
from hpcfed.config.check import mixed
from hpcfed.errors import ConfigError, DivergedError
from tests.contract import toy

each_algorithm = pytest.mark.parametrize("method", ALGORITHMS)


@each_algorithm
def test_models_that_a_method_does_not_accept_are_refused_with_methods_that_would(method: str):
    if mixed(method):
        assert len(set(toy.job(method).models.mix)) > 1
        return
    with pytest.raises(ConfigError, match=f"{method} needs one architecture") as refusal:
        toy.job(method, "--models.mix", "mlp,cnn")
    assert "local or fedclassavg" in str(refusal.value) and "mlp" in str(refusal.value)


@each_algorithm
def test_a_common_head_needs_representations_of_one_width(method: str):
    if load(method)().accepts == "a common head":
        with pytest.raises(ConfigError, match=f"{method} needs a common head, but that of logistic"):
            toy.job(method, "--models.mix", "mlp,logistic")
    elif mixed(method):
        toy.run(Serial(), toy.job(method, "--models.mix", "mlp,logistic", "--rounds", "1"))


def nan_at(method: type, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the loss of that call is nan; 1 is the first."""
    loss, calls = method.loss, []

    def poisoned(self, *args: object) -> Tensor:
        calls.append(1)
        return loss(self, *args) * (torch.nan if len(calls) == call else 1.0)

    monkeypatch.setattr(method, "loss", poisoned)


@each_algorithm
def test_a_loss_that_is_nan_names_rank_client_round_epoch_and_batch(method: str, monkeypatch: pytest.MonkeyPatch):
    job = toy.job(method, "--participation", "1", "--local.batch", "100", "--local.epochs", "2", "--models.mix", "mlp")
    nan_at(load(method), 2, monkeypatch)
    with pytest.raises(DivergedError) as error:
        toy.run(Serial(), job)
    words = r"rank 0 of 1: client \d \(mlp\): the loss is nan in round 1, epoch [12], batch 1 \(lr 0.005\)"
    assert re.search(words, str(error.value)) and "no checkpoint yet" in str(error.value)


def test_the_epoch_and_the_batch_are_counted_from_one(monkeypatch: pytest.MonkeyPatch):
    job = toy.job("fedavg", "--clients", "1", "--data.train_limit", "10", "--local.batch", "4",
                  "--local.epochs", "3", "--models.mix", "mlp")  # fmt: skip
    nan_at(load("fedavg"), 11, monkeypatch)  # batches of 4, 4, 2; three epochs a round
    with pytest.raises(DivergedError, match="in round 2, epoch 1, batch 2 "):
        toy.run(Serial(), job)


@each_algorithm
def test_weights_that_explode_end_the_run_with_the_client(method: str):
    explosive = ("--local.optimiser", "sgd", "--local.lr", "1e39", "--participation", "1", "--local.epochs", "2")
    job = toy.job(method, *explosive)
    with pytest.raises(DivergedError, match=r"rank \d of 2: client \d"):
        spmd(2, lambda comm: toy.run(comm, job))


@pytest.mark.parametrize("method, tensor", [("fedavg", "body.1.weight"), ("fedclassavg", "head.weight")])
def test_a_nan_upload_names_client_and_tensor(method: str, tensor: str, monkeypatch: pytest.MonkeyPatch):
    def broken(fed, client, *_: object, **__: object) -> None:
        client.load({tensor: torch.full_like(client.skeleton.view(tensor), torch.nan if client.id == 3 else 0.0)})

    monkeypatch.setattr(base, "sgd", broken)
    job = toy.job(method, "--participation", "1", "--models.mix", "mlp")
    words = rf"client 3 \(mlp\): its {re.escape(tensor)} is nan or infinite after round 1"
    with pytest.raises(DivergedError, match=words):
        toy.run(Serial(), job)
