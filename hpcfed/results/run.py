"""The class `Run` for readers of a run: notebooks (`hpcfed.load(RUN)`), tables, figures, pages."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hpcfed.config import methods
from hpcfed.core.errors import AbsentError, CheckpointError, ConfigError, printable, unknown
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.paths import unique_names
from hpcfed.core.progress import track
from hpcfed.core.tables import duration, size
from hpcfed.core.wording import count_noun
from hpcfed.results import state
from hpcfed.results.columns import (
    by_round,
    client_names,
    column,
    format_metric,
    main_metric,
    metrics,
    phases,
    title_metric,
)
from hpcfed.results.summary import data_name, facts, title
from hpcfed.results.tables import table
from hpcfed.storage import names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.columns import stored
from hpcfed.storage.fields import Fields, flat
from hpcfed.storage.record import Record, has_ended, load, stamp

if TYPE_CHECKING:
    import pandas


class Run:
    """The results of a run, read-only, as they were when it was made or last refreshed.

    The run may still be running.
    Letters: T rounds done, K clients, C classes, R ranks. Arrays are nan where nothing was
    recorded, e.g. for clients that were not evaluated in a round. With more than 10,000 clients a
    row has only those that took part or were evaluated; `column("clients/id")` gives their numbers.
    name: its name among the runs that were found with it.
    member: its sweep and its entry there; None if it is of no sweep.
    method_label, data_label: names of its method and data in tables and figures; "" for the usual
    ones.
    figure_metric: the metric that figures draw, as in the columns' names (`f1`, `f1_pooled`); ""
    for its first one.
    figure_band: over what the bands of figures are, seeds or clients; "": seeds if there are
    several.
    record: its results, if they have been read already.
    Raises CheckpointError if there are no readable results; with required=False only when `record`
    is used.
    """

    def __init__(
        self,
        path: str | Path,
        member: tuple[sweeps.Sweep, sweeps.Member] | None = None,
        required: bool = True,
        record: Record | None = None,
    ):
        self.path, self.name = Path(path), str(path)
        self.member, self.required = member, required
        self.method_label = self.data_label = self.figure_metric = self.figure_band = ""
        self._fields: Fields | None = None
        self._stamp: object = None
        self._record = record
        self._error: CheckpointError | None = None
        if record is None:
            self.refresh()

    def refresh(self) -> bool:
        """Read what the run has written since, and return whether there was anything new."""
        current = stamp(self.path)
        if current == self._stamp and self._record:
            return False
        before = self._record
        try:
            record = load(self.path)
        except CheckpointError as error:
            if self.required:
                raise
            self._record, self._error, self._stamp = None, error, None
            return before is not None
        for array in (*record.arrays.values(), *stored(record.columns).values()):
            array.setflags(write=False)
        self._record, self._error, self._stamp, self._fields = record, None, current, None
        return True

    @property
    def record(self) -> Record:
        """The result file as it was read. Raises CheckpointError if there is none."""
        if self._record is None:
            raise self._error or AbsentError(f"{self.path}: has no results")
        return self._record

    @property
    def begun(self) -> bool:
        """Whether the run has readable results."""
        return self._record is not None

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return names.folder_of(self.path)

    @property
    def fields(self) -> Fields:
        """The job by dotted names: `run.fields["data.alpha"]`.

        For a run that has not begun they are those that its sweep defines.
        """
        if self._fields is None and self._record is None and self.member:
            return self.member[1].fields
        if self._fields is None:
            self._fields = flat(self.job)
        return self._fields

    def with_fields(self, fields: Fields) -> Self:
        """Return the same run with these fields, which distinguish it from others."""
        run = copy(self)
        run._fields = fields
        return run

    def at(self, fields: Sequence[str]) -> tuple[str, ...]:
        """Return its values of these fields as text; "" for a field that its method lacks."""
        values = self.fields
        return tuple(format_value(values[name]) if name in values else "" for name in fields)

    @property
    def finished(self) -> bool:
        """Whether the run has results of all rounds, so that its last numbers are final.

        For a run of a sweep these are the rounds that the sweep asks for.
        """
        total = self.member[1].fields["rounds"] if self.member else self.fields["rounds"]
        return self._record is not None and has_ended(self._record, total)

    def absence(self) -> tuple[str, str]:
        """Return why its last numbers are not final, in one or two words and as a sentence.

        Both are "" if they are final.
        """
        if self.finished:
            return "", ""
        if not self.member:
            total = self.fields["rounds"]
            return "unfinished", f"{self.record.rounds} of {total} rounds are done"
        now = self.state
        begun = now.word != state.NOT_STARTED and now.rounds
        done = f", {now.rounds} of {now.total} rounds" if begun else ""
        return now.word, f"{state.words(now)}{done}"

    @property
    def method(self) -> str:
        """The name of its method in jobs."""
        if self.member and not self.begun:
            return self.member[1].fields["algorithm.name"]
        return self.job["algorithm"]["name"]

    @property
    def method_title(self) -> str:
        """The name of its method in tables, legends and titles."""
        return self.method_label or methods.spelling(self.method)

    @property
    def data(self) -> str:
        """The name of its data in tables and titles."""
        return self.data_label or data_name(self.job["data"])

    @property
    def title(self) -> str:
        """Its method, and its own name."""
        return f"{self.method_title} ({self.name})"

    @property
    def main_metric(self) -> str:
        """The metric that is used if none is asked for: that of the data's task."""
        return main_metric(self.record)

    def with_metric(self, name: str) -> Self:
        """Return the same run with this metric as its main one.

        Raises ConfigError for a metric that was not measured.
        """
        choices = metrics(self.record)
        if name not in choices:
            raise ConfigError(f"--metric: {self.name}: {unknown('metric', name, choices)}")
        run = copy(self)
        order = [name, *(other for other in choices if other != name)]
        run._record = replace(self.record, header=self.header | {"metrics": order})
        return run

    @property
    def drawn_metric(self) -> str:
        """The metric that figures draw, as in column names: `f1`, `f1_received`, `f1_pooled`."""
        return self.figure_metric or self.main_metric

    @property
    def header(self) -> dict[str, Any]:
        """The header of its results: job, versions, commit, hardware, ranks, placement etc."""
        return self.record.header

    @property
    def job(self) -> dict[str, Any]:
        """The job, as nested dicts: `run.job["data"]["alpha"]`."""
        return self.header["job"]

    @property
    def state(self) -> state.State:
        """Whether the run is running, its progress, and the time left, at present."""
        rounds = self.member[1].fields["rounds"] if self.member else 0
        if self._record:
            now = state.of(self._record, self.folder, rounds)
        else:
            now = state.state(self.folder, rounds)
        return state.add_sweep_end(*self.member, now) if self.member else now

    @property
    def rounds(self) -> np.ndarray:
        """[T], the numbers of the rounds done, 1..T: the x axis for the other arrays."""
        return np.arange(1, self.record.rounds + 1)

    @property
    def accuracy(self) -> np.ndarray:
        """[T, K], test accuracy of each client after the round, 0..1; nan for other tasks."""
        return column(self.record, "clients/accuracy")

    @property
    def accuracy_before(self) -> np.ndarray:
        """[T, K], test accuracy of the cohort's clients before local training, 0..1."""
        return column(self.record, "clients/accuracy_before")

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics measured: `run.metric("f1")` returns one's values."""
        return metrics(self.record)

    def metric(self, name: str) -> np.ndarray:
        """Return a metric of each client after the round, [T, K].

        With `_pooled` at the end of its name it is over all clients' test examples together, [T].
        Raises CheckpointError for a metric that was not measured.
        """
        place = "rounds" if name.endswith("_pooled") else "clients"
        return self.record.column(f"{place}/{name}")

    @property
    def loss(self) -> np.ndarray:
        """[T, K], test loss of each client after the round."""
        return column(self.record, "clients/loss")

    @property
    def train_loss(self) -> np.ndarray:
        """[T, K], mean loss of each client's local steps in the round."""
        return column(self.record, "clients/train_loss")

    @property
    def down(self) -> np.ndarray:
        """[T, K], bytes that each client received in the round."""
        return column(self.record, "clients/down")

    @property
    def up(self) -> np.ndarray:
        """[T, K], bytes that each client sent in the round."""
        return column(self.record, "clients/up")

    @property
    def seconds(self) -> np.ndarray:
        """[T], real seconds of each round."""
        return by_round(self.record, "seconds")

    @property
    def virtual_seconds(self) -> np.ndarray:
        """[T], simulated seconds from the start to the end of each round.

        They model the clients' devices and network.
        """
        return by_round(self.record, "virtual_seconds")

    @property
    def phases(self) -> dict[str, np.ndarray]:
        """[T, R] by phase: seconds that each rank spent in it; `wait` is for other ranks."""
        return phases(self.record)

    @property
    def architectures(self) -> list[str]:
        """The architecture of each client; with more than 10,000 clients those that occur."""
        return self.header["architectures"]

    @property
    def classes(self) -> list[str]:
        """The names of the C classes, or of what else the models' outputs are."""
        return self.header.get("classes", [])

    @property
    def client_names(self) -> list[str]:
        """The names of the K clients, such as hospitals; [] if the data name none."""
        return client_names(self.record)

    @property
    def label_counts(self) -> np.ndarray | None:
        """[K, C], training examples of each class that each client has.

        None if that was not recorded, or if the labels are not classes.
        """
        return self.record.arrays.get("label_counts")

    @property
    def columns(self) -> list[str]:
        """The names of all recorded columns."""
        return list(self.record.columns)

    def column(self, name: str) -> np.ndarray:
        """Return any column as it was recorded, [T, K], [T, R] or [T].

        Raises CheckpointError for an unknown name.
        """
        return self.record.column(name)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of `hpcfed summary --json`."""
        return facts(self.record)

    def frame(self, name: str = "clients") -> pandas.DataFrame:
        """Return a table as a pandas frame.

        name: "clients", a row for each round and client; "rounds", for each round; "ranks", for
        each round and rank; "labels", for each client and class. Needs the extra "export".
        """
        return import_extra("pandas", "export", "a frame").DataFrame(table(self.record, name))

    def __len__(self) -> int:
        """Return the number of rounds done."""
        return self.record.rounds

    def __repr__(self) -> str:
        brief = ", ".join(f"{k} {v}" for k, v in self._brief().items())
        return printable(f"<{self.path}: {title(self.record)}; {brief}>")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._brief().items()
        )
        caption = f"{escape(str(self.path))}<br>{escape(title(self.record))}"
        return f"<table><caption>{caption}</caption>{rows}</table>"

    def _brief(self) -> dict[str, str]:
        """Return a brief description of the run, by title."""
        now, totals = self.state, self.summary()
        name, traffic = main_metric(self.record), totals["traffic"]
        main = totals["metrics"][name]
        lines = {
            "state": now.word,
            "rounds": f"{now.rounds} of {now.total}",
            title_metric(name): format_metric(name, main["mean"])
            + (
                f" (std {format_metric(name, main['std'])} over clients)"
                if main["clients"] > 1
                else ""
            ),
            "traffic": f"{size(traffic['down_total'])} down, {size(traffic['up_total'])} up",
            "time": duration(totals["time"]["seconds"]),
        }
        return lines | ({"left": duration(now.left)} if now.left else {})


def path_of(run: Any) -> Path:
    """Return the path of a run, or of a file, from Python. Raises ConfigError for other types."""
    if isinstance(run, Run):
        return run.folder
    if isinstance(run, str | Path):
        return Path(run)
    raise ConfigError(f"{run!r:.60}: give the path of a run, or what hpcfed.run returned")


def folder_at(place: Path | Run) -> Path:
    """Return the folder of a run or sweep, given by its path or as a `Run`."""
    return place.folder if isinstance(place, Run) else names.folder_of(place)


def format_value(value: Any) -> str:
    """Return a field's value as text for a table."""
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    return (
        value
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else json.dumps(value)
    )


def check_exists(path: Path) -> Path:
    """Return the path. Raises CheckpointError if nothing is there."""
    if not os.path.exists(path):
        raise CheckpointError(
            f"{path}: there is no such file or folder; give the folder of a run or of a sweep "
            "(a queued job makes it when it starts)"
        )
    return path


def find(paths: Sequence[Path | Run], required: bool = True) -> list[Run]:
    """Return the runs at these paths, and those of the sweeps among them, each once, in this order.

    A run of a sweep may have no results yet. A `Run` stands for its path, and is read again.
    required: whether any other run without results raises CheckpointError; otherwise only a path
    where nothing is does.
    """
    if not required:
        for path in paths:
            check_exists(path.path if isinstance(path, Run) else path)
    places: dict[str, tuple[Path, tuple[sweeps.Sweep, sweeps.Member] | None]] = {}
    for path in paths:
        places_of = [(path.path, path.member)] if isinstance(path, Run) else sweeps.runs(path)
        for run, of in places_of:
            places.setdefault(os.path.realpath(names.results_of(run)), (run, of))
    message = f"reading {count_noun(len(places), 'run')}"
    return [
        Run(run, of, required=required and of is None)
        for run, of in track(list(places.values()), message)
    ]


def name_runs(runs: Sequence[Run]) -> None:
    """Name each run by its folder, with as many parent folders as needed to make names unique."""
    places = [
        names.place_of(run.record.path) if run.begun else Path(os.path.abspath(run.folder))
        for run in runs
    ]
    for run, name in zip(runs, unique_names(places), strict=True):
        run.name = name


def data_names(jobs: Iterable[Fields]) -> dict[str, str]:
    """Return unique names of data sets for tables and titles, by their data.name.

    A name is the data set's label, or its file's name, with as many folders as needed to
    distinguish it.
    """
    labels: dict[str, str] = {}
    for fields in jobs:
        name, label = fields["data.name"], fields.get("data.label") or ""
        labels[name] = labels.get(name) or label
    files = dict(zip(labels, unique_names([Path(name) for name in labels]), strict=True))
    called = {name: label or files[name] for name, label in labels.items()}
    count = Counter(called.values())
    return {
        name: text if count[text] == 1 else f"{text} ({files[name]})"
        for name, text in called.items()
    }
