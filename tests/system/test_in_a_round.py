"""What happens in the middle of a round: a signal, a rank that stands still.

A client that fails: `test_ranks.py`.
"""

import os
import shlex
import signal
from pathlib import Path

import pytest

from hpcfed import cli
from hpcfed.engine.folder import run_id
from hpcfed.results.state import RUNNING, state
from hpcfed.storage import checkpoint, names, results
from hpcfed.storage.digest import digest
from tests import forked
from tests.system.live import MAIN, started
from tests.system.several import LIMIT, together

pytestmark = pytest.mark.timeout(3 * LIMIT)
RESUME_ME, HUNG = 75, 70
JOB = shlex.split(
    "--clients 6 --models.mix mlp --models.d 16 --data.train_limit 180 --participation 1 "
    "--rounds 1 --local.keep_optimiser"
)
SIGNALLED = [*JOB, "--algorithm.name", "tests.system.faulty:Signalled"]
ENDLESS = shlex.split(
    "--algorithm.name lgfedavg --local.steps 1000000 --training.engine eager --run.grace 0.5"
)


def turns(run: Path) -> dict[int, int]:
    """Bytes of what each client has done in the round that was stopped."""
    with checkpoint.open_checkpoint(run) as file:
        parcels = {
            int(name.removeprefix("clients/")): file.get(name) for name in file.names("clients/")
        }
    return {k: len(parcel["round"]) for k, parcel in parcels.items() if "round" in parcel}


def test_a_round_that_a_signal_ends_is_gone_on_with_by_client(tmp_path):
    run, unbroken = tmp_path / "run", tmp_path / "whole"
    words = [*SIGNALLED, "--algorithm.sign", str(tmp_path / "sign")]
    with started(3, *words, "--out", str(run)) as job:
        job.ends(RESUME_ME)
    assert results.load(run).rounds == 0 and 0 in turns(run)
    together(
        2,
        tmp_path,
        {
            "again": ["--resume", str(run), *SIGNALLED[-2:]],
            "whole": [*words, "--out", str(unbroken)],
        },
    )
    assert digest(run) == digest(unbroken)


def test_a_supervised_run_continues_with_the_work_saved_within_its_first_round(tmp_path):
    run = tmp_path / "run"
    words = [*SIGNALLED, "--algorithm.sign", str(tmp_path / "sign"), "--out", str(run)]
    with started(1, *words) as job:
        job.ends(RESUME_ME)
    saved = run_id(run)
    assert 0 in turns(run)
    assert cli.main(["supervise", "--", forked.python(), *MAIN, *words]) == 0
    assert results.load(run).rounds == 1 and run_id(run) == saved


def test_a_long_first_round_counts_as_progress_and_the_current_client_is_abandoned(tmp_path):
    run = tmp_path / "run"
    with started(2, *JOB, *ENDLESS, "--out", str(run), "--run.watchdog", "30") as job:
        job.until_file(names.watch_file(run, 1), "round 1, train")
        assert (state(run).word, state(run).rounds) == (RUNNING, 0)
        os.kill(job.job.pid, signal.SIGUSR1)  # mpirun hands it on
        job.ends(RESUME_ME)
    assert f"stopped by a signal after round 0; continue with --resume {run}" in job.out
    assert checkpoint.rounds_of(checkpoint.newest(run)) == 0


def test_a_rank_without_progress_is_named_and_the_run_ends(tmp_path):
    flags = ("--rounds", "100000", "--training.engine", "eager", "--run.watchdog", "6")
    with started(3, *JOB, *flags, "--out", str(tmp_path / "run")) as job:
        job.until("round 1/")
        os.kill(job.ranks()[2], signal.SIGSTOP)
        job.ends(HUNG)
    for rank in (0, 1):
        assert f"hpcfed: rank {rank} of 3: no progress for 6 s, at round " in job.err
    assert "rank 2 of 3 is silent, as a stopped process is: process " in job.err
    assert "last client" in job.err and "Current thread" in job.err and "File " in job.err
