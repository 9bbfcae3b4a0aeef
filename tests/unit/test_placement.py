"""Clients on ranks: heaviest first, each to the rank with the least load, then exchanges that
help.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from hpcfed.comm import Comm, Serial
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.engine import calibration
from hpcfed.engine.balance import level
from hpcfed.engine.decide import world
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation
from hpcfed.machine.assignment import bound, makespan, place
from hpcfed.machine.speeds import of_ranks
from tests.contract import toy
from tests.threads import spmd

pytestmark = pytest.mark.quick


def test_the_heaviest_client_goes_first_and_the_rest_fill_up():
    assert place([1, 5, 2, 4], 2) == [0, 0, 1, 1]  # 5 | 4, then 2 to the 4, then 1 to the 5


def test_equal_clients_are_dealt_out_by_id():
    assert place([1.0] * 7, 3) == [0, 1, 2, 0, 1, 2, 0]


def test_more_ranks_than_clients_leave_ranks_idle():
    assert place([3.0, 1.0], 5) == [0, 1]


def test_one_rank_holds_everybody():
    assert place([3.0, 1.0, 0.0], 1) == [0, 0, 0]


def test_the_makespan_is_the_load_of_the_most_loaded_rank():
    assert makespan([1, 5, 2, 4], [0, 0, 1, 1]) == 6
    assert makespan([], []) == 0.0


def test_an_exchange_improves_on_heaviest_first():
    costs = [3, 3, 2, 2, 2]  # heaviest first: 3 2 2 | 3 2, makespan 7
    assert place(costs, 2) == [1, 1, 0, 0, 0] and makespan(costs, place(costs, 2)) == 6


def test_the_bound_is_the_mean_load_the_largest_client_or_clients_that_must_share():
    assert bound([1, 1, 1, 1], 2) == 2
    assert bound([5, 1, 1], 2) == 5
    assert bound([4, 4, 3, 3], 3) == 6  # of four clients on three ranks two share: 3 + 3
    assert bound([2, 2, 2, 2, 1], 2) == 5  # of five clients on two ranks three share: 2 + 2 + 1
    assert bound([], 3) == bound([0.0], 3) == 0


def test_clients_without_cost_are_placed_too():
    assert place([0.0] * 4, 2) == [0, 0, 0, 0] and place([], 2) == []


@pytest.mark.parametrize("ranks", [2, 3, 5, 16])
def test_the_makespan_is_within_a_twentieth_of_the_bound(ranks: int):
    costs = rng.stream(0, "costs", ranks).lognormal(size=40).tolist()
    assert bound(costs, ranks) <= makespan(costs, place(costs, ranks)) <= 1.05 * bound(costs, ranks)


def test_a_round_is_levelled_by_few_moves():
    assert level([1] * 4, [0, 0, 0, 0], 2 * [1]) == [1, 1, 0, 0]
    assert level([1] * 5, [0, 0, 1, 1, 1], 2 * [1]) == [0, 0, 1, 1, 1]  # nothing to gain
    assert level([4, 3, 1], [0, 0, 1], 2 * [1]) == [
        0,
        1,
        1,
    ]  # of 7 and 1 the one nearest to half the difference
    assert level([10, 1], [0, 0], 3 * [1]) == [1, 0]
    assert level([], [], 3 * [1]) == []
    assert level([0.0, 0.0], [1, 1], 2 * [1]) == [1, 1]


@pytest.mark.parametrize("cost", [0.1, 0.3, 1 / 3, 6e-4])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_clients_of_equal_cost_do_not_go_to_and_fro_for_ever(cost: float, ranks: int):
    for n in range(
        2, 40
    ):  # 5 clients at 0.1 on 2 ranks: 0.1 + 0.1 + 0.1 - (0.1 + 0.1) is a little more than 0.1
        counts = np.bincount(level([cost] * n, [0] * n, ranks * [1]), minlength=ranks)
        assert counts.max() - counts.min() <= 1


MODELS = ("--models.mix", "mlp,cnn", "--participation", "1", "--rounds", "2")


def calibrated(comm: Comm, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> Rounds:
    """A run whose GPUs are pretended, on which steps of these models take so many seconds."""
    job = toy.job("local", *MODELS)
    facts = world(job, comm)
    fed = federation(job, comm, facts)
    monkeypatch.setattr(calibration, "on_gpus", lambda fed: True)
    monkeypatch.setattr(calibration, "measured", lambda fed, kinds: seconds)
    calibration.calibrate(facts, fed)
    return Rounds(fed)


def test_on_gpus_clients_are_placed_by_measured_seconds_and_no_result_depends_on_them(monkeypatch):
    sizes = np.array(toy.SIZES)
    for seconds in ({"mlp": 2.0, "cnn": 0.5}, {"mlp": 0.001, "cnn": 1.0}):

        def run(comm: Comm, seconds=seconds) -> tuple[list[int], toy.Outcome]:
            going = calibrated(comm, monkeypatch, seconds)
            placement = list(going.fed.placement.ranks)
            return placement, toy.outcome(going, [going.step()[0] for _ in range(2)])

        placement, outcome = spmd(2, run)[0]
        costs = np.array([seconds[kind] for kind in 3 * ["mlp", "cnn"]]) * sizes
        assert placement == place(costs.tolist(), 2)
        assert toy.differences(outcome, toy.run(Serial(), toy.job("local", *MODELS))) == []


def test_without_a_measurement_and_on_cpus_the_estimates_stay(monkeypatch):
    job = toy.job("local", *MODELS)

    def placements(comm: Comm) -> tuple[list[int], list[int]]:
        facts = world(job, comm)
        fed = federation(job, comm, facts)
        before = list(fed.placement.ranks)
        calibration.calibrate(facts, fed)  # on a CPU
        return before, fed.placement.ranks

    before, after = spmd(2, placements)[0]
    unmeasured = spmd(2, lambda comm: calibrated(comm, monkeypatch, {}).fed.placement.ranks)[0]
    assert before == after == unmeasured


def test_a_step_is_timed_by_the_gpus_clock(monkeypatch):
    """Warm-ups do not count."""
    moves = []

    class Event:
        def __init__(self, enable_timing: bool):
            self.at = None

        def record(self) -> None:
            self.at = 30.0 * len(moves)  # milliseconds

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: "Event") -> float:
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    seconds = calibration.timed(lambda: moves.append(1), torch.device("cuda", 0))
    assert seconds == pytest.approx(0.03)


def test_a_rank_of_twice_the_speed_gets_twice_the_work():
    assert place([1.0] * 6, 2, [2, 1]) == [
        0,
        0,
        1,
        0,
        0,
        1,
    ]  # 1/2, 2/2, then 1 beats 3/2, 3/2, 4/2 before 2
    assert makespan([1.0] * 6, [0, 0, 1, 0, 0, 1], [2, 1]) == 2
    assert place([8, 1, 1], 2, [1, 4]) == [1, 0, 0] and place([3, 3, 3], 2, [10, 1]) == [0, 0, 0]


def test_equal_speeds_of_any_size_place_as_no_speeds_do():
    costs = rng.stream(0, "costs").lognormal(size=40).tolist()
    assert place(costs, 5, [0.25] * 5) == place(costs, 5)


def test_the_bound_counts_what_all_ranks_together_and_the_fastest_can_do():
    assert bound([3, 3, 3], 2, [2, 1]) == 3  # 9 on 3
    assert bound([9, 1, 1], 2, [2, 1]) == 4.5  # the largest on the fastest


@pytest.mark.parametrize("ranks", [2, 5, 15])
def test_with_two_kinds_of_ranks_the_makespan_is_within_a_tenth_of_the_bound(ranks: int):
    costs, speeds = (
        rng.stream(0, "costs", ranks).lognormal(size=60).tolist(),
        (ranks * [1.0, 0.6])[:ranks],
    )
    assert bound(costs, ranks, speeds) <= makespan(costs, place(costs, ranks, speeds), speeds)
    assert makespan(costs, place(costs, ranks, speeds), speeds) <= 1.1 * bound(costs, ranks, speeds)


def test_a_round_is_levelled_by_speed():
    assert level([1] * 6, [0, 0, 0, 1, 1, 1], [2, 1]) == [
        0,
        0,
        0,
        0,
        1,
        1,
    ]  # 3/2 and 3/1 become 4/2 and 2/1


def test_speeds_are_given_for_each_rank_or_for_each_node():
    assert of_ranks([1, 0.6, 1, 0.6], (0, 0, 1, 1)) == [1, 0.6, 1, 0.6]
    assert of_ranks([1, 0.6], (0, 0, 1, 1)) == [1, 1, 0.6, 0.6]
    assert of_ranks([], (0, 0)) == [1, 1]
    with pytest.raises(
        ConfigError, match=r"run.speeds has 3 values, but the run has 4 ranks on 2 nodes; give one"
    ):
        of_ranks([1, 1, 1], (0, 0, 1, 1))


def test_after_a_death_speeds_by_rank_are_dropped_and_those_by_node_stay():
    assert of_ranks([1, 2, 3], (0, 0), lost=1) == [1, 1]
    assert of_ranks([1, 2], (0, 1), lost=1) == [1, 2] and of_ranks([1, 2], (0, 0, 1), lost=1) == [
        1,
        1,
        2,
    ]
