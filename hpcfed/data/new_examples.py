"""New examples, without labels: they become what a model's training data became, part by part."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcfed.config.sections import Columns
from hpcfed.core.encoder import Column, Encoder
from hpcfed.core.errors import DataError
from hpcfed.core.shapes import Shapes, each, parts
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data import check, columns, files, image_folder, table
from hpcfed.data.dataset import Reading
from hpcfed.data.sampling import even_parts
from hpcfed.data.table import FEW, Table
from hpcfed.data.text import codes_of, encode_new
from hpcfed.data.user_arrays import readable

ADVICE = "check the path, or write it again"
TEXTS = ".txt"
ROW, FILE = "row", "file"  # names of the columns that tell which example a prediction is of
TEXT = "text"  # the column of texts in a table, if the training texts were in no table


class Batch(NamedTuple):
    """Some examples.

    ids: columns that tell which they are: row, from 1, or file, and a column that passes through.
    x: inputs as in `Split`.
    """

    ids: dict[str, np.ndarray]
    x: Any


@dataclass
class Examples:
    """New examples in a file, in a folder, or in memory.

    source: path of a CSV or Parquet file, of arrays (NPZ, HDF5), of an image or a folder of them,
    or of texts (.txt, one a line); or a DataFrame, also of polars or pyarrow, arrays as data sets
    have them, or a list of texts.
    encoder, shape, vocabulary: of the model's inputs.
    copies: names of columns (arrays) that pass through; default: a column id, if there is one.
    fill: whether missing values, and categories that the training data do not have, are filled in,
    as a run does with its test examples, or refused; None: missing values as in the training data,
    and categories are refused.
    filled: number of the values that were filled in, by column; it grows while batches are read.
    place: that of the value that was filled in before all others.
    other_scale: a sentence about images of another scale than the training images; "": none.
    """

    source: Any
    encoder: Encoder
    shape: tuple[int, ...]
    vocabulary: int = 0
    copies: tuple[str, ...] = ()
    fill: bool | None = None
    filled: dict[str, int] = field(default_factory=dict)
    place: str = ""
    other_scale: str = ""

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples, up to `size` at a time, as evenly as a run's evaluation does.

        So the same examples get the same bits. Raises DataError.
        """
        source = self.source
        if isinstance(source, str | Path):
            path = Path(source).expanduser()
            if path.is_dir() or path.suffix.lower() in image_folder.ENDS:
                yield from self.of_images(path, size)
                return
            with readable(path, ADVICE):
                yield from self.of_file(path, size)
            return
        if table.is_other_frame(source):
            source = table.to_pandas(source, "the inputs")
        if table.is_frame(source):
            text = io.StringIO(source.to_csv(index=False))
            yield from map(self.of_table, self.csv(text, "the table", size))
        elif hasattr(source, "columns") or hasattr(source, "column_names"):
            raise DataError(
                f"the inputs: a {type(source).__name__} has names of columns, which are not read; "
                f"give a DataFrame, or an array [n, columns] in the order of the inputs"
            )
        else:
            yield from self.of_arrays(source, "the inputs", {}, size)

    @property
    def notes(self) -> list[str]:
        """Sentences about values that were filled in, and about another scale of images."""
        notes = [self.other_scale] if self.other_scale else []
        if self.filled:
            shown = join_few([f"{name} {n}" for name, n in self.filled.items()], FEW)
            total = count_noun(sum(self.filled.values()), "value")
            notes.append(f"{total} filled in ({shown}), the first: {self.place}")
        return notes

    def of_file(self, path: Path, size: int) -> Iterator[Batch]:
        """Yield the examples of one file."""
        reading = self.reading
        if path.suffix == ".csv":
            with table.open_text(path, reading.columns.encoding) as file:
                yield from map(self.of_table, self.csv(file, str(path), size))
        elif path.suffix == ".parquet":
            tables = table.parquet_parts(path, reading.missing_words, size)
            yield from map(self.of_table, tables)
        elif path.suffix == TEXTS:
            with table.open_text(path, reading.columns.encoding) as file:
                texts = [line.rstrip("\r\n") for line in file]
            yield from self.of_arrays(texts, str(path), {}, size)
        elif path.suffix in (".npz", ".h5", ".hdf5"):
            arrays = files.read_arrays(path)
            inputs = {name: arrays.pop(name) for name in list(arrays) if is_input(name)}
            if not inputs:
                raise DataError(
                    f"{path}: has {join_few(list(arrays), FEW) or 'no arrays'}, but no x, the "
                    f"inputs; store them as x (texts: text; several modalities: x/NAME)"
                )
            several = {name.partition("/")[2]: value for name, value in inputs.items()}
            x = several if "" not in several else next(iter(inputs.values()))
            yield from self.of_arrays(x, str(path), arrays, size)
        else:
            raise DataError(
                f"{path}: is no .csv, .parquet, .npz, .h5 or {TEXTS} file, image or folder of "
                f"images"
            )

    @property
    def reading(self) -> Reading:
        """Settings for reading files as the training data were read."""
        encoder = self.encoder
        roles = Columns(encoding=encoder.encoding, missing_words=encoder.missing_words)
        return Reading(columns=roles, channels=encoder.channels)

    @cached_property
    def codes(self) -> dict[str, int]:
        """The numbers of the tokens of texts, which all batches share."""
        return codes_of(self.encoder.tokens)

    def csv(self, file: Any, where: str, size: int) -> Iterator[Table]:
        """Return the tables of an open CSV file; only columns of numbers are read as numbers."""
        numeric = {c.name for c in self.encoder.columns if not c.words}
        commas = {c.name for c in self.encoder.columns if c.commas}
        words = lambda name: name not in numeric  # noqa: E731
        return table.parse_csv(file, where, self.reading, words, commas, size)

    def of_table(self, part: Table) -> Batch:
        """Return the rows of a table as a batch."""
        encoder = self.encoder
        if not (encoder.columns or encoder.tokens):
            raise DataError(
                f"{part.where}: is a table, but the model takes arrays of shape {self.form}; give "
                f"them as an array x in an .npz file"
            )
        return Batch(self.ids_of(part), self.encode(part))

    def encode(self, part: Table) -> np.ndarray:
        """Return the inputs of a table; raises DataError if a column is missing."""
        encoder = self.encoder
        names = [column.name for column in encoder.columns] or [encoder.text or TEXT]
        if missing := [name for name in names if name not in part.names]:
            raise DataError(
                f"{part.where}: has no column {join_few(list(map(repr, missing)), FEW)}, which the "
                f"model takes; its columns are {join_few(part.names, 3 * FEW)}"
            )
        if encoder.tokens:
            texts = [text or "" for text in part[encoder.text or TEXT]]
            return encode_new(texts, self.codes, self.shape[0])
        for column in encoder.columns:
            self.check_gaps(part, column)
        return columns.encode(part, encoder.columns)

    def check_gaps(self, part: Table, column: Column) -> None:
        """Note values that are filled in; raises DataError if they are to be refused."""
        values, where = part[column.name], f"{part.where}: column {column.name!r}"
        empty, unseen = np.flatnonzero(table.gaps(values)), columns.unseen(part, column)
        fills = self.encoder.fills if self.fill is None else self.fill
        problems = []
        for row in empty[:1]:
            what = f"{where} has no value in row {part.number(row)}"
            problems.append((what, fills, "the mean, or what else the training data say"))
        for row in unseen[:1]:
            shown = join_few([table.kind_name(c) for c in column.categories], FEW)
            value = f"{table.kind_name(values[row])!r:.40} in row {part.number(row)}"
            what = f"{where}: {value} is none of {shown}"
            problems.append((what, bool(self.fill), "what stands for a missing value"))
        for what, fills, filling in problems:
            if not fills:
                raise DataError(f"{what}; fix it, or set --missing fill to fill in {filling}")
            self.place = self.place or what
        if n := len(empty) + len(unseen):
            self.filled[column.name] = self.filled.get(column.name, 0) + n

    def ids_of(self, part: Table) -> dict[str, np.ndarray]:
        """Return the numbers of a table's rows, and the column that passes through."""
        ids = {ROW: part.start + 1 + np.arange(part.n)}
        taken = [column.name for column in self.encoder.columns]
        usual = [name for name in part.names if name.lower() == "id" and name not in taken]
        for name in self.copies or usual[:1]:
            if name not in part.names:
                raise DataError(
                    f"{part.where}: has no column {name!r}; its columns are "
                    f"{join_few(part.names, 3 * FEW)}"
                )
            ids[name] = as_ids(part[name])
        return ids

    def of_arrays(
        self, x: Any, where: str, others: Mapping[str, np.ndarray], size: int
    ) -> Iterator[Batch]:
        """Yield arrays in parts. others: further arrays, one of which may pass through."""
        x = self.checked(x, where, others)
        n = x.n if isinstance(x, Table) else len(parts(x)[0])
        if not n:
            raise DataError(f"{where}: holds no examples")
        for name in self.copies:
            if name not in others or others[name].shape[:1] != (n,):
                raise DataError(f"{where}: has no array {name!r} of {count_noun(n, 'value')}")
        for rows in even_parts(n, size):
            if isinstance(x, Table):
                batch = Batch({ROW: rows + 1}, self.encode(x.take(rows)))
            else:
                cut = each(x, itemgetter(rows))
                batch = Batch({ROW: rows + 1}, self.tokens_of(cut))
            batch.ids.update({name: as_ids(others[name][rows]) for name in self.copies})
            yield batch

    def tokens_of(self, x: Any) -> Any:
        """Return texts as rows of tokens, and anything else as it is."""
        if isinstance(x, np.ndarray) and x.dtype == object:
            return encode_new(x, self.codes, self.shape[0])
        return x

    def checked(self, x: Any, where: str, others: Mapping[str, np.ndarray]) -> Any:
        """Return arrays in the form in which data sets have them; raises DataError."""
        shape, channels = self.shape, self.encoder.channels
        if isinstance(shape, Shapes):
            several = isinstance(x, Mapping)
            if not several or set(x) != set(shape.names):
                names = join_few(list(x), FEW) if several else "one array"
                raise DataError(
                    f"{where}: {names}, but the model takes {join_few(shape.names, FEW)}"
                )
            arrays = {
                part.name: files.as_inputs(
                    np.asarray(x[part.name]),
                    f"{where}: {part.name}",
                    part.vocabulary,
                    channels,
                    True,
                )
                for part in shape
            }
            for name, part, _ in shape:
                check_shape(arrays[name], part, f"{where}: {name}")
            lengths = {name: len(values) for name, values in arrays.items()}
            if len(set(lengths.values())) > 1:
                sizes = join_few([f"{name} {n:,}" for name, n in lengths.items()], FEW)
                raise DataError(
                    f"{where}: the modalities have other numbers of examples ({sizes}); give each "
                    f"as many"
                )
            return arrays
        array = np.asarray(x)
        if self.encoder.columns:
            return self.as_table(array, where, others)
        if array.dtype.kind in "OSU" and not self.encoder.tokens:
            raise DataError(f"{where}: holds {array.dtype}, but the model takes {self.form}")
        tokens = 0 if array.dtype.kind in "OSU" else self.vocabulary
        array = files.as_inputs(array, where, tokens, channels)
        if array.dtype != object:
            check_shape(array, shape, where)
            self.check_scale(array, where)
        return array

    def check_scale(self, x: np.ndarray, where: str) -> None:
        """Note images of another scale than that of the training images. x: as batches have it."""
        scale, trained = check.scale_for_models(x), self.encoder.scale
        if scale and trained and scale != trained:
            form = (
                "8-bit images, which become 0..1" if x.dtype == np.uint8 else f"images of {scale}"
            )
            self.other_scale = (
                f"{where}: {form}, but the model was trained on images of {trained}; scale them as "
                f"the training images were, or no prediction means anything"
            )

    def as_table(self, x: np.ndarray, where: str, others: Mapping[str, np.ndarray]) -> Table:
        """Return rows of numbers as a table of the columns that the model takes."""
        names = [column.name for column in self.encoder.columns]
        if "columns" in others:
            names = check.texts(others["columns"], f"{where}: columns").tolist()
            if len(set(names)) < len(names):
                raise DataError(f"{where}: columns names one twice: {join_few(names, 3 * FEW)}")
        if x.ndim != 2 or x.shape[1] != len(names) or x.dtype.kind not in "biuf":
            raise DataError(
                f"{where}: {x.dtype} {list(x.shape)}, but the model takes rows of "
                f"{len(names)} numbers: {join_few(names, FEW)}"
            )
        return Table(where, {n: x[:, i].astype(float) for i, n in enumerate(names)}, len(x))

    def of_images(self, path: Path, size: int) -> Iterator[Batch]:
        """Yield the images of a folder and the folders in it, or one image, by their names."""
        channels, *pixels = self.shape if len(self.shape) == 3 else (0,)
        if channels not in (1, 3) or isinstance(self.shape, Shapes):
            raise DataError(f"{path}: images, but the model takes examples of shape {self.form}")
        height, width = pixels
        entries = sorted(path.rglob("*")) if path.is_dir() else [path]
        places = [file for file in entries if file.suffix.lower() in image_folder.ENDS]
        if not places:
            raise DataError(f"{path}: holds no images ({', '.join(image_folder.ENDS)})")
        names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in places]
        for rows in even_parts(len(places), size):
            part = [places[i] for i in rows]
            x = np.empty((len(part), channels, height, width), np.uint8)
            for row, (where, image) in zip(x, image_folder.each(part), strict=True):
                if channels == 1 and image.mode not in image_folder.GREY:
                    raise DataError(f"{where}: has colours, but the model takes grey images")
                if image.size != (width, height) and not self.encoder.scaled:
                    raise DataError(
                        f"{where}: has {image.size[0]}x{image.size[1]} pixels, but the model takes "
                        f"{width}x{height}; scale it as the training images were"
                    )
                row[:] = image_folder.as_array(image, channels == 1, (width, height), where)
            self.check_scale(x, str(path))
            yield Batch({FILE: np.array(names, object)[rows]}, x)

    @property
    def form(self) -> str:
        """What the model takes, for messages."""
        return str(self.shape) if isinstance(self.shape, Shapes) else str(list(self.shape))


def is_input(name: str) -> bool:
    """Return whether an array of a file has inputs."""
    return name.partition("/")[0] in ("x", "text", "images", "features")


def check_shape(x: np.ndarray, shape: tuple[int, ...], where: str) -> None:
    """Raise DataError for examples of another shape than the model takes."""
    if x.shape[1:] != tuple(shape):
        raise DataError(
            f"{where}: examples of shape {list(x.shape[1:])}, but the model takes {list(shape)}"
        )


def as_ids(values: np.ndarray) -> np.ndarray:
    """Return a column that passes through: words, or numbers, whole ones as integers."""
    if values.dtype == object:
        return np.array(["" if value is None else value for value in values], object)
    integral = values.dtype.kind == "f" and len(values) and (values == np.round(values)).all()
    return values.astype(np.int64) if integral and (np.abs(values) < 2**53).all() else values
