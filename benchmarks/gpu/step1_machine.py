"""1: versions, a world of ranks, `hpcfed doctor`, MPS there or not, and a user's first run on the
GPU. Decides whether anything runs.

`FOLDER/env/bin/python benchmarks/gpu/step1_machine.py FOLDER`
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from findings import Findings, carry_out, command, run
from mps import CONTROL, find

WORLD = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
SEE = """
import json, sys, torch, torchvision, mpi4py, h5py, numpy
from mpi4py import MPI
from hpcfed.core.compat import import_torchvision
from hpcfed.models import build
import_torchvision()
build("resnet18", (3, 32, 32), 10, 512)
gpu = torch.cuda.is_available()
print(json.dumps({"python": sys.version.split()[0], "torch": torch.__version__,
    "torchvision": torchvision.__version__, "mpi4py": [mpi4py.__version__, mpi4py.__file__],
    "h5py": h5py.__version__, "numpy": numpy.__version__, "mpi": MPI.Get_library_version()[:40],
    "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpu else []
}))
"""
FIRST = (  # of a user, on four ranks that share the GPU
    *("--algorithm.name", "fedclassavg", "--data.name", "digits", "--models.mix", "cnn,mlp"),
    *("--clients", "8", "--rounds", "3", "--run.ranks_per_gpu", "4"),
)


def work(report: Findings, options: argparse.Namespace) -> None:
    python = Path(sys.executable)
    status, text = command([python, "-c", SEE], report)
    report.value("versions", text.strip().splitlines()[-1] if text.strip() else text)
    report.check("hpcfed, torch, torchvision, mpi4py and h5py are imported", status == 0)
    if not report.pretend:
        report.check("torch sees a GPU", '"gpus": ["' in text)
    launcher = python.parent / "mpirun"
    if launcher.exists():
        words = [launcher, "-np", "2", "--oversubscribe", python, "-c", WORLD]
        text = command(words, report)[1]
        report.value("mpirun -np 2", text[-500:])
        report.check("mpirun starts a world of two ranks", text.split()[-2:] == ["2", "2"])
    status, text = command([python, "-m", "hpcfed.cli", "doctor", "--json"], report)
    report.value("doctor", text[-8000:])
    report.check("hpcfed doctor finds nothing wrong", status == 0)
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    report.value("MPS", {"control": find(CONTROL), "pipe": pipe})
    report.value("/dev/shm, bytes", shutil.disk_usage("/dev/shm").total)
    if smi := find("nvidia-smi"):
        report.value("nvidia-smi", command([smi], report)[1])
    with TemporaryDirectory() as folder:
        report.attempt("a user's first run", lambda: first(report, Path(folder) / "run"))


def first(report: Findings, out: Path) -> None:
    """A run as its user starts it, with what it used of energy and memory, and its summary."""
    from hpcfed.storage.results import load as results

    energy = () if report.pretend else ("--log.energy", "true")
    run([*FIRST, *energy, "--run.device", report.kind, "--out", str(out)], report, 4)
    record = results(out)
    for name, column in record.columns.items():
        if name.startswith(("ranks/joules", "ranks/peak")):
            report.value(name, column[-1].tolist())
    report.value("accuracy", record.columns["clients/accuracy"].mean(1).tolist())
    status, text = command([sys.executable, "-m", "hpcfed.cli", "summary", out], report)
    report.value("summary", text[-4000:])
    report.check("the summary of the run is shown", status == 0)


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
