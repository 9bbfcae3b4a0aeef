"""CCVR and the methods that match units or make examples: what they become in neutral settings, and
their steps by hand.
"""

import pytest
import torch

from hpcfed.algorithms.global_model import ccvr
from hpcfed.comm import Serial, spmd
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from hpcfed.training.infer import represent
from tests.contract import toy
from tests.contract.test_equalities import near, run

MLP = ("--models.mix", "mlp")
FINAL = "--algorithm.final_epochs"


def begun(method: str, *flags: str) -> Rounds:
    return toy.start(Serial(), toy.job(method, *flags))


def test_ccvr_is_fedavg_until_the_last_round_is_over():
    ours, theirs = run("ccvr"), run("fedavg")
    for part in ("state", "weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part


def test_ccvr_pools_the_clients_statistics_to_those_of_all_features_together():
    rounds = begun("ccvr", *MLP)
    fed, method, state = rounds.fed, rounds.algorithm, rounds.state
    keep = Params(
        mean=torch.zeros(4, toy.D, dtype=torch.float64),
        square=torch.zeros(4, toy.D, toy.D, dtype=torch.float64),
    )
    fed.participation.open(0)
    mine = fed.mine(range(fed.K))
    parts = [(c.id, method.moments(fed, c, state)) for c in mine]
    pooled = fed.mean(parts, keep=keep, per="row", counted=False)
    z = torch.cat([represent(fed, c, c.train) for c in mine]).double()
    y = torch.cat([torch.from_numpy(c.train.labels) for c in mine])
    for c in range(4):
        rows = z[y == c]
        assert torch.allclose(pooled["mean"][c], rows.mean(0), atol=1e-6)
        assert torch.allclose(ccvr.pool(pooled, c, len(rows)), rows.T.cov(), atol=1e-5)
    held, d = int((fed.label_counts[5] > 0).sum()), toy.D
    assert fed.tallies[5].up == 4 * (4 + held * (d * d + d))


def test_ccvr_trains_the_head_alone_and_without_epochs_nothing():
    assert begun("ccvr", FINAL, "0").algorithm.finish(None, None, 0) is None
    seen = {}
    for more in ((), (FINAL, "5"), ("--algorithm.final_samples", "9"),
                 ("--algorithm.final_balance", "shares"), ("--algorithm.final_lr", "0.1"),
                 ("--algorithm.final_batch", "7")):  # fmt: skip
        rounds = begun("ccvr", *MLP, *more)
        before = rounds.state.clone()
        rounds.t = 1
        rounds.finish()
        changed = {n for n in before if not torch.equal(before[n], rounds.state[n])}
        assert changed == {"head.weight", "head.bias"}
        seen[more] = rounds.state["head.weight"]
    every = list(seen.values())
    assert not any(torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])


def test_ccvr_ends_with_the_same_bits_on_any_ranks():
    def ended(comm):
        rounds = toy.start(comm, toy.job("ccvr", "--rounds", "1"))
        rounds.step()
        rounds.finish()
        return rounds.state

    (one,), three = spmd(1, ended), spmd(3, ended)
    assert all(toy.differences(one, other) == [] for other in three)


def test_ccvr_leaves_out_a_class_of_one_example_and_shares_the_others_by_hand():
    method = toy.job("ccvr", "--algorithm.final_samples", "10").algorithm
    N = torch.tensor([1, 2, 6, 0])
    assert method.count_virtual(N).tolist() == [0, 10, 10, 0]
    by_share = toy.job(
        "ccvr", "--algorithm.final_samples", "10", "--algorithm.final_balance", "shares"
    ).algorithm
    assert by_share.count_virtual(N).tolist() == [0, 5, 15, 0]


def test_virtual_features_have_the_mean_and_the_covariance_asked_for():
    mean = torch.tensor([1.0, -2], dtype=torch.float64)
    spread = torch.tensor([[2.0, 0.5], [0.5, 1]], dtype=torch.float64)
    z = ccvr.draw(mean, spread, 20000, torch.Generator().manual_seed(0))
    assert torch.allclose(z.mean(0), mean, atol=0.05)
    assert torch.allclose(z.T.cov(), spread, atol=0.06)


def test_options_of_the_head_are_refused_where_it_is_not_trained():
    with pytest.raises(ConfigError, match="final_lr"):
        toy.given("ccvr", FINAL, "0", "--algorithm.final_lr", "0.5")
