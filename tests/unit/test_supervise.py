"""A supervised run is started again as long as that helps, and is left alone when it is done, wrong or told to stop."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfed.cli import main
from hpcfed.storage import names
from tests.mpirun import environment

# A run that ends as a plan says: each start takes the next [status, checkpoint file or null], and notes its arguments.
FAKE = """
import json, os, signal, sys
from pathlib import Path
plan = Path(sys.argv[1])
steps, told = json.loads(plan.read_text()), plan.with_suffix(".told")
status, saved = steps.pop(0)
plan.write_text(json.dumps(steps))
with open(told, "a") as file:
    print(json.dumps(sys.argv[3:]), file=file)
if saved:
    Path(saved).parent.mkdir(parents=True, exist_ok=True)
    Path(saved).touch()
if status == "wait":
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))
    print("waiting", flush=True)
    signal.pause()
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Case:
    """A plan, [status, rounds saved or None] for each start, and what comes of it."""

    def __init__(self, folder: Path, *steps: list):
        self.run, self.plan, self.fake = folder / "run", folder / "plan.json", folder / "fake.py"
        saved = [[status, rounds and str(names.checkpoint_file(self.run, rounds))] for status, rounds in steps]
        self.plan.write_text(json.dumps(saved))
        self.fake.write_text(FAKE)

    def words(self, *flags: str) -> list[str]:
        job = ["--clients", "2", "--models.mix", "mlp", "--rounds", "6", "--out", str(self.run), *flags]
        return ["supervise", "--", sys.executable, str(self.fake), str(self.plan), "hpcfed.main", *job]

    def starts(self) -> list[str]:
        """The last flag of each start."""
        told = self.plan.with_suffix(".told").read_text().splitlines()
        return [next(word for word in reversed(json.loads(line)) if word.startswith("--")) for line in told]


@pytest.mark.parametrize("status", [75, 137, 1, -signal.SIGKILL])
def test_a_run_that_is_cut_short_goes_on_from_its_checkpoint(tmp_path, status):
    case = Case(tmp_path, [status, 2], [status, 4], [0, 6])
    assert main(case.words()) == 0
    assert case.starts() == ["--out", "--resume", "--resume"]


def test_a_run_that_had_saved_nothing_begins_anew(tmp_path):
    case = Case(tmp_path, [137, None], [0, 6])
    assert main(case.words()) == 0
    assert case.starts() == ["--out", "--overwrite"]


def test_a_launcher_that_finds_nothing_wrong_with_killed_ranks_is_not_believed(tmp_path):
    case = Case(tmp_path, [0, 2], [0, 6])
    assert main(case.words()) == 0
    assert case.starts() == ["--out", "--resume"]


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


def test_there_are_at_most_max_restarts(tmp_path, capfd):
    case = Case(tmp_path, *([75, t] for t in range(1, 6)))
    assert main(case.words("--run.max_restarts", "2")) == 1
    assert len(case.starts()) == 3
    assert "run.max_restarts = 2" in capfd.readouterr().err


def test_on_fault_stop_means_no_restart(tmp_path):
    case = Case(tmp_path, [137, 2], [0, 6])
    assert main(case.words("--run.on_fault", "stop")) == 137
    assert len(case.starts()) == 1


def test_a_folder_that_holds_a_checkpoint_is_gone_on_with(tmp_path):
    Case(tmp_path, [75, 2])
    case = Case(tmp_path, [0, 6])
    names.checkpoint_file(case.run, 3).parent.mkdir(parents=True)
    names.checkpoint_file(case.run, 3).touch()
    assert main(case.words()) == 0
    assert case.starts() == ["--resume"]


@pytest.mark.parametrize(("words", "said"), [
    (["mpirun", "-np", "4", "python", "train.py"], "does not start hpcfed.main"),
    (["no-such-launcher", "-m", "hpcfed.main"], "cannot start no-such-launcher"),
    (["mpirun", "-m", "hpcfed.main", "--no.such", "3"], "no.such"),
])  # fmt: skip
def test_a_command_that_is_no_run_is_refused_with_one_message(words, said, capfd):
    assert main(["supervise", "--", *words]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.timeout(120)
def test_who_asks_the_supervisor_to_stop_asks_the_run_to_save_and_stop(tmp_path):
    case = Case(tmp_path, ["wait", 2], [0, 6])
    command = [sys.executable, "-m", "hpcfed.cli", *case.words()]
    with subprocess.Popen(command, env=environment({}), stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout.readline() == "waiting\n"
        supervisor.terminate()
        assert supervisor.wait(60) == 75
    assert len(case.starts()) == 1
