"""`hpcfed watch`: what is drawn from the files of runs that go on, and when it ends."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hpcfed import cli
from hpcfed.core.exit_status import RESUME_ME
from hpcfed.report.watch import command, terminal, web
from hpcfed.report.watch.view import View, look, warnings
from hpcfed.results import run as reader
from hpcfed.results.run import Run, find, name_runs
from hpcfed.storage import sweep as store
from hpcfed.storage.record import FINISHED, STOPPED, load
from hpcfed.storage.sweep import End, Member, Sweep
from tests import records


def open_runs(paths: Sequence[Path]) -> list[Run]:
    runs = find(paths, required=False)
    name_runs(runs)
    return runs


def views(paths: Sequence[Path]) -> list[View]:
    return [look(run) for run in open_runs(paths)]


def drawn(*paths: Path, width: int = 100, height: int = 50) -> str:
    """The terminal's view of these runs, as text."""
    console = Console(width=width, record=True, file=open("/dev/null", "w"), markup=False)  # noqa: SIM115
    console.print(terminal.render(views(paths), width, height))
    return console.export_text()


def test_a_view_has_the_evaluated_rounds_and_the_last_state_of_clients_and_ranks(tmp_path):
    writer = records.run(tmp_path, 2, total=5)
    nothing = np.full(4, np.nan)
    writer.append(records.row(3, 4, 2, clients__accuracy=nothing, clients__loss=nothing))
    writer.finish()
    [view] = views([tmp_path])
    want = load(tmp_path).columns["clients/accuracy"]
    assert (view.evaluated, view.mean) == ([1, 2], want[:2].mean(1).tolist())
    assert view.std == want[:2].std(1).tolist() and view.clients.tolist() == want[1].tolist()
    assert (view.loss, view.seconds) == ([1.0, 1 / 2, 1 / 3], [2.1] * 3)
    assert view.phases == {
        "train": [1, 2],
        "evaluate": [1, 2],
        "wait": [0.5, 0],
    }


def test_one_run_is_shown_with_curve_clients_ranks_and_time_left(tmp_path):
    text = drawn(records.run(tmp_path / "first", 4, total=10).path)
    for part in (
        "Local on digits, iid, 4 clients, seed 0",
        "running",
        "first: round 4/10, 2.10 s a round, 12.6 s left",
        "test accuracy, mean over clients: 0.6000",
        "training loss 0.250",
        "round 1",
        "cnn",
        "mlp",
        "train",
        "wait",
        "   0     2.50 s",
        "   1     4.00 s",
    ):
        assert part in text
    assert "warning" not in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("K", [3, 100])
def test_no_line_is_cut_or_folded(tmp_path, width, K):
    records.run(tmp_path / "run", 60, K=K, R=40, total=100)
    text = drawn(tmp_path / "run", width=width, height=40)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert "and 28 more ranks" in text and len(text.splitlines()) <= 40


def test_several_runs_have_one_line_each_with_a_distinguishing_name(tmp_path):
    for name in ("a/run", "b/run"):
        records.run(tmp_path / name, 3, total=4)
    lines = drawn(tmp_path / "a/run", tmp_path / "b/run").splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["a/run", "3/4"], ["b/run", "3/4"]]
    assert "▁" in lines[1] and "running" in lines[2]


def test_a_run_that_has_not_begun_is_shown_as_such(tmp_path):
    assert "not started" in drawn(tmp_path)


def test_clients_that_left_and_starts_from_checkpoints_are_warned_of(tmp_path):
    writer = records.run(tmp_path, 1, total=3, history=[{"rounds": 1, "ranks": 3}])
    writer.append(records.row(2, 4, 2, clients__fault=np.array([0, 1, 0, 1])))
    writer.finish()
    assert warnings(load(tmp_path), tmp_path) == [
        "continued after round 1 from a checkpoint, on 2 ranks after 3",
        "round 2: left out: client 1 (diverged), 3 (diverged)",
    ]
    assert "warning: round 2: left out: client 1 (diverged), 3 (diverged) (2 in all)" in drawn(
        tmp_path
    )


def swept(folder: Path, names_: Sequence[str]) -> Sweep:
    fields = {"rounds": 4, "algorithm.name": "local"}
    sweep = Sweep(folder, [], ".", 1, "", tuple(Member(name, [], fields) for name in names_))
    store.write(sweep)
    return sweep


@pytest.mark.parametrize("runs", ["a", "ab"])
def test_the_reason_of_a_failed_run_is_below_it_within_its_space(tmp_path, runs):
    sweep, why = (
        swept(tmp_path / "s", runs),
        "hpcfed: rank 0 of 1: the loss is nan in round 1, epoch 1, batch 2 (lr 9)",
    )
    store.note(sweep, "a", End(2, why, 0.0))
    lines = drawn(sweep.folder, width=80).splitlines()
    below = next(i for i, line in enumerate(lines) if line.startswith(("failed: ", "a: failed: ")))
    assert f"failed: status 2: {why}" in " ".join(line.strip() for line in lines[below:])
    assert "failed since 1970-01-01" in "".join(lines[:below]) and "nan" not in "".join(
        lines[:below]
    )


def test_watching_ends_when_all_runs_are_over(tmp_path, monkeypatch, capsys):
    sweep = swept(tmp_path / "s", "ab")
    writer = records.run(sweep.folder / "a", 2, total=4)
    store.note(sweep, "b", End(2, "hpcfed: no data", 0.0))
    looks = []

    def more(_: float) -> None:
        looks.append(writer.rounds)
        writer.append(records.row(writer.rounds + 1, 4, 2))
        if writer.rounds == 4:
            writer.header["ended"] = FINISHED
        writer.finish()

    monkeypatch.setattr(command, "sleep", more)
    assert cli.main(["watch", str(sweep.folder)]) == 1  # b has failed
    assert looks == [2, 3]
    out = capsys.readouterr().out
    assert (
        out.endswith("\n")
        and "4/4" in out
        and "finished" in out
        and "status 2: hpcfed: no data" in out
    )


def test_a_pruned_run_is_over_and_a_run_that_was_stopped_is_not(tmp_path):
    sweep = swept(tmp_path / "s", "ab")
    for name in "ab":
        records.run(sweep.folder / name, 2, total=4)
    store.note(sweep, "a", store.make_end(0, f"{store.PRUNED}: below the median"))
    store.note(sweep, "b", store.make_end(RESUME_ME, "stopped"))
    pruned, stopped = views([sweep.folder])
    assert (pruned.state.word, pruned.over) == ("stopped", True)
    assert (stopped.state.word, stopped.over) == ("stopped", False)
    with web.Server(open_runs([sweep.folder])[:1], 0) as server:
        assert server.look()["over"]


def test_a_stopped_run_ends_watching_only_where_nobody_sees_it_continue(
    tmp_path, monkeypatch, capsys
):
    writer = records.run(tmp_path / "a", 2, total=4)
    writer.header["ended"] = STOPPED
    writer.finish()
    looks: list[float] = []

    def on_terminal(seconds: float) -> None:
        looks.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "sleep", on_terminal)
    assert cli.main(["watch", str(tmp_path / "a")]) == 0 and looks == []
    assert "stopped" in capsys.readouterr().out
    screen = Console(force_terminal=True, width=80)
    monkeypatch.setattr(command, "console", lambda: screen)
    assert cli.main(["watch", str(tmp_path / "a")]) == command.INTERRUPTED and len(looks) == 1


def test_without_a_terminal_runs_whose_process_is_gone_end_watching_with_status_1(
    tmp_path, monkeypatch, capsys
):
    sweep = swept(tmp_path / "s", ("stale", "early", "damaged"))
    stale, early, damaged = (records.run(sweep.folder / run.name, 1, total=4) for run in sweep.runs)
    os.utime(stale.path, (0, 0))
    early.header["job"]["run"] = {"watchdog": 60.0}
    early.finish()
    damaged.path.write_bytes(damaged.path.read_bytes()[:100])
    looks: list[float] = []

    def one_more_look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "sleep", one_more_look)
    assert cli.main(["watch", str(sweep.folder)]) == 1 and len(looks) == 1
    lines = capsys.readouterr().out.splitlines()
    for name, state in (
        ("stale", "no sign since"),
        ("early", "ended early"),
        ("damaged", "damaged"),
    ):
        assert any(name in line.split()[:1] and state in line[len(name) :] for line in lines)


def test_a_damaged_run_does_not_keep_other_runs_from_being_shown(tmp_path, monkeypatch, capsys):
    records.run(tmp_path / "fine", 3)
    damaged = records.run(tmp_path / "damaged", 3)
    damaged.path.write_bytes(damaged.path.read_bytes()[:100])
    monkeypatch.setattr(command, "sleep", lambda _: None)
    assert cli.main(["watch", str(tmp_path / "damaged"), str(tmp_path / "fine")]) == 1
    shown, below, *_ = capsys.readouterr().out.splitlines()[1:]
    assert "fine" in shown and "3/3" in shown and "finished" in shown
    assert "damaged" in below


def test_a_run_that_ends_between_two_reads_of_its_files_is_looked_at_again(tmp_path, monkeypatch):
    writer = records.run(tmp_path, 3, total=4)
    writer.header["job"]["run"] = {"watchdog": 60.0}  # its signs are gone before its last rounds
    writer.finish()

    def last_round(_: float) -> None:
        writer.append(records.row(4, 4, 2))
        writer.header["ended"] = FINISHED
        writer.finish()

    monkeypatch.setattr(command, "sleep", last_round)
    assert cli.main(["watch", str(tmp_path)]) == 0


def test_a_run_is_read_again_only_if_its_files_have_changed(tmp_path, monkeypatch):
    writer, reads = records.run(tmp_path, 1, total=3), []
    monkeypatch.setattr(reader, "load", lambda path: reads.append(path) or load(path))
    run = open_runs([tmp_path])[0]
    view = look(run)
    assert [look(run, view).state.rounds for _ in range(3)] == [1, 1, 1] and len(reads) == 1
    assert look(run, view).warnings is view.warnings  # nor counted again
    writer.append(records.row(2, 4, 2))
    writer.finish()
    assert look(run).state.rounds == 2 and len(reads) == 2


def test_a_file_that_is_damaged_meanwhile_is_a_state(tmp_path):
    writer = records.run(tmp_path, 1, total=3)
    run = open_runs([tmp_path])[0]
    look(run)
    content = writer.path.read_bytes()
    writer.path.write_bytes(content[:100])
    assert look(run).state.word == "damaged"
    writer.path.write_bytes(content)
    assert look(run).state.rounds == 1


def test_ctrl_c_ends_watching_without_a_traceback(tmp_path, monkeypatch):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "sleep", interrupt)
    assert command.watch([records.run(tmp_path, 1, total=3).path]) == 130


def test_watching_waits_for_a_run_that_has_no_folder_yet_and_says_so(tmp_path, monkeypatch, capsys):
    run = tmp_path / "later"
    monkeypatch.setattr(command, "sleep", lambda _: records.run(run))  # it begins, and is finished
    assert command.watch([run]) == 0
    out, err = capsys.readouterr()
    assert f"waiting for {run}" in err and "Ctrl-C" in err and "3/3" in out


@pytest.mark.parametrize("words", [["run", "--port", "80"], ["run", "--web", "--port", "0"]])
def test_wrong_paths_and_ports_are_one_message(tmp_path, words, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records.run(tmp_path / "run", 1)
    assert cli.main(["watch", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words[-1] in err and "Traceback" not in err


def test_a_run_of_survival_times_shows_its_first_metric(tmp_path):
    writer = records.run(tmp_path, 0, total=5, metrics=["c_index"])
    for t in (1, 2):
        index = np.array([0.5, 0.75, 0.625, 0.625]) + (t - 1) / 8
        none = np.full(4, np.nan)
        writer.append(records.row(t, 4, 2, clients__accuracy=none, clients__c_index=index))
    writer.finish()
    text = drawn(tmp_path)
    assert "test C-index, mean over clients: 0.7500" in text and "accuracy" not in text
    both = drawn(tmp_path, records.run(tmp_path / "other", 3, total=4).path.parent)
    assert "C-index 0.7500" in both and "accuracy 0.5625" in both
    [view] = views([tmp_path])
    assert view.mean == [0.625, 0.75] and view.clients.tolist() == [0.625, 0.875, 0.75, 0.75]
