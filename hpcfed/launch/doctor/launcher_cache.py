"""The launcher that `hpcfed doctor` found to work under Slurm, kept for `hpcfed submit`, which
starts no ranks itself.

One line for each cluster and each Python, in the user's cache, for several clusters may share a
home.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from hpcfed.launch.doctor.timeout import run_with_timeout


def keep(launcher: str | None) -> None:
    """Remember what starts ranks here, `srun --mpi=pmix` or `mpirun`; None: nothing does.

    A full disk forgets it.
    """
    known = {name: words for name, words in everywhere().items() if name != here()}
    with suppress(OSError):
        file().parent.mkdir(parents=True, exist_ok=True)
        file().write_text(
            json.dumps(known | ({here(): launcher} if launcher else {}), indent=1), encoding="utf-8"
        )


def read_launcher() -> str | None:
    """What starts ranks here; None where `hpcfed doctor` has not found out."""
    everything = everywhere()
    found = everything and everything.get(here())
    return found if isinstance(found, str) and found.strip() else None


def everywhere() -> dict[str, str]:
    """What is known of all clusters."""
    with suppress(OSError, ValueError):
        found = json.loads(file().read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def here() -> str:
    """The name of this cluster, and this Python."""
    said = run_with_timeout(["scontrol", "show", "config"], 10).out
    name = re.search(r"^ClusterName\s*=\s*(\S+)", said, re.M)
    return f"{name[1] if name else ''} {sys.prefix}"


def file() -> Path:
    """Where it is kept."""
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "hpcfed"
        / "launchers.json"
    )
