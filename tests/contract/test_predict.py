"""Predictions for new examples are, to the bit, those that the run evaluated."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hpcfed
from hpcfed.cli import main
from hpcfed.clients.client import Shard
from hpcfed.comm import Serial
from hpcfed.config.load import load as load_job
from hpcfed.core.encoder import parse
from hpcfed.engine.run import run_here
from hpcfed.models.predictions import examples_for
from hpcfed.models.trained import GLOBAL
from hpcfed.report.figures import labels, models
from hpcfed.results.tables import table
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from hpcfed.training.evaluate import outputs
from tests.contract import toy
from tests.contract.models import saved_run

ROWS = 240
LABELS = ("sick", "grade", "cost", "days", "died", "fever", "cough")
SMALL = (
    *("--models.mix", "mlp", "--models.d", "8", "--rounds", "2", "--clients", "4"),
    *("--evaluate.common", "--evaluate.batch", "24", "--log.picture", "false"),
)


def patients(folder: Path) -> Path:
    """A table with gaps, categories and every type of label; a third of its rows are tests."""
    g = np.random.default_rng(0)
    names = ["id", "age", "weight", "job", "ward", "site", "part"]
    with open(folder / "patients.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*names, *LABELS])
        for i in range(ROWS):
            age, job = g.integers(20, 90), ("cook", "nurse", "pilot", "01")[g.integers(4)]
            weight = "" if i % 17 == 0 else repr(float(g.normal(70, 9)))
            sick, ward = age + g.normal(0, 9) > 60, ("a", "b", "c")[g.integers(3)]
            inputs = [f"P{i:03}", age, weight, job, ward, ("Bonn", "Ulm", "Essen", "Kiel")[i % 4]]
            y = ["yes" if sick else "no", "abc"[g.integers(3)], age * 1.5 + g.normal()]
            y += [int(g.integers(1, 99)), int(i % 5 > 0), int(sick), int(g.integers(2))]
            rows.writerow([*inputs, "test" if i % 3 == 0 else "train", *y])
    return folder / "patients.csv"


def only_tests(path: Path) -> tuple[Path, list[dict[str, str]]]:
    """A file of the test rows, and these rows."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "test"]
    with open(path.with_name("new.csv"), "w", newline="") as file:
        new = csv.DictWriter(file, rows[0])
        new.writeheader()
        new.writerows(rows)
    return path.with_name("new.csv"), rows


def trained(folder: Path, name: Path, *words: str, method: str = "fedavg") -> Path:
    """The folder of a small run on these data."""
    flags = ("--data.name", str(name), "--algorithm.name", method, "--out", str(folder / "run"))
    assert run_here(load_job([*flags, *SMALL, *words]), Serial())[0] == 0
    return folder / "run"


TASKS = {  # roles of columns, and what the run's answers are, of the columns of predictions
    "binary": (
        ("--columns.label", "sick", "--columns.positive", "yes"),
        lambda p, y: {"y": y, "predicted": p["class"] == "yes", "margin": p["probability_yes"]},
    ),
    "classes": (
        ("--columns.label", "grade"),
        lambda p, y: {"y": y, "predicted": np.array(["abc".index(c) for c in p["class"]])},
    ),
    "regression": (
        ("--columns.target", "cost"),
        lambda p, y: {"y": y, "predicted": p["cost"][:, None]},
    ),
    "survival": (
        ("--columns.label", "days", "--columns.event", "died"),
        lambda p, y: {"time": y[:, 0], "event": y[:, 1], "risk": p["risk"]},
    ),
    "labels": (
        ("--columns.labels", "fever,cough"),
        lambda p, y: {
            "y": y.astype(np.uint8),
            "score": np.stack([p[f"probability_{n}"] - 0.5 for n in ("fever", "cough")], 1),
        },
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_predictions_for_the_test_rows_of_a_table_have_the_metrics_that_the_run_recorded(
    tmp_path, task
):
    roles, answers = TASKS[task]
    table = patients(tmp_path)
    used = {name for value in roles[1::2] for name in value.split(",")}
    others = ["id", *(name for name in LABELS if name not in used)]
    columns = ("--columns.ignore", ",".join(others), "--columns.client", "site")
    columns += ("--columns.test", "part", "--columns.missing", "fill", "--columns.one_hot", "ward")
    run = trained(tmp_path, table, *roles, *columns, "--data.partition", "natural")
    new, rows = only_tests(table)
    assert main(["predict", str(run), str(new), "-o", str(tmp_path / "out.csv")]) == 0
    predictions = read(tmp_path / "out.csv")
    assert predictions["id"].tolist() == [row["id"] for row in rows]
    assert predictions["row"].tolist() == list(range(1, len(rows) + 1))
    record, saved = hpcfed.load(run), opened(run)
    y, of = saved.sources.data.test.y, saved.fed.task
    if task == "regression":  # in the unit of the data, as in the run's answers
        y = y.astype(np.float64) * np.array(of.std) + np.array(of.mean)
    [main_metric] = of.compute([of.main], answers(predictions, y))
    assert main_metric == record.column(f"rounds/{of.main}_common")[-1]
    assert_evaluated(saved, predictions)


def read(path: Path) -> dict[str, np.ndarray]:
    """The columns of a file of predictions; numbers are floats."""
    with open(path, newline="") as file:
        names, *rows = csv.reader(file)
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return {name: as_numbers(values) for name, values in columns.items()}


def as_numbers(values: list[str]) -> np.ndarray:
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array(values, object)


def opened(run: Path) -> Saved:
    """The models and the data of a run."""
    return from_newest(run, lambda source: Saved(run, source))


def assert_evaluated(saved: Saved, predictions: dict[str, np.ndarray]) -> None:
    """The predictions are what the run's evaluation makes of its test examples, in its batches."""
    model, test = saved.common(), saved.sources.test
    shard = Shard(test.x, test.y, np.arange(len(test.y)), torch.device("cpu"))
    with torch.no_grad():
        parts = list(outputs(saved.fed, model.scores, shard))
    soft = torch.cat([model.task.soft(output) for output, _ in parts])
    for name, column in model.task.report(soft.numpy(), model.about.labels).items():
        assert predictions[name].tolist() == column.tolist()


def test_a_column_or_a_file_of_examples_that_predictions_would_replace_is_refused(tmp_path, capsys):
    roles = ("--columns.target", "cost", "--columns.inputs", "age,job", "--data.partition", "iid")
    run = trained(tmp_path, patients(tmp_path), *roles)
    new, _ = only_tests(tmp_path / "patients.csv")
    before = new.read_bytes()
    for words, message in (
        (("-o", str(tmp_path / "out.csv"), "--id", "cost"), "the column 'cost' of the examples"),
        (("-o", str(new)), f"{new}: holds the examples; choose another place with -o"),
    ):
        assert main(["predict", str(run), str(new), *words]) == 2
        assert message in capsys.readouterr().err
    assert new.read_bytes() == before and not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    "method",
    ["central", "fedavg", "scaffold", "feddyn", "fedrolex", "ditto", "pfedme", "fedbe", "fedasync"],
)
def test_the_global_model_is_the_one_that_the_run_scored_on_all_test_examples(tmp_path, method):
    run = saved_run(tmp_path / "run", method, "--evaluate.common", rounds=1)
    with np.load(toy.folder() / "data.npz") as data:
        predictions = hpcfed.load_model(run, model="common").predict(data["x_test"])
        right = predictions["class"] == data["y_test"]
    assert right.mean() == hpcfed.load(run).column("rounds/accuracy_common")[-1]


def test_a_file_with_an_encoder_that_hpcfed_does_not_write_is_one_message(tmp_path, capsys):
    roles = ("--columns.label", "sick", "--columns.inputs", "age")
    run = trained(tmp_path, patients(tmp_path), *roles)
    assert main(["models", str(run), "--common", "-o", str(tmp_path)]) == 0
    file = tmp_path / "common.safetensors"
    content = file.read_bytes()
    changed = content.replace(b'commas\\": false', b'commas\\": 12345')
    assert changed != content
    file.write_bytes(changed)
    capsys.readouterr()
    assert main(["predict", str(file), str(tmp_path / "patients.csv")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hpcfed: {file}: its metadata are not as `hpcfed models` writes them: ")
    assert "encoder: columns has {'name': 'age'" in said and said.count("\n") == 1


def folder_of_images(folder: Path) -> Path:
    """A folder of images of two classes, with a part for tests."""
    g = np.random.default_rng(1)
    for part, n in (("train", 40), ("test", 15)):
        for kind in ("bars", "dots"):
            (folder / "shapes" / part / kind).mkdir(parents=True)
            for i in range(n):
                x = g.integers(0, 120, (9, 7, 3)).astype(np.uint8)
                x[:: 2 if kind == "bars" else 3] = 255
                Image.fromarray(x).save(folder / "shapes" / part / kind / f"{i:02}.png")
    return folder / "shapes"


@pytest.mark.parametrize("size", ["0", "8"], ids=["as they are", "scaled"])
def test_predictions_for_the_folder_of_test_images_are_those_of_the_run(tmp_path, size):
    data = folder_of_images(tmp_path)
    run = trained(tmp_path, data, "--models.mix", "cnn", "--data.image_size", size)
    predictions = hpcfed.load_model(run).predict(data / "test")
    assert predictions["file"].tolist()[14:16] == ["bars/14.png", "dots/00.png"]
    assert_evaluated(opened(run), predictions)


def test_predictions_for_test_texts_are_those_of_the_run(tmp_path):
    words, g = np.array(["good", "bad", "fine", "dull", "film", "play"]), np.random.default_rng(2)
    texts = np.array([" ".join(words[g.integers(6, size=5)]) for _ in range(90)])
    y = np.array(["good" in text for text in texts], np.int64)
    train, test = slice(30, None), slice(30)
    parts = {"text_train": texts[train], "y_train": y[train], "text_test": texts[test]}
    np.savez(tmp_path / "t.npz", y_test=y[test], **parts)
    text = ("--models.mix", "lstm-1", "--data.vocabulary", "6", "--data.tokens", "4")
    run = trained(tmp_path, tmp_path / "t.npz", *text)
    (tmp_path / "new.txt").write_text("\n".join(texts[:30]))
    assert_evaluated(opened(run), hpcfed.load_model(run).predict(tmp_path / "new.txt"))


@pytest.mark.parametrize("label", ["stage", "died"], ids=["three", "positive"])
def test_whole_numbers_as_labels_come_back_as_whole_numbers_in_python_and_in_files(tmp_path, label):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(patients(tmp_path)).assign(stage=lambda f: (f.age // 25).astype(int))
    frame.to_csv(tmp_path / "numbers.csv", index=False)
    roles = ("--columns.label", label, "--columns.inputs", "age", "--data.partition", "iid")
    roles += ("--columns.positive", "1") if label == "died" else ()
    run = trained(tmp_path, tmp_path / "numbers.csv", *roles)
    assert main(["models", str(run), "--common", "-o", str(tmp_path)]) == 0
    file = hpcfed.load_model(tmp_path / "common.safetensors")
    for model in (hpcfed.load_model(run), hpcfed.load_model(run, model="ensemble"), file):
        predictions = model.predict(frame)["class"]
        assert predictions.dtype == np.int64 and set(predictions) <= set(frame[label])
        json.dumps(predictions.tolist())
        assert model.about.classes == tuple(map(str, sorted(set(frame[label]))))
    assert (
        main(["predict", str(run), str(tmp_path / "numbers.csv"), "-o", str(tmp_path / "o")]) == 0
    )
    assert read(tmp_path / "o")["class"].tolist() == predictions.tolist()


def test_names_of_classes_come_back_as_texts_even_if_they_are_digits(tmp_path):
    g = np.random.default_rng(0)
    x, y = g.random((60, 1, 8, 8)).astype(np.float32), np.arange(60) % 2
    small = ("--models.mix", "cnn")
    for name, classes in (("words", y.astype(str)), ("numbers", y)):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=classes)
        run = trained(tmp_path / name, tmp_path / f"{name}.npz", *small)
        model = hpcfed.load_model(run)
        assert model.about.classes == ("0", "1")
        assert set(model.predict(x)["class"].tolist()) <= (
            {0, 1} if name == "numbers" else {"0", "1"}
        )


def test_each_choice_of_a_model_is_said_and_is_that_model(tmp_path, capsys):
    table = patients(tmp_path)
    roles = ("--columns.label", "sick", "--columns.positive", "yes", "--columns.client", "site")
    inputs = ("--columns.inputs", "age,job", "--data.partition", "natural")
    run = trained(tmp_path, table, *roles, *inputs, method="ditto")
    frame = pytest.importorskip("pandas").read_csv(table, index_col="id")
    models = [hpcfed.load_model(run, client=k) for k in range(4)]
    assert [model.about.name for model in models] == ["Bonn", "Essen", "Kiel", "Ulm"]
    personal = [model.predict(frame)["probability_yes"] for model in models]
    assert not personal[0].equals(personal[1]) and personal[0].index.equals(frame.index)

    def predicted(*words: str) -> list[float]:
        out = str(tmp_path / "out.csv")
        assert main(["predict", str(run), str(table), "-o", out, *words]) == 0
        return read(tmp_path / "out.csv")["probability_yes"].tolist()

    assert predicted("--client", "Ulm") == predicted("--client", "3") == personal[3].tolist()
    assert "by the model of client 3 (Ulm)" in capsys.readouterr().out
    mean = torch.stack([torch.tensor(p.to_numpy()) for p in personal]).mean(0)
    assert predicted("--model", "ensemble") == mean.tolist()
    assert "by the ensemble of all 4 clients' models" in capsys.readouterr().out
    assert predicted() == predicted("--model", "common")
    assert "by the global model" in capsys.readouterr().out
    assert hpcfed.load_model(run).about.client == GLOBAL
    assert main(["models", str(run), "-o", str(tmp_path / "files")]) == 0
    file = hpcfed.load_model(tmp_path / "files/client-0003.safetensors")
    assert (file.about.name, file.about.encoder) == ("Ulm", models[3].about.encoder)
    assert file.predict(frame)["probability_yes"].equals(personal[3])
    for words in (("--client", "Köln"), ("--client", "Ulm", "--model", "common")):
        assert main(["predict", str(run), str(table), *words]) == 2


def test_a_method_without_a_global_model_predicts_by_the_ensemble_and_says_so(tmp_path, capsys):
    roles = ("--columns.label", "sick", "--columns.inputs", "age")
    run = trained(tmp_path, patients(tmp_path), *roles, method="local")
    new, _ = only_tests(tmp_path / "patients.csv")
    out = str(tmp_path / "new" / "out.csv")
    assert main(["predict", str(run), str(new), "-o", out]) == 0
    assert "by the ensemble of all 4 clients' models" in capsys.readouterr().out
    assert set(read(Path(out))) == {"row", "id", "class", "probability_no", "probability_yes"}
    assert main(["predict", str(run), str(new), "-o", out, "--model", "common"]) == 2
    assert "local has no global model" in capsys.readouterr().err


def test_clients_and_classes_have_their_names_in_results_tables_figures_and_the_page(tmp_path):
    roles = ("--columns.label", "sick", "--columns.client", "site", "--columns.inputs", "age,job")
    run = trained(tmp_path, patients(tmp_path), *roles, "--data.partition", "natural")
    sites = ["Bonn", "Essen", "Kiel", "Ulm"]
    one = hpcfed.load(run)
    assert (one.client_names, one.classes) == (sites, ["no", "yes"])
    rows, of_labels = (table(one.record, name) for name in ("clients", "labels"))
    assert rows["name"].tolist() == sites * 2
    assert of_labels["name"].tolist() == [name for name in sites for _ in "ny"]
    [ax] = labels.figure([one]).axes
    assert [text.get_text() for text in ax.get_xticklabels()] == sites
    assert [text.get_text() for text in ax.get_yticklabels()] == ["no", "yes"]
    comparison = models.cka([one])
    assert [text.get_text() for text in comparison.axes[0].get_yticklabels()] == sites
    pytest.importorskip("bokeh")
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert '"name": ["Bonn", "Essen", "Kiel", "Ulm"]' in page or '"name":["Bonn"' in page
    assert main(["export", str(run), "-o", str(tmp_path / "csv")]) == 0
    assert read(tmp_path / "csv/clients.csv")["name"].tolist() == sites * 2


@pytest.mark.parametrize("task", ["binary", "regression", "labels"])
def test_a_model_as_onnx_predicts_the_same_and_carries_its_encoder(tmp_path, task):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    roles = ("--columns.inputs", "age,weight,job", "--columns.missing", "fill")
    table = patients(tmp_path)
    run = trained(tmp_path, table, *TASKS[task][0], *roles, "--data.partition", "iid")
    for words in (("--format", "onnx"), ()):
        assert main(["models", str(run), "--common", "-o", str(tmp_path), *words]) == 0
    onnx = runtime.InferenceSession(tmp_path / "common.onnx")
    model = hpcfed.load_model(tmp_path / "common.safetensors")
    assert model.about == hpcfed.load_model(run).about
    metadata = onnx.get_modelmeta().custom_metadata_map
    shape, encoder = json.loads(metadata["shape"]), json.loads(metadata["encoder"])
    classes = json.loads(metadata["classes"])
    assert parse(encoder, tuple(shape), 0, classes) == model.about.encoder
    examples = examples_for(model.about, table)
    [batch] = examples.batches(1000)
    [soft] = onnx.run(None, {"x": batch.x})
    report = model.task.report(soft, classes)
    predictions = model.predict(table)
    assert len(report) and soft.shape[0] == ROWS
    for name, column in report.items():
        if column.dtype != object:
            assert column == pytest.approx(predictions[name], rel=1e-5, abs=1e-6)


def test_a_clients_model_of_images_has_an_onnx_form_too(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    data = folder_of_images(tmp_path)
    run = trained(tmp_path, data, "--models.mix", "cnn", method="local")
    words = ["--format", "onnx", "--clients", "1"]
    assert main(["models", str(run), "-o", str(tmp_path / "out"), *words]) == 0
    onnx = runtime.InferenceSession(tmp_path / "out/client-0001.onnx")
    model = hpcfed.load_model(run, client=1)
    [batch] = examples_for(model.about, data / "test").batches(100)
    [soft] = onnx.run(None, {"x": batch.x.astype(np.float32) / 255})
    with torch.no_grad():
        expected = model.task.soft(model(torch.from_numpy(batch.x)))
    assert soft == pytest.approx(expected.numpy(), abs=1e-5)
    assert main(["models", str(run), "--common", "-o", str(tmp_path)]) == 2  # local has none
