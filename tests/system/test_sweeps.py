"""Real sweeps: one run fails and the others do not; a signal saves them all; what is done is not
done again.
"""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcfed import cli
from hpcfed.storage import names
from hpcfed.storage.record import load
from tests import forked
from tests.mpirun import environment, launcher
from tests.system.live import Live
from tests.system.several import SMALL


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """Where a user stands, with hpcfed at hand for the runs that a sweep starts: forks."""
    launcher()  # beside this Python
    monkeypatch.setattr(sys, "executable", forked.python())
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own_data(path: Path) -> None:
    """A data set of two classes."""
    g = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = (g.normal(size=(200, 8, 8)) + y[:, None, None]).astype(np.float32)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


def test_a_failed_run_ends_no_other_and_is_all_that_is_run_again(desk, capsys):
    words = [*SMALL, "--algorithm.name", "local", "--data.name", "digits,own.npz"]
    assert cli.main(["sweep", *words, "--out", "s", "--at-once", "2"]) == 1
    out = capsys.readouterr().out
    assert "0: digits: done, accuracy 0." in out
    assert (
        "1 failed; their output is in s/logs\n  own.npz: failed with status 2: hpcfed: "
        "own.npz: no such file" in out
    )
    assert cli.main(["table", "s", "--columns", "data.name"]) == 0
    out = capsys.readouterr().out
    assert "failed" in out.splitlines()[3] and "s/own.npz: failed since" in out

    Path("data").mkdir(exist_ok=True)
    own_data(Path("data/own.npz"))
    before = names.results_file(Path("s/digits")).stat().st_mtime_ns
    mpirun = shlex.join(launcher())  # with the options of a small shared machine
    assert cli.main(["sweep", "s", "--ranks", "2", "--launcher", mpirun]) == 0
    out = capsys.readouterr().out
    assert "digits: finished before" in out and "own.npz: done" in out
    assert names.results_file(Path("s/digits")).stat().st_mtime_ns == before
    assert load(Path("s/own.npz")).header["ranks"] == 2
    assert cli.main(["table", "s", "--columns", "data.name"]) == 0
    assert "failed" not in capsys.readouterr().out


def test_a_signal_saves_the_runs_of_a_sweep_and_a_task_continues_one(desk, capsys):
    words = [*SMALL, "--rounds", "100000", "--training.engine", "eager", "--seed", "0,1"]
    words += ["--out", "s", "--at-once", "1"]
    with open("errors", "w+b") as errors:
        command = [sys.executable, "-m", "hpcfed.cli", "sweep", *words]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as job:
            live = Live(job, errors)
            live.until_file(names.log_file(Path("s"), "seed=0"), "round 2/")
            job.send_signal(signal.SIGTERM)
            live.ends(75)
    assert (
        "seed=0: stopped" in live.out
        and "seed=1: not started" in live.out
        and "continue with hpcfed sweep s" in live.out
    )
    assert cli.main(["status", "s"]) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "stopped since" in first and "not started" in second

    done = load(Path("s/seed=0")).rounds
    words[words.index("100000")] = str(done + 1)  # a sweep may be made longer, or shorter
    assert cli.main(["sweep", *words, "--task", "0"]) == 0
    assert load(Path("s/seed=0")).rounds == done + 1 and not os.path.exists("s/seed=1")
    assert len(load(Path("s/seed=0")).header["history"]) == 1  # it went on, and did not begin anew
