"""Each finding of `hpcfed doctor` says what to change; the exit status is 1 where something is
wrong.
"""

import json
import os
from pathlib import Path

import pytest

from hpcfed import cli
from hpcfed.launch.doctor import disk, hdf5, launcher_cache, launchers, mpi, probe, ranks, slurm
from hpcfed.launch.doctor.finding import ok, warning, wrong
from hpcfed.launch.doctor.main import examine
from hpcfed.launch.doctor.probe import MPS_CONTROL, gpu_files, mps_server
from hpcfed.launch.doctor.timeout import Outcome, outside
from hpcfed.launch.doctor.trials import Launcher, Trial
from tests import limits
from tests.mpirun import environment, launcher

KNOWN = {
    "name": "Open MPI v5.0.11",
    "standard": "3.1",
    "mpi4py": "4.1.2",
    "file": "libmpi.so",
    "cuda": True,
}


def rank(
    node: int = 0,
    cores: tuple = (0, 1),
    threads: str = "1",
    gpus: tuple = (),
    present: int = 0,
    mask: str | None = None,
    shm: float = 1e9,
    mps: str = "",
) -> dict:
    return {
        "node": node,
        "cores": list(cores),
        "threads": threads,
        "gpus": list(gpus),
        "present": present,
        "mask": mask,
        "shm": shm,
        "mps": mps,
    }


def test_two_ranks_bound_to_one_core_are_found():
    found = ranks.binding([rank(cores=(3,)), rank(cores=(3,))], 1)
    assert found.status == "warning" and "2 ranks x 1 threads have 1 cores" in found.found
    assert "--bind-to none" in found.advice


def test_more_threads_than_cores_are_found_on_the_node_that_has_them():
    assert ranks.binding([rank(), rank(), rank(node=1), rank(node=1)], 1).status == "ok"
    found = ranks.binding([rank(), rank(node=1), rank(node=1)], 2)
    assert (
        "node 1: 2 ranks x 2 threads have 2 cores" in found.found
        and "at most 1 ranks" in found.advice
    )


def test_a_rank_bound_to_fewer_cores_than_it_has_threads_is_found():
    found = ranks.binding([rank(cores=(0,)), rank(cores=(1, 2, 3))], 2)
    assert "rank 0 is bound to 1" in found.found and "--cpus-per-task=2" in found.advice


def test_nodes_of_an_allocation_that_have_no_rank_are_found():
    found = ranks.nodes([rank(), rank(), rank()], 2)
    assert found[0].status == "warning" and "3 ranks are on 1 of 2 nodes" in found[0].found
    assert (
        ranks.nodes([rank(), rank(node=1)], 2)
        == ranks.nodes([rank()], 4)
        == ranks.nodes([rank(), rank()], 0)
        == []
    )


@pytest.mark.parametrize(("given", "status"), [("1", "ok"), ("", "warning"), ("16", "warning")])
def test_omp_num_threads_is_held_against_run_threads(given, status):
    found = ranks.threads([rank(threads=given)], 1)
    assert found.status == status
    assert status == "ok" or "OMP_NUM_THREADS=1" in found.advice


def test_gpus_are_told_by_rank_and_those_that_nobody_takes():
    assert [f.status for f in ranks.gpus([rank(), rank()], None)] == ["ok"]
    two = [rank(gpus=("a", "b", "c"), present=3), rank(gpus=("a", "b", "c"), present=3)]
    found, rest = ranks.gpus(two, None)
    assert found.status == "ok" and found.found == "rank 0: 0 of 3, rank 1: 1 of 3"
    assert rest.status == "warning" and rest.found.startswith("1 GPUs")


def test_ranks_that_share_a_gpu_are_found_unless_that_is_meant():
    shared = [rank(gpus=("a",), present=1), rank(gpus=("a",), present=1)]
    found = ranks.gpus(shared, None)[0]
    assert (
        found.status == "warning" and "ranks_per_gpu = 2" in found.advice and "MPS" in found.advice
    )
    assert ranks.gpus(shared, 2)[0].status == "ok"


@pytest.mark.parametrize(
    "mps, status, said",
    [
        (("runs", "runs"), "ok", ""),
        (("runs", "not started"), "warning", "nvidia-cuda-mps-control -d on each"),
        (("", ""), "warning", "ask the site"),
    ],
)
def test_ranks_that_are_meant_to_share_a_gpu_need_mps_to_compute_at_once(
    mps: tuple[str, str], status: str, said: str
):
    found = ranks.gpus([rank(gpus=("a",), present=1, mps=one) for one in mps], 2)[1]
    assert (found.what, found.status) == ("MPS", status) and said in found.advice
    own = [rank(gpus=("a", "b"), present=2, mps=one) for one in mps]
    assert [f.what for f in ranks.gpus(own, None)] == ["GPUs"]


def test_mps_runs_where_its_control_process_does(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipes"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert mps_server(tmp_path) == ""
    for name in ("pipes", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / MPS_CONTROL).write_text("")
    (tmp_path / "bin" / MPS_CONTROL).chmod(0o755)
    (tmp_path / "pipes" / f"{MPS_CONTROL}.pid").write_text("123\n")
    assert mps_server(tmp_path) == "not started"  # it was killed: no such process
    (tmp_path / "123").mkdir()
    assert mps_server(tmp_path) == "runs"


def test_the_control_program_of_mps_is_found_where_drivers_are_mounted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipes"))
    monkeypatch.setattr(probe, "DRIVER", f"{tmp_path / 'none'}:{tmp_path}")
    assert mps_server(tmp_path) == ""
    (tmp_path / MPS_CONTROL).write_text("")
    (tmp_path / MPS_CONTROL).chmod(0o755)
    assert mps_server(tmp_path) == "not started"


def test_gpus_that_ranks_do_not_see_are_wrong_and_the_reason_is_told():
    blind = ranks.gpus([rank(present=4)], None)[0]
    masked = ranks.gpus([rank(present=4, mask="")], None)[0]
    assert (blind.status, masked.status) == ("wrong", "wrong")
    assert "install torch" in blind.advice and "CUDA_VISIBLE_DEVICES is empty" in masked.found


def test_device_files_tell_of_gpus_that_torch_cannot_use(tmp_path):
    assert gpu_files(tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert gpu_files(tmp_path) == 2


def test_the_node_with_the_least_shared_memory_counts():
    found = ranks.shared_memory([rank(shm=1e9), rank(node=1, shm=64e6)], 184_000_000)
    assert (
        found.status == "warning" and "64.0 MB free" in found.found and "--shm-size" in found.advice
    )
    assert ranks.shared_memory([rank()], 184_000_000).status == "ok"


def test_a_folder_is_tried_where_it_would_be_made_and_left_as_it_was(tmp_path):
    [found] = disk.findings(tmp_path / "runs/first", 60)
    assert found.status == "ok" or "slow" in found.advice or "gone with the node" in found.advice
    assert found.found.startswith(f"{tmp_path}: ") and list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_or_does_not_answer_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(
        disk, "run_with_timeout", lambda *_: Outcome(1, "", "[Errno 30] Read-only file system: 'x'")
    )
    [found] = disk.findings(tmp_path, 9)
    assert found.status == "wrong" and "Read-only" in found.found
    monkeypatch.setattr(disk, "run_with_timeout", lambda *_: Outcome(None, "", ""))
    [found] = disk.findings(tmp_path, 9)
    assert found.status == "wrong" and "no answer for 9 s" in found.found


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"free": 1e8}, "make room"),
        ({"kind": "tmpfs"}, "gone with the node"),
        ({"speed": 1e6}, "save less often"),
        ({"renames": False}, "checkpoints rely on it"),
        ({"locks": False}, ""),
    ],
)
def test_what_is_wrong_with_a_folder_is_told_with_what_to_do(changed, advice):
    good = {
        "place": "here",
        "kind": "lustre",
        "free": 1e12,
        "speed": 1e9,
        "locks": True,
        "renames": True,
    }
    assert disk.folder_finding(good).status == "ok"
    found = disk.folder_finding(good | changed)
    assert advice in found.advice and (advice != "") == (found.status != "ok")


def test_the_kind_is_that_of_the_nearest_mount():
    mounts = [
        "/dev/a / ext4 rw 0 0",
        "server:/x /home nfs4 rw 0 0",
        "scratch /home/scratch lustre rw 0 0",
    ]
    assert disk.kind(Path("/home/me"), mounts) == "nfs4"
    assert disk.kind(Path("/home/scratch/run"), mounts) == "lustre"
    assert disk.kind(Path("/homes"), mounts) == "ext4"
    assert disk.kind(Path("/my disk/runs"), [*mounts, r"x /my\040disk xfs rw 0 0"]) == "xfs"


def test_the_hdf5_build_is_told():
    found = hdf5.finding()
    assert found.status == "ok" and "h5py" in found.found and ("serial" in found.found)


def test_a_library_that_does_not_load_is_wrong_and_one_that_is_not_cuda_aware_is_not():
    assert mpi.version({"error": "cannot load MPI library\nmore"}).status == "wrong"
    assert [mpi.gpu_aware(KNOWN | {"cuda": aware}).status for aware in (True, False, None)] == 3 * [
        "ok"
    ]


def test_without_a_launcher_that_works_there_is_one_thing_to_mend():
    bad = Trial(Launcher("mpirun", ("mpirun", "-np", "2")), 2, Outcome(1, "", ""))
    assert mpi.one_world([], []).status == mpi.one_world([], [bad]).status == "wrong"
    assert "supervise" in mpi.ulfm([bad], 5).advice


def test_the_real_mpirun_is_asked_for_ulfm(monkeypatch):
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    if "Open MPI v5" not in mpi.library(limits.COMMAND)["name"]:
        pytest.skip("no Open MPI 5: other libraries are not asked")
    assert mpi.outlives((*launcher(), "-np", "2"), limits.COMMAND)


def test_slurm_is_told_with_its_partitions_or_why_it_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name in ("srun", "sinfo"):
        (tmp_path / name).write_text(
            "#!/bin/sh\n[ $1 = --version ] && echo slurm 22.05.8 || echo 'gpu* 4 nodes'\n"
        )
        (tmp_path / name).chmod(0o755)
    first, second = slurm.findings(["none", "pmi2"])
    assert (
        "slurm 22.05.8" in first.found and "gpu* 4 nodes" in first.found and second.found == "pmi2"
    )
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'sinfo: error: no controller' >&2\nexit 1\n")
    [found] = slurm.findings([])
    assert found.status == "warning" and "no controller" in found.found


def test_the_probe_is_no_part_of_the_job_around_it():
    assert outside(
        {"PMI_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_JOB_ID": "7", "OMPI_MCA_btl": "tcp"}
    ) == {"SLURM_JOB_ID": "7", "OMPI_MCA_btl": "tcp"}


@pytest.mark.parametrize(("status", "end"), [("ok", 0), ("warning", 0), ("wrong", 1)])
def test_the_exit_status_is_1_where_something_is_wrong(monkeypatch, capsys, status, end):
    made = {
        "ok": ok("a", "x"),
        "warning": warning("a", "x", "y [z]"),
        "wrong": wrong("a", "x", "y"),
    }[status]
    monkeypatch.setattr("hpcfed.launch.doctor.main.examine", lambda *_: [ok("first", "fine"), made])
    assert cli.main(["doctor", "--json"]) == end
    assert json.loads(capsys.readouterr().out)[1]["status"] == status
    assert cli.main(["doctor"]) == end
    assert status in capsys.readouterr().out


def test_of_several_job_files_the_later_ones_fields_count(monkeypatch, tmp_path):
    for name, text in (("a.toml", "seed = 1\n[run]\nthreads = 3\n"), ("b.toml", "seed = 2\n")):
        (tmp_path / name).write_text(text)
    seen = []
    monkeypatch.setattr(
        "hpcfed.launch.doctor.main.examine", lambda *given: seen.append(given) or []
    )
    assert cli.main(["doctor", str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]) == 0
    [(job, _, out, *_)] = seen
    assert (job.seed, job.run.threads, out) == (2, 3, job.folder)


@pytest.mark.parametrize("words", [["--ranks", "0"], ["--limit", "0"], ["absent.toml"]])
def test_a_mistake_is_one_message_and_status_2(words, capsys):
    assert cli.main(["doctor", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_options_of_slurm_are_split_as_a_shell_does(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(
        "hpcfed.launch.doctor.main.launchers.here",
        lambda n, plugins, words, limit: given.append(words) or [],
    )
    monkeypatch.setattr(launchers, "plugins", lambda: [])
    monkeypatch.setattr("hpcfed.launch.doctor.main.mpi.library", lambda limit: KNOWN)
    assert cli.main(["doctor", "--slurm=--partition=gpu --comment 'a b'"]) == 1  # no launcher
    assert given == [["--partition=gpu", "--comment", "a b"]]
    assert cli.main(["doctor", "--slurm='"]) == 2


def test_the_whole_examination_of_this_machine(monkeypatch, tmp_path):
    from hpcfed.config.load import load

    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    mpirun = Launcher("mpirun", (*launcher(), "-np", "2"))
    monkeypatch.setattr(launchers, "here", lambda *_: [mpirun])
    monkeypatch.setattr(launchers, "plugins", lambda: ["pmix"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = {f.what: f for f in examine(load([]), 2, tmp_path, "", 60)}
    assert found["launcher"].found == "use mpirun" and found["mpirun"].status == "ok"
    assert launcher_cache.read_launcher() == "mpirun"  # for `hpcfed submit`
    assert {
        "MPI library",
        "cores",
        "threads",
        "GPUs",
        "shared memory",
        "output folder",
        "HDF5",
        "Slurm",
    } <= set(found)
    assert all(f.advice for f in found.values() if f.status != "ok")
