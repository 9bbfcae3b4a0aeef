"""What runs keep on disk beyond their results, and its deletion."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import hpcfed
from hpcfed.core.errors import CheckpointError
from hpcfed.results.clean import bytes_of, clean
from hpcfed.storage import checkpoint, digest, names
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.lock import Lock
from hpcfed.storage.record import STOPPED, load
from hpcfed.storage.results import Results
from tests import forked
from tests.mpirun import environment

JOB = {
    "clients": 2,
    "data": {"train_limit": 40},
    "models": {"mix": ["mlp"], "d": 8},
    "algorithm": "local",
    "checkpoint": {"every": 1, "keep": 2},
    "quiet": True,
}


def text(runs: Path, **flags: bool) -> str:
    shown = Console(width=200)
    with shown.capture() as captured:
        shown.print(clean([runs], **flags))
    return captured.get()


def saved(run: Path) -> list[str]:
    return sorted(path.name for path in names.checkpoint_folder(run).iterdir())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run with two checkpoints, and what a run that was killed has left."""
    monkeypatch.chdir(tmp_path)
    hpcfed.run(JOB, rounds=2, out="runs/one")
    folder = tmp_path / "runs/one"
    (names.checkpoint_folder(folder) / "round-000003").mkdir()
    names.spill_folder(folder, 0).mkdir()
    (names.spill_folder(folder, 0) / "weights").write_bytes(bytes(5000))
    return folder


def test_nothing_is_deleted_without_delete_and_results_and_the_last_checkpoint_stay(run):
    listing, before = text(run.parent), digest.digest(run)
    assert "checkpoint of round 1" in listing and "values beside memory" in listing
    assert "can be deleted; nothing has been yet: add --delete" in listing and "5.0 kB" in listing
    assert len(saved(run)) == 5
    size = bytes_of(run)
    assert text(run.parent, delete=True).split("\n")[-2].endswith("deleted")
    assert saved(run) == ["round-000002", "round-000002.h5"] and bytes_of(run) < size - 5000
    assert not names.spill_folder(run, 0).exists() and not names.lock_file(run).exists()
    assert digest.digest(run) == before and "nothing to delete" in text(run)


def test_the_last_checkpoint_is_deleted_only_with_last_and_after_the_run(run):
    assert "last checkpoint of round 2" in text(run, delete=True, last=True)
    assert saved(run) == [] and len(hpcfed.load(run)) == 2
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        checkpoint.open_checkpoint(run)


def test_models_after_a_final_step_are_deleted_with_the_last_checkpoint(tmp_path):
    run = tmp_path / "one"
    hpcfed.run({**JOB, "algorithm": "fedbabu"}, rounds=1, out=run)
    assert {"final-000001", "final-000001.h5"} < set(saved(run)) and "nothing to" in text(run)
    listing = text(run, delete=True, last=True)
    assert "models after the final step" in listing and "last checkpoint of round 1" in listing
    assert saved(run) == [] and len(hpcfed.load(run)) == 1


def test_the_last_checkpoint_of_a_run_that_was_stopped_in_its_final_steps_stays(run):
    record = load(run)
    stopped = Results(run, record.header | {"ended": STOPPED}, record.arrays)
    for t in range(record.rounds):
        stopped.append({name: column[t] for name, column in record.columns.items()})
    stopped.finish()
    assert "last checkpoint" not in text(run, delete=True, last=True)
    assert saved(run) == ["round-000002", "round-000002.h5"]


def test_a_run_that_a_process_has_is_left_alone(run):
    lock = Lock(run, "another")
    lock.take()
    try:
        assert "has this run; it is left alone" in text(run, delete=True, last=True)
    finally:
        lock.release()
    assert len(saved(run)) == 5


def test_the_last_checkpoint_of_a_run_stays_if_its_sweep_has_got_more_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", forked.python())  # of the runs
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    words = {"seed": [0, 1], "out": str(tmp_path / "sweep")}
    hpcfed.sweep(JOB, rounds=1, **words)
    definition = sweeps.read(tmp_path / "sweep")
    longer = [replace(run, fields=run.fields | {"rounds": 2}) for run in definition.runs]
    sweeps.write(replace(definition, runs=tuple(longer)))
    assert "nothing to delete" in text(tmp_path / "sweep", last=True)
    sweeps.write(definition)
    assert "last checkpoint of round 1" in text(tmp_path / "sweep", last=True)
