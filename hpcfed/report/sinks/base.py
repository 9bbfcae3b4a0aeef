"""The interface of a sink."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from hpcfed.core.errors import CheckpointError
from hpcfed.core.paths import read_text
from hpcfed.storage import names
from hpcfed.storage.atomic import put
from hpcfed.storage.record import Header


class Sink(ABC):
    """One external log of a run.

    run: the run's folder.
    package: the package that must be installed.
    A run that continues from a checkpoint repeats the rounds after it, to the same bits. Its log
    must have each round once all the same; rounds that it lost or never had are logged again. Any
    method may raise any error: the run then continues without the log.
    """

    package: ClassVar[str]

    def __init__(self, run: Path):
        self.run = run

    @abstractmethod
    def begin(self, header: Header, done: int) -> int:
        """Open the log, and return up to which round it is complete.

        If no round is done the log is new, else it continues that of the earlier rounds if
        possible. The rounds that follow are then logged.
        """

    @abstractmethod
    def round(self, t: int, numbers: dict[str, float]) -> None:
        """Log round t, counted from 1. numbers: finite, by names such as `accuracy/mean`."""

    @abstractmethod
    def end(self, status: str) -> None:
        """Close the log. status: finished, stopped (to be resumed) or failed."""

    def mark(self, name: str, **facts: Any) -> None:
        """Store the log's state that is needed to continue it, in the run's folder."""
        put(names.sink_file(self.run, name), json.dumps(facts).encode())

    def read_mark(self, name: str, done: int) -> dict[str, Any]:
        """Return the stored state; empty if no round is done, because the log is then new."""
        try:
            return json.loads(read_text(names.sink_file(self.run, name))) if done else {}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            path = names.sink_file(self.run, name)
            raise CheckpointError(
                f"{path}: damaged: {error}; remove it to start a new log"
            ) from error
