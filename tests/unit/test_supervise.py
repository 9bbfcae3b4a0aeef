"""A supervised run is started again as long as that helps, and is left alone when it is done, wrong
or told to stop.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcfed.cli import main
from hpcfed.engine.fault_tolerance.supervise import onward
from hpcfed.storage import names
from hpcfed.storage.record import FINISHED, JOB_ID, STOPPED
from hpcfed.storage.results import Results
from tests.mpirun import environment

ROUNDS = 6  # of the job
# A run that ends as a plan says: each start takes the next [status, files], and notes its
# arguments.
FAKE = """
import json, os, signal, sys
from pathlib import Path
plan = Path(sys.argv[1])
steps, told = json.loads(plan.read_text()), plan.with_suffix(".told")
status, saved = steps.pop(0)
plan.write_text(json.dumps(steps))
with open(told, "a") as file:
    print(json.dumps(sys.argv[3:]), file=file)
for file, contents in saved.items():
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_bytes(Path(contents).read_bytes() if contents else b"")
if status == "wait":
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))
    print("waiting", flush=True)
    signal.pause()
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Case:
    """A plan, [status, rounds saved, or 0: none but results, or None, ended] for each start, and
    what comes of it.

    ended: as the results have it; without it, FINISHED after all ROUNDS.
    """

    def __init__(self, folder: Path, *steps: list):
        self.run, self.plan, self.fake = folder / "run", folder / "plan.json", folder / "fake.py"
        self.finished = folder / "finished"
        write(self.finished, ROUNDS, FINISHED)
        saved = [[status, self.files(*rounds)] for status, *rounds in steps]
        self.plan.write_text(json.dumps(saved))
        self.fake.write_text(FAKE)

    def files(self, rounds: int | None, ended: str | None = None) -> dict[str, str]:
        """The files that a start leaves, with the file whose contents each has; "": it is empty."""
        if rounds is None:
            return {}
        ended = ended or (FINISHED if rounds == ROUNDS else STOPPED)
        results = str(names.results_file(self.finished)) if ended == FINISHED else ""
        checkpoint = {str(names.checkpoint_file(self.run, rounds)): ""} if rounds else {}
        return {str(names.results_file(self.run)): results} | checkpoint

    def held(self, *rounds: int, **header: object) -> None:
        """A run that lies there before, with checkpoints after so many rounds."""
        write(self.run, max(rounds), STOPPED, job={}, **header)
        shutil.rmtree(names.checkpoint_folder(self.run), ignore_errors=True)
        names.checkpoint_folder(self.run).mkdir()
        for t in rounds:
            names.checkpoint_file(self.run, t).touch()

    def words(self, *flags: str, options: tuple[str, ...] = ()) -> list[str]:
        job = [
            "--clients",
            "2",
            "--models.mix",
            "mlp",
            "--rounds",
            str(ROUNDS),
            "--out",
            str(self.run),
            *flags,
        ]
        return [
            "supervise",
            *options,
            "--",
            sys.executable,
            str(self.fake),
            str(self.plan),
            "hpcfed.main",
            *job,
        ]

    def starts(self) -> list[str]:
        """The last flag of each start."""
        return [
            next(word for word in reversed(words) if word.startswith("--")) for words in self.told()
        ]

    def told(self) -> list[list[str]]:
        """The arguments of each start, but --force."""
        return [[word for word in words if word != "--force"] for words in self.given()]

    def given(self) -> list[list[str]]:
        """The arguments of each start."""
        return [
            json.loads(line) for line in self.plan.with_suffix(".told").read_text().splitlines()
        ]


@pytest.mark.parametrize("status", [75, 137, 1, -signal.SIGKILL])
def test_an_interrupted_run_continues_from_its_checkpoint(tmp_path, status):
    case = Case(tmp_path, [status, 2], [status, 4], [0, 6])
    assert main(case.words()) == 0
    assert case.starts() == ["--out", "--resume", "--resume"]
    # the lock of the start before may be that of a machine which is gone
    assert ["--force" in words for words in case.given()] == [False, True, True]


def test_a_run_without_a_checkpoint_starts_from_the_beginning(tmp_path):
    case = Case(tmp_path, [137, 0], [0, 6])
    assert main(case.words()) == 0
    assert case.starts() == ["--out", "--overwrite"]


def test_results_that_the_run_did_not_make_are_never_overwritten(tmp_path):
    case = Case(tmp_path, [137, None], [2, None])
    results = names.results_file(case.run)
    results.parent.mkdir(parents=True)
    results.touch()
    os.utime(results, (0, 0))
    assert main(case.words()) == 2
    assert case.starts() == ["--out", "--out"]


@pytest.mark.parametrize(("status", "saved"), [(0, 6), (2, 2)])
def test_a_run_that_is_done_or_wrong_is_not_started_again(tmp_path, status, saved):
    case = Case(tmp_path, [status, saved])
    assert main(case.words()) == status
    assert len(case.starts()) == 1


def test_a_restart_that_gains_no_round_is_the_last(tmp_path, capfd):
    case = Case(tmp_path, [137, 2], [137, 2], [0, 6])
    assert main(case.words()) == 1
    assert len(case.starts()) == 2
    assert "no round was gained since the last start: 2 saved" in capfd.readouterr().err


def test_a_folder_that_holds_a_checkpoint_is_gone_on_with(tmp_path):
    Case(tmp_path, [75, 2])
    case = Case(tmp_path, [0, 6])
    names.checkpoint_file(case.run, 3).parent.mkdir(parents=True)
    names.checkpoint_file(case.run, 3).touch()
    assert main(case.words()) == 0
    assert case.starts() == ["--resume"]


def test_work_saved_within_the_first_round_is_continued(tmp_path):
    case = Case(tmp_path, [0, 6], [0, 6])
    case.held(0, **{JOB_ID: "7"})
    assert onward(case.run) == ["--resume", str(case.run)]
    assert main(case.words()) == 0
    case.held(0, **{JOB_ID: "7"})
    assert main(case.words("--overwrite", options=("--job", "7"))) == 0
    assert case.starts() == ["--resume", "--resume"]
    # a command that continues a run and replaces it is refused
    assert ["--no-overwrite" in words for words in case.told()] == [False, True]


@pytest.mark.parametrize("saved", [2, ROUNDS])
def test_a_launcher_that_returns_0_before_all_is_done_is_not_believed(tmp_path, saved):
    case = Case(tmp_path, [0, saved, STOPPED], [0, ROUNDS])
    assert main(case.words()) == 0
    assert case.starts() == ["--out", "--resume"]


def test_a_launcher_that_returns_0_and_has_started_nothing_is_not_believed(tmp_path):
    case = Case(tmp_path, [0, None], [0, ROUNDS])
    write(case.run, ROUNDS, FINISHED)
    assert main(case.words("--overwrite")) == 0
    assert case.starts() == ["--overwrite", "--overwrite"]


@pytest.mark.parametrize(
    ("header", "flag"),
    [
        ({JOB_ID: "8"}, "--resume"),
        ({JOB_ID: "7"}, "--resume"),
        ({JOB_ID: "", "history": [{JOB_ID: "7"}]}, "--resume"),  # gone on with by hand since
        ({JOB_ID: "6", "history": [{}]}, "--overwrite"),
        ({}, "--overwrite"),
    ],
)
def test_batch_jobs_continue_only_runs_that_one_of_them_started(tmp_path, header, flag):
    case = Case(tmp_path, [0, 6])
    case.held(5, **header)
    assert main(case.words("--overwrite", options=("--job", "7", "--job", "8"))) == 0
    assert case.starts() == [flag]


def write(run: Path, rounds: int, ended: str, **header: object) -> None:
    """Results of so many rounds."""
    run.mkdir(exist_ok=True)
    results = Results(run, {"ended": ended, **header}, {})
    for _ in range(rounds):
        results.append({"clients/accuracy": np.ones(2)})
    results.finish()


@pytest.mark.parametrize(
    ("ended", "rounds", "starts"), [(FINISHED, 6, 0), (STOPPED, 6, 1), (FINISHED, 5, 1)]
)
def test_nothing_is_started_for_a_run_that_is_finished(tmp_path, capfd, ended, rounds, starts):
    case = Case(tmp_path, [0, 6])
    write(case.run, rounds, ended)
    assert main(case.words()) == 0
    assert case.plan.with_suffix(".told").exists() is bool(starts)
    assert ("all its rounds are done" in capfd.readouterr().err) is (starts == 0)


def test_the_supervisor_does_not_import_the_method_and_torch(tmp_path):
    case = Case(tmp_path, [0, 6])
    code = "import sys; from hpcfed.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    words = [sys.executable, "-c", code, *case.words(), "--algorithm.name", "fedprox"]
    words += ["--algorithm.mu", "0.5"]
    done = subprocess.run(words, env=environment({}), capture_output=True, text=True)
    assert len(case.starts()) == 1, done.stderr
    assert not {"torch", "hpcfed.algorithms.base"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mpirun", "-np", "4", "python", "train.py"], "does not start hpcfed.main"),
        (["no-such-launcher", "-m", "hpcfed.main"], "cannot start no-such-launcher"),
        (["mpirun", "-m", "hpcfed.main", "--no.such", "3"], "no.such"),
    ],
)
def test_a_command_that_is_no_run_is_refused_with_one_message(words, message, capfd):
    assert main(["supervise", "--", *words]) == 2
    assert message in capfd.readouterr().err


def test_a_signal_to_the_supervisor_makes_the_run_save_and_stop(tmp_path):
    case = Case(tmp_path, ["wait", 2], [0, 6])
    assert stop(case) == 75
    assert len(case.starts()) == 1


def test_a_run_that_was_done_when_it_was_asked_to_stop_is_done(tmp_path):
    case = Case(tmp_path, ["wait", 6])
    assert stop(case, lambda: write(case.run, 6, FINISHED)) == 0


def stop(case: Case, before: Callable[[], None] = lambda: None) -> int:
    """Ask the supervisor of a run that waits to stop; its exit status."""
    command = [sys.executable, "-m", "hpcfed.cli", *case.words()]
    with subprocess.Popen(
        command, env=environment({}), stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout.readline() == "waiting\n"
        before()
        supervisor.terminate()
        return supervisor.wait(60)
