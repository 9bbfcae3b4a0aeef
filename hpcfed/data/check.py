"""Checks of users' data; each error names the file, the array, the index and the wrong value."""

import numpy as np

from hpcfed.core.errors import DataError

MOST = 2**31  # maximum label, token and index; no array in memory is larger


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
        first_bad(x, ~np.isfinite(x), where, "pixels must be finite; remove or mend the example")
        return x
    raise DataError(f"{where}: dtype {x.dtype} is no pixel; store uint8 (0..255) or float32 (0..1)")


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
            f"{where}: {x.dtype} {list(x.shape)} is no modality; store numbers, [n, features], "
            f"[n, channels, steps] or [n, height, width, channels], or tokens, [n, length], with "
            f"an attribute vocabulary"
        )
    with np.errstate(over="ignore"):
        made = x.astype(np.float32)
    first_bad(x, ~np.isfinite(made), where, "numbers must be finite; mend the example, or mark it")
    return made


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


def vocabulary(given: object, where: str) -> int:
    """Return the number of different tokens that a file states; 0 for images.

    Raises DataError for anything else.
    """
    number = np.asarray(given)
    if number.shape != () or number.dtype.kind not in "iu" or not 0 <= number <= MOST:
        raise DataError(
            f"{where}: is {str(given)[:50]}; store one whole number, the number of different tokens"
        )
    return int(number)


def labels(y: np.ndarray, n: int, where: str) -> np.ndarray:
    """Return labels as [n], int64, >= 0; [n, 1] and whole floats are accepted.

    Raises DataError.
    """
    if y.shape == (n, 1):
        y = y[:, 0]
    if y.shape != (n,):
        raise DataError(
            f"{where}: shape {list(y.shape)}, but there are {n} examples; store one label an "
            f"example"
        )
    if y.dtype.kind not in "iuf":
        raise DataError(f"{where}: dtype {y.dtype} is no label; store int64, 0..C-1")
    if y.dtype.kind == "f":
        first_bad(
            y, ~np.isfinite(y) | (y != np.round(y)), where, "a label is a whole number, 0..C-1"
        )
    first_bad(y, (y < 0) | (y > MOST), where, "a label lies in 0..C-1")
    return y.astype(np.int64)


def survival(y: np.ndarray, n: int, where: str) -> np.ndarray:
    """Return survival times as [n, 2], float32: time, >= 0, and whether the event was seen, 0 or 1.

    Raises DataError.
    """
    if y.shape != (n, 2) or y.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: {y.dtype} {list(y.shape)} holds no survival times of {n} examples; store "
            "floats [n, 2]: time, and 1 where the event was seen, else 0"
        )
    first_bad(y[:, 0], ~np.isfinite(y[:, 0]) | (y[:, 0] < 0), where, "a time is 0 or more")
    first_bad(y[:, 1], (y[:, 1] != 0) & (y[:, 1] != 1), where, "an event is 1 (seen) or 0")
    return y.astype(np.float32)


def classes(given: list[str] | None, y: np.ndarray, where: str) -> tuple[str, ...]:
    """Return the class names: those given, else "0".."C-1" with C from the largest label.

    y: [n], the training labels.
    Raises DataError for a label outside the names; without names, for a label >= n.
    """
    below(y, len(y) if given is None else len(given), where)
    return tuple(map(str, range(int(y.max()) + 1) if given is None else given))


def text(name: str, where: str) -> None:
    """Raise DataError for a name that is not valid Unicode, because no file can store it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {name!r} is no Unicode text; store another name there"
        ) from error


def below(y: np.ndarray, n_classes: int, where: str) -> None:
    """Raise DataError for a label that is not below n_classes."""
    first_bad(
        y, y >= n_classes, where, f"a label lies in 0..C-1, and C is at most {n_classes} here"
    )


def users(ids: np.ndarray, n: int, where: str) -> np.ndarray:
    """Return user ids, [n], as integers or text; raises DataError."""
    if ids.shape != (n,) or ids.dtype.kind not in "iuSUO":
        raise DataError(
            f"{where}: {ids.dtype} {list(ids.shape)}; store one user an example, [{n}] integers "
            f"or text"
        )
    return ids if ids.dtype.kind in "iu" else texts(ids, where).astype(str)


def first_bad(values: np.ndarray, bad: np.ndarray, where: str, help: str) -> None:
    """Raise DataError for the first of `values` where `bad` is true, with its index."""
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        at = index[0] if len(index) == 1 else list(index)
        raise DataError(f"{where}: value {values[index]} at index {at}; {help}")
