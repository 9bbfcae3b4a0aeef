"""A user's own function that rank 0 calls at the end of each round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.core import rng, user_code
from hpcfed.core.errors import ConfigError, first_line
from hpcfed.report.sinks.numbers import Row, numbers
from hpcfed.results.run import Run
from hpcfed.storage.record import Record

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.storage.results import Results

FORM = "module:function"


def load(name: str) -> Callable[..., Any]:
    """Return the function. Raises ConfigError if it cannot be called with a run and a row."""
    function = user_code.load("on_round", name, FORM)
    where = f"on_round = {name!r}: {user_code.line_of(function)}"
    if not callable(function) or isinstance(function, type):
        raise ConfigError(
            f"{where}: is no function; write `def {name.partition(':')[2]}(run, row):`"
        )
    required, named, any_number = user_code.parameters_of(function)
    if len(required) > 2 or (len(named) < 2 and not any_number):
        raise ConfigError(
            f"{where}: takes ({', '.join(named)}), and is called with a run and a row; write "
            f"`def {name.partition(':')[2]}(run, row):`"
        )
    return function


class Current(Run):
    """The run of a callback: its results so far, gathered from memory when they are used."""

    _gathered: Record | None

    def __init__(self, folder: Path, results: Results):
        self._results = results
        super().__init__(folder, record=results.record())

    @property
    def _record(self) -> Record | None:
        if self._gathered is None or self._gathered.rounds != self._results.rounds:
            record = self._results.record()
            for array in (*record.arrays.values(), *record.columns.values()):
                array.setflags(write=False)
            self._gathered = record
        return self._gathered

    @_record.setter
    def _record(self, record: Record | None) -> None:
        self._gathered = record

    def refresh(self) -> bool:
        """Return False: the results are always those of the last round."""
        return False


class Callback:
    """The function of a run, on rank 0.

    failure: the error that it raised, after which it is not called again; the run then stops, and
    is saved.
    """

    def __init__(self, job: Job, folder: Path, results: Results):
        self.job, self.results = job, results
        self.call = load(job.on_round)
        self.run = Current(folder, results)
        self.failure: user_code.OwnError | None = None

    def round(self, t: int, row: Row) -> None:
        """Call the function after round t, counted from 1.

        What it draws from torch's generators changes nothing in the run.
        """
        if self.failure:
            return
        header = self.results.header
        main = (header.get("metrics") or ["accuracy"])[0]
        values = {"round": t} | numbers(row, header["architectures"], main)
        try:
            with rng.scoped(self.job.seed, "on_round", t):
                self.call(self.run, values)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            theirs = (
                user_code.explain_error(error) or f"{type(error).__name__}: {first_line(error)}"
            )
            self.failure = user_code.OwnError(
                f"on_round = {self.job.on_round!r}, after round {t}: {theirs}\n"
                "  the run is saved; correct the function, and resume it"
            )
