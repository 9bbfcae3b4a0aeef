"""The encoder of a model's inputs: what becomes of a table's columns, of texts and of images.

A data set learns it from its training part (`hpcfed.data`). Headers of results and saved models
hold it as JSON, so that new examples become the same numbers. Mean and deviation, by which models
normalise these, are beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from hpcfed.core.errors import DamagedError
from hpcfed.core.shapes import Shapes

CHANNELS = ("auto", "first", "last")
SCALES = ("", "0..1", "0..255", "standardised")  # of images; "": another one, or not known
LONGEST = 100_000  # maximum characters of a name, a category or a token
MOST = 2**20  # maximum columns, categories of a column, and tokens
INTEGER = re.compile(r"-?[0-9]{1,18}")  # a class name that fits int64


@dataclass(frozen=True)
class Column:
    """An input column of a table.

    categories: of the training part, words or numbers, in order, each of which becomes a 0 or 1; a
    column of numbers has none.
    fill: what a missing number becomes, the mean; of categories all are 0.
    commas: whether numbers were written with decimal commas.
    """

    name: str
    categories: tuple[str, ...] | tuple[float, ...] = ()
    fill: float = 0.0
    commas: bool = False

    @property
    def width(self) -> int:
        """Number of values that the column becomes."""
        return len(self.categories) or 1

    @property
    def words(self) -> bool:
        """Whether its values are words."""
        return any(isinstance(value, str) for value in self.categories)


@dataclass(frozen=True)
class Encoder:
    """What new examples become. The default is that of arrays, which stay as they are.

    columns: those of a table that are inputs, in order.
    fills: whether missing values are filled in; otherwise they are refused.
    missing_words: words that stand for missing values.
    encoding: of the characters in CSV files.
    text: the column of texts in a table.
    labels: the columns of a table that labels are made of.
    integer_labels: whether the data's labels are integers, as which predictions give the classes;
    their names are these integers as texts.
    tokens: of texts, numbered from 2; 0 is padding and 1 any other token.
    scaled: whether images of other sizes are scaled.
    channels: which axis of arrays of images has the channels: first, last, or auto.
    scale: that of the training images as models get them, one of SCALES.
    """

    columns: tuple[Column, ...] = ()
    fills: bool = False
    missing_words: tuple[str, ...] = ()
    encoding: str = "utf-8"
    text: str = ""
    labels: tuple[str, ...] = ()
    integer_labels: bool = False
    tokens: tuple[str, ...] = ()
    scaled: bool = False
    channels: str = CHANNELS[0]
    scale: str = SCALES[0]

    @property
    def vocabulary(self) -> int:
        """Number of different tokens of texts, padding and other tokens among them; 0: no texts."""
        return len(self.tokens) + 2 if self.tokens else 0

    def plain(self) -> dict[str, Any]:
        """Return the encoder in JSON types, without what is as by default."""
        usual = Encoder()
        return {k: v for k, v in asdict(self).items() if v != getattr(usual, k)}


def are_integers(classes: Iterable[str]) -> bool:
    """Return whether all names of classes are integers."""
    return all(map(INTEGER.fullmatch, classes))


def parse(stored: Any, shape: tuple[int, ...], vocabulary: int, classes: Iterable[str]) -> Encoder:
    """Return the encoder from JSON, after checking all of it.

    shape, vocabulary: of the model's inputs, which it must give.  classes: their names.
    Raises DamagedError.
    """
    if not isinstance(stored, dict) or set(stored) - {field.name for field in fields(Encoder)}:
        raise DamagedError(f"encoder is {stored!r:.200}")
    rows = sequence(stored.get("columns", []), "columns", is_column)
    columns = tuple(
        Column(**row | {"categories": tuple(row["categories"])} | {"fill": float(row["fill"])})
        for row in rows
    )
    lists = {
        name: tuple(sequence(stored.get(name, []), name, is_text))
        for name in ("missing_words", "labels", "tokens")
    }
    encoder = Encoder(**stored | {"columns": columns} | lists)
    texts = (encoder.encoding, encoder.text)
    if not (
        all(map(is_text, texts))
        and isinstance(encoder.fills, bool)
        and isinstance(encoder.scaled, bool)
        and isinstance(encoder.integer_labels, bool)
        and encoder.channels in CHANNELS
        and encoder.scale in SCALES
    ):
        raise DamagedError(f"encoder is {stored!r:.200}")
    if encoder.integer_labels and not are_integers(classes):
        raise DamagedError("encoder has integers as labels, but not all classes are integers")
    names = [column.name for column in columns]
    widths = (sum(column.width for column in columns),)
    several = isinstance(shape, Shapes)
    if columns and (several or vocabulary or shape != widths or len(set(names)) < len(names)):
        raise DamagedError(f"encoder has {widths[0]} values of {len(names)} columns, not {shape}")
    if encoder.tokens and (several or len(shape) != 1 or vocabulary != encoder.vocabulary):
        raise DamagedError(f"encoder has {len(encoder.tokens)} tokens, not {vocabulary} less 2")
    return encoder


def sequence(value: Any, name: str, fits: Callable[[Any], bool]) -> list[Any]:
    """Return a list of the encoder; raises DamagedError for another value."""
    if not isinstance(value, list) or len(value) > MOST:
        raise DamagedError(f"encoder: {name} is {value!r:.200}")
    for item in value:
        if not fits(item):
            raise DamagedError(f"encoder: {name} has {item!r:.200}")
    return value


def is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def is_column(row: Any) -> bool:
    """Return whether a JSON value describes a column completely."""
    if not isinstance(row, dict) or set(row) != {field.name for field in fields(Column)}:
        return False
    values = row["categories"]
    return (
        is_text(row["name"])
        and isinstance(values, list)
        and len(values) <= MOST
        and (all(map(is_text, values)) or all(map(is_number, values)))
        and len(set(values)) == len(values)
        and is_number(row["fill"])
        and isinstance(row["commas"], bool)
    )
