"""NVIDIA's Multi-Process Service: its control program, and a server for the runs inside a block.

CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is left alone: with it cuBLAS and cuDNN see fewer multiprocessors,
choose other plans, and results have other bits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from findings import Findings

CONTROL = "nvidia-cuda-mps-control"
PLACES = ("/usr/local/nvidia/bin", "/usr/bin", "/usr/local/cuda/bin")  # where PATH lacks them


def find(program: str) -> str | None:
    """Return the path of one of NVIDIA's programs, on PATH or where drivers are mounted."""
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(PLACES))


@contextmanager
def server(report: Findings, folder: Path) -> Iterator[dict[str, str] | None]:
    """Yield the variables with which programs use an MPS server that runs inside; None if there is
    none.
    """
    control = find(CONTROL)
    if report.pretend or not control:
        report.value("MPS", "not tried: no control program here")
        yield None
        return
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    variables = {name: str(folder / name) for name in names}
    for place in variables.values():
        Path(place).mkdir(exist_ok=True)
    environment = os.environ | variables
    started = subprocess.run([control, "-d"], env=environment, capture_output=True, text=True)
    report.value("MPS", started.stderr.strip() or "started")
    try:
        yield variables if started.returncode == 0 else None
    finally:
        if started.returncode == 0:
            subprocess.run([control], input="quit\n", env=environment, text=True, timeout=30)
