"""`hpcfed doctor`: which launcher starts one world, and what to change; the exit status is 1 if
something is wrong.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hpcfed import cli
from hpcfed.config.load import load
from hpcfed.launch.doctor import disk, findings, launchers, timeout
from hpcfed.launch.doctor.findings import Finding
from hpcfed.launch.doctor.launchers import Launcher, Trial, candidates, starters
from hpcfed.launch.doctor.main import examine, launcher_finding, launcher_findings, rank_dies
from hpcfed.launch.doctor.probe import MARK, gpu_files, mps_runs
from hpcfed.launch.doctor.timeout import Outcome, outside, run_with_timeout, split
from tests import limits
from tests.mpirun import environment, launcher


@pytest.fixture
def bin(tmp_path, monkeypatch) -> Path:
    """A folder for launchers, the only one on the PATH beside the system's."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def trial(*worlds: dict, status: int | None = 0, err: str = "") -> Trial:
    out = "".join(f"a library's own line\n{MARK}{json.dumps(world)}\n" for world in worlds)
    return Trial(Launcher("srun --mpi=pmix", ("srun",)), 2, Outcome(status, out, err))


def world(size: int, total: int | None = None) -> dict:
    ranks = [{"node": rank % 2} for rank in range(size)]
    return {"size": size, "sum": total or size, "library": "MPI", "ranks": ranks}


def rank(
    node: int = 0,
    cores: tuple = (0, 1),
    gpus: tuple = (),
    present: int = 0,
    mask: str | None = None,
    shm: float = 1e9,
    mps: bool = False,
    bfloat16: str | None = "avx512_bf16",
) -> dict:
    return {
        "node": node,
        "cores": list(cores),
        "gpus": list(gpus),
        "present": present,
        "mask": mask,
        "shm": shm,
        "mps": mps,
        "bfloat16": bfloat16,
    }


def test_this_machine_is_examined_with_the_real_mpirun(monkeypatch, tmp_path):
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    mpirun = Launcher("mpirun", (*launcher(), "-np", "2"))
    monkeypatch.setattr(launchers, "here", lambda *_: [mpirun])
    report = {f.what: f for f in examine(load([]), 2, tmp_path / "runs/first", [], limits.COMMAND)}
    assert report["launcher"].found.startswith("use mpirun; ")
    assert "MPI" in report["launcher"].found and report["mpirun"].status == "ok"
    assert {"cores", "GPUs", "output folder"} <= set(report)
    assert all(finding.advice for finding in report.values() if finding.status != "ok")
    assert report["output folder"].found.startswith(f"{tmp_path}: ") and not any(tmp_path.iterdir())
    if "Open MPI v5" in report["launcher"].found:
        assert report["a rank dies"].status == "ok"


def test_a_launcher_of_another_library_starts_two_worlds_of_one_rank(bin):
    probe = f'"{sys.executable}" -m hpcfed.launch.doctor.probe'
    path = script(bin / "mpirun", f"#!/bin/sh\n{probe}\n{probe}\n")
    apart = launchers.trial(Launcher(path, (path, "-np", "2")), 2, limits.COMMAND)
    assert apart.failure() == ("2 worlds instead of one of 2 ranks", launchers.OTHER)
    alone = {"error": "the launcher started 2 processes (PMI_SIZE), but MPI connects 1: ..."}
    assert trial(alone, alone).failure()[0] == "2 worlds instead of one of 2 ranks"


@pytest.mark.parametrize(
    "text", ["sleep 600 & sleep 600", "trap '' TERM\nwhile :; do sleep 600; done"]
)
def test_a_launcher_that_hangs_is_ended_with_its_processes(bin, monkeypatch, text):
    monkeypatch.setattr(timeout, "GRACE", 0.2)
    path = script(bin / "mpirun", f"#!/bin/sh\necho $$ > {bin}/pid\n{text}\n")
    hangs = launchers.trial(Launcher(path, (path, "-np", "2")), 2, 0.5)
    assert hangs.outcome.status is None and hangs.failure()[0] == "did not end in time"
    group = int((bin / "pid").read_text())
    while living(group):  # a killed process takes a moment; one that lives exceeds the time limit
        os.sched_yield()


def living(group: int) -> list[str]:
    """Return the states of the processes of a group, but for zombies."""
    states = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, pgrp, *_ = path.read_text().rpartition(")")[2].split()
            states += [state] if int(pgrp) == group and state not in "ZX" else []
    return states


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("There are not enough slots available in the system", "OVERSUBSCRIBE"),
        ("prterun has detected an attempt to run as root.", "OMPI_ALLOW_RUN_AS_ROOT=1"),
        ("srun: error: Unable to allocate resources: Invalid account or account", "--account"),
        ("srun: error: Requested nodes are busy", "inside an allocation"),
        ("python: Error while finding module: No module named hpcfed", "on all nodes"),
        ("Open MPI was not built with SLURM's PMI support", "another --mpi, or mpirun"),
    ],
)
def test_the_advice_fits_the_error_of_a_launcher(text, advice):
    finding = launcher_finding(trial(status=1, err=f"-----\n{text}\n"), needed=True)
    assert finding.status == "wrong" and "status 1" in finding.found and text[:40] in finding.found
    assert advice in finding.advice


def test_a_failing_launcher_is_wrong_only_if_no_other_works():
    bad, good = trial(status=1), trial(world(2))
    assert [f.status for f in launcher_findings([bad], [])] == ["wrong", "wrong"]
    assert [f.status for f in launcher_findings([bad, good], [good])] == ["ok", "warning", "ok"]
    assert [f.status for f in launcher_findings([], [])] == ["wrong"]
    assert "supervise" in rank_dies([], 5).advice


def test_a_wrong_sum_and_a_missing_rank_are_no_world():
    assert trial(world(2, total=1)).failure()[0] == "a sum of 2 ones gave 1"
    assert trial(world(1)).failure()[0] == "2 ranks were started, 1 met"
    assert not trial(world(2), status=9).works


def test_srun_is_tried_first_and_mpirun_allocates_nodes_outside_of_an_allocation():
    ways = candidates(4, ["mpirun"], ["none", "pmi2", "pmix"], ["--partition=gpu"], False, 30)
    assert [c.name for c in ways] == ["srun --mpi=pmix", "srun --mpi=pmi2", "mpirun"]
    ask = ("--immediate=30", "-n", "4", "--partition=gpu")
    assert ways[0].words == ("srun", "--mpi=pmix", *ask)
    assert ways[2].words == ("salloc", "--quiet", *ask, "mpirun", "-np", "4")
    assert candidates(4, ["mpirun"], ["pmix"], [], True, 30)[1].words == ("mpirun", "-np", "4")
    [spaced] = candidates(2, ["/opt/my mpi/bin/mpirun"], [], [], True, 30)
    assert split("launcher", spaced.name) == [spaced.words[0]] == ["/opt/my mpi/bin/mpirun"]


def test_mpirun_has_its_short_name_if_it_is_the_first_on_the_path(tmp_path):
    for folder in ("path", "python"):
        (tmp_path / folder).mkdir()
        script(tmp_path / folder / "mpirun", "#!/bin/sh\n")
    python = str(tmp_path / "python/python")
    assert starters(python, str(tmp_path / "path")) == ["mpirun", str(tmp_path / "python/mpirun")]
    assert starters(python, str(tmp_path / "python")) == ["mpirun"]
    assert starters(python, str(tmp_path)) == [str(tmp_path / "python/mpirun")]


@pytest.mark.parametrize(
    "text",
    [
        "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n",
        "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\n",
    ],
)
def test_the_plugins_are_those_that_srun_lists(bin, text):
    script(bin / "srun", f"#!/bin/sh\ncat >&2 <<END\n{text}END\n")
    assert launchers.list_srun_plugins() == ["none", "pmi2", "pmix"]


def test_a_slurm_that_does_not_answer_is_reported_with_its_reason(bin, monkeypatch):
    from hpcfed.launch.doctor.main import slurm_silent

    script(bin / "srun", "#!/bin/sh\n")
    script(bin / "sinfo", "#!/bin/sh\necho gpu*\n")
    assert slurm_silent() == []
    script(bin / "sinfo", "#!/bin/sh\necho 'sinfo: error: no controller' >&2\nexit 1\n")
    [silent] = slurm_silent()
    assert silent.status == "warning" and "no controller" in silent.found


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "--seed", "0,1", "--out", "s", "--launcher"],
        ["submit", "--dry-run", "--launcher"],
        ["doctor", "--slurm"],
    ],
)
def test_words_that_no_shell_could_split_are_one_message(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "srun '-n"]) == 2
    assert f"{command[-1]} srun '-n: no closing quotation" in capsys.readouterr().err


def test_a_missing_command_is_an_outcome_and_the_probe_is_no_part_of_the_job_around_it(tmp_path):
    assert run_with_timeout([str(tmp_path / "absent")], 5).status == 127
    job = {"PMI_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    rest = {"SLURM_JOB_ID": "7", "OMPI_MCA_btl": "tcp"}
    assert outside(job | rest) == rest


def test_too_few_cores_are_reported_with_their_node_or_rank():
    bound = findings.cores([rank(cores=(3,)), rank(cores=(3,))], 1)
    assert bound.status == "warning" and "2 ranks x 1 threads have 1 cores" in bound.found
    ranks = [rank(), rank(), rank(node=1), rank(node=1)]
    assert findings.cores(ranks, 1).status == "ok"
    assert "node 1: 2 ranks x 2 threads have 2 cores" in findings.cores(ranks[1:], 2).found
    few = findings.cores([rank(cores=(0,)), rank(cores=(1, 2, 3))], 2)
    assert "rank 0 is bound to 1" in few.found and "--cpus-per-task=2" in few.advice


def test_nodes_of_an_allocation_without_a_rank_are_reported():
    [idle] = findings.nodes([rank(), rank(), rank()], 2)
    assert idle.status == "warning" and "3 ranks are on 1 of 2 nodes" in idle.found
    assert findings.nodes([rank(), rank(node=1)], 2) == []
    assert findings.nodes([rank()], 4) == findings.nodes([rank(), rank()], 0) == []


def test_gpus_are_reported_by_rank_with_those_that_are_idle_shared_or_not_seen():
    assert [f.status for f in findings.gpus([rank(), rank()], None)] == ["ok"]
    [idle] = findings.gpus(2 * [rank(gpus=("a", "b", "c"), present=3)], None)
    assert idle.status == "warning" and idle.found == "rank 0: 0 of 3, rank 1: 1 of 3"
    assert "1 have none" in idle.advice
    shared = 2 * [rank(gpus=("a",), present=1)]
    [crowd] = findings.gpus(shared, None)
    assert crowd.status == "warning" and "ranks_per_gpu = 2" in crowd.advice
    [turns] = findings.gpus(shared, 2)
    assert turns.status == "warning" and "MPS" in turns.advice
    assert findings.gpus(2 * [rank(gpus=("a",), present=1, mps=True)], 2)[0].status == "ok"
    [blind] = findings.gpus([rank(present=4)], None)
    [masked] = findings.gpus([rank(present=4, mask="")], None)
    assert (blind.status, masked.status) == ("wrong", "wrong")
    assert "install torch" in blind.advice and "CUDA_VISIBLE_DEVICES is empty" in masked.found


def test_mps_runs_if_its_control_process_does(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not mps_runs(tmp_path)
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text("123\n")
    assert not mps_runs(tmp_path)  # it was killed: no such process
    (tmp_path / "123").mkdir()
    assert mps_runs(tmp_path)


def test_device_files_count_gpus_that_torch_cannot_use(tmp_path):
    assert gpu_files(tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert gpu_files(tmp_path) == 2


def test_the_node_with_the_least_shared_memory_counts():
    [few] = findings.shared_memory([rank(shm=1e9), rank(node=1, shm=64e6)], 184_000_000)
    assert few.status == "warning" and "64.0 MB free" in few.found and "--shm-size" in few.advice
    assert findings.shared_memory([rank()], 184_000_000) == []


def test_a_folder_that_cannot_be_written_or_does_not_answer_is_wrong(tmp_path, monkeypatch):
    error = Outcome(1, "", "[Errno 30] Read-only file system: 'x'")
    for outcome, words in ((error, "Read-only"), (Outcome(None, "", ""), "no answer for 9 s")):
        monkeypatch.setattr(disk, "run_with_timeout", lambda *_, outcome=outcome: outcome)
        finding = disk.finding(tmp_path, 9)
        assert finding.status == "wrong" and words in finding.found


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({}, ""),
        ({"free": 1e8}, "make room"),
        ({"kind": "tmpfs"}, "gone with the node"),
        ({"speed": 1e6}, "save less often"),
    ],
)
def test_a_folder_that_is_full_fleeting_or_slow_is_a_warning(changed, advice):
    good = {"place": "here", "kind": "lustre", "free": 1e12, "speed": 1e9}
    finding = disk.folder_finding(good | changed)
    assert advice in finding.advice and finding.status == ("warning" if advice else "ok")


def test_the_file_system_is_that_of_the_nearest_mount():
    mounts = [
        "/dev/a / ext4 rw 0 0",
        "server:/x /home nfs4 rw 0 0",
        "scratch /home/scratch lustre rw 0 0",
        r"x /my\040disk xfs rw 0 0",
    ]
    paths = ("/home/me", "/home/scratch/run", "/homes", "/my disk/runs")
    assert [disk.kind(Path(p), mounts) for p in paths] == ["nfs4", "lustre", "ext4", "xfs"]


@pytest.mark.parametrize(("status", "end"), [("ok", 0), ("warning", 0), ("wrong", 1)])
def test_the_exit_status_is_1_if_something_is_wrong(monkeypatch, capsys, status, end):
    report = [Finding("first", "ok", "fine"), Finding("a", status, "x", "y [z]")]
    monkeypatch.setattr("hpcfed.launch.doctor.main.examine", lambda *_: report)
    assert cli.main(["doctor", "--json"]) == end
    assert json.loads(capsys.readouterr().out)[1]["status"] == status
    assert cli.main(["doctor"]) == end
    assert status in capsys.readouterr().out


def test_arguments_reach_the_examination(monkeypatch, tmp_path):
    for name, text in (("a.toml", "seed = 1\n[run]\nthreads = 3\n"), ("b.toml", "seed = 2\n")):
        (tmp_path / name).write_text(text)
    calls: list[tuple] = []
    monkeypatch.setattr(
        "hpcfed.launch.doctor.main.examine", lambda *words: calls.append(words) or []
    )
    files = [str(tmp_path / name) for name in ("a.toml", "b.toml")]
    assert cli.main(["doctor", *files, "--slurm=--partition=gpu --comment 'a b'"]) == 0
    [(job, _, out, options, _)] = calls
    assert (job.seed, job.run.threads, out) == (2, 3, job.folder)
    assert options == ["--partition=gpu", "--comment", "a b"]


@pytest.mark.parametrize("words", [["--ranks", "0"], ["--limit", "0"], ["absent.toml"]])
def test_a_mistake_is_one_message_and_status_2(words, capsys):
    assert cli.main(["doctor", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_the_report_says_whether_bf16_is_fast_here():
    [fast] = findings.bfloat16([rank(), rank(node=1, bfloat16="amx_bf16")], "float32")
    assert fast.status == "ok" and "amx_bf16 or avx512_bf16" in fast.found
    [unused] = findings.bfloat16([rank(bfloat16="")], "float32")
    assert unused.status == "ok" and "would save no time" in unused.found
    [slow] = findings.bfloat16([rank(bfloat16="")], "bf16")
    assert slow.status == "warning" and "run.precision = 'float32'" in slow.advice
    [mixed] = findings.bfloat16([rank(), rank(node=1, bfloat16="")], "bf16")
    assert mixed.status == "warning" and "node 1 has no instructions" in mixed.found
    assert findings.bfloat16([rank(bfloat16=None)], "bf16") == []
    assert findings.bfloat16([rank(gpus=("a",), bfloat16="")], "bf16") == []
