"""The study of benchmarks/study: its plan is of jobs that hpcfed takes, and it resumes."""

import json
import sys
from argparse import Namespace

import numpy as np
import pytest

from hpcfed.config.load import load
from hpcfed.report.differences import Paired
from tests.mpirun import ROOT
from tests.shared import shared

sys.path.insert(0, str(ROOT / "benchmarks/study"))

import study
import studycost
import studyplan
import studytables
from studyplan import PLAN, Task


def row(task, score, accuracy=0.5):
    """A row of a run, of which only the scores matter."""
    values = {"validation": score, "accuracy": [accuracy, accuracy], "received": [0.5, 0.5]}
    numbers = {"up": 0, "epochs": 1.0, "virtual": 60.0, "cpu": 7.2}
    return {**task._asdict(), "key": task.key, **values, **numbers}


@pytest.mark.parametrize("cell", ["dirichlet-five", "domains-one", "heart"])
def test_each_method_of_a_cell_has_six_trials_that_hpcfed_takes(cell):
    for name in studyplan.methods_of(cell):
        tasks = list(studyplan.tuning(cell, name).values())
        assert len({task.flags for task in tasks}) == len(tasks) == 6
        job = load([str(studyplan.JOB), *tasks[-1].flags.split()], environ={})
        assert (job.algorithm.name, job.evaluate.validation, job.rounds) == (name, 0.2, 10)
        if name not in ("local", "central"):
            matched = json.loads(studyplan.matched_fields(tasks[-1].flags))
            assert matched["algorithm"]["name"] in ("local", name)


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
    best = trials[4].flags.removesuffix(f" {PLAN['of_trials']}")
    assert {task.flags for task in tasks} == {best}
    matched = json.loads(studyplan.matched_fields(tasks[1].flags))
    assert matched["algorithm"]["name"] == "local"
    assert matched["local"]["lr"] == float(trials[4].flags.split("--local.lr ")[1].split()[0])
    rows[tasks[0].key] = row(tasks[0], 0.4)
    assert tasks[0] not in next_tasks()


def decide(cell, name, rows):
    """Add rows of all trials of a method; returns the chosen flags."""
    rows |= {task.key: row(task, 0.5) for task in studyplan.tuning(cell, name).values()}
    return studyplan.chosen(cell, name, rows)


def test_every_method_gets_all_seeds():
    rows = {}
    decide("heart", "fedavg", rows)

    def seeds_of(number):
        return {task.seed for task in studyplan.ready(rows, ["heart"], ["fedavg"], seeds=number)}

    assert seeds_of(0) == {0, 1, 2, 3, 4}
    assert seeds_of(3) == {0, 1, 2}


def test_rows_that_no_run_of_the_plan_has_are_dropped(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PLAN, "results", tmp_path)
    monkeypatch.setattr(studyplan, "methods_of", lambda cell: ["local", "fedavg"])
    rows = {}
    tuned = decide("heart", "local", rows)
    earlier = Task("heart", "fedavg", "matched", 0, f"{tuned} --rounds 3")
    stale = rows | {earlier.key: row(earlier, 0.5)}
    assert studyplan.obsolete("heart", stale) == set()  # fedavg is not tuned
    flags = decide("heart", "fedavg", rows)
    run = Task("heart", "fedavg", "matched", 3, flags)
    rows |= {one.key: row(one, 0.5) for one in (earlier, run)}
    study.rowfiles.write(studyplan.rows_of("heart"), rows.values())
    study.drop(["heart"])
    assert capsys.readouterr().out == "heart: 1 rows removed: fedavg matched\n"
    assert studyplan.read(["heart"]).keys() == rows.keys() - {earlier.key}


def test_baselines_with_the_same_job_are_run_once_with_local_training():
    rows = {}
    for name in ("local", "fedavg", "fedper"):
        decide("heart", name, rows)
    names = ["local", "fedavg", "fedper"]
    tasks = [(task.method, task.kind) for task in studyplan.ready(rows, ["heart"], names)]
    assert tasks == [(name, "seed") for name in names for _ in range(5)]


def test_a_method_whose_trials_all_failed_is_not_run():
    trials = studyplan.tuning("heart", "fedavg").values()
    rows = {task.key: {"failed": "the loss is nan"} for task in trials}
    assert list(studyplan.ready(rows, ["heart"], ["fedavg"])) == []


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A function that works for some hours on runs of half an hour, and returns their tasks.

    leaves: whether a run leaves a row.
    """
    monkeypatch.setitem(PLAN, "results", tmp_path)
    monkeypatch.setattr(study, "PLACE", tmp_path / "runs")
    monkeypatch.setattr(study.forks, "stop_on_signals", lambda running, folder_of: None)

    def work(hours, leaves=True):
        started, tasks = [], []

        def start(words, folder):
            started.append(len(started))
            return started[-1]

        def finish(task, status, seconds):
            tasks.append(task)
            return row(task, 0.5) if leaves else None

        waiting = iter(range(1000))
        monkeypatch.setattr(study.forks, "start", start)
        monkeypatch.setattr(study.forks, "wait", lambda: (next(waiting), 0, 1800.0))
        monkeypatch.setattr(study, "finish", finish)
        study.work(
            Namespace(cells=["heart"], methods=["local"], seeds=1, side_by_side=2, hours=hours)
        )
        return tasks

    return work


def test_the_worker_stops_after_its_hours_and_continues_with_what_is_missing(worker, tmp_path):
    assert len(worker(hours=1.0)) == 3  # the third was running when the hour was spent
    assert len(worker(hours=9.0)) == 4
    rows = studyplan.read(["heart"])
    assert sorted(one["kind"] for one in rows.values()) == ["seed", *["trial"] * 6]
    assert len(study.rowfiles.read(tmp_path / "heart.jsonl.xz")) == 7


def test_a_run_that_ends_without_a_row_is_tried_once_per_call(worker):
    tasks = worker(hours=9.0, leaves=False)
    assert len({task.key for task in tasks}) == len(tasks) == 6  # the trials of local training


def test_a_run_is_a_fork_that_leaves_a_row_or_says_why_it_failed(tmp_path, monkeypatch):
    data = shared("heart_disease.h5").parent
    monkeypatch.setattr(study, "PLACE", tmp_path)
    task = next(iter(studyplan.tuning("heart", "local").values()))

    def run(*flags):
        process = study.forks.start([*study.write_job(task, tmp_path), *flags], tmp_path / task.key)
        ended, status, seconds = study.forks.wait()
        assert ended == process
        return study.finish(task, status, seconds)

    done = run("--rounds", "5", "--data.root", str(data))
    assert done["cpu"] > 0
    assert (done["round"], done["epochs"]) == (4, 5.0)
    assert 0 < done["validation"] <= 1
    steep = ("--local.optimiser", "sgd", "--local.lr", "1e39")
    diverged = run(*steep, "--rounds", "2", "--data.root", str(data))
    assert "nan" in diverged["failed"] and "accuracy" not in diverged
    assert run("--no-such-field", "1")["failed"].startswith("hpcfed: command line: no field 'such")
    assert not list(tmp_path.iterdir())


def test_hours_are_those_of_the_missing_runs(monkeypatch):
    seconds = {name: {"heart": [3.0, 5.0]} for name in studyplan.methods_of("heart")}
    monkeypatch.setattr(studycost, "stored", lambda: seconds)
    rows = {}
    before = studycost.hours(rows, "heart")
    assert studycost.hours(rows, "heart", seeds=3) < before
    assert studycost.hours(rows, "heart", ["fedavg"]) < before
    for name in studyplan.methods_of("heart"):
        decide("heart", name, rows)
    assert 0 < studycost.hours(rows, "heart") < before


def test_seconds_are_split_into_what_is_paid_once_and_per_round():
    assert studycost.once_and_per_round([3.0, 5.0]) == [2.0, 0.5]  # of 2 rounds and of 6
    measured = {
        "local": {"dirichlet-five": [2.0, 0.5], "heart": [1.0, 0.1]},
        "fedmd": {"dirichlet-five": [3.0, 1.0]},
    }
    assert studycost.estimate(measured, "dirichlet-five", "local", 30) == 17.0
    # once 3 s; rounds twice those of local training
    assert studycost.estimate(measured, "heart", "fedmd", 30) == pytest.approx(3 + 30 * 0.2)
    with pytest.raises(SystemExit, match="no seconds of fd or of local training in heart"):
        studycost.estimate(measured, "heart", "fd", 30)


def test_differences_are_paired_by_client_and_clustered_by_seed():
    ours, base = (
        {s: {"accuracy": values} for s, values in enumerate(runs)}
        for runs in (
            [[0.5, 0.7, None], [0.6, 0.6, 0.9], [0.4, 0.8, 0.6]],
            [[0.4, 0.5, 0.2], [0.6, 0.4, 0.6], [0.3, 0.6, None]],
        )
    )
    one = studyplan.difference(ours, base)
    np.testing.assert_allclose(one.seeds, [0.15, 0.5 / 3, 0.15])
    assert len(one.clients) == 7
    low, high = one.interval
    assert low < one.seeds.mean() < high
    assert studyplan.difference(ours, {7: {"accuracy": [0.1]}}) is None


def fill(cells, methods, rows):
    """Rows of these methods in these cells, each a hundredth more accurate than the one before."""
    for cell in cells:
        for i, name in enumerate(methods):
            for task in studyplan.final(cell, name, decide(cell, name, rows), PLAN["seeds"]):
                rows.setdefault(task.key, row(task, 0.5, accuracy=0.5 + 0.01 * i))


def tables(rows, tmp_path, monkeypatch):
    monkeypatch.setitem(PLAN, "results", tmp_path)
    studytables.write(rows)
    return (tmp_path / "table.md").read_text()


def test_tables_are_made_of_rows(tmp_path, monkeypatch):
    rows = {}
    fill(["heart", "domains-one", "classes-one"], ["local", "fedavg", "central", "fedrep"], rows)
    text = tables(rows, tmp_path, monkeypatch)
    assert text.count("| local (5) | 0.500 |") == 3
    assert "0 of 12 cells are complete" in text and "\nSo far without all runs of fedper, " in text
    assert "| fedavg (5) | 0.510 |" in text
    assert "\n| method | domains-one | classes-one |\n" in text  # heart counts in no verdict
    assert "**fedrep helps** in 2 of 2 cells: +0.020" not in text  # the same in all seeds
    assert not (tmp_path / "ranks.png").exists()


def test_accuracies_are_of_the_seeds_that_all_methods_have(tmp_path, monkeypatch):
    rows = {}
    fill(["domains-one"], ["local", "fedavg"], rows)
    for key in [key for key, one in rows.items() if one["kind"] == "seed" and one["seed"] > 2]:
        if rows[key]["method"] == "fedavg":
            del rows[key]
        else:
            rows[key]["accuracy"] = [0.9, 0.9]
    text = tables(rows, tmp_path, monkeypatch)
    assert "Accuracies are means over seeds 0, 1, 2.\n" in text
    assert text.index("| fedavg (3) | 0.510 |") < text.index("| local (5) | 0.500 |")


def test_failed_methods_and_missing_baselines_are_named(monkeypatch):
    names, cell, rows = ["local", "fedavg", "fedrep", "fedper", "ditto"], "domains-one", {}
    monkeypatch.setattr(studytables, "methods_of", lambda cell: names)
    fill([cell], names, rows)
    assert studytables.missing(cell, rows) == [] and studytables.failures(cell, rows) == {}

    def runs(name, kind):
        flags = studyplan.chosen(cell, name, rows)
        tasks = studyplan.final(cell, name, flags, PLAN["seeds"])
        return [task for task in tasks if task.kind == kind]

    del rows[runs("fedrep", "matched")[4].key]  # fedrep's own
    assert studytables.missing(cell, rows) == ["fedrep"]
    rows[runs("ditto", "seed")[1].key] = {"failed": "the loss is nan"}
    for task in studyplan.tuning(cell, "fedper").values():
        rows[task.key] = {"failed": "no field 'x'"}
    assert studytables.missing(cell, rows) == ["fedrep"]
    failed = studytables.failures(cell, rows)
    assert failed == {
        "fedper": "fedper is absent: failed (no field 'x') in all 6 trials",
        "ditto": "ditto diverged with 1 of 5 seeds",
    }
    assert studytables.introduction(["fedrep"], failed, [0, 1]) == (
        "So far without all runs of fedrep. fedper is absent: failed (no field 'x') in all 6 "
        "trials. ditto diverged with 1 of 5 seeds. Accuracies are means over seeds 0, 1."
    )


def test_the_plan_of_a_gpu_is_of_jobs_that_hpcfed_takes(monkeypatch):
    monkeypatch.setattr(studyplan, "PLAN", before := json.loads(json.dumps(PLAN)))
    monkeypatch.setattr(studycost, "PLAN", before)
    studyplan.use_scale("gpu")
    seconds = {name: {"dirichlet-five": [3.0, 0.5]} for name in studyplan.methods_of("few-five")}
    seconds["fedproto"] = {"dirichlet-five": [3.0, 1.0]}
    for cell in before["cells"]:
        for name in ("local", "fedproto" if studyplan.several(cell) else "fedavg"):
            [*_, (flags, trial)] = studyplan.tuning(cell, name).items()
            job = load([str(studyplan.JOB), *flags.split()], environ={})
            assert (job.algorithm.name, job.rounds, job.models.d) == (name, 300, 512)
            assert load([str(studyplan.JOB), *trial.flags.split()], environ={}).rounds == 60
    run = Task("few-five", "fedproto", "seed", 0, "--rounds 300 --rounds 60")
    # 2,000 examples in 60 rounds, at twice the time of local training
    expected = 60 * 2 * 2000 / before["examples_per_second"]
    assert studycost.estimate_task(seconds, run) == pytest.approx(expected)


def test_ranks_are_drawn_of_cells_with_methods_in_common(tmp_path):
    cells = {name: {"local": 0.5, "fedproto": 0.6, "fd": 0.4} for name in ("one", "other")}
    studytables.draw_ranks(cells, tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 1000


def test_the_key_of_a_run_is_its_job_and_seed():
    one = Task("heart", "fedavg", "seed", 0, "--algorithm.name fedavg")
    assert one.key != one._replace(seed=1).key
    assert one.key == one._replace(kind="trial").key
    local = one._replace(method="local", flags="--algorithm.name local")
    assert local.key == one._replace(kind="matched").key  # the same job, by two ways
    assert one.key != one._replace(flags="--algorithm.name fedprox").key
    assert PLAN["seeds"] == [0, 1, 2, 3, 4]


def test_the_sentence_on_a_method_says_whether_it_helps_in_most_cells():
    def paired(*seeds):
        return Paired(tuple(np.array([gain, gain]) for gain in seeds))

    helpful, harmful, open_ = (
        paired(0.1, 0.101, 0.099),
        paired(-0.02, -0.021, -0.019),
        paired(0.1, -0.1, 0.03),
    )

    def verdict(gains):
        return studytables.verdict(gains, {cell: harmful for cell in gains})

    def tell(name, **gains):
        return studytables.sentence(name, gains, verdict(gains))

    brief = verdict({"x": helpful, "y": helpful, "z": harmful}).brief
    assert brief == "helps: +0.060, 2 of 3 cells; -0.020 over tuned local"
    assert verdict({"x": open_}).brief == (
        "one cell, no verdict: +0.010, 1 cell; -0.020 over tuned local"
    )
    little = paired(0.005, 0.0051, 0.0049)  # its interval is above 0, but it is below 0.01
    assert verdict({"x": little, "y": little}).brief == (
        "neither helps nor harms: +0.005, 2 cells; -0.020 over tuned local"
    )
    over = "; over tuned local training -0.020."
    assert tell("a", x=helpful, y=helpful, z=harmful) == (
        f"**a helps** in 2 of 3 cells: +0.060 on average, most in x (+0.100){over}"
    )
    assert tell("b", x=harmful, y=harmful) == (
        f"**b harms** in 2 of 2 cells: -0.020 on average, most in x (-0.020){over}"
    )
    assert tell("b", x=harmful) == (
        f"**b** was run in one cell, x, which gives no verdict: -0.020, interval -0.022 to "
        f"-0.018{over}"
    )
    assert tell("c", x=helpful, y=open_) == (
        f"**c** neither helps nor harms by this rule: +0.055 on average, interval above 0 in 1 "
        f"and below in 0 of 2 cells{over}"
    )
