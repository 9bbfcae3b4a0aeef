"""What a client has of the server is what `fed.down` returns.

Each method runs two rounds of the toy world, with transforms that make what clients receive
something else than what the server has.
"""

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.algorithms import ALGORITHMS
from hpcfed.core.errors import HpcfedError
from hpcfed.core.payload import from_tree, map_tensors, nbytes, tensors, to_tree
from hpcfed.engine.rounds import Rounds
from tests.contract import toy
from tests.contract.test_uploads import Messages, run

ROUNDS = 2
# fields of states that never change, and follow from the seed, so that clients know them
CONSTANT = {"mocha": ("body",)}
each_method = pytest.mark.parametrize("method", ALGORITHMS)


@dataclass
class Downlink:
    """Multiplies what clients receive, and notes what they receive and send.

    number: of the only download of each client that is changed, unevenly, from 0; None: none.
    """

    factor: float = 1.0
    number: int | None = None
    sizes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by client
    telling: dict[int, list[bool]] = field(default_factory=lambda: defaultdict(list))  # has values
    uploads: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def upload(self, fed, client, name: str, part: Any, reference: Any) -> tuple[Any, None]:
        self.uploads[client.id].append(deepcopy(part))
        return part, None

    def download(self, fed, client, value: Any) -> tuple[Any, None]:
        number = len(self.sizes[client.id])
        self.sizes[client.id].append(nbytes(value))
        self.telling[client.id].append(any(map(has_values, (v for _, v in tensors(value)))))
        value = uneven(value) if number == self.number else value
        return (value if self.factor == 1 else scaled(value, self.factor)), None

    def received(self, fed, name: str, parts: list) -> list:
        return parts


def has_values(tensor: Any) -> bool:
    value = np.asarray(tensor)
    return value.dtype.kind == "f" and bool((np.isfinite(value) & (value != 0)).any())


def uneven(value: Any) -> Any:
    """The value four times as large, its even entries with the other sign."""

    def change(v: torch.Tensor) -> torch.Tensor:
        factors = torch.where(torch.arange(v.numel(), device=v.device) % 2 == 0, -4.0, 4.0)
        return v * factors.view(v.shape).to(v.dtype) if v.is_floating_point() else v

    return map_tensors(value, change)


def scaled(value: Any, factor: float) -> Any:
    return map_tensors(value, lambda v: v * factor if v.is_floating_point() else v)


@cache
def plain(method: str) -> tuple[toy.Outcome, Downlink]:
    transform = Downlink()
    return run(method, transform, rounds=ROUNDS), transform


@each_method
def test_the_bytes_of_downloads_are_those_counted(method: str):
    outcome, downlink = plain(method)
    counted = outcome.column("down").sum(0).astype(int).tolist()
    assert [sum(downlink.sizes[k]) for k in range(len(counted))] == counted


@each_method
def test_a_change_of_all_downloads_and_its_inverse_change_no_bit(method: str):
    there_and_back = run(method, Downlink(2.0), Downlink(0.5), rounds=ROUNDS)
    assert toy.differences(there_and_back, plain(method)[0]) == []


@each_method
def test_clients_compute_only_with_their_downloads(method: str):
    assert known_in_another_way(method) == []


def test_a_client_that_reads_the_servers_state_fails():
    assert known_in_another_way("tests.contract.cheats:Overhears")


def known_in_another_way(method: str) -> list[str]:
    """Differences in what clients send, between servers of other state and the same downloads."""
    first, second = Messages(), Messages(replay_downloads=True)
    run(method, first, rounds=1)
    second.downloads = first.downloads
    run(method, second, rounds=1, before=change_state)
    return toy.differences(second.uploads, first.uploads)


def change_state(rounds: Rounds) -> None:
    """Give the server another state of the same form."""
    tree = to_tree(rounds.state)
    constant = CONSTANT.get(rounds.algorithm.name, ())
    tree = {name: v if name in constant else scaled(v, 1.5) for name, v in tree.items()}
    rounds.state = from_tree(rounds.state, tree, rounds.fed.device)


@each_method
def test_each_client_computes_with_each_download_as_it_received_it(method: str):
    want, downlink = plain(method)
    for number in range(max(map(len, downlink.sizes.values()), default=0)):
        changed = Downlink(number=number)
        try:
            got = run(method, changed, rounds=ROUNDS)
        except HpcfedError:
            continue  # what a client cannot compute with, it does use
        for k, telling in downlink.telling.items():
            # what is learnt of a single example may be at a bound
            if toy.SIZES[k] > 1 and number < len(telling) and telling[number]:
                assert toy.differences(
                    [changed.uploads[k], got.weights[k], got.memory[k]],
                    [downlink.uploads[k], want.weights[k], want.memory[k]],
                ), f"client {k}, download {number}"
