"""Users' data files: what is wrong in them is said, with file, array, index and value; nothing is
unpickled.
"""

import io
import json
import os
import struct
import zipfile
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest
from PIL import Image

from hpcfed.config.sections import Data
from hpcfed.core.errors import DataError, HpcfedError
from hpcfed.data import datasets, files, partition, user_arrays
from hpcfed.data.dataset import DataSet, Split
from tests.attack.claims import TINY, damaged, refused, run

X = np.random.Generator(np.random.Philox(0)).integers(0, 255, (40, 8, 8)).astype(np.uint8)
Y = np.arange(40) % 4
ARRAYS = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}
HALF = {"x_test": None, "y_test": None}  # without a test split
NAN = np.where(X > 250, np.nan, X / 255)
WORDS = {
    "x_train": None,
    "x_test": None,
    "text_train": np.array(["good day"] * 40),
    "text_test": np.array(["x"] * 40),
}

WRONG = {  # what replaces or joins the arrays, and what the message holds
    "no_examples": ({"x_train": X[:0]}, ["x_train: shape [0, 8, 8] holds no images"]),
    "one_axis": ({"x_train": X[0, 0]}, ["x_train: shape [8]"]),
    "five_axes": ({"x_train": X[None, None]}, ["x_train: shape [1, 1, 40, 8, 8]"]),
    "scalar": ({"x_train": np.uint8(3)}, ["x_train: shape []"]),
    "complex": ({"x_train": X.astype(complex)}, ["x_train: dtype complex128 is not a pixel"]),
    "dates": (
        {"x_train": X.astype("datetime64[s]")},
        ["x_train: dtype datetime64[s] is not a pixel"],
    ),
    "records": (
        {"x_train": np.zeros((40, 8, 8), [("a", "i4")])},
        ["x_train: dtype [('a', '<i4')] is not a pixel"],
    ),
    "nan": ({"x_train": NAN, **HALF}, ["x_train: value nan at index [", "pixels must be finite"]),
    "infinite": ({"x_train": X * 1e300, **HALF}, ["x_train: value inf at index"]),
    "negative": ({"x_train": -X.astype(int)}, ["x_train: value -", "integer pixels lie in 0..255"]),
    "too_large": (
        {"x_test": np.full((40, 8, 8), 2**64 - 1, np.uint64)},
        ["x_test: value 18446744073709551615"],
    ),
    "other_shape": (
        {"x_test": X[:, :7]},
        ["x_test is uint8 [1, 7, 8] an example, but x_train is uint8 [1, 8, 8]"],
    ),
    "other_type": ({"x_test": X / 255}, ["x_test is float32", "make them alike"]),
    "labels_missing": ({"y_train": None}, ["has no y_train"]),
    "labels_few": ({"y_train": Y[:39]}, ["y_train: shape [39], but there are 40 examples"]),
    "labels_broken": (
        {"y_train": np.where(np.arange(len(Y)) > 0, Y, 0.5)},
        ["y_train: value 0.5 at index 0; a label is a whole number"],
    ),
    "labels_nan": ({"y_test": Y * np.nan}, ["y_test: value nan at index 0"]),
    "labels_negative": ({"y_train": Y - 1}, ["y_train: value -1 at index 0"]),
    "labels_high": (
        {"y_train": Y + 10**6},
        ["y_train: value 1000000 at index 0; a label lies in 0..C-1"],
    ),
    "labels_huge": (
        {"y_train": np.full(40, 2**64 - 1, np.uint64)},
        ["y_train: value 18446744073709551615"],
    ),
    "labels_new": (
        {"y_test": Y + 4},
        ["y_test: value 4 at index 0; the training labels are 0..3"],
    ),
    "labels_complex": ({"y_train": Y * 1j}, ["y_train: dtype complex128 is not a label"]),
    "test_halved": ({"x_test": None}, ["has no x_test"]),
    "too_few": (
        {"x_train": X[:2], "y_train": Y[:2], **HALF},
        ["2 examples are too few to hold out a test split"],
    ),
    "users_float": ({"users_train": Y * 1.0}, ["users_train: float64 [40]"]),
    "users_bytes": (
        {"users_train": np.array([b"\xff"] * 40)},
        ["users_train: text 0 is not UTF-8"],
    ),
    "tokens_negative": ({"vocabulary": -5}, ["vocabulary: is -5; store one whole number"]),
    "tokens_broken": ({"vocabulary": 3.7}, ["vocabulary: is 3.7"]),
    "tokens_infinite": ({"vocabulary": np.inf}, ["vocabulary: is inf"]),
    "tokens_many": ({"vocabulary": 10**18}, ["vocabulary: is 1000000000000000000"]),
    "no_words": (WORDS | {"text_train": np.array(["  "] * 40)}, ["hold no word"]),
    "text_alone": (WORDS | {"text_test": None, "x_test": X}, ["x_test is uint8"]),
}


def saved(path: Path, **changed: object) -> Path:
    """An NPZ file with these arrays instead of the right ones; None leaves one out."""
    np.savez(
        path, **{name: array for name, array in (ARRAYS | changed).items() if array is not None}
    )
    return path


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_array_is_named(tmp_path, name):
    changed, parts = WRONG[name]
    path = saved(tmp_path / "data.npz", **changed)
    refused(
        run(*TINY, "--data.name", str(path), "--out", str(tmp_path / "run")), "data.npz", *parts
    )
    assert not (tmp_path / "run").exists()


def test_unusual_but_valid_files_run(tmp_path):
    odd = {
        "column": {"y_train": Y[:, None]},
        "gaps": {"y_train": Y * 9, **HALF},
        "black": {"x_train": X * 0},
        "big": {"x_train": X.astype(">i4")},
        "faint": {"x_train": X * 1e-320, **HALF},
    }
    for name, changed in odd.items():
        data = files.read(saved(tmp_path / f"{name}.npz", **changed))
        assert (len(data.train.y), data.train.x.shape[1:]) == (
            32 if "x_test" in changed else 40,
            (1, 8, 8),
        )
    words = [*TINY, "--data.name", str(tmp_path / "faint.npz"), "--out", str(tmp_path / "run")]
    assert run(*words).status == 0


def header(shape: str, dtype: str = "|u1") -> bytes:
    """The beginning of an NPY file that declares this."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BOMBS = {  # an array of a zip file: declared without end, or hardly an array
    "terabytes": header("(1000000000, 1000, 1000)") + b"abc",
    "gigabytes": header("(1000000, 30, 30)") + b"abc",
    "negative": header("(-1, 8, 8)") + b"abc",
    "overflow": header("(1099511627776, 1099511627776, 1099511627776)"),
    "broken": header("(1.5, 3, 3)"),
    "nothing_often": header("(1000000000000,)", "|S0"),
    "wide_text": header("(3,)", "<U999999999"),
    "objects": header("(3,)", "|O") + b"\x80\x04N.",
    "code": b"\x93NUMPY\x01\x00" + struct.pack("<H", 30) + b"__import__('os').system('x')  ",
    "deep": b"\x93NUMPY\x02\x00" + struct.pack("<I", 9000) + b"(" * 9000,
    "long": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{",
    "garbage": b"garbage",
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_array_that_declares_more_than_the_file_has_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x_train.npy", BOMBS[name])
        file.writestr("y_train.npy", npy(Y))
    with pytest.raises(DataError, match=r"bomb\.npz: (cannot be read|x_train)"):
        files.read(tmp_path / "bomb.npz")


def test_more_than_the_machine_holds_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(
        tmp_path / "zeros.npz",
        x_train=np.zeros((1000, 64, 64), np.uint8),
        y_train=np.zeros(1000, int),
    )
    with h5py.File(tmp_path / "zeros.h5", "w") as file:
        file.create_dataset("train/images", (10**9, 64, 64), "u1", chunks=(1, 64, 64))
        file["train/labels"] = Y
    monkeypatch.setattr(user_arrays.hdf5_check, "memory", lambda: 10**6)
    for name in ("zeros.npz", "zeros.h5"):
        with pytest.raises(DataError, match="GiB, more than this machine's memory"):
            files.read(tmp_path / name)


def test_a_pickle_is_never_read(tmp_path):
    (tmp_path / "raw.npz").write_bytes(b"\x80\x04cos\nsystem\n(S'touch harm'\ntR.")
    np.savez(tmp_path / "objects.npz", x_train=np.array([{}, 1], object), y_train=Y)
    for name in ("raw.npz", "objects.npz"):
        with pytest.raises(DataError, match="pickled objects are never read"):
            files.read(tmp_path / name)


def hdf5(path: Path, **options: object) -> Path:
    """A right HDF5 file."""
    with h5py.File(path, "w", libver=options.pop("libver", None)) as file:
        for part in ("train", "test"):
            file.create_dataset(f"{part}/images", data=X, **options)
            file[f"{part}/labels"], file[f"{part}/users"] = Y, [f"user {k}" for k in Y]
        file.attrs["classes"] = json.dumps(["a", "b", "$c$", "ü"])
    return path


def jpegs(path: Path) -> Path:
    """A right HDF5 file of JPEG images, without their common header."""
    images = []
    for x in X[:20]:
        file = io.BytesIO()
        Image.fromarray(x).convert("RGB").save(file, "JPEG")
        images.append(file.getvalue())
    with h5py.File(path, "w") as file:
        file["jpeg_header"] = np.frombuffer(images[0][:2], np.uint8)
        file["train/jpeg_body"] = np.frombuffer(b"".join(i[2:] for i in images), np.uint8)
        file["train/jpeg_offsets"] = np.cumsum([0, *(len(i) - 2 for i in images)])
        file["train/labels"] = Y[:20]
    return path


def text(path: Path) -> Path:
    """A right HDF5 file of texts."""
    with h5py.File(path, "w") as file:
        file["train/text"], file["train/labels"] = ["good day", "bad"] * 20, Y
        file["train/users"] = [f"user {k}" for k in Y]
    return path


def put(file: h5py.File, place: str, value: object) -> None:
    """Another value at a place; None leaves it out."""
    if place in file:
        del file[place]
    if value is not None:
        file[place] = value


DAMAGE = {  # a place in an HDF5 file, what stands there, and what the message holds
    "no_train": ("train", None, "no group 'train'"),
    "train_is_array": ("train", Y, "train is not a group"),
    "images_are_group": ("train/images/x", Y, "cannot be read|train/images: is not an array"),
    "no_images": ("train/images", None, "has no train/images"),
    "no_values": ("train/images", h5py.Empty("u1"), "train/images: is not an array"),
    "away": ("train/images", h5py.SoftLink("/nowhere"), "cannot be read|has no train/images"),
    "circle": (
        "train/images",
        h5py.SoftLink("/train/images"),
        "cannot be read|has no train/images",
    ),
    "elsewhere": (
        "train/images",
        h5py.ExternalLink("none.h5", "x"),
        "cannot be read|has no train/images",
    ),
    "label_lists": ("train/labels", np.zeros((40, 0), int), "train/labels: int64 .40, 0. may be"),
    "user_objects": ("train/users", np.zeros((40, 2), int), "train/users: int64"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_wrong_place_in_an_hdf5_file_is_named(tmp_path, name):
    place, value, message = DAMAGE[name]
    with h5py.File(hdf5(tmp_path / "data.h5"), "r+") as file:
        if name == "images_are_group":
            del file["train/images"]
        put(file, place, value)
    with pytest.raises(DataError, match=message):
        files.read(tmp_path / "data.h5")


@pytest.mark.parametrize(
    "classes", ["5", "[]", '"abc"', "[" * 50_000, "{", "nan", b"\xff", 7, np.arange(3)], ids=repr
)
def test_class_names_that_are_no_list_are_refused(tmp_path, classes):
    with h5py.File(hdf5(tmp_path / "data.h5"), "r+") as file:
        file.attrs["classes"] = np.bytes_(classes) if isinstance(classes, str | bytes) else classes
    with pytest.raises(DataError, match=r"data\.h5"):
        files.read(tmp_path / "data.h5")


def test_damaged_npz_files_are_read_or_refused(tmp_path):
    originals = [
        saved(tmp_path / "a.npz").read_bytes(),
        saved(tmp_path / "t.npz", **WORDS, users_train=Y).read_bytes(),
    ]
    np.savez_compressed(tmp_path / "c.npz", **ARRAYS)
    originals.append((tmp_path / "c.npz").read_bytes())
    g, path = Random(0), tmp_path / "m.npz"
    for _ in range(600):
        path.write_bytes(damaged(g.choice(originals), g))
        try:
            files.read(path)
        except DataError as error:
            assert "m.npz" in str(error)


def test_a_million_classes_are_shared_out():
    n, few = 30_000, Y[:1]
    train = Split(np.zeros((n, 1, 1, 1), np.uint8), np.arange(n))
    data = DataSet(
        "many", train, Split(train.x[:1], few), tuple(map(str, range(10**6))), (0.0,), (1.0,)
    )
    for name in ("dirichlet", "classes"):
        parts = partition.split(data, Data(partition=name, classes_per_client=1000), 20, 0)
        assert all(parts.sizes)


@pytest.mark.parametrize("name", ["x.npz", "x.h5"])
def test_a_name_that_is_no_file_is_refused_at_once(tmp_path, name):
    kinds = {
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "loop": lambda p: os.symlink(name, p),
        "empty": Path.touch,
    }
    for kind, make in kinds.items():
        (tmp_path / kind).mkdir()
        make(tmp_path / kind / name)
        with pytest.raises(HpcfedError, match=name):
            datasets.load(str(tmp_path / kind / name), tmp_path)
