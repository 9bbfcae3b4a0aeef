"""evaluate.patience: a run ends when the validation loss no longer falls, and says so."""

from pathlib import Path

import numpy as np
import pytest

import hpcfed
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.engine.early_stop import LOSS, EarlyStop
from hpcfed.engine.fault_tolerance.supervise import is_finished
from hpcfed.main import main
from hpcfed.report.cases import find_cases
from hpcfed.results.state import state
from hpcfed.results.summary import brief
from hpcfed.storage.columns import is_of_machine
from hpcfed.storage.record import load
from tests.contract import toy
from tests.threads import spmd

STEPS = [*("--clients", "3", "--algorithm.name", "fedavg", "--models.mix", "logistic", "--quiet")]
DATA = [*("--data.train_limit", "90", "--data.partition", "iid", "--evaluate.validation", "0.3")]
RISES = ["--local.lr", "5", "--rounds", "30"]  # so high that the loss soon rises


def stopped(patience: int, losses: list[float]) -> tuple[int, EarlyStop]:
    """The number of rounds of a run with these validation losses."""
    stop = EarlyStop(patience)
    for t, loss in enumerate(losses, 1):
        stop.note(t, {LOSS: np.array([loss - 0.1, loss + 0.1, np.nan])})
        if stop.reason:
            return t, stop
    return len(losses), stop


def test_a_run_ends_after_so_many_evaluations_without_a_lower_mean_loss():
    t, stop = stopped(2, [3.0, 2.0, 2.5, 1.9, 1.9, 2.0, 1.0])
    assert (t, stop.round, stop.best) == (6, 4, pytest.approx(1.9))
    assert "lowest in round 4 (1.9)" in stop.reason
    assert stopped(0, [1.0, 2.0, 3.0])[0] == 3


def test_rounds_without_evaluation_do_not_count():
    assert stopped(2, [1.0, np.nan, np.nan, np.nan, 1.1, 1.0])[0] == 6


def test_a_resumed_run_has_waited_as_long_on_any_ranks(tmp_path: Path):
    job = toy.job("fedavg", "--evaluate.validation", "0.25", "--evaluate.patience", "9")
    ends = []

    def note(rounds: object) -> None:
        ends.append(rounds.early_stop.to_tree()["early_stop"].tolist())  # type: ignore[attr-defined]

    toy.run(Serial(), job, between=note)
    want = ends[-1]
    spmd(2, lambda comm: toy.run(comm, job, rounds=2, save=tmp_path))
    spmd(3, lambda comm: toy.run(comm, job, resume=tmp_path, between=note))
    assert ends[-3:] == [want] * 3 and want[1] > 0


def test_a_run_that_ended_early_is_finished_and_continues_with_more_patience(tmp_path: Path):
    out = tmp_path / "run"
    job = [*STEPS, *DATA, *RISES, "--out", str(out)]
    assert main([*job, "--evaluate.patience", "2"]) == 0
    record = load(out)
    assert 2 < record.rounds < 30 and "has not fallen in the 2 evaluations" in brief(record)
    assert is_finished(out, 30) and state(out).word == "finished"
    loaded = hpcfed.load(out)
    assert loaded.finished
    assert find_cases([out])[0].fields["rounds"] == 30  # as other seeds of the same job
    assert main(["--resume", str(out), "--quiet"]) == 0 and load(out).rounds == record.rounds

    assert main(["--resume", str(out), "--evaluate.patience", "3", "--quiet"]) == 0
    more, straight = load(out), tmp_path / "straight"
    assert main([*job[:-1], str(straight), "--evaluate.patience", "3"]) == 0
    assert more.rounds == load(straight).rounds > record.rounds
    for name, column in load(straight).columns.items():
        if not is_of_machine(name):
            np.testing.assert_array_equal(more.columns[name], column)
    assert more.header["early"] == load(straight).header["early"]
    assert "has not fallen in the 3 evaluations" in more.header["early"]


def test_patience_without_validation_examples_is_refused():
    with pytest.raises(ConfigError, match="evaluate.patience = 2 has no effect: evaluate.valid"):
        toy.job("fedavg", "--evaluate.patience", "2")
