"""Partitions as index arrays in memory, and as HDF5 files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfed.core.errors import DamagedError, DataError, first_bad
from hpcfed.core.paths import regular
from hpcfed.data import check
from hpcfed.data.user_arrays import Nodes, hdf5, readable, whole
from hpcfed.storage import checksum, names
from hpcfed.storage.atomic import replace_file
from hpcfed.storage.record import RUN_ID, differ
from hpcfed.tasks import Task

SIGNATURE = b"\x89HDF\r\n\x1a\n"  # first bytes of an HDF5 file without checksums
# names of the arrays in a partition file
_NAMES = ("train", "train_sizes", "test", "test_sizes", "public")
_HELD_OUT = ("validation", "validation_sizes")  # if clients hold examples out


@dataclass(frozen=True)
class Partition:
    """Sorted index arrays, int64, of a partition.

    train: K arrays, into the training split.
    test: K arrays, into the test split.
    public: public examples, in the training split.
    Training sets and public examples are disjoint. Test sets of different clients may overlap.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    public: np.ndarray

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of training examples of each client."""
        return tuple(map(len, self.train))

    @property
    def test_sizes(self) -> np.ndarray:
        """Number of test examples of each client, [K], int64."""
        return np.array([len(part) for part in self.test])

    @property
    def everything(self) -> np.ndarray:
        """Training examples of all clients."""
        return np.concatenate(self.train)

    def tests(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the test examples of all clients: the client of each, and its row, [n] each."""
        return np.repeat(np.arange(len(self.test)), self.test_sizes), np.concatenate(self.test)

    def counts(self, labels: np.ndarray, task: Task, outputs: int) -> np.ndarray:
        """Return the number of training examples of each client and output (class), [K, C].

        labels: y of the training split, of this task.
        """
        return np.stack([task.counts(labels[part], outputs) for part in self.train])

    def save(self, path: Path, run_id: str = "", validation: Sequence[np.ndarray] = ()) -> None:
        """Write the partition to an HDF5 file.

        The arrays are `train` and `test`, all indices in a row; `train_sizes` and `test_sizes`,
        [K]; `public`; and `validation` and its sizes, if clients hold examples out. The attribute
        `run_id` names the partition's run; "" is none. The file has checksums. It is written beside
        its place and renamed, so that no incomplete file is visible.
        validation: K arrays, what each client holds out of its part of the training split; (): no
        client holds examples out.
        Raises WriteError if the file cannot be written.
        """
        parts_by_name = {"train": self.train, "test": self.test}
        if len(validation):
            parts_by_name["validation"] = tuple(validation)
        with replace_file(path, names.PARTITION) as file:
            for name, parts in parts_by_name.items():
                file[name] = np.concatenate(parts)
                file[f"{name}_sizes"] = np.array([len(part) for part in parts])
            file["public"] = self.public
            file.attrs[RUN_ID] = run_id

    @classmethod
    def load(cls, path: Path, run_id: str = "", drawn: bool = False) -> "Partition":
        """Read a partition file of `save`, or one with the same arrays and without checksums.

        run_id: the run to which the partition must belong, if the file names a run; "" for any.
        drawn: with what clients held out for validation among their training examples, as these
        were drawn.
        Raises DataError if the file is damaged, belongs to another run or lacks an array, if an
        index is negative, if a training example belongs to two holders, or if a test example occurs
        twice in one client's set.
        """
        with readable(path, "write it with Partition.save, or check data.partition_file"):
            check_seal(path)
            with hdf5(path) as file:
                if differ(run_id, owner := file.attrs.get(RUN_ID, "")):
                    raise DataError(
                        f"{path}: is of another run ({owner}) than the results of this folder "
                        f"({run_id}); put it back into its folder, or run the job again"
                    )
                for name in _NAMES:
                    if name not in file:
                        raise DataError(
                            f"{path}: no array {name!r}; a partition file has {', '.join(_NAMES)}"
                        )
                stored = (*_NAMES, *(name for name in _HELD_OUT if drawn and name in file))
                values = {name: whole(Nodes(file)[name], f"{path}: {name}") for name in stored}
        arrays = {name: _integers(array, f"{path}: {name}") for name, array in values.items()}
        train, test = (_cut(arrays, name, path) for name in ("train", "test"))
        if set(_HELD_OUT) <= arrays.keys():
            held_out = _cut(arrays, "validation", path)
            pairs = zip(train, held_out, strict=True)
            train = tuple(np.sort(np.concatenate(both)) for both in pairs)
        partition = cls(train, test, arrays["public"])
        _disjoint(partition, path)
        return partition

    def check(self, path: Path, clients: int, data: str, n_train: int, n_test: int) -> None:
        """Raise DataError unless this is a partition of these data among the clients.

        path: the file that it came from.
        data: name of the data.
        n_train, n_test: numbers of examples of the data.
        """
        if len(self.train) != clients:
            raise DataError(
                f"{path}: is for {len(self.train)} clients, the job has {clients}; take as many"
            )
        for k, part in enumerate(self.train):
            if not len(part):
                raise DataError(
                    f"{path}: client {k} has no training example; give it one or leave it out"
                )
        for name, parts, n in (("train", self.train, n_train), ("test", self.test, n_test)):
            for k, part in enumerate(parts):
                _below(part, n, f"{path}: client {k}: {name}", data)
        _below(self.public, n_train, f"{path}: public", data)


def check_seal(path: Path) -> None:
    """Raise DataError if a file of `Partition.save` was altered or truncated.

    Files without checksums pass: those of other programs.
    """
    with open(regular(path), "rb") as raw:
        if raw.read(len(SIGNATURE)) == SIGNATURE:
            return
        raw.seek(0)
        try:
            checksum.verify_checksum(path, raw, verify_all=True)
        except DamagedError as error:
            raise DataError(
                f"{error}; restore it from a copy, resume its run, which writes it anew, or write "
                "a partition of your own as a new file"
            ) from error


def _below(rows: np.ndarray, n: int, where: str, data: str) -> None:
    if (high := int(rows.max(initial=-1))) >= n:
        raise DataError(f"{where} holds index {high}, but {data} has only {n} such examples")


def _integers(values: np.ndarray, where: str) -> np.ndarray:
    if np.ndim(values) != 1 or (values.size and values.dtype.kind not in "iu"):
        raise DataError(
            f"{where}: is not a row of whole numbers; write the file with Partition.save"
        )
    if not values.size:  # of any type, because numpy gives an empty list floats
        return np.zeros(0, np.int64)
    first_bad(
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
    rows, times = np.unique(
        np.concatenate([*partition.train, partition.public]), return_counts=True
    )
    if (times > 1).any():
        twice = rows[times > 1][0]
        holders = [f"client {k}" for k, part in enumerate(partition.train) if twice in part]
        holders += ["the public data"] * (twice in partition.public)
        where = " and ".join(holders)
        raise DataError(f"{path}: training example {twice} is there twice, in {where}; keep one")
    for k, part in enumerate(partition.test):
        rows, times = np.unique(part, return_counts=True)
        if (times > 1).any():
            raise DataError(
                f"{path}: test example {rows[times > 1][0]} is there twice, in client {k}; keep one"
            )
