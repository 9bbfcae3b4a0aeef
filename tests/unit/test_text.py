"""Texts: tokens, vocabularies and rows by hand; users' files; Sentiment140 from CSV, archive and
HDF5.
"""

import csv
import hashlib
import json
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfed.core.errors import DataError
from hpcfed.data import sentiment140
from hpcfed.data.dataset import Reading, Text, from_arrays, to_arrays
from hpcfed.data.datasets import load
from hpcfed.data.text import encode, numbers, rows, tokenise
from tests.unit.test_datasets import shared

TWEETS = ["good good day", "bad day!", "", "a b c d e f"]
SMALL = Text(vocabulary=5, tokens=4)


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("@Ann: soooo COOL!!!", ["<user>", ":", "soo", "cool", "!!"]),
        ("see http://a.b/c?d and www.x.y now", ["see", "<url>", "and", "<url>", "now"]),
        ("I don't &lt;3 #mondays ...", ["i", "don't", "<", "3", "#", "mondays", ".."]),
        ("café 日本 :)", ["café", "日本", ":", ")"]),
        (" \t\n", []),
    ],
)
def test_a_text_becomes_words_and_marks_in_lower_case(text: str, tokens: list[str]):
    assert tokenise(text) == tokens


def test_the_vocabulary_is_the_most_frequent_tokens_and_ties_go_by_the_alphabet():
    texts = [["b", "a"], ["c", "b"], ["a"]]
    assert numbers(texts, 10) == {"a": 2, "b": 3, "c": 4} == numbers(texts[::-1], 10)
    assert numbers(texts, 4) == {"a": 2, "b": 3}


def test_rows_are_cut_and_padded_and_unknown_tokens_are_one():
    x = rows([["a", "z", "b"], [], ["b", "b", "a", "a", "a"]], {"a": 2, "b": 3}, 4)
    assert x.tolist() == [[2, 1, 3, 0], [0, 0, 0, 0], [3, 3, 2, 2]] and x.dtype == np.int32


def save_npz(folder: Path, **changes: object) -> str:
    arrays = {
        "text_train": np.array(TWEETS),
        "y_train": np.array([1, 0, 0, 1]),
        "text_test": np.array(["good night"]),
        "y_test": np.array([1]),
        "users_train": np.array(["u", "v", "u", "w"]),
    } | changes
    np.savez(
        folder / "mine.npz", **{name: array for name, array in arrays.items() if array is not None}
    )
    return str(folder / "mine.npz")


def save_tokens(folder: Path, x: object, vocabulary: int = 9) -> str:
    with h5py.File(folder / "tokens.h5", "w") as file:
        file.attrs["vocabulary"] = vocabulary
        for part in ("train", "test"):
            file[f"{part}/x"], file[f"{part}/y"] = np.asarray(x), np.arange(len(x)) % 2
    return str(folder / "tokens.h5")


def test_a_users_texts_are_numbered_by_the_training_texts_alone(tmp_path):
    data = load(save_npz(tmp_path), tmp_path, how=Reading(SMALL))
    assert data.vocabulary == 5 and data.mean == data.std == ()
    assert data.train.x.tolist() == [
        [3, 3, 2, 0],
        [1, 2, 4, 0],
        [0, 0, 0, 0],
        [1, 1, 1, 1],
    ]  # 2 day, 3 good, 4 !
    assert data.test.x.tolist() == [[3, 1, 0, 0]] and data.train.users.tolist() == [0, 1, 0, 2]
    back = from_arrays(to_arrays(data))
    assert (
        back.vocabulary == 5
        and np.array_equal(back.train.x, data.train.x)
        and back.train.x.dtype == np.int32
    )


def test_held_out_texts_are_not_in_the_vocabulary(tmp_path):
    texts = np.array([f"word{i}" for i in range(20)])
    data = load(
        save_npz(
            tmp_path,
            text_train=texts,
            y_train=np.arange(20) % 2,
            text_test=None,
            y_test=None,
            users_train=None,
        ),
        tmp_path,
    )
    assert len(data.train.y) == 16 and data.vocabulary == 18 and (data.test.x[:, 0] == 1).all()


def test_a_users_tokens_are_taken_as_they_are(tmp_path):
    data = load(save_tokens(tmp_path, [[8, 2, 0], [1, 0, 0]]), tmp_path)
    assert (
        data.vocabulary == 9
        and data.train.x.tolist() == [[8, 2, 0], [1, 0, 0]]
        and data.train.x.dtype == np.int32
    )


@pytest.mark.parametrize(
    "x, words",
    [
        ([[9, 2], [1, 0]], ["train/x", "value 9", "[0, 0]", "0..8"]),
        ([[-1, 2], [1, 0]], ["value -1"]),
        ([[0.5, 2], [1, 0]], ["float64", "integers [n, length]"]),
        ([1, 2], ["[2]", "integers [n, length]"]),
    ],
)
def test_unusable_tokens_are_refused_with_array_and_value(tmp_path, x, words):
    with pytest.raises(DataError) as error:
        load(save_tokens(tmp_path, x), tmp_path)
    assert all(word in str(error.value) for word in ["tokens.h5", *words])


def test_texts_without_a_word_and_bytes_that_are_no_text_are_refused(tmp_path):
    with pytest.raises(DataError, match="no word"):
        load(save_npz(tmp_path, text_train=np.array(["", " ", "", ""])), tmp_path)
    with pytest.raises(DataError, match=r"text_train: text 1 is not UTF-8"):
        load(save_npz(tmp_path, text_train=np.array([b"a", b"\xff", b"b", b"c"])), tmp_path)


ROWS = [  # polarity, user, text
    ("0", "ann", "so sad"),
    ("4", "bob", "so glad, caf\xe9"),
    ("2", "ann", "neutral"),
    ("4", "ann", 'a "quote", ok'),
]


def save_csv(folder: Path, rows: list[tuple[str, str, str]] = ROWS) -> None:
    for name in sentiment140.FILES:
        with (folder / name).open("w", encoding="latin-1", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows(
                [polarity, "1", "Mon", "NO_QUERY", user, text] for polarity, user, text in rows
            )


def test_the_authors_files_are_read_without_their_neutral_tweets(tmp_path):
    save_csv(tmp_path)
    data = load("sentiment140", tmp_path, download=False)
    assert data.train.y.tolist() == [0, 1, 1] and data.train.users.tolist() == [0, 1, 0]
    assert (
        data.classes == ("negative", "positive")
        and data.train.x.shape == (3, 32)
        and data.name == "sentiment140"
    )
    n_words = len({word for _, _, text in (ROWS[0], ROWS[1], ROWS[3]) for word in tokenise(text)})
    assert data.vocabulary == n_words + 2 and not (data.train.x == 1).any()


@pytest.mark.parametrize(
    "row", ["7,1,d,q,u,text", "0,1,d,q,text", "polarity,id,date,query,user,text"]
)
def test_a_row_that_is_none_is_named(tmp_path, row: str):
    save_csv(tmp_path)
    with (tmp_path / sentiment140.FILES[0]).open("a") as file:
        file.write(row + "\n")
    with pytest.raises(DataError, match=r"training.*csv: row 5 is"):
        load("sentiment140", tmp_path, download=False)


def packed(folder: Path, names: tuple[str, ...] = sentiment140.FILES) -> tuple[str, str]:
    """Address and checksum of a local archive."""
    (folder / "source").mkdir()
    save_csv(folder / "source")
    path = folder / "source" / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.write(folder / "source" / name, name)
    return path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_archive_is_fetched_checked_and_unpacked(tmp_path):
    sentiment140.fetch(tmp_path / "data", *packed(tmp_path))
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == sorted(sentiment140.FILES)
    assert len(load("sentiment140", tmp_path / "data", download=False).train.y) == 3


def test_another_archive_one_that_lacks_a_file_and_none_at_all_are_refused_and_leave_nothing(
    tmp_path,
):
    url, checksum = packed(tmp_path, sentiment140.FILES[:1])
    with pytest.raises(DataError, match="another file, or damaged"):
        sentiment140.fetch(tmp_path / "data", url, "0" * 64)
    with pytest.raises(DataError, match="testdata.manual"):
        sentiment140.fetch(tmp_path / "other", url, checksum)
    with pytest.raises(DataError, match=r"cannot be loaded from .*nowhere"):
        sentiment140.fetch(tmp_path / "third", (tmp_path / "nowhere").as_uri(), checksum)
    assert not list((tmp_path / "data").iterdir()) and not list((tmp_path / "third").iterdir())


def test_without_files_and_download_the_expected_files_are_named(tmp_path):
    with pytest.raises(DataError) as error:
        load("sentiment140", tmp_path, download=False)
    words = (*sentiment140.FILES, "sentiment140.h5", str(tmp_path), "switched off")
    assert all(word in str(error.value) for word in words)


def test_an_hdf5_file_of_the_name_serves_as_well(tmp_path):
    with h5py.File(tmp_path / "sentiment140.h5", "w") as file:
        file.attrs["classes"] = json.dumps(["negative", "positive"])
        for part in ("train", "test"):
            file[f"{part}/text"], file[f"{part}/labels"] = TWEETS, [1, 0, 0, 1]
            file[f"{part}/user_hash"] = ["ff", "0a", "ff", "1b"]
    data = load("sentiment140", tmp_path, download=False)
    assert (
        data.train.users.tolist() == [2, 0, 2, 1]
        and data.train.x.shape == (4, 32)
        and data.vocabulary == 12
    )


def test_real_tweets_are_covered_by_the_default_vocabulary_and_length():
    root = shared("sentiment140.h5").parent
    data = load("sentiment140", root, download=False)
    assert (
        data.train.x.shape == (23655, 32)
        and data.test.x.shape == (4000, 32)
        and data.vocabulary == 10_000
    )
    assert (data.test.x == 1).sum() / (
        data.test.x > 0
    ).sum() < 0.06  # 5.4 % of the tokens are unknown
    assert (data.train.x[:, -1] > 0).mean() < 0.03  # as many texts as are cut, or just fit
    assert len(np.unique(data.train.users)) > 20_000


def test_the_training_split_decides_alone(tmp_path):
    one = load(save_npz(tmp_path), tmp_path, how=Reading(SMALL))
    two = load(
        save_npz(tmp_path, text_test=np.array(["bad bad bad"])), tmp_path, how=Reading(SMALL)
    )
    assert np.array_equal(one.train.x, two.train.x) and two.test.x.tolist() == [[1, 1, 1, 0]]
    splits, tokens = encode([one.train.__class__(np.array(["x"], object), np.array([0]))], SMALL)
    assert tokens == ("x",) and splits[0].x.tolist() == [[2, 0, 0, 0]]
