"""Commands that may fail, hang or be missing: they have a time limit, and leave no process."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hpcfed.core.errors import ConfigError

GRACE = 5.0  # seconds in which a launcher that is asked to stop ends its ranks itself
JOB = (  # prefixes of the variables of an MPI job
    "OMPI_COMM_",
    "PMIX_",
    "PMI_",
    "MV2_COMM_",
    "PRTE_LAUNCHED",
    "PALS_",
    "FLUX_TASK_",
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command.

    status: None if it did not end in time, 127 if it could not be started.
    """

    status: int | None
    out: str
    err: str

    @property
    def last_error(self) -> str:
        """The last line of its error output."""
        return (self.err.strip().splitlines() or [""])[-1]


def split(option: str, text: str) -> list[str]:
    """Return the words of an option that holds several, as a shell splits them.

    Raises ConfigError if it is empty, or if a shell could not split it.
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


def run_with_timeout(words: Sequence[str], seconds: float) -> Outcome:
    """Run a command, and end it and its processes after these seconds.

    It runs outside the MPI job that this process may be a part of.
    """
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=outside(os.environ),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(127, "", f"{words[0]}: {error.strerror}")
    try:
        out, err = child.communicate(timeout=seconds)
        return Outcome(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        return Outcome(None, *terminate(child))
    except BaseException:  # Ctrl-C reaches this process alone: the command has its own session
        terminate(child)
        raise


def terminate(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Stop a command, kill its process group if it does not stop, and return its output."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        return child.communicate(timeout=GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # a grandchild in another group may hold the pipes
        return child.communicate(timeout=GRACE)
    return "", ""


def outside(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of an MPI job."""
    return {name: value for name, value in env.items() if not name.startswith(JOB)}
