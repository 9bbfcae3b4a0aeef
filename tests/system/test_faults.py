"""Ranks are killed in the middle of runs: the others go on, to the same bits as without a fault."""

import re
import shlex
from pathlib import Path

import pytest

from hpcfed.storage import results
from hpcfed.storage.digest import digest
from tests.mpirun import mpirun, ulfm
from tests.system.several import LIMIT, together

pytestmark = pytest.mark.timeout(4 * LIMIT)
FATAL = str(Path(__file__).with_name("fatal.py"))
ROUNDS = 8
SMALL = "--clients 6 --models.d 16 --data.train_limit 180 --evaluate.every 1 --quiet"
# Moments that stay with clients, and clients that rest, so that there is more to lose than weights.
JOBS = {
    "fedclassavg": f"--models.mix mlp,fedhenn-1,fedhenn-3 --local.keep_optimiser --participation "
    f"0.5 --rounds {ROUNDS}",
    "swift": f"--algorithm.name swift --models.mix mlp --rounds {ROUNDS}",
}
# Name: method, ranks, who dies where and when, further flags, who is left, and the rounds from
# which it goes on: one of two where a checkpoint is on its way, of which the index may be there or
# not.
FAULTS = {
    "training, and two at once in a collective": (
        "fedclassavg",
        4,
        "0:train:4 1+2:collective:6",
        "--checkpoint.every 1 --run.rebalance 0",  # so that rank 0 trains a client in round 4
        1,
        [{2, 3}, {4, 5}],
    ),
    "copies in memory, and two that kept one another's": (
        "fedclassavg",
        5,
        "0:evaluate:4 1+2:collective:7 4:finish:8",
        "--checkpoint.mirror --checkpoint.every 3",
        1,
        [{3}, {3, 6}, {8}],
    ),
    "without a server: the checkpoint, and the recovery": (
        "swift",
        3,
        "0:part:4 1:recover:4 1:recover:5",
        "--checkpoint.every 2",
        1,
        [{2}],
    ),
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> dict[str, str]:
    """The digest of each job's run without a fault, on one rank."""
    folder = tmp_path_factory.mktemp("clean")
    cases = {
        name: shlex.split(f"{SMALL} {job} --out {folder / name}") for name, job in JOBS.items()
    }
    together(1, folder / "said", cases)
    return {name: digest(folder / name) for name in JOBS}


def killed(ranks: int, fatal: str, words: str, folder: Path, check: bool = True):
    """A run in which ranks die; rank 0's stderr has what is said of it."""
    argv = shlex.split(f"{SMALL} {words} --out {folder}")
    return mpirun(
        ranks, FATAL, *argv, env={"FATAL": fatal}, options=ulfm(), timeout=LIMIT, check=check
    )


@pytest.mark.parametrize("name", FAULTS)
def test_ranks_die_and_the_run_ends_with_the_same_bits(name, clean, tmp_path):
    method, ranks, fatal, flags, left, rounds = FAULTS[name]
    done = killed(ranks, fatal, f"{JOBS[method]} {flags}", tmp_path / "run")
    assert digest(tmp_path / "run") == clean[method]
    assert results.load(tmp_path / "run").header["ranks"] == left
    went_on = [int(t) for t in re.findall(r"the run continues .* after round (\d+);", done.stderr)]
    assert len(went_on) == len(rounds) and all(
        t in ts for t, ts in zip(went_on, rounds, strict=True)
    ), done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_is_not_to_shrink_ends_with_one_message(tmp_path):
    words = f"{JOBS['fedclassavg']} --checkpoint.every 1 --run.on_fault restart"
    done = killed(2, "0:collective:2", words, tmp_path / "run", check=False)
    assert done.returncode == 75
    assert done.stderr.count("rank 0 of 2 died; run.on_fault = 'restart'") == 1
    assert f"--resume {tmp_path}" in done.stderr and "Traceback" not in done.stderr
