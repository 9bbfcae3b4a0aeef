"""A run stays as it began: open files, objects in memory, and the cost of writing results do not
grow with rounds.
"""

import gc
import os
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import DamagedError
from hpcfed.engine.fault_tolerance.checkpoints import Checkpoints
from hpcfed.main import main
from hpcfed.storage import names, results
from hpcfed.storage.results import Results, load, recover

TINY = [
    "--clients",
    "3",
    "--algorithm.name",
    "fedavg",
    "--models.mix",
    "logistic",
    "--data.train_limit",
    "60",
    "--data.partition",
    "iid",
    "--quiet",
]


def test_open_files_and_objects_do_not_grow_with_rounds(tmp_path, monkeypatch):
    seen = {}

    def look(loop: Checkpoints) -> bool:
        if loop.rounds.t in (60, 110):
            gc.collect()
            seen[loop.rounds.t] = len(os.listdir("/proc/self/fd")), len(gc.get_objects())
        return False

    due = Checkpoints.due
    monkeypatch.setattr(results, "BUDGET", 1e9)  # no rounds wait in memory
    monkeypatch.setattr(Checkpoints, "due", lambda own, flags: look(own) or due(own, flags))
    assert main([*TINY, "--rounds", "110", "--out", str(tmp_path / "run")]) == 0
    (files, objects), (files_later, objects_later) = seen[60], seen[110]
    assert files_later == files
    assert objects_later - objects < 50  # not one a round


class Clock:
    """A time in which each round of computing takes 10 ms and writing a file as long as it has
    rounds.
    """

    def __init__(self, monkeypatch):
        self.now, self.wrote, fill = 0.0, 0.0, Results._fill

        def slow(made: Results, file: object, columns: object) -> None:
            fill(made, file, columns)
            self.now += 1e-5 * made.rounds
            self.wrote += 1e-5 * made.rounds

        monkeypatch.setattr(Results, "_fill", slow)
        monkeypatch.setattr(results, "monotonic", lambda: self.now)


def row(t: int) -> dict[str, object]:
    return {
        "clients/accuracy": np.array([t, 0.5]),
        "clients/up": np.array([t, t + 1]),
        "rounds/seconds": 0.1 * t,
    }


def test_the_cost_of_writing_stays_a_small_share_of_a_long_run(tmp_path, monkeypatch):
    clock, made = Clock(monkeypatch), Results(tmp_path, {}, {})
    for t in range(3000):
        clock.now += 0.01
        made.append(row(t))
        made.write(force=t % 10 == 9)  # as checkpoints ask for
        if t % 500 == 499:
            assert load(tmp_path).rounds == t + 1
    assert 0 < clock.wrote < 0.025 * clock.now
    made.finish()
    record = load(tmp_path)
    assert os.listdir(tmp_path) == ["results.h5"]
    assert record.columns["clients/up"].dtype == np.int64
    assert (record.columns["clients/up"] == np.arange(3000)[:, None] + [0, 1]).all()


@pytest.fixture
def journal(tmp_path, monkeypatch) -> Path:
    """Results of which the first round is in the file and four are in the journal, two by two."""
    clock = count()
    monkeypatch.setattr(results, "monotonic", lambda: next(clock))
    made = Results(tmp_path, {}, {})
    for t in range(5):
        made.append(row(t))
        made.write(force=t % 2 == 0)
    assert load(tmp_path).rounds == 5
    return names.journal_file(names.results_file(tmp_path))


def test_of_a_journal_that_is_cut_short_the_whole_blocks_are_read(tmp_path, journal):
    whole, counts = journal.read_bytes(), set()
    for position in np.linspace(0, len(whole) - 1, 60).astype(int):
        journal.write_bytes(whole[:position])
        record = load(tmp_path)
        assert record.columns["clients/up"][:, 0].tolist() == list(range(record.rounds))
        counts.add(record.rounds)
    assert counts == {1, 3}


def test_a_damaged_journal_is_refused_and_a_resume_reads_the_rounds_before_the_damage(
    tmp_path, journal
):
    whole, counts = journal.read_bytes(), set()
    for i, position in enumerate(np.linspace(0, len(whole) - 1, 60).astype(int)):
        journal.write_bytes(
            whole[:position] + bytes([whole[position] ^ 1 << i % 8]) + whole[position + 1 :]
        )
        with pytest.raises(DamagedError, match="results.journal: damaged.*\n.*go on with the run"):
            load(tmp_path)
        record = recover(tmp_path)
        assert record.columns["clients/up"][:, 0].tolist() == list(range(record.rounds))
        counts.add(record.rounds)
    assert counts == {1, 3}


def test_a_journal_of_another_file_is_not_read(tmp_path, journal):
    other = Results(tmp_path / "other", {"seed": 1}, {})
    other.append(row(0))
    other.write()
    names.journal_file(names.results_file(tmp_path / "other")).write_bytes(journal.read_bytes())
    assert load(tmp_path / "other").rounds == 1


def test_a_run_resumes_from_rounds_in_the_journal(tmp_path, journal):
    going = Results.resume(tmp_path, 4, {})
    assert (going.rounds, journal.exists()) == (4, True)
    going.append(row(4))
    going.write()
    assert (load(tmp_path).rounds, journal.exists()) == (5, False)
    assert load(tmp_path).columns["rounds/seconds"].tolist() == [0.1 * t for t in range(5)]


@pytest.mark.parametrize("gone", ["journal", "file"])
def test_results_are_not_taken_for_stored_when_a_file_of_theirs_is_gone(
    tmp_path, monkeypatch, gone
):
    monkeypatch.setattr(
        results, "BUDGET", 0.0
    )  # the file is made once, then all goes to the journal
    made = Results(tmp_path, {}, {})
    for t in range(4):
        made.append({"rounds/seconds": float(t)})
        made.write(force=True)
    names.results_file(tmp_path).with_suffix(".journal" if gone == "journal" else ".h5").unlink()
    made.secure(4)
    assert load(tmp_path).rounds == 4
