"""Two runs in one folder: one has it, the other is refused, whenever and however it comes."""

import os
import shlex
import signal
from itertools import filterfalse

import numpy as np
import pytest

from hpcfed.storage import checkpoint, names, results
from hpcfed.storage.columns import is_of_machine
from hpcfed.storage.digest import digest
from tests.mpirun import ROOT, mpirun
from tests.system.live import started
from tests.system.several import LIMIT, together

JOB = shlex.split(
    "--clients 4 --models.mix mlp --models.d 16 --data.train_limit 80 --checkpoint.every 2 "
    "--evaluate.every 1 --rounds 100000 --training.engine eager"
)
SLOW = ["--algorithm.name", "tests.system.faulty:Slow"]


def test_a_running_run_keeps_its_folder_against_a_second_run(tmp_path):
    run = tmp_path / "run"
    others = {
        "new": [*JOB, "--seed", "2", "--out", str(run)],
        "over": [*JOB, "--seed", "2", "--out", str(run), "--overwrite"],
        "on": ["--resume", str(run), *SLOW],
    }
    with started(2, *JOB, *SLOW, "--seed", "1", "--out", str(run)) as job:
        job.until("round 3/")
        outcomes = together(1, tmp_path / "others", others)
        job.until(f"round {results.load(run).rounds + 1}/")
        os.kill(job.job.pid, signal.SIGUSR1)
        job.ends(75)
        stdout = job.out
    for name in others:
        (other,) = outcomes[name]
        assert other.status == 2 and other.err.count("hpcfed: ") == 1, other.err
        assert f"out: {run}: another run has this folder: process " in other.err
    assert "stopped by a signal" in stdout and not names.lock_file(run).exists()
    alone = [*JOB, *SLOW, "--seed", "1", "--rounds", "3", "--out", str(tmp_path / "alone")]
    assert together(1, tmp_path, {"alone": alone})["alone"][0].status == 0
    ours, clean = results.load(run), results.load(tmp_path / "alone")
    for name in filterfalse(is_of_machine, clean.columns):
        assert np.array_equal(ours.column(name)[:3], clean.column(name), equal_nan=True)
    with checkpoint.open_checkpoint(run) as saved:
        assert saved.header["run_id"] == ours.header["run_id"] != clean.header["run_id"]


def test_of_two_that_begin_at_once_one_runs_and_all_files_are_of_that_one(tmp_path):
    run, rounds = tmp_path / "run", ["--rounds", "3", "--out", str(tmp_path / "run")]
    with (
        started(1, *JOB, "--seed", "1", *rounds) as a,
        started(1, *JOB, "--seed", "2", *rounds) as b,
    ):
        ended = {job.finish(): (seed, job) for seed, job in ((1, a), (2, b))}
    assert set(ended) == {0, 2}
    (seed, _), (_, refused) = ended[0], ended[2]
    assert refused.err.count("hpcfed: ") == 1 and str(run) in refused.err
    alone = [*JOB, "--seed", str(seed), "--rounds", "3", "--out", str(tmp_path / "alone")]
    together(1, tmp_path, {"alone": alone})
    assert digest(run) == digest(tmp_path / "alone")


@pytest.mark.parametrize(
    ("place", "message"), [("enter", "has waited"), ("setup", "rank 1 of 2 is")]
)
def test_a_rank_that_stops_at_the_start_ends_the_run_with_one_message(tmp_path, place, message):
    done = mpirun(
        2,
        str(ROOT / "tests/system/fatal.py"),
        *(*JOB, "--out", str(tmp_path / "run"), "--run.watchdog", "3"),
        env={"FATAL": f"1:{place}:0", "FATAL_BY": "SIGSTOP"},
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 70 and done.stderr.count("hpcfed: ") == 1, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert "the run ends with status 70" in done.stderr
