"""The record of a run: complete up to the last forced row, whatever happens to the writer."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcfed
from hpcfed.core.errors import CheckpointError, WriteError
from hpcfed.storage import atomic, checkpoint, names, results, uncached
from hpcfed.storage.checkpoint_parts import About, write_index, write_part
from hpcfed.storage.results import Results, load
from tests.contract import toy

REPOSITORY = Path(hpcfed.__file__).parents[1]
K = 3


def row(t: int, ranks: int = 2) -> dict[str, object]:
    return {
        "clients/accuracy": np.full(K, t / 10, np.float32),
        "clients/up": np.full(K, t),
        "clients/cohort": np.arange(K) == t % K,
        "ranks/train": np.full(ranks, float(t)),
        "rounds/seconds": float(t),
    }


def run_of(folder: Path, rounds: int, **header: object) -> Results:
    results = Results(folder, header, {"label_counts": np.ones((K, 4), np.int64)})
    for t in range(rounds):
        results.append(row(t))
    results.finish()
    return results


def test_results_come_back_as_they_were_appended(tmp_path):
    run_of(tmp_path, 4, job={"seed": 1}, classes=["a", "b"])
    record = load(tmp_path)
    assert record.header == {"job": {"seed": 1}, "classes": ["a", "b"]}
    assert record.rounds == 4
    assert record.arrays["label_counts"].shape == (K, 4)
    assert {name: (c.shape, c.dtype.str) for name, c in record.columns.items()} == {
        "clients/accuracy": ((4, K), "<f4"),
        "clients/cohort": ((4, K), "|b1"),
        "clients/up": ((4, K), "<i8"),
        "ranks/train": ((4, 2), "<f8"),
        "rounds/seconds": ((4,), "<f8"),
    }
    assert record.column("clients/up")[2].tolist() == [2, 2, 2]


def test_the_file_itself_can_be_named(tmp_path):
    run_of(tmp_path, 2)
    assert load(tmp_path / "results.h5").rounds == 2


def test_a_run_without_rounds_is_readable(tmp_path):
    run_of(tmp_path, 0)
    assert (load(tmp_path).rounds, load(tmp_path).columns) == (0, {})


def test_a_row_is_a_copy(tmp_path):
    results, reused = Results(tmp_path, {}, {}), np.zeros(K)
    for t in range(2):
        reused[:] = t
        results.append({"clients/loss": reused})
    results.write()
    assert load(tmp_path).column("clients/loss").tolist() == [[0] * K, [1] * K]


def test_gaps_are_nan(tmp_path):
    results = Results(tmp_path, {}, {})
    results.append({"ranks/train": np.array([1, 2])})
    results.append({"ranks/train": np.array([3]), "rounds/late": 5})
    results.write()
    np.testing.assert_array_equal(load(tmp_path).column("ranks/train"), [[1, 2], [3, np.nan]])
    np.testing.assert_array_equal(load(tmp_path).column("rounds/late"), [np.nan, 5])


def test_an_unknown_column_is_named_with_the_nearest(tmp_path):
    run_of(tmp_path, 1)
    with pytest.raises(
        CheckpointError, match="no column 'clients/acuracy'; did you mean 'clients/accuracy'"
    ):
        load(tmp_path).column("clients/acuracy")


@pytest.mark.parametrize("value", [np.zeros((2, 2)), "text", None])
def test_a_cell_that_is_no_number_or_vector_is_refused(tmp_path, value):
    with pytest.raises(CheckpointError, match="column 'rounds/x'"):
        Results(tmp_path, {}, {}).append({"rounds/x": value})


def test_unforced_writes_take_at_most_two_percent_of_the_time(tmp_path, monkeypatch):
    clock = iter(
        [0.0, 1.0, 1.0, 2.0, 50.9, 152.1, 152.1, 152.2]
    )  # made; written from 1 to 2; skipped; written from 152.1
    monkeypatch.setattr(results, "monotonic", lambda: next(clock))
    writer = Results(tmp_path, {}, {})
    sizes = []
    for t in range(3):
        writer.append(row(t))
        writer.write()
        sizes.append(load(tmp_path).rounds)
    assert sizes == [1, 1, 3]


def test_a_resumed_run_equals_the_unbroken_one(tmp_path):
    run_of(tmp_path / "unbroken", 5)
    run_of(tmp_path / "broken", 4)
    arrays = load(tmp_path / "broken").arrays
    resumed = Results.resume(tmp_path / "broken", 2, {}, arrays=arrays)
    assert resumed.rounds == 2
    for t in range(2, 5):
        resumed.append(row(t))
    resumed.write()
    want, got = load(tmp_path / "unbroken"), load(tmp_path / "broken")
    assert list(want.columns) == list(got.columns)
    for name, column in want.columns.items():
        assert column.dtype == got.column(name).dtype
        np.testing.assert_array_equal(column, got.column(name))
    np.testing.assert_array_equal(want.arrays["label_counts"], got.arrays["label_counts"])


def test_a_resumed_run_drops_all_that_its_earlier_end_has_computed(tmp_path):
    beginning = {"label_counts": np.ones((K, 4), np.int64), "partition": np.arange(4)}
    ends = ("final/accuracy", "groups/brier", "groups_received/brier", "answered")
    end = {name: np.ones(2) for name in ends} | {"reliability": np.ones((2, 45))}
    results = Results(tmp_path, {}, beginning | end)
    results.append(row(0))
    results.finish()
    assert load(tmp_path).arrays.keys() == (beginning | end).keys()
    resumed = Results.resume(tmp_path, 1, {}, arrays=beginning)
    resumed.finish()
    assert resumed.lost == [] and load(tmp_path).arrays.keys() == beginning.keys()


def test_a_resumed_run_keeps_the_history_of_its_ranks(tmp_path):
    run_of(tmp_path, 3, ranks=2, versions={"torch": "1"}, placement=[0, 1, 0])
    Results.resume(tmp_path, 2, {"ranks": 4}).write()
    again = Results.resume(tmp_path, 1, {"ranks": 1, "placement": [0, 0, 0]})
    again.append(row(1, ranks=5))
    again.write()
    record = load(tmp_path)
    assert (record.header["ranks"], record.header["placement"]) == (1, [0, 0, 0])
    first, second = record.header["history"]
    assert first == {"rounds": 2, "versions": {"torch": "1"}, "ranks": 2}
    assert second == {"rounds": 1, "ranks": 4}
    assert record.column("ranks/train").shape == (2, 5)


def test_rounds_without_a_record_are_lost_and_all_others_stay(tmp_path):
    run_of(tmp_path, 3)
    going = Results.resume(tmp_path, 5, {}, pending={"4": row(4)})
    going.write()
    record = load(tmp_path)
    assert (going.lost, record.rounds) == ([4], 5)
    np.testing.assert_array_equal(record.column("rounds/lost"), [np.nan, np.nan, np.nan, 1, np.nan])
    np.testing.assert_array_equal(record.column("rounds/seconds"), [0, 1, 2, np.nan, 4])


def test_a_run_without_usable_results_continues_with_empty_rounds_and_keeps_the_damaged_file(
    tmp_path,
):
    run_of(tmp_path, 2)
    path = names.results_file(tmp_path)
    path.write_bytes(damaged := flipped(path.read_bytes(), 2000))
    counts = np.ones((1, 3))
    going = Results.resume(tmp_path, 2, {"job": {}}, arrays={"label_counts": counts})
    going.append(row(2))
    going.write()
    record = load(tmp_path)
    assert (going.lost, record.rounds) == ([1, 2], 3)
    np.testing.assert_array_equal(record.column("rounds/seconds"), [np.nan, np.nan, 2])
    assert record.arrays["label_counts"].tolist() == [[1, 1, 1]]
    assert results.set_aside(path).read_bytes() == damaged


def test_results_of_a_newer_version_are_not_taken_for_lost(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(atomic.VERSIONS, names.RESULTS, 99)
        run_of(tmp_path, 2)
    with pytest.raises(CheckpointError, match="version 99"):
        Results.resume(tmp_path, 2, {})


def test_results_that_lack_rounds_are_replaced_by_the_copy_of_a_checkpoint(tmp_path):
    run_of(tmp_path, 3)
    for rounds in (2, 4):
        copy = names.results_copy(names.parts_folder(names.checkpoint_file(tmp_path, rounds)))
        run_of(copy.parent, rounds)
    for rounds, source in ((3, names.results_file(tmp_path)), (4, copy)):
        going = Results.resume(tmp_path, rounds, {})
        assert (going.rounds, going.source) == (rounds, source)


def test_missing_results_say_what_to_do(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"results.h5: No such file.*\n  give the folder of a run"
    ):
        load(tmp_path)


def test_the_folder_of_a_sweep_in_place_of_a_run_has_its_own_message(tmp_path):
    names.sweep_file(tmp_path).write_text("{}")
    with pytest.raises(CheckpointError, match=f"{tmp_path} is a sweep: give one of its runs"):
        load(tmp_path)


def test_every_truncation_and_every_flipped_byte_is_noticed(tmp_path):
    run_of(tmp_path, 4)
    path = tmp_path / "results.h5"
    content = path.read_bytes()
    for length in np.linspace(0, len(content) - 1, 50).astype(int):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="results.h5: (damaged|not a file of hpcfed)"):
            load(tmp_path)
    for position in np.linspace(0, len(content) - 1, 50).astype(int):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        with pytest.raises(CheckpointError, match="results.h5: (damaged|not a file of hpcfed)"):
            load(tmp_path)


def flipped(content: bytes, position: int, bit: int = 0) -> bytes:
    return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]


def watched(folder: Path, warn: Callable[[str], None]) -> Results:
    """Results of 6 rounds."""
    results = Results(folder, {"job": {"seed": 1}}, {"label_counts": np.ones((K, 4))}, warn)
    for t in range(6):
        results.append(row(t))
    results.finish()
    return results


def spoil_with_h5py(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["columns/rounds/seconds"][0] = 7.0


def written_over(path: Path) -> None:
    """One bit, at the time of the last change: as a disk changes it."""
    status = os.stat(path)
    path.write_bytes(flipped(path.read_bytes(), 900))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "harm",
    [spoil_with_h5py, written_over, Path.unlink, lambda path: os.truncate(path, 700)],
    ids=["h5py", "bit", "unlink", "truncate"],
)
def test_no_copy_is_made_of_results_that_were_changed_during_the_run(tmp_path, harm):
    """They are written again from memory, and the copy is that."""
    messages: list[str] = []
    results = watched(tmp_path / "run", messages.append)
    harm(results.path)
    results.copy(tmp_path / "results.h5")
    assert len(messages) == 1 and "it is written again from memory" in messages[0]
    for path in (tmp_path / "run", tmp_path / "results.h5"):
        record = load(path)
        assert (record.header, record.rounds) == ({"job": {"seed": 1}}, 6)
        assert record.column("rounds/seconds").tolist() == [0, 1, 2, 3, 4, 5]
    results.copy(tmp_path / "results.h5")
    assert len(messages) == 1


def test_a_bit_flipped_anywhere_in_results_is_in_no_copy(tmp_path):
    results = watched(tmp_path, print)
    content = results.path.read_bytes()
    for i, position in enumerate(np.linspace(0, len(content) - 1, 40).astype(int)):
        results.path.write_bytes(flipped(content, position, i % 8))
        assert results._file.changed()
        results.path.write_bytes(content)
    assert not results._file.changed() and not results._file.changed(read=True)


def test_results_that_another_program_writes_to_are_mended_by_the_next_round(tmp_path):
    messages: list[str] = []
    results = watched(tmp_path, messages.append)
    spoil_with_h5py(results.path)
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path)
    results.append(row(6))
    results.write()
    assert len(messages) == 1 and load(tmp_path).rounds == 7


def test_a_file_that_was_only_touched_is_not_written_again(tmp_path):
    messages: list[str] = []
    results = watched(tmp_path, messages.append)
    os.utime(results.path)
    results.secure(6)
    (tmp_path / "copy").mkdir()
    results.copy(tmp_path / "copy" / "results.h5")
    assert messages == []


def test_a_copy_that_differs_from_the_written_values_is_refused(tmp_path, monkeypatch):
    writer = watched(tmp_path / "run", lambda text: None)

    def copied(source: Path, to: Path) -> None:
        to.write_bytes(flipped(source.read_bytes(), 1000))

    monkeypatch.setattr(results.shutil, "copyfile", copied)
    with pytest.raises(WriteError, match="is not what was written to it; check the disk"):
        writer.copy(tmp_path / "results.h5")


ENDLESS = """
import sys, pathlib, itertools, numpy as np
from hpcfed.storage.results import Results
made = Results(pathlib.Path(sys.argv[1]), {}, {})
for t in itertools.count():
    made.append({"clients/accuracy": np.full(1000, t), "rounds/seconds": t})
    made.secure(t + 1)
    print(t + 1, flush=True)
"""


@pytest.mark.parametrize("rows", [1, 7, 20])
def test_a_killed_writer_leaves_every_forced_row(tmp_path, rows):
    command = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as writer:
        for line in writer.stdout:
            assert load(tmp_path).rounds >= int(line)  # readable while the run goes on
            if int(line) == rows:
                break
        writer.kill()
    record = load(tmp_path)
    assert record.rounds >= rows
    assert (record.column("clients/accuracy") == np.arange(record.rounds)[:, None]).all()
    Results.resume(tmp_path, rows, {}).write()
    assert os.listdir(tmp_path) == ["results.h5"]


WITHOUT_TORCH = """
import sys, pathlib
from hpcfed.storage.results import load
load(pathlib.Path(sys.argv[1]))
print("torch" in sys.modules)
"""


def test_results_are_read_without_torch(tmp_path):
    run_of(tmp_path, 1)
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


class Losing(uncached.Passing):
    """A file of which the n-th write, over all files, is lost, though the system says it is done.

    n: the writes until then; n < 0 after it.
    """

    n = 0

    def transfer(self, view):
        Losing.n -= 1
        if Losing.n == 0:
            self.seek(len(view), os.SEEK_CUR)
            return len(view)
        return super().transfer(view)


def test_a_lost_write_is_never_sealed_in_results_or_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(uncached, "Passing", Losing)
    about = About(3, {"job": {"seed": 1}})
    results = Results(tmp_path, {"job": {"seed": 1}}, {"label_counts": np.ones((K, 4))})
    for t in range(3):
        results.append(row(t))
    Losing.n = 0
    results.finish()
    record = load(tmp_path)
    folder = tmp_path / "checkpoints/round-000003"
    items = [("state", {"weight": np.arange(600_000.0)}), ("clients/0", {"bias": np.ones(7)})]
    part = write_part(folder, 0, items)
    refused = 0
    for write in (
        results.finish,
        lambda: write_part(folder, 0, items),
        lambda: write_index(folder, about, {0: part}),
    ):
        Losing.n = 0
        write()
        for n in range(1, 1 - Losing.n):
            Losing.n = n
            try:
                write()
            except WriteError as error:
                assert "cannot be read back" in str(error)
                refused += 1
            assert toy.differences(dict(load(tmp_path).columns), dict(record.columns)) == []
    assert refused > 60  # all but zeros beyond the end of a file, which cannot be lost
    with checkpoint.open_checkpoint(tmp_path) as file:
        file.verify()


def test_results_are_written_though_the_new_file_cannot_be_opened_at_once(tmp_path, monkeypatch):
    writer = Results(tmp_path, {"job": {"seed": 1}}, {})
    writer.append(row(0))
    with monkeypatch.context() as patch:
        patch.setattr(results, "Written", lambda path: (tmp_path / "stale").read_bytes())
        with pytest.raises(WriteError, match="stale"):
            writer.write()
    writer.append(row(1))
    writer.write()
    assert load(tmp_path).rounds == 2
