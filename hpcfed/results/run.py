"""One class for whoever reads a run: notebooks (`hpcfed.load(RUN)`), tables, figures, pages."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hpcfed.core.errors import AbsentError, CheckpointError, printable
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.paths import unique_names
from hpcfed.core.progress import track
from hpcfed.core.tables import duration, size
from hpcfed.core.wording import count_noun
from hpcfed.results import state
from hpcfed.results.columns import by_round, column, main_metric, metrics, phases, title_metric
from hpcfed.results.summary import data_name, facts, share, title
from hpcfed.results.tables import table
from hpcfed.storage import names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.fields import Fields, flat
from hpcfed.storage.record import Record, load, stamp

if TYPE_CHECKING:
    import pandas


class Run:
    """The results of a run, read-only, as they were when it was made or last refreshed.

    It may still go on.

    Letters: T rounds done, K clients, C classes, R ranks. Arrays are nan where nothing was
    recorded, e.g. of clients that were not evaluated in a round. Of more than 10,000 clients a row
    has only those that took part or were
    evaluated: `column("clients/id")` tells which.

    name: what it is called among the runs that were found with it.  member: the sweep that it is
    of, and what it is there; None: of none.  data_label: what its data are called; "": by their own
    name.  figure_metric: the metric that figures draw, as columns have it (`f1`, `f1_pooled`); "":
    its first one.  record: its results, where they were read already.

    Raises CheckpointError where there are no readable results; with required=False only where
    `record` is used.
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
        self.data_label = self.figure_metric = ""
        self._fields: Fields | None = None
        self._seen: object = None
        self._record = record
        self._error: CheckpointError | None = None
        if record is None:
            self.refresh()

    def refresh(self) -> bool:
        """Read what the run has written since; whether there was anything new."""
        seen = stamp(self.path)
        if seen == self._seen and self._record:
            return False
        before = self._record
        try:
            record = load(self.path)
        except CheckpointError as error:
            if self.required:
                raise
            self._record, self._error, self._seen = None, error, None
            return before is not None
        for array in (*record.arrays.values(), *record.columns.values()):
            array.setflags(write=False)
        self._record, self._error, self._seen, self._fields = record, None, seen, None
        return True

    @property
    def record(self) -> Record:
        """Its result file as it was read; CheckpointError where there is none."""
        if self._record is None:
            raise self._error or AbsentError(f"{self.path}: has no results")
        return self._record

    @property
    def begun(self) -> bool:
        """Whether it has results that can be read."""
        return self._record is not None

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return names.folder_of(self.path)

    @property
    def fields(self) -> Fields:
        """The job by dotted names: `run.fields["data.alpha"]`.

        Of a run that has not begun as its sweep defines it.
        """
        if self._fields is None and self._record is None and self.member:
            return self.member[1].fields
        if self._fields is None:
            self._fields = flat(self.job)
        return self._fields

    def with_fields(self, fields: Fields) -> Self:
        """The same run, told apart from others by these fields."""
        run = copy(self)
        run._fields = fields
        return run

    def at(self, fields: Sequence[str]) -> tuple[str, ...]:
        """Its values of these fields, as they are told apart.

        "" for a field that its method does not have.
        """
        own = self.fields
        return tuple(format_value(own[name]) if name in own else "" for name in fields)

    @property
    def finished(self) -> bool:
        """Whether it has results of all rounds, of a sweep's run those that its sweep asks for, so
        that its last numbers count.
        """
        total = self.member[1].fields["rounds"] if self.member else self.fields["rounds"]
        return self._record is not None and self._record.rounds >= total

    def absence(self) -> tuple[str, str]:
        """Why its last numbers do not count, in one or two words and as a sentence.

        "" where they do.
        """
        if self.finished:
            return "", ""
        if not self.member:
            total = self.fields["rounds"]
            return "unfinished", f"{self.record.rounds} of {total} rounds are done"
        now = self.state
        begun = now.word != state.NOT_BEGUN and now.rounds
        done = f", {now.rounds} of {now.total} rounds" if begun else ""
        return now.word, f"{state.words(now)}{done}"

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.fields["algorithm.name"]

    @property
    def data(self) -> str:
        """What its data are called."""
        return self.data_label or data_name(self.job["data"])

    @property
    def title(self) -> str:
        """Its method and its name, where that does not say it."""
        return self.name if self.name.startswith(self.method) else f"{self.method} ({self.name})"

    @property
    def main_metric(self) -> str:
        """The metric that stands for the run: accuracy, where it has one."""
        return main_metric(self.record)

    @property
    def drawn_metric(self) -> str:
        """The metric that figures draw, as columns have it: `f1`, `f1_received`, `f1_pooled`."""
        return self.figure_metric or self.main_metric

    @property
    def header(self) -> dict[str, Any]:
        """All that the run says of itself: job, versions, commit, hardware, ranks, placement,
        faults and so on.
        """
        return self.record.header

    @property
    def job(self) -> dict[str, Any]:
        """The job, as nested dicts: `run.job["data"]["alpha"]`."""
        return self.header["job"]

    @property
    def state(self) -> state.State:
        """Whether the run goes on, how far it is, and what time is left, now."""
        now = state.of(self._record, self.folder) if self._record else state.state(self.folder)
        return state.add_sweep_end(*self.member, now) if self.member else now

    @property
    def rounds(self) -> np.ndarray:
        """[T], the numbers of the rounds done, 1..T: the axis to draw the others over."""
        return np.arange(1, self.record.rounds + 1)

    @property
    def accuracy(self) -> np.ndarray:
        """[T, K], test accuracy of each client after the round, 0..1."""
        return column(self.record, "clients/accuracy")

    @property
    def accuracy_before(self) -> np.ndarray:
        """[T, K], test accuracy of the cohort's clients before local training, 0..1."""
        return column(self.record, "clients/accuracy_before")

    @property
    def metrics(self) -> list[str]:
        """The names of what was measured: `run.metric("f1")` has one's values."""
        return metrics(self.record)

    def metric(self, name: str) -> np.ndarray:
        """[T, K], a metric of each client after the round.

        [T], with `_pooled` at the end of its name, over all clients' test examples together.
        CheckpointError for one that was not measured.
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
        """[T], seconds that each round took here."""
        return by_round(self.record, "seconds")

    @property
    def virtual_seconds(self) -> np.ndarray:
        """[T], seconds since the start at the end of each round, as the clients' devices and
        network would take.
        """
        return by_round(self.record, "virtual_seconds")

    @property
    def phases(self) -> dict[str, np.ndarray]:
        """[T, R] by phase: seconds that each rank spent in it; `wait` is for the others."""
        return phases(self.record)

    @property
    def architectures(self) -> list[str]:
        """Of each client; of more than 10,000 clients those that there are."""
        return self.header["architectures"]

    @property
    def classes(self) -> list[str]:
        """The names of the C classes."""
        return self.header.get("classes", [])

    @property
    def label_counts(self) -> np.ndarray | None:
        """[K, C], training examples of each class that each client has.

        None where that was not recorded.
        """
        return self.record.arrays.get("label_counts")

    @property
    def columns(self) -> list[str]:
        """The names of all that was recorded by round."""
        return list(self.record.columns)

    def column(self, name: str) -> np.ndarray:
        """[T, K], [T, R] or [T], any column as it was recorded.

        CheckpointError for an unknown name.
        """
        return self.record.column(name)

    def summary(self) -> dict[str, Any]:
        """The numbers of `hpcfed summary --json`."""
        return facts(self.record)

    def frame(self, name: str = "clients") -> pandas.DataFrame:
        """A pandas frame with a row a round and client ("clients"), a round ("rounds"), a round and
        rank ("ranks"), or a client and class ("labels"). Needs the extra "export"."""
        return import_extra("pandas", "export", "a frame").DataFrame(table(self.record, name))

    def __len__(self) -> int:
        """How many rounds are done."""
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
        """The run in a few words, each under what it is."""
        now, found = self.state, self.summary()
        name, traffic = main_metric(self.record), found["traffic"]
        main = found["metrics"][name]
        known = {
            "state": now.word,
            "rounds": f"{now.rounds} of {now.total}",
            title_metric(name): share(main["mean"])
            + (f" (std {share(main['std'])} over clients)" if main["clients"] > 1 else ""),
            "traffic": f"{size(traffic['down_total'])} down, {size(traffic['up_total'])} up",
            "time": duration(found["time"]["seconds"]),
        }
        return known | ({"left": duration(now.left)} if now.left else {})


def format_value(value: Any) -> str:
    """A field's value as a table has it."""
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
    """The path; CheckpointError where nothing is there."""
    if not os.path.exists(path):
        raise CheckpointError(
            f"{path}: there is no such file or folder; give the folder of a run or of a sweep "
            "(a job that waits in a queue makes it when it begins)"
        )
    return path


def find(paths: Sequence[Path], required: bool = True) -> list[Run]:
    """The runs at these paths, and those of the sweeps among them, each once, in this order.

    A run of a sweep may have no results yet. required: CheckpointError for another run that has
    none; otherwise only for a path where nothing is.
    """
    if not required:
        for path in paths:
            check_exists(path)
    known: dict[str, tuple[Path, tuple[sweeps.Sweep, sweeps.Member] | None]] = {}
    for path in paths:
        for run, of in sweeps.runs(path):
            known.setdefault(os.path.realpath(names.results_of(run)), (run, of))
    told = f"reading {count_noun(len(known), 'run')}"
    return [
        Run(run, of, required=required and of is None)
        for run, of in track(list(known.values()), told)
    ]


def name_runs(runs: Sequence[Run]) -> None:
    """Name each run by its folder, with as many folders above it as tell it from the others."""
    places = [
        names.place_of(run.record.path) if run.begun else Path(os.path.abspath(run.folder))
        for run in runs
    ]
    for run, name in zip(runs, unique_names(places), strict=True):
        run.name = name


def data_names(jobs: Iterable[Fields]) -> dict[str, str]:
    """What data sets are called in tables and titles, by their data.name: by a label of their own,
    or by a file's name, with as many of its folders as tell it from the others. Two data sets never
    have one name.
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
