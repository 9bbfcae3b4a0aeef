"""The engines: a recorded step has the bits of an eager one; what cannot be recorded, and users'
own code unless the job asks otherwise, trains eagerly.
"""

import random
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.algorithms.global_model.fedavg import FedAvg
from hpcfed.algorithms.global_model.fedprox import FedProx
from hpcfed.algorithms.personal.ditto import Ditto
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.core.rng import scoped
from hpcfed.federation.federation import Federation
from hpcfed.models import build
from hpcfed.models.flat import Skeleton
from hpcfed.models.model import Head, Model
from hpcfed.models.variants import project
from hpcfed.training import engines
from hpcfed.training.engines import gradient
from hpcfed.training.local import LocalSteps, sgd
from hpcfed.training.losses import contrastive_cross_entropy, proximal
from hpcfed.training.objective import Unshareable, extract_tensors, is_users, settings
from hpcfed.training.recorded_step import RecordedStep
from tests.contract import toy

# what a recorded step may hold: dropout, batch statistics, branches, residuals, attention
MIXED = ("logistic", "mlp", "cnn", "fedhenn-5", "resnet8", "inception", "clip-tiny")


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def of_a_batch(model: nn.Module, inputs: list[Tensor]) -> Tensor:
    """FedClassAvg's two views and contrastive loss: a deep model in training mode, with all that it
    draws.
    """
    return contrastive_cross_entropy(model, inputs[:2], inputs[2], tau=0.07)


class Inception(nn.Module):
    """What GoogLeNet has, in a hundredth of its operations: branches that are joined, pooling that
    rounds up, batch statistics, dropout: [n, 3, h, w] -> [n, 11].
    """

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1, bias=False)
        self.three = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4, eps=1e-3)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        three = F.relu(self.norm(self.three(x)), inplace=True)
        z = torch.cat([self.one(x), three, self.pool(x)], 1)
        return self.dropout(F.adaptive_avg_pool2d(z, (1, 1)).flatten(1))


def skeleton(name: str) -> Skeleton:
    with scoped(0, "test"):
        if name == "inception":
            return Skeleton(Model(Inception(), Head(11, 10)).train())
        return Skeleton(build(name, (3, 32, 32), 10, 32).train())


def federation(*flags: str) -> Federation:
    fed = toy.start(Serial(), toy.job("local", "--models.mix", "mlp", *flags)).fed
    fed.participants.begin(0, list(range(fed.K)), True)
    return fed


def trained(loss, *flags: str, k: int = 5) -> Tensor:
    """Client k's weights after local training down the loss."""
    fed = federation(*flags)
    sgd(fed, fed.clients[k], 0, loss)
    return fed.clients[k].skeleton.flat.clone()


@pytest.mark.parametrize("name", MIXED)
def test_a_replayed_step_has_the_bits_of_the_eager_one(name: str):
    model = skeleton(name)
    x = torch.rand(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    inputs, before = [x[0], x[1], torch.tensor([0, 1, 0, 2])], model.flat.clone()
    step = RecordedStep(model, of_a_batch, inputs, model.layout.params)
    outcomes = []
    for eagerly in (True, False, False):
        model.load(before)
        with scoped(0, "dropout"):
            value = of_a_batch(model.model, inputs) if eagerly else None
            values = (
                (value, gradient(value, list(model.parameters.values())))
                if eagerly
                else step(inputs)
            )
        outcomes.append([values[0], *values[1], model.flat.clone()])  # flat: batch statistics moved
    assert all(
        torch.equal(a, b) for other in outcomes[1:] for a, b in zip(outcomes[0], other, strict=True)
    )


def test_recording_computes_nothing_and_draws_nothing():
    net, state = skeleton("inception"), torch.get_rng_state()
    before = net.flat.clone()
    RecordedStep(
        net,
        lambda model, inputs: model(inputs[0]).sum(),
        [torch.zeros(4, 3, 32, 32)],
        net.layout.params,
    )
    assert torch.equal(net.flat, before) and torch.equal(torch.get_rng_state(), state)


def test_a_recording_serves_all_clients_of_an_architecture_and_each_size_of_batch_has_its_own():
    fed = federation("--training.engine", "traced", "--local.batch", "8")
    for k in (3, 4, 5):  # 17, 21 and 32 examples: batches of 8, 1 and 5
        sgd(fed, fed.clients[k], 0, cross_entropy)
    assert len(fed.store.skeletons["mlp", "clients"].captured) == 3


def test_downloads_are_inputs_of_a_recording_and_not_constants():
    def run(engine: str) -> Tensor:
        fed = federation("--training.engine", engine)
        for k, anchor in ((4, 0.0), (5, 1.0)):
            anchor_params = Params({"head.bias": torch.full((4,), anchor)})
            sgd(fed, fed.clients[k], 0, partial(anchored, anchor_params))
        return fed.clients[5].skeleton.flat.clone()

    assert torch.equal(run("traced"), run("eager"))


def anchored(anchor_params: Params, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) + proximal(model, anchor_params, mu=1.0)


@dataclass(frozen=True)
class Box:
    """An argument that only its own type knows."""

    factor: object


def test_an_objective_that_reads_the_client_trains_eagerly_and_says_so_once(
    capsys: pytest.CaptureFixture[str],
):
    fed = federation("--training.engine", "traced")
    for k in (3, 4, 5):
        sgd(fed, fed.clients[k], 0, partial(own_size, fed.clients[k]))
    err = capsys.readouterr().err
    assert (
        err.count(
            "own_size cannot be recorded (it asks for the client's n); it trains with the eager "
            "engine"
        )
        == 1
    )
    eager = federation("--training.engine", "eager")
    sgd(eager, eager.clients[5], 0, partial(own_size, eager.clients[5]))
    assert torch.equal(fed.clients[5].skeleton.flat, eager.clients[5].skeleton.flat)


def own_size(client, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * client.n


def decides(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    value = cross_entropy(model, x, y)
    return value * 2 if value > 1 else value


def test_an_objective_that_decides_by_values_trains_eagerly(capsys: pytest.CaptureFixture[str]):
    assert torch.equal(
        trained(decides, "--training.engine", "traced"),
        trained(decides, "--training.engine", "eager"),
    )
    assert "decides cannot be recorded" in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["auto", "stacked"])
@pytest.mark.parametrize("device, recorded", [("cpu", "Traced"), ("cuda", "Graphed")])
@pytest.mark.parametrize(
    "rounds, loss, pays",
    [
        ("1", FedAvg().loss, False),
        ("100000", FedAvg().loss, True),
        ("100000", lambda client, state, *batch: cross_entropy(*batch), False),
    ],
    ids=["few steps", "many steps", "a user's objective"],
)
def test_many_short_steps_are_recorded_of_objectives_that_are_not_a_users(
    rounds: str, loss, pays: bool, device: str, recorded: str, asked: str
):
    """Of those that are to be stacked, too, if they have to train one by one."""
    fed = federation("--rounds", rounds, "--training.engine", asked)
    with LocalSteps(fed, fed.clients[5], 0) as steps:
        fed.device = torch.device(device, 0)
        step = engines.engine(steps, partial(loss, fed.clients[5], Params()))
        fed.device = torch.device("cpu")
    assert getattr(step, "func", type(step)).__name__ == (recorded if pays else "eager")


# What a recording would miss, if the job asks for one of a user's objective

SEEN: list[Tensor] = []


def draws(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * random.random()


def scales_more_and_more(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    SEEN.append(y)
    return cross_entropy(model, x, y) * len(SEEN)


@pytest.mark.parametrize("loss", [draws, scales_more_and_more])
def test_a_recording_whose_first_replay_differs_from_an_eager_step_is_not_used(loss, capsys):
    fed = federation("--training.engine", "traced")
    SEEN.clear()
    count = sgd(fed, fed.clients[5], 0, loss)
    err = capsys.readouterr().err
    assert f"{loss.__name__} cannot be recorded (its replay has other bits" in err
    assert loss is draws or len(SEEN) >= count  # every step has called it


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_clients_of_any_width_are_recorded_with_scaler_and_mask(method: str, capsys):
    widths = ("--models.mix", "cnn", "--models.widths", "1,0.5", "--local.batch", "4")
    eager, traced = (
        toy.run(Serial(), toy.job(method, *widths, "--training.engine", engine))
        for engine in ("eager", "traced")
    )
    assert "eager engine" not in capsys.readouterr().err
    assert toy.differences(eager, traced) == []


@pytest.mark.parametrize("method", ["fedpan", "fedclip", "fedgkt", "ktpfl"])
def test_a_hook_that_has_plain_values_alone_and_other_phases_are_recorded(method: str, capsys):
    mix = ("--models.mix", "resnet8" if method == "fedgkt" else "mlp")
    eager, traced = (
        toy.run(Serial(), toy.job(method, *mix, "--rounds", "2", "--training.engine", engine))
        for engine in ("eager", "traced")
    )
    assert "eager engine" not in capsys.readouterr().err
    assert toy.differences(eager, traced) == []


class Plain(nn.Module):
    """A body that is no row of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


def test_a_model_that_is_projected_to_a_common_width_is_recorded():
    with scoped(0, "test"):
        ours = Skeleton(project(Model(Plain(), Head(6, 4)), 5).train())
    settings(ours.model)  # which refuses hooks of other kinds
    inputs = [torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(3)]
    objective = lambda model, inputs: cross_entropy(model, *inputs)  # noqa: E731
    value, found = RecordedStep(ours, objective, inputs, ours.layout.params)(inputs)
    loss = objective(ours.model, inputs)
    wanted = gradient(loss, list(ours.parameters.values()))
    assert torch.equal(value, loss) and all(map(torch.equal, found, wanted))


def statistics_follow(mean: Tensor, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    F.batch_norm(x.flatten(1), mean, torch.ones_like(mean), training=True)
    return cross_entropy(model, x, y)


def test_an_objective_that_changes_a_tensor_of_its_own_trains_eagerly(capsys):
    # a recording changes it too, but not for the last and smaller batch, which is eager
    followed = []
    for engine in ("eager", "traced"):
        mean = torch.zeros(64)
        trained(partial(statistics_follow, mean), "--training.engine", engine)
        followed.append(mean)
    assert (
        "it changes a tensor that it holds, such as running statistics" in capsys.readouterr().err
    )
    assert followed[0].any() and torch.equal(*followed)


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
def test_an_objective_with_mutable_values_is_never_recorded(loss, why: str):
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


def test_a_number_in_a_model_is_part_of_what_is_recorded():
    def run(engine: str) -> Tensor:
        fed, layer = with_layer(Scaling(), engine)
        for layer.factor in (1.0, 0.5):
            sgd(fed, fed.clients[5], 0, cross_entropy)
        return fed.clients[5].skeleton.flat.clone()

    assert torch.equal(run("traced"), run("eager"))


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_hook_on_a_model_runs_in_every_step(engine: str, capsys):
    fed, batches = federation("--training.engine", engine), []
    body = fed.clients[5].model.body
    handle = body.register_forward_hook(lambda module, x, z: batches.append(z.detach()))
    steps = sgd(fed, fed.clients[5], 0, cross_entropy)
    handle.remove()
    assert len(batches) == steps
    notice = "its model's Sequential has a hook" in capsys.readouterr().err
    assert notice == (engine == "traced")


class Collects(FedAvg):
    """A user's own method with something to write into."""

    seen: ClassVar[list[Tensor]] = []

    def loss(self, client, state, model, x, y):
        self.seen.append(y)
        return super().loss(client, state, model, x, y)


def test_a_users_loss_that_collects_values_runs_in_every_step(monkeypatch):
    monkeypatch.setattr(engines, "MANY", 1)
    flags = ("--clients", "6", "--data.partition", "iid", "--rounds", "1", "--models.mix", "mlp")
    rounds = toy.start(Serial(), toy.job("fedavg", *flags, "--local.batch", "8"))
    Collects.seen.clear()
    rounds.algorithm = rounds.schedule.algorithm = Collects()
    row, _ = rounds.step()
    assert sum(map(len, Collects.seen)) == row["clients/examples"].sum()


class Halves(Ditto):
    """A user's method: a hook of Ditto's calls its loss."""

    def loss(self, client, state, model, x, y):
        return 0.5 * super().loss(client, state, model, x, y)


class Averages(FedAvg):
    """A user's method, of which nothing is computed in a step."""

    def server(self, fed, state, mean, cohort):
        return mean


@pytest.mark.parametrize(
    ("loss", "users"),
    [
        (Ditto().personal_loss, False),
        (Halves().personal_loss, True),
        (Averages().loss, False),
        (Halves().loss, True),
    ],
)
def test_an_objective_is_a_users_if_it_may_call_a_users_function(loss, users: bool):
    assert is_users(loss, "mlp") == users and is_users(loss, "own:net")


def test_a_recording_of_one_method_serves_no_other_at_its_address():
    fed, weights = federation("--training.engine", "traced"), {}
    client = fed.clients[5]
    start, anchor = client.skeleton.flat.clone(), client.params() * 0
    for turn in range(2):
        for mu in (0.0, 10.0, 20.0):
            client.skeleton.load(start)
            sgd(fed, client, turn, partial(FedProx(mu=mu).loss, client, anchor))
            weights[turn, mu] = client.skeleton.flat.clone()
    assert not any(torch.equal(weights[0, 0.0], weights[0, mu]) for mu in (10.0, 20.0))
    assert not torch.equal(weights[0, 10.0], weights[0, 20.0])


def doubles_a_class(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    weights = torch.ones_like(logits[0])
    weights[2] *= 2  # through a view
    return (weights[y] * F.cross_entropy(logits, y, reduction="none")).mean()


def adds_to_a_number(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    total = torch.scalar_tensor(0.0)
    for p in model.parameters():
        total += p.detach().square().sum()
    return cross_entropy(model, x, y) * (1 + 1e-3 * total)


@pytest.mark.parametrize("loss", [doubles_a_class, adds_to_a_number])
def test_what_a_step_writes_into_a_new_tensor_is_written_anew_in_each_step(loss):
    flags = ("--local.batch", "8", "--training.engine")
    assert torch.equal(trained(loss, *flags, "traced"), trained(loss, *flags, "eager"))


def test_weights_of_classes_do_not_end_a_recorded_run():
    words = ("fedavg", "--models.mix", "mlp", "--local.class_weights", "all", "--rounds", "2")
    traced, eager = (
        toy.run(Serial(), toy.job(*words, "--training.engine", engine))
        for engine in ("traced", "eager")
    )
    assert toy.differences(traced.state, eager.state) == []
