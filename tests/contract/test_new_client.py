"""`hpcfed adapt`: a client that a run did not have personalises a model as the method would."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.cli import main
from hpcfed.core.errors import DataError
from hpcfed.data.tables import held_out
from hpcfed.results.trained.adapt import to_classes
from tests.contract.test_predict import folder_of_images, patients, trained

INPUTS = ("--columns.inputs", "age,weight,job", "--columns.missing", "fill")
SICK = ("--columns.label", "sick", "--columns.positive", "yes", *INPUTS)


def site(folder: Path, change=lambda i, row: row) -> Path:
    """A table of a new hospital, with labels."""
    g = np.random.default_rng(5)
    with open(folder / "site.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "job", "sick", "weight", "cost", "days", "died", "fever", "cough"])
        for i in range(60):
            age = int(g.integers(20, 90))
            row = [age, ("cook", "01")[i % 2], "yes" if age < 55 else "no", 70 + i]
            rows.writerow(change(i, [*row, age * 1.5, i + 1, i % 2, i % 2, int(i % 3 > 0)]))
    return folder / "site.csv"


def adapted(run: Path, data: Path, *words: str) -> hpcfed.Trained:
    """The model that the command writes."""
    out = data.with_suffix(".safetensors")
    assert main(["adapt", str(run), "--data", str(data), "-o", str(out), *words]) == 0
    return hpcfed.load_model(out)


def differ(model: hpcfed.Trained, other: hpcfed.Trained) -> set[str]:
    """Names of the tensors that differ."""
    tensors = other.state_dict()
    return {name for name, value in model.state_dict().items() if not value.equal(tensors[name])}


def test_held_out_rows_score_the_model_before_and_after_and_do_not_train_it(tmp_path, capsys):
    run = trained(tmp_path, patients(tmp_path), *SICK)
    capsys.readouterr()
    model = adapted(run, site(tmp_path), "--epochs", "9", "--name", "Lyon", "--held-out", "0.25")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Lyon: 45 examples to train on, 15 held out; mlp, trained as a client of " + (
        "fedavg in a round, 9 epochs"
    )
    with open(tmp_path / "site.csv", newline="") as file:
        y = np.array([row["sick"] for row in csv.DictReader(file)])
    _, rows = held_out("", (y == "yes").astype(np.int64), None, 0.25)
    scores = []
    for one in (hpcfed.load_model(run), model):
        classes = one.predict(tmp_path / "site.csv")["class"][rows]
        scores.append(f"{np.mean(classes == y[rows]):>10.4f}")
    assert said[2] == f"{'accuracy':<24}{''.join(scores)}" and scores[0] < scores[1]
    assert (model.about.name, model.about.client, model.about.counted) == (
        *("Lyon", 4),
        "final/accuracy",
    )
    changed = site(tmp_path, lambda i, row: [99, *row[1:]] if i in rows else row)
    assert not differ(adapted(run, changed, "--epochs", "9", "--held-out", "0.25"), model)


@pytest.mark.parametrize(
    "flags, words",
    [
        ((), ("--how", "head")),
        (("--adapt.how", "head", "--evaluate.received"), ()),
        (("--models.train", "head.*"), ()),
    ],
)
def test_only_what_the_job_or_the_command_personalises_changes(tmp_path, flags, words):
    run = trained(tmp_path, patients(tmp_path), *SICK, *flags)
    changed = differ(adapted(run, site(tmp_path), *words), hpcfed.load_model(run))
    assert changed and all(name.startswith("model.head.") for name in changed)


def test_after_a_schedule_that_falls_to_zero_a_new_client_still_learns(tmp_path):
    """Without a rate it has that of the last round, and a given one is that of every step."""
    cosine = ("--local.schedule", "cosine")
    run = trained(tmp_path, patients(tmp_path), *SICK, *cosine)
    alone = adapted(run, site(tmp_path))
    assert differ(alone, hpcfed.load_model(run))
    assert differ(adapted(run, site(tmp_path), "--lr", "0.5"), alone)


def test_the_epochs_of_the_command_count_for_methods_with_rounds_of_their_own(tmp_path, capsys):
    run = trained(tmp_path, patients(tmp_path), *SICK, method="fedasync")
    capsys.readouterr()
    adapted(run, site(tmp_path), "--epochs", "7")
    assert "adapted (how = all, epochs = 7)" in capsys.readouterr().out


def test_with_lora_each_matrix_changes_by_two_of_its_low_ranks(tmp_path):
    """W + B'A' - (W + BA) has the ranks of both products."""
    run = trained(tmp_path, patients(tmp_path), *SICK, "--models.lora", "1")
    before = hpcfed.load_model(run).state_dict()
    after = adapted(run, site(tmp_path), "--epochs", "5").state_dict()
    changes = [
        after[n] - before[n] for n in after if n.startswith("model.body.") and after[n].ndim > 1
    ]
    assert max(c.abs().max() for c in changes) > 0
    assert all(torch.linalg.matrix_rank(c, rtol=1e-4) <= 2 for c in changes)


@pytest.mark.parametrize(
    "roles",
    [
        ("--columns.target", "cost"),
        ("--columns.label", "days", "--columns.event", "died"),
        ("--columns.labels", "fever,cough"),
    ],
    ids=["regression", "survival", "labels"],
)
def test_a_new_client_has_labels_of_every_task(tmp_path, roles, capsys):
    run = trained(tmp_path, patients(tmp_path), *roles, *INPUTS, "--data.partition", "iid")
    capsys.readouterr()
    model = adapted(run, site(tmp_path), "--epochs", "20")
    _, _, main_metric, *_ = capsys.readouterr().out.splitlines()
    before, after = map(float, main_metric.split()[-2:])
    assert np.isfinite([before, after]).all() and before != after
    assert len(model.predict(tmp_path / "site.csv")["row"]) == 60


def test_new_clients_of_images_have_their_labels_from_folders(tmp_path):
    data = folder_of_images(tmp_path)
    run = trained(tmp_path, data, "--models.mix", "cnn")
    model = adapted(run, data / "test", "--epochs", "3")
    assert differ(model, hpcfed.load_model(run))


def test_what_no_client_of_the_run_can_be_is_refused_in_one_message(tmp_path, capsys):
    run = trained(tmp_path, patients(tmp_path), *SICK, method="fesem")
    data = site(tmp_path)
    for words, message in (
        ((), "fesem has a model for each client, or for the clients of each cluster"),
        (("--held-out", "1"), "--held-out 1: give a share between 0 and 1"),
        (("-o", str(tmp_path)), f"{tmp_path}: is a folder; name the file of the adapted model"),
    ):
        assert main(["adapt", str(run), "--data", str(data), *words]) == 2
        assert message in capsys.readouterr().err
    site(tmp_path, lambda i, row: [*row[:2], "perhaps" if i == 7 else row[2], *row[3:]])
    assert main(["adapt", str(run), "--data", str(data)]) == 2
    assert "'perhaps' in row 8 is no class of the run; these are no, yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "roles, metrics, shown",
    [
        (
            ("--columns.label", "grade"),
            "log_loss,macro_roc_auc,ece",
            ["accuracy", "log-loss", "macro ROC-AUC", "ECE"],
        ),
        (
            (
                "--columns.label",
                "sick",
                "--columns.positive",
                "yes",
                "--evaluate.validation",
                "0.2",
            ),
            "sensitivity,specificity,roc_auc",  # the first two by a threshold of validation rows
            ["accuracy", "ROC-AUC"],
        ),
    ],
    ids=["classes", "threshold"],
)
def test_a_new_client_is_scored_by_the_runs_metrics_that_need_no_validation(
    tmp_path, capsys, roles, metrics, shown
):
    run = trained(tmp_path, patients(tmp_path), *roles, *INPUTS, "--evaluate.metrics", metrics)
    data = site(tmp_path, lambda i, row: [*row, "abc"[i % 3]])
    header, rows = data.read_text().split("\n", 1)
    data.write_text(f"{header},grade\n{rows}")
    capsys.readouterr()
    adapted(run, data)
    lines = capsys.readouterr().out.splitlines()[2:-1]
    assert [line[:24].strip() for line in lines] == shown
    assert np.isfinite([float(value) for line in lines for value in line[24:].split()]).all()


def test_labels_that_are_true_or_false_are_those_of_training(tmp_path):
    table = patients(tmp_path)
    lines = [line.split(",") for line in table.read_text().splitlines()]
    for line in lines[1:]:
        line[-2:] = [("false", "true")[int(v)] for v in line[-2:]]
    table.write_text("\n".join(map(",".join, lines)) + "\n")
    roles = ("--columns.labels", "fever,cough", *INPUTS, "--data.partition", "iid")
    run = trained(tmp_path, table, *roles)
    numbers = adapted(run, site(tmp_path))
    words = site(tmp_path, lambda i, row: [*row[:-2], *(("False", "True")[v] for v in row[-2:])])
    assert not differ(adapted(run, words), numbers)


def test_values_that_are_filled_in_are_told_by_adapt_and_in_python(tmp_path, capsys):
    run = trained(tmp_path, patients(tmp_path), *SICK)
    data = site(tmp_path, lambda i, row: ["", *row[1:]] if i in (3, 5) else row)
    line = f"2 values filled in (age 2), the first: {data}: column 'age' has no value in row 4"
    capsys.readouterr()
    model = adapted(run, data)
    assert capsys.readouterr().out.splitlines()[-1] == f"warning: {line}"
    with pytest.warns(UserWarning, match="2 values filled in") as told:
        model.predict(data)
    assert [str(one.message) for one in told] == [line] and told[0].filename == __file__


def test_a_file_of_a_model_is_no_run_that_a_client_can_join(tmp_path, capsys):
    run = trained(tmp_path, patients(tmp_path), *SICK)
    adapted(run, site(tmp_path))
    model = (tmp_path / "site.safetensors").rename(run / "model.safetensors")
    assert main(["adapt", str(model), "--data", str(site(tmp_path))]) == 2
    assert f"{model}: is no run; give a run's folder" in capsys.readouterr().err


def test_labels_in_arrays_are_class_numbers_whatever_the_classes_are_called():
    names, y = ("1", "2", "3"), np.array([0, 2, 1])
    assert to_classes(y, names, "", numbered=True).tolist() == [0, 2, 1]
    assert to_classes(y.astype(float), ("left", "right", "up"), "", True).tolist() == [0, 2, 1]
    assert to_classes(y + 1, names, "").tolist() == [0, 2, 1]  # of a table, which has the names
    with pytest.raises(DataError, match="'3' in row 2 is no class of the run; these are 0, 1, 2"):
        to_classes(np.array([0, 3]), names, "y", numbered=True)
    words = np.array(["up", "left"], object)
    assert to_classes(words, ("left", "right", "up"), "", True).tolist() == [2, 0]
