"""`hpcfed submit` without a cluster: what the script says and does, and what sbatch is given."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfed.cli import main
from hpcfed.launch.slurm import script
from hpcfed.launch.slurm.launcher import launcher
from hpcfed.launch.slurm.script import Batch
from hpcfed.results.state import RUNNING, State

READY = sorted((Path(__file__).resolve().parents[2] / "slurm").glob("*.sbatch"))
HERE = str(Path(sys.executable).parent)
SMALL = ["--clients", "2", "--models.mix", "mlp"]

# Stands in for hpcfed: notes what it was told, and ends with a status, at once or when it gets
# SIGUSR1.
FAKE_HPCFED = """
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
with open("told", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
print("ready", flush=True)
if "WAIT" in os.environ:
    signal.sigwait([signal.SIGUSR1])
os._exit(int(os.environ["STATUS"]))
"""
NOTE = """
import json, sys
with open("{name}", "a+") as file:
    print(json.dumps([sys.argv[1:], sys.stdin.read()]), file=file)
    file.seek(0)
    print(len(file.readlines()) + 100)
"""


def program(folder: Path, name: str, text: str) -> None:
    """A command that is this text: of a shell, as its first line says, or else of Python."""
    if text.startswith("#!"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return
    code = folder / f"{name}.py"
    code.write_text(text)
    (folder / name).write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(code))} "$@"\n'
    )
    (folder / name).chmod(0o755)


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins, where we are and first on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{HERE}{os.pathsep}{os.environ['PATH']}")
    program(tmp_path, "hpcfed", FAKE_HPCFED)
    program(tmp_path, "scontrol", NOTE.format(name="queued"))
    program(tmp_path, "sbatch", NOTE.format(name="submitted"))
    return tmp_path


def told(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "told").read_text().splitlines()]


def execute(text: str, folder: Path, sent: int = 0, status: int = 75, **env: str) -> int:
    """Run a script as Slurm does, with a signal when its run has begun; its exit status."""
    (folder / "job").write_text(text)
    variables = (
        os.environ
        | {"SLURM_JOB_ID": "7", "STATUS": str(status)}
        | env
        | ({"WAIT": "1"} if sent else {})
    )
    with subprocess.Popen(
        ["bash", "job"], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout.readline() == "ready\n"
        if sent:
            job.send_signal(sent)
        try:
            return job.wait(60)
        except subprocess.TimeoutExpired:
            job.kill()
            raise


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_ready_script_is_what_its_command_prints(path, capsys, monkeypatch):
    command = shlex.split(path.read_text().splitlines()[1].removeprefix("# "))
    monkeypatch.chdir(path.parents[1])
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setenv("PATH", f"{HERE}{os.pathsep}{os.environ['PATH']}")
    assert main(command[1:]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_a_run_of_several_job_files_is_submitted_with_all_of_them(bin, capsys):
    (bin / "a.toml").write_text("rounds = 1\nclients = 0\n")
    (bin / "b.toml").write_text("clients = 4\n[run]\nthreads = 3\n")
    assert main(["submit", "a.toml", "b.toml", "--rounds", "3", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "hpcfed.main a.toml b.toml --rounds 3" in text and "--cpus-per-task=3\n" in text


@pytest.mark.parametrize(
    "word", ["a b", "$(touch x)", "`touch x`", "';touch x;'", "line\nbreak", "*", "-n", "\\"]
)
def test_no_shell_reads_a_field_of_the_job(bin, word):
    assert execute(script.run(Batch("name"), ["--out", word]), bin, status=0) == 0
    assert told(bin) == [
        ["supervise", "--job", "7", "--", "mpirun", "python", "-m", "hpcfed.main", "--out", word]
    ]
    assert not (bin / "x").exists()


@pytest.mark.parametrize("value", ["a\n#SBATCH --exclusive", "a\rb", "a\0b"])
def test_no_option_starts_its_own_line(value):
    for batch in (Batch("x", account=value), Batch("x", env=(value,)), Batch(value)):
        with pytest.raises(script.ConfigError, match="one line without control characters"):
            script.run(batch, [])


@pytest.mark.parametrize(
    ("sent", "status", "starts", "queued"),
    [
        (signal.SIGUSR1, 75, None, True),  # the time is nearly up
        (signal.SIGUSR1, 138, None, True),  # it came before the run listened
        (signal.SIGUSR1, 75, "9", True),
        (signal.SIGUSR1, 75, "10", False),  # run.max_restarts
        (signal.SIGUSR1, 0, None, False),  # it has just finished
        (signal.SIGTERM, 75, None, False),  # a user wants it to stop
        (0, 75, None, False),
        (0, 1, None, False),
        (0, 0, None, False),
    ],
)
def test_a_run_that_the_queue_stops_queues_itself_again_and_no_other_does(
    bin, sent, status, starts, queued
):
    more = {"SLURM_RESTART_COUNT": starts} if starts else {}
    assert execute(script.run(Batch("x"), []), bin, sent, status, **more) == status
    assert (bin / "queued").exists() is queued


def test_a_task_of_an_array_queues_itself_alone_with_its_own_fields(bin):
    text = script.array(Batch("x"), ["--rounds", "2"], [["--seed", "0"], ["--seed", "1"]])
    task = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    assert execute(text, bin, signal.SIGUSR1, **task) == 75
    assert told(bin)[0][-4:] == ["--rounds", "2", "--seed", "1"]
    assert json.loads((bin / "queued").read_text())[0] == ["requeue", "5_1"]


def test_a_study_runs_on_each_number_of_ranks_in_its_own_folder(bin):
    assert execute(script.study(Batch("x"), [], "a b", [1, 4]), bin, status=0) == 0
    assert [line[4:7] + line[-2:] for line in told(bin)] == [
        ["mpirun", "-n", n, "--out", f"a b-ranks{n}"] for n in "14"
    ]
    (bin / "told").unlink()
    assert execute(script.study(Batch("x"), ["--data.name", "a\nb"], "x", [1]), bin, status=0) == 0
    assert told(bin)[0][-4:] == ["--data.name", "a\nb", "--out", "x-ranks1"]
    (bin / "told").unlink()
    assert execute(script.study(Batch("x"), [], "a b", [1, 4]), bin, status=1) == 1
    assert len(told(bin)) == 1


def test_links_of_a_chain_wait_for_one_another_and_never_queue_themselves(bin, capsys, monkeypatch):
    monkeypatch.setattr(
        "hpcfed.launch.slurm.resources.python_first", lambda _: []
    )  # so that the stand-in is found
    assert main(["submit", *SMALL, "--out", "run", "--chain", "3"]) == 0
    submitted = [json.loads(line) for line in (bin / "submitted").read_text().splitlines()]
    waits = [[], ["--dependency=afterany:101"], ["--dependency=afterany:102"]]
    [comment] = {options.pop(1) for options, _ in submitted}
    assert comment.startswith("--comment=hpcfed ")
    assert [options for options, _ in submitted] == [["--parsable", *wait] for wait in waits]
    out = capsys.readouterr().out
    assert "jobs 101, 102, 103, one after the other; results in run" in out
    assert "`hpcfed doctor` finds out whether that works" in out
    assert (
        "scancel --state=PENDING 101 102 103; scancel --quiet --batch --signal=TERM 101 102 103"
        in out
    )
    for _, text in submitted:
        assert execute(text, bin, signal.SIGUSR1) == 75
    assert not (bin / "queued").exists()
    ids = [[line[i + 1] for i, word in enumerate(line) if word == "--job"] for line in told(bin)]
    assert ids == [["7"], ["101", "7"], ["101", "102", "7"]]  # 7 is its own


def test_a_script_without_an_environment_finds_a_command_beside_no_python(bin, capsys, monkeypatch):
    """As after pip install --user with the system's Python, whose folder must not come first."""
    (bin / "usr").mkdir()
    monkeypatch.setattr(sys, "executable", str(bin / "usr/python3.11"))
    words = ["submit", *SMALL, "--launcher", "mpirun", "--dry-run"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"mpirun {bin}/usr/python3.11 -m hpcfed.main" in text and "export PATH" not in text
    assert main([*words, "--sbatch=--export=NONE"]) == 0
    assert f"export PATH=$PATH:{bin}\n" in capsys.readouterr().out


def test_a_script_brings_this_python_where_another_or_none_is_on_the_path(bin, capsys):
    assert main(["submit", *SMALL, "--env", "module load x", "--dry-run"]) == 0
    assert f"export PATH={shlex.quote(HERE)}:$PATH\nmodule load x\n" in capsys.readouterr().out
    assert not (bin / "submitted").exists()


@pytest.mark.parametrize(("grace", "notice"), [("10", 120), ("600", 660)])
def test_the_signal_comes_early_enough_for_the_runs_grace(bin, capsys, grace, notice):
    assert main(["submit", *SMALL, "--run.grace", grace, "--dry-run"]) == 0
    assert f"#SBATCH --signal=B:USR1@{notice}\n" in capsys.readouterr().out


@pytest.mark.parametrize("time", ["4", "3:01", "00:03:01", "1-0", "0-1:00", "UNLIMITED"])
def test_a_time_that_leaves_some_for_the_run_is_passed_on(bin, capsys, time):
    assert main(["submit", *SMALL, "--time", time, "--dry-run"]) == 0
    assert f"#SBATCH --time={time}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (["--gpus-per-node", "a100:4"], 4),
        (["--sbatch=--exclusive", "--sbatch=--gres=gpu:a100:4"], 4),
        (["--sbatch=--gres=shard:2,gpu:3"], 3),
        (["--sbatch=--gres=gpu"], 1),
        (["--sbatch=--gpus-per-node=2"], 2),
        (["--sbatch=--gpus=8", "--nodes", "2"], 4),
        (["--sbatch=--gpus-per-task=1"], 1),
        (["--sbatch=--gpus-per-task=a100:2"], 1),  # Slurm gives each rank as many
        (["--sbatch=-G4"], 4),
        (["--sbatch=--gres=gpu:4", "--ntasks-per-node", "2"], 2),
    ],
)
def test_each_gpu_of_a_node_gets_a_rank_and_the_image_sees_it(bin, capsys, words, ranks):
    assert main(["submit", *SMALL, *words, "--container", "image.sif", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert f"#SBATCH --ntasks-per-node={ranks}\n" in text
    assert "apptainer exec --nv image.sif python -m hpcfed.main" in text


def test_without_a_gpu_the_image_is_not_asked_for_one(bin, capsys):
    words = ["--sbatch=--gres=tmp:10G", "--container", "image.sif", "--dry-run"]
    assert main(["submit", *SMALL, *words]) == 0
    text = capsys.readouterr().out
    assert "--ntasks-per-node=1\n" in text and "--nv" not in text


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (Batch("x", cpus_per_task=4), "mpirun --bind-to none python"),
        (
            Batch("x", cpus_per_task=4, launcher=("srun", "--mpi=pmix")),
            "srun --mpi=pmix --cpus-per-task=4 python",
        ),
        (
            Batch("x", container="i m.sif", gpus_per_node="2"),
            "mpirun apptainer exec --nv 'i m.sif' python",
        ),
    ],
)
def test_the_launcher_gets_cores_and_image(batch, words):
    assert f"{words} -m hpcfed.main" in script.run(batch, [])


def test_the_launcher_is_mpirun_if_there_is_one_and_srun_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert launcher("srun")[:2] == ("srun", "--mpi=pmix")
    for output, wanted in (
        ("MPI plugin types are...\n\tnone\n\tpmi2", "pmi2"),
        ("\tpmix\n\tpmi2", "pmix"),
    ):
        program(tmp_path, "srun", f"#!/bin/sh\necho '{output}' >&2\n")
        assert launcher()[:2] == ("srun", f"--mpi={wanted}")
    program(tmp_path, "mpirun", "#!/bin/sh\n")
    assert launcher() == launcher("mpirun") == ("mpirun",)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mpirun").rename(tmp_path / "elsewhere" / "mpirun")
    assert launcher() == (str(tmp_path / "elsewhere" / "mpirun"),)


@pytest.mark.parametrize(
    ("wanted", "ends"),
    [
        ("srun", True),
        ("srun --mpi=pmi2 --cpu-bind=none", True),
        ("srun --mpi=pmi2 --kill-on-bad-exit=0", False),
        ("srun --mpi=pmi2 -K0", False),
        ("mpirun -q", False),
    ],
)
def test_a_dead_rank_ends_a_step_of_srun_unless_the_user_says_otherwise(wanted, ends):
    words = launcher(wanted)
    assert words[0] == wanted.split()[0] and words[-1].startswith(wanted.split()[-1]) != ends
    assert (words[-1] == "--kill-on-bad-exit=1") is ends


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no.such", "1"], "no field 'no.such'"),
        (
            ["--each", "--seed 1", "--each", "--rounds 3 --seed 1"],
            "tasks 0 and 1 write to the same folder",
        ),
        (["--each", "--seed 1", "--chain", "2"], "one of the three"),
        (["--chain", "0"], "a chain of 1 or more"),
        (["--ranks", "1,x"], "--ranks 1,x: numbers of ranks"),
        (["--ranks", "1,1"], "tasks 0 and 1 write to the same folder"),
        (
            ["--ranks", "1,8", "--nodes", "2", "--ntasks-per-node", "2"],
            "--ranks 1,8: the job has 4 tasks",
        ),
        (["--nodes", "0"], "--nodes 0: give at least 1"),
        (["--time", "3"], "--time 3: Slurm asks the run to save and stop 120 s before the end"),
        (["--time", "12:00", "--run.grace", "600"], "stop 660 s before the end"),
        (["--time", "00:03:00"], "give a longer --time"),
        (["--time", "0-0:3"], "give a longer --time"),
        (["--ntasks-per-node", "-1"], "--ntasks-per-node -1: give at least 1"),
        (["--launcher", ""], "--launcher: it is empty"),
        (["--each", "'--seed 1"], "--each '--seed 1: no closing quotation"),
    ],
)
def test_impossible_jobs_are_refused_before_submission(bin, capsys, words, message):
    assert main(["submit", *SMALL, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (bin / "submitted").exists()


def test_a_run_whose_job_is_queued_is_not_submitted_again(bin, capsys):
    words = ["submit", *SMALL, "--out", "runs/a b"]
    assert main(words) == 0
    options, _ = json.loads((bin / "submitted").read_text())
    mark = options[1].removeprefix("--comment=")
    program(bin, "squeue", f"print('7 (null)'); print('8 {mark}')")
    assert main(words) == 2
    assert "out: job 8 in the queue is to run in runs/a b" in capsys.readouterr().err
    assert main([*words[:-1], "runs/b"]) == 0
    assert main([*words, "--force"]) == 0


def test_slurms_comment_has_room_for_the_marks_of_an_array_or_it_is_refused(bin, capsys):
    def words(n):
        return ["submit", *SMALL, *(word for i in range(n) for word in ("--each", f"--seed {i}"))]

    assert main(words(145)) == 0
    options, _ = json.loads((bin / "submitted").read_text())
    assert len(set(options[1].split()[1:])) == 145
    assert len(options[1].removeprefix("--comment=")) <= 1024  # more are refused by slurmctld
    assert main(words(146)) == 2
    assert "146 times --each" in capsys.readouterr().err


def test_a_running_run_is_not_submitted_again(bin, capsys, monkeypatch):
    monkeypatch.setattr("hpcfed.launch.slurm.submit.state", lambda run: State(RUNNING))
    assert main(["submit", *SMALL, "--out", "run"]) == 2
    assert "out: a run is in progress in run" in capsys.readouterr().err
    assert not (bin / "submitted").exists()


def test_if_slurm_accepts_a_part_of_a_chain_its_jobs_are_named(bin, capsys):
    program(
        bin,
        "sbatch",
        "#!/bin/sh\nif [ -e taken ]; then echo 'sbatch: error: too many jobs' >&2; exit 1; fi\n"
        "echo 5 | tee taken\n",
    )
    assert main(["submit", *SMALL, "--chain", "3"]) == 2
    assert "too many jobs\n  submitted before that: 5; scancel" in capsys.readouterr().err


def test_a_job_gives_each_rank_the_cores_that_its_threads_need(bin, capsys):
    assert main(["submit", *SMALL, "--run.threads", "4", "--launcher", "mpirun", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --cpus-per-task=4\n" in text and "\nexport OMP_NUM_THREADS=4 " in text
    assert "mpirun --bind-to none python" in text
    assert main(["submit", *SMALL, "--run.threads", "4", "--cpus-per-task", "2", "--dry-run"]) == 0
    assert "#SBATCH --cpus-per-task=2\n" in capsys.readouterr().out


def test_a_signal_before_the_run_begins_is_not_lost(bin):
    text = script.run(Batch("x", env=("kill -USR1 $$",)), [])  # while modules are loaded, say
    (bin / "job").write_text(text)
    assert (
        subprocess.run(
            ["bash", "job"], env=os.environ | {"SLURM_JOB_ID": "7", "STATUS": "0"}
        ).returncode
        == 75
    )
    assert not (bin / "told").exists() and json.loads((bin / "queued").read_text())[0] == [
        "requeue",
        "7",
    ]


def test_a_signal_between_two_runs_of_a_study_begins_no_more(bin):
    program(
        bin, "hpcfed", "#!/bin/sh\ntrap '' USR1\necho ran >> told\nkill -TERM $PPID\n"
    )  # as it ends
    (bin / "job").write_text(script.study(Batch("x"), [], "s", [1, 2, 4]))
    assert subprocess.run(["bash", "job"], env=os.environ | {"SLURM_JOB_ID": "7"}).returncode == 75
    assert (bin / "told").read_text() == "ran\n"


def test_slurms_refusal_is_reported_in_its_words(bin, capsys, monkeypatch):
    program(bin, "sbatch", "#!/bin/sh\necho 'sbatch: error: invalid account' >&2; exit 1\n")
    assert main(["submit", *SMALL]) == 2
    assert capsys.readouterr().err == "hpcfed: submit: sbatch: error: invalid account\n"
    monkeypatch.setenv("PATH", str(bin / "nothing"))
    assert main(["submit", *SMALL]) == 2
    assert "cannot call sbatch" in capsys.readouterr().err
