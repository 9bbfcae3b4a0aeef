"""Users' own data in HDF5 and NPZ files, read without pickle and checked before use."""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from hpcfed.core.encoder import Encoder
from hpcfed.core.errors import ConfigError, DataError, first_bad
from hpcfed.core.safe_read import parse_json
from hpcfed.core.wording import join_few
from hpcfed.data import check
from hpcfed.data.dataset import COLUMNS, DataSet, Reading, Split, several
from hpcfed.data.moments import moments
from hpcfed.data.table import Table
from hpcfed.data.tables import held_out, stated_task, to_dataset
from hpcfed.data.text import encode
from hpcfed.data.user_arrays import Nodes, add_path_to_errors, fits, hdf5, readable, whole
from hpcfed.storage.untrusted import attribute
from hpcfed.tasks import Task, infer, make

ADVICE = "make or copy it again, or check --data.name (pickled objects are never read)"
MODALITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # valid name of a modality
USERS = ("users", "user_hash")
COLUMN_NAMES = ("columns", "features")  # attributes of HDF5 that name the columns of rows
FEW = 8  # arrays that a line names


@dataclass(frozen=True)
class Raw:
    """One split as stored in a file.

    names: the places of x, y and users in the file, for messages.
    """

    x: Any
    y: np.ndarray
    users: np.ndarray | None
    names: tuple[str, str, str]
    present: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """Content of a file: its splits, and facts about them.

    classes: names of the classes, or None.
    vocabulary: number of different tokens if x is tokens, else 0.
    vocabularies: the same by modality, if there are several.
    tables: training and test table, for rows of numbers.
    task: that which the file states, or None.
    label: of tables, the array of labels.
    unread: names of arrays and groups that are of no split, and no fact about them.
    """

    train: Raw | None
    test: Raw | None
    classes: list[str] | None = None
    vocabulary: int = 0
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    task: Task | None = None
    own_tests: bool = False
    channels: str = "auto"  # as in `Reading`
    tables: tuple[Table, Table | None] | None = None
    label: str = ""  # of tables: the array of labels
    unread: Sequence[str] = ()


def read(path: Path, how: Reading | None = None) -> DataSet:
    """Read the data set in an .h5, .hdf5 or .npz file.

    HDF5: groups `train` and `test`, each with `images` (or `x`; or `jpeg_offsets` and `jpeg_body`,
    beside a `jpeg_header` at the top; or `text`), `labels` (or `y`) and optionally `users` (or
    `user_hash`). The attribute `classes` is a JSON list of names. With an attribute `vocabulary` V,
    x is tokens, [n, L], 0..V-1, with 0 for padding. The attribute `task` names one of
    `hpcfed.tasks.TASKS`, such as "survival" for labels [n, 2], time and whether the event was seen.
    The attribute `own_tests` (1: a user's test examples test the client that has this user) is that
    of `DataSet`.

    HDF5 with several modalities: `x` is a group with an array for each, and an array of tokens has
    the attribute `vocabulary`. An optional group `present` has an array [n] of 0 and 1 for each
    modality that some examples lack; the values in their place are not read (NPZ:
    present_train/NAME).

    NPZ: x_train (or text_train), y_train, x_test, y_test, and optionally users_train, users_test,
    vocabulary, classes and own_tests. Several modalities are arrays x_train/NAME and x_test/NAME,
    with vocabulary/NAME for tokens.

    Labels without a stated task are 0..C-1, or words: the classes are then `classes`, or the
    different words in their alphabetical order; or they are fractions, which are targets.

    Without a test split, a fixed, stratified share of the training examples is held out, of each
    user's if the file names users, who are then tested on their own. Mean and deviation, and the
    vocabulary of texts, are those of the training split.

    Rows of numbers, [n, features], named images, x or features, are a table (`hpcfed.data.tables`).
    An array `columns` (NPZ) or an attribute `columns` or `features` (HDF5: a JSON list) names its
    columns; otherwise they are x0, x1, .... The other arrays [n] beside them are columns too, which
    the job may name.

    how: settings for texts and for own data. `columns.client` names the array of users.
    Raises DataError with file, array, index and value for whatever cannot be used.
    """
    how = how or Reading()
    with readable(path, ADVICE):
        file = (_open_npz if path.suffix == ".npz" else _open_hdf5)(path, how)
    return _dataset(path, file, how)


def from_arrays(name: str, arrays: Mapping[str, np.ndarray], how: Reading) -> DataSet:
    """Return the data set of arrays by the names of an .npz file; raises as `read`.

    name: opens messages, in the place of the file.
    """
    return _dataset(Path(name), _read(_of_npz(Path(name), arrays), how), how)


def _dataset(path: Path, file: File, how: Reading) -> DataSet:
    data = _of_table_or_arrays(path, file, how)
    if not file.unread:
        return data
    line = (
        f"{path}: not read: {join_few(file.unread, FEW)}; examples are those of train and "
        f"test, and evaluate.validation holds some of each client's training examples out"
    )
    return replace(data, notes=(*data.notes, line))


def _of_table_or_arrays(path: Path, file: File, how: Reading) -> DataSet:
    check_idle(path, file, how)
    if file.tables:
        train, test = file.tables
        columns = how.columns
        roles = {
            "label": columns.label or file.label,
            "client": columns.client or next((u for u in USERS if u in train.names), ""),
        }
        is_label = roles["label"] == file.label
        numbered = is_label and train.columns[file.label].dtype != object
        names = file.classes if is_label else None
        how = replace(how, columns=columns.model_copy(update=roles))
        stated = file.task.name if file.task else ""
        return to_dataset(path.stem, train, test, how, names, numbered, stated)
    return _assemble(path, replace(file, channels=how.channels), how)


def check_idle(path: Path, file: File, how: Reading) -> None:
    """Raise DataError for a setting of the job that has no effect on this file."""
    tested = file.test is not None or (file.tables is not None and file.tables[1] is not None)
    taken = {"columns.client"} if file.tables is None else set(COLUMNS)
    axes = [getattr(x, "ndim", 0) for raw in (file.train, file.test) if raw for x in inputs_of(raw)]
    taken |= {"data.channels"} if 4 in axes else set()
    what = ("arrays" if file.tables is None else "rows of numbers") + " in HDF5 or NPZ"
    if tested:
        how.refuse_others(str(path), f"{what}, with test examples", taken - {"columns.test"})
    else:
        how.refuse_others(str(path), what, taken | {"data.held_out"})


def inputs_of(raw: Raw) -> list[Any]:
    """Return the arrays of inputs of a split, one for each modality."""
    return list(raw.x.values()) if isinstance(raw.x, Mapping) else [raw.x]


@dataclass(frozen=True)
class Source:
    """What a file holds, by names that are the same in all formats.

    file: arrays by their places.
    parts: names of the arrays of train and perhaps test; of modalities x/NAME and present/NAME.
    facts: as stored: classes, columns, task, own_tests, vocabulary, of modalities vocabulary/NAME.
    inputs, labels: names that these arrays may have.
    place: returns the place of an array, given its split and its name.
    fact: the place of a fact, as a format of its name.
    unread: as in `File`.
    """

    path: Path
    file: Mapping[str, Any]
    parts: Mapping[str, list[str]]
    facts: Mapping[str, Any]
    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    place: Callable[[str, str], str]
    fact: str = "{}"
    unread: Sequence[str] = ()

    def where(self, part: str, name: str) -> str:
        """Return the beginning of a message about an array."""
        return f"{self.path}: {self.place(part, name)}"

    def array(self, part: str, name: str) -> np.ndarray:
        node = self.file[self.place(part, name)]
        return node if isinstance(node, np.ndarray) else whole(node, self.where(part, name))

    def first(self, part: str, names: Iterable[str]) -> str:
        """Return the first of these names that an array has. Raises DataError if none has."""
        for name in names:
            if name in self.parts[part]:
                return name
        places = [self.place(part, name) for name in names]
        raise DataError(f"{self.path}: has no {' or '.join(places)}; store it there")

    def vocabulary(self, name: str = "vocabulary") -> int:
        """Return the number of different tokens; 0 for inputs that are none."""
        return check.vocabulary(self.facts.get(name, 0), f"{self.path}: {self.fact.format(name)}")


def _open_npz(path: Path, how: Reading) -> File:
    with np.load(path, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path}: is one array; save x_train, y_train, x_test, y_test with numpy.savez"
            )
        check_unpacked(path, file)
        return _read(_of_npz(path, file), how)


def check_unpacked(path: Path, file: np.lib.npyio.NpzFile) -> None:
    """Raise DataError if the arrays of an .npz file do not fit into memory."""
    assert file.zip is not None  # it is open
    fits(sum(member.file_size for member in file.zip.infolist()), str(path))


def _of_npz(path: Path, file: Mapping[str, np.ndarray]) -> Source:
    """Return the content of an .npz file: x_train, x_train/NAME and so on."""

    def place(part: str, name: str) -> str:
        start, slash, modality = name.partition("/")
        return f"{start}_{part}{slash}{modality}"

    parts: dict[str, list[str]] = {"train": [], "test": []}
    others = []
    for stored in file:
        start, slash, modality = stored.partition("/")
        name, _, part = start.rpartition("_")
        if part in parts:
            parts[part].append(f"{name}{slash}{modality}")
        else:
            others.append(stored)
    if not any(name.split("/")[0] in ("x", "text", "y") for name in parts["test"]):
        del parts["test"]
    named = ("vocabulary", "own_tests", *(n for n in file if n.startswith("vocabulary/")))
    facts: dict[str, Any] = {name: file[name] for name in named if name in file}
    if "classes" in file:
        facts["classes"] = check.texts(file["classes"], f"{path}: classes").tolist()
    if "columns" in file:
        facts["columns"] = file["columns"].tolist()
    unread = [name for name in others if name not in facts]
    return Source(path, file, parts, facts, ("x", "text"), ("y",), place, unread=unread)


def _open_hdf5(path: Path, how: Reading) -> File:
    with hdf5(path) as opened:
        return _read(_of_hdf5(path, opened), how)


def _of_hdf5(path: Path, opened: h5py.File) -> Source:
    """Return the content of an HDF5 file: train/images, train/x/NAME and so on."""
    file = Nodes(opened)
    if "train" not in file:
        content = ", ".join(file) or "nothing"
        raise DataError(
            f"{path}: holds {content}, but no group 'train'; store train/images, train/labels"
        )
    parts = {part: _of_group(path, file, part) for part in ("train", "test") if part in file}
    facts = {name: attribute(opened.id, name) for name in ("vocabulary", "task", "own_tests")}
    facts["classes"] = json_attribute(opened, "classes")
    facts["columns"] = json_attribute(opened, *COLUMN_NAMES)
    for name in parts["train"]:
        if name.startswith("x/"):
            tokens = attribute(file[f"train/{name}"].id, "vocabulary")
            facts[f"vocabulary/{name.removeprefix('x/')}"] = tokens
    if "jpeg_header" in file:
        facts["jpeg_header"] = whole(file["jpeg_header"], f"{path}: jpeg_header")
    facts = {name: value for name, value in facts.items() if value is not None}
    inputs, labels = ("images", "x", "text", "features"), ("labels", "y")
    unread = [name for name in file if name not in ("train", "test", "jpeg_header")]
    return Source(path, file, parts, facts, inputs, labels, "{}/{}".format, "attribute {}", unread)


def json_attribute(opened: h5py.File, *names: str) -> Any:
    """Return the value of the first of these attributes that a file has, a JSON text; else None."""
    for name in names:
        if (text := attribute(opened.id, name)) is not None:
            return parse_json(text, f"attribute {name!r}")
    return None


def _of_group(path: Path, file: Nodes, part: str) -> list[str]:
    """Return the names of the arrays of a group, of modalities in alphabetical order."""
    group = file[part]
    if not isinstance(group, h5py.Group):
        raise DataError(f"{path}: {part} is not a group; store {part}/images, {part}/labels")
    names = []
    for name in group:
        node = file[f"{part}/{name}"] if name in ("x", "present") else None
        if isinstance(node, h5py.Group) and not len(node):
            raise DataError(f"{path}: group {part}/{name} is empty; store an array each modality")
        modalities = sorted(node) if isinstance(node, h5py.Group) else []
        names += [f"{name}/{modality}" for modality in modalities] or [name]
    return names


def _read(source: Source, how: Reading) -> File:
    """Return the splits of a file, or its tables."""
    path, facts = source.path, source.facts
    classes, vocabulary = facts.get("classes"), source.vocabulary()
    task = _task(path, facts.get("task"), classes)
    numbers, labels = (
        next((name for name in names if name in source.parts["train"] and name != "text"), "")
        for names in (source.inputs, source.labels)
    )
    nodes = [source.file[source.place("train", n)] if n else None for n in (numbers, labels)]
    if not vocabulary and is_table(*nodes):
        _check_widths(source, numbers)
        table, *tests = [_table(source, part, numbers, labels, how) for part in source.parts]
        tables = table, tests[0] if tests else None
        return File(
            None, None, classes, task=task, tables=tables, label=labels, unread=source.unread
        )
    train, *others = [_raw(source, part, how.columns.client) for part in source.parts]
    names = train.x if isinstance(train.x, Mapping) else ()
    vocabularies = {name: source.vocabulary(f"vocabulary/{name}") for name in names}
    test = others[0] if others else None
    own_tests = _own_tests(source, train, test)
    return File(
        train, test, classes, vocabulary, vocabularies, task, own_tests, unread=source.unread
    )


def check_modality(where: str, name: str) -> None:
    """Raise DataError for a name that no modality may have."""
    if not MODALITY.fullmatch(name):
        raise DataError(f"{where}: a modality is named in letters, digits, - and _")


def _own_tests(source: Source, train: Raw, test: Raw | None) -> bool:
    """Return whether test examples belong to the users that they name."""
    stored = source.facts.get("own_tests", 0)
    named = train.users is not None and (test is None or test.users is not None)
    if np.shape(stored) or stored not in (0, 1) or (stored and not named):
        raise DataError(
            f"{source.path}: {source.fact.format('own_tests')} is {stored!s:.50}; store 1 if "
            f"both splits name their users, else remove it"
        )
    return bool(stored)


def _task(path: Path, stored: object, names: Any) -> Task | None:
    """Return the stated task, or None for ""; raise DataError for an invalid one.

    names: of the outputs; raises DataError for invalid ones too.
    """
    try:
        task = make(str(stored)) if stored else None
    except ConfigError as error:
        raise DataError(f"{path}: attribute task: {error}") from error
    if names is not None and not (isinstance(names, list) and names):
        raise DataError(
            f"{path}: attribute 'classes' is {names!r}; store a JSON list of class names"
        )
    for name in names or ():
        check.text(str(name), f"{path}: attribute 'classes'")
    return task


def is_table(x: Any, y: Any) -> bool:
    """Return whether inputs are rows of numbers, each with one label."""
    rows, labels = (getattr(v, "shape", None) for v in (x, y))
    if rows is None or labels is None or len(rows) != 2 or x.dtype.kind not in "biuf":
        return False
    return len(labels) == 1 or labels[1:] == (1,)


def _check_widths(source: Source, inputs: str) -> None:
    """Raise DataError if the rows of the test part have other numbers of columns than training."""
    shapes = {
        source.place(part, inputs): source.file[source.place(part, inputs)].shape
        for part, names in source.parts.items()
        if inputs in names
    }
    widths = {shape[1] for shape in shapes.values() if len(shape) == 2}
    if len(widths) > 1:
        both = ", but ".join(f"{place} is {list(shape)}" for place, shape in shapes.items())
        raise DataError(f"{source.path}: {both}; make them alike")


def _table(source: Source, part: str, inputs: str, labels: str, how: Reading) -> Table:
    """Return rows of numbers, and the arrays beside them, as a table.

    inputs, labels: names of the arrays.
    """
    for name in (inputs, labels):
        source.first(part, [name])
    x, where = source.array(part, inputs), source.where(part, inputs)
    named, missing = source.facts.get("columns"), how.missing_words
    if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "biuf":
        raise DataError(f"{where}: {x.dtype} {list(x.shape)}; store numbers, [n, features]")
    names = [f"x{i}" for i in range(x.shape[1])] if named is None else named
    if not isinstance(names, list) or len(set(map(str, names))) != x.shape[1]:
        raise DataError(
            f"{where}: has {x.shape[1]} columns, but their names are {names!s:.80}; store as many "
            f"different names, or none"
        )
    columns: dict[str, np.ndarray] = {}
    for i, name in enumerate(map(str, names)):
        columns[name] = x[:, i].astype(np.float64)
    odd = {}
    for name in source.parts[part]:
        node = source.file[source.place(part, name)]
        if name == inputs or isinstance(node, h5py.Group):
            continue
        if name in columns:
            raise DataError(
                f"{where}: has a column {name!r}, and {source.place(part, name)} is an array; "
                f"rename the column"
            )
        array = source.array(part, name)
        values = array[:, 0] if array.ndim == 2 and array.shape[1:] == (1,) else array
        if values.shape != (len(x),):
            if name in (labels, *USERS):
                raise DataError(
                    f"{source.where(part, name)}: shape {list(array.shape)}, but there are "
                    f"{len(x)} examples; store one per example"
                )
            odd[name] = f"{array.dtype} {list(array.shape)}"
        elif values.dtype.kind in "biuf":
            columns[name] = values.astype(np.float64)
        elif values.dtype.kind in "OSU":
            words = check.texts(values, source.where(part, name))
            words[[text.strip().lower() in missing for text in words]] = None
            columns[name] = words
        else:
            odd[name] = str(values.dtype)
    return Table(f"{source.path}: {part}", columns, len(x), odd)


def _raw(source: Source, part: str, client: str) -> Raw:
    """Return the inputs, labels and users of one split.

    client: the array of users that the job names.
    """
    arrays, present, inputs = source.parts[part], dict[str, np.ndarray](), "x"
    modalities = [name.removeprefix("x/") for name in arrays if name.startswith("x/")]
    if modalities:
        for name in modalities:
            check_modality(source.where(part, f"x/{name}"), name)
        x: Any = {name: source.array(part, f"x/{name}") for name in modalities}
    elif "jpeg_body" in arrays:
        inputs, x = "images", _decode_jpegs(source, part)
    else:
        inputs = source.first(part, source.inputs)
        x = source.array(part, inputs)
    labels = source.first(part, source.labels)
    y = source.array(part, labels)
    for flags in (name for name in arrays if name.startswith("present/")):
        name, n = flags.removeprefix("present/"), len(y) if y.ndim else 0
        if name not in modalities:
            other = source.place(part, f"x/{name}")
            raise DataError(f"{source.where(part, flags)}: there is no {other}")
        present[name] = check.flags(source.array(part, flags), n, source.where(part, flags))
    users = next((name for name in USERS if name in arrays), USERS[0])
    if client:
        users = client
        if users not in arrays:
            raise DataError(
                f"{source.path}: has no {source.place(part, users)}, which columns.client names; "
                f"name an array with one value per example"
            )
    ids = source.array(part, users) if users in arrays else None
    one, two, three = (source.place(part, name) for name in (inputs, labels, users))
    return Raw(x, y, ids, (one, two, three), present)


def _decode_jpegs(source: Source, part: str) -> np.ndarray:
    """Decode JPEG files that share a header.

    File i is the header followed by jpeg_body[offsets[i] : offsets[i + 1]].
    """
    if "jpeg_header" not in source.facts:
        raise DataError(f"{source.path}: has no jpeg_header; store it at the top")
    header = source.facts["jpeg_header"].tobytes()
    body = source.array(part, "jpeg_body").tobytes()
    offsets = source.array(part, source.first(part, ["jpeg_offsets"]))
    wrong = np.diff(offsets, append=len(body)) < 0
    where, place = source.where(part, "jpeg_offsets"), source.where(part, "jpeg_body")
    first_bad(offsets, wrong | (offsets < 0), where, "offsets rise up to the body's size")
    decoded = []
    for i, (start, stop) in enumerate(pairwise(offsets)):
        try:
            image = Image.open(io.BytesIO(header + body[start:stop]), formats=["JPEG"])
            decoded.append(np.asarray(image.convert("RGB")))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{place}: image {i}: {error}; make the file again") from error
        if decoded[i].shape != decoded[0].shape:
            raise DataError(
                f"{place}: image {i} has shape {list(decoded[i].shape)}, image 0 "
                f"{list(decoded[0].shape)}; make them alike"
            )
        fits(decoded[0].nbytes * len(offsets), place)
    return np.stack(decoded)


def _assemble(path: Path, file: File, how: Reading) -> DataSet:
    assert file.train is not None
    where = f"{path}: {file.train.names[1]}"
    task = stated_task(how, str(path), file.task.name if file.task else "")
    task = task or infer(file.train.y, where)
    file = encode_labels(path, file, task)
    assert file.train is not None
    raws = [file.train, *filter(None, [file.test])]
    splits, user_names = number_users([_split(path, raw, file, task) for raw in raws])
    names = [f"{path}: {raw.names[1]}" for raw in raws]
    classes = task.output_names(file.classes, [split.y for split in splits], names)
    check_alike(path, raws, splits)
    own_tests = file.own_tests
    if file.test is None:
        users = splits[0].users
        own_tests = users is not None
        rows = held_out(str(path), task.strata(splits[0].y), users, how.held_out)
        splits = [splits[0].take(part) for part in rows]
    integers = task.has_classes and file.classes is None
    vocabulary = file.vocabulary
    encoder = Encoder(channels=how.channels, integer_labels=integers)
    notes = () if file.test is None else tuple(other_scales(path, raws, splits))
    facts: Any = {"task": task, "own_tests": own_tests, "encoder": encoder, "notes": notes}
    facts["user_names"] = user_names
    task.check_outputs(len(classes), str(path))
    if isinstance(splits[0].x, Mapping):
        return several(path.stem, splits[0], splits[1], classes, file.vocabularies, **facts)
    if splits[0].x.dtype == object:
        with add_path_to_errors(path):
            splits, tokens = encode(splits, how.text)
        facts["encoder"] = encoder = Encoder(tokens=tokens, integer_labels=integers)
        vocabulary = encoder.vocabulary
    else:
        scale = check.scale_for_models(splits[0].x)
        facts["encoder"] = replace(encoder, scale=scale)
    mean, std = ((), ()) if vocabulary else moments(splits[0].x)
    return DataSet(
        path.stem, splits[0], splits[1], classes, mean, std, vocabulary=vocabulary, **facts
    )


def encode_labels(path: Path, file: File, task: Task) -> File:
    """Return the file with labels 0..C-1 in the place of words, and with the classes' names."""
    raws = [raw for raw in (file.train, file.test) if raw is not None]
    if not any(raw.y.dtype.kind in "OSU" for raw in raws) or not task.has_classes:
        return file
    for raw in raws:
        if raw.y.dtype.kind not in "OSU":
            raise DataError(
                f"{path}: {raw.names[1]}: holds {raw.y.dtype}, but other labels are words; store "
                f"words, or 0..C-1, in both"
            )
    words = [check.texts(raw.y, f"{path}: {raw.names[1]}").astype(str) for raw in raws]
    names = file.classes or np.unique(np.concatenate(words)).tolist()
    number = {name: c for c, name in enumerate(names)}
    encoded: list[Raw | None] = []
    for raw, labels in zip(raws, words, strict=True):
        for row in np.flatnonzero(~np.isin(labels, names))[:1]:
            raise DataError(
                f"{path}: {raw.names[1]}: label {str(labels[row])!r} at index {row}; the classes "
                f"are {join_few(names, 20)}"
            )
        y = np.array([number[label] for label in labels.tolist()], dtype=np.int64)
        encoded.append(replace(raw, y=y))
    return replace(file, train=encoded[0], test=(*encoded, None)[1], classes=list(names))


def check_alike(path: Path, raws: list[Raw], splits: list[Split]) -> None:
    """Raise DataError if the test split has other modalities, or other shapes, than training."""
    forms = []
    for split in splits:
        inputs = split.x if isinstance(split.x, Mapping) else {"": split.x}
        forms.append({n: f"{v.dtype} {list(v.shape[1:])} an example" for n, v in inputs.items()})
    for name in sorted(set().union(*forms)):
        if len({form.get(name) for form in forms}) > 1:
            end = f"/{name}" if name else ""
            train, test = (
                f"{raw.names[0]}{end} is {form.get(name, 'missing')}"
                for raw, form in zip(raws, forms, strict=True)
            )
            raise DataError(f"{path}: {test}, but {train}; make them alike")


def other_scales(path: Path, raws: list[Raw], splits: list[Split]) -> list[str]:
    """Return a line for each array of images whose test part has another scale than training."""
    notes = []
    inputs = [s.x if isinstance(s.x, Mapping) else {"": s.x} for s in splits]
    for name, train in inputs[0].items():
        arrays = [train, inputs[1][name]]
        scales = {check.scale(x) for x in arrays}
        if len(scales) > 1 and all(scales):
            end = f"/{name}" if name else ""
            ranges = [
                f"{raw.names[0]}{end} from {x.min():.3g} to {x.max():.3g}"
                for raw, x in zip(raws, arrays, strict=True)
            ]
            notes.append(
                f"{path}: {', but '.join(ranges)}: scale both alike, or no result on the test "
                f"images means anything"
            )
    return notes


def _split_modalities(path: Path, raw: Raw, file: File, task: Task) -> Split:
    """Return the split of several modalities; each has as many examples as there are labels."""
    n = len(raw.y) if raw.y.ndim else 0
    y = task.check(raw.y, n, f"{path}: {raw.names[1]}")
    users = None if raw.users is None else check.users(raw.users, n, f"{path}: {raw.names[2]}")
    x = {}
    for name, values in raw.x.items():
        where = f"{path}: {raw.names[0]}/{name}"
        if not values.ndim or len(values) != n:
            raise DataError(f"{where}: shape {list(values.shape)}, but there are {n} labels")
        if name in raw.present:
            values = values.copy()
            values[~raw.present[name]] = 0  # missing values may be nan
        tokens = file.vocabularies.get(name, 0)
        x[name] = as_inputs(values, where, tokens, file.channels, modality=True)
    return Split(x, y, users, raw.present)


def _split(path: Path, raw: Raw, file: File, task: Task) -> Split:
    where = f"{path}: {raw.names[0]}"
    if isinstance(raw.x, Mapping):
        return _split_modalities(path, raw, file, task)
    tokens = 0 if raw.x.dtype.kind in "OSU" else file.vocabulary
    x = as_inputs(raw.x, where, tokens, file.channels)
    y = task.check(raw.y, len(x), f"{path}: {raw.names[1]}")
    users = None if raw.users is None else check.users(raw.users, len(x), f"{path}: {raw.names[2]}")
    return Split(x, y, users)


def as_inputs(
    x: np.ndarray, where: str, vocabulary: int, channels: str, modality: bool = False
) -> np.ndarray:
    """Return an array of inputs as batches have it: texts, tokens, images or numbers.

    vocabulary: number of different tokens; 0 for other inputs.  channels: as for `check.images`.
    modality: the array is one of several, so that three axes are a sequence, not images.
    Raises DataError.
    """
    if x.dtype.kind in "OSU" and not (modality or vocabulary):
        return check.texts(x, where)
    if vocabulary:
        return check.tokens(x, vocabulary, where)
    numbers = check.numbers if modality or x.ndim == 2 else check.images
    return numbers(x, where, channels)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of an .npz or HDF5 file, and of groups in it, by their paths.

    The names that an attribute of an HDF5 file gives the columns are an array `columns`.
    """
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                return {"x": file}
            check_unpacked(path, file)
            return {name: file[name] for name in file}
    with hdf5(path) as opened:
        nodes = Nodes(opened)
        places: list[str] = []
        for name in nodes:
            node = nodes[name]
            is_group = isinstance(node, h5py.Group)
            places += [f"{name}/{part}" for part in node] if is_group else [name]
        arrays = {place: whole(nodes[place], f"{path}: {place}") for place in places}
        named = json_attribute(opened, *COLUMN_NAMES)
        if named is not None and "columns" not in arrays:
            arrays["columns"] = np.array(named, object)
        return arrays


def number_users(splits: list[Split]) -> tuple[list[Split], tuple[str, ...]]:
    """Return the splits with users as int64, and the users' names.

    They are numbered in the order of their ids, consistently in both splits.
    """
    user_ids = [split.users for split in splits if split.users is not None]
    if not user_ids:
        return splits, ()
    if not all(ids.dtype.kind in "iu" for ids in user_ids):
        user_ids = [ids.astype(str) for ids in user_ids]
    ids_in_order = np.unique(np.concatenate(user_ids))
    numbers = iter([np.searchsorted(ids_in_order, ids) for ids in user_ids])
    numbered = [
        s if s.users is None else replace(s, users=next(numbers).astype(np.int64)) for s in splits
    ]
    return numbered, tuple(map(str, ids_in_order.tolist()))
