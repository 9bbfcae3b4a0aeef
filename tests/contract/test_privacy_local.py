"""Each method runs with local noise, or is refused with a reason; those that send in different ways
also on two ranks and after a resumption, and with a bound and without noise.
"""

from pathlib import Path

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms.trial import check_privacy
from hpcfed.comm import Comm, Serial
from hpcfed.core.errors import ConfigError
from hpcfed.federation.transforms.privacy.accounting import Accountant, Release
from tests import saving
from tests.contract import toy
from tests.threads import spmd

pytest.importorskip("dp_accounting", reason="needs hpcfed[privacy]")

LOCAL = (
    *("--rounds", "3", "--evaluate.before", "false", "--evaluate.every", "1000"),
    *("--privacy.by", "local", "--privacy.clip", "0.5", "--privacy.accountant", "rdp"),
)
NOISE = ("--privacy.noise", "0.02")
REASONS = (
    "works without rounds",
    "pieces of larger tensors",
    "whole or plain numbers",
    "sends its weight",
    "pfedknow prunes channels",
    "the number of gradients in each update as it is",
    "reads how many examples of each class",
    "send nothing",
    "ranks follow from the clients' data",
)
RUNS = {  # these must not come to be refused
    *("fedavg", "fedprox", "feddyn", "moon", "scaffold", "fedopt", "fedrep", "ditto"),
    *("fedclassavg", "lgfedavg", "fedproto", "fedmd", "dsfl", "fml", "fedhenn", "fd"),
    *("perfedavg", "pfedme", "ktpfl", "feddf"),
}


def job(method: str, *flags: str):
    # noise makes statistics of batch normalisation useless
    return toy.job(method, *LOCAL, *toy.without_norm(method), *flags)


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_method_runs_with_local_noise_or_is_refused_with_a_reason(method: str, tmp_path: Path):
    try:
        rounds = toy.start(Serial(), job(method, *NOISE))
        check_privacy(rounds.fed)
    except ConfigError as error:
        assert method not in RUNS and any(reason in str(error) for reason in REASONS), error
        with pytest.raises(ConfigError) as without:  # a bound alone is refused for the same reason
            check_privacy(toy.start(Serial(), job(method)).fed)
        assert str(without.value) == str(error)
        return
    rows = [rounds.step()[0]]
    if rows[0]["clients/up"].any():
        assert rows[0]["rounds/epsilon"] >= Accountant(1e-5, "rdp").epsilon([Release(0.02, 1)])
    if method not in toy.CATEGORIES:  # the mechanisms' and the contract's runs are on several ranks
        return
    saving.save(rounds, tmp_path)
    rows.append(rounds.step()[0])
    want = toy.outcome(rounds, rows[1:])

    def on_rank(comm: Comm) -> toy.Outcome:
        return toy.run(comm, job(method, *NOISE), rounds=2, resume=tmp_path)

    for got in spmd(2, on_rank):
        assert toy.differences([got.state, got.weights], [want.state, want.weights]) == []
        assert toy.differences(got.rows, want.rows) == []


@pytest.mark.parametrize("method", toy.CATEGORIES)
def test_a_bound_alone_is_accepted_where_noise_is(method: str):
    try:
        toy.start(Serial(), job(method, *NOISE))
    except ConfigError:
        return  # see above
    toy.start(Serial(), job(method)).step()
