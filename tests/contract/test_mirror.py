"""Copies in other ranks' memory: what the ranks that are left have together is the whole run."""

import numpy as np
import pytest

from hpcfed.comm import Comm
from hpcfed.engine.fault_tolerance.buddy_copy import BuddyCopy, stride
from hpcfed.engine.fault_tolerance.snapshot import take_up
from tests.contract import toy
from tests.threads import spmd

ROUNDS = 3
FLAGS = ("--local.keep_optimiser", "true", "--local.optimiser", "adam", "--rounds", str(ROUNDS + 2))
ROWS = {"4": {"rounds/seconds": np.array(0.5)}}


def job(method: str):
    return toy.job(method, *FLAGS, *(("--participation", "0.5") if method != "swift" else ()))


def interrupted(comm: Comm, method: str) -> BuddyCopy:
    """The copies of a run that is cut off in its fourth round; every rank has them of all rounds
    before.
    """
    mirror, rounds = BuddyCopy(), toy.start(comm, job(method))
    mirror.take(rounds, {})
    for _ in range(ROUNDS):
        rounds.step()
        mirror.take(rounds, ROWS)
    rounds.step()
    return mirror


def resumed(comm: Comm, method: str, mirrors: list[BuddyCopy]) -> tuple[int, toy.Outcome | None]:
    """From what is left to the end, and the round from which it went on; -1 where the copies are
    not whole.
    """
    rounds = toy.start(comm, job(method))
    copy = mirrors[comm.rank].restore(rounds.fed)
    if copy is None:
        return -1, None
    assert copy.get("rows")["4"]["rounds/seconds"] == 0.5
    take_up(rounds, copy)
    went_on = rounds.t
    while rounds.t < rounds.fed.job.rounds:
        row = rounds.step()[0]
    return went_on, toy.outcome(rounds, [row])


@pytest.mark.parametrize("method", ["fedclassavg", "central", "swift"])
def test_any_rank_or_two_apart_can_die_and_the_run_ends_with_the_same_bits(method):
    mirrors = spmd(4, lambda comm: interrupted(comm, method))
    unbroken = spmd(1, lambda comm: toy.run(comm, job(method)))[0]
    for dead in ({0}, {2}, {1, 3}):
        left = [mirror for rank, mirror in enumerate(mirrors) if rank not in dead]
        t, ended = spmd(len(left), lambda comm, left=left: resumed(comm, method, left))[0]
        assert t == ROUNDS
        assert dict(toy.leaves([ended.state, ended.weights, ended.memory])) == dict(
            toy.leaves([unbroken.state, unbroken.weights, unbroken.memory])
        )


def test_a_rank_that_dies_with_the_one_that_kept_its_copy_is_lost():
    mirrors = spmd(4, lambda comm: interrupted(comm, "fedclassavg"))
    assert spmd(2, lambda comm: resumed(comm, "fedclassavg", mirrors[2:])) == [(-1, None)] * 2
    assert not mirrors[2].copies and not mirrors[3].copies


def test_all_go_back_to_the_newest_copy_that_everyone_has():
    def behind(comm: Comm) -> BuddyCopy:
        mirror, rounds = BuddyCopy(), toy.start(comm, job("fedclassavg"))
        mirror.take(rounds, ROWS)
        rounds.step()
        if comm.rank == 1:
            mirror.make_copy(rounds, ROWS)  # makes the calls, and is cut off before it has the copy
        else:
            mirror.copies.append(mirror.make_copy(rounds, ROWS))
        return mirror

    mirrors = spmd(3, behind)
    assert spmd(2, lambda comm: resumed(comm, "fedclassavg", mirrors[:2]))[0][0] == 0


def test_only_values_changed_in_a_round_are_sent():
    def moved(comm: Comm) -> list[int]:
        mirror, rounds = (
            BuddyCopy(),
            toy.start(comm, toy.job("local", *FLAGS, "--participation", "0.2")),
        )
        mirror.take(rounds, {})
        rounds.step()
        mirror.take(rounds, {})
        before, sent, move = mirror.copies[0], [], comm.move
        rounds.step()
        comm.move = lambda item, src, dst: sent.append(item is not None) or move(item, src, dst)
        mirror.take(rounds, {})
        cohort = len(rounds.fed.sample(1))
        same = [
            name for name, item in mirror.copies[0].part.items() if item is before.part.get(name)
        ]
        return [
            sum(sent),
            cohort,
            len(same),
            sum(name.startswith("clients/") for name in before.part),
        ]

    sent, cohorts, same, copies = map(sum, zip(*spmd(2, moved), strict=True))
    assert sent <= cohorts / 2 + 4 and same >= copies - cohorts / 2


@pytest.mark.parametrize(
    ("node_of", "step"),
    [
        ((0, 0, 0), 1),
        ((0, 0, 1, 1), 2),
        ((0, 1, 2), 1),
        ((0, 0, 0, 1), 1),
        ((0,) * 4 + (1,) * 4 + (2,) * 4, 4),
    ],
)
def test_copies_go_to_another_node_if_that_works_for_all_ranks(node_of, step):
    assert stride(node_of) == step
