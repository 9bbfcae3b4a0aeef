"""Data sets from tables, with examples as rows, in CSV, Parquet and other files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.encoder import Column, Encoder, are_integers
from hpcfed.core.errors import ConfigError, DataError, unknown
from hpcfed.core.rng import stream
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data import check
from hpcfed.data.columns import UNIT, describe, encode, learn, unseen
from hpcfed.data.dataset import COLUMNS, DataSet, Reading, Split
from hpcfed.data.moments import moments
from hpcfed.data.sampling import apportion, take
from hpcfed.data.table import (
    FEW,
    Table,
    check_columns,
    first_word,
    gaps,
    kind_name,
    kinds,
    looks_like_number,
    named_as_labels,
    read_table,
)
from hpcfed.data.text import encode as encode_texts
from hpcfed.data.user_arrays import add_path_to_errors
from hpcfed.tasks import TASKS, Task, infer, make
from hpcfed.tasks.binary import Binary
from hpcfed.tasks.classification import Classification

GROUPS_AT_MOST = 20  # by which metrics are computed
TESTS = {"test": True, "true": True, "1": True, "train": False, "false": False, "0": False}
ROLES = tuple({name: "" for entry in TASKS.values() for name in entry.load().columns})


def read(path: Path, how: Reading) -> DataSet:
    """Read the data set in a .csv or .parquet file, with its test rows in a second file if given.

    The files are data.name and data.test_file. The first row of a CSV file names the columns, which
    are separated by commas, semicolons, tabs or |. The job's `columns` gives the roles of columns;
    all columns without a role are inputs. Numbers are standardised by the training part (its mean
    and deviation become those of the data set). A categorical column becomes a 0 or 1 for each
    category of the training part. Labels may be words or numbers:
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
    train = read_table(path, how)
    words = {name for name, values in train.columns.items() if values.dtype == object}
    test = read_table(how.test_file, how, words.__contains__) if how.test_file else None
    return to_dataset(path.stem, train, test, how)


def label_column(table: Table, wanted: str) -> str:
    """Return the name of the column of labels; raises DataError if there is none."""
    if wanted:
        check_columns(table, "label", wanted)
        return wanted
    candidates = named_as_labels(table.names)
    if len(candidates) == 1:
        return candidates[0]
    why = f"columns {join_few(candidates, FEW)} could" if candidates else "no column seems to"
    raise DataError(
        f"{table.where}: {why} hold the labels; name it: columns.label = one of "
        f"{join_few(table.names, 30)}"
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
        check_columns(table, name, *names)
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
            check_columns(table, what, name)
    for what in ("inputs", "ignore", "one_hot"):
        check_columns(table, what, *getattr(c, what))
    apart = {*labels, c.client, c.test, *c.ignore} - {""}
    inputs = (c.text,) if c.text else c.inputs or tuple(n for n in table.names if n not in apart)
    if wrong := [name for name in inputs if name in apart - {c.client}]:
        raise DataError(
            f"{table.where}: column {wrong[0]!r} is an input in columns, and label, target, event, "
            f"test or ignored too; leave it out of one"
        )
    if not inputs:
        raise DataError(f"{table.where}: no column is left for the inputs; there is {table.names}")
    for name in c.one_hot:
        if name not in inputs or c.text:
            raise DataError(
                f"{table.where}: columns.one_hot names {name!r}, which is not an input of "
                f"categories; leave it out"
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
    classes: names of the classes in their order: of labels 0..C-1, or the words that labels are.
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
    if how.domains and role.client:
        parts = of_domains(parts, role.client, how.domains)
    parts = [without_gaps(part, role, how, notes) for part in parts]
    y, names, task = labels(parts, role, how, classes, numbered)
    users, user_names = clients(parts, role.client)
    separate_tests = all(ids is not None for ids in users)
    if test is None:
        rows = held_out(parts[0].where, task.strata(y[0]), users[0], how.held_out)
        parts, y = [parts[0].take(r) for r in rows], [y[0][r] for r in rows]
        users = [None if users[0] is None else users[0][r] for r in rows]
    encoder = Encoder(
        missing_words=tuple(sorted(how.missing_words)),
        encoding=how.columns.encoding,
        labels=tuple(role.labels),
        integer_labels=have_integer_labels(parts, role, task, classes, names),
    )
    mean, std = tuple[float, ...](), tuple[float, ...]()
    if how.columns.text:
        texts = [words(part, how.columns.text) for part in parts]
        splits = [Split(*three) for three in zip(texts, y, users, strict=True)]
        with add_path_to_errors(Path(train.where)):
            (one, two), tokens = encode_texts(splits, how.text)
        encoder = replace(encoder, text=how.columns.text, tokens=tokens)
    else:
        columns = tuple(learn(name, parts, how.columns) for name in role.inputs)
        described |= {column.name: describe(column, parts) for column in columns}
        notes += [*new_categories(parts[1], columns), *coarse(parts[0], columns)]
        if dated := [name for name in role.inputs if any(name in part.dates for part in parts)]:
            notes.append(f"{train.where}: dates become {UNIT}: {join_few(dated, FEW)}")
        x = [encode(part, columns) for part in parts]
        mean, std = normalisation(x[0], columns)
        encoder = replace(encoder, columns=columns, fills=how.columns.missing == "fill")
        one, two = (Split(a, b, c) for a, b, c in zip(x, y, users, strict=True))
    facts: Any = {
        "task": task,
        "own_tests": separate_tests,
        "notes": tuple(notes),
        "columns": tuple(described[column] for column in order),
        "encoder": encoder,
    }
    facts["user_names"] = user_names
    if how.groups:
        facts["groups"], facts["group_names"] = groups(parts[1], how.groups)
    return DataSet(name, one, two, names, mean, std, encoder.vocabulary, **facts)


def check_numbers(tables: Sequence[Table], role: Roles, how: Reading) -> None:
    """Raise DataError for a word in a column of numbers.

    These are inputs most of whose values are numbers, unless the job names them as categories, and
    labels that are not classes.
    """
    categories = {*how.columns.one_hot, how.columns.text}
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
        place = f"{table[name][row]!r:.40} in row {table.number(row)}"
        wrong = f"column {name!r}: {place} is not a number"
        if name in times:
            assert role.task is not None  # its labels are numbers
            raise DataError(f"{table.where}: {wrong}, as {role.task.labels} need")
        raise DataError(
            f"{table.where}: {wrong}, though {like:,} of {len(present):,} values look like "
            f"numbers; fix it (a number has a decimal point, or in all rows a decimal comma, and "
            f"no other mark), leave it empty, or name the column in columns.one_hot if it holds "
            f"categories"
        )


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
    words = any(part[role.label].dtype == object for part in parts)
    if numbered or (classes and not words):
        y, names = whole_labels(parts, role, classes)
    else:
        y, names = kinds_of_labels(parts, role.label, classes)
    if how.columns.positive:
        return *positive_last(parts[0].where, y, names, how.columns.positive), Binary()
    task = role.task or Classification()
    task.check_outputs(len(names), parts[0].where)
    return y, names, task


def have_integer_labels(
    parts: Sequence[Table],
    role: Roles,
    task: Task,
    classes: Sequence[str] | None,
    names: Sequence[str],
) -> bool:
    """Return whether labels are integers that stand for classes without other names.

    classes: as in `to_dataset`.  names: of the classes.
    """
    numbers = all(part[role.label].dtype != object for part in parts)
    return task.has_classes and not classes and numbers and are_integers(names)


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
                f"{table.where}: columns.test: {name!r} is {value!r:.40} in row "
                f"{table.number(row)}; it may be {', '.join(TESTS)}"
            )
    tests = np.array([TESTS[value] for value in marks])
    if tests.all() or not tests.any():
        raise DataError(
            f"{table.where}: columns.test: {name!r} says {marks[0]} of all rows; leave "
            f"columns.test away, and a share is held out"
        )
    return table.take(np.flatnonzero(~tests)), table.take(np.flatnonzero(tests))


def refuse_gaps(table: Table, name: str, what_to_do: str) -> None:
    """Raise DataError if a column has gaps; the message names the first and what to do."""
    rows = np.flatnonzero(gaps(table[name]))
    if len(rows):
        raise DataError(
            f"{table.where}: column {name!r} has no value in row {table.number(rows[0])}; "
            f"{what_to_do}"
        )


def without_gaps(table: Table, role: Roles, how: Reading, notes: list[str]) -> Table:
    """Return the table, without the rows that have gaps if these are to be dropped.

    Raises DataError for gaps if they are to be refused, for infinite values, and, unless their
    rows are dropped, for gaps in the columns of labels and clients, which nothing can fill.
    """
    check_columns(table, "inputs", *role.labels, *role.inputs)
    columns = set(table.names)
    used = [name for name in role.used if name in columns]
    for name in used:
        if table[name].dtype != object and np.isinf(table[name]).any():
            row = int(np.flatnonzero(np.isinf(table[name]))[0])
            raise DataError(
                f"{table.where}: column {name!r}: value {table[name][row]} in row "
                f"{table.number(row)}; numbers are finite: fix it, or leave it empty"
            )
    missing = {name: gaps(table[name]) for name in used if name != how.columns.text}
    number = {name: int(gone.sum()) for name, gone in missing.items() if gone.any()}
    if not number:
        return table
    shown = join_few([f"{name} {n}" for name, n in number.items()], FEW)
    total = count_noun(sum(number.values()), "value")
    if how.columns.missing != "drop":
        dropped = count_noun(int(np.any(list(missing.values()), axis=0).sum()), "row")
        for name in filter(number.get, (*role.labels, role.client)):
            refuse_gaps(
                table,
                name,
                f"labels and clients are not filled in: remove the "
                f"{count_noun(number[name], 'row')}, or set columns.missing = 'drop', which leaves "
                f"out the {dropped} in which a used column lacks one; if a word counts as missing "
                f"that is none, leave it out of columns.missing_words",
            )
    if how.columns.missing == "refuse":
        row = min(int(np.flatnonzero(missing[name])[0]) for name in number)
        raise DataError(
            f"{table.where}: {total} missing, the first in row {table.number(row)} ({shown}); set "
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
    filled = sorted({filling(table[name], name, how) for name in number})
    notes.append(
        f"{table.where}: {total} missing ({shown}), filled in from the training part with "
        f"{' or '.join(filled)}"
    )
    return table


def filling(values: np.ndarray, name: str, how: Reading) -> str:
    """Return, in words, the value that fills a column's gaps."""
    kinds = name in how.columns.one_hot or values.dtype == object
    return "all zeros" if kinds else "the mean"


def of_domains(parts: list[Table], name: str, domains: Collection[str]) -> list[Table]:
    """Return the rows of these natural clients alone: others do not shape what columns become.

    name: the column of clients.  Raises ConfigError for a client that no row has.
    """
    whose = [
        np.array([kind_name(value) for value in part[name]], object) if name in part.names else None
        for part in parts
    ]
    client_names = sorted({client for column in whose if column is not None for client in column})
    for domain in domains:
        if domain not in client_names:
            raise ConfigError(f"data.domains: {unknown('natural client', domain, client_names)}")
    return [
        part if column is None else part.take(np.flatnonzero(np.isin(column, list(domains))))
        for part, column in zip(parts, whose, strict=True)
    ]


def clients(parts: list[Table], name: str) -> tuple[list[np.ndarray | None], tuple[str, ...]]:
    """Return clients' numbers in each part, [n], from 0 in the order of their values; their names.

    Numbers are consistent in all parts. The result is None for a part without that column.
    name: the column; "" for none.
    """
    whose = [part for part in parts if name in part.names]
    for part in whose:
        refuse_gaps(part, name, "name the client of each example, or leave the row out")
    columns = [part[name] for part in whose]
    if len({c.dtype for c in columns}) > 1:
        columns = [np.array([kind_name(v) for v in c], object) for c in columns]
    names = kinds(np.concatenate(columns)) if columns else []
    at = {value: i for i, value in enumerate(names)}
    numbered = iter([np.array([at[v] for v in c.tolist()], np.int64) for c in columns])
    numbers = [next(numbered) if name in part.names else None for part in parts]
    return numbers, tuple(map(kind_name, names))


def groups(table: Table, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the group of each row, [n], and the names of the groups in order.

    Rows without a value are a group of their own, the last one.
    """
    if name not in table.names:
        raise DataError(f"{table.where}: evaluate.groups: {unknown('column', name, table.names)}")
    values, missing = table[name], gaps(table[name])
    categories = kinds(values)
    if len(categories) > GROUPS_AT_MOST:
        raise DataError(
            f"{table.where}: evaluate.groups: column {name!r} has {len(categories):,} different "
            f"values, but groups are at most {GROUPS_AT_MOST}; name a column of categories, or add "
            f"one, such as age in decades"
        )
    at = {value: i for i, value in enumerate(categories)}
    numbers = [len(at) if gap else at[v] for v, gap in zip(values.tolist(), missing, strict=True)]
    names = tuple(map(kind_name, categories))
    return np.array(numbers, np.int64), (*names, "no value") if missing.any() else names


def kinds_of_labels(
    parts: list[Table], name: str, order: Sequence[str] | None = None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return labels as class indices, and the names of the classes.

    Classes are the different values of the labels, in their order.
    name: the labels' column.  order: the classes, if the file says which words they are, and their
    order.
    """
    labels = [part[name] for part in parts]
    for part, values in zip(parts, labels, strict=True):
        refuse_gaps(part, name, "give each example a label, or leave the row out")
        if values.dtype == object:
            continue
        broken = np.flatnonzero(values != np.round(values))
        if len(broken):
            raise DataError(
                f"{part.where}: column {name!r}: value {values[broken[0]]:g} in row "
                f"{part.number(broken[0])}; labels are words or whole numbers: name another column "
                f"in columns.label, or predict the number: columns.target = {name!r}"
            )
    if len({values.dtype for values in labels}) > 1:
        raise DataError(
            f"{parts[1].where}: column {name!r} holds other labels than "
            f"{parts[0].where}: numbers in one, words in the other; write them alike"
        )
    if len(parts) > 1 and not set(labels[0].tolist()) & set(labels[1].tolist()):
        raise DataError(
            f"{parts[1].where}: column {name!r} holds none of the labels of {parts[0].where}, but "
            f"{join_few([kind_name(v) for v in kinds(labels[1])], FEW)}; write them alike"
        )
    classes = kinds(np.concatenate(labels)) if order is None else list(order)
    at = {value: i for i, value in enumerate(classes)}
    for part, values in zip(parts, labels, strict=True):
        for row in [i for i, value in enumerate(values.tolist()) if value not in at][:1]:
            raise DataError(
                f"{part.where}: column {name!r}: label {values[row]!r:.40} in row "
                f"{part.number(row)}; the classes are {join_few(classes, 20)}"
            )
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
        refuse_gaps(part, name, "give each example its label, or leave the row out")
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
    users: [n], clients. Each client and each of its labels is in proportion, up to one example;
    which have one more is drawn. A client keeps at least one example for training.
    """
    size = int(share * len(y) + 1e-9)
    if not size:
        raise DataError(
            f"{where}: {len(y)} examples are too few to hold out a test split; store one"
        )
    g = stream(0, "hold-out")
    if users is None:
        test = take(y, apportion(size, np.bincount(y)), g)
    else:
        test = hold_out_of_clients(y, users, size, g)
    return np.setdiff1d(np.arange(len(y)), test), test


def hold_out_of_clients(
    y: np.ndarray, users: np.ndarray, size: int, g: np.random.Generator
) -> np.ndarray:
    """Return the rows of a test part of about this size, by systematic sampling.

    The examples of a client stand side by side, by label, and of them each (n / size)th is taken:
    as many of each client and label as its share, rounded up or down.
    """
    groups = np.unique(users * (int(y.max()) + 1) + y, return_inverse=True)[1]
    # labels in an order of each client's own, or all clients would leave out the same ones
    order = np.lexsort((g.random(len(y)), g.random(len(y))[groups], users))
    places = np.arange(len(y) + 1) * size + g.integers(len(y))
    test = order[np.diff(places // len(y)) > 0]
    examples, tests = (
        np.bincount(users[rows], minlength=users.max() + 1) for rows in (order, test)
    )
    first_rows = np.unique(users[test], return_index=True)[1]
    return np.delete(test, first_rows[(examples == tests)[users[test[first_rows]]]])


def new_categories(part: Table, columns: Sequence[Column]) -> list[str]:
    """Return a note if the test part has categories that the training part has not."""
    number = {column.name: len(unseen(part, column)) for column in columns}
    number = {name: n for name, n in number.items() if n}
    if not number:
        return []
    shown = join_few([f"{name} {n}" for name, n in number.items()], FEW)
    return [
        f"{part.where}: {count_noun(sum(number.values()), 'value')} of the test part of categories "
        f"that the training part does not have; such values count as missing ({shown})"
    ]


def coarse(part: Table, columns: Sequence[Column]) -> list[str]:
    """Return a note on each column of different numbers that float32 makes equal."""
    numeric = [column.name for column in columns if not column.categories]
    differ = [name for name in numeric if np.nanmin(part[name]) < np.nanmax(part[name])]
    return [
        f"{part.where}: column {name!r}: its numbers, from {np.nanmin(part[name]):.12g} to "
        f"{np.nanmax(part[name]):.12g}, are all equal in the 7 digits that a model gets; subtract "
        f"a number from them"
        for name in differ
        if np.float32(np.nanmin(part[name])) == np.float32(np.nanmax(part[name]))
    ]


def normalisation(
    x: np.ndarray, columns: Sequence[Column]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of each feature of the training part.

    A feature of 0 and 1 has mean 0 and deviation 1, so that normalisation leaves it unchanged.
    """
    still = np.repeat([bool(c.categories) for c in columns], [c.width for c in columns])
    mean, std = (np.array(values) for values in moments(x))
    return tuple(np.where(still, 0, mean).tolist()), tuple(np.where(still, 1, std).tolist())
