"""Scans of handwritten digits that come with scikit-learn: real data without a download."""

from importlib.metadata import distribution

import numpy as np
import torch
from torch.nn.functional import interpolate

from hpcfed.core.rng import stream
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.moments import moments
from hpcfed.data.sampling import apportion, take

TEST = 360  # number of test scans, of 1797


def load(*_: object) -> DataSet:
    """Load 1437 training and 360 test scans of digits, [1, 16, 16], uint8, 10 classes.

    The scans are 8x8 with 17 grey levels, resized bilinearly. The split is fixed and stratified.
    Folder and download have no effect.
    Alpaydin and Kaynak, UCI, 1998.
    """
    # the file of sklearn.datasets.load_digits; its import takes a second, for which all ranks of a
    # node would wait
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    # [1797, 65]; 64 pixels and the digit
    table = np.loadtxt(str(file), delimiter=",", dtype=np.uint8)
    y = table[:, -1].astype(np.int64)
    x = _resized(table[:, :-1].reshape(-1, 1, 8, 8))
    test = take(y, apportion(TEST, np.bincount(y)), stream(0, "digits"))
    train = np.setdiff1d(np.arange(len(y)), test)
    mean, std = moments(x[train])
    names = tuple(str(c) for c in range(10))
    return DataSet("digits", Split(x[train], y[train]), Split(x[test], y[test]), names, mean, std)


def _resized(scans: np.ndarray) -> np.ndarray:
    """Resize scans [n, 1, 8, 8], 0..16, to [n, 1, 16, 16], 0..255.

    The values are sixteenths, which float32 represents exactly, so the result is the same on every
    machine.
    """
    large = interpolate(
        torch.from_numpy(scans).float(), size=(16, 16), mode="bilinear", align_corners=False
    )
    return (large * 255 / 16).round().to(torch.uint8).numpy()
