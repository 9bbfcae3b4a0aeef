"""How far slow work is: on stderr, a bar in a terminal, few lines elsewhere."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core import progress, tables
from hpcfed.core.errors import DataError
from hpcfed.core.progress import track
from hpcfed.data.partition_file import Partition
from hpcfed.engine.decide import world
from hpcfed.engine.job_warnings import (
    merged_users,
    odd_labels,
    odd_settings,
    texts_in_vain,
    without_tests,
)
from hpcfed.machine.heartbeat import Heartbeat
from hpcfed.report import progress as rounds
from hpcfed.tasks import make
from hpcfed.tasks.classification import Classification


def test_without_a_terminal_quick_work_prints_nothing_and_slow_work_one_line(capsys, monkeypatch):
    assert list(track("abc", "probing 3 models")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "FIRST", 0.0)
    assert list(track("abc", "drawing", named=True)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "drawing: a: 0 of 3 done\n")


def test_in_a_terminal_there_are_bars_on_stderr_one_below_the_other(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    for _ in track("ab", "drawing 2 figures"):
        assert list(track([1, 2, 3], "probing 3 models")) == [1, 2, 3]
        assert len(progress.SHOWN) == 1
    out, err = capsys.readouterr()
    assert progress.SHOWN == [] and out == ""
    assert "drawing 2 figures" in err and "probing 3 models" in err


@pytest.fixture
def shown(tmp_path) -> rounds.Progress:
    job = SimpleNamespace(rounds=3, quiet=False, algorithm=SimpleNamespace(name="local"))
    return rounds.Progress(job, tmp_path, [], "accuracy", active=True)


def test_a_long_round_logs_its_current_client(shown, capsys, monkeypatch):
    heartbeat = Heartbeat()
    heartbeat.look, heartbeat.t = shown.look, 1
    heartbeat.expect(4)
    heartbeat.enter("train")
    heartbeat.visit("7 (cnn)")
    assert capsys.readouterr().out == ""  # within a minute
    monkeypatch.setattr(rounds, "OFTEN", -1.0)
    heartbeat.finish(1)
    assert capsys.readouterr().out == "in round 2/3: 1 of 4 clients of rank 0, train 7 (cnn)\n"


def test_a_rounds_line_has_the_main_metric_of_its_task(shown, capsys):
    shown.job.verbose, nobody = False, np.full(2, np.nan)
    shown.metric = make("survival").main
    rows = [(nobody, nobody), (np.array([0.5, 0.75]), np.array([0.25, 0.25])), (nobody, nobody)]
    for t, (c_index, kappa) in enumerate(rows, 1):
        scores = {"c_index": c_index, "kappa": nobody * kappa}
        columns = {f"clients/{name}": values for name, values in scores.items()}
        row = {**columns, "clients/train_loss": np.array([1.0, 2.0]), "rounds/seconds": 2.0}
        shown.round(t, row)
    fields = [line.split("  ")[1:3] for line in capsys.readouterr().out.splitlines()]
    assert fields == [
        ["train loss 1.500", "2.0 s/round"],
        ["C-index 0.6250", "train loss 1.500"],
        ["C-index 0.6250", "train loss 1.500"],  # of the last evaluation
    ]


@pytest.mark.parametrize(
    ("labels", "classes", "parts", "message"),
    [
        ([0, 1, 2] * 2, 3, [[0, 1, 2, 3, 4, 5]], ""),
        (
            [0, 5, 10] * 2,
            11,
            [[0, 1, 2, 3, 4, 5]],
            "8 of 11 classes have no training example (1, 2, 3, 4, 6, 7, 8, 9)",
        ),
        (
            [0, 0, 1, 1, 2],
            3,
            [[0, 2], [1, 3, 4]],
            "1 of 3 classes have a single training example (2)",
        ),
        ([0, 0], 1, [[0], [1]], "all training examples have the label 0"),
        ([0, 0, 1, 1], 2, [[0, 1], [2, 3]], "of 2 clients have one label (client 0, 1)"),
        ([0, 0, 1, 1], 2, [[0, 2, 1], [3]], ""),
    ],
)
def test_each_suspicious_label_causes_one_warning(labels, classes, parts, message):
    data = SimpleNamespace(
        train=SimpleNamespace(y=np.array(labels)),
        classes=tuple(map(str, range(classes))),
        task=Classification(),
    )
    about = {"name": str(Path("folder") / "mine.npz")}
    context = SimpleNamespace(
        model_dump=lambda: about, partition="iid", partition_file=None, partition_by="label"
    )
    job = SimpleNamespace(data=context, columns=SimpleNamespace(client=""))
    partition = Partition(tuple(np.array(part) for part in parts), (), np.zeros(0, np.int64))
    warnings = odd_labels(job, SimpleNamespace(data=data, partition=partition))
    assert len(warnings) == bool(message)
    assert all(line.startswith("mine.npz: ") and message in line for line in warnings)
    about["name"] = "shakespeare"  # whose 80 classes are those of the data set
    accepted = odd_labels(job, SimpleNamespace(data=data, partition=partition))
    assert not any("have no training example" in line for line in accepted)
    about["name"] = "mine.npz"
    context.partition = "classes"  # there it is meant
    warnings = odd_labels(job, SimpleNamespace(data=data, partition=partition))
    assert not any("have one label" in line for line in warnings)


def warnings_about(folder: Path, *flags: str, **arrays: Any) -> str:
    """What is said about 24 images of 4 users, for training and for tests, with other arrays."""
    images = {"x": np.eye(24)[:, None], "y": np.arange(24) % 2, "users": np.arange(24) // 6}
    both = {f"{name}_{part}": v for name, v in images.items() for part in ("train", "test")}
    np.savez(folder / "mine.npz", **both | arrays)
    words = ["--algorithm.name", "fedavg", "--models.mix", "mlp", *flags]
    job = load([*words, "--data.name", str(folder / "mine.npz")])
    return "\n".join(world(job, Serial()).warnings)


def test_users_whom_the_default_partition_ignores_are_named(tmp_path):
    said = warnings_about(tmp_path, "--clients", "3")
    assert "mine.npz: names 4 users, but data.partition = 'dirichlet', the default, " in said
    assert "set data.partition = 'natural' and clients = 4" in said
    for partition in ("natural", "iid", "dirichlet"):
        flags = ("--clients", "4", "--data.partition", partition)
        assert "users" not in warnings_about(tmp_path, *flags)


def test_users_with_test_examples_alone_are_named(tmp_path):
    clinics = np.array(["bonn", "cork", "lund", "york"])[np.arange(24) // 6]
    natural = "--data.partition", "natural", "--clients"
    arrays = {"users_train": np.where(clinics == "lund", "york", clinics), "users_test": clinics}
    arrays |= {"own_tests": 1}
    said = warnings_about(tmp_path, *natural, "3", **arrays)
    assert "user lund: test examples alone, on which no client is tested" in said
    assert "test examples alone" not in warnings_about(tmp_path, *natural, "4", own_tests=1)
    with pytest.raises(
        DataError, match="come from 3 users, but the job has 4 .*: of lund there are test ex"
    ):
        warnings_about(tmp_path, *natural, "4", **arrays)


def test_a_class_without_training_examples_has_its_name():
    assert Classification().oddities(np.array([0, 0, 1, 1]), ("cat", "dog", "emu"), False) == [
        "1 of 3 classes have no training example (emu); check the labels and their spelling, or "
        "leave these classes out"
    ]


def test_a_delta_that_hides_no_single_client_is_reported():
    words = "--algorithm.name fedavg --models.mix mlp --clients 200000 --participation 0.001"
    words += " --privacy.by central --privacy.clip 1 --privacy.noise 1"
    assert odd_settings(load([*words.split(), "--privacy.delta", "1e-6"])) == []
    (line,) = odd_settings(load(words.split()))
    assert line.startswith("privacy.delta = 1e-05 is not below 1 / clients")


def test_settings_of_texts_are_reported_beside_images():
    job = load(["--data.name", "digits", "--data.tokens", "9"])
    (line,) = texts_in_vain(job, SimpleNamespace(data=SimpleNamespace(text=False)))
    assert line == "data.tokens is for texts, and digits has none: it has no effect"
    assert texts_in_vain(job, SimpleNamespace(data=SimpleNamespace(text=True))) == []


def test_unused_clients_of_a_column_are_reported():
    data = SimpleNamespace(train=SimpleNamespace(y=np.array([0, 1, 0, 1])), classes=("a", "b"))
    data.task = Classification()
    context = SimpleNamespace(
        model_dump=lambda: {"name": "t.csv"},
        partition="iid",
        partition_file=None,
        partition_by="label",
    )
    job = SimpleNamespace(data=context, columns=SimpleNamespace(client="site"))
    partition = Partition((np.arange(4),), (), np.zeros(0, np.int64))
    (line,) = odd_labels(job, SimpleNamespace(data=data, partition=partition))
    assert "column 'site' names clients, but data.partition = 'iid'" in line


def test_natural_clients_that_fewer_clients_merge_are_named():
    train = SimpleNamespace(y=np.zeros(4, int), users=np.array([0, 1, 2, 2]))
    data = SimpleNamespace(train=train, user_names=("Bonn", "Essen", "Ulm"))
    context = SimpleNamespace(
        model_dump=lambda: {"name": "t.csv"},
        partition="natural",
        partition_file=None,
        clients_per_domain=1,
    )
    job = SimpleNamespace(data=context, columns=SimpleNamespace(client="site"), clients=2)
    rows = (np.array([0, 2, 3]), np.array([1]))
    facts = SimpleNamespace(data=data, rows=Partition(rows, (), np.zeros(0, np.int64)))
    (line,) = merged_users(job, facts)
    assert line == (
        "t.csv: site has 3 values for 2 clients, so some are merged: client 0 has Bonn, Ulm; set "
        "clients = 3 for one client each"
    )
    facts.rows = Partition((*np.split(np.arange(4), [1, 2]),), (), np.zeros(0, np.int64))
    assert merged_users(job, facts) == []


def test_clients_without_a_test_example_are_named_and_if_all_are_that_nothing_is_scored():
    job = SimpleNamespace(data=SimpleNamespace(model_dump=lambda: {"name": "t.csv"}))
    train = tuple(np.arange(3) for _ in range(3))
    tests = (np.arange(2), np.arange(0), np.arange(1))
    facts = SimpleNamespace(partition=Partition(train, tests, np.zeros(0, np.int64)))
    (line,) = without_tests(job, facts)
    assert line == (
        "t.csv: of 3 clients 1 without a test example (client 1), which no accuracy counts; give "
        "clients more examples, or a larger data.held_out"
    )
    facts.partition = Partition(train, (np.arange(0),) * 3, np.zeros(0, np.int64))
    (line,) = without_tests(job, facts)
    assert line.startswith("t.csv: no client has a test example, so that nothing is scored")


@pytest.mark.parametrize(
    "kernel", [("JPY_PARENT_PID", "7"), ("MPLBACKEND", "module://matplotlib_inline.backend_inline")]
)
def test_a_command_in_a_notebooks_cell_draws_no_bar_although_it_has_a_pseudo_terminal(
    kernel, capsys, monkeypatch
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv(*kernel)
    monkeypatch.setattr(progress, "FIRST", 0.0)
    assert list(track("ab", "reading 2 runs")) == ["a", "b"]
    assert capsys.readouterr().err == "reading 2 runs: 0 of 2 done\n"
    assert not tables.terminal()
