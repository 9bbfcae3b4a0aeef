"""Models in two places: which can be divided, that nothing changes by it, and FedGKT's own
models.
"""

import pytest
import torch
from torch import nn

from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.models import MODELS, build
from hpcfed.models.model import stem
from tests.contract import toy

IMAGE = (3, 32, 32)
IMAGES = [name for name, entry in MODELS.items() if entry.takes(IMAGE)]
ABLE = [name for name, entry in MODELS.items() if entry.stem]


def divisible(body: nn.Module) -> bool:
    """Whether the body is a row of layers with a ReLU among them, and more after it."""
    relus = (
        [i for i, layer in enumerate(body) if isinstance(layer, nn.ReLU)]
        if isinstance(body, nn.Sequential)
        else []
    )
    return bool(relus) and relus[0] + 1 < len(body)


@pytest.mark.parametrize("name", IMAGES)
def test_models_that_say_so_can_be_divided(name: str):
    with rng.scoped(0, "split"):
        body = build(name, IMAGE, 10, 16).body
    assert divisible(body) or not MODELS[name].stem


@pytest.mark.parametrize("name", ABLE)
def test_the_parts_in_order_are_the_full_list(name: str):
    with rng.scoped(0, "split"):
        body = build(name, IMAGE, 10, 16).body.eval()
        x = torch.rand(2, *IMAGE)
    first, rest = stem(body)
    assert torch.equal(rest(first(x)), body(x))
    assert {p.data_ptr() for p in first.parameters()} <= {p.data_ptr() for p in body.parameters()}


def test_resnet8_sends_sixteen_maps_of_the_images_size():
    with rng.scoped(0, "split"):
        body = build("resnet8", IMAGE, 10, 16).body
        assert stem(body)[0](torch.rand(2, *IMAGE)).shape == (2, 16, 32, 32)


@pytest.mark.parametrize(
    "name, layers", [("resnet8", 8), ("resnet20-server", 20), ("resnet56-server", 56)]
)
def test_resnets_have_as_many_layers_as_they_are_called(name: str, layers: int):
    with torch.device("meta"):
        model = build(name, (16, 32, 32), 10, 64)
    paths = [
        layer
        for n, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d) and "shortcut" not in n
    ]
    first = 1 if name.endswith("server") else 0  # the client has it
    assert len(paths) + first + 1 == layers  # with the classifier


def test_the_servers_model_is_built_for_the_features():
    rounds = toy.start(
        Serial(),
        toy.job("fedgkt", "--models.mix", "fedhenn-2", "--models.server", "resnet20-server"),
    )
    assert rounds.state["body.0.path.0.0.weight"].shape == (16, 32, 1, 1)  # fedhenn-2 sends 32 maps
    outcome = toy.outcome(rounds, [rounds.step()[0]])
    assert outcome.memory[outcome.column("cohort")[0].argmax()]["server"].shape[1] == toy.CLASSES
