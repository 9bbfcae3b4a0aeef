"""The engines: a recorded step has the bits of an eager one, and what cannot be recorded trains
eagerly and says so.
"""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.comm import Serial
from hpcfed.federation import Federation
from hpcfed.models import MODELS, build
from hpcfed.models.flat import Skeleton
from hpcfed.params import Params
from hpcfed.rng import scoped
from hpcfed.training import engines
from hpcfed.training.engines import gradient
from hpcfed.training.local import sgd
from hpcfed.training.losses import contrastive_cross_entropy, proximal
from hpcfed.training.objective import Untraceable, opened
from hpcfed.training.tape import Tape
from tests.contract import toy

IMAGES = [name for name, entry in MODELS.items() if not entry.text]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def of_a_batch(model: nn.Module, inputs: list[Tensor]) -> Tensor:
    """FedClassAvg's two views and contrastive loss: a deep model in training mode, with all that it
    draws.
    """
    return contrastive_cross_entropy(model, inputs[:2], inputs[2], tau=0.07)


def skeleton(name: str) -> Skeleton:
    with scoped(0, "test"):
        return Skeleton(build(name, (3, 32, 32), 10, 32).train())


def federation(*flags: str) -> Federation:
    fed = toy.start(Serial(), toy.job("local", "--models.mix", "mlp", *flags)).fed
    fed.begin(0, list(range(fed.K)), True)
    return fed


def trained(loss, *flags: str, k: int = 5) -> Tensor:
    """Client k's weights after local training down the loss."""
    fed = federation(*flags)
    sgd(fed, fed.clients[k], 0, loss)
    return fed.clients[k].skeleton.flat.clone()


@pytest.mark.parametrize("name", IMAGES)
def test_a_replayed_step_has_the_bits_of_the_eager_one(name: str):
    if not MODELS[name].takes((3, 32, 32)):
        pytest.skip(f"{name} takes other images")
    own = skeleton(name)
    x = torch.rand(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    inputs, before = [x[0], x[1], torch.tensor([0, 1, 0, 2])], own.flat.clone()
    tape = Tape(own, of_a_batch, inputs, own.layout.params)
    outcomes = []
    for eagerly in (True, False, False):
        own.load(before)
        with scoped(0, "dropout"):
            value = of_a_batch(own.model, inputs) if eagerly else None
            found = (
                (value, gradient(value, list(own.parameters.values()))) if eagerly else tape(inputs)
            )
        outcomes.append([found[0], *found[1], own.flat.clone()])  # flat: batch statistics moved
    assert all(
        torch.equal(a, b) for other in outcomes[1:] for a, b in zip(outcomes[0], other, strict=True)
    )


def test_recording_computes_nothing_and_draws_nothing():
    own, state = skeleton("googlenet"), torch.get_rng_state()
    before = own.flat.clone()
    Tape(
        own,
        lambda model, given: model(given[0]).sum(),
        [torch.zeros(4, 3, 32, 32)],
        own.layout.params,
    )
    assert torch.equal(own.flat, before) and torch.equal(torch.get_rng_state(), state)


def test_a_recording_serves_all_clients_of_an_architecture_and_each_size_of_batch_has_its_own():
    fed = federation("--training.engine", "traced", "--local.batch", "8")
    for k in (3, 4, 5):  # 17, 21 and 32 examples: batches of 8, 1 and 5
        sgd(fed, fed.clients[k], 0, cross_entropy)
    assert len(fed.store.skeletons["mlp", "clients"].tapes) == 3


def test_what_a_client_received_goes_into_the_recording_and_is_not_part_of_it():
    def run(engine: str) -> Tensor:
        fed = federation("--training.engine", engine)
        for k, anchor in ((4, 0.0), (5, 1.0)):
            there = Params({"head.bias": torch.full((4,), anchor)})
            sgd(fed, fed.clients[k], 0, partial(anchored, there))
        return fed.clients[5].skeleton.flat.clone()

    assert torch.equal(run("traced"), run("eager"))


def anchored(there: Params, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) + proximal(model, there, mu=1.0)


@dataclass
class Box:
    """An argument that only its own type knows."""

    factor: object


def test_an_objective_that_reads_the_client_trains_eagerly_and_says_so_once(
    capsys: pytest.CaptureFixture[str],
):
    fed = federation("--training.engine", "traced")
    for k in (3, 4, 5):
        sgd(fed, fed.clients[k], 0, partial(own_size, fed.clients[k]))
    said = capsys.readouterr().err
    assert (
        said.count(
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


def test_an_objective_with_variables_from_around_it_is_never_recorded():
    factor = torch.tensor(2.0)
    for loss, why in (
        (lambda model, x, y: model(x).sum() * factor, "no function without variables"),
        (partial(cross_entropy, Box(torch.Generator())), "it holds a Generator"),
    ):
        with pytest.raises(Untraceable, match=why):
            opened(loss)


@pytest.mark.parametrize("rounds, wanted", [("1", "eager"), ("100000", "Traced")])
def test_auto_records_where_there_are_enough_short_steps(
    rounds: str, wanted: str, monkeypatch: pytest.MonkeyPatch
):
    fed, chosen = federation("--rounds", rounds), []
    first = engines.engine
    monkeypatch.setattr(
        engines, "engine", lambda *given: chosen.append(first(*given)) or chosen[-1]
    )
    sgd(fed, fed.clients[5], 0, cross_entropy)
    assert [getattr(step, "func", type(step)).__name__ for step in chosen] == [wanted]


def test_head_alone_is_recorded_for_itself():
    flags = ("--training.engine", "traced")
    fed = federation(*flags)
    before = fed.clients[5].skeleton.flat.clone()
    sgd(fed, fed.clients[5], 0, cross_entropy, only=lambda name: name.startswith("head."))
    after, layout = fed.clients[5].skeleton.flat, fed.clients[5].skeleton.layout
    start = layout.slots["head.weight"].start
    assert torch.equal(after[:start], before[:start]) and not torch.equal(
        after[start:], before[start:]
    )
