"""Input columns of a table: what is learned of them from the training part, and their encoding."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from hpcfed.config.sections import Columns
from hpcfed.core.encoder import Column
from hpcfed.core.errors import DataError
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data.table import FEW, Table, first_word, gaps, is_number, kind_name, kinds
from hpcfed.data.user_arrays import fits

UNIT = "days since 1970-01-01"  # of dates
# dates that are not written as 2020-12-31
OTHER_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}")
KINDS = 100  # maximum categories of a column of words that the job does not name; more are texts


def learn(name: str, parts: Sequence[Table], roles: Columns) -> Column:
    """Return what the column becomes, from the first part, which is the training part.

    If the column holds words in one of the parts, its values are words in all of them.
    Raises DataError for a column without values, and for one of too many different words.
    """
    values, where = parts[0][name], parts[0].where
    present = values[~gaps(values)]
    if not len(present):
        raise DataError(
            f"{where}: column {name!r} has no value in the training part; name it in columns.ignore"
        )
    named = name in roles.one_hot
    words = any(part[name].dtype == object for part in parts)
    if not (named or words):
        commas = any(name in part.commas for part in parts)
        return Column(name, fill=float(present.mean()), commas=commas)
    if words and present.dtype != object:
        present = np.array([kind_name(value) for value in present], object)
    categories = kinds(present)
    if len(categories) > KINDS and not named:
        raise DataError(
            f"{where}: column {name!r} has {len(categories):,} different words (as "
            f"{categories[0]!r:.40}); name it in columns.ignore, or, if these are categories, in "
            f"columns.one_hot, or, if they are texts, as columns.text"
            + "; write dates as 2020-12-31"
            * bool(OTHER_DATE.match(str(categories[0])))
        )
    return Column(name, tuple(categories))


def describe(column: Column, parts: Sequence[Table]) -> str:
    """Return what a column is, for the lines of a run about its data."""
    filled = sum(int(gaps(part[column.name]).sum()) for part in parts)
    ending = f", {count_noun(filled, 'value')} filled in" if filled else ""
    if not column.categories:
        dated = any(column.name in part.dates for part in parts)
        unit = f", {UNIT}" if dated else ", decimal commas" if column.commas else ""
        return f"{column.name}: number{unit}{ending}"
    shown = join_few([kind_name(value) for value in column.categories], FEW)
    n = len(column.categories)
    return f"{column.name}: {n:,} categories as a 0 or 1 for each ({shown}){ending}"


def positions(values: np.ndarray, column: Column) -> np.ndarray:
    """Return the position of each value among the categories, [n]; -1 for one that is none."""
    at = {category: i for i, category in enumerate(column.categories)}
    if column.words and values.dtype != object:
        present = zip(values, gaps(values), strict=True)
        values = np.array([None if gap else kind_name(value) for value, gap in present], object)
    elif not column.words and values.dtype == object:
        numbers = [float(v) if v is not None and is_number(v) else np.nan for v in values]
        values = np.array(numbers)
    return np.array([at.get(value, -1) for value in values.tolist()], np.int64)


def unseen(table: Table, column: Column) -> np.ndarray:
    """Return the rows whose value is present, and no category of the column."""
    if not column.categories:
        return np.zeros(0, np.int64)
    values = table[column.name]
    return np.flatnonzero((positions(values, column) < 0) & ~gaps(values))


def encode(table: Table, columns: Sequence[Column]) -> np.ndarray:
    """Return the inputs of these rows, [n, features], float32.

    A missing number becomes what fills the column; a missing category, and one that the column has
    not, becomes zeros.
    Raises DataError with row and column for a word in a column of numbers, and for a number that is
    not finite or too large.
    """
    width = sum(column.width for column in columns)
    fits(4 * table.n * width, table.where)
    x, at = np.empty((table.n, width), np.float32), 0
    for column in columns:
        if column.categories:
            place = positions(table[column.name], column)
            x[:, at : at + column.width] = place[:, None] == np.arange(column.width)
        else:
            x[:, at] = numbers(table, column)
        at += column.width
    return x


def numbers(table: Table, column: Column) -> np.ndarray:
    """Return a column of numbers, [n], float32, with its gaps filled in; raises DataError."""
    values = table[column.name]
    for row in first_word(values) if values.dtype == object else ():
        raise DataError(
            f"{table.where}: column {column.name!r}: {values[row]!r:.40} in row "
            f"{table.number(row)} is not a number; fix it"
        )
    numeric = values.astype(np.float64)  # of objects None becomes nan
    with np.errstate(over="ignore"):
        filled = np.where(np.isnan(numeric), column.fill, numeric).astype(np.float32)
    for row in np.flatnonzero(~np.isfinite(filled))[:1]:
        raise DataError(
            f"{table.where}: column {column.name!r}: value {numeric[row]:g} in row "
            f"{table.number(row)}; numbers are finite, and at most 3.4e38: fix or scale it"
        )
    return filled
