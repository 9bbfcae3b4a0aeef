"""Data sets whose clients are people or hospitals: small files of their formats, real ones where
they are.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpcfed.comm import Serial
from hpcfed.config.load import load as load_job
from hpcfed.config.sections import Data
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data import celeba, har, heart, leaf, tcga
from hpcfed.data.datasets import load
from hpcfed.data.partition import split
from hpcfed.models import build
from tests.contract import toy
from tests.unit.test_datasets import shared


def settings(**fields: object) -> Data:
    return Data().model_copy(update={"partition": "natural"} | fields)


# ---- heart disease ----


def hospital(path: Path, n: int) -> None:
    """n rows without gaps and one with; the age is 40, 41, ...; the label 0, 1, 2, 0, ..."""
    rows = [f"{40 + i}.0,1,{1 + i % 4},120,200,0,{i % 3},150,0,1.5,?,?,?,{i % 3}" for i in range(n)]
    path.write_text("\n".join([*rows, "63,1,?,120,200,0,2,150,0,1.5,2,0,6,1", ""]))


def test_heart_disease_is_read_as_flamby_prepares_it(tmp_path: Path):
    for file in heart.FILES:
        hospital(tmp_path / file, 12)
    data = load("heart-disease", tmp_path)
    assert data.train.x.shape == (4 * 7, 13) and len(data.test.y) == 4 * 5  # ceil(0.34 * 12)
    assert (data.task.name, data.shape, data.mean) == ("binary", (13,), (0.0,) * 13)
    assert np.bincount(data.test.users).tolist() == [5] * 4
    for k in range(4):
        x = data.train.x[data.train.users == k]
        np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
        spread = x.std(0, ddof=1)  # all have one sex and one blood pressure
        assert (
            np.isclose(spread[0], 1) and spread[1] == 0 and np.isin(spread.round(5), (0, 1)).all()
        )


def test_real_heart_disease_has_flambys_sizes():
    data = load("heart-disease", shared("heart_disease.h5").parent)
    assert np.bincount(data.train.users).tolist() == [199, 172, 30, 85]
    assert np.bincount(data.test.users).tolist() == [104, 89, 16, 45]


@pytest.mark.parametrize(
    "text, message",
    [
        ("1,2,3", "row 1 has 3 values, not 14"),
        ("a" + ",1" * 13, "row 1: could not convert"),
        ("", "is empty"),
    ],
)
def test_a_wrong_row_of_heart_disease_is_named(text: str, message: str, tmp_path: Path):
    (tmp_path / heart.FILES[0]).write_text(text)
    with pytest.raises(DataError, match=message):
        heart.read(tmp_path / heart.FILES[0])


def test_heart_disease_is_downloaded_if_it_is_missing(tmp_path: Path):
    (source := tmp_path / "there").mkdir()
    for file in heart.FILES:
        hospital(source / file, 9)
    heart.fetch(tmp_path / "data", f"{source.as_uri()}/")
    assert len(load("heart-disease", tmp_path / "data", False).classes) == 2
    with pytest.raises(DataError, match="expected there: processed.cleveland.data"):
        load("heart-disease", tmp_path / "other", False)
    with pytest.raises(DataError, match=r"(?s)expected there.*the download: "):
        heart.fetch(tmp_path / "other", f"{source.as_uri()}/nothing/")


# ---- TCGA-BRCA ----

COLUMNS = ["pid", "age_at_index", *(f"kind_{i}" for i in range(37)), '"diagnosis, NOS"', "E", "T"]


def regions(folder: Path, **change: str) -> Path:
    """Two training patients and a test one of each of six regions, and one whom no split names;
    patient i is 40 + i, and died after 10 i days where i is odd.
    """
    rows = [f"P-{i},{40 + i}{',1' * 38},{i % 2}.0,{10 * i}.0" for i in range(19)]
    split = [f"P-{i},{part},{part}_{i % 6}" for i in range(18) for part in [fold_of(i)]]
    text = {"brca": [",".join(COLUMNS), *rows], "split": ["pid,fold,fold2", *split]}
    folder.mkdir(exist_ok=True)
    for name, file in (("brca", tcga.FILE), ("split", tcga.SPLITS[0])):
        (folder / file).write_text(change.get(name, "\n".join([*text[name], ""])))
    return folder


def fold_of(i: int) -> str:
    return "test" if i >= 12 else "train"


def test_tcga_brca_has_flambys_patients_regions_and_times(tmp_path: Path):
    data = load("tcga-brca", regions(tmp_path))
    assert (data.task.name, data.shape, data.classes) == ("survival", (39,), ("log risk",))
    assert data.train.users.tolist() == [*range(6)] * 2 and data.test.users.tolist() == [*range(6)]
    assert data.train.x[:, 0].tolist() == [40 + i for i in range(12)]  # as in the file
    assert data.test.y.tolist() == [[10 * i, i % 2] for i in range(12, 18)]  # time, event
    assert data.mean == (0.0,) * 39 and data.std == (1.0,) * 39


def test_tcga_brca_is_read_from_flambys_own_folder_or_the_files_are_named(tmp_path: Path):
    folder = regions(tmp_path / "flamby")
    (folder / tcga.SPLITS[1]).parent.mkdir()
    (folder / tcga.SPLITS[0]).rename(folder / tcga.SPLITS[1])
    assert len(load("tcga-brca", folder).train.y) == 12
    (folder / tcga.FILE).unlink()
    with pytest.raises(DataError, match=r"(?s)brca.csv and train_test_split.csv.*owkin/FLamby"):
        load("tcga-brca", folder)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"brca": "pid,age\nP-0,1\n"}, "2 in all, not pid, 39 features, E and T"),
        ({"brca": ",".join(COLUMNS) + "\nP-0,old" + ",1" * 40}, "line 2: could not convert"),
        ({"brca": ",".join(COLUMNS) + "\nP-0" + ",1" * 40 + ",-3"}, "a time is 0 or more"),
        ({"brca": ",".join(COLUMNS) + "\nP-0" + ",nan" * 39 + ",1,3"}, "not a finite number"),
        ({"brca": ""}, "is empty"),
        ({"split": "pid,fold,fold2\nP-0,train,train_6\n"}, "line 2: fold2 is 'train_6'"),
        ({"split": "pid,fold,fold2\nP-0,train,train_0\n"}, r"no test patient of region 0"),
    ],
)
def test_errors_in_a_file_of_tcga_brca_are_named(change, message, tmp_path: Path):
    with pytest.raises(DataError, match=message):
        load("tcga-brca", regions(tmp_path, **change))


def test_the_regions_of_tcga_brca_are_natural_clients_that_learn_risks(tmp_path: Path):
    words = ["--data.name", "tcga-brca", "--data.root", str(regions(tmp_path)), "--clients", "6"]
    words += ["--algorithm.name", "fedavg", "--models.mix", "ft-transformer", "--models.d", "4"]
    words += ["--data.partition", "natural", "--rounds", "2", "--run.device", "cpu"]
    outcome = toy.run(Serial(), load_job(words, environ={}))
    assert np.isfinite(outcome.column("train_loss")).any()
    assert outcome.column("examples")[0].tolist() == [2] * 6


# ---- UCI-HAR ----


def activity(folder: Path) -> Path:
    """Six training and three test windows of three people, in the authors' files."""
    for part, n in (("train", 6), ("test", 3)):
        (folder / part / "Inertial Signals").mkdir(parents=True)
        for s, file in enumerate(har.files(part)[:6]):
            np.savetxt(folder / file, np.full((n, 128), 10 * s) + np.arange(n)[:, None])
        np.savetxt(folder / har.files(part)[6], 1 + np.arange(n) % 6, fmt="%d")
        np.savetxt(folder / har.files(part)[7], 1 + np.arange(n) % 3, fmt="%d")
    return folder


def test_uci_har_has_two_sensors_of_three_axes(tmp_path: Path):
    activity(tmp_path / har.FOLDER)
    data = load("uci-har", tmp_path, False)
    assert data.modalities == ("accelerometer", "gyroscope") and len(data.classes) == 6
    assert data.train.x["gyroscope"].shape == (6, 3, 128)
    assert data.train.x["accelerometer"][2, :, 5].tolist() == [2, 12, 22]
    assert data.test.x["gyroscope"][1, :, 0].tolist() == [31, 41, 51]
    assert data.train.y.tolist() == [0, 1, 2, 3, 4, 5] and data.train.users.tolist()[:3] == [
        1,
        2,
        3,
    ]


def test_uci_har_is_unpacked_from_its_archive_and_wrong_files_are_named(tmp_path: Path):
    folder = activity(tmp_path / "there" / har.FOLDER)
    with zipfile.ZipFile(tmp_path / "har.zip", "w") as packed:
        for part in ("train", "test"):
            for file in har.files(part):
                packed.write(folder / file, f"{har.FOLDER}/{file}")
    root = tmp_path / "data"
    har.fetch("uci-har", root, (tmp_path / "har.zip").as_uri())
    assert len(load("uci-har", root, False).train.y) == 6
    assert [path.name for path in root.iterdir()] == [har.FOLDER]
    np.savetxt(root / har.FOLDER / har.files("train")[1], np.zeros((6, 5)))
    with pytest.raises(DataError, match=r"total_acc_y_train.txt: \[6, 5\], not \[6, 128\]"):
        load("uci-har", root, False)
    with pytest.raises(DataError, match="expected there: the folder 'UCI HAR Dataset'"):
        load("uci-har", tmp_path / "nowhere", False)


# ---- LEAF ----


def users(folder: Path, train: dict, test: dict) -> None:
    for part, arrays in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True)
        by_user = {u: {"x": x, "y": y} for u, (x, y) in arrays.items()}
        for i, user in enumerate(by_user):  # a file each
            content = {"users": [user], "num_samples": [1], "user_data": {user: by_user[user]}}
            (folder / part / f"all_{i}.json").write_text(json.dumps(content))


def test_femnist_is_read_from_leafs_files_by_writer(tmp_path: Path):
    white, grey = [1.0] * 784, [0.2] * 783 + [0.0]
    users(
        tmp_path / "femnist",
        {"b": ([white], [61]), "a": ([grey, white], [0, 10])},
        {"b": ([grey], [36])},
    )
    data = load("femnist", tmp_path)
    assert data.train.x.shape == (3, 1, 28, 28) and data.train.x[0].ravel()[-2:].tolist() == [51, 0]
    assert data.train.users.tolist() == [0, 0, 1] and data.test.users.tolist() == [1]
    assert [data.classes[c] for c in data.train.y] == ["0", "A", "z"] and data.classes[36] == "a"
    partition = split(data, settings(), 2, 0)
    assert [part.tolist() for part in partition.train] == [[0, 1], [2]]
    assert [part.tolist() for part in partition.test] == [[], [0]]
    with pytest.raises(DataError, match="femnist/train/.*json and femnist/test/"):
        load("femnist", tmp_path / "nowhere")


def test_femnists_model_of_leaf_is_the_cnn_with_2048_units():
    model = build("cnn", (1, 28, 28), 62, 2048)
    assert sum(p.numel() for p in model.parameters()) == 6_603_710


def test_shakespeare_is_eighty_characters_and_the_next(tmp_path: Path):
    line = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suf"
    x, y = line[:80], line[80]
    users(tmp_path / "shakespeare", {"HAM": ([x, x], [y, "$"])}, {"HAM": ([x[:-1] + "$"], ["a"])})
    data = load("shakespeare", tmp_path)
    assert (data.vocabulary, data.shape, data.task.name) == (81, (80,), "next")
    assert data.train.x.shape == (1, 80)  # what "$" should be is not asked
    assert [leaf.ALPHABET[c - 1] for c in data.train.x[0]] == list(x)
    assert data.classes[data.train.y[0]] == "f" and data.test.x[0, -1] == 0
    users(tmp_path / "bad" / "shakespeare", {"A": (["short"], ["a"])}, {"A": ([x], ["a"])})
    with pytest.raises(DataError, match="an x is a text of 80 characters"):
        load("shakespeare", tmp_path / "bad")


def test_leafs_model_for_characters_has_its_parameters():
    """817,872 in TensorFlow, and a second bias for each of the 2 x 4 x 256 gates."""
    model = build("lstm-char", (80,), 80, 256, vocabulary=80)
    assert sum(p.numel() for p in model.parameters()) == 817_872 + 2048


def test_real_shakespeare_has_141_roles_and_no_piece_in_two_examples():
    data = load("shakespeare", shared("shakespeare.h5").parent)
    assert len(np.unique(data.train.users)) == 141 == len(np.unique(data.test.users))
    assert len(np.unique(data.train.x, axis=0)) == len(data.train.x)


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "cannot be read"),
        ('{"users": []}', "has no 'user_data'"),
        ('{"user_data": {"a": {"x": [1], "y": []}}}', "user 'a' has no lists x and y of one"),
    ],
)
def test_a_wrong_file_of_leaf_is_named(content: str, message: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=f"a.json: {message}"):
        leaf.read(tmp_path / "a.json")


# ---- CelebA ----


def faces(folder: Path, numbers: list[int]) -> None:
    """Images of celebrities by number; every second one smiles."""
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{i:06}.jpg" for i in range(len(numbers))]
    for i, name in enumerate(names):
        Image.new("RGB", (178, 218), (i, 100, 200)).save(folder / "img_align_celeba" / name)
    who = [f"{name} {number}" for name, number in zip(names, numbers, strict=True)]
    (folder / "identity_CelebA.txt").write_text("\n".join(who))
    lines = [f"{name}  -1 {1 - 2 * (i % 2)}" for i, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text(
        "\n".join([str(len(names)), "Young Smiling ", *lines, ""])
    )


def test_celebas_test_images_are_those_of_leaf():
    sizes = [5, 9, 10, 11, 19, 20, 21, 30]
    test = celeba.held_out(np.repeat(np.arange(8), sizes))
    counts = np.bincount(np.repeat(np.arange(8), sizes)[test])
    assert counts.tolist() == [1, 1, 1, 2, 2, 2, 3, 3]  # n - int(0.9 n)


def test_celeba_is_read_from_torchvisions_files_by_celebrity(tmp_path: Path):
    faces(tmp_path / "celeba", [7] * 6 + [9] * 4 + [3] * 5)
    data = load("celeba", tmp_path, False)
    assert data.train.x.shape == (9, 3, 84, 84) and data.test.users.tolist() == [7, 3]
    assert (data.task.name, data.classes) == ("binary", ("not smiling", "smiling"))
    both = np.concatenate([data.train.y, data.test.y])
    assert both.sum() == 3 + 3  # of images 0, 2, 4 and 10, 12, 14
    with pytest.raises(DataError, match="celeba/identity_CelebA.txt"):
        load("celeba", tmp_path / "nowhere", False)
    (tmp_path / "celeba/img_align_celeba/000002.jpg").write_bytes(b"no")
    with pytest.raises(DataError, match="000002.jpg: cannot be read"):
        load("celeba", tmp_path, False)


# ---- natural partitions ----


def test_users_with_few_examples_are_left_out_and_labels_that_are_missing(tmp_path: Path):
    faces(tmp_path / "celeba", [7] * 12 + [9] * 5 + [3] * 9)
    data = load("celeba", tmp_path, False)
    assert np.bincount(data.train.users)[[3, 7, 9]].tolist() == [8, 10, 4]
    partition = split(data, settings(least=8), 2, 0)
    assert [np.unique(data.train.users[part]).tolist() for part in partition.train] == [[3], [7]]
    with pytest.raises(DataError, match="come from 2 users, but the job has 3"):
        split(data, settings(least=8), 3, 0)
    with pytest.raises(ConfigError, match="data.least = 8 is about users"):
        split(data, settings(least=8, partition="iid"), 3, 0)
    some = split(data, settings(missing_labels=0.99), 3, 0)
    assert min(map(len, some.train)) >= 1 and sum(map(len, some.train)) < 8
    assert [len(part) for part in some.test] == [1, 2, 1]
