"""The encoder of a model's inputs: new examples become the bits that the run made of its own."""

import csv
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hpcfed.config.sections import Columns
from hpcfed.core.encoder import Column, Encoder, parse
from hpcfed.core.errors import DamagedError, DataError
from hpcfed.core.shapes import Modality, Shapes
from hpcfed.data.dataset import DataSet, Reading, Text
from hpcfed.data.datasets import load
from hpcfed.data.new_examples import Examples
from tests.unit.test_given_data import Polars

pytestmark = pytest.mark.quick

FLOATS = st.floats(-1e30, 1e30, allow_nan=False)
WORDS = ("a", "b", "01", "1", "1.0", "x y", "ä", '"q"', "TRUE")
VALUES = {  # of a column of each form, as texts of a CSV file
    "number": FLOATS.map(repr),
    "comma": st.decimals(-1000, 1000, places=2).map(lambda v: str(v).replace(".", ",")),
    "dates": st.dates().map(str),
    "words": st.sampled_from(WORDS),
    "counts": st.sampled_from(("0", "1", "2", "10")),
}
EXTRA = {"words": st.just("new"), "counts": st.sampled_from(("7", "new"))}  # in test rows alone


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, list[str]], dict[str, list[str]], dict[str, tuple]]:
    """Columns of a training table and of its test rows, and the roles of the columns."""
    train, test = (
        {"y": ["0", "1"] * draw(st.integers(2, 4))},
        {"y": ["1"] * draw(st.integers(1, 9))},
    )
    for part in (train, test):
        part["patient"] = [f"P{i}" for i in range(len(part["y"]))]
    one_hot: list[str] = []
    for i, form in enumerate(draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))):
        value = VALUES[form] | st.just("")
        n, m = len(train["y"]), len(test["y"])
        column = [draw(VALUES[form]), *draw(st.lists(value, min_size=n - 1, max_size=n - 1))]
        value |= EXTRA.get(form, value)
        train[f"{form}{i}"], test[f"{form}{i}"] = (
            column,
            draw(st.lists(value, min_size=m, max_size=m)),
        )
        if form in EXTRA:
            one_hot.append(f"{form}{i}")
    return train, test, {"one_hot": tuple(one_hot)}


def write(path: Path, columns: dict[str, list[str]]) -> Path:
    """Write a table as CSV, with semicolons."""
    text = io.StringIO()
    rows = csv.writer(text, delimiter=";")
    rows.writerow(columns)
    rows.writerows(zip(*columns.values(), strict=True))
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def again(data: DataSet) -> Encoder:
    """The data's encoder, written as JSON and read."""
    return parse(
        json.loads(json.dumps(data.encoder.plain())), data.shape, data.vocabulary, data.classes
    )


def encoded(data: DataSet, source: object, size: int = 3, **options) -> np.ndarray:
    """New examples, encoded in small batches."""
    examples = Examples(source, again(data), data.shape, data.vocabulary, **options)
    return np.concatenate([batch.x for batch in examples.batches(size)])


@given(tables())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_new_rows_of_any_table_become_the_bits_of_the_runs_test_rows(columns):
    train, test, roles = columns
    with TemporaryDirectory() as folder:
        path, other = (write(Path(folder) / f"{n}.csv", c) for n, c in (("a", train), ("b", test)))
        fields = {"label": "y", "ignore": ("patient",), "missing": "fill", **roles}
        how = Reading(columns=Columns(**fields), test_file=other)
        data = load(str(path), Path("."), False, how)
        assert again(data) == data.encoder
        del test["y"]  # new rows have no labels
        x = encoded(data, write(other, test), fill=True)
    assert x.tobytes() == data.test.x.tobytes() and x.shape == data.test.x.shape


def saved(folder: Path, text: str, test: str, **columns: object) -> DataSet:
    """The data set of a table, with these test rows."""
    for name, content in (("train.csv", text), ("test.csv", test)):
        (folder / name).write_text(content)
    how = Reading(columns=Columns(label="sick", **columns), test_file=folder / "test.csv")
    return load(str(folder / "train.csv"), Path("."), False, how)


PEOPLE = "age,job,sick\n20,nurse,no\n30,cook,yes\n40,cook,yes\n50,nurse,no\n"


def test_frames_parquet_arrays_and_csv_become_the_same(tmp_path):
    pandas = pytest.importorskip("pandas")
    data = saved(tmp_path, PEOPLE, PEOPLE)
    frame = pandas.read_csv(tmp_path / "test.csv")
    frame.to_parquet(tmp_path / "test.parquet", row_group_size=3)
    for source in (tmp_path / "test.csv", tmp_path / "test.parquet", frame):
        assert encoded(data, source).tobytes() == data.test.x.tobytes()
    numbers = saved(tmp_path, "a,b,sick\n1,2,no\n3,4,yes\n5,6,yes\n", "a,b,sick\n1,9,no\n")
    np.savez(tmp_path / "new.npz", x=[[9.0, 1.0]], columns=["b", "a"])  # in another order
    for source in (tmp_path / "new.npz", np.array([[1.0, 9.0]])):
        assert encoded(numbers, source).tobytes() == numbers.test.x.tobytes()
    np.savez(tmp_path / "new.npz", x=[[9.0, 1.0]], columns=["b", "c"])
    with pytest.raises(DataError, match="has no column 'a', which the model takes; its columns"):
        encoded(numbers, tmp_path / "new.npz")


def test_arrays_of_hdf5_have_their_columns_by_name_in_an_attribute_or_an_array(tmp_path):
    data = saved(tmp_path, "a,b,sick\n1,2,no\n3,4,yes\n5,6,yes\n", "a,b,sick\n1,9,no\n")
    for form in ("columns", "features", "array"):
        with h5py.File(tmp_path / "new.h5", "w") as file:
            file["x"] = [[9.0, 1.0]]
            if form == "array":
                file["columns"] = ["b", "a"]
            else:
                file.attrs[form] = json.dumps(["b", "a"])
        assert encoded(data, tmp_path / "new.h5").tobytes() == data.test.x.tobytes()
    np.savez(tmp_path / "new.npz", x=[[9.0, 1.0]], columns=["b", "b"])
    with pytest.raises(DataError, match="columns names one twice: b, b"):
        encoded(data, tmp_path / "new.npz")


class Rows(np.ndarray):
    """Rows of numbers with names of columns, which no protocol tells."""

    columns = ("b", "a")


def test_tables_of_other_libraries_are_read_by_the_names_of_their_columns(tmp_path):
    data = saved(tmp_path, "a,b,sick\n1,2,no\n3,4,yes\n5,6,yes\n", "a,b,sick\n1,9,no\n")
    table = pyarrow.table({"b": [9.0], "a": [1.0]})
    for source in (table, table.to_batches()[0], Polars(table)):
        assert encoded(data, source).tobytes() == data.test.x.tobytes()
    with pytest.raises(DataError, match="a Rows has names of columns, which are not read; give a"):
        encoded(data, np.array([[9.0, 1.0]]).view(Rows))


WRONG = {
    "column": ("age,sick\n1,no\n", r"has no column 'job', which the model takes; .* age, sick"),
    "gap": ("age,job\n1,cook\n,nurse\n", r"column 'age' has no value in row 2; .*--missing fill"),
    "category": ("age,job\n1,cook\n2,cook\n3,judge\n", r"'judge' in row 3 is none of cook, nurse"),
    "word": ("age,job\n1,cook\nold,cook\n", r"column 'age': 'old' in row 2 is not a number"),
    "infinite": ("age,job\n1,cook\n2,cook\n3,cook\ninf,cook\n", r"value inf in row 4; numbers"),
    "ragged": ("age,job\n1,cook\n2\n", r"line 3 has 1 value, but the first line names 2 columns"),
    "rows": ("age,job\n", "holds no rows"),
    "nothing": ("", "is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_the_model_cannot_take_is_one_message_with_row_and_column(tmp_path, case):
    data = saved(tmp_path, PEOPLE, PEOPLE)
    text, message = WRONG[case]
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(DataError, match=message) as refusal:
        encoded(data, tmp_path / "new.csv", size=2)  # rows are counted over batches
    assert str(refusal.value).startswith(f"{tmp_path}/new.csv: ")


def test_what_is_filled_in_is_counted_and_row_ids_pass_through(tmp_path):
    data = saved(tmp_path, PEOPLE, PEOPLE, missing="fill")
    (tmp_path / "new.csv").write_text("ID,age,job\n007,,cook\n008,30,judge\n009,30,judge\n")
    examples = Examples(tmp_path / "new.csv", data.encoder, data.shape, fill=True)
    batches = list(examples.batches(2))
    assert examples.filled == {"age": 1, "job": 2}
    [note] = examples.notes
    assert note.endswith(f"{tmp_path}/new.csv: column 'age' has no value in row 1")
    assert [batch.ids["row"].tolist() for batch in batches] == [[1, 2], [3]]
    assert [batch.ids["ID"].tolist() for batch in batches] == [["007", "008"], ["009"]]
    with pytest.raises(DataError, match="'judge' in row 2 is none of"):  # never without a word
        encoded(data, tmp_path / "new.csv")


def test_texts_become_the_tokens_of_the_training_texts(tmp_path):
    texts = np.array(["good film :)", "bad bad film", "good", "bad"])
    np.savez(
        tmp_path / "t.npz", text_train=texts, y_train=[1, 0, 1, 0], text_test=texts, y_test=[1] * 4
    )
    data = load(str(tmp_path / "t.npz"), Path("."), False, Reading(Text(4, 6)))
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "new.csv").write_text("text\n" + "\n".join(texts) + "\n")
    np.savez(tmp_path / "new.npz", text=texts)
    for source in (tmp_path / "new.txt", tmp_path / "new.csv", tmp_path / "new.npz", list(texts)):
        assert encoded(data, source).tobytes() == data.test.x.tobytes()


@pytest.mark.parametrize("size", [0, 5], ids=["as they are", "scaled"])
def test_images_are_read_as_the_training_images_were(tmp_path, size):
    g = np.random.default_rng(0)
    for kind in ("a", "b"):
        (tmp_path / "data" / kind).mkdir(parents=True)
        for i in range(5):
            image = Image.fromarray(g.integers(0, 255, (6, 4), dtype=np.uint8))
            image.save(tmp_path / "data" / kind / f"{i}.png")
    how = Reading(image_size=size, held_out=0.5)
    data = load(str(tmp_path / "data"), Path("."), False, how)
    stored = np.concatenate([data.train.x, data.test.x])
    new = Examples(tmp_path / "data", again(data), data.shape)
    [batch] = new.batches(100)
    assert batch.ids["file"].tolist()[:2] == ["a/0.png", "a/1.png"]
    assert sorted(x.tobytes() for x in batch.x) == sorted(x.tobytes() for x in stored)
    Image.new("L", (4, 7)).save(tmp_path / "tall.png")
    if size:
        assert encoded(data, tmp_path / "tall.png").shape == (1, 1, 5, 5)
    else:
        with pytest.raises(DataError, match="has 4x7 pixels, but the model takes 4x6"):
            encoded(data, tmp_path / "tall.png")
    Image.new("RGB", (4, 6)).save(tmp_path / "red.png")
    with pytest.raises(DataError, match="has colours, but the model takes grey images"):
        encoded(data, tmp_path / "red.png")


def test_images_of_another_scale_than_the_training_images_are_told(tmp_path):
    g = np.random.default_rng(0)
    bytes_, y = g.integers(0, 256, (12, 6, 4), dtype=np.uint8), [0, 1] * 6
    forms = {"8-bit": bytes_, "0..1": bytes_ / 255, "0..255": bytes_.astype(float)}
    Image.fromarray(bytes_[0]).save(tmp_path / "new.png")
    alike = {("8-bit", "0..1"), ("0..1", "8-bit"), *((form, form) for form in forms)}
    for trained, x in forms.items():
        np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        data = load(str(tmp_path / "data.npz"), Path("."), False, Reading())
        for new, images in {**forms, "png": tmp_path / "new.png"}.items():
            examples = Examples(images, again(data), data.shape)
            list(examples.batches(5))
            form = "8-bit" if new == "png" else new
            assert bool(examples.notes) == ((trained, form) not in alike)
    for scale in ("0..1", "standardised"):
        examples = Examples(forms["0..255"], Encoder(scale=scale), data.shape)
        list(examples.batches(5))
        assert examples.notes == [
            f"the inputs: images of 0..255, but the model was trained on images of {scale}; scale "
            f"them as the training images were, or no prediction means anything"
        ]


def test_arrays_of_several_modalities_are_cut_alike_or_refused():
    shape = Shapes([Modality("table", (3,)), Modality("motion", (2, 4))])
    x = {"table": np.arange(15.0).reshape(5, 3), "motion": np.arange(40.0).reshape(5, 2, 4)}
    batches = list(Examples(x, Encoder(), shape).batches(2))
    assert [batch.ids["row"].tolist() for batch in batches] == [[1, 2], [3, 4], [5]]
    for name, values in x.items():
        assert np.concatenate([batch.x[name] for batch in batches]).tolist() == values.tolist()
    for other, message in (
        ({"table": x["table"]}, "table, but the model takes table, motion"),
        (x["table"], "one array, but the model takes table, motion"),
        (x | {"table": x["table"][:4]}, r"other numbers of examples \(table 4, motion 5\); give"),
        (x | {"motion": x["table"]}, r"motion: examples of shape \[3\], but .* takes \[2, 4\]"),
    ):
        with pytest.raises(DataError, match=message):
            list(Examples(other, Encoder(), shape).batches(2))


COLUMN = {"name": "a", "categories": ["x", "y"], "fill": 0.0, "commas": False}
FOREIGN = {
    "no table": [],
    "unknown field": {"code": "import os"},
    "width": {"columns": [COLUMN, COLUMN | {"name": "b"}]},
    "twice": {"columns": [COLUMN | {"categories": ["x"]}] * 2},
    "unknown field of a column": {"columns": [COLUMN | {"form": "eval"}]},
    "mixed": {"columns": [COLUMN | {"categories": ["x", 1.0]}]},
    "equal": {"columns": [COLUMN | {"categories": ["x", "x"]}]},
    "nan": {"columns": [COLUMN | {"fill": float("nan")}]},
    "missing": {"columns": [{"name": "a"}]},
    "no text": {"encoding": 8},
    "no flag": {"fills": "yes"},
    "labels no flag": {"integer_labels": 1},
    "labels of other classes": {"integer_labels": True},
    "tokens": {"tokens": ["a"]},
    "too many": {"missing_words": [""] * (2**20 + 1)},
    "scale": {"scale": "0..9"},
    "long": {"text": "a" * 200_000},
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_strangers_encoder_is_refused(case):
    parse({"columns": [COLUMN]}, (2,), 0, ("0", "sick"))
    assert parse({"integer_labels": True}, (2,), 0, ("-1", "20")).integer_labels
    with pytest.raises(DamagedError, match="encoder"):
        parse(FOREIGN[case], (2,), 0, ("0", "sick"))


def test_the_default_encoder_is_nothing_in_json():
    assert Encoder().plain() == {} and parse({}, (1, 8, 8), 0, ()) == Encoder()
    assert Column("a", (1.0, 2.0)).width == 2
