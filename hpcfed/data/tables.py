"""Data sets from tables, with examples as rows, in CSV, Parquet and other files.

CSV is read by Python's own `csv`, so that it needs no other package. Parquet is read by pyarrow,
which runs no code from the file: an extra, `hpcfed[tables]`.
"""

from __future__ import annotations

import csv
import re
from codecs import lookup
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hpcfed.core.errors import DataError, unknown
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.paths import only_regular
from hpcfed.core.rng import stream
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data import check
from hpcfed.data.dataset import COLUMNS, DataSet, Reading, Split
from hpcfed.data.moments import moments
from hpcfed.data.sampling import apportion, take
from hpcfed.data.text import encode as encode_texts
from hpcfed.data.user_arrays import add_path_to_errors, fits, readable
from hpcfed.tasks import TASKS, Task, infer, make
from hpcfed.tasks.binary import Binary
from hpcfed.tasks.classification import Classification

ADVICE = "write it again, or check --data.name"
LABELS = ("label", "labels", "target", "class", "y")  # names that a column of labels may have
TESTS = {"test": True, "true": True, "1": True, "train": False, "false": False, "0": False}
DELIMITERS = ",;\t|"
COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma
GROUPS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # may also be a number in groups of thousands
KINDS = 100  # maximum categories of a column of words that the job does not name; more are texts
FEW = 8  # maximum columns or values in a message
VALUE = 16  # bytes that a value of a column takes while it is read, and as a number afterwards
ROLES = tuple({name: "" for entry in TASKS.values() for name in entry.load().columns})
CELL = 2**24  # maximum characters of one value of a CSV file


@dataclass(frozen=True)
class Table:
    """A table of n rows.

    where: the beginning of messages.
    columns: by name, [n], float64 with nan for missing values, or str objects with None.
    odd: columns of other types, such as dates, with the type; they are refused if they are used.
    commas: names of columns of numbers that were written with decimal commas.
    """

    where: str  # opens messages
    columns: Mapping[str, np.ndarray]
    n: int
    odd: Mapping[str, str] = field(default_factory=dict)
    commas: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.odd:
            raise DataError(
                f"{self.where}: column {name!r} holds {self.odd[name]}, neither numbers nor words; "
                f"name it in columns.ignore"
            )
        return self.columns[name]

    @property
    def names(self) -> list[str]:
        """Names of all columns, in the table's order."""
        return [*self.columns, *self.odd]

    def take(self, rows: np.ndarray) -> Table:
        """Return the table with these rows alone."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, n=len(next(iter(columns.values()), rows)))


def read(path: Path, how: Reading) -> DataSet:
    """Read the data set in a .csv or .parquet file, with its test rows in a second file if given.

    The files are data.name and data.test_file. The first row of a CSV file names the columns, which
    are separated by commas, semicolons, tabs or |. The job's `columns` gives the roles of columns;
    all columns without a role are inputs. Numbers are standardised by the training part (its mean
    and deviation become those of the data set). A categorical column becomes a 0 or 1 for each
    category of the training part, or codes, which count as numbers. Labels may be words or numbers:
    classes are their different values. columns.positive makes the task binary, columns.event
    survival (labels are times), columns.target regression, and columns.labels multilabel.
    Missing values (empty, or one of columns.missing_words) are refused or filled in, or their rows
    are dropped. If a column names clients, each natural client
    is tested on its own test examples.
    Raises DataError with file, column, row (from 1) and value for whatever cannot be used.
    """
    tested = how.test_file is not None or how.columns.test
    taken = {*COLUMNS, "data.test_file"} | (set() if tested else {"data.held_out"})
    if ".csv" in {place.suffix for place in (path, how.test_file) if place}:
        taken.add("columns.encoding")
    how.refuse_others(str(path), f"a table{' with test rows' if tested else ''}", taken)
    test = read_table(how.test_file, how) if how.test_file else None
    return to_dataset(path.stem, read_table(path, how), test, how)


def read_table(path: Path, how: Reading) -> Table:
    """Return the columns of a .csv or .parquet file; raises DataError."""
    with readable(path, ADVICE):
        if path.suffix == ".csv":
            return read_csv(path, how)
        if path.suffix == ".parquet":
            return read_parquet(path, how.missing_words)
    raise DataError(f"{path}: is not a table; give a .csv or .parquet file")


@contextmanager
def open_text(path: Path, encoding: str) -> Iterator[TextIO]:
    """Open a CSV file; raises DataError for an unknown encoding, and for bytes that it has not."""
    try:
        name = "utf-8-sig" if lookup(encoding).name == "utf-8" else encoding  # drops a mark
        with open(path, encoding=name, newline="", opener=only_regular) as file:
            yield file
    except LookupError as error:
        raise DataError(
            f"columns.encoding: {error}; give one such as utf-8, latin-1 or cp1252"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not {encoding}: {error.reason} (byte 0x{error.object[error.start]:02x}); "
            f"set columns.encoding, to latin-1 or cp1252 for a file of older Windows or Excel"
        ) from error


def read_csv(path: Path, how: Reading) -> Table:
    """Return the columns of a CSV file whose first row holds their names."""
    csv.field_size_limit(CELL)
    with open_text(path, how.columns.encoding) as file:
        line = file.readline()
        file.seek(0)
        mark = max(DELIMITERS, key=line.count)
        lines = csv.reader(file, delimiter=mark)
        names = [name.strip() for name in next(lines, [])]
        rows = []
        for row in filter(None, lines):
            if len(row) != len(names):
                raise DataError(
                    f"{path}: line {lines.line_num} has {count_noun(len(row), 'value')}, but the "
                    f"first line names {count_noun(len(names), 'column')}; fix that line"
                )
            rows.append(row)
    if names and not names[0]:
        names[0] = "Unnamed: 0"  # the row numbers that pandas writes
    check_names(path, names)
    if not rows:
        raise DataError(f"{path}: holds no rows; {ADVICE}")
    columns, commas = {}, set()
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        columns[name], with_commas = to_column(values, how.missing_words)
        commas |= {name} if with_commas else set()
    columns.pop("Unnamed: 0", None)
    return Table(str(path), columns, len(rows), commas=frozenset(commas))


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise DataError for a first row with no names, or with equal ones."""
    if not names:
        raise DataError(f"{path}: is empty; {ADVICE}")
    if all(is_number(name) for name in names):
        raise DataError(
            f"{path}: the first line holds numbers ({join_few(names, FEW)}); write the names of "
            f"the columns above them"
        )
    earlier = set[str]()
    for i, name in enumerate(names):
        if not name or name in earlier:
            why = f"{name!r}, as an earlier one" if name else "nothing"
            raise DataError(f"{path}: column {i + 1} is called {why}; give each its own name")
        earlier.add(name)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_column(values: Sequence[str], missing: Collection[str]) -> tuple[np.ndarray, bool]:
    """Return the values of a column as numbers, float64, if all that are present are numbers.

    Otherwise returns str objects, with None for missing values. The second value is whether the
    numbers have decimal commas.
    missing: the words that stand for missing values, in lower case.
    """
    stripped = [value.strip() for value in values]
    gaps = np.array([value.lower() in missing for value in stripped])
    numbers = ["nan" if gap else v for v, gap in zip(stripped, gaps, strict=True)]
    commas = decimal_commas(numbers)
    try:
        points = [v.replace(",", ".") for v in numbers] if commas else numbers
        return np.array(points).astype(np.float64), commas
    except ValueError:
        words = np.array(stripped, object)
        words[gaps] = None
        return words, False


def decimal_commas(values: Sequence[str]) -> bool:
    """Return whether commas in these values can only be decimal commas.

    They can also separate thousands if three digits follow each of them; and beside decimal points
    they are unclear.
    """
    written = [v for v in values if "," in v]
    if not written or not all(COMMA.fullmatch(v) for v in written):
        return False
    return not all(GROUPS.fullmatch(v) for v in written) and not any("." in v for v in values)


def read_parquet(path: Path, missing: Collection[str]) -> Table:
    """Return the columns of a Parquet file. missing: as in `to_column`."""
    parquet = import_extra("pyarrow.parquet", "tables", f"data.name = {path}")
    with open(path, "rb", opener=only_regular) as raw, parquet.ParquetFile(raw) as file:
        about = file.metadata
        # the size in the file is that of runs of equal values, which are one
        fits(about.num_rows * about.num_columns * VALUE, str(path))
        fits(
            sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups)), str(path)
        )
        return from_arrow(file.read(), str(path), missing)


def from_arrow(table: Any, where: str, missing: Collection[str]) -> Table:
    """Return a pyarrow table as a `Table`: numbers, truth values and words; other types are odd.

    missing: as in `to_column`.
    """
    import pyarrow as pa

    columns, odd = {}, {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            column = column.cast(kind)
        if name.startswith("__index_level_"):
            continue  # the row numbers that pandas writes
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers = column.cast(pa.float64(), safe=False)
            columns[name] = numbers.to_numpy().astype(np.float64)
        elif pa.types.is_decimal(kind):
            columns[name] = column.cast(pa.float64()).to_numpy().astype(np.float64)
        elif pa.types.is_null(kind):
            columns[name] = np.full(len(column), np.nan)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            words = column.to_pylist()
            gone = [w is None or w.strip().lower() in missing for w in words]
            columns[name] = np.array(words, object)
            columns[name][gone] = None
        else:
            odd[name] = str(kind)
    if not table.num_rows:
        raise DataError(f"{where}: holds no rows; {ADVICE}")
    return Table(where, columns, table.num_rows, odd)


def label_column(table: Table, wanted: str) -> str:
    """Return the name of the column of labels; raises DataError if there is none."""
    if wanted:
        known(table, "label", wanted)
        return wanted
    candidates = [name for name in table.names if name.lower() in LABELS]
    if len(candidates) == 1:
        return candidates[0]
    why = f"columns {join_few(candidates, FEW)} could" if candidates else "no column seems to"
    raise DataError(
        f"{table.where}: {why} hold the labels; name it: columns.label = one of "
        f"{join_few(table.names, 30)}"
    )


def known(table: Table, what: str, *names: str) -> None:
    """Raise DataError for a name that is not a column of the table.

    what: the field that gives the name.
    """
    columns = set(table.names)
    for name in names:
        if name not in columns:
            raise DataError(
                f"{table.where}: columns.{what}: {unknown('column', name, table.names)}"
            )


@dataclass(frozen=True)
class Roles:
    """Roles of a table's columns.

    labels: the columns that labels are made of, in the order of the task's fields, and what each
    is, in words.
    client: "" for none.
    task: that of the labels; None if only their values tell.
    """

    labels: Mapping[str, str]
    client: str
    inputs: tuple[str, ...]
    task: Task | None = None

    @property
    def used(self) -> tuple[str, ...]:
        """Names of all columns that are used."""
        return (*self.labels, *filter(None, [self.client]), *self.inputs)

    @property
    def label(self) -> str:
        """The column of labels, or the first one."""
        return next(iter(self.labels))

    @property
    def numeric(self) -> bool:
        """Whether labels are numbers, not classes."""
        return self.task is not None and not self.task.has_classes


def stated_task(how: Reading, where: str, stated: str = "") -> Task | None:
    """Return the task that the job or the file names, or that columns with a role imply, or None.

    stated: name of the task in the file, or "".
    Raises DataError if these contradict one another.
    """
    c, names = how.columns, {name: "the file" for name in [stated] if name}
    names |= {name: f"data.task = {name!r}" for name in [how.task] if name}
    if c.positive:
        names |= {"binary": "columns.positive"}
    for name, entry in TASKS.items():
        for field_name in entry.load().columns:
            if field_name != "label" and getattr(c, field_name):
                names |= {name: f"columns.{field_name}"}
    if len(names) > 1:
        claims = [f"{source} ({name})" for name, source in names.items()]
        raise DataError(f"{where}: {' and '.join(claims)} name different tasks; remove one")
    for name in names:
        return make(name)
    return None


def label_columns(table: Table, how: Reading, task: Task | None) -> dict[str, str]:
    """Return the columns of labels, and what each is, in words.

    Raises DataError if there are none, or some are unknown.
    """
    fields = dict(task.columns if task else Classification.columns)
    if not any(getattr(how.columns, name) for name in fields):
        fields = {"label": [*fields.values()][-1]}
    elif how.columns.label and "label" not in fields:
        raise DataError(
            f"{table.where}: columns.label has no effect beside columns.{next(iter(fields))}; "
            f"remove it"
        )
    columns: dict[str, str] = {}
    for name, words in fields.items():
        value = getattr(how.columns, name)
        value = label_column(table, value) if name == "label" else value
        names = [value] if isinstance(value, str) else value
        known(table, name, *names)
        columns |= dict.fromkeys(names, words)
    return columns


def roles(table: Table, how: Reading, stated: str = "") -> Roles:
    """Return the roles of the training table's columns.

    stated: name of the task in the file, or "".
    Raises DataError for names that are unknown or contradict each other.
    """
    c = how.columns
    task = stated_task(how, table.where, stated)
    labels = label_columns(table, how, task)
    for what in ("client", "test", "text"):
        if name := getattr(c, what):
            known(table, what, name)
    for what in ("inputs", "ignore", "one_hot", "codes"):
        known(table, what, *getattr(c, what))
    apart = {*labels, c.client, c.test, *c.ignore} - {""}
    inputs = (c.text,) if c.text else c.inputs or tuple(n for n in table.names if n not in apart)
    if wrong := [name for name in inputs if name in apart - {c.client}]:
        raise DataError(
            f"{table.where}: column {wrong[0]!r} is an input in columns, and label, target, event, "
            f"test or ignored too; leave it out of one"
        )
    if not inputs:
        raise DataError(f"{table.where}: no column is left for the inputs; there is {table.names}")
    for what in ("one_hot", "codes"):
        for name in getattr(c, what):
            if name not in inputs or (what == "codes" and name in c.one_hot) or c.text:
                raise DataError(
                    f"{table.where}: columns.{what} names {name!r}, which is not an input, or is "
                    f"named twice; leave it out"
                )
    return Roles(labels, c.client, tuple(inputs), task)


def to_dataset(
    name: str,
    train: Table,
    test: Table | None,
    how: Reading,
    classes: list[str] | None = None,
    numbered: bool = False,
    stated: str = "",
) -> DataSet:
    """Make a data set from tables.

    test: test rows; None: those that a column marks, else a share that is held out.
    classes: names of the labels, which are then 0..C-1.
    numbered: labels are numbers, not words: 0..C-1, or those of another task.
    stated: name of the task in the file, or "".
    """
    notes: list[str] = []
    role = roles(train, how, stated)
    if numbered and role.task is None:
        role = replace(role, task=infer(train[role.label], f"{train.where}: {role.label}"))
    check_numbers([table for table in (train, test) if table], role, how)
    described = {name: f"{name}: {of}" for name, of in other_roles(train, role, how).items()}
    order = train.names
    if how.columns.test:
        if test is not None:
            raise DataError(f"{train.where}: has test rows, so columns.test has no effect")
        train, test = by_column(train, how.columns.test)
    parts = [train] if test is None else [train, test]
    parts = [without_gaps(part, role, how, notes) for part in parts]
    y, names, task = labels(parts, role, how, classes, numbered)
    users, user_names = clients(parts, role.client)
    separate_tests = all(ids is not None for ids in users)
    if test is None:
        rows = held_out(parts[0].where, task.strata(y[0]), users[0], how.held_out)
        parts, y = [parts[0].take(r) for r in rows], [y[0][r] for r in rows]
        users = [None if users[0] is None else users[0][r] for r in rows]
    vocabulary, mean, std = 0, tuple[float, ...](), tuple[float, ...]()
    if how.columns.text:
        texts = [words(part, how.columns.text) for part in parts]
        splits = [Split(*three) for three in zip(texts, y, users, strict=True)]
        with add_path_to_errors(Path(train.where)):
            (one, two), vocabulary = encode_texts(splits, how.text)
    else:
        x, mean, std = encode(parts, role, how, notes, described)
        one, two = (Split(a, b, c) for a, b, c in zip(x, y, users, strict=True))
    columns = tuple(described[column] for column in order)
    facts: Any = {
        "task": task,
        "own_tests": separate_tests,
        "notes": tuple(notes),
        "columns": columns,
    }
    facts["user_names"] = user_names
    return DataSet(name, one, two, names, mean, std, vocabulary, **facts)


def check_numbers(tables: Sequence[Table], role: Roles, how: Reading) -> None:
    """Raise DataError for a word in a column of numbers.

    These are inputs most of whose values are numbers, unless the job names them as categories, and
    labels that are not classes.
    """
    categories = {*how.columns.one_hot, *how.columns.codes, how.columns.text}
    times = tuple(role.labels) if role.numeric else ()
    for name in (*times, *(n for n in role.inputs if n not in categories)):
        having = [t for t in tables if name in t.columns]
        words = [(t, row) for t in having if t[name].dtype == object for row in first_word(t[name])]
        if not words:
            continue
        present = np.concatenate([t[name][~gaps(t[name])].astype(object) for t in having])
        like = sum(not isinstance(v, str) or looks_like_number(v) for v in present.tolist())
        if name not in times and 2 * like <= len(present):
            continue
        table, row = words[0]
        wrong = f"column {name!r}: {table[name][row]!r:.40} in row {row + 1} is not a number"
        if name in times:
            assert role.task is not None  # its labels are numbers
            raise DataError(f"{table.where}: {wrong}, as {role.task.labels} need")
        raise DataError(
            f"{table.where}: {wrong}, though {like:,} of {len(present):,} values look like "
            f"numbers; fix it (a number has a decimal point, or in all rows a decimal comma, and "
            f"no other mark), leave it empty, or name the column in columns.one_hot if it holds "
            f"categories"
        )


def first_word(values: np.ndarray) -> list[int]:
    """Return the row of the first value that is a word and no number; [] if there is none."""
    rows = (i for i, v in enumerate(values) if isinstance(v, str) and not is_number(v))
    return [row for row in [next(rows, None)] if row is not None]


def looks_like_number(text: str) -> bool:
    return is_number(text) or COMMA.fullmatch(text) is not None


def other_roles(table: Table, role: Roles, how: Reading) -> dict[str, str]:
    """Return what each column is that is not an input of numbers or categories."""
    described = dict.fromkeys(table.names, "ignored")
    for name, what in (
        (how.columns.test, "says which rows are tests"),
        (role.client, "names the clients"),
        *role.labels.items(),
        (how.columns.text, "text, the inputs"),
    ):
        described |= {name: what} if name else {}
    return described


def labels(
    parts: list[Table],
    role: Roles,
    how: Reading,
    classes: list[str] | None = None,
    numbered: bool = False,
) -> tuple[list[np.ndarray], tuple[str, ...], Task]:
    """Return the labels of each part, the names of the outputs, and the task.

    classes, numbered: as in `to_dataset`.
    """
    if role.numeric:
        assert role.task is not None
        where = [f"{part.where}: {', '.join(role.labels)}" for part in parts]
        y = [numeric(*pair, role, role.task) for pair in zip(parts, where, strict=True)]
        return y, role.task.output_names(classes or list(role.labels), y, where), role.task
    if numbered or classes:
        y, names = whole_labels(parts, role, classes)
    else:
        y, names = kinds_of_labels(parts, role.label)
    if how.columns.positive:
        return *positive_last(parts[0].where, y, names, how.columns.positive), Binary()
    task = role.task or Classification()
    task.check_outputs(len(names), parts[0].where)
    return y, names, task


def words(table: Table, name: str) -> np.ndarray:
    """Return a column of texts, in which a missing text is empty."""
    column = table[name]
    if column.dtype != object:
        raise DataError(f"{table.where}: columns.text: {name!r} holds numbers; name one of texts")
    return np.array([text or "" for text in column], object)


def by_column(table: Table, name: str) -> tuple[Table, Table]:
    """Return the training and the test rows, as the column marks them."""
    values = table[name]
    marks = [kind_name(v).lower() for v in values]
    for row, value in enumerate(marks):
        if value not in TESTS:
            raise DataError(
                f"{table.where}: columns.test: {name!r} is {value!r:.40} in row {row + 1}; it may "
                f"be {', '.join(TESTS)}"
            )
    tests = np.array([TESTS[value] for value in marks])
    if tests.all() or not tests.any():
        raise DataError(
            f"{table.where}: columns.test: {name!r} says {marks[0]} of all rows; leave "
            f"columns.test away, and a share is held out"
        )
    return table.take(np.flatnonzero(~tests)), table.take(np.flatnonzero(tests))


def gaps(values: np.ndarray) -> np.ndarray:
    """Return where values are missing, [n], bool."""
    return np.array([v is None for v in values]) if values.dtype == object else np.isnan(values)


def refuse_gaps(table: Table, name: str, why: str) -> None:
    wrong = np.flatnonzero(gaps(table[name]))
    if len(wrong):
        raise DataError(
            f"{table.where}: column {name!r} has no value in row {wrong[0] + 1}; {why}: "
            f"columns.missing = 'drop' leaves such rows out"
        )


def without_gaps(table: Table, role: Roles, how: Reading, notes: list[str]) -> Table:
    """Return the table, without the rows that have gaps if these are to be dropped.

    Raises DataError for gaps if they are to be refused, and for infinite values.
    """
    known(table, "inputs", *role.labels, *role.inputs)
    columns = set(table.names)
    used = [name for name in role.used if name in columns]
    for name in used:
        if table[name].dtype != object and np.isinf(table[name]).any():
            row = int(np.flatnonzero(np.isinf(table[name]))[0])
            raise DataError(
                f"{table.where}: column {name!r}: value {table[name][row]} in row {row + 1}; "
                f"numbers are finite: fix it, or leave it empty"
            )
    missing = {name: gaps(table[name]) for name in used if name != how.columns.text}
    number = {name: int(gone.sum()) for name, gone in missing.items() if gone.any()}
    if not number:
        return table
    shown = join_few([f"{name} {n}" for name, n in number.items()], FEW)
    total = count_noun(sum(number.values()), "value")
    if how.columns.missing == "refuse":
        row = min(int(np.flatnonzero(missing[name])[0]) for name in number)
        raise DataError(
            f"{table.where}: {total} missing, the first in row {row + 1} ({shown}); set "
            f"columns.missing = 'fill' (the mean of the training part) or 'drop' (leave such rows "
            f"out), or name the columns in columns.ignore; if a word counts as missing that is "
            f"none, leave it out of columns.missing_words"
        )
    if how.columns.missing == "drop":
        full = np.flatnonzero(~np.any(list(missing.values()), axis=0))
        if not len(full):
            raise DataError(
                f"{table.where}: each row lacks a value ({shown}), so columns.missing = 'drop' "
                f"leaves none; name columns in columns.ignore, or set 'fill'"
            )
        notes.append(
            f"{table.where}: {table.n - len(full):,} of {table.n:,} rows lack values and are left "
            f"out ({shown})"
        )
        return table.take(full)
    for name in role.labels:
        refuse_gaps(table, name, "labels are not filled in")
    filled = sorted({filling(table[name], name, how) for name in number})
    notes.append(
        f"{table.where}: {total} missing ({shown}), filled in from the training part with "
        f"{' or '.join(filled)}"
    )
    return table


def filling(values: np.ndarray, name: str, how: Reading) -> str:
    """Return, in words, the value that fills a column's gaps."""
    if name in how.columns.codes:
        return "the most frequent code"
    kinds = name in how.columns.one_hot or values.dtype == object
    return "all zeros" if kinds else "the mean"


def kind_name(value: Any) -> str:
    """Return a value as text: words unchanged, whole numbers without a decimal point."""
    return value if isinstance(value, str) else str(value) if value is None else f"{value:.12g}"


def kinds(values: np.ndarray) -> list[Any]:
    """Return the different values that occur, in order."""
    return sorted(set(values[~gaps(values)].tolist()))


def clients(parts: list[Table], name: str) -> tuple[list[np.ndarray | None], tuple[str, ...]]:
    """Return clients' numbers in each part, [n], from 0 in the order of their values; their names.

    Numbers are consistent in all parts. The result is None for a part without that column.
    name: the column; "" for none.
    """
    whose = [part for part in parts if name in part.names]
    for part in whose:
        refuse_gaps(part, name, "the client of an example is not filled in")
    columns = [part[name] for part in whose]
    if len({c.dtype for c in columns}) > 1:
        columns = [np.array([kind_name(v) for v in c], object) for c in columns]
    names = kinds(np.concatenate(columns)) if columns else []
    at = {value: i for i, value in enumerate(names)}
    numbered = iter([np.array([at[v] for v in c.tolist()], np.int64) for c in columns])
    numbers = [next(numbered) if name in part.names else None for part in parts]
    return numbers, tuple(map(kind_name, names))


def kinds_of_labels(parts: list[Table], name: str) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return labels as class indices, and the names of the classes.

    Classes are the different values of the labels. name: their column.
    """
    labels = [part[name] for part in parts]
    for part, values in zip(parts, labels, strict=True):
        refuse_gaps(part, name, "each example needs a label")
        if values.dtype == object:
            continue
        broken = np.flatnonzero(values != np.round(values))
        if len(broken):
            raise DataError(
                f"{part.where}: column {name!r}: value {values[broken[0]]:g} in row "
                f"{broken[0] + 1}; labels are words or whole numbers: name another column in "
                f"columns.label, or predict the number: columns.target = {name!r}"
            )
    if len({values.dtype for values in labels}) > 1:
        raise DataError(
            f"{parts[1].where}: column {name!r} holds other labels than "
            f"{parts[0].where}: numbers in one, words in the other; write them alike"
        )
    classes = kinds(np.concatenate(labels))
    at = {value: i for i, value in enumerate(classes)}
    y = [np.array([at[v] for v in values.tolist()], np.int64) for values in labels]
    return y, tuple(map(kind_name, classes))


def whole_labels(
    parts: list[Table], role: Roles, classes: list[str] | None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return labels that are class indices already, and the names of the classes."""
    name = role.label
    where = [f"{part.where}: {name}" for part in parts]
    y = [check.labels(p[name], p.n, w) for p, w in zip(parts, where, strict=True)]
    return y, (role.task or Classification()).output_names(classes, y, where)


def numeric(part: Table, where: str, role: Roles, task: Task) -> np.ndarray:
    """Return labels that are numbers, as the task has them."""
    for name in role.labels:
        refuse_gaps(part, name, "each example needs its label")
        if part[name].dtype == object:
            raise DataError(
                f"{part.where}: column {name!r} holds words, but {task.labels} are numbers; name "
                f"another column"
            )
    return task.check(np.stack([part[name] for name in role.labels], 1), part.n, where)


def positive_last(
    where: str, y: list[np.ndarray], names: tuple[str, ...], positive: str
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return labels and names of two classes, with the positive one as the second."""
    if len(names) != 2 or positive not in names:
        raise DataError(
            f"{where}: columns.positive = {positive!r} is one of two labels, but the labels are "
            f"{join_few(names, FEW)}"
        )
    if positive == names[1]:
        return y, names
    return [1 - labels for labels in y], names[::-1]


def held_out(
    where: str, y: np.ndarray, users: np.ndarray | None, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the training and of the test part, each label in proportion.

    y: [n], labels, or other groups (`strata`).
    If there are clients, each label of each client is in proportion.
    """
    C = int(y.max()) + 1
    groups = y if users is None else np.unique(users * C + y, return_inverse=True)[1]
    size = int(share * len(y) + 1e-9)
    if not size:
        raise DataError(
            f"{where}: {len(y)} examples are too few to hold out a test split; store one"
        )
    test = take(groups, apportion(size, np.bincount(groups)), stream(0, "hold-out"))
    return np.setdiff1d(np.arange(len(y)), test), test


def encode(
    parts: list[Table], role: Roles, how: Reading, notes: list[str], described: dict[str, str]
) -> tuple[list[np.ndarray], tuple[float, ...], tuple[float, ...]]:
    """Return the inputs of both parts, and mean and deviation of each feature.

    The inputs are [n, features], float32. All statistics come from the first part. A feature of 0
    and 1 has mean 0 and deviation 1, so that normalisation leaves it unchanged.
    described: gets a line about each input by its name.
    """
    features: list[tuple[np.ndarray, ...]] = []
    still: list[bool] = []
    fresh: dict[str, int] = {}
    for name in role.inputs:
        one, two = (part[name] for part in parts)
        wordy = one.dtype == object or two.dtype == object
        if wordy and one.dtype != two.dtype:
            one, two = (
                np.array(
                    [None if g else kind_name(v) for v, g in zip(c, gaps(c), strict=True)], object
                )
                for c in (one, two)
            )
        if gaps(one).all():
            raise DataError(
                f"{parts[0].where}: column {name!r} has no value in the training part; name it in "
                f"columns.ignore"
            )
        filled = int(gaps(one).sum() + gaps(two).sum())
        ending = f", {count_noun(filled, 'value')} filled in" if filled else ""
        if not wordy and name not in (*how.columns.one_hot, *how.columns.codes):
            commas = ", decimal commas" * any(name in part.commas for part in parts)
            described[name] = f"{name}: number{commas}{ending}"
            mean = one[~gaps(one)].mean()
            features.append((np.where(gaps(one), mean, one), np.where(gaps(two), mean, two)))
            still.append(False)
            continue
        values = kinds(one)
        named = name in (*how.columns.one_hot, *how.columns.codes)
        if len(values) > KINDS and not named:
            raise DataError(
                f"{parts[0].where}: column {name!r} has {len(values):,} different words (as "
                f"{values[0]!r:.40}); name it in columns.ignore, or, if these are categories, in "
                f"columns.one_hot or columns.codes, or, if they are texts, as columns.text"
            )
        form = "codes 0, 1, ..." if name in how.columns.codes else "a 0 or 1 for each"
        shown = join_few([kind_name(v) for v in values], FEW)
        described[name] = f"{name}: {len(values):,} categories as {form} ({shown}){ending}"
        at = {value: i for i, value in enumerate(values)}
        codes = [np.array([at.get(v, -1) for v in c.tolist()]) for c in (one, two)]
        if new := int((codes[1][~gaps(two)] < 0).sum()):
            fresh[name] = new
        if name in how.columns.codes:
            usual = np.bincount(codes[0][codes[0] >= 0]).argmax()
            train, second = (np.where(v < 0, usual, v).astype(float) for v in codes)
            features.append((train, second))
            still.append(False)
        else:
            features += [tuple((v == i).astype(float) for v in codes) for i in range(len(values))]
            still += [True] * len(values)
    if fresh:
        shown = join_few([f"{name} {n}" for name, n in fresh.items()], FEW)
        notes.append(
            f"{parts[1].where}: {count_noun(sum(fresh.values()), 'value')} of the test part of "
            f"categories that the training part does not have; such values count as missing "
            f"({shown})"
        )
    for part in parts:
        fits(4 * part.n * len(features), part.where)
    with np.errstate(over="ignore"):
        x = [np.stack([pair[i] for pair in features], 1).astype(np.float32) for i in (0, 1)]
    for rows, part in zip(x, parts, strict=True):
        if not np.isfinite(rows).all():
            raise DataError(f"{part.where}: values above 3.4e38 do not fit float32; scale them")
    mean, std = (np.array(v) for v in moments(x[0]))
    flags = np.array(still)
    return x, tuple(np.where(flags, 0, mean).tolist()), tuple(np.where(flags, 1, std).tolist())
