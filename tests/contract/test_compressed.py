"""Every method runs with compressed uploads and downloads: on any ranks, resumed, and lossless ones
as if there were none.
"""

from functools import cache
from pathlib import Path

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Comm, Serial
from hpcfed.core.errors import ConfigError
from tests import saving
from tests.contract import toy
from tests.contract.test_uploads import SILENT, WORDS, plain
from tests.threads import spmd

SMALL = ("--compression.min_size", "16")  # the toy models have small tensors
MIXED = {  # biased and with feedback, or unbiased and random, in turn
    0: ("--compression.by", "top-k", "--compression.down", "top-k"),
    1: ("--compression.by", "qsgd", "--compression.down", "int8"),
    2: ("--compression.by", "sign", "--compression.feedback", "ef21"),
    3: ("--compression.by", "random-k", "--compression.down", "stc"),
    4: ("--compression.by", "powersgd", "--compression.rank", "1"),
    5: ("--compression.by", "eden", "--compression.down", "terngrad"),
}
FULL = ("--compression.by", "top-k", "--compression.down", "top-k", "--compression.share", "1")
each_method = pytest.mark.parametrize("method", ALGORITHMS)


def job(method: str, *flags: str):
    return toy.job(method, *WORDS, *toy.different(method), *flags)


def computed(outcome: toy.Outcome) -> list:
    """What a run has computed, without what clients remember of messages, and without bytes."""
    memory = {
        k: {name: value for name, value in values.items() if name != "compression"}
        for k, values in outcome.memory.items()
    }
    return [outcome.state, outcome.weights, memory]


@cache
def number(method: str) -> int:
    return list(ALGORITHMS).index(method)


@each_method
def test_ranks_do_not_matter_nor_does_a_resumption(method: str, tmp_path: Path):
    """One rank saves after a round; two continue from there, with the same bits as the one."""
    flags = (*SMALL, *MIXED[number(method) % len(MIXED)])
    if method in SILENT:
        with pytest.raises(ConfigError, match="compression"):
            job(method, *flags)
        return
    rounds, rows = toy.start(Serial(), job(method, *flags)), []
    for _ in range(2):
        rows.append(rounds.step()[0])
        if len(rows) == 1:
            saving.save(rounds, tmp_path)
    want = toy.outcome(rounds, rows[1:])

    def on_rank(comm: Comm) -> toy.Outcome:
        return toy.run(comm, job(method, *flags), rounds=2, resume=tmp_path)

    for got in spmd(2, on_rank):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("method", toy.CATEGORIES)
def test_codecs_that_lose_nothing_change_nothing(method: str):
    full = toy.run(Serial(), job(method, *SMALL, *FULL), rounds=2)
    assert toy.differences(computed(full), computed(plain(method).outcomes[-1])) == []


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
