"""evaluate.groups: each metric by group of the test examples, with intervals."""

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hpcfed.comm import Serial
from hpcfed.config.load import load as load_job
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.group_metrics import DRAWS, group_metrics, interval
from hpcfed.main import main
from hpcfed.report.measures import measure
from hpcfed.report.page.methods import by_group
from hpcfed.report.table import table
from hpcfed.results.groups import group_values
from hpcfed.results.run import find
from hpcfed.results.summary import facts, group_tables
from hpcfed.storage.record import load as load_record
from hpcfed.tasks import make
from tests import saving
from tests.contract import toy
from tests.threads import spmd

BINARY = make("binary")


@cache
def two_hospitals() -> Path:
    """Patients of two hospitals; men are sick more often; in one row in forty no sex is given."""
    g = np.random.default_rng(0)
    path = toy.folder() / "two.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["hospital", "sex", "age", "diagnosis"])
        for i in range(320):
            sex, age = "FM"[int(g.integers(2))], float(g.normal(60, 10))
            sick = (age - 60) / 10 + (sex == "M") + g.normal() > 1
            rows.writerow(["ns"[i % 2], "" if i % 40 == 9 else sex, f"{age:.1f}", "hs"[int(sick)]])
    return path


def flags(*more: str) -> list[str]:
    data = ["--data.name", str(two_hospitals()), "--columns.label", "diagnosis", *more]
    roles = ["--columns.positive", "s", "--columns.client", "hospital", "--columns.ignore", "sex"]
    method = ["--algorithm.name", "fedavg", "--models.mix", "mlp", "--rounds", "2"]
    return [*data, *roles, *method, "--data.partition", "natural", "--clients", "2"]


@cache
def run() -> Path:
    out = toy.folder() / "groups"
    measured = ("--evaluate.groups", "sex", "--evaluate.metrics", "roc_auc,brier,ece")
    assert main([*flags(*measured), "--quiet", "--out", str(out), "--overwrite"]) == 0
    return out


def answers(n: int = 200) -> dict[str, np.ndarray]:
    g = np.random.default_rng(1)
    y, margin = g.integers(0, 2, n), g.normal(size=n).astype(np.float32)
    columns = {"y": y.astype(np.uint8), "predicted": (margin > 0).astype(np.uint8)}
    return columns | {"margin": margin, "group": (np.arange(n) % 3).astype(np.uint8)}


def test_metrics_of_a_group_are_those_of_its_examples_alone():
    from sklearn.metrics import roc_auc_score

    scored = answers()
    columns = group_metrics(BINARY, ("accuracy", "roc_auc"), scored, 3, seed=0)
    for i in range(3):
        y, margin = (scored[name][scored["group"] == i] for name in ("y", "margin"))
        assert columns["accuracy"][i] == pytest.approx(((margin > 0) == y).mean(), abs=1e-12)
        assert columns["roc_auc"][i] == pytest.approx(roc_auc_score(y, margin), abs=1e-12)
        assert columns["examples"][i] == len(y)
        for name in ("accuracy", "roc_auc"):
            assert columns[f"{name}_low"][i] < columns[name][i] < columns[f"{name}_high"][i]


def test_an_interval_is_of_percentiles_of_samples_with_replacement():
    scored, n = answers(60), 60
    g, right = rng.stream(0, "groups", "accuracy"), scored["y"] == scored["predicted"]
    samples = [right[g.integers(0, n, n)].mean() for _ in range(DRAWS)]
    want = np.quantile(samples, [0.025, 0.975])
    got = interval(BINARY, "accuracy", scored, rng.stream(0, "groups", "accuracy"))
    assert got == pytest.approx(tuple(want), abs=1e-12)


def test_a_group_in_which_a_metric_is_not_defined_has_nan():
    scored = answers() | {"y": np.zeros(200, np.uint8)}
    columns = group_metrics(BINARY, ("roc_auc",), scored, 4, seed=0)
    assert np.isnan(columns["roc_auc"]).all() and np.isnan(columns["roc_auc_low"]).all()
    assert columns["examples"].tolist() == [67, 67, 66, 0]


def test_ranks_and_a_stop_change_no_number_of_a_group(tmp_path: Path):
    words = flags("--evaluate.groups", "sex", "--evaluate.metrics", "accuracy,brier")
    going = load_job(words, environ={})
    ends = []

    def note(rounds) -> None:
        ends.append(rounds.evaluation.metrics.closing())

    toy.run(Serial(), going, between=note)
    want = ends[-1]
    assert want["groups/accuracy"].shape == (3,) and want["groups/examples"].sum() == 64
    spmd(2, lambda comm: toy.run(comm, going, rounds=1, save=tmp_path))
    spmd(3, lambda comm: toy.run(comm, going, resume=tmp_path, between=note))
    for got in ends[-3:]:
        assert {n: v.tolist() for n, v in got.items()} == {n: v.tolist() for n, v in want.items()}


def test_a_run_that_continues_after_its_last_round_has_the_scores_of_received_models(
    tmp_path: Path,
):
    words = flags("--evaluate.groups", "sex", "--evaluate.metrics", "accuracy,ece")
    job = load_job([*words, "--evaluate.received", "true"], environ={})
    unbroken = toy.start(Serial(), job)
    while not unbroken.over:
        unbroken.step()
    saving.save(unbroken, tmp_path)
    unbroken.finish()
    want = unbroken.evaluation.metrics.closing()
    assert {"groups_received/accuracy", "reliability_received", "answered_received"} <= want.keys()

    continued = toy.start(Serial(), job)
    restore(continued, tmp_path)
    continued.finish()
    assert toy.differences(continued.evaluation.metrics.closing(), want) == []


def test_results_summary_table_and_page_show_the_groups():
    record = load_record(run())
    values = {(one.metric, one.group): one for one in group_values(record)}
    women = values["accuracy", "F"]
    assert [group for metric, group in values if metric == "ece"] == ["F", "M", "no value"]
    assert 0 <= women.low <= women.value <= women.high <= 1
    assert facts(record)["groups"]["received"]["brier"]["M"]["examples"] > 0
    assert len(group_tables(record)) == 2
    accuracy = [values["accuracy", group].value for group in ("F", "M", "no value")]
    assert measure("group:F").of(record) == (women.value, None)
    assert measure("worst_group").of(record)[0] == min(accuracy)
    assert measure("group_gap", "brier").high is False
    assert measure("received_group:X").of(record) == (None, None)
    assert f"{women.value:.4f}" in table([run()], value="group:F")
    with pytest.raises(ConfigError, match="no group 'Nope'\n  valid: F, M, no value"):
        table([run()], value="received_group:Nope")
    caption, lines = by_group(find([run()]))[0]
    assert caption == "By sex: F, M, no value" and lines[0] == ["metric", "F", "M", "no value"]
    assert lines[1] == ["accuracy", *(values["accuracy", g].text for g in lines[0][1:])]


def test_groups_are_of_test_examples_and_change_nothing_else(tmp_path: Path):
    out = tmp_path / "plain"
    measured = ("--evaluate.metrics", "roc_auc,brier,ece")
    assert main([*flags(*measured), "--quiet", "--out", str(out)]) == 0
    plain, grouped = load_record(out), load_record(run())
    assert plain.columns.keys() == grouped.columns.keys()
    for name in ("clients/accuracy", "clients/roc_auc", "rounds/brier_pooled"):
        np.testing.assert_array_equal(plain.columns[name], grouped.columns[name])
    assert not [name for name in plain.arrays if name.startswith("groups")]


def test_a_column_that_is_not_there_or_no_category_is_refused():
    for column, message in (("sx", "did you mean 'sex'"), ("age", "groups are at most 20")):
        with pytest.raises(DataError, match=f"evaluate.groups: (.|\\n)*{message}"):
            toy.start(Serial(), load_job(flags("--evaluate.groups", column), environ={}))
    with pytest.raises(ConfigError, match="evaluate.groups = 'sex': (.|\\n)* is no table"):
        toy.start(Serial(), toy.given("fedavg", "--evaluate.groups", "sex"))
