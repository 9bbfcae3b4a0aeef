"""Runs on numbers and on several labels, as readers have them: trained models, tables, choices."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.core.errors import ConfigError
from hpcfed.report.choose import choose_values
from hpcfed.report.compare import compare
from hpcfed.report.figures.models import load_labelled, load_probe
from hpcfed.report.table import table
from hpcfed.results.export import export
from hpcfed.results.summary import facts
from hpcfed.tasks import from_facts, make
from tests.contract import toy
from tests.contract.models import load, saved_run, with_tests
from tests.contract.test_contract_tasks import TASKS, file


def run(folder: Path, task: str, method: str = "local", *flags: str) -> Path:
    words = ("--data.name", str(file(task)), "--models.mix", "mlp", "--rounds", "2")
    return saved_run(folder, method, *words, *flags)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_saved_model_predicts_what_was_scored_in_the_units_of_the_data(
    task: str, method: str, tmp_path: Path
):
    folder = run(tmp_path / "run", task, method)
    record, parts = load(folder), toy.partition(np.arange(96) % toy.CLASSES).test
    main = make(task).main
    with h5py.File(file(task)) as data:
        x, y = data["test/images"][:], data["test/labels"][:]
    for k in with_tests():
        model = hpcfed.load_model(folder, client=k)
        recorded = record.column(model.about.counted)[1][k]
        with torch.no_grad():
            output = model(torch.from_numpy(x[parts[k]][:, None] if x.ndim == 3 else x[parts[k]]))
        if task == "regression":
            mse = np.square(output.numpy() - y[parts[k]]).mean()
        else:
            answers = {"y": y[parts[k]].astype(np.uint8), "score": output.numpy()}
            mse = from_facts(model.about.task).compute([main], answers)[0]
        assert model.about.counted.startswith(f"clients/{main}")
        assert mse == pytest.approx(recorded, rel=1e-4, nan_ok=True)


def test_tables_and_comparisons_know_that_a_lower_error_is_better(tmp_path: Path):
    runs = [run(tmp_path / name, "regression", name) for name in ("local", "fedavg")]
    lines = [line.split() for line in table(runs, value="before").splitlines()]
    errors = [facts(load(one))["mse"]["before"]["mean"] for one in runs]
    winner = ("Local", "FedAvg")[int(np.argmin(errors))]
    assert [line[0] for line in lines if line and line[-1] == "*"] == [winner]
    counts = compare(runs, format="csv").splitlines()[1].split(",")[-3:-1]  # better, worse
    each = [hpcfed.load(one).metric("mse")[-1] for one in runs]
    wins = np.nansum(each[1] < each[0]), np.nansum(each[1] > each[0])
    assert tuple(map(int, counts)) == wins
    best = facts(load(runs[0]))["best"]
    means = np.nanmean(hpcfed.load(runs[0]).metric("mse"), 1)
    assert best["mean"] == pytest.approx(means.min()) and best["round"] == means.argmin() + 1


def test_values_are_chosen_by_the_lowest_validation_error(tmp_path: Path):
    words, rates = ("--evaluate.validation", "0.3"), ("0.00001", "0.01")
    runs = [run(tmp_path / r, "regression", "local", "--local.lr", r, *words) for r in rates]
    best, notes = choose_values([hpcfed.load(one) for one in runs], ["local.lr"])
    assert len(best) == 1 and "validation MSE" in notes[0] and "local.lr = 0.01" in notes[1]


def test_a_probe_of_numbers_has_representations_and_no_classes(tmp_path: Path):
    one = hpcfed.load(run(tmp_path / "run", "regression"))
    probe = load_probe(one, "cka")
    assert probe.cka.shape[1:] == (6, 6) and not len(probe.labels)
    with pytest.raises(ConfigError, match="confusion: .* its labels are not classes"):
        load_labelled(one, "confusion")


def test_an_export_has_the_main_metric_and_no_label_counts(tmp_path: Path):
    folder = run(tmp_path / "run", "regression")
    export(folder, out=tmp_path / "out")
    head = (tmp_path / "out" / "rounds.csv").read_text().splitlines()[0].split(",")
    assert {"mse", "mse_std", "mae", "r2", "mse_pooled"} <= {*head} and "accuracy" not in head
    assert hpcfed.load(folder).label_counts is None
