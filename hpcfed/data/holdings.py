"""A partition as it is kept: index arrays in memory, and the HDF5 file that holds them."""

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from hpcfed.data import check
from hpcfed.data.readable import hdf5, readable, whole
from hpcfed.errors import DataError
from hpcfed.storage.atomic import instead, writing
from hpcfed.storage.untrusted import child

_NAMES = (
    "train",
    "train_sizes",
    "test",
    "test_sizes",
    "public",
)  # of the arrays in a partition file


@dataclass(frozen=True)
class Partition:
    """Index arrays (int64, sorted): K into the training split, K into the test split, one of public
    examples.

    Training sets and public examples are disjoint; test sets of different clients may overlap.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    public: np.ndarray

    @property
    def sizes(self) -> tuple[int, ...]:
        """Training examples of each client."""
        return tuple(map(len, self.train))

    @property
    def everything(self) -> np.ndarray:
        """All clients' training examples."""
        return np.concatenate(self.train)

    def counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Training examples of each client and class, [K, C]; labels: [n] of the training split."""
        return np.stack([np.bincount(labels[part], minlength=classes) for part in self.train])

    def save(self, path: Path) -> None:
        """Write HDF5: `train` and `test`, all indices in a row; `train_sizes`, `test_sizes`, [K];
        `public`.

        Written beside the file and renamed, so that no half file is ever seen. WriteError where the
        disk refuses.
        """
        with (
            writing(path),
            instead(path) as new,
            open(new, "w+b") as raw,
            h5py.File(raw, "w") as file,
        ):
            # through Python's file, for HDF5's own way crashes on a full disk
            for name, parts in (("train", self.train), ("test", self.test)):
                file[name] = np.concatenate(parts)
                file[f"{name}_sizes"] = np.array([len(part) for part in parts])
            file["public"] = self.public

    @classmethod
    def load(cls, path: Path) -> "Partition":
        """Read what `save` wrote, or a file made like it.

        Raises DataError where it is damaged, or where an example is negative or belongs to two
        holders.
        """
        with (
            readable(path, "write it with Partition.save, or check data.partition_file"),
            hdf5(path) as file,
        ):
            values = {name: whole(child(file, name), f"{path}: {name}") for name in _NAMES}
        arrays = {name: _integers(array, f"{path}: {name}") for name, array in values.items()}
        train, test = (_cut(arrays, name, path) for name in ("train", "test"))
        partition = cls(train, test, arrays["public"])
        _disjoint(partition, path)
        return partition


def _integers(values: np.ndarray, where: str) -> np.ndarray:
    if np.ndim(values) != 1 or (values.size and values.dtype.kind not in "iu"):
        raise DataError(f"{where}: is no row of whole numbers; write the file with Partition.save")
    check.first_bad(
        values, (values < 0) | (values > check.MOST), where, f"an index lies in 0..{check.MOST}"
    )
    return values.astype(np.int64)


def _cut(arrays: dict[str, np.ndarray], name: str, path: Path) -> tuple[np.ndarray, ...]:
    flat, sizes = arrays[name], arrays[f"{name}_sizes"]
    if sizes.sum() != len(flat) or len(sizes) != len(arrays["train_sizes"]) or not len(sizes):
        raise DataError(
            f"{path}: {name}_sizes: {len(sizes)} clients with {sizes.sum()} examples, but {name} "
            f"holds "
            f"{len(flat)} for {len(arrays['train_sizes'])} clients; use Partition.save"
        )
    return tuple(np.split(flat, np.cumsum(sizes)[:-1]))


def _disjoint(partition: Partition, path: Path) -> None:
    held, times = np.unique(
        np.concatenate([*partition.train, partition.public]), return_counts=True
    )
    if (times > 1).any():
        twice = held[times > 1][0]
        holders = [f"client {k}" for k, part in enumerate(partition.train) if twice in part]
        holders += ["the public data"] * (twice in partition.public)
        where = " and ".join(holders)
        raise DataError(f"{path}: training example {twice} is there twice, in {where}; keep one")
