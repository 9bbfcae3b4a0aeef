"""Metrics of whole runs: of each client and pooled, the same bits on any ranks and after a stop."""

from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfed.comm import Serial
from hpcfed.config.job import Job
from hpcfed.config.load import again, load
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.tasks.task import concat
from hpcfed.training import evaluate
from tests.contract import toy
from tests.threads import spmd

BINARY = ("f1", "kappa", "pr_auc", "roc_auc")
KEPT = ("--algorithm.name", "lgfedavg")  # clients keep models, and so scores, when they rest


@cache
def file(task: str) -> Path:
    """Blobs of two classes, of which one in four examples is positive."""
    path = toy.folder() / f"{task}.h5"
    with h5py.File(path, "w") as target:
        for part, n in (("train", 96), ("test", 32)):
            x, y = toy.blobs(n, rng.stream(0, "toy", n))
            target[f"{part}/images"], target[f"{part}/labels"] = x, (y == 3).astype(np.int64)
        target.attrs["task"] = task
    return path


def job(*flags: str, task: str = "binary") -> Job:
    base = [str(Path(toy.__file__).with_suffix(".toml")), "--data.name", str(file(task))]
    job_flags = ["--data.partition_file", str(toy.folder() / "partition.h5"), "--models.mix", "mlp"]
    return load([*base, *job_flags, *KEPT, *flags], environ={})


@pytest.mark.parametrize("method", ["lgfedavg", "fedavg", "fedasync"])
def test_ranks_do_not_change_a_bit_of_any_metric(method: str):
    going = job("--evaluate.received", "--algorithm.name", method)
    want = toy.run(Serial(), going)
    names = {f"rounds/{name}{phase}_pooled" for name in BINARY for phase in ("", "_received")}
    assert names <= {name for name in want.rows[-1] if np.isfinite(want.rows[-1][name]).all()}
    for got in spmd(3, lambda comm: toy.run(comm, going)):
        assert toy.differences(got, want) == []


def test_a_stopped_run_restores_the_answers_of_idle_clients(tmp_path: Path):
    going = job()
    want = toy.run(Serial(), going)
    spmd(2, lambda comm: toy.run(comm, going, rounds=2, save=tmp_path))
    for got in spmd(3, lambda comm: toy.run(comm, going, resume=tmp_path)):
        assert toy.differences(got.rows, want.rows[2:]) == []


def test_a_threshold_chosen_on_validation_examples_survives_a_stop_on_other_ranks(tmp_path: Path):
    names = "sensitivity,specificity,brier,ece"
    going = job("--evaluate.metrics", names, "--evaluate.validation", "0.4")
    want = toy.run(Serial(), going)
    columns = {f"rounds/{name}_pooled" for name in names.split(",")}
    assert columns <= {name for name in want.rows[-1] if np.isfinite(want.rows[-1][name]).all()}
    spmd(2, lambda comm: toy.run(comm, going, rounds=2, save=tmp_path))
    for got in spmd(3, lambda comm: toy.run(comm, going, resume=tmp_path)):
        assert toy.differences(got.rows, want.rows[2:]) == []


def test_a_threshold_without_validation_examples_is_refused():
    with pytest.raises(ConfigError, match="sensitivity needs a threshold(.|\\n)*validation = 0.2"):
        toy.start(Serial(), job("--evaluate.metrics", "sensitivity"))


def test_a_function_that_is_not_there_is_refused_before_the_run():
    with pytest.raises(
        ConfigError, match="evaluate.metrics = 'sklearn.metrics:brier'(.|\\n)*has no"
    ):
        job("--evaluate.metrics", "sklearn.metrics:brier")


def test_a_run_that_is_resumed_does_not_import_a_metric_that_only_its_file_names():
    going = job("--evaluate.metrics", "sklearn.metrics:brier_score_loss")
    with pytest.raises(ConfigError, match="names sklearn.metrics:brier_score_loss: its module wou"):
        again(going.plain(), "runs/a")
    assert again(going.plain(), "runs/a", ["sklearn.metrics:brier_score_loss"])


def test_metrics_change_nothing_else():
    plain, more = (
        toy.run(Serial(), job("--evaluate.metrics", names, task="classification"))
        for names in ("accuracy", "kappa,roc_auc")
    )
    same = [{name: row[name] for name in plain.rows[0]} for row in more.rows]
    assert (
        toy.differences([same, more.state, more.weights], [plain.rows, plain.state, plain.weights])
        == []
    )
    assert more.rows[0].keys() - plain.rows[0].keys() == {
        f"{place}{phase}{end}"
        for name in ("kappa", "roc_auc")
        for phase in ("", "_before", "_received")
        for place, end in ((f"clients/{name}", ""), (f"rounds/{name}", "_pooled"))
    }


def test_a_pooled_metric_is_over_all_clients_examples_and_a_clients_metric_over_its_own():
    rounds = toy.start(Serial(), job())
    row = rounds.step()[0]
    answers = []
    for k, client in rounds.fed.clients.items():
        if not len(client.test):
            continue
        predictions = evaluate.score(rounds.fed, client, client.model).answers
        answers.append(predictions)
        want = rounds.fed.task.compute(BINARY, predictions)
        np.testing.assert_array_equal([row[f"clients/{name}"][k] for name in BINARY], want)
    pooled = rounds.fed.task.compute(("accuracy", *BINARY), concat(answers))
    assert [row[f"rounds/{name}_pooled"] for name in ("accuracy", *BINARY)] == list(pooled)
    single = [len(np.unique(predictions["y"])) == 1 for predictions in answers]
    assert any(single) and np.isnan(row["clients/roc_auc"]).sum() >= sum(single)


def test_a_round_that_is_not_evaluated_has_no_metrics():
    rounds = toy.start(Serial(), job("--evaluate.every", "2"))
    first, second = (rounds.step()[0] for _ in range(2))
    for name in BINARY:
        assert np.isnan(first[f"clients/{name}"]).all() and np.isnan(first[f"rounds/{name}_pooled"])
        assert np.isfinite(second[f"rounds/{name}_pooled"])


def test_the_final_step_is_measured_too():
    final = toy.start(Serial(), job("--algorithm.name", "fedrep"))
    final.step()
    row = final.finish()
    assert len(row["roc_auc"]) == 6 and row["roc_auc_pooled"].shape == (1,)
    assert np.isfinite(row["roc_auc_pooled"]) and np.isfinite(row["accuracy_received_pooled"])


def test_an_unknown_metric_one_named_twice_and_one_that_does_not_fit_are_refused():
    with pytest.raises(ConfigError, match="no metric 'f2'(.|\\n)*hpcfed list metrics"):
        job("--evaluate.metrics", "f2")
    with pytest.raises(ConfigError, match="evaluate.metrics names kappa twice"):
        job("--evaluate.metrics", "kappa,kappa")
    with pytest.raises(ConfigError, match="c_index needs survival"):
        toy.start(Serial(), job("--evaluate.metrics", "c_index"))


def test_a_file_with_an_unknown_task_or_one_that_its_labels_do_not_fit_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="attribute task: no task 'binry'; did you mean 'binary'"):
        toy.start(Serial(), job(task="binry"))
    path = tmp_path / "three.h5"
    path.write_bytes(file("binary").read_bytes())
    with h5py.File(path, "r+") as target:
        target["train/labels"][0] = 2
    with pytest.raises(DataError, match="task is 'binary', which has 2 classes, but there are 3"):
        toy.start(Serial(), job("--data.name", str(path)))


@cache
def survival_file() -> Path:
    """Blobs whose class says how soon the event comes; every fifth time is censored."""
    path = toy.folder() / "survival.h5"
    with h5py.File(path, "w") as file:
        for part, n in (("train", 96), ("test", 32)):
            x, y = toy.blobs(n, rng.stream(0, "toy", n))
            event = np.arange(n) % 5 > 0
            file[f"{part}/images"] = x
            file[f"{part}/labels"] = np.stack([1.0 + y + np.arange(n) / n, event], 1)
        file.attrs["task"] = "survival"
    return path


def survival(method: str, *flags: str) -> Job:
    words = ["--data.name", str(survival_file()), "--algorithm.name", method]
    return job(*words, "--local.lr", "0.2" if method == "scaffold" else "0.01", *flags)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "local", "central"])
def test_survival_times_are_learnt_and_ranked_the_same_bits_on_any_ranks(method: str):
    going = survival(method, "--evaluate.received", "--participation", "1", "--rounds", "4")
    want = toy.run(Serial(), going)
    for got in (
        spmd(3, lambda comm: toy.run(comm, going)) if method in ("fedavg", "central") else ()
    ):
        assert toy.differences(got, want) == []
    row = want.rows[-1]
    assert not any("accuracy" in name for name in row)
    assert np.isfinite(row["clients/loss"][:5]).all()
    assert row["rounds/c_index_pooled"] > 0.6


def test_a_stopped_run_on_survival_times_continues_to_the_same_bits(tmp_path: Path):
    going = survival("local")
    want = toy.run(Serial(), going)
    spmd(2, lambda comm: toy.run(comm, going, rounds=2, save=tmp_path))
    for got in spmd(3, lambda comm: toy.run(comm, going, resume=tmp_path)):
        assert toy.differences([got.rows, got.weights], [want.rows[2:], want.weights]) == []


def test_methods_that_need_classes_are_refused_survival_times():
    for going in (survival("fedproto"), survival("local", "--algorithm.contrastive", "true")):
        with pytest.raises(ConfigError, match="needs classes .*, but survival has survival times"):
            toy.start(Serial(), going)


def test_survival_times_that_are_none_are_refused(tmp_path: Path):
    for value, message in ((-1.0, "a time is 0 or more"), (np.nan, "a time is 0 or more")):
        path = tmp_path / "odd.h5"
        path.write_bytes(survival_file().read_bytes())
        with h5py.File(path, "r+") as file:
            file["train/labels"][3, 0] = value
        with pytest.raises(DataError, match=f"odd.h5: train/labels: value .* {message}"):
            toy.start(Serial(), survival("fedavg", "--data.name", str(path)))
