"""The study of benchmarks/study: its plan is of jobs that hpcfed takes, and it resumes."""

import json
import sys
from argparse import Namespace

import numpy as np
import pytest

from hpcfed.config.load import load
from tests.mpirun import ROOT

sys.path.insert(0, str(ROOT / "benchmarks/study"))

import study
import studyplan
import studytables
from studyplan import PLAN, Task


def row(task, score, accuracy=0.5):
    """A row of a run, of which only the scores matter."""
    values = {"validation": score, "accuracy": [accuracy, accuracy], "received": [0.5, 0.5]}
    numbers = {"up": 0, "epochs": 1.0, "cpu": 7.2}
    return {**task._asdict(), "key": task.key, **values, **numbers}


@pytest.mark.parametrize("cell", ["dirichlet-five", "domains-one", "heart", "sentiment140"])
def test_each_method_of_a_cell_has_six_trials_that_hpcfed_takes(cell):
    for name in studyplan.methods_of(cell):
        tasks = studyplan.tuning(cell, name)
        assert len({task.flags for task in tasks}) == len(tasks) == 6
        job = load([str(studyplan.JOB), *tasks[-1].flags.split()], environ={})
        assert (job.algorithm.name, job.evaluate.validation) == (name, 0.2)
        if name not in ("local", "central"):
            assert "local" in studyplan.matched_fields(tasks[-1].flags)


def test_the_methods_for_different_models_are_those_of_the_registry():
    names = studyplan.methods_of("dirichlet-five")
    assert {"local", "fedclassavg", "fedmd", "fml", "fedtgp"} <= set(names)
    assert "fedavg" not in names
    assert "fedavg" in studyplan.methods_of("dirichlet-one")
    assert "pfedhr" not in studyplan.methods_of("classes-five")  # expensive


def test_seeds_and_matched_baselines_follow_the_best_trial():
    rows = {}

    def next_tasks():
        return list(studyplan.ready(rows, ["classes-five"], ["fedproto"], seeds=2))

    trials = next_tasks()
    assert [task.kind for task in trials] == ["trial"] * 6
    for i, task in enumerate(trials):
        rows[task.key] = row(task, score=0.3 if i == 4 else 0.1)
    tasks = next_tasks()
    assert [(task.kind, task.seed) for task in tasks] == [
        *(("seed", 0), ("matched", 0), ("seed", 1), ("matched", 1))
    ]
    assert {task.flags for task in tasks} == {trials[4].flags}
    matched = json.loads(studyplan.matched_fields(tasks[1].flags))
    assert matched["algorithm"]["name"] == "local"
    assert matched["local"]["lr"] == float(trials[4].flags.split("--local.lr ")[1].split()[0])
    rows[tasks[0].key] = row(tasks[0], 0.4)
    assert tasks[0] not in next_tasks()


def test_a_method_whose_trials_all_failed_is_not_run():
    rows = {task.key: {"failed": "the loss is nan"} for task in studyplan.tuning("heart", "fedavg")}
    assert list(studyplan.ready(rows, ["heart"], ["fedavg"])) == []


def test_the_worker_stops_after_its_hours_and_continues_with_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "KEPT", tmp_path)
    monkeypatch.setattr(studyplan, "KEPT", tmp_path)
    options = Namespace(cells=["heart"], methods=["local"], seeds=1, side_by_side=2, hours=1.0)

    def worker(hours):
        one = study.Worker(studyplan.read(["heart"]), Namespace(**vars(options) | {"hours": hours}))
        one.measure = lambda task: row(task, 0.5)
        one.cost = {("heart", "local"): 1800.0}
        return one

    worker(hours=1.0).work()  # two runs of half an hour
    assert len(studyplan.read(["heart"])) == 2
    worker(hours=9.0).work()
    rows = studyplan.read(["heart"])
    assert sorted(one["kind"] for one in rows.values()) == ["seed", *["trial"] * 6]
    assert len((tmp_path / "heart.jsonl").read_text().splitlines()) == 7


def test_a_run_that_ends_without_a_row_is_tried_once_per_call(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "KEPT", tmp_path)
    options = Namespace(cells=["heart"], methods=["local"], seeds=1, side_by_side=2, hours=9.0)
    worker, tried = study.Worker({}, options), []
    worker.cost = {("heart", "local"): 1800.0}
    worker.measure = lambda task: tried.append(task.key)
    worker.work()
    assert len(tried) == len(set(tried)) == 6  # the trials of local training


def test_hours_are_those_of_the_missing_runs():
    rows = {}
    before = studyplan.hours(rows, ["heart"])["heart"]
    for name in studyplan.methods_of("heart"):
        for task in studyplan.tuning("heart", name):
            rows[task.key] = row(task, 0.5)
    assert 0 < studyplan.hours(rows, ["heart"])["heart"] < before


def test_differences_are_paired_by_client_and_clustered_by_seed():
    ours, base = (
        {s: {"accuracy": values} for s, values in enumerate(runs)}
        for runs in (
            [[0.5, 0.7, None], [0.6, 0.6, 0.9], [0.4, 0.8, 0.6]],
            [[0.4, 0.5, 0.2], [0.6, 0.4, 0.6], [0.3, 0.6, None]],
        )
    )
    one = studytables.difference(ours, base)
    np.testing.assert_allclose(one.seeds, [0.15, 0.5 / 3, 0.15])
    assert len(one.clients) == 7
    low, high = one.interval
    assert low < one.seeds.mean() < high
    assert one.p == 0.25  # of three seeds of one sign
    assert studytables.difference(ours, {7: {"accuracy": [0.1]}}) is None


def test_the_critical_difference_is_that_of_demsar_s_example():
    assert studytables.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_tables_and_ranks_are_made_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(studytables, "KEPT", tmp_path)
    rows = {}
    for cell in ("heart", "heart-different"):
        for i, name in enumerate(studyplan.methods_of(cell)[:4]):
            for task in studyplan.tuning(cell, name):
                rows[task.key] = row(task, 0.5)
            for task in studyplan.final(cell, name, studyplan.chosen(cell, name, rows)):
                rows[task.key] = row(task, 0.5, accuracy=0.5 + 0.01 * i)
    studytables.write(rows)
    text = (tmp_path / "table.md").read_text()
    assert text.count("| local (5) | 0.500 |") == 2
    assert "| fedavg (5) | 0.510 |" in text


def test_the_key_of_a_run_is_its_job_and_seed():
    one = Task("heart", "fedavg", "seed", 0, "--algorithm.name fedavg")
    assert one.key != one._replace(seed=1).key
    assert one.key == one._replace(kind="trial").key
    assert one.key != one._replace(flags="--algorithm.name fedprox").key
    assert PLAN["seeds"] == [0, 1, 2, 3, 4]
