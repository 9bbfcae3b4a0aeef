"""What a client has of the server is what `fed.down` returns.

Each method runs rounds of the toy world, with transforms that make what clients receive something
else than what the server has. That a change and its inverse change nothing: `test_contract.py`.
"""

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.core.errors import HpcfedError
from hpcfed.core.payload import from_tree, to_tree
from hpcfed.engine.rounds import Rounds
from tests.contract import toy
from tests.contract.messages import Downlink, Messages, multiplied
from tests.contract.noted import noted, rounds_of

# fields of states that never change, and follow from the seed, so that clients know them
CONSTANT = {"mocha": ("body",)}
each_method = pytest.mark.parametrize("method", ALGORITHMS)


@each_method
def test_the_bytes_of_downloads_are_those_counted(method: str):
    rounds = noted(method)
    counted = rounds.bytes("down").astype(int).tolist()
    assert [sum(rounds.downlink.sizes[k]) for k in range(len(counted))] == counted


@each_method
def test_clients_compute_only_with_their_downloads(method: str):
    assert known_in_another_way(method) == []


def test_a_client_that_reads_the_servers_state_fails():
    assert known_in_another_way("tests.contract.cheats:Overhears")


def known_in_another_way(method: str) -> list[str]:
    """Differences in what clients send, between servers of other state and the same downloads."""
    want = noted(method)
    second = Messages(replay_downloads=True, downloads=want.messages.downloads)
    next(rounds_of(method, second, before=change_state))
    return toy.differences(second.uploads, want.round_1_uploads)


def change_state(rounds: Rounds) -> None:
    """Give the server another state of the same form."""
    tree = to_tree(rounds.state)
    constant = CONSTANT.get(rounds.algorithm.name, ())
    tree = {name: v if name in constant else multiplied(v, 1.5) for name, v in tree.items()}
    rounds.state = from_tree(rounds.state, tree, rounds.fed.device)


@each_method
def test_each_client_computes_with_each_download_as_it_received_it(method: str):
    want = noted(method)
    downlink = want.downlink
    for number in range(max(map(len, downlink.sizes.values()), default=0)):
        changed = Downlink(number=number)
        # what is learnt of a single example may be at a bound
        unmoved = {
            k
            for k, telling in downlink.telling.items()
            if toy.SIZES[k] > 1 and number < len(telling) and telling[number]
        }
        try:
            for got, usual in zip(rounds_of(method, changed), want.outcomes, strict=True):
                for k in [*unmoved]:
                    sent = changed.uploads[k]
                    if toy.differences(
                        [sent, got.weights[k], got.memory[k]],
                        [downlink.uploads[k][: len(sent)], usual.weights[k], usual.memory[k]],
                    ):
                        unmoved.remove(k)
                if not unmoved:
                    break
        except HpcfedError:
            continue  # what a client cannot compute with, it does use
        assert not unmoved, f"clients {unmoved}, download {number}"
