"""Compressed uploads and downloads; `test_mechanisms.py` examines them with every method."""

import pytest

from hpcfed.comm import Serial
from tests.contract import toy
from tests.contract.noted import WORDS, noted

SMALL = ("--compression.min_size", "16")  # the toy models have small tensors
FULL = ("--compression.by", "top-k", "--compression.down", "top-k", "--compression.share", "1")


def job(method: str, *flags: str):
    return toy.job(method, *WORDS, *toy.different(method), *flags)


def computed(outcome: toy.Outcome) -> list:
    """What a run has computed, without what clients remember of messages, and without bytes."""
    memory = {
        k: {name: value for name, value in values.items() if name != "compression"}
        for k, values in outcome.memory.items()
    }
    return [outcome.state, outcome.weights, memory]


@pytest.mark.parametrize("method", toy.CATEGORIES)
def test_codecs_that_lose_nothing_change_nothing(method: str):
    full = toy.run(Serial(), job(method, *SMALL, *FULL), rounds=2)
    assert toy.differences(computed(full), computed(noted(method).outcomes[-1])) == []


def test_what_is_lost_waits_while_a_client_is_lost():
    """A client that is lost does no turn: its model, and what its last upload lost, stay."""
    flags = (*SMALL, "--compression.by", "top-k", "--system.dropout", "0.5", "--participation", "1")
    rounds, lost = toy.start(Serial(), toy.job("fedavg", *flags, "--rounds", "4")), 0
    before = {}
    while not rounds.over:
        row, _ = rounds.step()
        after = {k: client.memory.get("compression") for k, client in rounds.fed.clients.items()}
        for k in range(6):
            waits = toy.differences(before.get(k), after[k]) == []
            assert waits == bool(row["clients/lost"][k])
            lost += waits
        before = after
    assert lost


@pytest.mark.parametrize("method", ["mifa", "scaffold", "fedsplit", "fedpd"])
def test_changes_that_the_server_adds_up_lose_nothing_in_the_sum(method: str):
    flags = ("--compression.by", "top-k", "--compression.min_size", "16", "--rounds", "3")
    auto, ef14 = (
        toy.run(Serial(), toy.job(method, *flags, "--compression.feedback", feedback))
        for feedback in ("auto", "ef14")
    )
    assert toy.differences(auto.state, ef14.state) == []
