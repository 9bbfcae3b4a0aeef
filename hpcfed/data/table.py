"""Tables: named columns of numbers or words, read from CSV, Parquet and Arrow.

CSV is read by Python's own `csv`, so that it needs no other package. Parquet is read by pyarrow,
which runs no code from the file: an extra, `hpcfed[tables]`. Both can be read a part at a time.
"""

from __future__ import annotations

import csv
import re
import sys
from codecs import lookup
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hpcfed.core.errors import DataError, unknown
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.paths import only_regular
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data.dataset import Reading
from hpcfed.data.sampling import even_parts
from hpcfed.data.user_arrays import fits, readable

ADVICE = "write it again, or check its path"
DELIMITERS = ",;\t|"
COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+\.\d+")  # a number in groups of thousands
GROUPS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # may also be a number in groups of thousands
# dates, perhaps with a time and a zone, as ISO 8601 writes them
CLOCK = r"[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"
DATE = re.compile(rf"\d{{4}}-\d\d-\d\d({CLOCK})?")
DAY = 86_400.0  # seconds
EXACT = 2**53  # from here on, floating point skips whole numbers
FEW = 8  # maximum columns or values in a message
VALUE = 16  # bytes that a value of a column takes while it is read, and as a number afterwards
CELL = 2**24  # maximum characters of one value of a CSV file
LABELS = ("label", "labels", "target", "class", "y")  # names that a column of labels may have
UNNAMED = "Unnamed: 0"  # the row numbers that pandas writes

Test = Callable[[str], bool]  # of the name of a column


def named_as_labels(names: Sequence[str]) -> list[str]:
    """Return those of the columns that hold the labels if the job names no column of them."""
    return [name for name in names if name.lower() in LABELS]


def neither(name: str) -> bool:
    """Return False: no column is known to hold words."""
    return False


@dataclass(frozen=True)
class Table:
    """A table of n rows.

    where: the beginning of messages.
    columns: by name, [n], float64 with nan for missing values, or str objects with None.
    odd: columns of other types, such as durations, with the type; they are refused if used.
    commas: names of columns of numbers that were written with decimal commas.
    dates: names of columns of dates, which are numbers: days since 1970-01-01.
    start: number of rows before these in the file, for messages.
    chosen: [n], positions of these rows among those from `start` on; None: all, in their order.
    """

    where: str  # opens messages
    columns: Mapping[str, np.ndarray]
    n: int
    odd: Mapping[str, str] = field(default_factory=dict)
    commas: frozenset[str] = frozenset()
    dates: frozenset[str] = frozenset()
    start: int = 0
    chosen: np.ndarray | None = None

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
        chosen = rows if self.chosen is None else self.chosen[rows]
        return replace(
            self, columns=columns, n=len(next(iter(columns.values()), rows)), chosen=chosen
        )

    def number(self, row: int) -> int:
        """Return the number of a row in the file, from 1."""
        return self.start + 1 + int(row if self.chosen is None else self.chosen[row])


def read_table(path: Path, how: Reading, words: Test = neither) -> Table:
    """Return the columns of a .csv or .parquet file; raises DataError. words: as in `read_csv`."""
    with readable(path, ADVICE):
        if path.suffix == ".csv":
            return read_csv(path, how, words)
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


def read_csv(path: Path, how: Reading, words: Test = neither) -> Table:
    """Return the columns of a CSV file whose first row holds their names.

    words: whether the values of a column are words, although they may look like numbers.
    """
    with open_text(path, how.columns.encoding) as file:
        [table] = parse_csv(file, str(path), how, words)
    return table


def parse_csv(
    file: TextIO,
    where: str,
    how: Reading,
    words: Test = neither,
    commas: Collection[str] = (),
    size: int | None = None,
) -> Iterator[Table]:
    """Yield the rows of a CSV file, in tables of up to this size; None: all in one.

    The tables are as equal as possible, for which the rows are counted first.
    where: opens messages.  words: as in `read_csv`.  commas: columns that have decimal commas.
    """
    csv.field_size_limit(CELL)
    line = file.readline()
    file.seek(0)
    lines = csv.reader(file, delimiter=max(DELIMITERS, key=line.count))
    names = [name.strip() for name in next(lines, [])]
    if names and not names[0]:
        names[0] = UNNAMED
    check_names(where, names)
    role = how.columns
    is_stated = role.label or role.target or role.labels  # the last two are numbers
    labels = {role.label} if is_stated else set(named_as_labels(names))
    no_dates = {*labels, role.client, role.test, role.text, *role.one_hot}
    start, rows = 0, full_rows(lines, where, len(names))
    sizes: list[int | None] = [None]
    if size:
        sizes = [len(part) for part in even_parts(sum(1 for _ in rows), size)]
        file.seek(0)
        next(lines)
        rows = full_rows(lines, where, len(names))
    for part in filter(None, (list(islice(rows, size)) for size in sizes)):
        columns, with_commas, dates = {}, set(), set()
        for name, values in zip(names, zip(*part, strict=True), strict=True):
            if name == UNNAMED:
                continue
            columns[name], decimal = to_column(
                values, how.missing_words, words(name), name in commas
            )
            with_commas |= {name} if decimal else set()
            if not words(name) and name not in no_dates:
                days = to_days(columns[name])
                if days is not None:
                    columns[name] = days
                    dates.add(name)
                columns[name] = flags(columns[name])
        yield Table(
            where,
            columns,
            len(part),
            commas=frozenset(with_commas),
            dates=frozenset(dates),
            start=start,
        )
        start += len(part)
    if not start:
        raise DataError(f"{where}: holds no rows; {ADVICE}")


def full_rows(lines: Any, where: str, width: int) -> Iterator[list[str]]:
    """Yield the rows of a csv reader that are not empty; raises DataError for another width."""
    for row in filter(None, lines):
        if len(row) != width:
            raise DataError(
                f"{where}: line {lines.line_num} has {count_noun(len(row), 'value')}, but the "
                f"first line names {count_noun(width, 'column')}; fix that line"
            )
        yield row


def check_names(where: str, names: Sequence[str]) -> None:
    """Raise DataError for a first row with no names, or with equal ones."""
    if not names:
        raise DataError(f"{where}: is empty; {ADVICE}")
    if all(is_number(name) for name in names):
        raise DataError(
            f"{where}: the first line holds numbers ({join_few(names, FEW)}); write the names of "
            f"the columns above them"
        )
    earlier = set[str]()
    for i, name in enumerate(names):
        if not name or name in earlier:
            why = f"{name!r}, as an earlier one" if name else "nothing"
            raise DataError(f"{where}: column {i + 1} is called {why}; give each its own name")
        earlier.add(name)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_column(
    values: Sequence[str], missing: Collection[str], words: bool = False, commas: bool = False
) -> tuple[np.ndarray, bool]:
    """Return the values of a column as numbers, float64, if all that are present are numbers.

    Otherwise, and for whole numbers of so many digits that some would become equal, returns str
    objects, with None for missing values. The second value is whether the numbers have decimal
    commas.
    missing: the words that stand for missing values, in lower case.
    words: return words in any case.  commas: commas are decimal commas, if there are any.
    """
    stripped = [value.strip() for value in values]
    gaps = np.array([value.lower() in missing for value in stripped])
    numbers = ["nan" if gap else v for v, gap in zip(stripped, gaps, strict=True)]
    commas = commas or decimal_commas(numbers)
    try:
        if words:
            raise ValueError
        points = [v.replace(",", ".") for v in numbers] if commas else numbers
        column = np.array(points).astype(np.float64)
        if not (np.abs(column) >= EXACT).any() or not are_whole(points, gaps):
            return column, commas
        raise ValueError
    except ValueError:
        texts = np.array(stripped, object)
        texts[gaps] = None
        return texts, False


def are_whole(values: Sequence[str], gaps: np.ndarray) -> bool:
    """Return whether all values are written as whole numbers, without point or exponent."""
    return all(v.lstrip("+-").isdigit() for v, gap in zip(values, gaps, strict=True) if not gap)


def to_days(values: np.ndarray) -> np.ndarray | None:
    """Return a column of dates as days since 1970-01-01, nan for missing ones.

    Returns None for a column that holds anything but dates of the form 2020-12-31, which may have a
    time and a zone.
    """
    present = [i for i, v in enumerate(values) if v is not None] if values.dtype == object else []
    if not present or not all(DATE.fullmatch(values[i]) for i in present):
        return None
    days = np.full(len(values), np.nan)
    try:
        for i in present:
            when = datetime.fromisoformat(values[i])
            zone = when if when.tzinfo else when.replace(tzinfo=UTC)
            days[i] = zone.timestamp() / DAY
    except ValueError:  # such as February 30
        return None
    return days


def flags(values: np.ndarray) -> np.ndarray:
    """Return a column of nothing but true and false as 1 and 0, as Parquet has it; others as is."""
    present = [v for v in values if v is not None] if values.dtype == object else []
    if not present or not {v.lower() for v in present} <= {"true", "false"}:
        return values
    return np.array([np.nan if v is None else float(v.lower() == "true") for v in values])


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


def parquet_parts(path: Path, missing: Collection[str], size: int) -> Iterator[Table]:
    """Yield the rows of a Parquet file, in tables of up to this size, as equal as possible.

    missing: as in `to_column`.
    """
    parquet = import_extra("pyarrow.parquet", "tables", str(path))
    arrow = import_extra("pyarrow", "tables", str(path))
    with open(path, "rb", opener=only_regular) as raw, parquet.ParquetFile(raw) as file:
        parts, batches = even_parts(file.metadata.num_rows, size), file.iter_batches()
        waiting: list[Any] = []
        for rows in parts:
            while sum(map(len, waiting)) < len(rows):
                waiting.append(next(batches))
            joined = arrow.Table.from_batches(waiting)
            part = from_arrow(joined.slice(0, len(rows)), str(path), missing)
            yield replace(part, start=int(rows[0]))
            waiting = joined.slice(len(rows)).to_batches()
        if not parts:
            raise DataError(f"{path}: holds no rows; {ADVICE}")


def from_arrow(table: Any, where: str, missing: Collection[str]) -> Table:
    """Return a table of pyarrow, or a batch, as a `Table`: numbers, truth values and words.

    Dates and times become days since 1970-01-01. Other types are odd.  missing: as in `to_column`.
    """
    import pyarrow as pa

    columns, odd, dates = {}, {}, set()
    for name, column in zip(table.schema.names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            column = column.cast(kind)
        if name.startswith("__index_level_"):
            continue  # the row numbers that pandas writes
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers = to_numpy(column.cast(pa.float64(), safe=False))
            if pa.types.is_integer(kind) and (np.abs(numbers) >= EXACT).any():
                words = [None if number is None else str(number) for number in column.to_pylist()]
                columns[name] = np.array(words, object)
            else:
                columns[name] = numbers
        elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            when = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
            columns[name] = to_numpy(when.cast(pa.int64()).cast(pa.float64(), safe=False))
            columns[name] /= DAY * 1e6
            dates.add(name)
        elif pa.types.is_decimal(kind):
            columns[name] = to_numpy(column.cast(pa.float64()))
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
    return Table(where, columns, table.num_rows, odd, dates=frozenset(dates))


def to_numpy(numbers: Any) -> np.ndarray:
    """Return a column of pyarrow as float64, with nan for missing values."""
    return np.array(numbers.to_numpy(zero_copy_only=False), np.float64)


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas, which is not imported for that."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_other_frame(value: Any) -> bool:
    """Return whether a value is a table of polars, pyarrow or another library, but not of pandas.

    It is recognised by the protocols through which such libraries exchange tables.
    """
    named = hasattr(value, "columns") or hasattr(value, "column_names")
    offers = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")
    return named and offers and not is_frame(value) and not isinstance(value, type)


def to_pandas(value: Any, where: str) -> Any:
    """Return a table of another library as a DataFrame of pandas. where: opens messages."""
    what = f"{where}: a {type(value).__name__}"
    pandas = import_extra("pandas", "export", what)
    if hasattr(value, "__arrow_c_stream__"):
        return import_extra("pyarrow", "export", what).table(value).to_pandas()
    return pandas.api.interchange.from_dataframe(value)


def check_columns(table: Table, what: str, *names: str) -> None:
    """Raise DataError for a name that is not a column of the table.

    what: the field that gives the name.
    """
    columns = set(table.names)
    for name in names:
        if name not in columns:
            raise DataError(
                f"{table.where}: columns.{what}: {unknown('column', name, table.names)}"
            )


def first_word(values: np.ndarray) -> list[int]:
    """Return the row of the first value that is a word and no number; [] if there is none."""
    rows = (i for i, v in enumerate(values) if isinstance(v, str) and not is_number(v))
    return [row for row in [next(rows, None)] if row is not None]


def looks_like_number(text: str) -> bool:
    return is_number(text) or any(form.fullmatch(text) for form in (COMMA, THOUSANDS))


def gaps(values: np.ndarray) -> np.ndarray:
    """Return where values are missing, [n], bool."""
    return np.array([v is None for v in values]) if values.dtype == object else np.isnan(values)


def kind_name(value: Any) -> str:
    """Return a value as text: words unchanged, whole numbers without a decimal point."""
    if value is None or isinstance(value, str):
        return str(value)
    return str(int(value)) if abs(value) < EXACT and value == int(value) else f"{value:.12g}"


def kinds(values: np.ndarray) -> list[Any]:
    """Return the different values that occur, in order."""
    return sorted(set(values[~gaps(values)].tolist()))
