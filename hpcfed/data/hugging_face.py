"""Data sets of Hugging Face, `hf:NAME`, through its package `datasets` (the extra `hpcfed[hf]`)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image, ImageOps

from hpcfed.core.errors import DataError
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.wording import join_few
from hpcfed.data import image_folder, tables
from hpcfed.data.dataset import COLUMNS, DataSet, Reading
from hpcfed.data.table import LABELS, Table, check_columns, from_arrow
from hpcfed.data.user_arrays import fits

START = "hf:"
TRAIN, TEST = "train", ("test", "validation", "valid", "dev")
FEW = 8  # maximum names in a message
BATCH = 256  # images that are read from the disk at a time


def load(name: str, download: bool, how: Reading) -> DataSet:
    """Load the data set that hf:NAME, hf:NAME:CONFIGURATION or hf:FOLDER names.

    NAME is a data set of the hub. It is taken from the cache of `datasets`, and downloaded only if
    it is not there and data.download allows it. FOLDER was written by `save_to_disk`. No code of a
    data set is run, and files and hosts that its rows name are not opened (`Images`). The split
    train is the training part. The test part is the split test, else validation, else a share of
    train that is held out.
    The fields columns.label, columns.client and so on give the roles of columns, as in a table
    (`hpcfed.data.tables.read`); with columns.text or columns.image that one column is the input. A
    single column of images is found automatically. Labels with names (ClassLabel) keep them, in
    their order. Images are grey if all of them are, else RGB; data.image_size scales them.
    Raises ConfigError if the package is missing, and DataError for data that are missing or cannot
    be used.
    """
    library = import_extra("datasets", "hf", f"data.name = {name}")
    parts = open_parts(library, name, download)
    train = parts[TRAIN]
    test = next((parts[other] for other in TEST if other in parts), None)
    if hidden(test, how):
        test = None
    share = {"data.held_out"} if test is None and not how.columns.test else set()
    if image := image_column(library, name, train, how):
        allowed = {"data.image_size"}
        allowed |= {f"columns.{what}" for what in ("image", "client", "positive", *tables.ROLES)}
        how.refuse_others(name, "images" + (" with tests" if not share else ""), allowed | share)
        return of_images(library, name, train, test, image, how)
    without = "" if share else " with test examples"
    how.refuse_others(name, f"a data set without images{without}", share | set(COLUMNS))
    both = [
        table_of(library, part, f"{name}: {which}", how)
        for which, part in (("train", train), ("test", test))
        if part is not None
    ]
    task = tables.stated_task(how, both[0].where)
    names = tables.label_columns(both[0], how, task)
    classes = names_of(library, name, [train, test], names)
    how = replace(how, test_file=None, image_size=0)
    return tables.to_dataset(
        title(name), both[0], both[1] if test is not None else None, how, classes
    )


def title(name: str) -> str:
    """Return the title of the data: the last part of the name."""
    return Path(name.removeprefix(START)).stem


def open_parts(library: ModuleType, name: str, download: bool) -> dict[str, Any]:
    """Return the splits of a data set by name; raises DataError if there is none."""
    address = name.removeprefix(START)
    folder = os.path.expanduser(address)
    try:
        if os.path.isdir(folder):
            dataset = library.load_from_disk(folder)
        else:
            base, _, configuration = address.partition(":")
            with nullcontext() if download else offline(library):
                dataset = library.load_dataset(
                    base, configuration or None, download_mode="reuse_dataset_if_exists"
                )
    except Exception as error:  # the hub's client raises exceptions of any type
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = (
            "check the name and the network"
            if download
            else "data.download is false, so only what the cache holds is read"
        )
        raise DataError(
            f"{name}: `datasets` cannot load it: {why}; {hint}: hf:NAME, hf:NAME:CONFIGURATION, or "
            f"hf:FOLDER of save_to_disk"
        ) from error
    parts = dict(dataset) if isinstance(dataset, dict) else {TRAIN: dataset}
    if TRAIN not in parts:
        raise DataError(f"{name}: has no split train, but {join_few(list(parts), FEW)}")
    return parts


@contextmanager
def offline(library: ModuleType) -> Iterator[None]:
    """Make `datasets` and the hub's client read only their caches inside the block."""
    places = [library.config, import_module("huggingface_hub.constants")]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            # like the environment variable, which is read only at import
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def hidden(test: Any, how: Reading) -> bool:
    """Return whether a split's labels are not public, that is, all of them are -1."""
    label = how.columns.label or next(
        (c for c in (test.column_names if test is not None else ()) if c.lower() in LABELS),
        "",
    )
    if test is None or label not in test.column_names:
        return False
    values = arrow(test.select_columns([label]), label).column(label).to_pylist()
    return bool(values) and all(v == -1 for v in values)


def image_column(library: ModuleType, name: str, part: Any, how: Reading) -> str:
    """Return the column of images that is the input; "" for none."""
    images = [c for c, kind in part.features.items() if isinstance(kind, library.Image)]
    wanted = how.columns.image
    if wanted and wanted not in images:
        raise DataError(
            f"{name}: columns.image = {wanted!r} is not a column of images; there are "
            f"{join_few(images, FEW) or 'none'}"
        )
    others = how.columns.text or how.columns.inputs
    return wanted or (images[0] if len(images) == 1 and not others else "")


def names_of(
    library: ModuleType, name: str, parts: Sequence[Any], labels: Collection[str]
) -> list[str] | None:
    """Return the names of the classes 0..C-1, or None if they have no names.

    parts: the splits of training and test, or None.  labels: the columns of labels.
    Raises DataError if the test split has other names, or another order.
    """
    label = next(iter(labels))
    kinds = [part.features.get(label) for part in parts if part is not None]
    train, *tests = [list(k.names) if isinstance(k, library.ClassLabel) else [] for k in kinds]
    for test in filter(None, tests):
        if train and test != train:
            raise DataError(
                f"{name}: {label} is of the classes {join_few(test, FEW)} in the test split, but "
                f"of {join_few(train, FEW)} in training; save both with the same names"
            )
    return train or None


def table_of(library: ModuleType, part: Any, where: str, how: Reading) -> Table:
    """Return all columns as a table, except images and other media."""
    plain = [c for c, kind in part.features.items() if not hasattr(kind, "decode_example")]
    plain += [c for c, kind in part.features.items() if isinstance(kind, library.ClassLabel)]
    columns = [c for c in part.column_names if c in plain]
    fits(part.data.nbytes, where)
    return from_arrow(arrow(part.select_columns(columns), where), where, how.missing_words)


def arrow(part: Any, where: str) -> Any:
    """Return the columns of a split as an Arrow table, as they are stored; raises DataError."""
    try:
        return part.with_format("arrow")[:]
    except Exception as error:  # `datasets` and Arrow raise exceptions of any type
        raise DataError(f"{where}: cannot be read: {error}; save the data set again") from error


def of_images(
    library: ModuleType, name: str, train: Any, test: Any, image: str, how: Reading
) -> DataSet:
    """Make a data set whose inputs are the images of one column."""
    both = [train] if test is None else [train, test]
    parsed = [
        table_of(library, part, f"{name}: {which}", how)
        for part, which in zip(both, ("train", "test"), strict=False)
    ]
    task = tables.stated_task(how, parsed[0].where)
    columns = tables.label_columns(parsed[0], how, task)
    role = tables.Roles(columns, how.columns.client, (), task)
    if column := how.columns.client:
        check_columns(parsed[0], "client", column)
    for table in parsed:
        check_columns(table, "label", *columns)
    classes = names_of(library, name, [train, test], columns)
    y, names, task = tables.labels(parsed, role, how, classes)
    users, user_names = tables.clients(parsed, how.columns.client)
    for part, which in zip(both, ("train", "test"), strict=False):
        if not len(part):
            raise DataError(f"{name}: the split of {which} examples is empty; save it with rows")
    decoder = Images(library, image, name)
    images = [partial(decoder, part) for part in both]
    facts: Any = {"name": title(name), "classes": names, "user_names": user_names}
    data = image_folder.of_images(name, images, y, users, task, how, **facts)
    integers = tables.have_integer_labels(parsed, role, task, classes, names)
    return replace(data, encoder=replace(data.encoder, integer_labels=integers))


class Images:
    """Reads the images of a column: `Images(...)(part)` yields them, each with its place.

    They are decoded here, not by `datasets`, which would open any file and ask any host that a row
    names, and would leave the choice of the format to the bytes. Here an image is the bytes in the
    row, or a file in the cache of `datasets` or of the hub, where downloads are; of the formats
    that folders of images have.
    """

    def __init__(self, library: ModuleType, column: str, name: str):
        self.column, self.name = column, name
        hub = import_module("huggingface_hub.constants")
        caches = (library.config.HF_DATASETS_CACHE, hub.HF_HUB_CACHE)
        self.caches = [Path(cache).resolve() for cache in caches]

    def __call__(self, part: Any) -> Iterator[tuple[str, Image.Image]]:
        """Yield the images of a split. Raises DataError."""
        rows = part.select_columns([self.column])
        for start in range(0, len(rows), BATCH):
            some = rows.select(range(start, min(start + BATCH, len(rows))))
            cells = arrow(some, self.name).column(self.column).to_pylist()
            for i, cell in enumerate(cells, start=start):
                where = f"{self.name}: image {i}"
                yield where, self.decode(cell, where, part.features[self.column].mode)

    def decode(self, cell: Any, where: str, mode: str | None) -> Image.Image:
        """Return the image of a row, upright, in the mode of its column."""
        image = image_folder.opened(self.source(cell, where), where)
        try:
            upright = ImageOps.exif_transpose(image)
            return upright.convert(mode) if mode else upright
        except Exception as error:  # Pillow raises exceptions of many types over damaged images
            raise DataError(
                f"{where}: is not a whole image: {error or type(error).__name__}; save it again"
            ) from error

    def source(self, cell: Any, where: str) -> Path | BytesIO:
        """Return the bytes of a row's image, or its file in a cache."""
        value = cell if isinstance(cell, dict) else {}
        if isinstance(value.get("bytes"), bytes):
            return BytesIO(value["bytes"])
        if not (path := value.get("path")):
            raise DataError(f"{where}: is empty; leave the row out")
        if "\0" not in path and "://" not in path:
            file = Path(path).resolve()
            if any(file.is_relative_to(cache) for cache in self.caches):
                return file
        raise DataError(
            f"{where}: names {path!r} in place of an image; only images within the data set are "
            f"read: save it with their bytes (`datasets.table.embed_table_storage`)"
        )
