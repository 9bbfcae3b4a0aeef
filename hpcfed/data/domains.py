"""digits-domains: the digits 0 to 9 from several sources, whose images differ: feature skew.

Each source is a domain, and a natural client: mnist, svhn, usps, emnist-digits and mnist-m, or
those of `data.domains`, which may also be digits, the scans that need no download.
The form is that of Digit-5 in FedBN (Li et al., ICLR 2021, arXiv:2102.07623): training and test
images of a source are pooled and divided again, 80 to 20 in each class; of the 80 % each domain has
as many as the smallest, USPS, has: 7,438, so that ten clients per domain have 743 each. Images are
3 x 28 x 28.
MNIST-M (Ganin and Lempitsky, ICML 2015, arXiv:1409.7495) is made: each digit is the absolute
difference of an MNIST digit and a piece of a photograph, in each channel. Its test images come from
MNIST's test images of this data set.
Deviations: EMNIST's digits stand in the place of SynthDigits, which torchvision does not have; the
photographs are CIFAR-10's, those of MNIST-M are BSDS500's; pixels are normalised by the mean and
deviation of all training images, FedBN's by 0.5.
"""

from pathlib import Path

import numpy as np

from hpcfed.core.errors import ConfigError, DataError, unknown
from hpcfed.core.rng import stream
from hpcfed.data import digits, vision
from hpcfed.data.dataset import READING, DataSet, Reading, Split
from hpcfed.data.moments import moments
from hpcfed.data.sampling import apportion, take

DOMAINS = ("mnist", "svhn", "usps", "emnist-digits", "mnist-m")
OTHER = ("digits",)
BLENDED = {"mnist-m": "mnist"}  # domains that are made from the digits of another
PHOTOGRAPHS = "cifar10"
SIZE = 28  # pixels
TEST_SHARE = 0.2
TRAIN = 7_438  # 80 % of USPS
CHUNK = 4_096  # images that are resized at once


def load(name: str, root: Path, download: bool = True, how: Reading = READING) -> DataSet:
    """Load the domains that the job names, [n, 3, 28, 28], uint8, 10 classes.

    Sources are read as the data sets of the same names.
    Raises ConfigError for an unknown domain, and DataError for a source that cannot be loaded.
    """
    for domain in how.domains:
        if domain not in DOMAINS + OTHER:
            raise ConfigError(f"data.domains: {unknown('domain', domain, DOMAINS + OTHER)}")
    wanted = [one for one in DOMAINS + OTHER if one in (how.domains or DOMAINS)]
    try:
        parts = [read_domain(domain, root, download) for domain in wanted]
    except DataError as error:
        raise DataError(
            f"{name}: {error}\n  or leave domains out: data.domains names those in use "
            f"({', '.join(wanted)})"
        ) from error
    train, test = (join([part[i] for part in parts]) for i in (0, 1))
    mean, std = moments(train.x)
    return DataSet(
        name, train, test, vision.DIGITS, mean, std, own_tests=True, user_names=tuple(wanted)
    )


def read_domain(domain: str, root: Path, download: bool) -> tuple[Split, Split]:
    """Return the training and test images of a domain, [n, 3, 28, 28], uint8."""
    source = BLENDED.get(domain, domain)
    data = digits.load() if source == "digits" else vision.load(source, root, download)
    y = np.concatenate([data.train.y, data.test.y])
    splits = []
    for rows in divide(y, source, domain):
        trained, tested = np.split(rows, [np.searchsorted(rows, len(data.train.y))])
        x = np.concatenate([data.train.x[trained], data.test.x[tested - len(data.train.y)]])
        splits.append(Split(as_colour(resize(x, SIZE)), y[rows]))
    if domain in BLENDED:
        photographs = vision.load(PHOTOGRAPHS, root, download).train.x
        splits = [
            Split(blend(split.x, photographs, stream(0, "digits-domains", domain, part)), split.y)
            for split, part in zip(splits, ("train", "test"), strict=True)
        ]
    return splits[0], splits[1]


def divide(y: np.ndarray, source: str, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of training and test images, sorted, every class in proportion.

    Domains of one source have the same test images, and each its own of the others.
    """
    number = apportion(int(TEST_SHARE * len(y) + 1e-9), np.bincount(y))
    test = take(y, number, stream(0, "digits-domains", source, "test"))
    rest = np.setdiff1d(np.arange(len(y)), test)
    number = apportion(min(TRAIN, len(rest)), np.bincount(y[rest]))
    train = rest[take(y[rest], number, stream(0, "digits-domains", domain, "train"))]
    return train, test


def join(splits: list[Split]) -> Split:
    """Return the images of all domains; the number of a domain is the user of its images."""
    users = np.repeat(np.arange(len(splits)), [len(split.y) for split in splits])
    x, y = (np.concatenate([getattr(split, name) for split in splits]) for name in ("x", "y"))
    return Split(x, y, users)


def as_colour(x: np.ndarray) -> np.ndarray:
    """Return images of one or three channels with three; grey ones have equal channels."""
    return x if x.shape[1] == 3 else np.repeat(x, 3, 1)


def blend(x: np.ndarray, photographs: np.ndarray, g: np.random.Generator) -> np.ndarray:
    """Return the absolute difference of each image and a random piece of a random photograph.

    x: [n, 3, h, w], uint8.  photographs: [N, 3, H, W], uint8, at least as large.
    """
    n, _, height, width = x.shape
    most = np.array(photographs.shape)[[0, 2, 3]] - [0, height - 1, width - 1]
    blended = np.empty_like(x)
    for i, (photograph, top, left) in enumerate(g.integers(0, most, (n, 3)).tolist()):
        piece = photographs[photograph, :, top : top + height, left : left + width]
        blended[i] = np.maximum(piece, x[i]) - np.minimum(piece, x[i])
    return blended


def resize(x: np.ndarray, size: int) -> np.ndarray:
    """Return images scaled bilinearly to size x size pixels, [n, C, size, size], uint8.

    Computed in whole numbers, so that every machine has the same pixels; halves are rounded up.
    x: [n, C, H, W], uint8.
    """
    if x.shape[2:] == (size, size):
        return x
    scaled = np.empty((*x.shape[:2], size, size), np.uint8)
    for start in range(0, len(x), CHUNK):
        values = x[start : start + CHUNK].astype(np.int64)
        for axis in (2, 3):
            values = interpolate(values, size, axis)
        unit = (2 * size) ** 2
        scaled[start : start + CHUNK] = (values + unit // 2) // unit
    return scaled


def interpolate(values: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Return whole numbers at `size` places along an axis, interpolated and times 2 * size.

    Places and values are those of the centres of pixels; beyond the outermost ones the values are
    theirs.
    """
    before = values.shape[axis]
    place = (2 * np.arange(size) + 1) * before - size  # in units of 1 / (2 * size) of a pixel
    low, share = np.divmod(place, 2 * size)
    shape = [-1 if i == axis else 1 for i in range(values.ndim)]
    share = share.reshape(shape)
    pick = lambda at: values.take(at.clip(0, before - 1), axis)  # noqa: E731
    return pick(low) * (2 * size - share) + pick(low + 1) * share
