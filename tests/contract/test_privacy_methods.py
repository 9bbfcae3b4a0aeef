"""Each method runs with central privacy, or is refused with a reason."""

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.federation.transforms.privacy.accounting import Accountant, Release
from tests.contract import toy

pytest.importorskip("dp_accounting")

PRIVATE = (
    *("--rounds", "1", "--evaluate.before", "false", "--evaluate.every", "1000"),
    *("--privacy.by", "central", "--privacy.clip", "0.5", "--privacy.noise", "1"),
    *("--privacy.accountant", "rdp"),
)
REASONS = (
    "hides what single clients send",
    "several terms of one mean",
    "pieces of larger tensors",
    "chooses some of its cohorts itself",
    "schedules its clients itself",
    "works without rounds",
    "has no effect: no client sends",
    "averages over some of the clients",
    "averages one upload twice",
    "weights each value by itself",
    "neither 1 nor its number of examples",
    "reads how many examples of each class",
    "has no round without clients",
    "also asks clients that are not in the cohort",
    "the number of gradients in each update as it is",
    "ranks follow from the clients' data",
)
RUNS = {  # methods that central privacy is made for: these must not come to be refused
    *("fedavg", "fedprox", "feddyn", "moon", "scaffold", "fedopt", "fedrep", "ditto"),
    *("fedclassavg", "lgfedavg", "fedproto", "fedmd", "dsfl", "fml", "perfedavg", "pfedme"),
}
ONCE = Release(1.0, 0.5)  # as toy jobs draw cohorts


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_method_runs_with_central_privacy_or_is_refused_with_a_reason(method: str):
    try:
        (row,) = toy.run(Serial(), toy.job(method, *PRIVATE)).rows
    except ConfigError as error:
        assert method not in RUNS and any(reason in str(error) for reason in REASONS), error
    else:
        assert row["rounds/epsilon"] >= Accountant(1e-5, "rdp").epsilon([ONCE])
