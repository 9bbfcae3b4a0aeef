"""The sinks of a run, on rank 0: what they raise ends no run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hpcfed.errors import ConfigError
from hpcfed.extras import needed
from hpcfed.sinks import SINKS
from hpcfed.sinks.base import Sink
from hpcfed.sinks.numbers import numbers
from hpcfed.storage.record import Header

if TYPE_CHECKING:
    from hpcfed.config.parts import Log

FAILED = "failed"


def check(log: Log) -> None:
    """Import what the sinks that are asked for need; ConfigError where that is missing."""
    for name in wanted(log):
        needed(SINKS[name].load().package, name, f"log.{name}")


def wanted(log: Log) -> list[str]:
    """The names of the sinks that are asked for."""
    return [name for name in SINKS if getattr(log, name)]


class Logs:
    """All sinks of a run; inside a with block they are open. say: tells a warning to who looks on."""

    def __init__(self, log: Log, run: Path, say: Callable[[str], None]):
        self.log, self.run, self.say = log, run, say
        self.sinks: dict[str, Sink] = {}
        self.architectures: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(FAILED)  # unless it has ended in order

    def begin(self, header: Header, done: int, first: bool = True) -> None:
        """Open all. done: rounds of the run.  first: the run was not begun before by these processes.

        Where one cannot be opened: ConfigError if there is nothing yet that would be lost by that, else a warning.
        """
        self.architectures = header["architectures"]
        for name in wanted(self.log):
            try:
                self.sinks[name] = SINKS[name].load()(self.run)
                self.sinks[name].begin(header, done)
            except Exception as error:
                if first and not done:
                    advice = f"mend that, or leave log.{name} away"
                    raise ConfigError(f"log.{name}: cannot begin: {error}; {advice}") from error
                self.drop(name, error)

    def round(self, t: int, row: dict[str, Any]) -> None:
        """Log round t, counted from 1."""
        if self.sinks:
            found = numbers(row, self.architectures)
            self.each(lambda sink: sink.round(t, found))

    def end(self, status: str) -> None:
        """Close all; status as a sink takes it."""
        self.each(lambda sink: sink.end(status))
        self.sinks = {}

    def each(self, call: Callable[[Sink], None]) -> None:
        for name, sink in list(self.sinks.items()):
            try:
                call(sink)
            except Exception as error:  # anything: it is somebody else's package, network or disk
                self.drop(name, error)

    def drop(self, name: str, error: Exception) -> None:
        self.sinks.pop(name, None)
        self.say(f"warning: log.{name}: {error or type(error).__name__}\n  the run goes on without that log")
