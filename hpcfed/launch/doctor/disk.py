"""`python -m hpcfed.launch.doctor.disk FOLDER`: a check of the file system of a run's folder.

It is a process of its own, because a network file system whose server is gone never answers.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from hpcfed.core.tables import size
from hpcfed.launch.doctor.finding import Finding, ok, warning, wrong
from hpcfed.launch.doctor.timeout import run_with_timeout

AMOUNT = 32 << 20  # bytes that are written to measure the speed
FREE, SPEED = 1e9, 20e6  # bytes free and bytes per second that checkpoints need
FLEETING = ("tmpfs", "ramfs")
ANOTHER = "choose another --out"


def probe(folder: Path) -> dict[str, Any]:
    """Write, flush, rename and lock a file in the folder, and return facts about it.

    Sizes are in bytes, speeds in bytes per second.
    """
    place = nearest_folder(folder)
    facts: dict[str, Any] = {
        "place": str(place),
        "kind": kind(place),
        "free": shutil.disk_usage(place).free,
    }
    with tempfile.TemporaryDirectory(prefix=".hpcfed-doctor-", dir=place) as trial:
        old, new = Path(trial, "old"), Path(trial, "new")
        old.write_bytes(b"old")
        facts["speed"] = measure_write_speed(new, min(AMOUNT, int(facts["free"] / 4)))
        facts["locks"] = locks(new)
        os.replace(new, old)
        facts["renames"] = not new.exists() and old.stat().st_size != 3
    return facts


def nearest_folder(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    full = Path(os.path.abspath(folder))
    return next((path for path in (full, *full.parents) if path.is_dir()), Path("/"))


def kind(folder: Path, mounts: Iterable[str] | None = None) -> str:
    """Return the type of the file system of a folder. mounts: lines of /proc/mounts."""
    if mounts is None:
        with suppress(OSError):
            mounts = Path("/proc/mounts").read_text().splitlines()
    real, found = Path(os.path.realpath(folder)), ("", "unknown")
    for _, point, form, *_ in (line.split() for line in mounts or ()):
        point = point.replace(r"\040", " ")  # as the file writes a space
        if real.is_relative_to(point) and len(point) >= len(
            found[0]
        ):  # the later of two mounts at one place hides the other
            found = point, form
    return found[1]


def measure_write_speed(path: Path, amount: int) -> float:
    """Return the bytes per second of writing and flushing a file."""
    block, start = os.urandom(1 << 20), perf_counter()  # random: some file systems compress
    with open(path, "wb") as file:
        for _ in range(max(1, amount >> 20)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size / (perf_counter() - start)


def locks(path: Path) -> bool:
    with open(path, "rb+") as file, suppress(OSError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def findings(folder: Path, seconds: float) -> list[Finding]:
    """Return the findings about a run's folder."""
    outcome = run_with_timeout(
        [sys.executable, "-m", "hpcfed.launch.doctor.disk", str(folder)], seconds
    )
    if outcome.status is None:
        return [
            wrong(
                "output folder",
                f"{folder}: no answer for {seconds:g} s",
                f"its server may be gone; {ANOTHER}",
            )
        ]
    if outcome.status:
        said = outcome.last_error or "no reason given"
        return [
            wrong(
                "output folder",
                f"{folder}: cannot be written: {said}",
                f"see its permissions, or {ANOTHER}",
            )
        ]
    return [folder_finding(json.loads(outcome.out))]


def folder_finding(facts: dict[str, Any]) -> Finding:
    """Return the finding about a folder that can be written to."""
    found = (
        f"{facts['place']}: {facts['kind']}, {size(facts['free'])} free, writes "
        f"{size(facts['speed'])}/s, "
        f"{'locks' if facts['locks'] else 'no locks (hpcfed needs none)'}"
    )
    if not facts["renames"]:
        return wrong(
            "output folder",
            f"{found}, a rename did not replace a file",
            f"checkpoints rely on it; {ANOTHER}",
        )
    if facts["free"] < FREE:
        return warning("output folder", found, f"make room, set checkpoint.keep = 1, or {ANOTHER}")
    if facts["kind"] in FLEETING:
        return warning(
            "output folder",
            found,
            f"it is gone with the node, and other nodes do not see it; {ANOTHER}",
        )
    if facts["speed"] < SPEED:
        return warning(
            "output folder",
            found,
            f"slow: save less often (checkpoint.every, .minutes), or {ANOTHER}",
        )
    return ok("output folder", found)


if __name__ == "__main__":
    try:
        print(json.dumps(probe(Path(sys.argv[1]))))
    except OSError as error:
        sys.exit(str(error))
