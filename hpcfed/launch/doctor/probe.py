"""`LAUNCHER python -m hpcfed.launch.doctor.probe`: what only ranks that a launcher has started can
tell.

Each world prints one line; N ranks that do not find one another are N worlds and print N lines.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.comm import Comm, connect
from hpcfed.comm.mpi_library import library
from hpcfed.core.errors import HpcfedError
from hpcfed.machine.gpu_sharing import visible

MARK = (
    "hpcfed-probe "  # begins a world's line, for launchers and libraries print lines of their own
)
SHM = "/dev/shm"
MPS_CONTROL = "nvidia-cuda-mps-control"


def main() -> int:
    """Meet the other ranks, and print what they see.

    Status 0 also where that fails, for the line says so.
    """
    try:
        comm = connect()
    except HpcfedError as error:
        print(MARK + json.dumps({"error": str(error)}), flush=True)
        return 0
    ranks = list(comm.gather({comm.rank: inspect_rank(comm)}).values())
    total = int(comm.sum([[np.ones(1)]], [(1,)])[0][0])
    if comm.rank == 0:
        print(
            MARK
            + json.dumps(
                {"size": comm.size, "sum": total, "library": describe_library(), "ranks": ranks}
            ),
            flush=True,
        )
    comm.close()
    return 0


def inspect_rank(comm: Comm) -> dict[str, Any]:
    """What this rank has: its place, cores, threads, GPUs and room."""
    present = gpu_files()
    return {
        "node": comm.node_of[comm.rank],
        "host": platform.node(),
        "cores": sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1)),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "gpus": visible("auto") if present else [],  # torch takes seconds to load
        "present": present,
        "mps": mps_server() if present else "",
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "shm": shutil.disk_usage(SHM).free if os.path.isdir(SHM) else 0,
    }


def mps_server(proc: Path = Path("/proc")) -> str:
    """NVIDIA's MPS for this process: "runs"; "not started", where its program is there; "" where it
    is not to be had.

    The control program writes its process's number into its folder of pipes, which stays when that
    process is killed.
    """
    default = os.path.join(os.sep, "tmp", "nvidia-mps")  # NVIDIA's, whatever TMPDIR says
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", default))
    with suppress(OSError):
        number = (pipes / f"{MPS_CONTROL}.pid").read_text().strip()
        if number.isdigit() and (proc / number).exists():
            return "runs"
    return "not started" if shutil.which(MPS_CONTROL) else ""


def gpu_files(dev: Path = Path("/dev")) -> int:
    """GPUs whose device files this node has, whether torch can use them or not: NVIDIA's, else
    AMD's.
    """
    amd = len(list(dev.glob("dri/renderD*"))) if (dev / "kfd").exists() else 0
    return len(list(dev.glob("nvidia[0-9]*"))) or amd


def describe_library() -> dict[str, Any]:
    """The MPI library, or why there is none."""
    try:
        return library()
    except (ImportError, RuntimeError, OSError) as error:
        return {"error": str(error)}


def worlds(out: str) -> list[dict[str, Any]]:
    """The lines of all worlds among a launcher's output.

    Those that came mixed with others are left out.
    """
    found = []
    for line in out.splitlines():
        _, mark, text = line.partition(MARK)
        try:
            found += [json.loads(text)] if mark else []
        except ValueError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
