"""Data of a call: every form becomes the data set that a file of the same contents has."""

import os
import random

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

import hpcfed
from hpcfed.config.sections import Columns
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.shapes import Modality
from hpcfed.data import datasets, files
from hpcfed.data.dataset import Reading
from hpcfed.launch.given_data import convert

N = 60
LABELS = np.arange(N) % 3
WORDS = np.array(["walk", "run", "sit"])[LABELS]
IMAGES = np.random.default_rng(0).normal(size=(N, 1, 6, 6)).astype(np.float32)
TABLE = np.random.default_rng(1).normal(size=(N, 5)).astype(np.float32)
BOTH = (Modality("input1", (1, 6, 6)), Modality("input2", (5,)))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def data_set(data, tmp_path, **columns):
    """Return what a run reads of the data of a call, and the fields that they set."""
    converted, how = convert(data), Reading(columns=Columns(**columns))
    converted.check(how)
    assert converted.write(tmp_path) and not converted.write(tmp_path)
    return datasets.load(converted.file, tmp_path, how=how), converted.fields


def test_labels_in_words_are_numbered_and_their_names_are_the_classes(tmp_path):
    for x in (IMAGES, TABLE):
        data, _ = data_set((x, WORDS, x[:9], WORDS[:9]), tmp_path)
        assert data.classes == ("run", "sit", "walk")
        assert [data.classes[c] for c in data.train.y] == WORDS.tolist()
        assert [data.classes[c] for c in data.test.y] == WORDS[:9].tolist()
    arrays = {"x_train": IMAGES, "y_train": WORDS, "classes": ["sit", "walk", "run"]}
    assert data_set(arrays, tmp_path)[0].classes == ("sit", "walk", "run")
    with pytest.raises(DataError, match="y_train: label 'run' at index 1; the classes are sit, wa"):
        data_set(arrays | {"classes": ["sit", "walk"]}, tmp_path)
    with pytest.raises(DataError, match="y_test: holds int64, but other labels are words"):
        data_set((IMAGES, WORDS, IMAGES, LABELS), tmp_path)


def test_several_inputs_are_a_tuple_or_a_dict_by_modality(tmp_path):
    assert data_set(((IMAGES, TABLE), LABELS), tmp_path)[0].shape == BOTH
    tokens = LABELS[:, None].repeat(3, 1)
    arrays = {"x_train": {"scan": IMAGES, "notes": tokens}, "y_train": LABELS}
    data, _ = data_set(arrays | {"vocabulary": {"notes": 3}}, tmp_path)
    assert data.shape == (Modality("scan", (1, 6, 6)), Modality("notes", (3,), 3))
    assert np.array_equal(data.train.x["notes"][:, 0], data.train.y)


def test_data_sets_of_torch_are_their_tensors(tmp_path):
    x, t, y = map(torch.from_numpy, (IMAGES, TABLE, LABELS))
    arrays = convert((IMAGES, LABELS, IMAGES[:9], LABELS[:9])).file
    assert convert((TensorDataset(x, y), TensorDataset(x[:9], y[:9]))).file == arrays
    assert convert(TensorDataset(x, t, y)).file == convert(((IMAGES, TABLE), LABELS)).file
    some = Subset(TensorDataset(x, y), range(9, 30))
    assert convert(some).file == convert((IMAGES[9:30], LABELS[9:30])).file
    with pytest.raises(DataError, match="TensorDataset have no labels"):
        convert(TensorDataset(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_short_floats_that_numpy_lacks_become_float32(dtype):
    x, y = torch.from_numpy(IMAGES).to(dtype), torch.from_numpy(LABELS)
    pairs = [(x[i], int(y[i])) for i in range(N)]
    wanted = convert((x.float(), y)).file
    for data in ((x, y), TensorDataset(x, y), Rows(pairs.__getitem__)):
        assert convert(data).arrays["x_train"].dtype == np.float32
        assert convert(data).file == wanted
    assert convert((x.half(), y)).arrays["x_train"].dtype == np.float16


class Rows(Dataset):
    """A data set of torch whose examples a function reads, with this number of them."""

    def __init__(self, read, n=N):
        self.read, self.n = read, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.read(i)


def test_random_transforms_are_drawn_anew_for_each_client_and_alike_in_each_call():
    def noisy(i):
        return torch.from_numpy(TABLE[i]) + torch.rand(5) + random.random(), int(LABELS[i])

    rows = Rows(noisy)
    state = torch.get_rng_state()
    both = convert([rows, rows])
    assert convert([rows, rows]).file == both.file
    assert torch.equal(torch.get_rng_state(), state)
    x = both.arrays["x_train"] - np.r_[TABLE, TABLE]
    assert len(np.unique(x.round(5))) > 9 * N and x.min() > 0


def test_the_examples_of_a_data_set_may_be_dicts_with_a_label():
    wanted = convert((TABLE, LABELS)).file
    assert convert(Rows(lambda i: {"x": TABLE[i], "label": LABELS[i]})).file == wanted
    assert convert(Rows(lambda i: {"target": int(LABELS[i]), "age": TABLE[i]})).file == wanted
    named = convert({"x_train": {"image": IMAGES, "age": TABLE}, "y_train": LABELS}).file
    several = Rows(lambda i: {"image": IMAGES[i], "age": TABLE[i], "y": LABELS[i]})
    inside = Rows(lambda i: ({"image": IMAGES[i], "age": TABLE[i]}, LABELS[i]))
    assert convert(several).file == convert(inside).file == named
    assert convert([several, inside]).fields["clients"] == 2


def fail(i):
    raise OSError(f"no file {i}.png")


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (
            lambda i: {"x": TABLE[i], "stars": 1},
            r"has x, stars\).*return a tuple \(inputs, label\)",
        ),
        (lambda i: {"x": TABLE[i], "y": 1, "label": 1}, "has x, y, label"),
        (lambda i: {"x": TABLE[i], "y": 1} | ({"z": 1} if i else {}), "by the same keys"),
        (lambda i: torch.from_numpy(TABLE[i]), r"example 0 of a Rows is a Tensor without a label"),
        (lambda i: (TABLE[i],) * (i + 2), "example 1 of a Rows has 3 parts, but example 0 has 2"),
        (lambda i: (TABLE[i][: i + 1], 1), "of a Rows are no arrays of one shape"),
        (lambda i: ((TABLE[i], IMAGES[i]), 1), r"several inputs as \(input1, input2, label\)"),
        (fail, "example 0 of a Rows cannot be read: OSError: no file 0.png"),
    ],
)
def test_examples_that_are_no_inputs_with_a_label_are_one_message(read, words):
    with pytest.raises(DataError, match="a Rows has no examples"):
        convert(Rows(read, 0))
    with pytest.raises(DataError, match=words):
        convert(Rows(read, 3))


class Matrix:
    """A sparse matrix as scipy has them."""

    def toarray(self):
        return TABLE


SPARSE = {
    "coo": (torch.from_numpy(TABLE).to_sparse(), "x_train is a sparse tensor; give its .to_dense"),
    "csr": (torch.eye(4).to_sparse_csr(), "x_train is a sparse tensor; give its .to_dense"),
    "scipy": (Matrix(), "x_train is a sparse Matrix; give its .toarray"),
    "meta": (torch.zeros(4, 4, device="meta"), "x_train is not a plain tensor"),
}


@pytest.mark.parametrize("case", SPARSE)
def test_values_that_are_no_dense_arrays_are_one_message(case):
    value, words = SPARSE[case]
    with pytest.raises(DataError, match=words):
        convert((value, LABELS))


def test_a_list_holds_one_client_each_and_its_tests_are_its_own(tmp_path):
    parts = [slice(0, 10), slice(10, 40), slice(40, 60)]
    data, fields = data_set([(IMAGES[p], WORDS[p]) for p in parts], tmp_path)
    assert fields == {"data": {"partition": "natural"}, "clients": 3}
    assert np.bincount(np.r_[data.train.users, data.test.users]).tolist() == [10, 30, 20]
    pairs = [((IMAGES[p], TABLE[p]), LABELS[p], (IMAGES[:9], TABLE[:9]), LABELS[:9]) for p in parts]
    data, _ = data_set(pairs, tmp_path)
    assert data.shape == BOTH and data.own_tests
    assert np.bincount(data.train.users).tolist() == [10, 30, 20]
    with pytest.raises(
        DataError, match=r"x_train of client 1 has shape \[60, 5\], that of client 0"
    ):
        convert([(IMAGES, LABELS), (TABLE, LABELS)])
    with pytest.raises(DataError, match="some clients have test examples"):
        convert([pairs[0], pairs[0][:2]])


def test_a_client_without_a_training_example_is_refused_with_its_place_in_the_list():
    x, y = torch.from_numpy(IMAGES), torch.from_numpy(LABELS)
    rows, frame = TensorDataset(x, y), pandas.DataFrame({"age": range(9)})
    empty = IMAGES[:0], LABELS[:0]
    for one, none in (
        ((IMAGES, LABELS), empty),
        ((IMAGES, LABELS, IMAGES, LABELS), (*empty, IMAGES, LABELS)),
        ((IMAGES, LABELS), ([], [])),
        (rows, Subset(rows, [])),
        ((rows, rows), (Subset(rows, []), rows)),
        (frame, frame[:0]),
    ):
        with pytest.raises(DataError, match=r"client 1 \(of 0 to 2\) has no training example"):
            convert([one, none, one])
    assert convert([(IMAGES, LABELS, *empty), (IMAGES, LABELS, IMAGES, LABELS)]).fields["clients"]


def test_a_data_frame_is_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TABLE, columns=list("abcde")).assign(
        ward=pandas.Categorical(np.array(["north", "south"])[LABELS // 2]), move=WORDS
    )
    data, _ = data_set(frame, tmp_path, label="move")
    assert data.shape == (7,) and data.classes == ("run", "sit", "walk")
    x = frame[["a", "b"]]
    data, fields = data_set(
        (x, frame["move"], x[:9], frame["move"][:9]), tmp_path, label="move", test="test_rows"
    )
    assert fields == {"columns": {"label": "move", "test": "test_rows"}}
    assert (len(data.train.y), len(data.test.y)) == (N, 9)
    data, fields = data_set([frame[:20], frame[20:]], tmp_path, label="move", client="client")
    assert fields["clients"] == 2 and fields["columns"] == {"client": "client"}
    assert np.bincount(np.r_[data.train.users, data.test.users]).tolist() == [20, 40]
    with pytest.raises(DataError, match=r"^hpcfed.run: data: .*'mov'.*did you mean 'move'"):
        data_set(frame, tmp_path / "none", label="mov")
    assert not (tmp_path / "none").exists()


class Two(nn.Module):
    """Reads a table and an image, named as modalities are, in another order."""

    def __init__(self, num_classes):
        super().__init__()
        self.one, self.two = nn.Linear(36, 4), nn.Linear(5, 4)
        self.out = nn.Linear(8, num_classes)

    def forward(self, table, image):
        return self.out(torch.cat([self.one(image.flatten(1)), self.two(table)], 1).relu())


class Several(Two):
    def forward(self, x):
        return super().forward(**x)


TINY = {"rounds": 1, "clients": 2, "quiet": True, "algorithm": "fedavg"}
NAMED = {"x_train": {"image": IMAGES, "table": TABLE}, "y_train": LABELS}


def test_a_model_for_several_inputs_is_called_by_the_names_of_its_parameters():
    runs = [
        hpcfed.run(**TINY, data=data, model=model, out=f"runs/{i}")
        for i, (data, model) in enumerate(
            [(NAMED, Two), (NAMED, Several), (((TABLE, IMAGES), LABELS), Two)]
        )
    ]
    assert [run.accuracy.tolist() for run in runs[1:]] == [runs[0].accuracy.tolist()] * 2
    assert [run.header["inputs"]["shape"][0]["name"] for run in runs] == ["image"] * 2 + ["input1"]


def test_refused_data_leave_no_file_in_the_data_folder():
    scan = {"x_train": {"scan": IMAGES, "table": TABLE}, "y_train": LABELS}
    for error, message, arguments in (
        (DataError, "y_train: shape", {"data": (IMAGES[:3], LABELS), "model": "mlp"}),
        (ConfigError, "no model 'mlpp'", {"data": (IMAGES, LABELS), "model": "mlpp"}),
        (ConfigError, "takes table, image, but the modalities are scan", {"data": scan}),
    ):
        with pytest.raises(error, match=message):
            hpcfed.run(**TINY | {"model": Two} | arguments, out="runs/refused")
    assert not os.path.isdir("data") or not os.listdir("data")


def test_the_job_names_the_axis_of_channels_if_it_is_ambiguous():
    bands = np.random.default_rng(0).random((N, 6, 8, 7), np.float32)
    converted = convert((bands, LABELS))
    with pytest.raises(DataError, match=r"set data.channels = 'first' \(6 channels of 8x7\) or"):
        converted.check(Reading())
    for channels, x in (("first", bands), ("last", np.moveaxis(bands, 3, 1))):
        assert converted.check(Reading(channels=channels)) is None
        arrays = {"x_train": bands, "y_train": LABELS, "x_test": bands, "y_test": LABELS}
        data = files.from_arrays("arrays", arrays, Reading(channels=channels))
        assert np.array_equal(data.train.x, x)
    with pytest.raises(DataError, match="data.channels has no effect"):
        convert((IMAGES[:, 0], LABELS)).check(Reading(channels="first"))


@pytest.mark.parametrize("kind", ["arrays", "table"])
def test_a_file_of_this_name_with_other_content_is_rewritten(tmp_path, kind):
    if kind == "table":
        frame = pytest.importorskip("pandas").DataFrame({"age": range(4), "label": list("abab")})
        converted, other = convert(frame), convert(frame[:2])
    else:
        converted, other = convert((IMAGES, LABELS)), convert((IMAGES * 2, LABELS))
    for what in (converted, other):
        assert what.write(tmp_path) and not what.write(tmp_path)
    path = tmp_path / converted.file
    content = path.read_bytes()
    for harm in ((tmp_path / other.file).read_bytes(), content[:9]):
        path.write_bytes(harm)
        assert converted.write(tmp_path) and path.read_bytes() == content


class Polars:
    """A table of another library, which offers Arrow's stream, as polars' DataFrame does."""

    def __init__(self, table: pyarrow.Table):
        self.table, self.columns = table, table.column_names

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_tables_of_other_libraries_are_read_as_those_of_pandas(tmp_path):
    frame = pandas.DataFrame({"a": TABLE[:, 0], "job": WORDS, "label": LABELS})
    other = Polars(pyarrow.Table.from_pandas(frame))
    assert convert(other).table == convert(frame).table == convert(other.table).table
    assert convert([other, other]).table == convert([frame, frame]).table
    inputs = Polars(pyarrow.Table.from_pandas(frame[["a", "job"]]))
    assert convert((inputs, LABELS)).table == convert((frame[["a", "job"]], LABELS)).table


def test_a_loader_is_the_examples_of_its_data_set_in_their_order(tmp_path):
    x, y = torch.tensor(TABLE), torch.tensor(LABELS)
    complete, part = TensorDataset(x, y), Subset(TensorDataset(x, y), range(10, 30))
    loader = DataLoader(complete, batch_size=7, shuffle=True, drop_last=True)
    assert convert(loader).file == convert(complete).file
    sampled = DataLoader(complete, sampler=SubsetRandomSampler(range(10, 30)))
    assert convert(sampled).file == convert(part).file == convert((x[10:30], y[10:30])).file
    clients = [(DataLoader(complete, 8), DataLoader(part, 8)), (part, complete)]
    arrays = [(x, y, x[10:30], y[10:30]), (x[10:30], y[10:30], x, y)]
    assert convert(clients).file == convert(arrays).file
    assert convert([loader, sampled]).fields["clients"] == 2


def test_a_column_of_a_frame_is_not_overwritten_and_labels_are_one_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2, 3], "label": [0, 1, 0]})
    with pytest.raises(DataError, match="has a column 'client', the name of one that is added"):
        convert([frame.assign(client=7), frame])
    x, y = frame[["a"]], frame["label"]
    with pytest.raises(DataError, match="has a column 'test_rows'"):
        convert((x.assign(test_rows=1), y, x, y))
    with pytest.raises(DataError, match=r"labels of shape \[3, 2\] beside a DataFrame"):
        convert((x, frame[["a", "label"]]))
    assert convert((x, frame[["label"]])).fields == {"columns": {"label": "label"}}
