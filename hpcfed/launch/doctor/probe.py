"""`LAUNCHER python -m hpcfed.launch.doctor.probe`: facts that only the ranks of a launcher know.

Each world prints one line; N ranks that do not find one another are N worlds and print N lines.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.comm import Comm, connect
from hpcfed.comm.mpi_library import library
from hpcfed.core.errors import HpcfedError
from hpcfed.machine.cores import logical_cpus
from hpcfed.machine.gpu_sharing import visible
from hpcfed.machine.processor import find_bfloat16

MARK = "hpcfed-probe "  # prefix of a world's line: launchers and libraries print lines too
SHM = "/dev/shm"


def main() -> int:
    """Connect to the other ranks, and print what they see, or why they cannot be connected."""
    try:
        comm = connect()
    except HpcfedError as error:
        print(MARK + json.dumps({"error": str(error)}), flush=True)
        return 0
    ranks = list(comm.gather({comm.rank: inspect_rank(comm)}).values())
    total = int(comm.sum([[np.ones(1)]], [(1,)])[0][0])
    if comm.rank == 0:
        world = {"size": comm.size, "sum": total, "library": describe_library(), "ranks": ranks}
        print(MARK + json.dumps(world), flush=True)
    comm.close()
    return 0


def describe_library() -> str:
    """Return the name of the MPI library; "" without one."""
    with suppress(ImportError, RuntimeError, OSError):
        return library()
    return ""


def inspect_rank(comm: Comm) -> dict[str, Any]:
    """Return facts about this rank: its node, cores, processor, GPUs and free shared memory."""
    present = gpu_files()
    return {
        "node": comm.node_of[comm.rank],
        "cores": logical_cpus(),
        "bfloat16": find_bfloat16(),
        "gpus": visible("auto") if present else [],  # torch takes seconds to load
        "present": present,
        "mps": bool(present) and mps_runs(),
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "shm": shutil.disk_usage(SHM).free if os.path.isdir(SHM) else 0,
    }


def mps_runs(proc: Path = Path("/proc")) -> bool:
    """Return whether NVIDIA's MPS runs for this process.

    Its control program writes its process number into its pipe folder, where it stays when that
    process is killed.
    """
    default = os.path.join(os.sep, "tmp", "nvidia-mps")  # NVIDIA's, whatever TMPDIR says
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", default))
    with suppress(OSError):
        number = (pipes / "nvidia-cuda-mps-control.pid").read_text().strip()
        return number.isdigit() and (proc / number).exists()
    return False


def gpu_files(dev: Path = Path("/dev")) -> int:
    """Return the number of GPUs with device files on this node: NVIDIA's, else AMD's.

    It does not matter whether torch can use them.
    """
    amd = len(list(dev.glob("dri/renderD*"))) if (dev / "kfd").exists() else 0
    return len(list(dev.glob("nvidia[0-9]*"))) or amd


def worlds(out: str) -> list[dict[str, Any]]:
    """Return the parsed lines of all worlds in a launcher's output.

    Lines that were mixed with other output are left out.
    """
    parsed = []
    for line in out.splitlines():
        _, mark, text = line.partition(MARK)
        with suppress(ValueError):
            parsed += [json.loads(text)] if mark else []
    return parsed


if __name__ == "__main__":
    sys.exit(main())
