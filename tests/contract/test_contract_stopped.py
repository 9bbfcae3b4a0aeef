"""Every method: a round that a signal ends is gone on with, on other ranks, to the bits of the
unbroken run.
"""

from pathlib import Path

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Comm, Serial, spmd
from hpcfed.config.job import Job
from hpcfed.engine.survival import saving
from hpcfed.machine.heartbeat import Heartbeat, Stopped
from tests.contract import toy
from tests.contract.test_contract_ranks import STACKED

each_algorithm = pytest.mark.parametrize("method", [*ALGORITHMS, "stacked"])
FLAGS = ("--rounds", "2", "--participation", "1", "--local.epochs", "2")
REPEATED = ("central",)  # one training on the server, which is begun anew


class Impatient(Heartbeat):
    """A rank that is asked to stop, and has no time left, after so many steps of training."""

    def __init__(self, steps: int):
        super().__init__()
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.ask(-1.0)
        super().step()


def job(method: str) -> Job:
    if method == "stacked":
        return toy.job("fedavg", *STACKED, *FLAGS)
    # else its server has many students to train
    same = ("--models.mix", "small") if method == "feddf" else ()
    return toy.job(method, *FLAGS, *same)


def unbroken(method: str) -> tuple[toy.Outcome, int]:
    """The run, and how many steps its second round has."""
    going = toy.start(Serial(), job(method))
    rows = [going.step()[0]]
    going.fed.clock.heartbeat = counting = Impatient(-1)
    rows.append(going.step()[0])
    return toy.outcome(going, rows), -1 - counting.left


def stopped(comm: Comm, method: str, steps: int, folder: Path) -> int:
    """Stop rank 0 alone after so many steps of the second round; how many turns were saved of
    it.
    """
    going = toy.start(comm, job(method))
    going.step()
    if comm.rank == 0:
        going.fed.clock.heartbeat = Impatient(steps)
    with pytest.raises(Stopped):
        going.step()
    saving.save(going, folder)
    return sum(len(going.fed.replay.turns(k)) for k in going.fed.replay)


def resumed(comm: Comm, method: str, folder: Path) -> toy.Outcome:
    going = toy.start(comm, job(method))
    saving.restore(going, folder)
    return toy.outcome(going, [going.step()[0]])


@each_algorithm
def test_stopped_in_a_round_and_resumed_on_two_ranks_equals_the_unbroken_run(
    method: str, tmp_path: Path
):
    want, steps = unbroken(method)
    saved = stopped(Serial(), method, steps // 2, tmp_path)
    assert bool(saved) == (method not in REPEATED)
    got = spmd(2, lambda comm: resumed(comm, method, tmp_path))[0]
    want = toy.Outcome(want.state, want.weights, want.memory, want.scores, want.rows[1:])
    assert toy.differences(got, want) == []
