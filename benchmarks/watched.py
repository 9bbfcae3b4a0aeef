"""A run that is observed from outside: the rounds that it has reported, and when."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import NamedTuple, Self

from launch import ROOT, SETTINGS, ranks_of, session

ROUND = re.compile(r"round (\d+)/\d+ ")
LOOK = 0.001  # seconds between two looks
SAID = 1 << 20  # bytes of stderr that are kept


class Told(NamedTuple):
    """A line that says that a round is done, and when it came."""

    round: int
    at: float


class Hung(Exception):
    """Nothing came within the time limit."""


class Watched:
    """A command in a session of its own; inside a with block it runs, and nothing of it is left
    after.

    told: the rounds that its stdout told of so far.  said: its stderr, once it has ended.
    complaints: what a strike found that should not be, beside what becomes of the run.
    """

    def __init__(self, command: Sequence[str], limit: float):
        self.limit, self.deadline = limit, monotonic() + limit
        self.told, self.said, self.complaints = list[Told](), "", list[str]()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  __exit__ closes it
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | SETTINGS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.wait()
        self.reader.join()
        self.errors.close()

    def read(self) -> None:
        for line in self.process.stdout:
            if match := ROUND.match(line):
                self.told.append(Told(int(match[1]), monotonic()))

    @property
    def reached(self) -> int:
        """The last round of which it told."""
        return max((told.round for told in self.told), default=0)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Look until the condition holds or the command has ended; Hung at the time limit."""
        while not condition() and self.process.poll() is None:
            if monotonic() > self.deadline:
                raise Hung(f"no {what} within the time limit\n{self.stderr()}")
            sleep(LOOK)

    def finish(self) -> int:
        """Wait for its end; the exit status. Hung at the time limit."""
        self.until(lambda: False, "end")
        self.kill()  # ranks that outlive their launcher would keep stdout open
        self.reader.join()
        self.said = self.stderr()
        return self.process.returncode

    def stderr(self) -> str:
        """So far."""
        return os.pread(self.errors.fileno(), SAID, 0).decode(errors="replace")

    def ranks(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: int(entry.name) for rank, entry in sorted(ranks_of(self.process.pid))}

    def kill(self) -> None:
        """End all its processes at once, as when a node goes."""
        for entry in session(self.process.pid):
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue
