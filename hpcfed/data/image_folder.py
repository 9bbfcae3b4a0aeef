"""Data sets from a folder of images, with one folder per class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from hpcfed.config.sections import Columns
from hpcfed.core.encoder import Encoder
from hpcfed.core.errors import DataError, unknown
from hpcfed.core.paths import regular
from hpcfed.core.wording import count_noun
from hpcfed.data.dataset import DataSet, Reading, Split
from hpcfed.data.moments import moments
from hpcfed.data.table import Table, check_columns, read_table
from hpcfed.data.tables import clients, held_out, positive_last
from hpcfed.data.user_arrays import fits
from hpcfed.tasks import Task
from hpcfed.tasks.binary import Binary
from hpcfed.tasks.classification import Classification

ENDS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".gif")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
DEEP = ("I", "I;16", "I;16B", "I;16L")  # Pillow's modes of images of more than 8 bits
GREY = ("1", "L", "LA", *DEEP)  # of images without colour
COLOUR = ("P", "RGB", "RGBA", "CMYK", "YCbCr")
DARK = 4096  # least value that an image of 16 bits has somewhere; 12 bits have none as large
TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")  # the first of these folders has the test images
LIST, NAME = "metadata.csv", "file_name"  # as Hugging Face's image folders have them
FOLDER = "folder"  # the value of columns.client if the first level of folders names the clients


def read(folder: Path, how: Reading) -> DataSet:
    """Read FOLDER/CLASS/images, or FOLDER/train/CLASS/images and, if present, FOLDER/test.

    Without FOLDER/test the test images are those of FOLDER/val, valid or validation, if one of them
    is there; beside FOLDER/test these are not read.
    Classes are the names of the folders, in alphabetical order, as are the images of each class.
    Images are uint8, grey if all of them are, else RGB without transparency. `data.image_size`
    scales them, width and height independently; without it all must have the same size. Files whose
    endings are not those of images are ignored.
    With `columns.client`, metadata.csv in the folder (or in train, and in test) names the client of
    each image: a column file_name, such as CLASS/IMAGE.png, and the column of clients. With
    `columns.client = "folder"` the folders of classes are in those of clients, as PACS,
    Office-Caltech and DomainNet have their domains: CLIENT/CLASS/images. Each client is tested on
    its own test images.
    Raises DataError.
    """
    parted = (folder / TRAIN).is_dir()
    train = folder / TRAIN if parted else folder
    tests = [folder / name for name in TESTS if parted and (folder / name).is_dir()]
    test = tests[0] if tests else None
    taken = {"data.image_size", "columns.client", "columns.positive"} | (
        set() if test else {"data.held_out"}
    )
    how.refuse_others(str(folder), f"a folder of images{' with tests' if test else ''}", taken)
    places = [train, test] if test else [train]
    by_folder = how.columns.client == FOLDER
    homes = [homes_of(place, how.domains) if by_folder else [place] for place in places]
    classes = classes_in(homes[0])
    if not classes:
        inside = " in the folder of each client" if by_folder else ""
        raise DataError(
            f"{train}: holds no folders with images; make a folder for each class{inside}, and in "
            f"it files that end in {', '.join(ENDS[:3])} ..."
        )
    if test and (foreign := [name for name in classes_in(homes[1]) if name not in classes]):
        raise DataError(f"{test}: class {foreign[0]!r} is not in {train}; classes are its folders")
    lists = [list_images(of_place, classes) for of_place in homes]
    for images, place in zip(lists, places, strict=True):
        if not images.files:
            deeper = not by_folder and any(classes_of(train / name) for name in classes)
            hint = f"set columns.client = '{FOLDER}' for CLIENT/CLASS/images, or " if deeper else ""
            raise DataError(f"{place}: holds no images; {hint}remove the folder, or fill it")
    users: list[np.ndarray | None] = [None] * len(places)
    user_names: tuple[str, ...] = ()
    if by_folder:
        user_names = tuple(home.name for home in homes[0])
        users = [
            np.array(client_numbers(of_place, user_names))[images.homes]
            for of_place, images in zip(homes, lists, strict=True)
        ]
    elif column := how.columns.client:
        listings = [
            clients_of(place, images.files, column)
            for place, images in zip(places, lists, strict=True)
        ]
        users, user_names = clients(listings, column)
    y, names = [images.labels for images in lists], tuple(classes)
    task: Task = Classification()
    if positive := how.columns.positive:
        y, names = positive_last(str(folder), y, names, positive)
        task = Binary()
    splits = [partial(each, images.files) for images in lists]
    facts: Any = {"name": folder.resolve().name, "classes": names, "user_names": user_names}
    facts["notes"] = (*notes_on(tests), *(line for one in lists for line in notes_inside(one)))
    return of_images(str(folder), splits, y, users, task, how, **facts)


def notes_on(tests: Sequence[Path]) -> tuple[str, ...]:
    """Return a line on the folder that is taken for the test images, if it is not called so.

    tests: the folders that could be taken, of which the first is.
    """
    if not tests or tests[0].name == TESTS[0]:
        return ()
    taken, *others = tests
    rest = f"; not read: {', '.join(path.name for path in others)}" if others else ""
    return (
        f"{taken.parent}: the test images are those in {taken.name}, because there is no folder "
        f"{TESTS[0]}{rest}",
    )


def holds_images(folder: Path) -> bool:
    """Return whether there are images in a folder; not if it cannot be read."""
    with suppress(OSError):
        return any(name.lower().endswith(ENDS) for name in os.listdir(folder))
    return False


def notes_inside(images: Images) -> tuple[str, ...]:
    """Return a line on folders inside those of classes, which hold images that are not read."""
    holding = list(filter(holds_images, images.inside))
    if not holding:
        return ()
    return (
        f"{holding[0]}: not read, because it is a folder inside that of a class "
        f"({count_noun(len(holding), 'such folder')} with images); move its images up, or away",
    )


def of_images(
    where: str,
    images: Sequence[Callable[[], Iterator[tuple[str, Image.Image]]]],
    y: Sequence[np.ndarray],
    users: Sequence[np.ndarray | None],
    task: Task,
    how: Reading,
    **facts: Any,
) -> DataSet:
    """Return the data set of images; of one split a share is held out for tests.

    where: opens messages.  images: of each split, a function that yields them with their places.
    y, users: of each split.  facts: further fields of `DataSet`.
    """
    grey, size = survey(chain.from_iterable(split() for split in images), how.image_size)
    fits(sum(map(len, y)) * size[0] * size[1] * (1 if grey else 3), where)
    splits = []
    for split, labels, whose in zip(images, y, users, strict=True):
        x = np.empty((len(labels), 1 if grey else 3, size[1], size[0]), np.uint8)
        for row, (place, image) in zip(x, split(), strict=True):
            row[:] = as_array(image, grey, size, place)
        splits.append(Split(x, labels, whose))
    if len(splits) == 1:
        rows = held_out(where, task.strata(y[0]), users[0], how.held_out)
        splits = [splits[0].take(part) for part in rows]
    mean, std = moments(splits[0].x)
    own_tests = all(ids is not None for ids in users)
    return DataSet(
        train=splits[0],
        test=splits[1],
        mean=mean,
        std=std,
        task=task,
        own_tests=own_tests,
        encoder=Encoder(scaled=bool(how.image_size), scale="0..1"),
        **facts,
    )


def classes_of(folder: Path) -> list[str]:
    """Return the names of the folders in a folder."""
    return sorted(name for name in os.listdir(folder) if is_class(folder / name))


def is_class(place: Path) -> bool:
    """Return whether this is a folder that counts, and no link that goes in a circle."""
    return place.name[0] != "." and os.path.isdir(place)


def classes_in(homes: Sequence[Path]) -> list[str]:
    """Return the names of the classes in some of these folders."""
    return sorted({name for home in homes for name in classes_of(home)})


def homes_of(folder: Path, domains: Sequence[str]) -> list[Path]:
    """Return the folders of clients in a folder.

    domains: names of those that are used; none: all.  Raises DataError if one is missing.
    """
    names = classes_of(folder)
    for name in domains:
        if name not in names:
            raise DataError(f"{folder}: {unknown('folder', name, names)}; check data.domains")
    return [folder / name for name in names if not domains or name in domains]


def client_numbers(homes: Sequence[Path], names: Sequence[str]) -> list[int]:
    """Return the numbers of the clients whose folders these are.

    names: of all clients.  Raises DataError for a client that is not among them.
    """
    for home in homes:
        if home.name not in names:
            raise DataError(f"{home}: this client has no training images, which are to be in train")
    return [names.index(home.name) for home in homes]


class Images(NamedTuple):
    """Image files of a split, their labels, and the numbers of the folders of clients."""

    files: list[Path]
    labels: np.ndarray  # [n], int64
    homes: np.ndarray  # [n], int64
    inside: list[Path]  # folders within those of classes, which are not read


def list_images(homes: Sequence[Path], classes: list[str]) -> Images:
    """Return the image files of all classes in these folders, one folder after the other."""
    files, labels, numbers, inside = list[Path](), list[int](), list[int](), list[Path]()
    for number, home in enumerate(homes):
        for label, name in enumerate(classes):
            place = home / name
            entries = os.listdir(place) if place.is_dir() else []  # a class may have no test images
            images = sorted(file for file in entries if file.lower().endswith(ENDS))
            others = sorted(set(entries).difference(images))  # few, of which the disk is asked
            inside += [place / name for name in others if is_class(place / name)]
            files += [place / file for file in images]
            labels += [label] * len(images)
            numbers += [number] * len(images)
    return Images(files, np.array(labels, np.int64), np.array(numbers, np.int64), inside)


def clients_of(place: Path, files: list[Path], column: str) -> Table:
    """Return metadata.csv of a folder, with one row for each of these files, in their order.

    Raises DataError for a missing list or column, and for a file that the list does not name.
    """
    path = place / LIST
    if not path.is_file():
        raise DataError(
            f"{path}: there is no such file; with columns.client it names the "
            f"client of each image: columns {NAME} (as {files[0].relative_to(place).as_posix()}) "
            f"and {column}"
        )
    # names of files and clients are texts: no word stands for a missing one
    table = read_table(path, Reading(columns=Columns(client=column, missing_words=())))
    check_columns(table, "client", column)
    if NAME not in table.names:
        raise DataError(f"{path}: has no column {NAME}, which names the images")
    at = {str(name): row for row, name in enumerate(table[NAME])}
    names = [file.relative_to(place).as_posix() for file in files]
    if absent := [name for name in names if name not in at]:
        raise DataError(
            f"{path}: does not name the image {absent[0]} ({count_noun(len(absent), 'image')} in "
            f"all); add a line for each, or remove the image"
        )
    return table.take(np.array([at[name] for name in names]))


def opened(file: Path | BytesIO, where: str) -> Image.Image:
    """Open an image and read its header; raises DataError.

    file: its path, or its bytes.  where: its place, for messages.
    """
    try:
        return Image.open(regular(file) if isinstance(file, Path) else file, formats=FORMATS)
    except Exception as error:  # Pillow raises exceptions of many types over damaged images
        raise DataError(
            f"{where}: is not an image ({', '.join(FORMATS)}): {error or type(error).__name__}; "
            f"remove it, or save it again"
        ) from error


def each(files: list[Path]) -> Iterator[tuple[str, Image.Image]]:
    """Yield the images of files, each with its path, opened one at a time."""
    for file in files:
        with opened(file, str(file)) as image:
            yield str(file), image


def survey(images: Iterable[tuple[str, Image.Image]], wanted: int) -> tuple[bool, tuple[int, int]]:
    """Return whether all images are grey, and the width and height that all get.

    images: one at least, each with its place for messages.
    wanted: the width and height that the job sets; 0: images must be of one size. Raises DataError.
    """
    grey, reference, size = True, "", None
    for where, image in images:
        grey = grey and image.mode in GREY
        if size is None:
            reference, size = where, image.size
        if not wanted and image.size != size:
            sizes = [f"{w}x{h}" for w, h in (size, image.size)]
            raise DataError(
                f"{where}: has {sizes[1]} pixels, {reference} {sizes[0]}; set data.image_size, as "
                f"in --data.image_size 32, to scale all images to one size"
            )
    assert size is not None
    return grey, (wanted, wanted) if wanted else size


def as_array(image: Image.Image, grey: bool, size: tuple[int, int], where: str) -> np.ndarray:
    """Return one image, [channels, height, width], uint8, scaled if it has another size."""
    if image.mode not in (*GREY, *COLOUR):
        raise DataError(
            f"{where}: its pixels are of Pillow's mode {image.mode}, which has no fixed range; "
            f"save images with 8 bits a value"
        )
    try:
        if image.mode in DEEP:  # "L" would cut them at 255
            image = shallow(np.asarray(image), where)
        image = image.convert("L" if grey else "RGB")
        if image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
    except DataError:
        raise
    except Exception as error:  # Pillow raises exceptions of many types over damaged images
        raise DataError(
            f"{where}: is not a whole image: {error or type(error).__name__}; save it again"
        ) from error
    return pixels[None] if grey else np.moveaxis(pixels, 2, 0)


def shallow(pixels: np.ndarray, where: str) -> Image.Image:
    """Return an image of 16 bits with 8; raises DataError for values that are not of 16 bits."""
    least, most = int(pixels.min()), int(pixels.max())
    if least < 0 or most > 65_535 or 0 < most < DARK:
        raise DataError(
            f"{where}: is read as 16 bits (0..65535), but its values lie in {least}..{most}, of "
            f"which little would be left; save images with 8 bits, scaled to 0..255"
        )
    return Image.fromarray((pixels // 256).astype(np.uint8))
