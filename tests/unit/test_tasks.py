"""Tasks of users' data: what is inferred, named, refused, and read from tables and arrays."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

from hpcfed.config.load import load as load_job
from hpcfed.config.sections import Columns, Data
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data.dataset import Reading, from_arrays, to_arrays
from hpcfed.data.datasets import load
from hpcfed.data.partition import split
from hpcfed.engine.checks import check_classes
from hpcfed.results.columns import best_mean, format_deviation, format_metric
from hpcfed.tasks import METRICS, TASKS, from_facts, infer, make
from hpcfed.tasks.binary import Binary
from hpcfed.tasks.classification import Classification

pytestmark = pytest.mark.quick
HEAD = ["city", "area", "price", "rent", "sea", "park"]
ROWS = [[f"c{i % 3}", i, 1000.5 * i, 7 - i / 4, i % 2, int(i < 9)] for i in range(20)]


def table(path: Path, rows: list = ROWS) -> str:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([HEAD, *rows])
    return str(path)


def read(name: str, task: str = "", **columns: object):
    return load(name, Path(), how=Reading(columns=Columns(client="city", **columns), task=task))


def arrays(path: Path, y: np.ndarray, **more: np.ndarray) -> str:
    x = np.arange(2.0 * len(y)).reshape(-1, 2)
    np.savez(path, x_train=x, y_train=y, **more)
    return str(path)


def plain(name: str, task: str = ""):
    return load(name, Path(), how=Reading(task=task))


@pytest.mark.parametrize("targets", [("price",), ("price", "rent")])
def test_columns_of_targets_are_regression(tmp_path: Path, targets: tuple[str, ...]):
    ignored = tuple({"rent", "sea", "park"} - {*targets})
    data = read(table(tmp_path / "a.csv"), target=targets, ignore=ignored)
    assert (data.task.name, data.classes) == ("regression", targets)
    assert data.train.y.shape == (16, len(targets)) and data.train.y.dtype == np.float32
    np.testing.assert_allclose(data.train.y.mean(0), 0, atol=1e-6)
    both = np.concatenate([data.train.y, data.test.y]) * data.task.std + data.task.mean
    np.testing.assert_allclose(np.sort(both[:, 0]), [row[2] for row in ROWS], rtol=1e-6, atol=0.01)
    assert "price: target" in data.columns and "rent: " in " ".join(data.columns)
    again = from_arrays(to_arrays(data))
    assert again.task == data.task and np.array_equal(again.train.y, data.train.y)


def test_columns_of_labels_are_multilabel(tmp_path: Path):
    data = read(table(tmp_path / "a.csv"), labels=("sea", "park"), ignore=("price", "rent"))
    assert (data.task.name, data.classes) == ("multilabel", ("sea", "park"))
    assert sorted(set(data.train.y.ravel().tolist())) == [0, 1]
    assert data.task.counts(data.train.y, 2).sum() == data.train.y.sum()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": "price"}, "columns.target = 'price'"),
        ({"target": ("city2",)}, "columns.target: no column 'city2'; did you mean 'city'"),
        ({"labels": ("rent",)}, "value 7.0 .*a label is 1 .there. or 0"),
        ({"target": ("price",), "event": "sea"}, "columns.event .*columns.target .* different ta"),
        ({"target": ("price",), "label": "sea"}, "columns.label has no effect beside columns.targ"),
        ({"target": ("price",), "inputs": ("price",)}, "'price' is an input"),
    ],
)
def test_columns_that_contradict_each_other_or_their_task_are_refused(
    tmp_path: Path, columns: dict, message: str
):
    with pytest.raises(DataError, match=message):
        read(table(tmp_path / "a.csv"), **columns)


def test_words_among_targets_are_refused_with_their_row(tmp_path: Path):
    rows = [list(row) for row in ROWS]
    rows[4][2] = "much"
    with pytest.raises(
        DataError, match="'price': 'much' in row 5 is not a number, as numbers to pre"
    ):
        read(table(tmp_path / "a.csv", rows), target=("price",))


def test_fractions_are_inferred_and_several_columns_are_asked_about(tmp_path: Path):
    y = np.linspace(0.1, 9.3, 20)
    assert plain(arrays(tmp_path / "a.npz", y)).task.name == "regression"
    assert plain(arrays(tmp_path / "b.npz", y[:, None])).task.name == "regression"
    assert plain(arrays(tmp_path / "c.npz", np.arange(20) % 3)).task.name == "classification"
    two = arrays(tmp_path / "d.npz", np.stack([y, y > 4], 1))
    with pytest.raises(DataError, match="survival times .'survival'. or numbers to predict .'regr"):
        plain(two)
    assert plain(two, "regression").train.y.shape == (16, 2)
    assert plain(two, "survival").train.y.shape == (16, 2)
    with pytest.raises(DataError, match="value 0.1.* a label is 1"):
        plain(two, "multilabel")


def test_integers_are_targets_if_the_job_says_so(tmp_path: Path):
    name = arrays(tmp_path / "a.npz", np.arange(20) * 1000)
    with pytest.raises(DataError, match="for numbers to predict set data.task = 'regression'"):
        plain(name)
    assert plain(name, "regression").task.name == "regression"


def test_a_file_names_its_task_and_a_job_may_not_name_another(tmp_path: Path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["train/images"] = np.zeros((20, 8, 8), np.uint8)
        file["train/labels"] = np.arange(40).reshape(20, 2) % 2
        file.attrs["task"] = "multilabel"
    assert plain(str(path)).classes == ("0", "1")
    with pytest.raises(DataError, match="the file .multilabel. and data.task .* name different ta"):
        plain(str(path), "regression")
    with pytest.raises(ConfigError, match="the labels of digits are 10 classes .classification."):
        load("digits", Path("data"), how=Reading(task="regression"))


def test_an_unknown_task_is_refused_with_the_nearest(tmp_path: Path):
    with pytest.raises(ConfigError, match="no task 'regresion'; did you mean 'regression'"):
        plain(arrays(tmp_path / "a.npz", np.arange(20) % 2), "regresion")


def test_targets_that_are_no_finite_numbers_are_refused():
    for y, message in (([[1.0], [np.inf]], "value inf"), ([["a"], ["b"]], "holds no targets")):
        with pytest.raises(DataError, match=message):
            make("regression").check(np.array(y), 2, "here")


@pytest.mark.parametrize("scheme", ["iid", "quantity", "linear"])
def test_partitions_without_classes_share_out_targets(tmp_path: Path, scheme: str):
    data = read(table(tmp_path / "a.csv"), target=("price",))
    part = split(data, Data(partition=scheme, test_share=1.0), 3, seed=0)
    assert sum(part.sizes) == 16 and min(part.test_sizes) > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"partition": "dirichlet"},
        {"partition": "classes"},
        {"partition": "shards"},
        {"partition": "iid", "imbalance": 10.0},
        {"partition": "iid", "sort_clients": True},
    ],
)
def test_partitions_by_class_refuse_targets(tmp_path: Path, fields: dict):
    data = read(table(tmp_path / "a.csv"), target=("price",))
    with pytest.raises(ConfigError, match="goes by class, but a has a number to predict"):
        split(data, Data(**fields), 3, seed=0)
    assert split(data, Data(partition="natural"), 3, seed=0).sizes


def test_the_direction_and_the_format_of_a_metric_follow_from_it():
    assert best_mean("mse", [3.0, None, 1.0, 1.0]) == 2 and best_mean("r2", [3.0, None, 1.0]) == 0
    assert best_mean("mse", [None]) is None
    shown = [format_metric("mse", v) for v in (0.0123456, 12.3456, 35210.4, 6.4828e8)]
    assert shown == ["0.01235", "12.35", "35,210", "6.483e+08"]
    shown = [format_metric("mse", v) for v in (9999.4, 9999.5, 999.96, 1e6, 0.5, 3e-6, 3e-8)]
    assert shown == ["9,999", "10,000", "1,000", "1,000,000", "0.5000", "0.000003000", "3.000e-08"]
    assert format_deviation("mse", 1.617, 2.7e-16) == "1.617 ± 0.000"
    assert format_deviation("accuracy", 0.82821, 0.011) == "0.8282 ± 0.0110"
    assert format_metric("r2", -0.5) == "-0.5000" and format_metric("mse", None) == "-"


def test_metrics_of_several_tasks_have_one_name_for_one_thing():
    for entry in TASKS.values():
        task = entry.load()()
        assert set(task.usual) <= task.metrics.keys() <= METRICS.keys()
        for name, metric in task.metrics.items():
            other = METRICS[name]
            assert (metric.title, metric.line, metric.high, metric.share) == (
                *(other.title, other.line),
                *(other.high, other.share),
            )
        assert make(task.name) == task


def test_labels_of_one_column_are_classes_only_if_they_are_mostly_integers():
    assert infer(np.array([0, 1.0, 2, 0.5]), "y").name == "classification"
    with pytest.raises(DataError, match="whole number"):
        infer(np.array([0, 1.0, 2, 0.5]), "y").check(np.array([0, 1.0, 2, 0.5]), 4, "y")


class Ordinal(Classification):
    """Ordered classes: kappa is measured, and the loss is a squared distance."""

    name = "ordinal"
    usual = ("kappa",)

    def loss(self, output, y):
        mean = output.softmax(1) @ torch.arange(output.shape[1]).to(output)
        return ((mean - y) ** 2).mean()


def test_a_task_derived_from_classification_is_scored_by_its_own_metric_and_loss():
    logits = torch.full((4, 3), -50.0)
    logits[range(4), [0, 1, 2, 2]] = 50.0
    y = torch.tensor([0, 1, 2, 0])
    kappa, loss, _, answers = Ordinal().score([(logits[:1], y[:1]), (logits[1:], y[1:])], ())
    assert kappa == pytest.approx((3 / 4 - 5 / 16) / (1 - 5 / 16))
    assert loss == pytest.approx(1.0)  # one of four is wrong, by 2
    assert answers["predicted"].tolist() == [0, 1, 2, 2] and answers["y"].dtype == np.uint8


def test_what_a_derived_task_has_measured_is_in_its_facts_and_how_a_client_trains_is_not():
    @dataclass(frozen=True)
    class Thresholds(Ordinal):
        thresholds: tuple[float, ...] = ()

    facts = Thresholds(focal=2.0, thresholds=(0.5, 1.5)).facts()
    assert facts == {"name": "ordinal", "thresholds": (0.5, 1.5)}


@pytest.mark.parametrize("flags", [("--local.class_weights", "client"), ("--local.focal", "2")])
def test_weights_of_classes_are_refused_beside_a_tasks_own_loss(flags, monkeypatch):
    job = load_job(["--algorithm.name", "local", *flags], environ={})
    data = SimpleNamespace(task=Ordinal(), classes=("low", "high"), name="steps.csv")
    with pytest.raises(
        ConfigError, match=f"{flags[0][2:]} weighs cross-entropy, but task 'ordinal'"
    ):
        check_classes(job, data)
    check_classes(job, SimpleNamespace(task=Binary(), classes=("low", "high"), name="two.csv"))


@pytest.mark.parametrize(
    "facts", [{}, {"name": "guess"}, {"name": "regression", "mean": 3}, {"name": "binary", "k": []}]
)
def test_facts_of_no_task_are_refused(facts: dict):
    with pytest.raises(ConfigError, match="task"):
        from_facts(facts)
    fitted = make("regression").fit(np.array([[1.0], [3.0]]), np.zeros((0, 1)))[0]
    assert from_facts(json.loads(json.dumps(fitted.facts()))) == fitted
