"""Programs of Debian's that some tests need, installed where they are missing."""

import os
import shutil
import subprocess
from collections.abc import Sequence

import pytest

APT = ("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=50")


def needed(
    what: str,
    programs: Sequence[str],
    packages: Sequence[str],
    seconds: float,
    path: str | None = None,
) -> None:
    """These programs are there from now on. A machine that cannot have them says so: in CI that is
    a failure.

    what: they are, in words.  seconds: that a step of the installation may take.  path: to look in,
    instead of PATH.
    """
    if missing(programs, path) and (
        why := install(packages, seconds) or ", ".join(missing(programs, path))
    ):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"no {what} on this machine, and none to be had: {why}"
        )


def missing(programs: Sequence[str], path: str | None) -> list[str]:
    return [program for program in programs if not shutil.which(program, path=path)]


def install(packages: Sequence[str], seconds: float) -> str:
    """Install what is missing, where this user may; returns why it is still missing, or nothing."""
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in ([*APT, "update"], [*APT, "install", "--no-install-recommends", *packages]):
        try:
            done = subprocess.run(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return f"{' '.join(words)}: {done.stderr.strip()[-300:]}"
    return ""
