"""Tables, folders of images and Hugging Face's data sets: each is read as it lies, and what cannot
be used is said.
"""

import csv
import io
import json
import os
import struct
import zlib
from pathlib import Path

import h5py
import numpy as np
import pandas
import pytest
from PIL import Image

from hpcfed.config.load import load as load_job
from hpcfed.config.sections import Columns
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data.dataset import Reading, from_arrays, to_arrays
from hpcfed.data.datasets import load
from tests.unit.test_datasets import shared

PEOPLE = """\
age,job,site,score,sick
20,nurse,north,1,yes
30,cook,north,2,no
40,nurse,south,,yes
50,pilot,south,4,no
"""


def save(folder: Path, text: str = PEOPLE, name: str = "people.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def read(name: str, test_file: Path | None = None, held_out: float = 0.2, size: int = 0, **columns):
    """The data set of this name with these columns."""
    how = Reading(
        columns=Columns(**columns), test_file=test_file, held_out=held_out, image_size=size
    )
    return load(name, Path("."), False, how)


def same(one, two) -> bool:
    """Whether two data sets have the same facts and the same bits."""
    first, second = to_arrays(one), to_arrays(two)
    facts = [json.loads(a.pop("facts").tobytes()) for a in (first, second)]
    for fact in facts:
        del fact["name"], fact["notes"], fact["columns"]
    return (
        facts[0] == facts[1]
        and first.keys() == second.keys()
        and all(np.array_equal(first[k], second[k]) for k in first)
    )


def write_csv(path: Path, file: h5py.File, names: list[str]) -> None:
    """All rows of a table in HDF5 as CSV, gaps as nothing, with a column that tells tests."""
    with open(path, "w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow([*names, "labels", "hospital", "part"])
        for part in ("train", "test"):
            group = file[part]
            for x, y, who in zip(
                group["features"][:], group["labels"][:], group["hospital"][:], strict=True
            ):
                values = ["" if np.isnan(v) else repr(float(v)) for v in x]
                rows.writerow([*values, y, who, part])


def hospitals(path: Path) -> Path:
    """A table as heart_disease.h5 has it, of 60 rows."""
    g = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs["features"] = json.dumps(["age", "cp", "chol"])
        for part, n in (("train", 48), ("test", 12)):
            x = np.stack([g.integers(30, 80, n), np.arange(n) % 3, g.normal(200, 30, n)], 1)
            x[::7, 2] = np.nan
            file[f"{part}/features"] = x.astype(np.float32)
            file[f"{part}/labels"] = np.arange(n) % 2
            file[f"{part}/hospital"] = np.arange(n) // 2 % 4
    return path


@pytest.mark.parametrize("missing", ["fill", "drop"])
@pytest.mark.parametrize("real", [False, True], ids=["made", "real"])
def test_a_table_is_the_same_from_hdf5_csv_and_parquet(tmp_path, real, missing):
    path = shared("heart_disease.h5") if real else hospitals(tmp_path / "made.h5")
    roles = {"one_hot": ("cp",), "client": "hospital", "missing": missing}
    if real:  # empty in most rows
        roles["ignore"] = ("slope", "ca", "thal")
    with h5py.File(path) as file:
        write_csv(tmp_path / "table.csv", file, json.loads(file.attrs["features"]))
        classes = json.loads(file.attrs.get("classes", '["0", "1"]'))
    one = read(str(path), **roles)
    other = read(str(tmp_path / "table.csv"), test="part", **roles)
    assert other.classes == ("0", "1") and one.classes == tuple(classes)
    arrays = to_arrays(other) | {"facts": to_arrays(one)["facts"]}
    assert same(one, from_arrays(arrays)) and (one.mean, one.std) == (other.mean, other.std)
    assert one.notes and len(one.notes) == len(other.notes) and one.own_tests
    assert len(np.unique(one.train.users)) == 4
    pandas = pytest.importorskip("pandas")
    pandas.read_csv(tmp_path / "table.csv").to_parquet(tmp_path / "table.parquet")
    assert same(read(str(tmp_path / "table.parquet"), test="part", **roles), other)


def test_columns_become_features_by_hand(tmp_path):
    save(tmp_path, "age;job;score;sick\n60;cook;?;no\n70;judge;3;yes\n", "test.csv")
    roles = {"label": "sick", "ignore": ("site",), "missing": "fill"}
    data = read(save(tmp_path), test_file=tmp_path / "test.csv", **roles)
    # age, job = cook, nurse, pilot, score; the mean score of 1, 2 and 4 stands for what is missing
    mean = np.float32(7 / 3)
    assert data.train.x.tolist() == [
        [20, 0, 1, 0, 1],
        [30, 1, 0, 0, 2],
        [40, 0, 1, 0, mean],
        [50, 0, 0, 1, 4],
    ]
    assert data.test.x.tolist() == [[60, 1, 0, 0, mean], [70, 0, 0, 0, 3]]
    assert data.classes == ("no", "yes") and data.train.y.tolist() == [1, 0, 1, 0]
    assert data.mean[:4] == (35, 0, 0, 0) and data.std[:4] == (np.sqrt(125), 1, 1, 1)
    assert len(data.notes) == 3
    assert data.notes[0].endswith(
        "1 value missing (score 1), filled in from the training part with the mean"
    )
    assert "1 value of the test part of categories" in data.notes[2] and "(job 1)" in data.notes[2]


def test_rows_with_gaps_are_refused_or_dropped_in_one_message(tmp_path):
    roles = {"label": "sick", "client": "site", "held_out": 0.4}
    with pytest.raises(DataError, match=r"1 value missing, the first in row 3 \(score 1\)"):
        read(save(tmp_path), **roles)
    data = read(save(tmp_path), **roles, missing="drop")
    assert len(data.train.y) + len(data.test.y) == 3
    assert data.notes[0].endswith("1 of 4 rows lack values and are left out (score 1)")


@pytest.mark.parametrize("missing", ["refuse", "fill"])
@pytest.mark.parametrize(
    ("gap", "column"), [("50,pilot,south,4,", "sick"), ("50,pilot,,4,no", "site")]
)
def test_a_row_without_label_or_client_is_refused_with_what_fill_and_drop_do(
    tmp_path, missing, gap, column
):
    roles = {"label": "sick", "client": "site", "missing": missing}
    name = save(tmp_path, PEOPLE.replace("50,pilot,south,4,no", gap))
    with pytest.raises(DataError) as caught:
        read(name, **roles)
    text = str(caught.value)
    assert f"column {column!r} has no value in row 4" in text and "'fill'" not in text
    # row 3, which has a label but no score, would be dropped too
    assert "remove the 1 row, or set columns.missing = 'drop', which leaves out the 2 rows" in text
    assert "columns.missing_words" in text


def test_images_without_a_client_are_not_told_of_a_setting_that_tables_alone_have(tmp_path):
    place = draw(tmp_path / "cats")
    names = [f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(10)]
    rows = "".join(f"{name},{'' if name == 'cat/3.png' else 'a'}\n" for name in names)
    save(place, "file_name,site\n" + rows, "metadata.csv")
    with pytest.raises(DataError, match="column 'site' has no value in row") as caught:
        read(str(place), client="site")
    assert "columns.missing" not in str(caught.value)


def test_the_job_says_which_words_stand_for_missing_values(tmp_path):
    text = "history,label\n" + "none,yes\nasthma,no\n?,no\n" * 4
    with pytest.raises(DataError, match=r"8 values missing, .* leave it out of columns.missing_wo"):
        read(save(tmp_path, text))
    data = read(save(tmp_path, text), missing="drop", missing_words=("?",))
    assert data.shape == (2,) and "4 of 12 rows lack values" in data.notes[0]
    data = read(save(tmp_path, text), missing_words=())
    assert data.shape == (3,) and data.columns[0].endswith("(?, asthma, none)")


def test_the_encoding_of_a_csv_file_is_named_if_it_is_not_utf_8(tmp_path):
    text = "site,label\n" + "K\u00f6ln,yes\nBonn,no\n" * 5
    (tmp_path / "old.csv").write_bytes(text.encode("cp1252"))
    path = str(tmp_path / "old.csv")
    with pytest.raises(
        DataError, match=r"not utf-8: .* \(byte 0xf6\); set columns.encoding, to la"
    ):
        read(path)
    assert read(path, encoding="latin-1", client="site", inputs=("site",)).user_names == (
        "Bonn",
        "K\u00f6ln",
    )
    with pytest.raises(DataError, match="columns.encoding: unknown encoding: utf-9"):
        read(path, encoding="utf-9")
    marked = "\ufeff" + PEOPLE
    data = read(save(tmp_path, marked), held_out=0.5, label="sick", missing="fill")
    assert data.columns[0] == "age: number"
    from pyarrow import parquet, table

    parquet.write_table(table({"a": [1.0, 2.0] * 5, "y": [0, 1] * 5}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="columns.encoding has no effect on a table"):
        read(str(tmp_path / "t.parquet"), encoding="latin-1")


def test_natural_clients_have_a_share_of_their_own_rows_for_tests(tmp_path):
    rows = "".join(f"{i},{'abc'[i % 3]},{i // 3 % 2}\n" for i in range(60))
    data = read(save(tmp_path, "v,who,label\n" + rows), client="who")
    assert np.bincount(data.train.users).tolist() == [16] * 3
    assert np.bincount(data.test.users).tolist() == [4] * 3 and data.own_tests


def test_one_of_two_labels_counts_as_positive(tmp_path):
    rows = "v,sick\n" + "".join(f"{i},{'no' if i % 4 else 'ill'}\n" for i in range(40))
    plain = read(save(tmp_path, rows), label="sick")
    data = read(save(tmp_path, rows), label="sick", positive="ill")
    assert (plain.task.name, plain.classes) == ("classification", ("ill", "no"))
    assert (data.task.name, data.classes) == ("binary", ("no", "ill"))
    assert np.array_equal(data.train.y, 1 - plain.train.y) and data.train.y.sum() == 8
    assert np.array_equal(data.train.x, plain.train.x)
    other = read(save(tmp_path, rows), label="sick", positive="no")
    assert other.task.name == "binary" and np.array_equal(other.train.y, plain.train.y)


def test_a_time_and_an_event_are_survival(tmp_path):
    rows = "v,days,seen,site\n" + "".join(
        f"{-i},{i / 2},{i % 2},{'ab'[i // 20]}\n" for i in range(40)
    )
    data = read(save(tmp_path, rows), label="days", event="seen", client="site")
    assert data.task.name == "survival" and len(data.classes) == 1 and data.own_tests
    assert data.train.y.shape == (32, 2) and data.train.x.shape == (32, 1)
    assert np.array_equal(data.train.y[:, 0], -data.train.x[:, 0] / 2)
    assert np.array_equal(data.train.y[:, 1], -data.train.x[:, 0] % 2)
    for site in (0, 1):  # events and others of each site are held out in proportion
        assert data.test.y[data.test.users == site, 1].tolist().count(1) == 2


def test_rows_of_numbers_in_npz_are_a_table_too(tmp_path):
    x = np.arange(40.0).reshape(20, 2)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(20) % 2, site_train=np.arange(20) % 4)
    data = read(str(tmp_path / "a.npz"), client="site")
    assert data.train.x.shape == (16, 2) and len(np.unique(data.train.users)) == 4
    assert read(str(tmp_path / "a.npz")).train.x.shape == (16, 3)  # site is a column as others are


def test_clients_of_images_are_named_by_any_array(tmp_path):
    x = np.zeros((20, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(20) % 2, site_train=np.arange(20) % 5)
    assert set(read(str(tmp_path / "a.npz"), client="site").train.users) == {0, 1, 2, 3, 4}
    with pytest.raises(DataError, match="has no ward_train, which columns.client names"):
        read(str(tmp_path / "a.npz"), client="ward")


def test_a_column_of_texts_becomes_tokens(tmp_path):
    rows = "".join(f"{'good day' if i % 2 else 'bad night'},{i % 2},{i}\n" for i in range(20))
    data = read(save(tmp_path, "words,label,n\n" + rows), text="words")
    assert data.vocabulary == 6 and data.train.x.shape == (16, 32)


WRONG = {
    "no_label": ("a,b\n1,2\n", {}, "no column seems to hold the labels; name it: columns.label"),
    "two_labels": ("y,label\n1,2\n", {}, "columns y, label could hold the labels"),
    "unknown": (PEOPLE, {"label": "sik"}, "columns.label: no column 'sik'; did you mean 'sick'"),
    "unknown_client": (PEOPLE, {"label": "sick", "client": "place"}, "columns.client: no column"),
    "quantity": (
        PEOPLE.replace("4,no", "4,0.5"),
        {"label": "score"},
        "column 'score' has no value in row 3; labels and clients are not filled in",
    ),
    "regression": ("a,y\n1,0.5\n2,1\n", {}, "value 0.5 in row 1; labels are words or whole"),
    "ragged": ("a,y\n1,2\n1\n", {}, "line 3 has 1 value, but the first line names 2 columns"),
    "no_names": ("1,2\n3,4\n", {}, r"the first line holds numbers \(1, 2\)"),
    "twice": ("a,a,y\n1,2,0\n", {}, "column 2 is called 'a', as an earlier one"),
    "empty": ("", {}, "is empty"),
    "no_rows": ("a,y\n", {}, "holds no rows"),
    "few": ("a,y\n1,0\n2,1\n", {}, "2 examples are too few to hold out"),
    "infinite": ("a,y\n1,0\ninf,1\n", {}, "column 'a': value inf in row 2"),
    "huge": ("a,y\n" + "1e39,0\n" * 9, {}, "value 1e.39 in row 1; numbers are finite"),
    "ids": (
        "a,y\n" + "".join(f"name{i},{i % 2}\n" for i in range(200)),
        {},
        "column 'a' has 160 different words",
    ),
    "input_twice": (PEOPLE, {"label": "sick", "inputs": ("sick",)}, "'sick' is an input"),
    "one_hot_of_label": (PEOPLE, {"label": "sick", "one_hot": ("sick",)}, "is not an input"),
    "test_values": (PEOPLE, {"label": "sick", "test": "site"}, "'site' is 'north' in row 1"),
    "all_dropped": ("a,y\n,0\n,1\n", {"missing": "drop"}, "each row lacks a value"),
    "label_gap": ("a,y\n1,\n2,1\n", {"missing": "fill"}, "has no value in row 1; labels and cl"),
    "positive_of_none": (
        PEOPLE,
        {"missing": "fill", "label": "sick", "positive": "1"},
        "are no, y",
    ),
    "event_of_words": (
        "v,t,e\n1,1,no\n1,2,yes\n",
        {"label": "t", "event": "e"},
        "'e': 'no' in row 1 is not a number",
    ),
    "event_of_two": ("v,t,e\n1,1,0\n1,2,2\n", {"label": "t", "event": "e"}, "an event is 1"),
    "event_and_positive": (
        "v,t,e\n1,1,0\n1,2,1\n",
        {"label": "t", "event": "e", "positive": "1"},
        "columns.event .survival. name different tasks",
    ),
    "text_of_numbers": ("a,y\n1,0\n" * 1 + "2,1\n" * 9, {"text": "a"}, "'a' holds numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_cannot_be_used_is_refused_with_its_place(tmp_path, case):
    text, columns, words = WRONG[case]
    with pytest.raises(DataError, match=words) as caught:
        read(save(tmp_path, text), **columns)
    assert "people.csv" in str(caught.value)


def test_a_small_parquet_file_of_many_rows_is_measured_by_its_rows(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    monkeypatch.setattr("hpcfed.data.hdf5_check.memory", lambda: 10**6)
    rows = pyarrow.table({"age": [1] * 100_000, "label": [0] * 100_000})
    parquet.write_table(rows, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 5000
    with pytest.raises(DataError, match="declares 0.00298 GiB, more than this machine's memory"):
        read(str(tmp_path / "a.parquet"))


def test_a_damaged_parquet_file_is_one_message(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(DataError, match="a.parquet: cannot be read"):
        read(str(tmp_path / "a.parquet"))


def test_columns_fields_without_effect_are_refused(tmp_path):
    with pytest.raises(ConfigError, match='columns.label = "x" has no effect: digits is a data'):
        load_job(["--columns.label", "x"], environ={})
    np.savez(tmp_path / "a.npz", x_train=np.zeros((20, 4, 4)), y_train=np.arange(20) % 2)
    for columns in ({"label": "y"}, {"missing": "fill"}, {"one_hot": ("a",)}):
        with pytest.raises(DataError, match="has no effect on arrays"):
            read(str(tmp_path / "a.npz"), **columns)
    with pytest.raises(DataError, match="data.image_size has no effect"):
        read(save(tmp_path), size=8, label="sick", missing="fill")


def draw(folder: Path, kinds=("cat", "dog"), n=10, mode="RGB", size=(6, 5)) -> Path:
    """A folder of n images per class."""
    for c, kind in enumerate(kinds):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            Image.new(mode, size, (c * 100 + i,) * len(mode) if mode != "L" else c).save(
                folder / kind / f"{i}.png"
            )
    return folder


def test_a_folder_of_images_has_a_class_a_folder(tmp_path):
    draw(tmp_path / "pets")
    (tmp_path / "pets/circle").symlink_to("circle")
    data = read(str(tmp_path / "pets"))
    assert data.classes == ("cat", "dog") and data.name == "pets"
    assert data.train.x.shape == (16, 3, 5, 6) and data.test.x.shape == (4, 3, 5, 6)
    assert np.array_equal(data.train.x[:, 0, 0, 0] >= 100, data.train.y == 1)
    draw(tmp_path / "parted/train", n=3, mode="L"), draw(tmp_path / "parted/test", ("dog",), 2, "L")
    parted = read(str(tmp_path / "parted"))
    assert parted.train.x.shape == (6, 1, 5, 6) and parted.test.y.tolist() == [1, 1]


def test_images_for_validation_are_the_tests_if_there_are_no_others_and_a_line_says_so(tmp_path):
    draw(tmp_path / "train", n=3), draw(tmp_path / "validation", n=1)
    data = read(str(tmp_path))
    assert data.test.y.tolist() == [0, 1]
    assert data.notes == (
        f"{tmp_path}: the test images are those in validation, because there is no folder test",
    )
    draw(tmp_path / "val", n=2), draw(tmp_path / "test", ("dog",), n=4)
    data = read(str(tmp_path))
    assert data.test.y.tolist() == [1] * 4 and len(data.train.y) == 6
    assert not data.notes
    classes = read(str(draw(tmp_path / "pets", ("val", "test"))))
    assert classes.classes == ("test", "val") and not classes.notes


def test_words_for_missing_values_are_names_of_clients_in_a_list_beside_the_images(tmp_path):
    folder, names = draw(tmp_path / "pets", n=5), ("na", "none", "null", "nan", "-")
    lines = [f"{kind}/{i}.png,{name}" for kind in ("dog", "cat") for i, name in enumerate(names)]
    save(folder, "\n".join(["file_name,owner", *lines]), "metadata.csv")
    assert sorted(read(str(folder), client="owner").user_names) == sorted(names)


def test_a_list_beside_the_images_names_their_clients(tmp_path):
    folder = draw(tmp_path / "pets")
    with pytest.raises(DataError, match="metadata.csv: there is no such file; with columns.client"):
        read(str(folder), client="owner")
    lines = [f"{kind}/{i}.png,{'abcde'[i // 2]}" for kind in ("dog", "cat") for i in range(10)]
    save(folder, "\n".join(["file_name,owner", *lines[1:]]), "metadata.csv")
    with pytest.raises(DataError, match=r"does not name the image dog/0.png \(1 image in all\)"):
        read(str(folder), client="owner")
    save(folder, "\n".join(["file_name,owner", *lines]), "metadata.csv")
    with pytest.raises(DataError, match="columns.client: no column 'keeper'"):
        read(str(folder), client="keeper")
    data = read(str(folder), client="owner", held_out=0.5, positive="cat")
    assert (data.task.name, data.classes) == ("binary", ("dog", "cat"))
    assert data.own_tests and np.bincount(data.test.users).tolist() == [2] * 5
    for split in (data.train, data.test):  # draw gives the images of 0.png to 9.png these values
        assert np.array_equal(split.x[:, 0, 0, 0] % 100 // 2, split.users)


def test_the_first_level_of_folders_may_be_the_domains_whose_images_differ(tmp_path):
    for domain, kinds in (("photo", ("cat", "dog")), ("art", ("dog", "owl"))):
        draw(tmp_path / "pacs" / domain, kinds, mode="RGB" if domain == "art" else "L")
    with pytest.raises(DataError, match="holds no images; set columns.client = 'folder' for CLIEN"):
        read(str(tmp_path / "pacs"))
    data = read(str(tmp_path / "pacs"), client="folder")
    assert data.classes == ("cat", "dog", "owl") and data.user_names == ("art", "photo")
    assert data.shape == (3, 5, 6) and data.own_tests
    for split, n in ((data.train, 8), (data.test, 2)):  # of each class of each domain
        pairs = np.stack([split.users, split.y], 1)
        assert [(pairs == pair).all(1).sum() for pair in ([0, 1], [0, 2], [1, 0], [1, 1])] == [
            n
        ] * 4 and len(pairs) == 4 * n
    one = load(str(tmp_path / "pacs"), tmp_path, how=by_folder("photo"))
    assert (one.classes, one.user_names, one.shape) == (("cat", "dog"), ("photo",), (1, 5, 6))
    with pytest.raises(
        DataError, match=r"no folder 'foto'; did you mean 'photo'\?(?s:.*)data.domai"
    ):
        load(str(tmp_path / "pacs"), tmp_path, how=by_folder("foto"))


def test_folders_of_domains_may_lie_in_a_training_and_a_test_part(tmp_path):
    for part, n in (("train", 3), ("test", 2)):
        draw(tmp_path / part / "real", n=n), draw(tmp_path / part / "sketch", ("dog",), n)
    data = load(str(tmp_path), tmp_path, how=by_folder())
    assert data.train.users.tolist() == [0] * 6 + [1] * 3
    assert (data.test.users.tolist(), data.test.y.tolist()) == (
        [0] * 4 + [1] * 2,
        [0, 0, 1, 1, 1, 1],
    )
    draw(tmp_path / "test" / "clipart")
    with pytest.raises(DataError, match="test/clipart: this client has no training images"):
        load(str(tmp_path), tmp_path, how=by_folder())


def by_folder(*domains: str) -> Reading:
    return Reading(columns=Columns(client="folder"), domains=domains)


def test_images_of_several_sizes_need_one(tmp_path):
    draw(tmp_path), draw(tmp_path, ("owl",), size=(4, 4))
    with pytest.raises(DataError, match="owl/0.png: has 4x4 pixels, .*6x5; set data.image_size"):
        read(str(tmp_path))
    assert read(str(tmp_path), size=8).train.x.shape == (24, 3, 8, 8)


def test_a_folder_without_images_and_a_broken_image_are_named(tmp_path):
    with pytest.raises(DataError, match="holds no folders with images"):
        read(str(tmp_path))
    (draw(tmp_path) / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cat/0.png: is not an image"):
        read(str(tmp_path))


def saved_set(folder: Path, parts: tuple[str, ...] = ("train",), **columns) -> str:
    """A data set as Hugging Face's save_to_disk writes it, under its name in a job."""
    library = pytest.importorskip("datasets")
    datasets = {part: library.Dataset.from_dict(columns) for part in parts}
    if "image" in columns:
        datasets = {
            part: rows.cast_column("image", library.Image()) for part, rows in datasets.items()
        }
    library.DatasetDict(datasets).save_to_disk(folder)
    return f"hf:{folder}"


def test_a_table_of_hugging_face_is_read_by_its_columns(tmp_path):
    n = 20
    columns = {
        "age": list(range(n)),
        "job": ["cook", "nurse"] * (n // 2),
        "site": ["a", "b", "b", "a"] * (n // 4),
        "label": ["no", "yes"] * (n // 2),
    }
    name = saved_set(tmp_path / "people", **columns)
    data = read(name, client="site")
    table = ["age,job,site,label"] + [
        ",".join(map(str, row)) for row in zip(*columns.values(), strict=True)
    ]
    assert same(data, read(save(tmp_path, "\n".join(table)), client="site"))
    assert data.name == "people" and data.classes == ("no", "yes")


def test_texts_and_images_of_hugging_face_are_inputs(tmp_path):
    text = ["good day", "bad night"] * 10
    name = saved_set(tmp_path / "t", ("train", "validation"), text=text, label=[1, 0] * 10)
    data = read(name, text="text")
    with pytest.raises(DataError, match="data.held_out has no effect .* with test examples"):
        read(name, text="text", held_out=0.5)
    assert data.vocabulary == 6 and len(data.train.y) == len(data.test.y) == 20
    library = pytest.importorskip("datasets")
    kinds = library.ClassLabel(names=["night", "day", "dusk"])
    about = library.Features({"text": library.Value("string"), "label": kinds})
    rows = library.Dataset.from_dict({"text": text, "label": [1, 0] * 10}, features=about)
    rows.save_to_disk(tmp_path / "named")
    named = read(f"hf:{tmp_path / 'named'}", text="text")
    assert named.classes == ("night", "day", "dusk") and set(named.train.y) == {0, 1}
    images = [Image.new("L", (5, 4), i) for i in range(20)]
    who = [i % 4 for i in range(20)]
    name = saved_set(tmp_path / "i", image=images, label=[0, 1] * 10, writer=who)
    data = read(name, client="writer")
    assert data.train.x.shape == (16, 1, 4, 5) and len(np.unique(data.train.users)) == 4
    assert np.array_equal(data.train.x[:, 0, 0, 0] % 2, data.train.y)
    assert read(name, size=8).train.x.shape == (16, 1, 8, 8)


def picture(form: str = "PNG", **how) -> bytes:
    """The bytes of an image of 5x4 pixels."""
    Image.new("L", (5, 4), 7).save(content := io.BytesIO(), form, **how)
    return content.getvalue()


def bomb() -> bytes:
    """A PNG whose header declares 60000x60000 pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
    return picture()[:12] + header + struct.pack(">I", zlib.crc32(header)) + picture()[33:]


UNSAFE = {  # rows that must not be decoded, or cannot be, and words of the message
    "host": ({"bytes": None, "path": "http://127.0.0.1:9/leak.png"}, "names 'http://127"),
    "file": ({"bytes": None, "path": "{folder}/pipe"}, "only images within the data set are read"),
    "empty": ({"bytes": b"", "path": None}, "image 0: is not an image"),
    "nothing": (None, "image 0: is empty"),
    "program": ({"bytes": picture("EPS"), "path": "a.png"}, "image 0: is not an image"),
    "bomb": ({"bytes": bomb(), "path": None}, "exceeds limit of"),
    "cut short": ({"bytes": picture()[:-20], "path": None}, "image 0: is not a whole image"),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_images_of_hugging_face_are_their_bytes_in_a_known_format(tmp_path, monkeypatch, case):
    row, words = UNSAFE[case]
    asked = []
    monkeypatch.setattr("socket.socket.connect", lambda *address: asked.append(address))
    os.mkfifo(tmp_path / "pipe")  # opening it would never end
    if row and row["path"]:
        row = row | {"path": row["path"].format(folder=tmp_path)}
    library = pytest.importorskip("datasets")
    rows = [row] + [{"bytes": picture(), "path": None}] * 19
    part = library.Dataset.from_dict({"image": rows, "label": [0, 1] * 10})
    part = part.cast_column("image", library.Image())
    monkeypatch.setattr(library, "load_from_disk", lambda folder: {"train": part})
    with pytest.raises(DataError, match=words):
        read(f"hf:{tmp_path}")
    assert not asked


def test_a_data_set_with_another_format_of_rows_is_read_as_it_is_stored(tmp_path):
    name = saved_set(tmp_path / "i", image=[Image.new("L", (5, 4), 7)] * 20, label=[0, 1] * 10)
    state = tmp_path / "i/train/state.json"
    state.write_text(state.read_text().replace('"_format_type": null', '"_format_type": "torch"'))
    assert "torch" in state.read_text()
    assert read(name).train.x.shape == (16, 1, 4, 5)


def test_cached_data_sets_of_hugging_face_need_no_network(tmp_path, monkeypatch):
    library = pytest.importorskip("datasets")
    from datasets.data_files import DataFilesDict
    from datasets.packaged_modules.csv.csv import Csv, CsvConfig

    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = "age,label\n" + "".join(f"{i},{'no' if i % 2 else 'yes'}\n" for i in range(20))
    files = DataFilesDict.from_patterns({"train": [save(tmp_path, rows)]})

    configs = {"BUILDER_CONFIGS": [CsvConfig(name="default", data_files=files)]}
    Hub = type("Hub", (Csv,), configs)  # as `datasets` makes a builder for a set of the hub
    info = {"dataset_name": "people", "hash": "0" * 16}
    Hub(cache_dir=str(tmp_path / "cache"), **info).download_and_prepare()
    (tmp_path / "cache/people").rename(tmp_path / "cache/lab___people")
    data = read("hf:lab/people")  # as a download from the hub leaves it
    assert same(data, read(save(tmp_path, rows))) and data.classes == ("no", "yes")
    assert not asked


def test_data_sets_that_hugging_face_cannot_load_are_one_message(tmp_path, monkeypatch):
    library, asked = pytest.importorskip("datasets"), []
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
    with pytest.raises(DataError, match="hf:nobody/nothing: `datasets` cannot load it: .*cache"):
        read("hf:nobody/nothing")
    assert not asked and not library.config.HF_HUB_OFFLINE  # with data.download = false none is
    name = saved_set(tmp_path / "t", text=["a", "b"] * 10, label=[1, 0] * 10)
    with pytest.raises(DataError, match="columns.image = 'text' is not a column of images"):
        read(name, image="text")


def column(tmp_path, values: list[str], **columns):
    """The data set of a table with a column of these values, and its lines about columns."""
    rows = [f"{value};{i % 3};{'ab'[i % 2]}" for i, value in enumerate(values)]
    name = save(tmp_path, "\n".join(["dose;site;label", *rows]))
    data = read(name, **columns)
    return data, dict(line.split(": ", 1) for line in data.columns)


def test_decimal_commas_are_read_as_numbers(tmp_path):
    values = [f"{i // 2},{5 * (i % 2)}" for i in range(20)]
    data, lines = column(tmp_path, values)
    assert data.shape == (2,)
    assert lines["dose"] == "number, decimal commas"
    points, _ = column(tmp_path, [value.replace(",", ".") for value in values])
    assert np.array_equal(data.train.x, points.train.x)


@pytest.mark.parametrize(
    "wrong", [{7: "1.2.3"}, {7: "twelve"}, {7: "3,5", 9: "3.5"}, {i: "1,234" for i in range(7, 20)}]
)
def test_a_word_in_a_column_of_numbers_is_named_unless_the_job_names_categories(tmp_path, wrong):
    values = [wrong.get(i, str(i)) for i in range(20)]
    with pytest.raises(DataError, match=rf"column 'dose': '{wrong[7]}' in row 8 is not a number"):
        column(tmp_path, values)
    _, lines = column(tmp_path, values, one_hot=("dose",))
    assert "categories as a 0 or 1 for each" in lines["dose"]


def test_a_word_among_the_test_rows_or_survival_times_is_named(tmp_path):
    save(tmp_path, "x,label\n" + "1,a\n2,b\n" * 5, "train.csv")
    test = Path(save(tmp_path, "x,label\n1,a\n2x,b\n", "test.csv"))
    with pytest.raises(DataError, match="test.csv: column 'x': '2x' in row 2"):
        read(str(tmp_path / "train.csv"), test_file=test)
    times = save(tmp_path, "x,days,died\n1,4,1\n2,never,0\n", "times.csv")
    with pytest.raises(DataError, match="column 'days': 'never' in row 2"):
        read(times, label="days", event="died")


def test_a_line_gives_the_role_of_each_column_of_a_table(tmp_path):
    data = read(save(tmp_path), held_out=0.5, label="sick", missing="fill", ignore=("site",))
    assert data.columns == (
        "age: number",
        "job: 2 categories as a 0 or 1 for each (nurse, pilot)",
        "site: ignored",
        "score: number, 1 value filled in",
        "sick: label",
    )


DATED = """\
admitted,born,site,sick
2020-01-01,1970-01-02,2020-01-01,yes
2020-01-02T12:00:00,1970-01-11,2020-01-01,no
,1969-12-31,2020-01-02,yes
2020-01-03,1970-01-01,2020-01-02,no
"""


def test_dates_are_days_since_1970_and_one_line_says_so(tmp_path):
    marked = "\n".join(
        f"{line},{'part' if i == 0 else 'test' if i > 2 else 'train'}"
        for i, line in enumerate(DATED.splitlines())
    )
    name = save(tmp_path, marked)
    data = read(name, client="site", label="sick", test="part", missing="fill")
    days = np.datetime64("2020-01-01").astype(int)
    assert data.train.x.tolist() == [[days, 1], [days + 1.5, 10]]
    assert data.test.x.tolist() == [[days + 0.75, -1], [days + 2, 0]]
    assert any("dates become days since 1970-01-01: admitted, born" in n for n in data.notes)
    assert data.user_names == ("2020-01-01", "2020-01-02")  # names of clients stay as written


def test_dates_of_parquet_and_csv_are_the_same_and_others_are_words(tmp_path):
    frame = pandas.read_csv(io.StringIO(DATED), parse_dates=["born"])[["born", "sick"]]
    frame = pandas.concat([frame] * 5)
    frame["born"] = frame["born"].astype("datetime64[us]")
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "b.csv", index=False)
    one, two = (read(str(tmp_path / n), label="sick") for n in ("a.parquet", "b.csv"))
    assert same(one, two) and set(one.train.x.ravel()) == {-1, 0, 1, 10}
    rows = "\n".join(f"{i % 28 + 1}.{i // 28 + 1}.2020,{i % 2}" for i in range(150))
    with pytest.raises(DataError, match=r"\d+ different words .*; write dates as 2020-12-31"):
        read(save(tmp_path, f"when,label\n{rows}\n"))
    rows = "2020-02-30,a\n2020-02-01,b\n" * 10
    wrong = save(tmp_path, f"when,label\n{rows}")
    assert read(wrong).train.x.shape[1] == 2  # two categories


@pytest.mark.parametrize("classes, rows", [(10, 2), (5, 1), (4, 0)])
def test_every_client_has_its_share_of_test_examples_however_few_of_a_label(
    tmp_path, classes, rows
):
    g = np.random.default_rng(0)
    sizes = np.full(60, classes * rows) if rows else g.integers(1, 30, 60)
    users = np.repeat(np.arange(60), sizes)
    y = np.tile(np.repeat(np.arange(classes), rows), 60) if rows else users % classes
    order = g.permutation(len(y))
    lines = [f"u{users[i]:02},{g.normal():.3f},k{y[i]}" for i in order]
    data = read(
        save(tmp_path, "\n".join(["who,a,kind", *lines]) + "\n"), client="who", label="kind"
    )
    train, test = (np.bincount(split.users, minlength=60) for split in (data.train, data.test))
    assert (train >= 1).all() and (np.abs(test - 0.2 * sizes) < 1).all()
    if rows:  # and not all clients leave out the same labels
        assert len(set(data.test.y.tolist())) == classes
        assert test.min() == test.max() == 0.2 * classes * rows


def test_numbers_of_so_many_digits_that_some_would_become_equal_are_words(tmp_path):
    ids = [2**60 + i for i in range(20)]
    frame = pandas.DataFrame({"id": ids, "far": 1e13 + np.arange(20), "a": range(20)})
    frame["y"] = [0, 1] * 10
    frame.to_parquet(tmp_path / "ids.parquet")
    frame.to_csv(tmp_path / "ids.csv", index=False)
    for name in ("ids.csv", "ids.parquet"):
        data = read(str(tmp_path / name), client="id", label="y", ignore=("far",))
        assert data.user_names == tuple(map(str, ids))
        data = read(str(tmp_path / name), client="far", label="y", ignore=("id",))
        assert data.user_names == tuple(str(10**13 + i) for i in range(20))


def test_clients_that_are_not_in_use_shape_neither_columns_nor_their_scale(tmp_path):
    lines = [f"{'ABC'[i % 3]},{i % 5 + 1000 * (i % 3 == 2)},{'pqr'[i % 3]}" for i in range(60)]
    rows = [f"{line},{'no' if i % 2 else 'yes'}" for i, line in enumerate(lines)]
    name = save(tmp_path, "\n".join(["site,a,ward,sick", *rows]) + "\n")
    how = Reading(columns=Columns(label="sick", client="site"), domains=("A", "B"))
    data = load(name, tmp_path, False, how)
    assert data.user_names == ("A", "B") and data.mean[0] < 5
    assert data.encoder.columns[1].categories == ("p", "q")
    with pytest.raises(ConfigError, match="data.domains: no natural client 'D'"):
        load(name, tmp_path, False, Reading(columns=how.columns, domains=("D",)))
    x, users = np.r_[np.zeros(30), np.full(10, 9.0)], np.r_[np.zeros(30), np.ones(10)].astype(int)
    arrays = {"x_train": x[:, None, None, None] + np.arange(2.0)[:, None]}
    whose = np.array(["a", "b"])[users]
    arrays |= {"x_test": arrays["x_train"], "y_train": np.arange(40) % 2, "u_train": whose}
    arrays |= {"y_test": arrays["y_train"], "u_test": whose}
    np.savez(tmp_path / "images.npz", **arrays)
    how = Reading(columns=Columns(client="u"), domains=("a",))
    assert load(str(tmp_path / "images.npz"), tmp_path, False, how).mean == (0.5,)


def test_true_and_false_are_0_and_1_in_every_kind_of_table(tmp_path):
    frame = pandas.DataFrame({"smokes": [True, False] * 10, "y": ["a", "b"] * 10})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    names = [str(tmp_path / name) for name in ("t.csv", "t.parquet")]
    one, two = (read(name, label="y") for name in names)
    assert same(one, two) and one.encoder.columns[0].categories == ()


@pytest.mark.parametrize(
    "mode, values, words",
    [
        ("F", np.linspace(0, 1, 30), "Pillow's mode F, which has no fixed range"),
        ("I", np.arange(30), "its values lie in 0..29"),
        ("I;16", np.arange(30) * 136, "its values lie in 0..3944"),
    ],
)
def test_an_image_of_which_8_bits_would_leave_little_is_refused(tmp_path, mode, values, words):
    types = {"F": np.float32, "I": np.int32, "I;16": np.uint16}
    pixels = values.reshape(5, 6).astype(types[mode])
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for i in range(5):
            Image.fromarray(pixels).save(tmp_path / kind / f"{i}.tif")
    with pytest.raises(DataError, match=words):
        read(str(tmp_path))


def test_an_image_of_16_bits_has_its_upper_8(tmp_path):
    pixels = (np.arange(30).reshape(5, 6) * 2048 + 7).astype(np.uint16)
    for order in ("<", ">"):
        folder = tmp_path / ("small" if order == "<" else "big")
        for kind in ("cat", "dog"):
            (folder / kind).mkdir(parents=True)
            mode = "I;16" if order == "<" else "I;16B"
            image = Image.frombytes(mode, (6, 5), pixels.astype(f"{order}u2").tobytes())
            for i in range(5):
                image.save(folder / kind / f"{i}.tif")
        x = read(str(folder)).train.x
        assert x.shape[1:] == (1, 5, 6) and (x[0, 0] == pixels // 256).all()


def test_a_feature_in_small_units_is_standardised_as_any_other(tmp_path):
    lines = [f"{(i % 5 + 1) * 1e-9},{7},{'ab'[i % 2]}" for i in range(40)]
    data = read(save(tmp_path, "\n".join(["metres,same,kind", *lines]) + "\n"), label="kind")
    assert data.std[0] < 2e-9 and data.std[1] == 1.0


def test_words_that_are_labels_have_the_order_of_the_classes_that_the_file_names(tmp_path):
    x = np.arange(24.0).reshape(12, 2)
    words = np.array(["ahead", "healthy"] * 6)
    tables = {}
    for order in (["healthy", "ahead"], ["ahead", "healthy"]):
        path = tmp_path / f"{order[0]}.npz"
        np.savez(path, x_train=x, y_train=words, classes=order)
        data = tables[order[0]] = read(str(path))
        assert list(data.classes) == order
    assert np.array_equal(tables["ahead"].train.y, 1 - tables["healthy"].train.y)
    np.savez(tmp_path / "odd.npz", x_train=x, y_train=words, classes=["healthy", "ahed"])
    with pytest.raises(DataError, match=r"'y': label 'ahead' in row 1; the classes are healthy"):
        read(str(tmp_path / "odd.npz"))


def test_a_column_with_the_name_of_another_array_is_refused(tmp_path):
    x, y = np.arange(30.0).reshape(10, 3), np.arange(10) % 2
    np.savez(tmp_path / "axes.npz", x_train=x, y_train=y, columns=["x", "y", "z"])
    with pytest.raises(DataError, match=r"has a column 'y', and y_train is an array; rename the"):
        read(str(tmp_path / "axes.npz"))


def test_test_rows_of_other_widths_are_refused(tmp_path):
    x, y = np.arange(40.0).reshape(10, 4), np.arange(10) % 2
    wide = np.column_stack([y, x])
    np.savez(tmp_path / "wide.npz", x_train=x, y_train=y, x_test=wide, y_test=y)
    with pytest.raises(DataError, match=r"x_train is \[10, 4\], but x_test is \[10, 5\]"):
        read(str(tmp_path / "wide.npz"))


def test_test_labels_none_of_which_is_a_training_label_are_refused(tmp_path):
    train = save(tmp_path, "a,label\n1,yes\n2,no\n3,yes\n4,no\n", "words.csv")
    test = save(tmp_path, "a,label\n1,1\n2,0\n", "numbers.csv")
    with pytest.raises(DataError, match=r"'label' holds none of the labels of .*, but 0, 1"):
        read(train, Path(test))


def test_labels_and_clients_stay_as_they_are_written_also_in_a_column_that_is_found(tmp_path):
    days = "a,label\n" + "".join(f"{i},2020-01-0{1 + i % 2}\n" for i in range(12))
    flags = "a,y\n" + "".join(f"{i},{('true', 'false')[i % 2]}\n" for i in range(12))
    assert read(save(tmp_path, days, "days.csv")).classes == ("2020-01-01", "2020-01-02")
    assert read(save(tmp_path, flags, "flags.csv"), positive="true").classes == ("false", "true")
    place = draw(tmp_path / "cats")
    names = [f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(10)]
    rows = "".join(f"{name},2020-01-0{1 + i % 2}\n" for i, name in enumerate(names))
    save(place, "file_name,day\n" + rows, "metadata.csv")
    assert read(str(place), client="day").user_names == ("2020-01-01", "2020-01-02")


def test_rows_in_messages_are_those_of_the_file_also_after_a_column_of_tests(tmp_path):
    lines = [f"{i},{i % 2},{('train', 'test')[i % 2]}\n" for i in range(40)]
    lines[25] = ",1,test\n"
    name = save(tmp_path, "a,label,part\n" + "".join(lines), "gap.csv")
    with pytest.raises(DataError, match="1 value missing, the first in row 26"):
        read(name, test="part")


def test_numbers_that_a_model_cannot_tell_apart_are_said(tmp_path):
    rows = "".join(f"{1_700_000_000 + i},{i % 2}\n" for i in range(40))
    name = save(tmp_path, "seconds,label\n" + rows, "times.csv")
    line = "column 'seconds': its numbers, from 1700000000 to 1700000039, are all equal in the 7"
    assert any(line in note for note in read(name).notes)


def test_numbers_in_groups_of_thousands_are_no_categories(tmp_path):
    rows = "".join(f'"{i + 1},500.5",{i % 2}\n' for i in range(20))
    with pytest.raises(DataError, match=r"'1,500.5' in row 1 is not a number"):
        read(save(tmp_path, "price,label\n" + rows, "prices.csv"))


def test_images_in_folders_inside_a_class_are_said_to_be_left_out(tmp_path):
    place = draw(tmp_path / "cats")
    (place / "cat" / "more").mkdir()
    (place / "cat" / "0.png").rename(place / "cat" / "more" / "0.png")
    notes = read(str(place)).notes
    assert [f"{place}/cat/more: not read" in note for note in notes] == [True]
