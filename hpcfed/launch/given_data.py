"""Data of a Python call: arrays, tensors, data frames and data sets, as files that a job can name.

Nothing is written before the job is checked and the data can be read as the job says.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core import rng
from hpcfed.core.errors import DataError, first_line
from hpcfed.core.paths import only_regular, regular
from hpcfed.core.wording import join_few
from hpcfed.data import files, tables
from hpcfed.data.dataset import Reading
from hpcfed.data.table import is_frame, is_other_frame, to_pandas
from hpcfed.storage.atomic import convert_write_errors, instead

# Arrays of a data set, by the names that an .npz file has for them. What other kinds of data a file
# may hold, a call may give: their names belong here.
ARRAYS = (
    "x_train",
    "y_train",
    "x_test",
    "y_test",
    "users_train",
    "users_test",
    "text_train",
    "text_test",
    "classes",
    "columns",
    "vocabulary",
    "own_tests",
)
PARTS = ("x_train", "y_train", "x_test", "y_test")
WHERE = "hpcfed.run: data"
USAGE = (
    "give (x, y), (x, y, x_test, y_test), a list of such pairs, one per client, a DataFrame, a "
    f"torch Dataset or DataLoader, or a dict or object with {join_few(list(ARRAYS), len(ARRAYS))}"
)
LABEL_KEYS = ("label", "labels", "target", "targets", "y")  # of examples that are dicts
DIGITS = 12  # of the name of a file
HALF = "torch.float16"  # the one short float that numpy has too
CLIENT, TEST, LABEL = "client", "test_rows", "label"  # columns that are added to data frames


@dataclass(frozen=True)
class GivenData:
    """Data of a call, not written yet.

    arrays: those of an .npz file.  table: the text of a .csv file; one of the two is empty.
    fields: what the data say about the job: a table of fields, `data.name` among them.
    """

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    table: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def file(self) -> str:
        """Name of the file, which its contents determine."""
        total = hashlib.sha256(self.table.encode())
        for name in sorted(self.arrays):
            array = np.ascontiguousarray(self.arrays[name])
            total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            plain = array.size and array.dtype.kind in "biuf"
            total.update(array.data if plain else array.tobytes())
        kind = "table-{}.csv" if self.table else "arrays-{}.npz"
        return kind.format(total.hexdigest()[:DIGITS])

    def check(self, how: Reading) -> None:
        """Raise DataError if the data cannot be read with these settings."""
        if not self.table:
            files.from_arrays(WHERE, self.arrays, how)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.csv"
            path.write_text(self.table, encoding="utf-8")
            try:
                tables.read(path, how)
            except DataError as error:
                raise DataError(str(error).replace(str(path), WHERE)) from error

    def write(self, root: Path) -> bool:
        """Write the file into the folder of data; return False if it is there already.

        A file of that name that holds something else is replaced. Raises WriteError.
        """
        path = root / self.file
        if self.is_in(path):
            return False
        with convert_write_errors(path):
            root.mkdir(parents=True, exist_ok=True)
            with instead(path) as new, open(new, "wb") as raw:
                if self.table:
                    raw.write(self.table.encode())
                else:  # no array may be named allow_pickle
                    np.savez(raw, **self.arrays)  # type: ignore[arg-type]
        return True

    def is_in(self, path: Path) -> bool:
        """Return whether the file at this path holds these data, and nothing else."""
        try:
            if self.table:
                with open(path, "rb", opener=only_regular) as raw:
                    return raw.read() == self.table.encode()
            with np.load(regular(path), allow_pickle=False) as stored:
                return set(stored.files) == set(self.arrays) and all(
                    has_bits(stored[name], np.asarray(array)) for name, array in self.arrays.items()
                )
        except Exception:  # a file that numpy or zipfile cannot read raises exceptions of any type
            return False


def has_bits(array: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays are equal in type, shape and bits, nan included."""
    alike = array.dtype == other.dtype and array.shape == other.shape
    return alike and array.tobytes() == other.tobytes()


def convert(data: Any) -> GivenData:
    """Return the data of a call. Raises DataError for values that are none.

    What a torch Dataset draws for its examples is the same in each call, so that a run whose data
    are given again can be resumed.
    """
    with rng.scoped_everywhere(0, "given data"):
        return read_arrays(data)


def read_arrays(data: Any) -> GivenData:
    """Return the data of a call, which may draw from the global generators."""
    data = plain_part(data)
    if is_frame(data):
        return GivenData(table=to_csv(data))
    if isinstance(data, tuple | list) and data and is_frame(data[0]):
        return from_frames(data)
    clients: dict[str, Any] = {}
    if isinstance(data, list) and all(isinstance(part, tuple) or is_dataset(part) for part in data):
        refuse_empty(data)
        clients = {"data": {"partition": "natural"}, "clients": len(data)}
        data = join_clients([pairs_of(part) for part in data])
    arrays: dict[str, np.ndarray] = {}
    for name, value in parts_of(data).items():
        if name.startswith("x_") and isinstance(value, tuple):
            value = {f"input{i}": part for i, part in enumerate(value, start=1)}
        if isinstance(value, Mapping):
            arrays |= {f"{name}/{part}": as_array(f"{name}/{part}", v) for part, v in value.items()}
        else:
            arrays[name] = as_array(name, value)
    return GivenData(arrays, fields=clients)


def plain_part(value: Any) -> Any:
    """Return frames of other libraries as those of pandas, and loaders as their data sets.

    Other values are returned as they are, and lists and tuples part by part.
    """
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(plain_part, value))
    if is_other_frame(value):
        return to_pandas(value, WHERE)
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(value, torch_data.DataLoader):
        return value
    samplers_of_all = (torch_data.SequentialSampler, torch_data.RandomSampler)
    if isinstance(value.sampler, samplers_of_all) or not hasattr(value.dataset, "__len__"):
        return value.dataset
    return torch_data.Subset(value.dataset, sorted(set(value.sampler)))


def parts_of(data: Any) -> dict[str, Any]:
    """Return the arrays of a data set by name. Raises DataError for other values."""
    if is_dataset(data):
        return dict(zip(PARTS, pairs_of(data), strict=False))
    if isinstance(data, tuple | list):
        if len(data) == 2 and all(map(is_dataset, data)):
            data = pairs_of(data)
        if len(data) not in (2, 4):
            raise DataError(f"{WHERE} of {len(data)} parts; {USAGE}")
        return dict(zip(PARTS, data, strict=False))
    if isinstance(data, Mapping):
        for wrong in (name for name in data if name not in ARRAYS):
            raise DataError(f"{WHERE} has no array {wrong!r}; {USAGE}")
        arrays = dict(data)
    else:
        arrays = {name: getattr(data, name) for name in ARRAYS if hasattr(data, name)}
    arrays = {name: value for name, value in arrays.items() if value is not None}
    if not arrays:
        raise DataError(f"{WHERE} is a {type(data).__name__}; {USAGE}")
    return arrays


def pairs_of(data: Any) -> tuple[Any, ...]:
    """Return (x, y), or (x, y, x_test, y_test), of a client's arrays or of a torch Dataset.

    The last value of a Dataset's example is its label, those before it are its inputs; of a dict
    the label is the value of a key such as "label" (LABEL_KEYS).
    """
    if not is_dataset(data):
        if len(data) == 2 and all(map(is_dataset, data)):  # for training, and for tests
            return (*pairs_of(data[0]), *pairs_of(data[1]))
        if len(data) not in (2, 4):
            raise DataError(f"{WHERE}: a client has {len(data)} parts; {USAGE}")
        return tuple(data)
    values = getattr(data, "tensors", None)  # of a TensorDataset
    subset_of = getattr(getattr(data, "dataset", None), "tensors", None)
    if subset_of is not None and hasattr(data, "indices"):  # a part of one, of random_split say
        values = [tensor[list(data.indices)] for tensor in subset_of]
    if values is None:
        return read_examples(data)
    if len(values) < 2:
        raise DataError(f"{WHERE}: the examples of a {type(data).__name__} have no labels; {USAGE}")
    *inputs, labels = values
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), labels


def read_examples(data: Any) -> tuple[Any, Any]:
    """Return the inputs and labels of a torch Dataset, whose examples are tuples or dicts.

    Each example is read once. Raises DataError if that fails, or if an example has no label.
    """
    kind = type(data).__name__
    if not hasattr(data, "__len__"):
        raise DataError(f"{WHERE}: a {kind} without a length; {USAGE}")
    rows = []
    for i in range(len(data)):
        try:
            rows.append(data[i])
        except Exception as error:  # a user's code may raise anything
            raise DataError(
                f"{WHERE}: example {i} of a {kind} cannot be read: {type(error).__name__}: "
                f"{first_line(error)}"
            ) from error
    if not rows:
        raise DataError(f"{WHERE}: a {kind} has no examples; {USAGE}")
    if all(isinstance(row, Mapping) for row in rows):
        return from_dicts(kind, rows)
    for i, row in enumerate(rows):
        problem = ""
        if not isinstance(row, tuple | list) or len(row) < 2:
            problem = f"is a {type(row).__name__} without a label"
        elif len(row) != len(rows[0]):
            problem = f"has {len(row)} parts, but example 0 has {len(rows[0])}"
        if problem:
            raise DataError(
                f"{WHERE}: example {i} of a {kind} {problem}; return a tuple (inputs, label) for "
                f"each"
            )
    *inputs, labels = (stack(kind, column) for column in zip(*rows, strict=True))
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), labels


def from_dicts(kind: str, rows: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    """Return the inputs and labels of examples that are dicts; several inputs keep their names.

    kind: the type of the data set, for messages. Raises DataError unless one key names a label.
    """
    names = list(rows[0])
    labels = [name for name in names if name in LABEL_KEYS]
    if len(labels) != 1 or len(names) < 2 or any(row.keys() != rows[0].keys() for row in rows):
        raise DataError(
            f"{WHERE}: the examples of a {kind} are dicts (the first has {join_few(names, 8)}), "
            f"and not all have inputs and one label by the same keys, of which "
            f"{join_few(LABEL_KEYS, 8)} name a label; return a tuple (inputs, label)"
        )
    columns = {name: stack(kind, [row[name] for row in rows]) for name in names}
    y = columns.pop(labels[0])
    return (columns if len(columns) > 1 else columns.popitem()[1]), y


def stack(kind: str, values: Sequence[Any]) -> Any:
    """Return one input or the label of all examples as an array [n, ...], or a dict of these.

    kind: the type of the data set, for messages. Raises DataError if their shapes differ.
    """
    if isinstance(values[0], Mapping):
        names = list(values[0])
        if all(isinstance(value, Mapping) and list(value) == names for value in values):
            return {name: stack(kind, [value[name] for value in values]) for name in names}
    try:
        return np.stack(
            [from_tensor("an example", v) if is_tensor(v) else np.asarray(v) for v in values]
        )
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{WHERE}: the examples of a {kind} are no arrays of one shape: {first_line(error)}; "
            f"resize or pad them, and return several inputs as (input1, input2, label)"
        ) from error


def refuse_empty(clients: Sequence[Any]) -> None:
    """Raise DataError for a client without a training example; those after it would be renumbered.

    clients: of each a DataFrame, a Dataset, or a tuple as `pairs_of` takes it.
    """
    for k, client in enumerate(clients):
        examples = client
        if isinstance(client, tuple) and len(client) > 1:
            examples = client[0] if is_dataset(client[0]) else client[1]
        with suppress(TypeError):  # what has no length is refused later
            if not len(examples):
                raise DataError(
                    f"{WHERE}: client {k} (of 0 to {len(clients) - 1}) has no training example; "
                    f"give it one, or leave it out of the list"
                )


def join_clients(parts: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the arrays of all clients as one data set that names the client of each example."""
    if len({len(part) for part in parts}) > 1:
        raise DataError(f"{WHERE}: some clients have test examples, and some have none; {USAGE}")
    joined: dict[str, Any] = {}
    for name, values in zip(PARTS, zip(*parts, strict=True), strict=False):
        joined[name] = join(name, values)
    for split, column in (("train", 1), ("test", 3)):
        if f"y_{split}" in joined:
            sizes = [len(part[column]) for part in parts]
            joined[f"users_{split}"] = np.repeat(np.arange(len(parts)), sizes)
    return joined | ({"own_tests": 1} if "y_test" in joined else {})


def join(name: str, values: Sequence[Any]) -> Any:
    """Concatenate one array of all clients, modality by modality if there are several."""
    if isinstance(values[0], tuple):
        return tuple(join(name, part) for part in zip(*values, strict=True))
    if isinstance(values[0], Mapping):
        return {key: join(f"{name}/{key}", [v[key] for v in values]) for key in values[0]}
    arrays = [as_array(f"{name} of client {k}", value) for k, value in enumerate(values)]
    for k, array in enumerate(arrays):
        if array.ndim == 0 or array.shape[1:] != arrays[0].shape[1:]:
            raise DataError(
                f"{WHERE}: {name} of client {k} has shape {list(array.shape)}, that of client 0 "
                f"{list(arrays[0].shape)}; make them alike but for the number of examples"
            )
    return np.concatenate(arrays)


def as_array(name: str, value: Any) -> np.ndarray:
    """Return a value as an array of an .npz file, which holds numbers and texts."""
    to_numpy: Callable[[], Any] | None = getattr(value, "numpy", None)
    if is_tensor(value):
        value = from_tensor(name, value)
    elif callable(getattr(value, "toarray", None)):
        raise DataError(f"{WHERE}: {name} is a sparse {type(value).__name__}; give its .toarray()")
    elif callable(to_numpy):
        value = to_numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{WHERE}: {name} is not an array: {error}") from error
    if array.dtype == object and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "biufSU":
        raise DataError(
            f"{WHERE}: {name} holds {array.dtype}; give numbers, or words for labels and text_train"
        )
    return array


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def from_tensor(name: str, value: Any) -> np.ndarray:
    """Return a tensor, of a GPU perhaps, as an array.

    Floats that numpy does not have, such as bfloat16, become float32. Raises DataError for a tensor
    that is not dense, or has no values.
    """
    if str(value.layout) != "torch.strided":
        raise DataError(f"{WHERE}: {name} is a sparse tensor; give its .to_dense()")
    value = value.detach()
    if value.is_floating_point() and value.element_size() < 4 and str(value.dtype) != HALF:
        value = value.float()
    try:
        return value.cpu().numpy()
    except (TypeError, RuntimeError) as error:  # quantized, or of the device "meta"
        raise DataError(f"{WHERE}: {name} is not a plain tensor: {error}") from error


def is_dataset(value: Any) -> bool:
    """Return whether a value is a torch Dataset; torch is not imported for that."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(value, data.Dataset)


def to_csv(frame: Any) -> str:
    """Return a DataFrame as the text of a CSV file, without its index."""
    text = io.StringIO()
    frame.to_csv(text, index=False)
    return text.getvalue()


def from_frames(data: Sequence[Any]) -> GivenData:
    """Return tables of clients, or the inputs and labels of one table, as one table.

    data: a list of DataFrames, one per client; or (x, y) or (x, y, x_test, y_test), in which inputs
    are DataFrames. Columns that are added name the client, the label, and the test rows.
    """
    pandas = sys.modules["pandas"]
    if isinstance(data, list) and all(map(is_frame, data)):
        refuse_empty(data)
        refuse_names(data, CLIENT)
        parts = [frame.assign(**{CLIENT: k}) for k, frame in enumerate(data)]
        fields = {
            "data": {"partition": "natural"},
            "clients": len(data),
            "columns": {"client": CLIENT},
        }
        return GivenData(table=to_csv(pandas.concat(parts)), fields=fields)
    if len(data) not in (2, 4) or not all(map(is_frame, data[::2])):
        raise DataError(f"{WHERE} of {len(data)} parts, the first a DataFrame; {USAGE}")
    if len(data) == 4:
        refuse_names(data[::2], TEST)
    for y in data[1::2]:
        if np.ndim(y) > 1 and np.shape(y)[1:] != (1,):
            raise DataError(
                f"{WHERE}: labels of shape {list(np.shape(y))} beside a DataFrame; give one table "
                f"with all columns, and the labels' names as columns.target"
            )
    label = str(getattr(data[1], "name", None) or LABEL)
    parts = []
    for split, x, y in zip(("train", "test"), data[::2], data[1::2], strict=False):
        if len(x) != len(y) or label in x.columns:
            raise DataError(
                f"{WHERE}: {len(x)} rows of inputs with the columns {list(x.columns)}, and "
                f"{len(y)} labels named {label}; give one label per row, with a name of its own"
            )
        test = {TEST: split} if len(data) == 4 else {}
        parts.append(x.assign(**{label: np.ravel(y)}, **test))
    columns = {"label": label} | ({"test": TEST} if len(data) == 4 else {})
    return GivenData(table=to_csv(pandas.concat(parts)), fields={"columns": columns})


def refuse_names(frames: Sequence[Any], name: str) -> None:
    """Raise DataError if a table has a column of the name that hpcfed adds."""
    if any(name in frame.columns for frame in frames):
        raise DataError(
            f"{WHERE}: a DataFrame has a column {name!r}, the name of one that is added here; "
            f"rename it, or give one table and name its columns in columns.client or columns.test"
        )
