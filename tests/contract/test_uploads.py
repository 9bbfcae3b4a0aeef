"""Nothing leaves a client but as an Upload, and the server uses what came through.

Each method runs rounds of the toy world, with transforms of all uploads that make what the server
receives something else than what the client has. What clients receive is looked at in the same
runs (`test_downloads.py`).
"""

from collections import Counter
from copy import deepcopy
from inspect import cleandoc
from textwrap import dedent
from typing import Any

import pytest
import torch

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Comm, Serial
from hpcfed.core.shapes import each
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.upload import Transform
from tests.contract import toy
from tests.contract.examination import NOTED_ROUNDS
from tests.contract.messages import Messages, Scale
from tests.contract.noted import WORDS, noted, rounds_of
from tests.threads import spmd

# in which no client sends anything: they train alone, or the server does it all
SILENT = ("local", "central")
each_method = pytest.mark.parametrize("method", ALGORITHMS)


@each_method
def test_each_part_of_an_upload_passes_once_and_its_bytes_are_those_counted(method: str):
    rounds = noted(method)
    assert Counter(name for _, name, _ in rounds.scale.sent) == rounds.parts
    assert bool(rounds.parts) == (method not in SILENT)
    assert sum(rounds.sizes) == rounds.bytes("up").sum()


@each_method
def test_the_server_uses_each_part_of_what_it_received(method: str):
    want = noted(method)
    for name in sorted({name for _, name, _ in want.scale.sent}):
        try:
            differ = (
                toy.differences(results(ours), results(theirs))
                for ours, theirs in zip(
                    rounds_of(method, Scale(1.5, name)), want.outcomes, strict=True
                )
            )
            assert any(differ), name  # the rounds after one that differs are not run
        except IndexError:
            continue  # no channel is left in a mask of zeros: the server does use it


@each_method
def test_the_server_learns_about_clients_only_from_uploads(method: str):
    assert learnt_in_another_way(method) == []


def test_a_server_that_reads_the_clients_models_fails():
    assert learnt_in_another_way("tests.contract.cheats:Peeks")


def learnt_in_another_way(method: str) -> list[str]:
    """Differences in what the server has and sends, between clients with different data and the
    same uploads.
    """
    want = noted(method)
    second = Messages(replay_uploads=True, uploads=want.messages.uploads)
    *_, got = rounds_of(method, second, before=invert_inputs)
    assert second.replaced or method in SILENT  # the clients did send something else
    return toy.differences(
        [got.state, second.downloads], [want.outcomes[-1].state, want.messages.downloads]
    )


def invert_inputs(rounds: Rounds) -> None:
    """Give all clients other training inputs with the same labels."""
    for client in rounds.fed.clients.values():
        client.train.x = each(client.train.x, lambda x: 255 - x)


def results(outcome: toy.Outcome) -> list[Any]:
    return [outcome.state, outcome.weights, outcome.memory]


def test_the_noise_in_the_docstring_is_a_transform_with_the_same_bits_on_any_ranks():
    example = cleandoc(Transform.__doc__ or "").partition(":\n\n    ")[2]
    names: dict[str, Any] = {"Transform": Transform, "torch": torch}
    exec(dedent("    " + example), names)

    def state(comm: Comm, std: float) -> Any:
        going = toy.start(comm, toy.job("fedavg", *WORDS))
        going.fed.transforms.append(names["Noise"](std))
        for _ in range(NOTED_ROUNDS):
            going.step()
        return deepcopy(going.state)

    want = state(Serial(), 0.1)
    assert toy.differences(state(Serial(), 0.0), noted("fedavg").outcomes[-1].state) == []
    assert toy.differences(want, noted("fedavg").outcomes[-1].state) != []
    for got in spmd(3, lambda comm: state(comm, 0.1)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("by", ["power-of-choice", "oort"])
def test_the_losses_that_a_choice_asks_for_pass_the_transforms_too(by: str):
    flags = ("--rounds", "4", "--models.mix", "mlp", "--selection.by", by)

    def cohorts(transform: Scale) -> list[list[bool]]:
        going = toy.start(Serial(), toy.job("fedavg", *flags))
        going.fed.transforms.append(transform)
        return [going.step()[0]["clients/cohort"].tolist() for _ in range(4)]

    same, opposite = Scale(1.0), Scale(-1.0, "training_loss")
    chosen = cohorts(same)
    assert [size for _, name, size in same.sent if name == "training_loss"] == [4] * sum(
        map(sum, chosen)
    )
    assert cohorts(opposite) != chosen
