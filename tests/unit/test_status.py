"""Where runs stand, and their last rounds, as their files tell."""

import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hpcfed import cli
from hpcfed.core import wording
from hpcfed.core.errors import ConfigError
from hpcfed.report.status import status
from hpcfed.results import state as states
from hpcfed.results.run import find
from hpcfed.storage import lock, names
from hpcfed.storage import sweep as store
from hpcfed.storage.results import Results
from hpcfed.storage.sweep import End, Member, Sweep

NOW = 1_800_000_000.0  # Unix seconds


def results(folder: Path, rounds: int = 10, **about: object) -> Results:
    """The writer of a run of so many rounds, that takes 2 s for each."""
    job = {"algorithm": {"name": "local"}, "rounds": rounds, "run": {"watchdog": 1800.0}}
    folder.mkdir(parents=True, exist_ok=True)
    return Results(folder, {"job": job, "ranks": 1, "architectures": ["mlp", "cnn"]} | about, {})


def row(accuracy: float) -> dict[str, object]:
    return {
        "clients/accuracy": np.array([accuracy, accuracy]),
        "clients/train_loss": np.array([1.0, 2.0]),
        "rounds/seconds": 2.0,
    }


def written(run: Results, rounds: int) -> Path:
    """Its folder, when so many rounds are on disk."""
    for _ in range(rounds):
        run.append(row(0.5))
    run.finish()
    return run.path.parent


def age(path: Path, seconds: float) -> None:
    os.utime(path, (NOW - seconds, NOW - seconds))


def sign(run: Path, seconds: float) -> None:
    """A rank's sign that it left so many seconds ago."""
    names.watch_folder(run).mkdir()
    names.watch_file(run, 0).touch()
    age(names.watch_file(run, 0), seconds)


@pytest.fixture(autouse=True)
def now(monkeypatch) -> None:
    monkeypatch.setattr(states, "time", lambda: NOW)


def test_a_run_with_recent_signs_is_running_and_its_remaining_time_is_given(tmp_path):
    run = written(results(tmp_path / "run"), 4)
    sign(run, 30)
    names.checkpoint_folder(run).mkdir()
    names.checkpoint_file(run, 3).touch()
    state = states.state(run)
    assert (state.word, state.rounds, state.total, state.accuracy) == ("running", 4, 10, 0.5)
    assert (state.seconds, state.left, state.saved) == (2.0, 12.0, 3)


def test_old_signs_are_those_of_a_run_that_was_killed(tmp_path):
    run = written(results(tmp_path / "run"), 4)
    sign(run, 1000)
    state = states.state(run)
    assert (state.word, state.since, state.left) == ("stale", NOW - 1000, None)


def test_a_killed_run_is_detected_at_once_by_its_lock(tmp_path):
    run = written(results(tmp_path / "run"), 4)
    sign(run, 1)
    alive = lock.this_process("")
    for holder, word in ((alive, "running"), (replace(alive, started="0"), "stale")):
        names.lock_file(run).unlink(missing_ok=True)
        assert lock.put(names.lock_file(run), holder)
        assert states.state(run).word == word


def test_a_run_within_another_program_is_running_while_that_holds_its_lock(tmp_path):
    """It writes no signs, for its watchdog is off."""
    run = written(results(tmp_path / "run"), 4)
    assert lock.put(names.lock_file(run), lock.this_process(""))
    assert states.state(run).word == "running"
    names.lock_file(run).unlink()
    assert states.state(run).word == "ended early"


def test_a_run_without_signs_has_ended_and_says_how(tmp_path):
    for ended, rounds, word in [
        ("stopped", 4, "stopped"),
        ("finished", 10, "finished"),
        (None, 4, "ended early"),
    ]:
        about = {"ended": ended} if ended else {}
        assert states.state(written(results(tmp_path / word, **about), rounds)).word == word


def test_a_run_is_finished_only_after_its_final_steps(tmp_path):
    stopped, killed = results(tmp_path / "stopped", ended="stopped"), results(tmp_path / "killed")
    assert states.state(written(stopped, 10)).word == "stopped"
    assert states.state(written(killed, 10)).word == "ended early"
    sign(tmp_path / "killed", 30)
    assert states.state(tmp_path / "killed").word == "running"


def test_a_run_without_a_watchdog_is_running_while_it_writes(tmp_path):
    run = results(tmp_path / "run")
    run.header["job"]["run"]["watchdog"] = 0.0
    written(run, 4)
    age(run.path, 100)
    assert states.state(tmp_path / "run").word == "running"
    age(run.path, 1000)
    assert (states.state(tmp_path / "run").word, states.state(tmp_path / "run").since) == (
        "stale",
        NOW - 1000,
    )


def test_a_folder_without_results_and_a_damaged_file_are_states_too(tmp_path):
    assert states.state(tmp_path).word == "not started"
    run = written(results(tmp_path / "run"), 1)
    names.results_file(run).write_bytes(b"no HDF5")
    assert states.state(run).word == "damaged" and "results.h5" in states.state(run).why


def test_a_sweep_lists_its_runs_with_those_that_failed_or_are_not_begun(tmp_path, capsys):
    sweep = Sweep(
        tmp_path / "s", [], ".", 1, "", tuple(Member(name, [], {"rounds": 10}) for name in "abcd")
    )
    store.write(sweep)
    written(results(sweep.folder / "a", ended="finished"), 10)
    store.note(sweep, "b", End(2, "hpcfed: no data", NOW))
    store.note(sweep, "c", End(75, "stopped by a signal", NOW))
    rows = status([sweep.folder], json=True)
    assert [Path(r["run"]).name for r in rows] == list("abcd")
    assert [r["word"] for r in rows] == ["finished", "failed", "stopped", "not started"]
    assert (rows[1]["why"], rows[3]["total"]) == ("status 2: hpcfed: no data", 10)
    assert cli.main(["status", str(sweep.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "hpcfed: no data" in lines[2] and "0/10" in lines[4]


def test_a_run_of_a_sweep_that_got_more_rounds_is_not_finished(tmp_path):
    written(results(tmp_path / "a", ended="finished"), 10)
    for rounds, word in ((8, "finished"), (10, "finished"), (12, "stopped")):
        run = Member("a", [], {"rounds": rounds})
        store.write(sweep := Sweep(tmp_path, [], ".", 1, "", (run,)))
        assert (states.member(sweep, run).word, find([tmp_path])[0].state.word) == (word, word)
    assert (states.member(sweep, run).rounds, states.member(sweep, run).total) == (10, 12)
    early = Member("e", [], {"rounds": 12})
    written(results(tmp_path / "e", ended="finished", early="no lower loss"), 3)
    assert states.member(Sweep(tmp_path, [], ".", 1, "", (early,)), early).word == "finished"


def test_a_folder_means_the_runs_sweeps_and_result_files_in_it(tmp_path):
    for place in ("b", "a", "old/c"):
        written(results(tmp_path / "all" / place, ended="finished"), 10)
    moved_run = written(results(tmp_path / "moved", ended="finished"), 10)
    (moved_run / "results.h5").rename(tmp_path / "all/d.h5")
    (tmp_path / "all/empty").mkdir()
    names = [row["run"] for row in status([tmp_path / "all"], json=True)]
    assert names == [str(tmp_path / "all" / name) for name in ("a", "b", "d.h5", "old/c")]
    assert {row["word"] for row in status([tmp_path / "all"], json=True)} == {"finished"}
    assert [row["word"] for row in status([tmp_path / "all/empty"], json=True)] == ["not started"]


def test_a_wrong_path_is_one_message(tmp_path, capsys):
    written(results(tmp_path / "run"), 1)
    for words, message in [
        (["status", str(tmp_path / "absent")], "absent: there is no such file or folder"),
    ]:
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and message in err


def of_survival(run: Results, values: list[float]) -> Path:
    """A run of survival times whose C-indices are these, one per round."""
    none = np.full(2, np.nan)
    for value in values:
        index = np.array([value - 0.125, value + 0.125])
        run.append({**row(0.5), "clients/accuracy": none, "clients/c_index": index})
    run.finish()
    return run.path.parent


def test_a_run_without_accuracy_shows_its_first_metric(tmp_path, capsys):
    run = of_survival(results(tmp_path / "a", 3, metrics=["c_index"]), [0.5, 0.625])
    other = written(results(tmp_path / "b", 3), 1)
    assert cli.main(["status", str(run)]) == 0
    head, line = capsys.readouterr().out.splitlines()[:2]
    assert "C-index" in head and "accuracy" not in head and " 0.6250 " in line
    assert cli.main(["status", str(run), str(other)]) == 0
    out = capsys.readouterr().out
    assert "metric" in out.splitlines()[0] and "C-index 0.6250" in out and "accuracy 0.5000" in out
    [row, same] = status([run, other], json=True)
    assert (row["metric"], row["value"], row["accuracy"]) == ("c_index", 0.625, None)
    assert (same["metric"], same["value"], same["accuracy"]) == ("accuracy", 0.5, 0.5)


def test_long_names_are_cut_in_their_middle_so_that_seeds_stay_visible(tmp_path):
    for seed in (0, 1):
        written(results(tmp_path / f"fedclassavg-fashion-mnist-dirichlet-lr=0.001_seed={seed}"), 10)
    shown = Console(width=100, file=io.StringIO())
    shown.print(status([tmp_path]))
    words = shown.file.getvalue().split()
    assert [word[-7:] for word in words if "…" in word] == ["_seed=0", "_seed=1"]
    assert [wording.cut_middle("abcdefg", n) for n in (7, 6, 3, 1)] == [
        "abcdefg",
        "abc…fg",
        "a…g",
        "…",
    ]


def test_runs_are_found_by_their_tags_and_shown_with_their_notes(tmp_path):
    for name, tags in (("a", ["final", "small"]), ("b", ["final"]), ("c", [])):
        job = {"algorithm": {"name": "local"}, "rounds": 1, "run": {"watchdog": 1800.0}}
        about = {"tag": tags, "note": f"of {name}"} if tags else {}
        written(results(tmp_path / name, job=job | about), 1)
    assert [one["run"][-1] for one in status([tmp_path], json=True, tag="final")] == ["a", "b"]
    [one] = status([tmp_path], json=True, tag="small,final")
    assert (one["tags"], one["note"]) == (["final", "small"], "of a")
    assert [str(column.header) for column in status([tmp_path]).columns][-2:] == ["tags", "note"]
    assert "tags" not in [str(column.header) for column in status([tmp_path / "c"]).columns]
    with pytest.raises(ConfigError, match="--tag smal: no run has it; tags here: final, small"):
        status([tmp_path], tag="smal")


def test_without_a_name_status_shows_the_runs_below_the_folder_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["status"]) == 2 and "runs: there is no such" in capsys.readouterr().err
    written(results(Path("runs/a"), 1), 1)
    assert cli.main(["status"]) == 0 and "runs/a" in capsys.readouterr().out
