"""Jobs that a method cannot run are refused, and what diverges is named."""

import re

import pytest
import torch
from torch import Tensor

from hpcfed.algorithms import ALGORITHMS, base, load
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError, DivergedError
from tests.contract import toy

ODD = {  # jobs that many methods refuse: flags, and the first words of the reason
    "several architectures": (
        "--models.mix mlp,cnn",
        "needs one architecture",
    ),
    "several widths": (
        "--models.mix mlp --models.widths 1,0.5",
        "needs (models of one width|heads .last layers. of one shape), but",
    ),
    "heads of several widths": (
        "--models.mix mlp,logistic",
        "needs (one architecture|heads .last layers. of one shape), but",
    ),
    "no public data": ("--models.mix mlp --data.public 0", "needs public data"),
    "no proxy": ("--models.mix mlp --models.proxy", "needs a model that all clients train"),
    "no server model": ("--models.mix mlp --models.server", "needs a model on the server"),
}


def odd(case: str) -> list[str]:
    words = ODD[case][0].split()
    return words if case not in ("no proxy", "no server model") else [*words, ""]


@pytest.mark.parametrize("case", ODD)
def test_a_job_that_a_method_cannot_run_is_refused_with_the_reason_and_methods_that_can(case: str):
    wrong = {method: answer for method in ALGORITHMS if (answer := wrong_answer(method, case))}
    assert wrong == {}


def wrong_answer(method: str, case: str) -> str:
    """What a method answers to such a job, if that is not what it should; else ""."""
    refused = concerns(load(method), case)
    try:
        name = toy.job(method, *odd(case)).algorithm.name
    except ConfigError as error:
        text = str(error)
    else:
        return f"runs as {name}" if refused or name != method else ""
    if not refused:  # nor by the method itself, except for widths that it is for
        return "" if ", or set models.widths = [1]" in text else text
    hint = text.split("\n")[1]
    reason = re.search(f"{method} {ODD[case][1].split(',')[0]}", text)
    advice = hint.startswith("  use local") and (", or set " in hint or ", or leave " in hint)
    return "" if reason and advice else text


def concerns(cls: type, case: str) -> bool:
    """Whether the method, as it declares itself, refuses this job."""
    accepts, needs = cls().accepts, cls().needs
    return {
        "several architectures": accepts in ("one architecture", "widths", "depths"),
        "several widths": accepts in ("one architecture", "depths", "a common head"),
        "heads of several widths": accepts
        in ("one architecture", "widths", "depths", "a common head"),
        "no public data": "public" in needs,
        "no proxy": "proxy" in needs,
        "no server model": "server" in needs,
    }[case]


def nan_at(method: type, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the loss of that call is nan; 1 is the first."""
    loss, calls = method.loss, []

    def poisoned(self, *args: object, **kwargs: object) -> Tensor:
        calls.append(1)
        return loss(self, *args, **kwargs) * (torch.nan if len(calls) == call else 1.0)

    monkeypatch.setattr(method, "loss", poisoned)


def test_the_epoch_and_the_batch_are_counted_from_one(monkeypatch: pytest.MonkeyPatch):
    job = toy.job(
        "fedavg",
        "--clients",
        "1",
        "--data.train_limit",
        "10",
        "--local.batch",
        "4",
        "--local.epochs",
        "3",
        "--models.mix",
        "mlp",
    )
    nan_at(load("fedavg"), 11, monkeypatch)  # batches of 4, 4, 2; three epochs per round
    with pytest.raises(DivergedError, match="in round 2, epoch 1, batch 2 "):
        toy.run(Serial(), job)


@pytest.mark.parametrize(
    "method, tensor", [("fedavg", "body.1.weight"), ("fedclassavg", "head.weight")]
)
def test_a_nan_upload_names_client_and_tensor(
    method: str, tensor: str, monkeypatch: pytest.MonkeyPatch
):
    def broken(fed, client, *_: object, **__: object) -> None:
        client.load(
            {
                tensor: torch.full_like(
                    client.skeleton.view(tensor), torch.nan if client.id == 3 else 0.0
                )
            }
        )

    monkeypatch.setattr(base, "sgd", broken)
    job = toy.job(method, "--participation", "1", "--models.mix", "mlp")
    words = rf"client 3 \(mlp\): its {re.escape(tensor)} is nan or infinite after round 1"
    with pytest.raises(DivergedError, match=words):
        toy.run(Serial(), job)
