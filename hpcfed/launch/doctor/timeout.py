"""Commands as users write them.

Those that may fail, hang, or not be there are given a time, and leave nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcfed.core.errors import ConfigError

GRACE = 5.0  # seconds in which a launcher that is told to stop ends its ranks itself
JOB = (
    "OMPI_COMM_",
    "PMIX_",
    "PMI_",
    "MV2_COMM_",
    "PRTE_LAUNCHED",
    "PALS_",
    "FLUX_TASK_",
)  # variables of an MPI job


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    status: None where it did not end in time, 127 where it could not be started.
    """

    status: int | None
    out: str
    err: str

    @property
    def last_error(self) -> str:
        """The last line of what it complained of."""
        return (self.err.strip().splitlines() or [""])[-1]


def split(option: str, text: str) -> list[str]:
    """The words of an option that has several, as a shell splits them.

    ConfigError where it cannot, or has none.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"--{option} {text}: {str(error).lower()}; give it as a shell takes it"
        ) from error
    if not words:
        raise ConfigError(f"--{option}: it is empty")
    return words


def run_with_timeout(
    words: Sequence[str], seconds: float, env: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command to its end, or for so long; then it and its processes are ended.

    env: instead of this process's own.
    """
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    try:
        child = subprocess.Popen(
            words, **pipes, env=env, text=True, errors="replace", start_new_session=True
        )
    except OSError as error:
        return Outcome(127, "", f"{words[0]}: {error.strerror}")
    try:
        out, err = child.communicate(timeout=seconds)
        return Outcome(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        return Outcome(None, *terminate(child))
    except (
        BaseException
    ):  # Ctrl-C goes to this process alone, for the command has a session of its own
        terminate(child)
        raise


def terminate(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Tell a command to stop, kill it and its group where it does not; returns what it wrote."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        return child.communicate(timeout=GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(
        subprocess.TimeoutExpired
    ):  # a grandchild in a group of its own may hold the pipes
        return child.communicate(timeout=GRACE)
    return "", ""


def outside(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without the MPI job that this process may be a part of."""
    return {name: value for name, value in env.items() if not name.startswith(JOB)}
