"""The sinks of a run, on rank 0; their errors do not end the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hpcfed.core.errors import ConfigError
from hpcfed.core.optional_imports import import_extra
from hpcfed.report.sinks import SINKS
from hpcfed.report.sinks.base import Sink
from hpcfed.report.sinks.numbers import Row, numbers
from hpcfed.storage.record import Header

if TYPE_CHECKING:
    from hpcfed.config.sections import Log

FAILED = "failed"


def check(log: Log) -> None:
    """Import the packages of the requested sinks. Raises ConfigError if one is missing."""
    for name in sink_names(log):
        import_extra(SINKS[name].load().package, name, f"log.{name}")


def sink_names(log: Log) -> list[str]:
    """Return the names of the requested sinks."""
    return [name for name in SINKS if getattr(log, name)]


class Logs:
    """All sinks of a run, which are open inside a with block.

    say: function that shows a warning.
    """

    def __init__(self, log: Log, run: Path, say: Callable[[str], None]):
        self.log, self.run, self.say = log, run, say
        self.sinks: dict[str, Sink] = {}
        self.complete: dict[str, int] = {}  # up to which round each sink's log is
        self.architectures: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(FAILED)  # unless it has ended in order

    def begin(
        self, header: Header, done: int, past: Callable[[int], Row], fresh: bool = True
    ) -> None:
        """Open all sinks, and log the rounds that each of them lacks.

        done: number of rounds done.
        past: returns the record of a round, counted from 1.
        fresh: whether these processes start the run now.
        If a sink cannot be opened, raises ConfigError if no work would be lost by that, else shows
        a warning.
        """
        self.architectures = header["architectures"]
        self.main = (header.get("metrics") or ["accuracy"])[0]
        for name in sink_names(self.log):
            try:
                self.sinks[name] = SINKS[name].load()(self.run)
                self.complete[name] = self.sinks[name].begin(header, done)
            except Exception as error:
                if fresh and not done:
                    with suppress(Exception):  # it may have started nothing that could be ended
                        self.sinks.pop(name).end(FAILED)
                    advice = f"fix that, or remove log.{name}"
                    raise ConfigError(f"log.{name}: cannot start: {error}; {advice}") from error
                self.drop(name, error)
        for t in range(
            1 + min((self.complete[name] for name in self.sinks), default=done), done + 1
        ):
            self.round(t, past(t))

    def round(self, t: int, row: Row) -> None:
        """Log round t, counted from 1, in the sinks that lack it."""
        if lacking := [name for name in self.sinks if self.complete[name] < t]:
            values = numbers(row, self.architectures, self.main)
            self.each(lacking, lambda sink: sink.round(t, values))
            self.complete |= dict.fromkeys(lacking, t)

    def end(self, status: str) -> None:
        """Close all sinks; status as in `Sink.end`."""
        self.each(list(self.sinks), lambda sink: sink.end(status))
        self.sinks = {}

    def each(self, chosen: list[str], call: Callable[[Sink], None]) -> None:
        """Call each of these sinks, and drop those that fail."""
        for name in chosen:
            try:
                call(self.sinks[name])
            except Exception as error:  # any error: packages, network and disk are not ours
                self.drop(name, error)

    def drop(self, name: str, error: Exception) -> None:
        self.sinks.pop(name, None)
        self.say(
            f"log.{name}: {error or type(error).__name__}\n  the run continues without that log"
        )
