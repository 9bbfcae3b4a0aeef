"""`python -m hpcfed.launch.doctor.disk FOLDER`: a check of the file system of a run's folder.

It is a process of its own, because a network file system whose server is gone never answers.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

from hpcfed.core.tables import size
from hpcfed.launch.doctor.findings import Finding
from hpcfed.launch.doctor.timeout import run_with_timeout

AMOUNT = 32 << 20  # bytes that are written to measure the speed
FREE, SPEED = 1e9, 20e6  # bytes free and bytes per second that checkpoints need
ANOTHER = "choose another --out"


def probe(folder: Path) -> dict[str, Any]:
    """Write and flush a file in the folder, or in its nearest parent that exists.

    Returns facts about it: sizes in bytes, the speed in bytes per second.
    """
    full = Path(os.path.abspath(folder))
    place = next((path for path in (full, *full.parents) if path.is_dir()), Path("/"))
    free = shutil.disk_usage(place).free
    block = os.urandom(1 << 20)  # random: some file systems compress
    with tempfile.TemporaryFile(prefix=".hpcfed-doctor-", dir=place) as file:
        start = perf_counter()
        for _ in range(max(1, min(AMOUNT, free // 4) >> 20)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        speed = file.tell() / (perf_counter() - start)
    return {"place": str(place), "kind": kind(place), "free": free, "speed": speed}


def kind(folder: Path, mounts: Iterable[str] | None = None) -> str:
    """Return the type of the file system of a folder. mounts: lines of /proc/mounts."""
    if mounts is None:
        table = Path("/proc/mounts")
        mounts = table.read_text().splitlines() if table.exists() else ()
    real, best = Path(os.path.realpath(folder)), ("", "unknown")
    for _, point, form, *_ in (line.split() for line in mounts):
        point = point.replace(r"\040", " ")  # as the file writes a space
        # the later of two mounts at one place hides the other
        if real.is_relative_to(point) and len(point) >= len(best[0]):
            best = point, form
    return best[1]


def finding(folder: Path, seconds: float) -> Finding:
    """Return the finding about a run's folder."""
    words = [sys.executable, "-m", "hpcfed.launch.doctor.disk", str(folder)]
    outcome = run_with_timeout(words, seconds)
    if outcome.status is None:
        text = f"{folder}: no answer for {seconds:g} s"
        return Finding("output folder", "wrong", text, f"its server may be gone; {ANOTHER}")
    if outcome.status:
        text = f"{folder}: cannot be written: {outcome.last_error or 'no reason given'}"
        return Finding("output folder", "wrong", text, f"see its permissions, or {ANOTHER}")
    return folder_finding(json.loads(outcome.out))


def folder_finding(facts: dict[str, Any]) -> Finding:
    """Return the finding about a folder that can be written to."""
    text = "{place}: {kind}, {} free, writes {}/s".format(
        size(facts["free"]), size(facts["speed"]), **facts
    )
    advice = ""
    if facts["free"] < FREE:
        advice = f"make room, set checkpoint.keep = 1, or {ANOTHER}"
    elif facts["kind"] in ("tmpfs", "ramfs"):
        advice = f"it is gone with the node, and other nodes do not see it; {ANOTHER}"
    elif facts["speed"] < SPEED:
        advice = f"slow: save less often (checkpoint.every, .minutes), or {ANOTHER}"
    return Finding("output folder", "warning" if advice else "ok", text, advice)


if __name__ == "__main__":
    try:
        print(json.dumps(probe(Path(sys.argv[1]))))
    except OSError as error:
        sys.exit(str(error))
