"""Ranks are killed in the middle of runs: the others go on, to the same bits as without a fault."""

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
    "fedclassavg": f"--models.mix mlp,fedhenn-1,fedhenn-3 --local.keep_optimiser --participation 0.5 --rounds {ROUNDS}",
    "fedasync": f"--algorithm.name fedasync --models.mix mlp --participation 0.5 --rounds {ROUNDS}",
    "swift": f"--algorithm.name swift --models.mix mlp --rounds {ROUNDS}",
}
# Name: method, ranks, who dies where and when, further flags, who is left, rounds that are computed again.
FAULTS = {
    "one after the other": ("fedclassavg", 5, "0:train:4 1+2:collective:6 4:evaluate:8", "--checkpoint.every 2", 1, 3),
    "copies in memory": ("fedclassavg", 5, "0:train:4 1:collective:5 2:evaluate:6 3:record:8",
                         "--checkpoint.mirror --checkpoint.every 0", 1, 0),
    "two that kept one another's copy": ("fedclassavg", 4, "1+2:collective:4",
                                         "--checkpoint.mirror --checkpoint.every 2", 2, 1),
    "in the checkpoint, and in the recovery": ("fedclassavg", 4, "0:save:4 2:recover:4", "--checkpoint.every 2", 2, 2),
    "at the beginning and at the end": ("fedclassavg", 4, "0:setup:0 3:finish:8", "--checkpoint.mirror", 2, 0),
    "asynchronous": ("fedasync", 3, "0:merge:5 2:copy:7", "--checkpoint.mirror", 1, 0),
    "without a server": ("swift", 3, "1:send:4", "--checkpoint.every 2", 2, 1),
}  # fmt: skip


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> dict[str, str]:
    """The digest of each job's run without a fault, on one rank."""
    folder = tmp_path_factory.mktemp("clean")
    cases = {name: shlex.split(f"{SMALL} {job} --out {folder / name}") for name, job in JOBS.items()}
    together(1, folder / "said", cases)
    return {name: digest(folder / name) for name in JOBS}


def killed(ranks: int, fatal: str, words: str, folder: Path, check: bool = True):
    """A run in which ranks die; rank 0's stderr has what is said of it."""
    argv = shlex.split(f"{SMALL} {words} --out {folder}")
    return mpirun(ranks, FATAL, *argv, env={"FATAL": fatal}, options=ulfm(), timeout=LIMIT, check=check)


def repeated(said: str) -> list[int]:
    return [int(line.rpartition(": ")[2]) for line in said.splitlines() if "finished rounds to repeat" in line]


@pytest.mark.parametrize("name", FAULTS)
def test_ranks_die_and_the_run_ends_with_the_same_bits(name, clean, tmp_path):
    method, ranks, fatal, flags, left, again = FAULTS[name]
    done = killed(ranks, fatal, f"{JOBS[method]} {flags}", tmp_path / "run")
    assert digest(tmp_path / "run") == clean[method]
    assert results.load(tmp_path / "run").header["ranks"] == left
    assert sum(repeated(done.stderr)) == again, done.stderr
    assert done.stderr.count("died") == len(repeated(done.stderr)) > 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("on_fault", "status"), [("restart", 75), ("stop", 1)])
def test_a_run_that_is_not_to_shrink_ends_with_one_message(on_fault, status, clean, tmp_path):
    words = f"{JOBS['fedclassavg']} --checkpoint.every 1 --run.on_fault {on_fault}"
    done = killed(3, "0:train:3", words, tmp_path / "run", check=False)
    assert done.returncode == status
    assert done.stderr.count("rank 0 of 3 died; run.on_fault") == 1 and f"--resume {tmp_path}" in done.stderr
    together(1, tmp_path / "said", {"resumed": ["--resume", str(tmp_path / "run")]})
    assert digest(tmp_path / "run") == clean["fedclassavg"]
