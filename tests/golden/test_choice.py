"""How cohorts are chosen: probabilities, draws and what is learnt, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcfed.clients.selection import Choice, allocate, draw_systematic
from hpcfed.config.selection import Selection
from hpcfed.core import rng
from hpcfed.federation.tallies import Tallies

SIZES = (5, 0, 10, 20, 5)


def choice(by: str, m: int = 2, sizes: tuple[int, ...] = SIZES, **fields: object) -> Choice:
    return Choice(Selection(by=by, **fields), 0, sizes, m)


def test_a_weight_that_is_too_large_is_capped_and_the_others_share_the_rest():
    p, capped = allocate(np.log([100.0, 1, 1, 1]), 2, 0.1)
    assert p == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3]) and capped.tolist() == [True, *3 * [False]]


def test_a_client_that_another_ones_cap_makes_too_likely_is_capped_too():
    p, capped = allocate(np.log([100.0, 10, 1, 1]), 2, 0.0)
    # uncapped 1.79 and 0.18; then one place is left for 10 + 1 + 1
    assert p == pytest.approx([1, 10 / 12, 1 / 12, 1 / 12]) and capped.sum() == 1
    p, capped = allocate(np.log([100.0, 50, 1, 1]), 3, 0.0)
    assert p == pytest.approx([1, 1, 0.5, 0.5]) and capped.sum() == 2


def test_weights_that_underflow_beside_others_still_share_what_these_leave():
    p, capped = allocate(np.array([1e5, 5e4, 1.0, 1.0, 1.0]), 4, 0.0)
    assert p == pytest.approx([1, 1, 2 / 3, 2 / 3, 2 / 3]) and capped.sum() == 2
    e3cs = choice("e3cs", m=5, sizes=(1,) * 20, quota=0.0, eta=5000.0)
    for t in range(50):
        cohort = e3cs.sample(t)
        assert len(cohort) == len(set(cohort)) == 5
        e3cs.learn(t, cohort[::2], {})


def test_with_the_full_quota_e3cs_is_uniform_and_learns_nothing():
    e3cs = choice("e3cs", quota=1.0)
    for t in range(5):
        e3cs.learn(t, e3cs.sample(t), {})
    assert e3cs.probabilities()[0] == pytest.approx([2 / 5] * 5) and not e3cs.log_weights.any()


def test_e3cs_raises_the_weight_of_clients_that_reported_by_hand():
    e3cs = choice("e3cs", quota=0.5, eta=0.25)
    cohort = e3cs.sample(0)
    e3cs.learn(0, [cohort[0]], {})
    # (m - K sigma) eta / (K p) = (2 - 1) 0.25 / (5 * 0.4)
    want = np.zeros(5)
    want[cohort[0]] = 0.125
    assert e3cs.log_weights == pytest.approx(want)


def test_e3cs_comes_to_prefer_clients_that_report_and_keeps_its_quota():
    e3cs = choice("e3cs", m=4, sizes=(1,) * 20, quota=0.5)
    for t in range(200):
        e3cs.learn(t, [k for k in e3cs.sample(t) if k < 10], {})
    p, _ = e3cs.probabilities()
    assert p.sum() == pytest.approx(4) and p.min() >= 0.1 and p[:10].sum() > 2.8


def test_a_systematic_draw_has_each_client_as_often_as_its_probability_says():
    p, counts = np.array([1.0, 0.5, 0.3, 0.15, 0.05]), np.zeros(5)
    for t in range(4000):
        cohort = draw_systematic(p, rng.stream(0, "draws", t))
        assert len(set(cohort)) == 2 and 0 in cohort
        counts[cohort] += 1
    assert counts / 4000 == pytest.approx(p, abs=0.03)


def test_power_of_choice_takes_the_highest_losses_of_all_and_the_lowest_ids_among_equals():
    poc = choice("power-of-choice", sizes=(1, 1, 1, 1, 1), candidates=5)
    assert poc.sample(0) == [0, 1]  # nobody has been chosen: all infinite
    poc.learn(0, [0, 1], {0: 3.0, 1: 1.0})
    assert poc.sample(1) == [2, 3]
    poc.learn(1, [2, 3], {2: 2.0, 3: 0.5})
    poc.learn(2, [4], {4: 0.25})
    assert poc.sample(3) == [0, 2]
    poc.learn(3, [0], {})  # it trained nothing and sent no loss: its former one holds
    assert poc.losses.tolist() == [3.0, 1.0, 2.0, 0.5, 0.25]


def test_with_as_many_candidates_as_cohort_members_clients_are_chosen_by_size():
    by_size, poc = choice("size"), choice("power-of-choice", candidates=2)
    cohorts = [by_size.sample(t) for t in range(300)]
    assert cohorts == [poc.sample(t) for t in range(300)]
    often = np.bincount(np.concatenate(cohorts), minlength=5)
    assert often[1] == 0 and often[3] > often[2] > often[0]  # without examples: never


def test_clients_without_examples_are_no_candidates():
    poc = choice("power-of-choice", sizes=(5, 0, 10, 20, 5), candidates=5)
    assert [poc.sample(t) for t in range(5)] == [[0, 2]] * 5  # nobody has been chosen: lowest ids
    assert choice("size", m=4, sizes=(5, 0, 10, 0, 5)).sample(0) == [0, 2, 4]


def test_the_quota_inc_is_none_in_the_first_quarter_and_then_all():
    inc = Choice(Selection(by="e3cs", quota=1.0, quota_after=0.25), 0, (1,) * 4, 2, rounds=8)
    assert [inc.quota(t) for t in range(8)] == [0, 0, 1, 1, 1, 1, 1, 1]
    cohort = inc.sample(0)
    inc.learn(0, cohort, {})
    # without a quota m eta / (K p) = 2 * 0.5 / (4 * 0.5)
    assert inc.log_weights[cohort].tolist() == [0.5, 0.5] and inc.log_weights.sum() == 1
    assert inc.probabilities(1)[0] == pytest.approx(
        [np.exp(w) / (np.exp(0.5) + 1) for w in inc.log_weights]
    )
    assert inc.probabilities(2)[0] == pytest.approx([0.5] * 4)
    inc.learn(5, inc.sample(5), {})
    assert inc.log_weights.sum() == 1


# --- Oort


def oort(m: int = 2, sizes: tuple[int, ...] = (1,) * 6, **fields: object) -> Choice:
    return choice("oort", m=m, sizes=sizes, **fields)


def test_the_utility_of_a_client_by_hand():
    tallies = Tallies()
    client: object = SimpleNamespace(id=0, n=4)
    tallies.add_training(client, np.array([1.0, 1, 2, 2]), [1] * 4, 0.0)  # type: ignore[arg-type]
    assert oort().report(tallies[0], 4) == pytest.approx(6.324555)
    tallies.add_training(client, np.array([2.0]), [4], 0.0)  # type: ignore[arg-type]
    assert oort().report(tallies[0], 4) == pytest.approx(4 * ((10 + 16) / 8) ** 0.5)
    assert np.isnan(oort().report(tallies[1], 4))


def test_scores_of_oort_by_hand():
    by_oort = oort(preferred=0.5, clip=1.0).oort
    by_oort.learn(0, {0: 1.0, 1: 3.0}, {0: 10.0, 1: 10.0})
    by_oort.learn(3, {2: 5.0}, {2: 20.0})
    uncertain = (0.1 * np.log(5)) ** 0.5  # round 5
    want = [uncertain, 0.5 + uncertain, 0.25 * (1 + uncertain / 2)]
    assert by_oort.scores(4, np.arange(3)) == pytest.approx(want)
    plain = oort(slow=0.0, clip=0.5).oort
    plain.from_tree(by_oort.to_tree())
    want = [uncertain, 1 + uncertain, 1 + uncertain / 2]  # 5 counts as the median, 3
    assert plain.scores(4, np.arange(3)) == pytest.approx(want)


def test_oort_explores_each_client_once_and_then_draws_among_all():
    explorer = oort(m=4, sizes=(1,) * 10, explore=1.0, explore_decay=1.0)
    cohorts = []
    for t in range(4):
        cohorts.append(explorer.sample(t))
        explorer.learn(t, cohorts[-1], dict.fromkeys(cohorts[-1], 1.0), dict.fromkeys(range(10), 1))
    assert sorted({*cohorts[0], *cohorts[1], *cohorts[2]}) == [*range(10)]
    assert not {*cohorts[0]} & {*cohorts[1]} and [*map(len, cohorts)] == [4] * 4


def test_oort_draws_new_clients_by_size_and_clients_of_equal_utility_alike():
    often = np.zeros(5)
    for seed in range(400):
        new = Choice(Selection(by="oort"), seed, SIZES, 1)
        often[new.sample(0)] += 1
    assert often / 400 == pytest.approx([0.125, 0, 0.25, 0.5, 0.125], abs=0.06)
    often[:] = 0
    for seed in range(400):
        equal = Choice(Selection(by="oort", explore=0.0), seed, (1,) * 5, 2)
        equal.learn(0, range(5), dict.fromkeys(range(5), 2.0), dict.fromkeys(range(5), 1.0))
        often[equal.sample(1)] += 1
    assert often / 400 == pytest.approx([0.4] * 5, abs=0.07)


def test_oort_draws_among_clients_whose_scores_reach_the_cutoff():
    strict = oort(m=2, explore=0.0, cutoff=1.0, slow=0.0)
    strict.learn(0, range(6), {k: float(k) for k in range(6)}, dict.fromkeys(range(6), 1.0))
    assert [strict.sample(t) for t in range(1, 9)] == [[4, 5]] * 8
    often = np.zeros(6)
    for seed in range(60):  # scores of round 2: 0.26, 0.47, 0.68, 0.89, 1.1, 1.26
        loose = Choice(Selection(by="oort", explore=0.0, cutoff=0.6), seed, (1,) * 6, 2)
        loose.from_tree(strict.to_tree())
        often[loose.sample(1)] += 1
    assert (often[:2] == 0).all() and (often[2:] > 0).all()


def test_oorts_preferred_duration_rises_while_utilities_stay_the_same_and_falls_if_they_jump():
    paced = oort(preferred=0.1, pace=2)
    seconds = dict.fromkeys(range(6), 1.0)
    quantiles = []
    for t in range(8):
        utility = 100.0 if t >= 6 else 1.0
        paced.learn(t, [0], {0: utility}, seconds)
        quantiles.append(paced.oort.quantile)
    # in round 1 the client is new, so that rounds 1 and 2 differ from 3 and 4
    assert quantiles == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1, 0.15, 0.15, 0.1])
