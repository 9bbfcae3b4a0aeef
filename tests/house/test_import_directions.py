"""Imports point one way, and MPI lives in one package."""

import subprocess
from functools import cache

import pytest

from tests import forked
from tests.house.source import MODULES, PACKAGE, imports, module, name
from tests.mpirun import environment

LEVELS = (  # a room imports itself and rooms that come earlier in this list, never later ones
    "core",
    "storage",
    "comm",
    "tasks",
    "config",
    "machine",
    "data",
    "models",
    "clients",
    "federation",
    "training",
    "algorithms",
    "results",
    "report",
    "engine",
    "launch",
    "main",
    "cli",
    "hpcfed",  # what its __init__ gives to users, imported when asked for
)
LEVEL = {room: height for height, room in enumerate(LEVELS)}


def room(full: str) -> str:
    """The room that a module belongs to: hpcfed.comm.mpi is of comm."""
    return full.removeprefix("hpcfed.").split(".")[0]


def test_every_module_has_its_level():
    assert {full for full in MODULES if room(full) not in LEVEL} == set()


def test_a_module_imports_only_from_its_own_room_and_earlier_ones():
    """What is imported for type checkers alone counts too."""
    wrong = []
    for path in PACKAGE:
        this_room = room(module(path))
        wanted = {room(full) for full in imports(path, typing=True) if full in MODULES} - {
            this_room
        }
        wrong += [f"{name(path)}: {other}" for other in wanted if LEVEL[other] >= LEVEL[this_room]]
    assert wrong == []


def test_only_comm_imports_mpi4py():
    users = {
        room(module(path))
        for path in PACKAGE
        for full in imports(path)
        if full.split(".")[0] == "mpi4py"
    }
    assert users == {"comm"}


@pytest.mark.parametrize("full", ["hpcfed.comm", "hpcfed.main", "hpcfed.cli"])
def test_mpi_is_not_loaded_before_a_launcher_is_seen(full):
    assert "mpi4py" not in loaded(full)


def test_a_run_loads_scipy_only_if_its_job_needs_it():
    """It takes half as long as torch, on each rank."""
    assert "hpcfed.engine.run" in loaded("hpcfed.main")
    assert "scipy" not in loaded("hpcfed.main")


@cache
def loaded(full: str) -> set[str]:
    """What the import of a module of ours loads, beside `hpcfed.main`, which forks have loaded."""
    code = f"import sys, {full}; print(*sys.modules)"
    done = subprocess.run(
        [forked.python(), "-c", code],
        env=environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    return {*done.stdout.split()}
