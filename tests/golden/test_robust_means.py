"""Robust rules in the place of a mean of vectors: where they break down, and what they leave alone.

Nothing is trained: clients send vectors, and the server replaces an old value by their mean.
"""

from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.comm import Comm, Serial
from hpcfed.config.defence import Defence
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params
from hpcfed.federation.transforms.defence.buckets import Buckets
from hpcfed.federation.transforms.defence.robust_mean import RobustMean
from tests.threads import spmd
from tests.vectors import federation

D, FAR = 6, 1000.0
CLIP = {"clip": 0.5}


def mean(
    parts: dict[int, Mean], keep: Params, per: str = "mean", comm: Comm | None = None, **settings
) -> Params:
    """What the server has after one mean by a rule.  parts: of all clients."""
    fed = federation(comm or Serial(), 1 + max(parts))
    mine = [(k, part) for k, part in parts.items() if k in fed.clients]
    return RobustMean(Defence(**settings)).mean(fed, mine, keep, per)


def of_vectors(vectors: np.ndarray, weights: np.ndarray | None = None, **settings) -> np.ndarray:
    """The rule's value for vectors [n, d], which are changes of zeros."""
    weights = np.ones(len(vectors)) if weights is None else weights
    parts = {
        k: Mean.of(Params(w=torch.from_numpy(x).float()), float(weights[k]))
        for k, x in enumerate(vectors)
    }
    return mean(parts, Params(w=torch.zeros(vectors.shape[1])), **settings)["w"].numpy()


def honest(n: int) -> np.ndarray:
    """Updates of honest clients: nearly 1 in all values."""
    return 1 + 0.1 * np.random.default_rng(0).standard_normal((n, D))


def moved(n: int, bad: int, at: np.ndarray | float = FAR, **settings) -> float:
    """How far the first clients of n, which all send `at`, move the result from the honest mean."""
    vectors = honest(n)
    vectors[:bad] = at
    return float(np.linalg.norm(of_vectors(vectors, **settings) - honest(n)[bad:].mean(axis=0)))


BREAKDOWN = [  # rule, its settings, clients, attackers that it withstands, attackers that win
    ("median", {}, 11, 5, 6),
    ("median", {}, 10, 4, 5),
    ("trimmed-mean", {"attackers": 0.3}, 11, 3, 4),
    ("krum", {"attackers": 0.4}, 11, 4, 6),  # 6 = n - f - 1 attackers are each other's nearest
    ("multi-krum", {"attackers": 0.4}, 11, 4, 6),
    ("bulyan", {"attackers": 0.2}, 11, 2, 6),
    ("geometric-median", {"iterations": 100}, 11, 5, 6),
    ("flame", {"noise": 0.0}, 11, 5, 6),
]


@pytest.mark.parametrize(("rule", "settings", "n", "withstood", "too_many"), BREAKDOWN)
def test_a_rule_withstands_the_attackers_that_theory_says_and_no_more(
    rule: str, settings: dict[str, Any], n: int, withstood: int, too_many: int
):
    for attackers in range(withstood + 1):
        for at in (FAR, -FAR, np.eye(D)[0] * FAR):
            assert moved(n, attackers, at, by=rule, **settings) < 1, (attackers, at)
    assert moved(n, too_many, by=rule, **settings) > 2


def test_one_attacker_breaks_the_mean():
    assert moved(11, 1, by="norm-bound", clip=1e9) > 100


def test_attackers_break_weighted_rules_with_half_of_the_weight():
    vectors = honest(11)
    vectors[0] = FAR
    for rule in ("median", "geometric-median"):
        settings = {"by": rule} | ({"iterations": 100} if rule != "median" else {})
        light, heavy = np.array([9.0] + [1] * 10), np.array([11.0] + [1] * 10)
        assert np.abs(of_vectors(vectors, light, **settings) - 1).max() < 1
        assert np.abs(of_vectors(vectors, heavy, **settings) - FAR).max() < 1


@pytest.mark.parametrize("attackers", [1, 5, 10])
def test_clipping_bounds_what_any_number_of_attackers_moves(attackers: int):
    """By at most 2 f C / n: what they add, and what the honest ones would have added."""
    for rule in ("norm-bound", "centred-clipping"):
        vectors = honest(11)
        without = of_vectors(vectors, by=rule, **CLIP)
        vectors[:attackers] = -FAR
        change = np.linalg.norm(of_vectors(vectors, by=rule, **CLIP) - without)
        assert 0 < change <= 2 * attackers * CLIP["clip"] / 11 + 1e-6


def test_foolsgold_withstands_any_number_of_sybils_and_not_one_attacker_alone():
    directions = np.eye(12)  # honest clients that have nothing in common
    sybils = np.concatenate([directions[:3], np.tile(FAR * directions[11], (9, 1))])
    assert of_vectors(sybils, by="foolsgold")[11] == 0
    assert of_vectors(sybils[:4], by="foolsgold")[11] > 100


def one_in_each_group(n: int, size: int, attackers: int, *unit: str) -> list[int]:
    """Clients of different groups of the first mean of round 0."""
    groups = Buckets(n, size, rng.stream(0, "defence", 0, "0", *unit)).groups
    return [int(np.flatnonzero(groups == b)[0]) for b in range(attackers)]


@pytest.mark.parametrize(
    ("rule", "settings", "n", "withstood", "too_many"),
    [
        ("median", {}, 22, 5, 6),
        ("trimmed-mean", {"attackers": 0.1}, 22, 2, 3),
        ("geometric-median", {"iterations": 100}, 22, 5, 6),
        ("krum", {"attackers": 0.19}, 22, 4, 6),
        ("bulyan", {"attackers": 0.1}, 22, 2, 6),
    ],
)
def test_of_groups_a_rule_withstands_as_many_bad_ones_as_it_assumes_attackers(
    rule: str, settings: dict[str, Any], n: int, withstood: int, too_many: int
):
    """Eleven groups of two: each attacker spoils another one."""
    unit = () if rule in ("median", "trimmed-mean") else ("",)
    for attackers in (withstood, too_many):
        vectors = honest(n)
        vectors[one_in_each_group(n, 2, attackers, *unit)] = FAR
        result = of_vectors(vectors, by=rule, bucket=2, **settings)
        assert (np.abs(result - 1).max() < 1) == (attackers == withstood), (attackers, result)


def test_bulyan_averages_the_groups_nearest_to_the_median():
    """Of 11 groups and f = 2, seven are chosen, and of each value three of them are averaged."""
    n, f, vectors = 22, 2, np.random.default_rng(1).standard_normal((22, D)).astype(np.float32)
    groups = Buckets(n, 2, rng.stream(0, "defence", 0, "0", "")).groups
    x = np.stack([vectors[groups == b].mean(axis=0, dtype=float) for b in range(11)])
    rest, chosen = list(range(11)), []
    while len(chosen) < 11 - 2 * f:
        d = np.square(x[rest][:, None] - x[rest]).sum(-1)
        scores = [
            np.sort(np.delete(d[i], i))[: max(1, len(rest) - f - 2)].sum() for i in range(len(rest))
        ]
        chosen.append(rest.pop(int(np.argmin(scores))))
    x = x[sorted(chosen)]
    order = np.abs(x - np.median(x, axis=0)).argsort(axis=0, kind="stable")[: 11 - 4 * f]
    expected = np.take_along_axis(x, order, axis=0).mean(axis=0)
    result = of_vectors(vectors, by="bulyan", attackers=0.1, bucket=2)
    assert result == pytest.approx(expected, rel=1e-6)


def test_a_trimmed_mean_of_few_groups_is_their_median():
    """Four of twenty clients are taken for attackers, of whose five groups four may be bad."""
    vectors, groups = honest(20), Buckets(20, 4, rng.stream(0, "defence", 0, "0")).groups
    medians = np.median([vectors[groups == b].mean(axis=0) for b in range(5)], axis=0)
    result = of_vectors(vectors, by="trimmed-mean", attackers=0.2, bucket=4)
    assert result == pytest.approx(medians, rel=1e-6)


def test_a_rule_that_assumes_no_number_of_attackers_works_with_few_groups():
    """Two groups: the geometric median is on the line between them, not their median."""
    vectors, weights = honest(10), np.array([1.0] * 9 + [3.0])
    groups = Buckets(10, 5, rng.stream(0, "defence", 0, "0", "")).groups
    two = [np.average(vectors[groups == b], axis=0, weights=weights[groups == b]) for b in (0, 1)]
    heavier = two[groups[9]]
    result = of_vectors(vectors, weights, by="geometric-median", bucket=5, iterations=200)
    assert result == pytest.approx(heavier, abs=1e-3)


RULES = [
    {"by": "median"},
    {"by": "trimmed-mean", "attackers": 0.34},
    {"by": "krum", "attackers": 0.2},
    {"by": "multi-krum", "attackers": 0.2},
    {"by": "bulyan", "attackers": 0.1},
    {"by": "geometric-median"},
    {"by": "centred-clipping", **CLIP},
    {"by": "norm-bound"},
    {"by": "foolsgold"},
    {"by": "flame", "noise": 0.0},
]


SHORT_CLIP = {"by": "centred-clipping", "clip": 0.1}
BY_ROW = [rule for rule in RULES if rule["by"] != "foolsgold"]
NAMES = lambda rule: rule["by"]  # noqa: E731


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_to_three_clients_that_send_the_same_get_it(rule: dict[str, Any], n: int):
    vectors = np.tile(np.float32([0.125, -0.25, 0.0625]), (n, 1))
    if rule["by"] == "foolsgold" and n > 1:  # it drops clients that act alike
        assert not of_vectors(vectors, **rule).any()
        return
    assert np.array_equal(of_vectors(vectors, **rule), vectors[0])


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_updates_of_length_zero_leave_the_old_value(rule: dict[str, Any]):
    assert not of_vectors(np.zeros((7, 3)), **rule).any()


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_cohort_of_nobody_leaves_the_old_value(rule: dict[str, Any]):
    fed, keep = federation(Serial(), 3), Params(w=torch.ones(3))
    assert torch.equal(RobustMean(Defence(**rule)).mean(fed, [], keep, "mean")["w"], keep["w"])


@pytest.mark.parametrize("rule", BY_ROW, ids=NAMES)
def test_a_row_that_nobody_has_stays_unknown(rule: dict[str, Any]):
    """Classes 0 and 2 of four have been sent, by one client and by seven."""
    rows = [0, 2]
    parts = {
        k: Mean.of(
            Params(proto=torch.full((2, D), 1.0 + k) if not k else torch.full((1, D), 1.0 + k)),
            1.0,
            at={"proto": (torch.tensor(rows if not k else [2]),)},
        )
        for k in range(7)
    }
    result = mean(parts, Params(proto=torch.full((4, D), torch.nan)), "row", **rule)["proto"]
    assert result.isnan().all(dim=1).tolist() == [False, True, False, True]
    assert result[rows].isfinite().all()
    again = mean(parts, Params(proto=torch.full((4, D), 0.5)), "row", **rule)["proto"]
    assert (again[[1, 3]] == 0.5).all()


def test_the_rank_that_has_a_row_refuses_unequal_weights_for_all():
    """Others do not see them, and end when this rank does."""
    parts = {
        k: Mean.of(Params(proto=torch.ones(1, D)), 1.0 + k, at={"proto": (torch.tensor([0]),)})
        for k in range(7)
    }
    with pytest.raises(ConfigError, match="have different weights") as refusal:
        mean(parts, Params(proto=torch.zeros(1, D)), "row", by="krum", attackers=0.2)
    assert not refusal.value.everywhere


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "bulyan"])
def test_the_median_is_taken_of_a_tensor_that_few_clients_send(rule: str, capsys):
    """Seven clients send `body`, and two of them `head`, of which no rule can choose one."""
    body, head = honest(7).astype(np.float32), np.float32([[1, 2], [3, 8]])
    parts = {
        k: Mean.of(
            Params(body=torch.from_numpy(x))
            | ({"head": torch.from_numpy(head[k])} if k < 2 else {})
        )
        for k, x in enumerate(body)
    }
    keep = Params(body=torch.zeros(D), head=torch.zeros(2), nobodys=torch.ones(1))
    result = mean(parts, keep, "tensor", by=rule, attackers=0.15)
    assert result["head"].tolist() == [2.0, 5.0] and result["nobodys"].tolist() == [1.0]
    alone = of_vectors(body, by=rule, attackers=0.15)
    assert np.array_equal(result["body"].numpy(), alone)
    assert "so few clients as 2" in capsys.readouterr().err


@pytest.mark.parametrize("rule", [*RULES, SHORT_CLIP, {"by": "fltrust"}], ids=NAMES)
def test_statistics_of_normalisation_stay_between_old_and_new_ones(rule: dict[str, Any]):
    """Otherwise a variance becomes negative: with centred clipping, which repeats a part of the
    last change, and with FLTrust, which makes updates as long as the server's own one.
    """
    fed, defence = federation(Serial(), 7), RobustMean(Defence(**rule))
    if rule["by"] == "fltrust":  # its own update needs a model
        of_server = Params(w=torch.full((D,), 9.0), running_var=torch.zeros(1))
        defence.rule.server = lambda fed, keep, last: [of_server]
    keep = Params(w=torch.zeros(D), running_var=torch.tensor([1.0]))
    for _ in range(8):
        defence.begin()
        parts = [
            (
                k,
                Mean.of(
                    Params(
                        w=keep["w"] + torch.from_numpy(x).float(), running_var=torch.tensor([0.01])
                    )
                ),
            )
            for k, x in enumerate(0.5 * honest(7))
        ]
        keep = defence.mean(fed, parts, keep, "mean")
        defence.close(fed, 1, [])
        assert 0.0099 <= float(keep["running_var"]) <= 1


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_median_is_taken_of_statistics_that_are_averaged_by_tensor(rule: dict[str, Any]):
    parts = {
        k: Mean.of(Params(w=torch.from_numpy(x).float(), running_var=torch.tensor([2.0**k])))
        for k, x in enumerate(honest(7))
    }
    keep = Params(w=torch.zeros(D), running_var=torch.ones(1))
    result = mean(parts, keep, "tensor", **rule)
    trimmed = (4 + 8 + 16) / 3
    assert result["running_var"].item() == pytest.approx(trimmed if "mean" in rule["by"] else 8)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_ranks_do_not_change_a_bit(rule: dict[str, Any]):
    vectors = np.random.default_rng(2).standard_normal((11, 40))
    parts = {k: Mean.of(Params(w=torch.from_numpy(x).float())) for k, x in enumerate(vectors)}
    keep = Params(w=torch.zeros(40))
    want = mean(parts, keep, **rule)["w"]
    for ranks in (2, 5):
        for result in spmd(ranks, lambda comm: mean(parts, keep, comm=comm, **rule)["w"]):
            assert torch.equal(result, want)
