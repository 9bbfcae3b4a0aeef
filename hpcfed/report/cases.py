"""The runs of a table: what each is, what came of it, and the fields by which rows and columns tell
them apart.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcfed.config.job import FREE
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.paths import unique_names
from hpcfed.report.status import member
from hpcfed.report.status import words as told
from hpcfed.results.state import NOT_BEGUN, State, complete
from hpcfed.storage import sweep as store
from hpcfed.storage.fields import Fields, covers, flat
from hpcfed.storage.record import Record, load

SEED = "seed"
SKEW = {
    "dirichlet": "data.alpha",
    "classes": "data.classes_per_client",
    "shards": "data.shards_per_client",
    "quantity": "data.spread",
}  # of each partition, what says how skewed it is
FIRST = (
    "data.name",
    "data.partition",
    "clients",
    "participation",
)  # of the fields that may head columns
COMPARED = (
    "data.name",
    "data.partition",
    "clients",
)  # numbers of other values never stand in one column
UNCOUNTED = (
    "algorithm",
    "evaluate.every",
    "evaluate.before",
    "evaluate.received",
    "evaluate.common",
    "evaluate.batch",
)  # a method's own, which its row names, and what is measured beside the last accuracy
ASIDE = tuple(name for name in FREE if name != "rounds")  # fields on which no number depends


@dataclass(frozen=True)
class Case:
    """One run: its results, or why there are none to count. short: that in one or two words."""

    name: str
    fields: dict[str, Any]
    record: Record | None = None
    short: str = ""
    why: str = ""

    def at(self, names: Sequence[str]) -> tuple[str, ...]:
        """Its values of these fields, as they are told apart; "" for a field that its method does
        not have.
        """
        return tuple(
            format_value(self.fields[name]) if name in self.fields else "" for name in names
        )


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


def cases(paths: Sequence[Path]) -> list[Case]:
    """Each run once, of those given and of the sweeps given."""
    found: dict[str, Case] = {}
    for path in paths:
        for run, of in store.runs(path):
            found.setdefault(os.path.realpath(run), of_sweep(*of) if of else alone(run))
    return list(found.values())


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


def rename_data(found: list[Case]) -> list[Case]:
    """The same with their data under the names that tables show."""
    names = data_names(case.fields for case in found if "data.name" in case.fields)
    return [
        replace(case, fields={**case.fields, "data.name": names[case.fields["data.name"]]})
        if "data.name" in case.fields
        else case
        for case in found
    ]


def alone(run: Path) -> Case:
    """A run that is given by itself: it counts when all its rounds are done."""
    record = load(run)
    case = Case(str(run), flat(record.header["job"]), record)
    if complete(record):
        return case
    why = f"{record.rounds} of {case.fields['rounds']} rounds are done"
    return replace(case, record=None, short="unfinished", why=why)


def of_sweep(sweep: store.Sweep, run: store.Member) -> Case:
    """A run that a sweep has or should have."""
    case, folder = Case(str(sweep.folder / run.name), run.fields), sweep.folder / run.name
    try:
        record = load(folder)
    except CheckpointError:
        record = None
    if record and record.rounds >= run.fields["rounds"]:
        return replace(case, record=record)
    state = member(sweep, run)
    return without(case, state)


def without(case: Case, state: State) -> Case:
    """A case that has no number, and why."""
    at = (
        ""
        if state.word == NOT_BEGUN or not state.rounds
        else f", {state.rounds} of {state.total} rounds"
    )
    return replace(case, record=None, short=state.word, why=f"{told(state)}{at}")


def name_skew(found: list[Case], axes: Sequence[str]) -> list[Case]:
    """The partition with what says how skewed it is as one value, `dirichlet(0.5)`, unless an axis
    names that.
    """
    if set(axes) & set(SKEW.values()):
        return found
    return [replace(case, fields=one_skew(case.fields)) for case in found]


def one_skew(fields: dict[str, Any]) -> dict[str, Any]:
    kind = fields.get("data.partition")
    if kind in SKEW and SKEW[kind] in fields:
        kind = f"{kind}({format_value(fields[SKEW[kind]])})"
    return {name: value for name, value in fields.items() if name not in SKEW.values()} | {
        "data.partition": kind
    }


def axes(
    found: list[Case], rows: list[str] | None, columns: list[str] | None
) -> tuple[list[str], list[str]]:
    """The fields of rows and of columns, so that the runs of a cell differ in their seed alone.

    Those that are not given are chosen: rows by method and its own parameters, columns by all else
    that differs. Other data are another column even where each method has its own: their numbers
    are not compared. Raises ConfigError where runs of a cell would differ in a field that neither
    axis may take, or have one seed.
    """
    down, across = list(rows or ["algorithm.name"]), list(columns or [])
    known = {name for case in found for name in case.fields}
    for name in (name for name in (*down, *across) if name not in known):
        raise ConfigError(
            f"table: no field {name!r} in the jobs of these runs; it is written as in --{FIRST[0]}"
        )
    for name in sorted(known - {SEED}, key=lambda name: order(found, name)):
        apart = name in COMPARED and name not in (*down, *across) and columns is None
        cell = conflicting_values(found, [] if apart else [*down, *across], name)
        if not cell:
            continue
        axis = down if name.startswith("algorithm.") else across
        if (rows if axis is down else columns) is not None:
            raise ConfigError(
                f"table: runs that would share a cell differ in {name}: "
                f"{' and '.join(sorted(cell))}; "
                "add it to --rows or --columns, or give fewer runs"
            )
        axis.append(name)
    given = {*(rows or ["algorithm.name"]), *(columns or []), *FIRST}
    return drop_redundant(found, down, across, given, known), drop_redundant(
        found, across, down, given, known
    )


def drop_redundant(
    found: list[Case], axis: list[str], other: list[str], given: set[str], known: set[str]
) -> list[str]:
    """An axis without the fields that those chosen after them decide too; given: those that
    stay.
    """
    kept = list(axis)
    for name in (name for name in axis if name not in given):
        rest = [field for field in kept if field != name]
        if not any(conflicting_values(found, [*rest, *other], field) for field in known - {SEED}):
            kept = rest
    return kept


def order(found: list[Case], name: str) -> tuple[int, int, str]:
    """Which field is looked at first: data and clients may decide a method's own, these the others,
    few values many.
    """
    place = FIRST.index(name) if name in FIRST else len(FIRST) + (not name.startswith("algorithm."))
    return place, len({case.at([name]) for case in found}), name


def conflicting_values(found: list[Case], axes: list[str], name: str) -> set[str]:
    """Two or more values of a field among the runs of one cell; nothing where there is no such
    cell.
    """
    if covers(ASIDE, name):
        return set()
    cells: dict[tuple[str, ...], set[str]] = {}
    for case in found:
        cells.setdefault(case.at(axes), set()).update(case.at([name]))
    return next((values for values in cells.values() if len(values) > 1), set())


def also_differ(groups: Iterable[Sequence[Case]], shown: Sequence[str]) -> str:
    """ "also differ: rounds 1/3, local.lr 0.0005/0.1": what differs within these groups of runs
    beside the fields that are shown; "" where nothing does.

    The seed and a method's own parameters are not meant, nor fields on which no number depends.
    """
    values: dict[str, dict[str, None]] = {}
    for group in groups:
        for name in dict.fromkeys(name for case in group for name in case.fields):
            if name in (SEED, *shown) or covers((*ASIDE, *UNCOUNTED), name):
                continue
            found = dict.fromkeys(case.at([name])[0] for case in group if name in case.fields)
            if len(found) > 1:
                values.setdefault(name, {}).update(found)
    names = sorted(values, key=lambda n: (n != "rounds", not n.startswith("data."), n))
    told = ", ".join(f"{name} {'/'.join(values[name])}" for name in names)
    return f"also differ: {told}" if told else ""
