"""Sinks of a run: each round once, also after a resume, and a run that does not depend on them."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hpcfed.config.load import load as load_job
from hpcfed.core.registry import Entry
from hpcfed.main import main
from hpcfed.report.sinks import SINKS, logs, numbers
from hpcfed.report.sinks.base import Sink
from hpcfed.storage import names
from hpcfed.storage.digest import digest
from hpcfed.storage.record import load
from tests import records
from tests.contract import toy
from tests.spoken import HEADER, LOSSES, spoken


class Recorder(Sink):
    """A sink that records its calls; of any name."""

    package = "json"
    calls: list = []  # noqa: RUF012
    fails: set = set()  # noqa: RUF012

    has = None

    def begin(self, header, done):
        self.note("begin", header["job"]["algorithm"]["name"], done)
        return done if self.has is None else self.has

    def round(self, t, numbers):
        self.note("round", t, numbers)

    def end(self, status):
        self.note("end", status)

    def note(self, what, *values):
        self.calls.append((what, *values))
        if (what, values[0]) in self.fails:
            raise OSError("no room")


@pytest.fixture
def calls(monkeypatch) -> list:
    """The calls of the sink `tensorboard`, which is a Recorder here."""
    monkeypatch.setitem(SINKS, "tensorboard", Entry(f"{__name__}:Recorder", ""))
    monkeypatch.setattr(Recorder, "calls", [])
    monkeypatch.setattr(Recorder, "fails", set())
    return Recorder.calls


def run(folder: Path, *flags: str) -> int:
    """A run of three rounds in this process; its exit status."""
    place = toy.folder()
    return main(
        [
            str(Path(toy.__file__).with_suffix(".toml")),
            "--algorithm.name",
            "fedavg",
            "--models.mix",
            "mlp",
            "--data.name",
            str(place / "data.npz"),
            "--data.partition_file",
            str(place / "partition.h5"),
            "--quiet",
            "--checkpoint.every",
            "1",
            "--out",
            str(folder),
            *flags,
        ]
    )


def test_a_round_is_logged_as_means_over_clients_sums_of_bytes_and_seconds_of_phases():
    row = records.row(
        3,
        4,
        2,
        clients__accuracy=np.array([0.5, 0.25, np.nan, 0.75]),
        clients__kappa=np.array([0.5, 0.25, np.nan, np.nan]),
        rounds__kappa_pooled=0.125,
        rounds__staleness=np.nan,
    )
    values = numbers.numbers(row, HEADER["architectures"])
    assert values == {
        "accuracy/mean": 0.5,
        "accuracy/std": pytest.approx(np.sqrt(1 / 24)),
        "accuracy/min": 0.25,
        "accuracy/max": 0.75,
        "accuracy_of/cnn": 0.5,
        "accuracy_of/mlp": 0.5,
        "metrics/kappa": 0.375,
        "rounds/kappa_pooled": 0.125,
        "loss/train": pytest.approx(1 / 3),
        "loss/test": pytest.approx(2 / 3),
        "traffic/down": 120.0,
        "traffic/up": 18.0,
        "phases/train": 1.5,
        "phases/evaluate": 1.5,
        "phases/wait": 0.25,
        "rounds/seconds": 2.1,
    }


def test_a_job_may_ask_for_any_sink_and_it_is_no_part_of_the_runs_identity():
    jobs = [
        load_job(["--log.tensorboard", *more], environ={})
        for more in ([], ["--log.wandb", "--log.mlflow"])
    ]
    assert [logs.sink_names(job.log) for job in jobs] == [
        ["tensorboard"],
        ["tensorboard", "wandb", "mlflow"],
    ]
    assert jobs[0].identity() == jobs[1].identity() == load_job([], environ={}).identity()


def test_a_sink_gets_header_rounds_and_end_and_does_not_change_the_bits(tmp_path, calls):
    assert (run(tmp_path / "run", "--log.tensorboard"), run(tmp_path / "without")) == (0, 0)
    assert digest(tmp_path / "run") == digest(tmp_path / "without")
    assert [words[:2] for words in calls] == [
        ("begin", "fedavg"),
        ("round", 1),
        ("round", 2),
        ("round", 3),
        ("end", "finished"),
    ]
    want = load(tmp_path / "run").columns["clients/accuracy"]
    assert [words[2]["accuracy/mean"] for words in calls[1:4]] == [
        row[np.isfinite(row)].mean() for row in want
    ]


def test_a_resumed_run_continues_its_log(tmp_path, calls):
    assert run(tmp_path / "run", "--rounds", "2", "--log.tensorboard") == 0
    assert main(["--resume", str(tmp_path / "run"), "--rounds", "3", "--quiet"]) == 0
    assert [words[:2] for words in calls if words[0] == "round"] == [
        ("round", 1),
        ("round", 2),
        ("round", 3),
    ]
    assert [words[2] for words in calls if words[0] == "begin"] == [0, 2]


def test_a_log_is_given_the_rounds_that_it_lacks_as_they_were(tmp_path, calls, monkeypatch):
    assert run(tmp_path / "run", "--rounds", "2", "--log.tensorboard") == 0
    rounds = [words for words in calls if words[0] == "round"]
    calls.clear()
    monkeypatch.setattr(Recorder, "has", 0)
    assert main(["--resume", str(tmp_path / "run"), "--rounds", "3", "--quiet"]) == 0
    again = [words for words in calls if words[0] == "round"]
    assert again[:2] == rounds and [t for _, t, _ in again] == [1, 2, 3]


@pytest.mark.parametrize(("what", "left"), [(("round", 2), 4), (("end", "finished"), 5)])
def test_a_sink_that_fails_in_mid_run_causes_one_warning_and_the_run_continues(
    tmp_path, calls, what, left, capsys
):
    Recorder.fails.add(what)
    assert run(tmp_path / "run", "--log.tensorboard") == 0
    assert load(tmp_path / "run").rounds == 3 and len(calls) == left - (what[0] == "round")
    err = capsys.readouterr().err
    assert err.count("warning: log.tensorboard: no room") == 1
    assert "continues without that log" in err


def test_a_sink_that_cannot_begin_is_one_message_before_training(tmp_path, calls, capsys):
    Recorder.fails.add(("begin", "fedavg"))
    assert run(tmp_path / "run", "--log.tensorboard") == 2
    err = capsys.readouterr().err
    assert "log.tensorboard: cannot start: no room; fix that, or remove log.tensorboard" in err
    assert "Traceback" not in err and calls[1:] == [("end", "failed")]
    assert not names.results_file(tmp_path / "run").exists()  # the folder can be used again


def test_after_the_first_rounds_a_sink_that_cannot_start_is_a_warning(tmp_path, calls, capsys):
    assert run(tmp_path / "run", "--rounds", "1") == 0
    Recorder.fails.add(("begin", "fedavg"))
    assert (
        main(["--resume", str(tmp_path / "run"), "--rounds", "2", "--log.tensorboard", "--quiet"])
        == 0
    )
    assert "warning: log.tensorboard: no room" in capsys.readouterr().err


@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_a_missing_package_is_one_message_before_anything_is_made(
    tmp_path, name, flags, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, name, None)
    assert run(tmp_path / "run", f"--log.{name}", *flags) == 2
    err = capsys.readouterr().err
    assert f"log.{name} needs the package {name}" in err and f'pip install "hpcfed[{name}]"' in err
    assert "Traceback" not in err and not (tmp_path / "run").exists()


def test_the_state_of_a_log_is_kept_for_a_resumed_run_but_not_for_a_new_one(tmp_path):
    sink = Recorder(tmp_path)
    assert sink.read_mark("wandb", 3) == {}
    sink.mark("wandb", id="a", rounds=2)
    assert (sink.read_mark("wandb", 3), sink.read_mark("wandb", 0)) == (
        {"id": "a", "rounds": 2},
        {},
    )
    names.sink_file(tmp_path, "wandb").write_text("{")
    with pytest.raises(Exception, match="damaged: .*remove it to start a new log"):
        sink.read_mark("wandb", 3)


def test_tensorboard_files_hold_each_round_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    spoken("tensorboard", tmp_path)
    events = EventAccumulator(str(names.sink_folder(tmp_path, "tensorboard"))).Reload()
    assert {e.step: e.value for e in events.Scalars("loss/train")} == pytest.approx(LOSSES)
    assert [e.step for e in events.Scalars("accuracy/mean")] == [1, 2, 3, 4]
    assert "job/text_summary" in events.Tags()["tensors"]


def test_a_new_run_in_the_same_folder_replaces_what_tensorboard_shows(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    spoken("tensorboard", tmp_path, [(0, [1, 2, 3], "finished"), (0, [1, 2], "finished")])
    events = EventAccumulator(str(names.sink_folder(tmp_path, "tensorboard"))).Reload()
    assert [e.step for e in events.Scalars("loss/train")] == [1, 2]
