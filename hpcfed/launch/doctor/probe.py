"""`LAUNCHER python -m hpcfed.launch.doctor.probe`: facts that only ranks of a launcher can know.

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

MARK = "hpcfed-probe "  # prefix of a world's line: launchers and libraries print lines too
SHM = "/dev/shm"
MPS_CONTROL = "nvidia-cuda-mps-control"
DRIVER = os.pathsep.join(("/usr/local/nvidia/bin", "/usr/bin"))  # where a driver is mounted


def main() -> int:
    """Connect to the other ranks, and print what they see.

    The exit status is 0 even if that fails, because the line reports it.
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
    """Return facts about this rank: its node, cores, threads, GPUs and free shared memory."""
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
    """Return the state of NVIDIA's MPS for this process.

    It is "runs", "not started" if its program is installed, or "" if it is not. The control program
    writes its process number into its pipe folder, where it stays when that process is killed.
    """
    default = os.path.join(os.sep, "tmp", "nvidia-mps")  # NVIDIA's, whatever TMPDIR says
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", default))
    with suppress(OSError):
        number = (pipes / f"{MPS_CONTROL}.pid").read_text().strip()
        if number.isdigit() and (proc / number).exists():
            return "runs"
    found = shutil.which(MPS_CONTROL) or shutil.which(MPS_CONTROL, path=DRIVER)
    return "not started" if found else ""


def gpu_files(dev: Path = Path("/dev")) -> int:
    """Return the number of GPUs with device files on this node: NVIDIA's, else AMD's.

    It does not matter whether torch can use them.
    """
    amd = len(list(dev.glob("dri/renderD*"))) if (dev / "kfd").exists() else 0
    return len(list(dev.glob("nvidia[0-9]*"))) or amd


def describe_library() -> dict[str, Any]:
    """Return facts about the MPI library, or why there is none."""
    try:
        return library()
    except (ImportError, RuntimeError, OSError) as error:
        return {"error": str(error)}


def worlds(out: str) -> list[dict[str, Any]]:
    """Return the parsed lines of all worlds in a launcher's output.

    Lines that were mixed with other output are left out.
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
