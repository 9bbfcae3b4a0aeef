"""The engines: what is captured serves every client; what cannot be captured, and users' own code
unless the job asks otherwise, trains eagerly.
"""

import random
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.algorithms.global_model.fedavg import FedAvg
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.federation.federation import Federation
from hpcfed.training import engines, graphs
from hpcfed.training.local import LocalSteps, sgd
from hpcfed.training.losses import proximal
from hpcfed.training.objective import Unshareable, extract_tensors
from tests.contract import toy


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def federation(*flags: str) -> Federation:
    fed = toy.start(
        Serial(), toy.job("local", "--models.mix", "mlp", "--local.batch", "8", *flags)
    ).fed
    fed.participants.begin(0, list(range(fed.K)), True)
    return fed


def trained(loss, *flags: str, k: int = 5) -> Tensor:
    """Client k's weights after local training down the loss."""
    fed = federation(*flags)
    sgd(fed, fed.clients[k], 0, loss)
    return fed.clients[k].skeleton.flat.clone()


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list:
    """Captures on the CPU, where calling the step again stands for the replay."""
    steps: list = []
    monkeypatch.setattr(graphs, "capture", toy.capture_on_cpu(steps))
    return steps


def test_downloads_are_inputs_of_a_graph_and_not_constants(captures: list):
    def run(engine: str) -> Tensor:
        fed = federation("--training.engine", engine)
        for k, anchor in ((4, 0.0), (5, 1.0)):
            anchor_params = Params({"head.bias": torch.full((4,), anchor)})
            sgd(fed, fed.clients[k], 0, partial(anchored, anchor_params))
        return fed.clients[5].skeleton.flat.clone()

    assert torch.equal(run("graphed"), run("eager"))


def anchored(anchor_params: Params, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) + proximal(model, anchor_params, mu=1.0)


@dataclass(frozen=True)
class Box:
    """An argument that only its own type knows."""

    factor: object


def test_an_objective_that_reads_the_client_trains_eagerly_and_says_so_once(
    captures: list, capsys: pytest.CaptureFixture[str]
):
    fed = federation("--training.engine", "graphed")
    for k in (3, 4, 5):
        sgd(fed, fed.clients[k], 0, partial(own_size, fed.clients[k]))
    err = capsys.readouterr().err
    assert (
        err.count(
            "own_size cannot be captured (it asks for the client's n); it trains with the eager "
            "engine"
        )
        == 1
    )
    eager = federation("--training.engine", "eager")
    sgd(eager, eager.clients[5], 0, partial(own_size, eager.clients[5]))
    assert torch.equal(fed.clients[5].skeleton.flat, eager.clients[5].skeleton.flat)


def own_size(client, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * client.n


@pytest.mark.parametrize("asked", ["auto", "stacked"])
@pytest.mark.parametrize(
    "rounds, loss, wanted",
    [
        ("1", FedAvg().loss, "eager"),
        ("100000", FedAvg().loss, "Graphed"),
        ("100000", lambda client, state, *batch: cross_entropy(*batch), "eager"),
    ],
    ids=["few steps", "many steps", "a user's objective"],
)
def test_many_steps_on_a_gpu_are_captured_of_objectives_that_are_not_a_users(
    rounds: str, loss, wanted: str, asked: str
):
    """Of those that are to be stacked, too, if they have to train one by one."""
    fed = federation("--rounds", rounds, "--training.engine", asked)
    with LocalSteps(fed, fed.clients[5], 0) as steps:
        fed.device = torch.device("cuda", 0)
        step = engines.engine(steps, partial(loss, fed.clients[5], Params()))
        fed.device = torch.device("cpu")
    assert getattr(step, "func", type(step)).__name__ == wanted


def test_on_a_cpu_auto_trains_clients_that_are_not_stacked_eagerly():
    fed = federation("--rounds", "100000")
    with LocalSteps(fed, fed.clients[5], 0) as steps:
        step = engines.engine(steps, partial(FedAvg().loss, fed.clients[5], Params()))
    assert step.func is engines.eager


# What a capture would miss, if the job asks for one of a user's objective

SEEN: list[Tensor] = []


def draws(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * random.random()


def scales_more_and_more(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    SEEN.append(y)
    return cross_entropy(model, x, y) * len(SEEN)


@pytest.mark.parametrize("loss", [draws, scales_more_and_more])
def test_a_graph_whose_first_replay_differs_from_an_eager_step_is_not_used(loss, captures, capsys):
    fed = federation("--training.engine", "graphed")
    SEEN.clear()
    count = sgd(fed, fed.clients[5], 0, loss)
    err = capsys.readouterr().err
    assert f"{loss.__name__} cannot be captured (its replay has other bits" in err
    assert loss is draws or len(SEEN) >= count  # every step has called it


@pytest.mark.parametrize(
    "loss, why",
    [
        *(
            (partial(cross_entropy, value), f"it holds a {type(value).__name__}, which can change")
            for value in ([], np.zeros(1), SimpleNamespace(), torch.Generator())
        ),
        (partial(cross_entropy, ([],)), "it holds a list"),
        ((lambda n: lambda model, x, y: model(x).sum() * n)(2), "nor a function without variables"),
        (partial(cross_entropy, Box({})), "it holds a dict"),
    ],
)
def test_an_objective_with_mutable_values_is_never_captured(loss, why: str):
    with pytest.raises(Unshareable, match=why):
        extract_tensors(loss)


class Scaling(nn.Module):
    """A layer with a plain attribute."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def with_layer(layer: nn.Module, engine: str) -> tuple[Federation, nn.Module]:
    """A federation whose mlp begins with this layer."""
    fed = federation("--training.engine", engine)
    body = fed.clients[5].model.body
    body[0] = nn.Sequential(body[0], layer)
    return fed, layer


def test_a_number_in_a_model_is_part_of_what_is_captured(captures: list):
    def run(engine: str) -> Tensor:
        fed, layer = with_layer(Scaling(), engine)
        for layer.factor in (1.0, 0.5):
            sgd(fed, fed.clients[5], 0, cross_entropy)
        return fed.clients[5].skeleton.flat.clone()

    assert torch.equal(run("graphed"), run("eager"))


@pytest.mark.parametrize("engine", ["eager", "graphed"])
def test_a_hook_on_a_model_runs_in_every_step(engine: str, capsys):
    fed, batches = federation("--training.engine", engine), []
    body = fed.clients[5].model.body
    handle = body.register_forward_hook(lambda module, x, z: batches.append(z.detach()))
    steps = sgd(fed, fed.clients[5], 0, cross_entropy)
    handle.remove()
    assert len(batches) == steps
    notice = "its model's Sequential has a hook" in capsys.readouterr().err
    assert notice == (engine == "graphed")
