"""Votes by hand: who wins, what moves, and the bytes of the messages."""

import numpy as np
import pytest
import torch

from hpcfed.comm import Comm, Serial
from hpcfed.core.averaging import Row
from hpcfed.core.params import Params, Term
from hpcfed.federation.transforms.compression.vote import (
    LONGEST,
    Course,
    Votes,
    ballot,
    decode,
    digest_of,
    encode,
    move,
)
from tests.threads import spmd

pytestmark = pytest.mark.quick

KEEP = Params(w=torch.zeros(3), b=torch.zeros(2))


def term(w: list[float], b: list[float], weight: float = 1.0) -> Term:
    return Term(Params(w=torch.tensor(w), b=torch.tensor(b)), weight, {})


def vote(terms: list[Term], comm: Comm | None = None) -> dict[str, list[float]]:
    rows, votes = [Row(ballot(t), KEEP, "mean") for t in terms], Votes(KEEP, "mean")
    shapes = [array.shape for array in votes.arrays]
    (comm or Serial()).sum(rows, shapes, [1.0] * len(rows), votes)
    return {name: value.tolist() for name, value in votes.mean().items()}


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
    """The client adds the votes one after the other; it has the server's very bits."""
    g, values = np.random.default_rng(0), [torch.randn(100, generator=torch.manual_seed(0))]
    course = Course((digest_of(values[0]),))
    for _ in range(LONGEST + 5):
        message = encode(g.choice(np.array([-1, 1], np.int8), 100))
        values.append(move(values[-1], decode(message, 100), 0.1))
        course = course.then(values[-2], message, values[-1])
    for missed in (0, 1, 20, LONGEST):
        value = values[len(values) - 1 - missed]
        assert course.size_since(digest_of(value)) == 14 * missed
        for message in course.messages[LONGEST - missed :]:
            value = move(value, decode(message, 100), 0.1)
        assert torch.equal(value, values[-1])
    assert course.size_since(digest_of(values[4])) is course.size_since(None) is None


def test_after_another_change_a_client_needs_the_complete_value():
    old, new = torch.zeros(8), torch.ones(8)
    up = encode(np.ones(8, np.int8))
    course = Course((digest_of(old),)).then(old, up, new)
    assert (course.size_since(digest_of(old)), course.size_since(digest_of(new))) == (2, 0)
    other = course.then(new * 0.5, up, new * 1.5)
    assert other.size_since(digest_of(new)) is None
    assert other.size_since(digest_of(new * 0.5)) == 2
