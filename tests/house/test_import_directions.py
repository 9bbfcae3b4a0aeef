"""Imports point one way, and MPI lives in one package."""

import subprocess
import sys

import pytest

from tests.house.source import MODULES, PACKAGE, ROOT, imports, module, name

# a part imports itself and parts of the lines above, never its neighbours or those below
LEVELS = (
    "errors",
    "paths  compat  content",
    "config.limits  own",
    "registry  extras  few  inputs  rng  params  progress  status  config.parts",
    "config.system  commands",
    "comm  storage  averaging",
    "cluster  data  models  payload",
    "kept  journal",
    "store",
    "client",
    "exchange  faults",
    "turns",
    "federation  evaluate",
    "training",
    "algorithms",
    "config",
    "report  trained",
    "figures",
    "doctor  page  results  sinks",
    "watch",
    "engine",
    "slurm",
    "sweep",
    "plan",
    "main  cli  hpcfed",  # hpcfed: what its __init__ gives to users, imported when asked for
)
LEVEL = {part: height for height, line in enumerate(LEVELS) for part in line.split()}
NEVER = {
    "storage": "data models",
    "report": "federation evaluate training algorithms",
    "page": "federation evaluate training algorithms",
}  # though they are above


def part(full: str) -> str:
    """The part that a module belongs to: hpcfed.comm.mpi is of comm, hpcfed.config.parts is one
    itself.
    """
    inner = full.removeprefix("hpcfed.")
    return inner if inner in LEVEL else inner.split(".")[0]


def test_every_module_has_its_level():
    assert {full for full in MODULES if full != "hpcfed" and part(full) not in LEVEL} == set()


def test_a_module_imports_only_from_below():
    wrong = []
    for path in PACKAGE:
        own = part(module(path))
        wanted = {part(full) for full in imports(path) if full in MODULES and full != "hpcfed"}
        wanted -= {own}
        above = {other for other in wanted if LEVEL[other] >= LEVEL[own]}
        above |= wanted & set(NEVER.get(own, "").split())
        wrong += [f"{name(path)}: {other}" for other in above]
    assert wrong == []


def test_only_comm_imports_mpi4py():
    users = {
        part(module(path))
        for path in PACKAGE
        for full in imports(path)
        if full.split(".")[0] == "mpi4py"
    }
    assert users == {"comm"}


@pytest.mark.parametrize("full", ["hpcfed.comm", "hpcfed.main", "hpcfed.cli"])
def test_mpi_is_not_loaded_before_a_launcher_is_seen(full):
    code = f"import sys, {full}; print('mpi4py' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
