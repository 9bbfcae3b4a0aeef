"""Votes by hand: who wins, what moves, and the bytes of the messages."""

import numpy as np
import pytest
import torch

from hpcfed.comm import Comm, Serial
from hpcfed.core.averaging import mean_of
from hpcfed.core.params import Params, Term
from hpcfed.federation.transforms.compression.vote import (
    Votes,
    ballot,
    decode,
    digest_of,
    encode,
    extended,
    move,
)
from tests.threads import spmd

pytestmark = pytest.mark.quick

KEEP = Params(w=torch.zeros(3), b=torch.zeros(2))


def term(w: list[float], b: list[float], weight: float = 1.0) -> Term:
    return Term(Params(w=torch.tensor(w), b=torch.tensor(b)), weight, {})


def vote(terms: list[Term], comm: Comm | None = None) -> dict[str, list[float]]:
    votes = mean_of(map(ballot, terms), KEEP, "mean", (comm or Serial()).sum, receiver=Votes)
    return {name: value.tolist() for name, value in votes.items()}


SIGNS = [
    term([1, 1, -1], [1, -1], weight=100.0),
    term([1, -1, -1], [-1, -1], weight=1.0),
    term([-1, -1, -1], [-1, 1], weight=1.0),
]


def test_the_majority_decides_whatever_the_weights():
    assert vote(SIGNS) == {"w": [1, -1, -1], "b": [-1, -1]}


def test_a_tie_does_not_move():
    assert vote(SIGNS[:2]) == {"w": [1, 0, -1], "b": [0, -1]}


def test_votes_of_all_ranks_are_the_same():
    outcomes = spmd(2, lambda comm: vote(SIGNS[comm.rank :: 2], comm))
    assert outcomes == [vote(SIGNS)] * 2


def test_values_of_weight_0_have_no_vote():
    weights = Params(w=torch.tensor([2.0, 0.0, 5.0]), b=torch.tensor([0.0, 1.0]))
    votes = ballot(SIGNS[0]._replace(weight=weights)).weight
    assert {name: w.tolist() for name, w in votes.items()} == {"w": [1, 0, 1], "b": [0, 1]}


def test_the_server_moves_by_eta():
    old = torch.tensor([1.0, 1.0, 1.0])
    new = move(old, np.array([1, 0, -1], np.int8), 0.25)
    assert new.tolist() == [1.25, 1.0, 0.75]


@pytest.mark.parametrize("n", [0, 1, 5, 8, 9, 1001])
def test_votes_take_a_bit_or_with_ties_8_fifths(n: int):
    g = np.random.default_rng(n)
    signs = g.choice(np.array([-1, 1], np.int8), n)
    message = encode(signs)
    assert len(message) == 1 + -(-n // 8)
    assert decode(message, n).tolist() == signs.tolist()
    ties = g.choice(np.array([-1, 0, 1], np.int8), n)
    ties[:1] = 0
    message = encode(ties)
    assert n == 0 or len(message) == 1 + -(-n // 5)
    assert decode(message, n).tolist() == ties.tolist()


def test_messages_bring_a_client_from_any_earlier_value_to_the_last_one():
    """The client adds the votes one after the other; it has the server's very bits.

    A vote takes 14 bytes, and the value 400: it is shorter than 29 votes.
    """
    g, values = np.random.default_rng(0), [torch.randn(100, generator=torch.manual_seed(0))]
    messages: list[bytes] = []
    lengths: dict[str, int] = {}
    for _ in range(35):
        messages.append(encode(g.choice(np.array([-1, 1], np.int8), 100)))
        values.append(move(values[-1], decode(messages[-1], 100), 0.1))
        lengths = extended(lengths, values[-2], len(messages[-1]), values[-1])
    for missed in range(29):
        value = values[len(values) - 1 - missed]
        assert lengths[digest_of(value)] == 14 * missed
        for message in messages[len(messages) - missed :]:
            value = move(value, decode(message, 100), 0.1)
        assert torch.equal(value, values[-1])
    assert len(lengths) == 29


def test_after_another_change_a_client_needs_the_complete_value():
    old, new = torch.zeros(8), torch.ones(8)
    lengths = extended({}, old, 2, new)
    assert lengths == {digest_of(old): 2, digest_of(new): 0}
    lengths = extended(lengths, new * 0.5, 2, new * 1.5)
    assert lengths == {digest_of(new * 0.5): 2, digest_of(new * 1.5): 0}


def test_a_value_that_comes_back_needs_no_vote():
    old, new = torch.zeros(8), torch.ones(8)
    lengths = extended(extended({}, old, 2, new), new, 2, old)
    assert lengths == {digest_of(old): 0, digest_of(new): 2}
