"""Runs that a test watches while they go on: it waits for lines, with a deadline, and signals
ranks.
"""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import BinaryIO, NoReturn

import pytest

from tests import forked
from tests.mpirun import end_session, environment, launcher
from tests.system.several import LIMIT

RANK = "OMPI_COMM_WORLD_RANK="
MAIN = ("-m", "hpcfed.main")


class Live:
    """A job in a session of its own. `out`: its stdout so far; `err`: its stderr, once it has
    ended.
    """

    def __init__(self, job: subprocess.Popen[bytes], errors: BinaryIO):
        self.job, self.errors, self.out, self.err = job, errors, "", ""

    def until(self, text: str, seconds: float = LIMIT) -> None:
        """Read stdout until text has come; fails when it has not within so many seconds, or the job
        ends.
        """
        deadline = monotonic() + seconds
        while text not in self.out:
            if not self._more(deadline):
                self._fail(f"no {text!r} within {seconds} s")

    def until_file(self, path: Path, text: str, seconds: float = LIMIT) -> None:
        """Until this file holds the text; fails when it does not within so many seconds, or the job
        ends.
        """
        self.until_true(
            lambda: path.exists() and text in path.read_text(), f"no {text!r} in {path}", seconds
        )

    def until_warned(self, text: str, seconds: float = LIMIT) -> None:
        """Until stderr holds the text; fails when it does not within so many seconds, or the job
        ends.
        """
        self.until_true(lambda: text in self._errors(), f"no {text!r} on stderr", seconds)

    def until_true(self, true: Callable[[], bool], otherwise: str, seconds: float = LIMIT) -> None:
        """Until this is so; fails when it is not within so many seconds, or the job ends."""
        deadline = monotonic() + seconds
        while not true():
            if monotonic() > deadline or self.job.poll() is not None:
                self._fail(f"{otherwise} within {seconds} s")
            self._more(monotonic() + 0.05)

    def finish(self, seconds: float = LIMIT) -> int:
        """Read on to the end of the job; its exit status. Fails when it does not end within so many
        seconds.
        """
        deadline = monotonic() + seconds
        while self._more(deadline):
            pass
        try:
            status = self.job.wait(max(0.1, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            self._fail(f"did not end within {seconds} s")
        self.err = self._errors()
        return status

    def ends(self, status: int) -> None:
        """The job ends with this status; fails with all that it said where it does not."""
        outcome = self.finish()
        if outcome != status:
            self._fail(f"ended with status {outcome}, not {status}")

    def ranks(self) -> dict[int, int]:
        """Process ids by rank."""
        return dict(
            sorted(pid for entry in Path("/proc").glob("[0-9]*") for pid in self._rank(entry))
        )

    def _rank(self, entry: Path) -> Iterator[tuple[int, int]]:
        """Rank and id of a process of this job; nothing for any other process."""
        try:
            if os.getsid(int(entry.name)) != self.job.pid:
                return
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            ranks = [int(v.removeprefix(RANK)) for v in variables if v.startswith(RANK)]
            pid = forked.fork_of(int(entry.name)) if ranks else 0
        except (ProcessLookupError, PermissionError, FileNotFoundError):
            return  # ended meanwhile, or somebody else's
        yield from ((rank, pid) for rank in ranks)

    def _errors(self) -> str:
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), size, 0).decode(
            errors="replace"
        )  # the job writes on where it is

    def _fail(self, what: str) -> NoReturn:
        pytest.fail(f"{what}\n--- stdout\n{self.out}\n--- stderr\n{self._errors()}")

    def _more(self, deadline: float) -> bool:
        """Read what there is; False at the end of stdout or at the deadline."""
        pipe = self.job.stdout.fileno()
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - monotonic()))
        text = os.read(pipe, 65536).decode(errors="replace") if ready else ""
        self.out += text
        return bool(text)


@contextmanager
def started(ranks: int, *flags: str, fresh: bool = False) -> Iterator[Live]:
    """`python -m hpcfed.main` on so many ranks, under mpirun for more than one; nothing of it is
    left behind. fresh: as in `mpirun`.
    """
    command = (sys.executable if fresh else forked.python(), *MAIN)
    if ranks > 1:
        command = (*launcher(), "-np", str(ranks), *command)
    with tempfile.TemporaryFile() as errors:
        job = subprocess.Popen(
            [*command, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment({}),
            start_new_session=True,
        )
        with job:
            try:
                yield Live(job, errors)
            finally:
                end_session(job.pid)
