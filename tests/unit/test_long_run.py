"""A run stays as it began: open files, objects in memory, and the cost of writing results do not
grow with rounds.
"""

import gc
import os

import numpy as np

from hpcfed.engine.fault_tolerance.checkpoints import Checkpoints
from hpcfed.main import main
from hpcfed.storage import names, results
from hpcfed.storage.results import Results, load

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
    samples = {}

    def look(loop: Checkpoints) -> bool:
        if loop.rounds.t in (15, 20, 55):  # the first collects what the start has left
            gc.collect()
            samples[loop.rounds.t] = len(os.listdir("/proc/self/fd")), len(gc.get_objects())
        return False

    due = Checkpoints.due
    monkeypatch.setattr(results, "BUDGET", 1e9)  # no rounds wait in memory
    monkeypatch.setattr(
        Checkpoints, "due", lambda checkpoints, flags: look(checkpoints) or due(checkpoints, flags)
    )
    assert main([*TINY, "--rounds", "55", "--out", str(tmp_path / "run")]) == 0
    (files, objects), (files_later, objects_later) = samples[20], samples[55]
    assert files_later == files
    assert objects_later - objects < 35  # not one per round


class Clock:
    """A time in which each round of computing takes 10 ms and writing a file as long as it has
    rounds.
    """

    def __init__(self, monkeypatch):
        self.now, self.wrote, fill = 0.0, 0.0, Results._fill

        def slow(results: Results, file: object, columns: object) -> None:
            fill(results, file, columns)
            self.now += 1e-5 * results.rounds
            self.wrote += 1e-5 * results.rounds

        monkeypatch.setattr(Results, "_fill", slow)
        monkeypatch.setattr(results, "monotonic", lambda: self.now)


def row(t: int) -> dict[str, object]:
    return {
        "clients/accuracy": np.array([t, 0.5]),
        "clients/up": np.array([t, t + 1]),
        "rounds/seconds": 0.1 * t,
    }


def test_the_cost_of_writing_stays_a_small_share_of_a_long_run(tmp_path, monkeypatch):
    clock, results = Clock(monkeypatch), Results(tmp_path, {}, {})
    for t in range(3000):
        clock.now += 0.01
        results.append(row(t))
        results.write()
    assert 0 < clock.wrote < 0.025 * clock.now
    results.finish()
    record = load(tmp_path)
    assert os.listdir(tmp_path) == ["results.h5"]
    assert record.columns["clients/up"].dtype == np.int64
    assert (record.columns["clients/up"] == np.arange(3000)[:, None] + [0, 1]).all()


def test_results_are_not_taken_for_stored_when_their_file_is_gone(tmp_path, monkeypatch):
    results = Results(tmp_path, {}, {})
    for t in range(4):
        results.append(row(t))
    results.finish()
    names.results_file(tmp_path).unlink()
    results.secure(4)
    assert load(tmp_path).rounds == 4


def test_the_number_of_rounds_waiting_in_memory_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "BUDGET", -1.0)  # no time is due
    writer, waiting = Results(tmp_path, {}, {}), []
    for t in range(8):
        writer.append(row(t))
        writer.write(most=3)
        waiting.append(len(writer.pending_rows()))
    assert waiting == [0, 1, 2, 0, 1, 2, 0, 1]
