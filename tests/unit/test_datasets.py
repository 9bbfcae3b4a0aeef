"""Data sets: real files load, users' files are checked, and every refusal says what is wrong and
where.
"""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfed.core.compat import import_torchvision
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data import DATASETS, digits, files, user_arrays, vision
from hpcfed.data.dataset import Reading, from_arrays, to_arrays
from hpcfed.data.datasets import load
from hpcfed.data.moments import moments
from tests.mpirun import ROOT
from tests.shared import shared


def save_npz(folder: Path, **changes) -> Path:
    """An .npz file of 20 training and 8 test images of two classes; None leaves an array out."""
    g = np.random.default_rng(0)
    arrays = {
        "x_train": g.integers(0, 256, (20, 8, 8), np.uint8),
        "y_train": np.arange(20) % 2,
        "x_test": g.integers(0, 256, (8, 8, 8), np.uint8),
        "y_test": np.arange(8) % 2,
    } | changes
    np.savez(
        folder / "my.npz", **{name: array for name, array in arrays.items() if array is not None}
    )
    return folder / "my.npz"


def save_hdf5(path: Path, images="images", labels="labels", classes=None, n=20) -> Path:
    g = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for part in ("train", "test"):
            file[f"{part}/{images}"] = g.integers(0, 256, (n, 6, 5, 3), np.uint8)
            file[f"{part}/{labels}"] = np.arange(n) % 2
        if classes:
            file.attrs["classes"] = json.dumps(classes)
    return path


def changed(key: str, index, value) -> dict:
    """The array of save_npz with one entry changed."""
    base = (
        np.zeros((20, 8, 8), np.float32)
        if key.startswith("x")
        else np.arange(20).astype(np.float64) % 2
    )
    base[index] = value
    return {key: base}


OTHERS = {"digits", "sentiment140", "synthetic", "utd-mhad", "health-records", "heart-disease"}
OTHERS |= {"uci-har", "femnist", "celeba", "shakespeare", "tcga-brca", "digits-domains"}


def test_the_registry_names_a_source_for_every_data_set_and_imports_no_torch():
    assert all(entry.line and entry.cite for entry in DATASETS.values())
    assert set(DATASETS) == set(vision.SOURCES) | OTHERS
    code = (
        "import sys, hpcfed.data.datasets; assert not {'torch', 'sklearn', 'h5py'} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_digits_are_1437_and_360_upright_scans_of_all_classes(tmp_path):
    data = load("digits", tmp_path)
    assert data.train.x.shape == (1437, 1, 16, 16) and data.test.x.shape == (360, 1, 16, 16)
    assert (
        data.train.x.dtype == np.uint8
        and data.train.y.dtype == np.int64
        and data.train.x.max() == 255
    )
    assert np.bincount(data.test.y).tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    assert np.array_equal(load("digits", tmp_path).train.x, data.train.x)
    assert np.isclose((data.train.x / 255).std(), data.std[0])


def test_digits_are_scikit_learns(tmp_path):
    from sklearn.datasets import load_digits

    scans, y = load_digits(return_X_y=True)
    data = load("digits", tmp_path)
    got = zip(
        np.concatenate([data.train.x, data.test.x]),
        np.concatenate([data.train.y, data.test.y]),
        strict=True,
    )
    want = zip(digits._resized(scans.reshape(-1, 1, 8, 8)), y, strict=True)
    assert sorted((x.tobytes(), int(y)) for x, y in got) == sorted(
        (x.tobytes(), int(y)) for x, y in want
    )


def test_a_data_set_survives_the_way_through_arrays(tmp_path):
    data = load(str(save_npz(tmp_path, users_train=np.arange(20) % 3)), tmp_path)
    arrays = to_arrays(data)
    back = from_arrays(arrays)
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays.values())
    assert (back.name, back.classes, back.mean, back.std) == (
        data.name,
        data.classes,
        data.mean,
        data.std,
    )
    assert back.test.users is None and np.array_equal(back.train.users, data.train.users)
    assert np.array_equal(back.train.x, data.train.x) and np.array_equal(back.test.y, data.test.y)


def test_moments_are_those_of_each_channel_and_a_constant_channel_divides_by_one():
    x = np.zeros((2, 2, 1, 2), np.uint8)
    x[:, 0, 0] = [[0, 255], [0, 255]]
    assert moments(x) == ((0.5, 0.0), (0.5, 1.0))


def test_hdf5_images_become_channels_first_with_their_class_names(tmp_path):
    data = load(str(save_hdf5(tmp_path / "a.h5", classes=["cat", "dog"])), tmp_path)
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.array_equal(data.train.x, file["train/images"][:].transpose(0, 3, 1, 2))
    assert data.classes == ("cat", "dog") and data.name == "a"
    with pytest.raises(DataError, match="'classes': '.*' is not Unicode text"):
        load(str(save_hdf5(tmp_path / "c.h5", classes=["cat", "\udcff"])), tmp_path)
    assert load("a.h5", tmp_path).train.x.shape == (20, 3, 6, 5)


def test_without_a_test_split_a_fixed_stratified_fifth_is_held_out(tmp_path):
    path = str(save_npz(tmp_path, x_test=None, y_test=None))
    data, again = load(path, tmp_path), load(path, tmp_path)
    assert np.bincount(data.train.y).tolist() == [8, 8] and np.bincount(data.test.y).tolist() == [
        2,
        2,
    ]
    assert np.array_equal(data.test.x, again.test.x)


@pytest.mark.parametrize(
    "changes, words",
    [
        (changed("x_train", (3, 1, 2), np.nan), ["x_train", "nan", "[3, 1, 2]"]),
        (changed("x_train", (3, 1, 2), -np.inf), ["x_train", "-inf", "[3, 1, 2]"]),
        ({"x_train": np.full((20, 8, 8), 300)}, ["x_train", "300", "0..255"]),
        ({"x_train": np.zeros((20, 64), np.uint8)}, ["x_test", "[8, 8, 8]", "[n, features]"]),
        (
            {"x_train": np.zeros((0, 8, 8), np.uint8), "y_train": np.zeros(0)},
            ["x_train", "[0, 8, 8]"],
        ),
        ({"x_test": np.zeros((0, 8, 8), np.uint8), "y_test": np.zeros(0)}, ["x_test", "[0, 8, 8]"]),
        ({"x_test": np.zeros((8, 9, 8), np.uint8)}, ["x_test", "[1, 9, 8]", "[1, 8, 8]"]),
        ({"x_train": np.zeros((20, 8, 8), complex)}, ["x_train", "complex"]),
        (changed("y_train", 7, -1), ["y_train", "-1", "index 7"]),
        (changed("y_train", 7, 0.5), ["y_train", "0.5", "index 7"]),
        (changed("y_train", 7, np.nan), ["y_train", "nan", "index 7"]),
        (changed("y_train", 7, 1000), ["y_train", "1000", "index 7"]),
        ({"y_test": np.full(8, 2)}, ["y_test", "value 2", "index 0", "training labels are 0..1"]),
        (
            {"y_test": np.full(8, 2), "classes": np.array(["cat", "dog"])},
            ["y_test", "value 2", "index 0", "0..1, as the classes are cat, dog"],
        ),
        ({"y_train": np.arange(19) % 2}, ["y_train", "[19]", "20 examples"]),
        ({"y_train": np.array(["a"] * 20)}, ["y_test", "other labels are words"]),
        ({"y_train": None}, ["has no y_train"]),
        ({"x_train": None}, ["has no x_train"]),
        ({"users_train": np.arange(3)}, ["users_train", "[3]"]),
        ({"x_train": np.array([{}] * 20)}, ["pickled"]),
    ],
)
def test_unusable_arrays_are_refused_with_file_array_index_and_value(tmp_path, changes, words):
    with pytest.raises(DataError) as error:
        load(str(save_npz(tmp_path, **changes)), tmp_path)
    assert all(word in str(error.value) for word in ["my.npz", *words]), error.value


def scales(train: np.ndarray, test: np.ndarray) -> str:
    """What is said of images with these values."""
    arrays = {"x_train": train, "y_train": np.arange(20) % 2, "x_test": test, "y_test": [0, 1] * 4}
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    return "".join(files.from_arrays("my.npz", arrays, Reading()).notes)


def test_test_images_of_another_scale_than_the_training_images_are_named():
    g = np.random.default_rng(0)
    x, normal = g.random((20, 1, 8, 8), np.float32), g.normal(size=(20, 1, 8, 8))
    images = {"0..1": x, "0..255": 255 * x, "standardised": 3 * x - 1.5, "-1..1": 2 * x - 1}
    for train, test in (
        *(("0..1", "0..255"), ("0..255", "0..1"), ("standardised", "0..1"), ("0..1", "-1..1")),
        *(("0..255", "-1..1"), ("-1..1", "0..255")),
    ):
        line = scales(images[train], images[test][:8])
        assert line.startswith("my.npz: x_train from ") and "but x_test from" in line, (train, test)
    assert "scale both alike" in scales((255 * x).astype(np.uint8), x[:8].astype(np.uint8))
    for train, test in (
        *((part, 0.7 * part[:8]) for part in images.values()),
        *((normal, normal[:8]), (normal, abs(normal[:8])), (30 * normal, abs(30 * normal[:8]))),
        *((x, 40 * x[:8]), (normal[:, :, :1], 255 * x[:8, :, :1]), (1e4 * x, x[:8])),
        (abs(0.4 + 0.3 * normal), 0.4 + 0.3 * normal[:8]),
        (255 * x[:, 0, 0], x[:8, 0, 0]),  # a table
    ):
        assert scales(train, test) == ""


def test_arrays_that_are_of_no_split_are_named(tmp_path):
    npz = save_npz(tmp_path, x_val=np.zeros(3), y_val=np.zeros(3), classes=np.array(["a", "b"]))
    with h5py.File(save_hdf5(tmp_path / "a.h5"), "a") as file:
        file["val/images"] = np.zeros(3)
    for path, names in ((npz, "x_val, y_val"), (tmp_path / "a.h5", "val")):
        (line,) = load(str(path), tmp_path).notes
        assert line.startswith(f"{path}: not read: {names}; ") and "evaluate.validation" in line
    features = {"x_train": np.zeros((20, 2)), "x_test": np.zeros((8, 2))}
    table = save_npz(tmp_path, **features, columns=np.array(["age", "dose"]), id=np.zeros(20))
    assert any("not read: id; " in line for line in load(str(table), tmp_path).notes)


def test_a_label_outside_the_named_classes_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"train/labels: value 1 at index 1"):
        load(str(save_hdf5(tmp_path / "a.h5", classes=["only"])), tmp_path)


@pytest.mark.parametrize("name", ["a.h5", "a.npz"])
@pytest.mark.parametrize("content", [b"", b"nothing of the kind", pickle.dumps([1, 2]), "half"])
def test_foreign_truncated_and_pickled_files_are_refused(tmp_path, name, content):
    if content == "half":
        path = save_npz(tmp_path) if name == "a.npz" else save_hdf5(tmp_path / "whole.h5")
        content = path.read_bytes()[: path.stat().st_size // 2]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        load(name, tmp_path)


def test_missing_files_unknown_names_and_empty_hdf5_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match=f"^nowhere.h5: no such file, nor in {tmp_path}"):
        load("nowhere.h5", tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean 'cifar10'"):
        load("cifar-10", tmp_path)
    h5py.File(tmp_path / "empty.h5", "w").close()
    with pytest.raises(DataError, match="no group 'train'"):
        load("empty.h5", tmp_path)


@pytest.mark.parametrize("name", sorted(vision.SOURCES))
def test_a_missing_known_set_names_files_folder_and_the_way_out(tmp_path, name):
    with pytest.raises(DataError) as error:
        load(name, tmp_path, download=False)
    for word in (
        str(tmp_path),
        vision.SOURCES[name].files[0],
        f"{name.replace('-', '_')}.h5",
        "--data.root",
    ):
        assert word in str(error.value)


def test_a_failed_download_is_a_data_error_with_the_reason(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(import_torchvision().datasets.cifar, "download_and_extract_archive", refuse)
    with pytest.raises(DataError, match="no route to host"):
        load("cifar10", tmp_path)


def test_a_known_set_is_taken_from_an_hdf5_file_of_its_name(tmp_path):
    save_hdf5(tmp_path / "cifar10.h5")
    data = load("cifar10", tmp_path)
    assert (
        data.name == "cifar10" and data.mean == (0.4914, 0.4822, 0.4465) and len(data.train.y) == 20
    )


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([2048 + array.ndim, *array.shape], ">i4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_torchvisions_mnist_files_are_preferred_and_emnist_is_turned_upright(tmp_path):
    image = np.arange(28 * 28).reshape(1, 28, 28) % 251
    save_hdf5(tmp_path / "emnist_letters.h5")
    for part in ("train", "test"):
        stem = tmp_path / "EMNIST" / "raw" / f"emnist-letters-{part}"
        write_idx(Path(f"{stem}-images-idx3-ubyte"), image.repeat(2, 0))
        write_idx(Path(f"{stem}-labels-idx1-ubyte"), np.array([1, 26]))
    data = load("emnist-letters", tmp_path, download=False)
    assert data.train.y.tolist() == [0, 25] and data.classes[0] == "A" and len(data.classes) == 26
    assert np.array_equal(data.train.x[0, 0], image[0].T)


def test_torchvisions_damaged_files_are_a_data_error(tmp_path):
    for file in vision.SOURCES["mnist"].files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"\0\0\x08")
    with pytest.raises(DataError, match="torchvision says"):
        load("mnist", tmp_path, download=False)


def test_svhn_and_usps_files_give_channels_first_images(tmp_path, monkeypatch):
    import bz2

    from scipy.io import savemat

    monkeypatch.setattr(import_torchvision().datasets.SVHN, "_check_integrity", lambda self: True)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 2), np.uint8)
    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels, "y": np.array([[10], [3]])})
        line = "7 " + " ".join(f"{i}:{-1 if i % 2 else 1}" for i in range(1, 257)) + "\n"
        name = "usps.bz2" if part == "train" else "usps.t.bz2"
        (tmp_path / name).write_bytes(bz2.compress(line.encode()))
    svhn, usps = load("svhn", tmp_path, download=False), load("usps", tmp_path, download=False)
    assert np.array_equal(svhn.train.x, pixels.transpose(3, 2, 0, 1)) and svhn.train.y.tolist() == [
        0,
        3,
    ]
    assert usps.train.x.shape == (1, 1, 16, 16) and usps.train.x[0, 0, 0, :2].tolist() == [0, 255]
    assert usps.train.y.tolist() == [6] and usps.train.x.dtype == np.uint8


def test_real_fashion_mnist_comes_in_its_official_order():
    data = load("fashion-mnist", shared("fashion_mnist.h5").parent, download=False)
    assert data.train.x.shape == (60000, 1, 28, 28) and data.test.x.shape == (10000, 1, 28, 28)
    assert data.train.y[:5].tolist() == [9, 0, 0, 3, 0] and data.classes[9] == "Ankle boot"
    mean, std = moments(data.train.x)
    assert np.allclose([*mean, *std], [*data.mean, *data.std], atol=1e-4)


def test_jpeg_bodies_with_a_shared_header_are_decoded_and_damage_is_named(tmp_path):
    small = tmp_path / "tiny.h5"
    with h5py.File(shared("tiny_imagenet32_100.h5")) as full, h5py.File(small, "w") as file:
        file["jpeg_header"], file.attrs["classes"] = full["jpeg_header"][:], full.attrs["classes"]
        for part in ("train", "test"):
            offsets = full[f"{part}/jpeg_offsets"][:21]
            file[f"{part}/jpeg_offsets"], file[f"{part}/labels"] = (
                offsets,
                full[f"{part}/labels"][:20],
            )
            file[f"{part}/jpeg_body"] = full[f"{part}/jpeg_body"][: offsets[-1]]
    data = load("tiny.h5", tmp_path)
    assert (
        data.train.x.shape == (20, 3, 32, 32)
        and len(data.classes) == 100
        and data.train.x.std() > 30
    )
    with h5py.File(small, "r+") as file:
        file["test/jpeg_offsets"][5] = file["test/jpeg_offsets"][4]
    with pytest.raises(DataError, match="test/jpeg_body: image 4"):
        load("tiny.h5", tmp_path)


def test_real_digits_make_domains_in_the_form_of_digit_5(monkeypatch):
    monkeypatch.setattr(user_arrays, "check_once", lambda *state: None)  # reads all of it before
    names = ("mnist", "mnist-m", "digits")
    root = shared("mnist.h5").parent
    shared("cifar10.h5")  # the photographs of MNIST-M
    data = load("digits-domains", root, download=False, how=Reading(domains=names))
    assert data.user_names == names
    assert np.bincount(data.train.users).tolist() == [7_438, 7_438, 1_438]
    assert np.bincount(data.test.users).tolist() == [14_000, 14_000, 359]
    grey, colour = (data.test.x[data.test.users == domain] for domain in (0, 1))
    # both domains have the same digits as tests, in one of them over photographs
    assert (data.test.y[data.test.users == 0] == data.test.y[data.test.users == 1]).all()
    assert (grey == grey[:, :1]).all() and colour.std(1).mean() > 5


def test_users_of_images_without_tests_are_tested_on_their_own_and_are_called_by_their_numbers(
    tmp_path,
):
    users = np.repeat([7, 3], [20, 10])
    images = np.arange(30 * 64).reshape(30, 8, 8) % 256
    y = np.arange(30) % 2
    np.savez(tmp_path / "a.npz", x_train=images, y_train=y, users_train=users)
    data = load(str(tmp_path / "a.npz"), tmp_path)
    assert data.own_tests and data.user_names == ("3", "7")
    assert np.bincount(data.test.users).tolist() == [2, 4]
    assert np.bincount(data.train.users).tolist() == [8, 16]
