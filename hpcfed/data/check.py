"""Checks of users' data; each error names the file, the array, the index and the wrong value."""

import numpy as np

from hpcfed.core.errors import DataError, first_bad
from hpcfed.core.wording import evenly
from hpcfed.tasks.classification import below as below
from hpcfed.tasks.classification import labels as labels

MOST = 2**31  # maximum token and index; no array in memory is larger
SAMPLE = 200  # images of which the scale is looked at
CHANNELS = 4  # largest number of channels of images whose axis of channels is not named


def images(x: np.ndarray, where: str, channels: str = "auto") -> np.ndarray:
    """Return images as [n, channels, height, width], uint8 or float32.

    x: [n, h, w], or [n, h, w, c], or [n, c, h, w]. Integers must lie in 0..255, floats must be
    finite.
    channels: the axis of the channels, first or last; auto: the last if it can be channels (1..4 of
    them), else the first if that can.
    where: the beginning of messages.
    Raises DataError.
    """
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise DataError(
            f"{where}: shape {list(x.shape)} holds no images; store [n, height, width], or "
            f"channels last"
        )
    if x.ndim == 3:
        return pixels(x, where)[:, None]
    if channels == "auto":
        if min(x.shape[1], x.shape[3]) > CHANNELS:
            raise DataError(
                f"{where}: shape {list(x.shape)}: images have 1 to {CHANNELS} channels, unless the "
                f"job names their axis; set data.channels = 'first' ({x.shape[1]} channels of "
                f"{x.shape[2]}x{x.shape[3]}) or 'last' ({x.shape[3]} channels of "
                f"{x.shape[1]}x{x.shape[2]})"
            )
        channels = "last" if x.shape[3] <= CHANNELS else "first"
    if channels == "first":
        return pixels(x, where)
    return np.ascontiguousarray(np.moveaxis(pixels(x, where), 3, 1))


def pixels(x: np.ndarray, where: str) -> np.ndarray:
    """Return pixel values as uint8 or float32, of any shape; raises DataError for anything else."""
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "iu":
        first_bad(
            x, (x < 0) | (x > 255), where, "integer pixels lie in 0..255; store them as uint8"
        )
        return x.astype(np.uint8)
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        first_bad(x, ~np.isfinite(x), where, "pixels must be finite; remove or fix the example")
        return x
    raise DataError(
        f"{where}: dtype {x.dtype} is not a pixel; store uint8 (0..255) or float32 (0..1)"
    )


def scale(x: np.ndarray) -> str:
    """Return which of the usual scales images have; "" for another one, and if x is no images.

    x: inputs as batches have them.  SAMPLE of them are looked at.
    """
    if x.ndim != 4 or min(x.shape[2:]) == 1:  # other numbers may have any range
        return ""
    part = x[evenly(len(x), SAMPLE)]
    low, high = part.min(), part.max()
    if low >= 0 and (high <= 1 or 100 < high <= 255):
        return "0..1" if high <= 1 else "0..255"
    centred = abs(part.mean()) < 1 and part.std() < 2 and (part < 0).mean() > 0.2
    return "standardised" if centred else ""


def scale_for_models(x: np.ndarray) -> str:
    """Return the scale of images as models get them: 8-bit ones become 0..1. Else as `scale`."""
    name = scale(x)
    return "0..1" if name and x.dtype == np.uint8 else name


def numbers(x: np.ndarray, where: str, channels: str = "auto") -> np.ndarray:
    """Return one modality of the examples as float32, or as images.

    x: rows of numbers [n, features], sequences [n, channels, steps], or images as `images` takes
    them.
    channels: as for `images`.
    Raises DataError.
    """
    if x.ndim == 4:
        return images(x, where, channels)
    if x.ndim not in (2, 3) or 0 in x.shape or x.dtype.kind not in "fiu":
        raise DataError(
            f"{where}: {x.dtype} {list(x.shape)} is not a modality; store numbers, [n, features], "
            f"[n, channels, steps] or [n, height, width, channels], or tokens, [n, length], with "
            f"an attribute vocabulary"
        )
    with np.errstate(over="ignore"):
        converted = x.astype(np.float32)
    first_bad(
        x, ~np.isfinite(converted), where, "numbers must be finite; fix the example, or mark it"
    )
    return converted


def flags(x: np.ndarray, n: int, where: str) -> np.ndarray:
    """Return whether each of n examples has something, [n], bool, from 0 and 1.

    Raises DataError.
    """
    if x.shape != (n,) or x.dtype.kind not in "biu":
        raise DataError(
            f"{where}: {x.dtype} {list(x.shape)}, but there are {n} examples; store 0 or 1 for each"
        )
    first_bad(x, (x != 0) & (x != 1), where, "an example has the modality, 1, or not, 0")
    return x.astype(bool)


def texts(x: np.ndarray, where: str) -> np.ndarray:
    """Return texts as [n], str; bytes must be UTF-8.

    Raises DataError.
    """
    if x.ndim != 1 or not len(x) or not x.dtype.itemsize:
        raise DataError(
            f"{where}: {x.dtype} {list(x.shape)} holds no texts; store one string an example, [n]"
        )
    decoded = np.empty(len(x), object)
    for i, text in enumerate(x):
        if not isinstance(text, bytes | str):
            raise DataError(f"{where}: text {i} is a {type(text).__name__}; store strings")
        try:
            decoded[i] = text.decode() if isinstance(text, bytes) else str(text)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}: text {i} is not UTF-8: {error}; store it as UTF-8"
            ) from error
    return decoded


def tokens(x: np.ndarray, vocabulary: int, where: str) -> np.ndarray:
    """Return tokens as [n, L], int32.

    Raises DataError for anything but whole numbers in 0..vocabulary-1.
    """
    if x.ndim != 2 or 0 in x.shape or x.dtype.kind not in "iu":
        raise DataError(
            f"{where}: {x.dtype} {list(x.shape)} holds no tokens, though the file has a "
            f"vocabulary; "
            "store integers [n, length], 0 for padding"
        )
    first_bad(
        x,
        (x < 0) | (x >= vocabulary),
        where,
        f"tokens lie in 0..{vocabulary - 1}, below the vocabulary",
    )
    return x.astype(np.int32)


def vocabulary(stated: object, where: str) -> int:
    """Return the number of different tokens that a file states; 0 for images.

    Raises DataError for anything else.
    """
    number = np.asarray(stated)
    if number.shape != () or number.dtype.kind not in "iu" or not 0 <= number <= MOST:
        raise DataError(
            f"{where}: is {str(stated)[:50]}; store one whole number, the number of different "
            f"tokens"
        )
    return int(number)


def text(name: str, where: str) -> None:
    """Raise DataError for a name that is not valid Unicode, because no file can store it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {name!r} is not Unicode text; store another name there"
        ) from error


def users(ids: np.ndarray, n: int, where: str) -> np.ndarray:
    """Return user ids, [n], as integers or text; raises DataError."""
    if ids.shape != (n,) or ids.dtype.kind not in "iuSUO":
        raise DataError(
            f"{where}: {ids.dtype} {list(ids.shape)}; store one user an example, [{n}] integers "
            f"or text"
        )
    return ids if ids.dtype.kind in "iu" else texts(ids, where).astype(str)
