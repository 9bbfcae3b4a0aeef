"""Every method: a client that fails leaves the round as one that drops out does, on any number of
ranks.
"""

import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.algorithms.events import EventBased
from hpcfed.clients.participation import Draws
from hpcfed.comm import Serial, spmd
from hpcfed.core.errors import DivergedError
from hpcfed.training import local, stacked
from tests.contract import toy
from tests.contract.test_contract_ranks import STACKED

VICTIM, ROUND = 3, 1
each_algorithm = pytest.mark.parametrize("method", ALGORITHMS)
FLAGS = ("--rounds", "2", "--participation", "1", "--run.on_client_fault", "drop")


@pytest.fixture
def failing(monkeypatch) -> pytest.MonkeyPatch:
    """Client 3 diverges in round 1, which is found at the end of its training."""
    whole = local.check_finite

    def checked(fed, client, t, *rest):
        if (client.id, t) == (VICTIM, ROUND):
            error = DivergedError(f"{fed.warnings.where(client)}: the loss is nan")
            error.client = client.id
            raise error
        return whole(fed, client, t, *rest)

    monkeypatch.setattr(local, "check_finite", checked)
    monkeypatch.setattr(stacked, "check_finite", checked)
    monkeypatch.setattr(stacked, "finite", lambda rows: False)  # so that it looks at each client
    return monkeypatch


def dropping_out(patch: pytest.MonkeyPatch) -> None:
    """No client fails, but client 3 drops out of round 1, when all its work is done."""
    patch.undo()
    patch.setattr(Draws, "dropout", lambda self, t, k: 1.0 if (k, t) == (VICTIM, ROUND) else None)


def told_apart(outcome: toy.Outcome) -> list[np.ndarray]:
    """Who failed, by round; what else it says is the same for a client that drops out."""
    return [row.pop("clients/fault") for row in outcome.rows]


@each_algorithm
def test_a_client_that_fails_is_one_that_drops_out(method: str, failing, capsys):
    events = issubclass(load(method), EventBased)
    # else its server has many students to train
    same = ("--models.mix", "small") if method == "feddf" else ()
    job = toy.job(method, *FLAGS, "--rounds", "3" if events else "2", *same)
    failed = spmd(2, lambda comm: toy.run(comm, job))[0]
    if events:  # there a client that drops out does not do all its work
        assert toy.differences(failed, toy.run(Serial(), job)) == []
    why = told_apart(failed)
    if method == "central":  # its one training is the server's
        assert not np.any(why)
        return
    assert np.argwhere(why)[:, 1].tolist() == [VICTIM]
    assert capsys.readouterr().err.count("client 3 leaves the round") == 1 + events  # once a run
    if events:
        return
    dropping_out(failing)
    dropped = toy.run(Serial(), job)
    told_apart(dropped)
    assert toy.differences(failed, dropped) == []


def test_a_client_of_a_group_that_fails_is_one_that_drops_out(failing):
    job = toy.job("fedavg", *STACKED, *FLAGS)
    failed = spmd(2, lambda comm: toy.run(comm, job))[0]
    assert np.argwhere(told_apart(failed)).tolist() == [[ROUND, VICTIM]]
    dropping_out(failing)
    dropped = toy.run(Serial(), job)
    told_apart(dropped)
    assert toy.differences(failed, dropped) == []
