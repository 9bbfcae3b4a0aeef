"""What a sink is."""

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
    """One log of a run. run: the run's folder.  package: what must be installed.

    A run that goes on from a checkpoint repeats the rounds after it, to the same bits; its log has
    each round once all the same, and those that it lost or never had are given to it. Any method
    may raise anything: the run then goes on without the log.
    """

    package: ClassVar[str]

    def __init__(self, run: Path):
        self.run = run

    @abstractmethod
    def begin(self, header: Header, done: int) -> int:
        """Open the log: a new one where no round is done, else that of the rounds before where it
        can go on.

        Returns up to which round it is complete: it is given those that follow.
        """

    @abstractmethod
    def round(self, t: int, numbers: dict[str, float]) -> None:
        """Log round t, counted from 1. numbers: all finite, by names such as `accuracy/mean`."""

    @abstractmethod
    def end(self, status: str) -> None:
        """Close the log. status: finished, stopped (to be resumed) or failed."""

    def mark(self, name: str, **known: Any) -> None:
        """Keep what the log needs to go on, in the run's folder."""
        put(names.sink_file(self.run, name), json.dumps(known).encode())

    def read_mark(self, name: str, done: int) -> dict[str, Any]:
        """What was kept; nothing where no round is done, for then the log is a new one."""
        try:
            return json.loads(read_text(names.sink_file(self.run, name))) if done else {}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            path = names.sink_file(self.run, name)
            raise CheckpointError(
                f"{path}: damaged: {error}; remove it, and a new log is begun"
            ) from error
