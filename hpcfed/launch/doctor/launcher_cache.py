"""Cache of the launcher that `hpcfed doctor` found to work under Slurm, for `hpcfed submit`.

`hpcfed submit` starts no ranks itself. The file is in the user's cache, with one line for each
cluster and each Python, because several clusters may share a home.
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
    """Store the launcher that works here, `srun --mpi=pmix` or `mpirun`; None if none does.

    If the disk is full nothing is stored.
    """
    known = {name: words for name, words in everywhere().items() if name != here()}
    with suppress(OSError):
        file().parent.mkdir(parents=True, exist_ok=True)
        file().write_text(
            json.dumps(known | ({here(): launcher} if launcher else {}), indent=1), encoding="utf-8"
        )


def read_launcher() -> str | None:
    """Return the launcher that works here; None if `hpcfed doctor` has not found one."""
    everything = everywhere()
    found = everything and everything.get(here())
    return found if isinstance(found, str) and found.strip() else None


def everywhere() -> dict[str, str]:
    """Return the launchers of all clusters, by the key of `here`."""
    with suppress(OSError, ValueError):
        found = json.loads(file().read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def here() -> str:
    """Return the key of this cluster and this Python."""
    said = run_with_timeout(["scontrol", "show", "config"], 10).out
    name = re.search(r"^ClusterName\s*=\s*(\S+)", said, re.M)
    return f"{name[1] if name else ''} {sys.prefix}"


def file() -> Path:
    """Return the path of the cache."""
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "hpcfed"
        / "launchers.json"
    )
