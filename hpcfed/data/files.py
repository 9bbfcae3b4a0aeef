"""Users' own data in HDF5 and NPZ files, read without pickle and checked before use."""

import io
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from hpcfed.core.errors import ConfigError, DataError, first_bad
from hpcfed.core.safe_read import parse_json
from hpcfed.core.wording import join_few
from hpcfed.data import check
from hpcfed.data.dataset import COLUMNS, DataSet, Reading, Split, several
from hpcfed.data.moments import moments
from hpcfed.data.tables import Table, held_out, stated_task, to_dataset
from hpcfed.data.text import encode
from hpcfed.data.user_arrays import Nodes, add_path_to_errors, fits, hdf5, readable, whole
from hpcfed.storage.untrusted import attribute
from hpcfed.tasks import Task, infer, make

ADVICE = "make or copy it again, or check --data.name (pickled objects are never read)"
MODALITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # valid name of a modality
LABELS, INPUTS = ("labels", "y"), ("images", "x", "features")  # names in an HDF5 file
USERS = ("users", "user_hash")


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
    modality that some examples lack; the values in their place are not read.

    NPZ: x_train (or text_train), y_train, x_test, y_test, and optionally users_train, users_test,
    vocabulary, classes and own_tests. Several modalities are arrays x_train/NAME and x_test/NAME,
    with vocabulary/NAME for tokens.

    Labels without a stated task are 0..C-1, or words: the classes are then `classes`, or the
    different words in their alphabetical order; or they are fractions, which are targets.

    Without a test split, a fixed, stratified share of the training examples is held out. Mean and
    deviation, and the vocabulary of texts, are those of the training split.

    Rows of numbers, [n, features], named images, x or features, are a table (`hpcfed.data.tables`).
    An array `columns` (NPZ) or an attribute `columns` or `features` (HDF5: a JSON list) names its
    columns; otherwise they are x0, x1, .... The other arrays [n] beside them are columns too, which
    the job may name.

    how: settings for texts and for own data. `columns.client` names the array of users.
    Raises DataError with file, array, index and value for whatever cannot be used.
    """
    how = how or Reading()
    with readable(path, ADVICE):
        file = _open_npz(path, how) if path.suffix == ".npz" else _read_hdf5(path, how)
    return _dataset(path, file, how)


def from_arrays(name: str, arrays: Mapping[str, np.ndarray], how: Reading) -> DataSet:
    """Return the data set of arrays by the names of an .npz file; raises as `read`.

    name: opens messages, in the place of the file.
    """
    return _dataset(Path(name), _read_npz(Path(name), arrays, how), how)


def _dataset(path: Path, file: File, how: Reading) -> DataSet:
    check_idle(path, file, how)
    if file.tables:
        train, test = file.tables
        columns = how.columns
        roles = {
            "label": columns.label or file.label,
            "client": columns.client or next((u for u in USERS if u in train.names), ""),
        }
        numbered = roles["label"] == file.label and train.columns[file.label].dtype != object
        names = file.classes if numbered else None
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


def _open_npz(path: Path, how: Reading) -> File:
    with np.load(path, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path}: is one array; save x_train, y_train, x_test, y_test with numpy.savez"
            )
        assert file.zip is not None  # it is open
        fits(sum(member.file_size for member in file.zip.infolist()), str(path))
        return _read_npz(path, file, how)


def _read_npz(path: Path, file: Mapping[str, np.ndarray], how: Reading) -> File:
    parts = ["train"]
    if any(name.split("_")[0] in ("x", "text", "y") for name in file if "_test" in name):
        parts.append("test")
    classes = _npz_classes(path, file)
    if is_table(file.get("x_train"), file.get("y_train")) and "vocabulary" not in file:
        named = file["columns"].tolist() if "columns" in file else None
        missing = how.missing_words
        tables = [
            _table(path, _endings(file, p), "x", ("y",), named, "{}_" + p, missing) for p in parts
        ]
        pair = (tables[0], tables[1] if len(tables) > 1 else None)
        return File(None, None, classes, tables=pair, label="y")
    client, modal = how.columns.client, any(name.startswith("x_train/") for name in file)
    raws = [
        _npz_modalities(path, file, part, client)
        if modal
        else _raw(path, file, "{}_" + part, x=("x", "text"), y=("y",), client=client)
        for part in parts
    ]
    size = check.vocabulary(file.get("vocabulary", 0), f"{path}: vocabulary")
    sizes = {
        name: check.vocabulary(file.get(f"vocabulary/{name}", 0), f"{path}: vocabulary/{name}")
        for name in (raws[0].x if modal else ())
    }
    test = raws[1] if len(raws) > 1 else None
    separate_tests = _own_tests(f"{path}: own_tests", file.get("own_tests", 0), raws[0], test)
    return File(raws[0], test, classes, size, sizes, own_tests=separate_tests)


def _npz_classes(path: Path, file: Mapping[str, np.ndarray]) -> list[str] | None:
    """Return the names of the classes in an .npz file, or None."""
    if "classes" not in file:
        return None
    return check.texts(file["classes"], f"{path}: classes").tolist()


def _npz_modalities(path: Path, file: Mapping[str, np.ndarray], part: str, client: str) -> Raw:
    """Return a split whose inputs are the arrays x_PART/NAME, in the file's order."""
    start = f"x_{part}/"
    arrays = {name.removeprefix(start): file[name] for name in file if name.startswith(start)}
    for name in arrays:
        check_modality(f"{path}: {start}{name}", name)
    if f"y_{part}" not in file:
        raise DataError(f"{path}: has no y_{part}; store it there")
    users = users_place(path, file, "{}_" + part, client)
    return Raw(arrays, file[f"y_{part}"], file.get(users, None), (f"x_{part}", f"y_{part}", users))


def check_modality(where: str, name: str) -> None:
    """Raise DataError for a name that no modality may have."""
    if not MODALITY.fullmatch(name):
        raise DataError(f"{where}: a modality is named in letters, digits, - and _")


def _own_tests(where: str, stored: Any, train: Raw, test: Raw | None) -> bool:
    """Return whether test examples belong to the users that they name."""
    named = train.users is not None and (test is None or test.users is not None)
    if np.shape(stored) or stored not in (0, 1) or (stored and not named):
        raise DataError(
            f"{where} is {stored!s:.50}; store 1 where both splits name their users, else leave it "
            f"away"
        )
    return bool(stored)


def _read_hdf5(path: Path, how: Reading) -> File:
    with hdf5(path) as opened:
        file = Nodes(opened)
        if "train" not in file:
            content = ", ".join(file) or "nothing"
            raise DataError(
                f"{path}: holds {content}, but no group 'train'; store train/images, train/labels"
            )
        stored = attribute(opened, "classes")
        names = None if stored is None else parse_json(stored, "attribute 'classes'")
        if (tables := _hdf5_tables(path, file, opened, how)) is not None:
            task = _task(path, attribute(opened, "task", ""), names)
            return File(None, None, names, task=task, tables=tables[:2], label=tables[2])
        train = _raw_group(path, file, "train", how.columns.client)
        test = _raw_group(path, file, "test", how.columns.client) if "test" in file else None
        vocabulary = check.vocabulary(
            attribute(opened, "vocabulary", 0), f"{path}: attribute vocabulary"
        )
        vocabularies = {
            name: check.vocabulary(
                attribute(file[f"train/x/{name}"], "vocabulary", 0), f"{path}: train/x/{name}"
            )
            for name in (train.x if isinstance(train.x, Mapping) else ())
        }
        task = _task(path, attribute(opened, "task", ""), names)
        own_tests = attribute(opened, "own_tests", 0)
    separate_tests = _own_tests(f"{path}: attribute own_tests", own_tests, train, test)
    return File(train, test, names, vocabulary, vocabularies, task, separate_tests)


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


def _endings(file: Mapping, part: str) -> dict[str, np.ndarray]:
    """Return the arrays of one split of an .npz file, by their names without the split's ending."""
    end = f"_{part}"
    return {name.removesuffix(end): file[name] for name in file if name.endswith(end)}


def _hdf5_tables(
    path: Path, file: Nodes, opened: h5py.File, how: Reading
) -> tuple[Table, Table | None, str] | None:
    """Return the tables of an HDF5 file, and the name of their labels.

    Returns None unless the inputs are rows of numbers.
    """
    if not isinstance(file["train"], h5py.Group) or attribute(opened, "vocabulary", 0):
        return None
    parts = {part: file[part] for part in ("train", "test") if part in file}
    inputs = next((name for name in INPUTS if f"train/{name}" in file), "")
    labels = next((name for name in LABELS if f"train/{name}" in file), "")
    nodes = [file[f"train/{name}"] if name else None for name in (inputs, labels)]
    if not is_table(*nodes):
        return None
    attributes = (attribute(opened, name) for name in ("columns", "features"))
    stored = next((value for value in attributes if value is not None), None)
    named = None if stored is None else parse_json(stored, "attribute 'columns'")
    tables = []
    for part, group in parts.items():
        if not isinstance(group, h5py.Group):
            raise DataError(f"{path}: {part} is no group; store {part}/{inputs}, {part}/{labels}")
        arrays = {
            name: whole(node, f"{path}: {part}/{name}")
            for name in group
            if isinstance(node := file[f"{part}/{name}"], h5py.Dataset)
        }
        tables.append(
            _table(path, arrays, inputs, (labels,), named, part + "/{}", how.missing_words)
        )
    return tables[0], tables[1] if len(tables) > 1 else None, labels


def _table(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    inputs: str,
    labels: tuple[str, ...],
    named: Any,
    place: str,
    missing: Collection[str],
) -> Table:
    """Return rows of numbers, and the arrays beside them, as a table.

    missing: the words that stand for missing values, in lower case.
    place: the place of an array, as in "train/{}".
    """
    for name in (inputs, *labels):
        if name not in arrays:
            raise DataError(f"{path}: has no {place.format(name)}; store it there")
    x, where = arrays[inputs], f"{path}: {place.format(inputs)}"
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
    for name, array in arrays.items():
        if name == inputs:
            continue
        values = array[:, 0] if array.ndim == 2 and array.shape[1:] == (1,) else array
        if values.shape != (len(x),):
            if name in (*labels, *USERS):
                raise DataError(
                    f"{path}: {place.format(name)}: shape {list(array.shape)}, but there are "
                    f"{len(x)} examples; store one an example"
                )
            odd[name] = f"{array.dtype} {list(array.shape)}"
        elif values.dtype.kind in "biuf":
            columns[name] = values.astype(np.float64)
        elif values.dtype.kind in "OSU":
            words = check.texts(values, f"{path}: {place.format(name)}")
            words[[text.strip().lower() in missing for text in words]] = None
            columns[name] = words
        else:
            odd[name] = str(values.dtype)
    return Table(f"{path}: {place.split('/')[0].strip('{}_')}", columns, len(x), odd)


def _raw_group(path: Path, file: Nodes, part: str, client: str = "") -> Raw:
    if not isinstance(file[part], h5py.Group):
        raise DataError(f"{path}: {part} is no group; store {part}/images, {part}/labels")
    if f"{part}/x" in file and isinstance(file[f"{part}/x"], h5py.Group):
        return _raw_modalities(path, file, part, client)
    place, inputs = part + "/{}", ("images", "x", "text", "features")
    if f"{part}/jpeg_body" not in file:
        return _raw(path, file, place, x=inputs, y=LABELS, client=client)
    places = [f"{part}/{key}" for key in ("labels", client or "users")]
    arrays = {place: file[place] for place in places if place in file}
    arrays[f"{part}/images"] = _decode_jpegs(path, file, part)
    return _raw(path, arrays, place, x=("images",), y=("labels",), client=client)


def _raw_modalities(path: Path, file: Nodes, part: str, client: str) -> Raw:
    """Return a split whose inputs are a group of modalities, in alphabetical order."""
    place = f"{part}/x"
    names = sorted(file[place])
    if not names:
        raise DataError(f"{path}: group {place} is empty; store an array for each modality")
    for name in names:
        check_modality(f"{path}: {place}/{name}", name)
    arrays = {name: _values(path, file, f"{place}/{name}") for name in names}
    present = f"{part}/present"
    flags = {
        name: _values(path, file, f"{present}/{name}")
        for name in (sorted(file[present]) if present in file else ())
    }
    for name in flags:
        if name not in arrays:
            raise DataError(f"{path}: {part}/present/{name}: there is no {place}/{name}")
    key = next((k for k in ("labels", "y") if f"{part}/{k}" in file), None)
    if key is None:
        raise DataError(f"{path}: has no {part}/labels or {part}/y; store it there")
    users = users_place(path, file, part + "/{}", client)
    ids = _values(path, file, users) if users in file else None
    y = _values(path, file, f"{part}/{key}")
    return Raw(arrays, y, ids, (place, f"{part}/{key}", users), flags)


def users_place(path: Path, arrays: Mapping, place: str, client: str) -> str:
    """Return the place of the examples' users, whether or not it exists.

    client: the array that the job names.
    Raises DataError if that array is missing.
    """
    if client and place.format(client) not in arrays:
        raise DataError(
            f"{path}: has no {place.format(client)}, which columns.client names; name an array "
            f"with a value an example"
        )
    names = map(place.format, (client,) if client else USERS)
    return next((name for name in names if name in arrays), place.format(USERS[0]))


def _raw(
    path: Path,
    arrays: Mapping,
    place: str,
    x: tuple[str, ...],
    y: tuple[str, ...],
    client: str = "",
) -> Raw:
    """Return the inputs, labels and users of one split.

    place: the place of an array, as in "train/{}" or "{}_train".
    client: the array of users that the job names.
    """
    inputs, labels = (_first(path, arrays, [place.format(n) for n in any_of]) for any_of in (x, y))
    users = users_place(path, arrays, place, client)
    ids = _values(path, arrays, users) if users in arrays else None
    return Raw(
        _values(path, arrays, inputs), _values(path, arrays, labels), ids, (inputs, labels, users)
    )


def _first(path: Path, arrays: Mapping, places: list[str]) -> str:
    """Return the first of these places that has an array. Raises DataError if none has."""
    for place in places:
        if place in arrays:
            return place
    raise DataError(f"{path}: has no {' or '.join(places)}; store it there")


def _values(path: Path, arrays: Mapping, name: str) -> np.ndarray:
    node = arrays[name]
    return node if isinstance(node, np.ndarray) else whole(node, f"{path}: {name}")


def _decode_jpegs(path: Path, file: Nodes, part: str) -> np.ndarray:
    """Decode JPEG files that share a header.

    File i is the header followed by jpeg_body[offsets[i] : offsets[i + 1]].
    """
    names = ("jpeg_header", f"{part}/jpeg_body", f"{part}/jpeg_offsets")
    *parts, offsets = (_values(path, file, name) for name in names)
    header, body = (part.tobytes() for part in parts)
    wrong = np.diff(offsets, append=len(body)) < 0
    where = f"{path}: {part}/jpeg_offsets"
    first_bad(offsets, wrong | (offsets < 0), where, "offsets rise up to the body's size")
    decoded = []
    for i, (start, stop) in enumerate(pairwise(offsets)):
        try:
            image = Image.open(io.BytesIO(header + body[start:stop]), formats=["JPEG"])
            decoded.append(np.asarray(image.convert("RGB")))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{path}: {part}/jpeg_body: image {i}: {error}; make the file again"
            ) from error
        if decoded[i].shape != decoded[0].shape:
            raise DataError(
                f"{path}: {part}/jpeg_body: image {i} has shape {list(decoded[i].shape)}, image 0 "
                f"{list(decoded[0].shape)}; make them alike"
            )
        fits(decoded[0].nbytes * len(offsets), f"{path}: {part}/jpeg_body")
    return np.stack(decoded)


def _assemble(path: Path, file: File, how: Reading) -> DataSet:
    assert file.train is not None
    where = f"{path}: {file.train.names[1]}"
    task = stated_task(how, str(path), file.task.name if file.task else "")
    task = task or infer(file.train.y, where)
    file = encode_labels(path, file, task)
    assert file.train is not None
    train, raws = file.train, [file.train, *filter(None, [file.test])]
    splits = number_users([_split(path, raw, file, task) for raw in raws])
    names = [f"{path}: {raw.names[1]}" for raw in raws]
    classes = task.output_names(file.classes, [split.y for split in splits], names)
    for raw, split in zip(raws, splits, strict=True):
        if isinstance(split.x, Mapping) or isinstance(splits[0].x, Mapping):
            _alike(path, split.x, splits[0].x)
        elif split.x.shape[1:] != splits[0].x.shape[1:] or split.x.dtype != splits[0].x.dtype:
            raise DataError(
                f"{path}: {raw.names[0]} is {split.x.dtype} {list(split.x.shape[1:])} an "
                f"example, but "
                f"{train.names[0]} is {splits[0].x.dtype} {list(splits[0].x.shape[1:])}; make "
                f"them alike"
            )
    if file.test is None:
        rows = held_out(str(path), task.strata(splits[0].y), None, how.held_out)
        splits = [splits[0].take(part) for part in rows]
    vocabulary = file.vocabulary
    facts: Any = {"task": task, "own_tests": file.own_tests}
    task.check_outputs(len(classes), str(path))
    if isinstance(splits[0].x, Mapping):
        return several(path.stem, splits[0], splits[1], classes, file.vocabularies, **facts)
    if splits[0].x.dtype == object:
        with add_path_to_errors(path):
            splits, vocabulary = encode(splits, how.text)
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


def _alike(path: Path, x: Any, reference: Any) -> None:
    """Raise DataError if the test split has other modalities, or other shapes of them."""
    kinds = [
        {name: (v.shape[1:], v.dtype) for name, v in part.items()}
        if isinstance(part, Mapping)
        else {}
        for part in (x, reference)
    ]
    for name in sorted(kinds[0].keys() | kinds[1].keys()):
        actual, wanted = (kind.get(name) for kind in kinds)
        if actual != wanted:
            forms = [
                f"{v[1]} {list(v[0])} an example" if v else "missing" for v in (actual, wanted)
            ]
            raise DataError(
                f"{path}: test/x/{name} is {forms[0]}, but train/x/{name} is {forms[1]}; make them "
                f"alike"
            )


def _split_modalities(path: Path, raw: Raw, file: File, task: Task) -> Split:
    """Return the split of several modalities; each has as many examples as there are labels."""
    n = len(raw.y) if raw.y.ndim else 0
    y = task.check(raw.y, n, f"{path}: {raw.names[1]}")
    users = None if raw.users is None else check.users(raw.users, n, f"{path}: {raw.names[2]}")
    part = raw.names[0].removesuffix("/x")
    x, present = {}, {}
    for name, values in raw.x.items():
        where = f"{path}: {raw.names[0]}/{name}"
        if not values.ndim or len(values) != n:
            raise DataError(f"{where}: shape {list(values.shape)}, but there are {n} labels")
        if name in raw.present:
            present[name] = check.flags(raw.present[name], n, f"{path}: {part}/present/{name}")
            values = values.copy()
            values[~present[name]] = 0  # missing values may be nan
        tokens = file.vocabularies.get(name, 0)
        x[name] = (
            check.tokens(values, tokens, where)
            if tokens
            else check.numbers(values, where, file.channels)
        )
    return Split(x, y, users, present)


def _split(path: Path, raw: Raw, file: File, task: Task) -> Split:
    where = f"{path}: {raw.names[0]}"
    if isinstance(raw.x, Mapping):
        return _split_modalities(path, raw, file, task)
    if raw.x.dtype.kind in "OSU":
        x = check.texts(raw.x, where)
    else:
        numbers = check.numbers if raw.x.ndim == 2 else check.images
        tokens = file.vocabulary
        x = check.tokens(raw.x, tokens, where) if tokens else numbers(raw.x, where, file.channels)
    y = task.check(raw.y, len(x), f"{path}: {raw.names[1]}")
    users = None if raw.users is None else check.users(raw.users, len(x), f"{path}: {raw.names[2]}")
    return Split(x, y, users)


def number_users(splits: list[Split]) -> list[Split]:
    """Return the splits with users as int64.

    Users with text ids are numbered, consistently in both splits.
    """
    user_ids = [split.users for split in splits if split.users is not None]
    if not all(ids.dtype.kind in "iu" for ids in user_ids):
        names = np.unique(np.concatenate([ids.astype(str) for ids in user_ids]))
        user_ids = [np.searchsorted(names, ids.astype(str)) for ids in user_ids]
    numbers = iter(user_ids)
    return [
        s if s.users is None else replace(s, users=next(numbers).astype(np.int64)) for s in splits
    ]
