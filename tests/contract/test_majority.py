"""Signs with majority vote: every method runs with them, or is refused with the reason; those that
send in different ways also on two ranks and after a resumption.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms.trial import check_privacy
from hpcfed.comm import Comm, Serial
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.federation.transforms.compression.vote import MajorityVote
from tests import saving
from tests.contract import toy
from tests.threads import spmd

VOTE = ("--compression.by", "vote", "--compression.eta", "0.01")
SHORT = ("--rounds", "3", "--evaluate.every", "1000", "--evaluate.before", "false")
ALL = ("--participation", "1")
REASONS = (  # of refusals
    "give no direction",
    "leaves only signs of what single clients send",
    "there is no vote",
    "nothing is sent",
)
AVERAGING = ("fedavg", "fedprox", "fedopt", "fedclassavg", "fedbn", "heterofl", "ditto", "fml")


def job(method: str, *flags: str):
    return toy.job(method, *SHORT, *toy.different(method), *VOTE, *flags)


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_method_runs_with_votes_or_is_refused_with_a_reason(method: str, tmp_path: Path):
    try:
        rounds, rows = toy.start(Serial(), job(method)), []
        check_privacy(rounds.fed)
    except ConfigError as error:
        assert any(reason in str(error) for reason in REASONS)
        assert method not in AVERAGING
        return
    rows.append(rounds.step()[0])
    assert rows[0]["clients/up"].any()
    if method not in toy.CATEGORIES:  # the mechanisms' and the contract's runs are on several ranks
        return
    saving.save(rounds, tmp_path)
    rows.append(rounds.step()[0])
    want = toy.outcome(rounds, rows[1:])

    def on_rank(comm: Comm) -> toy.Outcome:
        return toy.run(comm, job(method), rounds=2, resume=tmp_path)

    for outcome in spmd(2, on_rank):
        assert toy.differences(outcome, want) == []


def test_each_trained_value_moves_by_eta_or_stays():
    rounds = toy.start(Serial(), job("fedavg", *ALL))
    before = rounds.state
    rounds.step()
    for name, value in rounds.state.items():
        if rounds.fed.trainable(name):
            moves = ((value - before[name]) / 0.01).round().unique().tolist()
            assert set(moves) <= {-1.0, 0.0, 1.0}, name
            assert torch.allclose(value - before[name], moves_of(value, before[name]), atol=1e-6)


def moves_of(value: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return 0.01 * ((value - before) / 0.01).round()


def test_statistics_are_averaged_as_without_votes():
    plain = toy.start(Serial(), toy.job("fedavg", *SHORT, *ALL))
    voting = toy.start(Serial(), job("fedavg", *ALL))
    plain.step()
    voting.step()
    statistics = [name for name in plain.state if not plain.fed.trainable(name)]
    assert statistics
    for name in statistics:
        assert torch.equal(plain.state[name], voting.state[name])


@cache
def open_votes(method: str) -> toy.Outcome:
    """The run without masks, to which that with each protocol is compared."""
    return toy.run(Serial(), masked_job(method))


def masked_job(method: str, *flags: str):
    model = toy.without_norm(method)
    return toy.job(method, *SHORT, *VOTE, *model, *ALL, "--rounds", "2", *flags)


@pytest.mark.parametrize("protocol", ["secagg", "secagg+", "lightsecagg"])
@pytest.mark.parametrize("method", ["fedavg", "fedclassavg", "heterofl"])
def test_masks_change_no_bit_of_votes(method: str, protocol: str):
    pytest.importorskip("cryptography", reason="needs hpcfed[secure]")
    want, masked = open_votes(method), masked_job(method, "--secure.by", protocol)
    for got in spmd(2, lambda comm: toy.run(comm, masked)):
        assert toy.differences(got.state, want.state) == []
    charged = masked_job(method, "--secure.by", protocol, "--secure.masks", "charged")
    charged = toy.run(Serial(), charged)
    assert toy.differences(charged.state, want.state) == []
    assert (charged.column("up") == got.column("up")).all()


def test_a_masked_vote_has_the_bits_of_a_sum_of_signs():
    """Of 6 clients: -6 to 6 in 4 bits, and a number of votes."""
    flags = ("--models.mix", "mlp", *ALL, "--rounds", "1", "--secure.by", "secagg")
    masked = toy.run(Serial(), job("fedavg", *flags, "--secure.masks", "charged"))
    P = sum(value.numel() for value in masked.state.values())
    exchange = 64 + 148 * 5 + 66 * 6  # keys, shares and answers, see secure.md
    assert set(masked.column("up").flatten()) == {exchange + -(-4 * (P + 1) // 8)}


def test_statistics_under_masks_are_refused():
    pytest.importorskip("cryptography", reason="needs hpcfed[secure]")
    settings = job("fedavg", "--models.mix", "small", "--secure.by", "secagg")
    with pytest.raises(ConfigError, match="models.norm"):
        toy.run(Serial(), settings)


def test_a_client_receives_the_votes_that_it_has_missed_or_the_complete_model():
    """One bit for each value per vote of an odd cohort, 8/5 bits if there may be ties."""
    rounds = toy.start(Serial(), job("fedavg", "--models.mix", "mlp", "--rounds", "12"))
    state, rule = rounds.state, rounds.fed.rule
    assert isinstance(rule, MajorityVote)
    sizes = {name: value.numel() for name, value in state.items()}
    complete = 4 * sum(sizes.values())
    signs = sum(1 + -(-n // 8) for n in sizes.values())
    ties = sum(1 + -(-n // 5) for n in sizes.values())
    last: dict[int, int] = {}
    for t in range(12):
        downloads = rounds.step()[0]["clients/down"]
        for k in np.flatnonzero(downloads).tolist():
            missed = t - last[k] if k in last else None
            if missed is None:
                assert downloads[k] == complete
            else:
                # a small tensor may have come back to what the client has
                assert 0.99 * missed * signs <= downloads[k] <= missed * ties
                assert downloads[k] < complete
            last[k] = t
    assert len(last) == 6


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--compression.by", "vote"), "set eta"),
        ((*VOTE, "--compression.down", "int8"), "remove down"),
        (("--compression.down", "vote"), "compression.down"),
        ((*VOTE, "--compression.feedback", "ef14"), "compression.feedback"),
        ((*VOTE, "--compression.min_size", "10"), "compression.min_size"),
        ((*VOTE, "--privacy.by", "central", "--privacy.clip", "1"), "no length to clip"),
        ((*VOTE, "--secure.by", "secagg", "--secure.bound", "10"), "secure.bound"),
        ((*VOTE, "--algorithm.name", "fedasync"), "there is no vote"),
    ],
)
def test_settings_that_cannot_be_are_refused(flags: tuple[str, ...], message: str):
    words = ["--algorithm.name", "fedavg", "--models.mix", "mlp", *flags]
    with pytest.raises(ConfigError, match=message):
        load(words, environ={})
