"""Seconds from `pip install` to a first curve: a fresh environment, the wheel of this tree, its
packages, and the embedded job with its picture.

`python benchmarks/first_result.py` builds the wheel, prints how long each step took, and writes it
to results/bench/first_result.json (not with `--installed`, or with other words of the run). pip
takes packages from its cache where it has them, with the versions of constraints.txt: run it twice,
and the second time no network is measured. `--installed` borrows the packages of this Python
instead of installing them, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from paired import RESULTS, machine

ROOT = Path(__file__).parents[1]
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--installed", action="store_true", help="use this Python's packages")
    parser.add_argument(
        "words", nargs="*", help="arguments of the run, after --, such as --rounds 4"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options.installed, options.words)


def measure(folder: Path, installed: bool, words: list[str]) -> None:
    """Do each step in the folder, and print its seconds."""
    tree = folder / "tree"  # of its own: what an earlier build has left would go into the wheel
    shutil.copytree(ROOT / "hpcfed", tree / "hpcfed")
    for file in FILES:
        shutil.copy(ROOT / file, tree)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    make = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(tree)]
    subprocess.run([*pip, *make], check=True)
    [wheel] = folder.glob("*.whl")
    binaries = folder / "env" / "bin"
    steps = {
        "python -m venv": [sys.executable, "-m", "venv", str(folder / "env")],
        "pip install": [
            *(str(binaries / "pip"), "--disable-pip-version-check", "install", "-q"),
            *(
                "-c",
                str(ROOT / "constraints.txt"),
                *(["--no-deps"] if installed else []),
                str(wheel),
            ),
        ],
        "hpcfed run": [str(binaries / "hpcfed"), "run", *words],
    }
    took = dict[str, float]()
    for title, command in steps.items():
        begun = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        took[title] = round(time.perf_counter() - begun, 1)
        print(f"{title:16}{took[title]:8.1f} s", flush=True)
        if installed and title == "pip install":
            borrow(folder / "env")
    curves = [path.relative_to(folder) for path in folder.glob("runs/*/curves.png")]
    total = round(sum(took.values()), 1)
    print(f"{'in all':16}{total:8.1f} s, {os.cpu_count()} cores; {', '.join(map(str, curves))}")
    if not curves:
        sys.exit("there is no curve")
    if not installed and not words:
        result = {"seconds": took, "in all": total, "machine": machine()}
        (RESULTS / "first_result.json").write_text(json.dumps(result, indent=1) + "\n")


def borrow(environment: Path) -> None:
    """Let the packages of this Python be found from another environment."""
    [site] = (environment / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))


if __name__ == "__main__":
    main()
