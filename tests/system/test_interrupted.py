"""A run that is killed or told to stop goes on from its last checkpoint, to the bits of the
unbroken run.
"""

import os
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import pytest

from hpcfed.core.rng import stream
from hpcfed.storage import checkpoint, results
from hpcfed.storage.digest import digest
from tests.mpirun import end_session
from tests.system.live import Live, started
from tests.system.several import LIMIT, together

pytestmark = pytest.mark.timeout(5 * LIMIT)
ENDLESS, MORE, RESUME_ME = 100_000, 3, 75
# Moments that stay with clients, and clients that rest, so that a checkpoint holds more than
# weights. A run of so many rounds would record its steps first, for seconds.
JOB = shlex.split(
    "--clients 6 --models.mix mlp,fedhenn-1,fedhenn-3 --models.d 16 --data.train_limit 180 "
    "--checkpoint.every 2 "
    f"--rounds {ENDLESS} --evaluate.every 1 --local.keep_optimiser --participation 0.5 "
    "--training.engine eager"
)


def one_rank(job: Live) -> None:
    victim = int(stream(0, "victim").integers(RANKS["one_rank"]))
    os.kill(job.ranks()[victim], signal.SIGKILL)


def whole_tree(job: Live) -> None:
    end_session(job.job.pid)


def mpirun_usr1(job: Live) -> None:
    """As a batch system does; mpirun hands the signal on."""
    os.kill(job.job.pid, signal.SIGUSR1)


def rank_term(job: Live) -> None:
    os.kill(job.ranks()[1], signal.SIGTERM)


KILLS: dict[str, Callable[[Live], None]] = {"one_rank": one_rank, "whole_tree": whole_tree}
STOPS: dict[str, Callable[[Live], None]] = {"mpirun_usr1": mpirun_usr1, "rank_term": rank_term}
RANKS = {"one_rank": 3, "whole_tree": 2, "mpirun_usr1": 2, "rank_term": 2}


@dataclass(frozen=True)
class Broken:
    status: int
    out: str
    folder: Path


def interrupt(name: str, folder: Path) -> Broken:
    """A run, hit in a random round."""
    moment = int(stream(0, "moment", name).integers(3, 9))
    with started(RANKS[name], *JOB, "--out", str(folder)) as job:
        job.until(f"round {moment}/")
        (KILLS | STOPS)[name](job)
        return Broken(job.finish(), job.out, folder)


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> dict[str, Broken]:
    folder = tmp_path_factory.mktemp("broken")
    return {name: interrupt(name, folder / name) for name in KILLS | STOPS}


@pytest.mark.parametrize("name", KILLS)
def test_a_killed_run_ends_at_once_and_says_so(broken, name):
    assert broken[name].status not in (0, RESUME_ME) and "rounds done" not in broken[name].out


@pytest.mark.parametrize("name", STOPS)
def test_a_signal_saves_and_ends_with_status_75(broken, name):
    run = broken[name]
    saved = checkpoint.rounds_of(checkpoint.newest(run.folder))
    assert (run.status, results.load(run.folder).rounds) == (RESUME_ME, saved)
    assert (
        f"stopped by a signal after round {saved}; continue with --resume {run.folder}" in run.out
    )


def test_resumed_on_two_ranks_every_broken_run_equals_the_unbroken_one(broken, tmp_path):
    rounds = [
        "--rounds",
        str(max(results.load(run.folder).rounds for run in broken.values()) + MORE),
    ]
    together(
        2, tmp_path, {name: ["--resume", str(run.folder), *rounds] for name, run in broken.items()}
    )
    together(1, tmp_path, {"run": [*JOB, *rounds, "--out", str(tmp_path / "unbroken")]})
    unbroken = digest(tmp_path / "unbroken")
    assert {name: digest(run.folder) for name, run in broken.items()} == dict.fromkeys(
        broken, unbroken
    )
    history = results.load(broken["one_rank"].folder).header["history"]
    assert [past["ranks"] for past in history] == [3]


def losses(run: Path) -> int:
    """Clients with losses in the file, which is written anew as often as that costs little."""
    with h5py.File(run / "results.h5") as file:
        column = file.get("columns/clients/train_loss")
        return 0 if column is None else column.shape[1]


def test_results_can_be_read_during_the_run(tmp_path):
    with started(1, *JOB, "--out", str(tmp_path / "run")) as job:
        job.until("round 2/")
        job.until_true(lambda: losses(tmp_path / "run") == 6, "no losses of 6 clients")
        os.kill(job.job.pid, signal.SIGTERM)
        job.ends(RESUME_ME)


def test_a_storm_of_signals_ends_a_run_as_one_does_and_without_a_traceback(tmp_path):
    """They come as fast as they can be sent, until the process has gone: while it saves, and while
    Python ends.
    """
    storm = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
    with started(1, *JOB, "--out", str(tmp_path / "run"), fresh=True) as job:
        job.until("round 2/")
        while job.job.poll() is None:
            for number in storm:
                job.job.send_signal(number)
            os.sched_yield()
        job.ends(RESUME_ME)
    assert "Traceback" not in job.err and "KeyboardInterrupt" not in job.err
    assert checkpoint.newest(tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_run_has_begun_ends_it_at_once_without_a_traceback(tmp_path, number):
    """The method sends it to itself where it is set up."""
    flags = ["--algorithm.name", "tests.system.faulty:Early", "--models.mix", "mlp"]
    flags += ["--algorithm.number", str(int(number))]
    with started(1, *JOB, *flags, "--out", str(tmp_path / "run")) as job:
        job.ends(-number)
    assert job.err == ""
