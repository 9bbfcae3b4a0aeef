"""A user's function at the end of each round: what it is called with, and what it cannot change."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hpcfed
from hpcfed.core.errors import ConfigError
from hpcfed.main import main
from hpcfed.storage.digest import digest
from tests.mpirun import mpirun

TINY = {"rounds": 3, "clients": 3, "quiet": True, "models": {"mix": ["mlp"], "d": 8}}
TINY |= {"data": {"train_limit": 100}, "algorithm": "fedavg"}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def test_it_gets_the_run_so_far_and_the_numbers_of_the_round_and_changes_no_bit():
    calls: list[tuple[int, int, float, float]] = []

    def look(run: hpcfed.Run, row: dict[str, Any]) -> None:
        torch.rand(5)
        with pytest.raises(ValueError, match="read-only"):
            run.accuracy[0] = 0
        calls.append((row["round"], len(run), run.accuracy[-1].mean(), row["accuracy/mean"]))

    watched = hpcfed.run(**TINY, out="a", on_round=look)
    assert [call[:2] for call in calls] == [(1, 1), (2, 2), (3, 3)]
    assert [call[2] for call in calls] == pytest.approx([call[3] for call in calls])
    assert digest(watched.folder) == digest(hpcfed.run(**TINY, out="b").folder)


def test_a_faulty_function_is_cleared_by_none():
    def leave(run: hpcfed.Run, row: dict[str, Any]) -> None:
        sys.exit("enough")

    with pytest.raises(ConfigError, match=r"on_round = .*after round 1: .*SystemExit: enough"):
        hpcfed.run(**TINY, out="a", on_round=leave)
    assert hpcfed.run(**TINY, out="a", resume=True, on_round="none").finished
    assert hpcfed.run(**TINY, out="b", on_round=None).finished


def test_its_error_is_one_message_and_the_run_is_saved_and_resumed():
    rounds: list[int] = []

    def fail(run: hpcfed.Run, row: dict[str, Any]) -> None:
        rounds.append(row["round"])
        if len(rounds) == 2:
            row["absent"]

    with pytest.raises(ConfigError, match=r"on_round = .*after round 2: .*KeyError: 'absent'"):
        hpcfed.run(**TINY, out="a", on_round=fail)
    resumed = hpcfed.run(**TINY, out="a", on_round=fail, resume=True)
    assert rounds == [1, 2, 3] and resumed.finished
    assert digest(resumed.folder) == digest(hpcfed.run(**TINY, out="b").folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(run): ...", r"takes \(run\), and is called with a run and a row"),
        ("f = 3", "is no function; write `def f"),
        ("def g(run, row): ...", "has no 'f'"),
    ],
)
def test_a_wrong_function_is_refused_before_the_first_round(source, message):
    Path("mine.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        hpcfed.run(**TINY, out="a", on_round="mine:f")
    assert not Path("a").exists()


def test_a_job_names_it_and_only_rank_0_calls_it(tmp_path):
    Path("mine.py").write_text(
        "def f(run, row):\n    with open('calls', 'a') as file:\n        file.write('x')\n"
    )
    words = ["--models.mix", "mlp", "--clients", "3", "--rounds", "2", "--data.train_limit", "100"]
    words += ["--on-round", "mine:f", "--out", "a", "--quiet"]
    mpirun(2, "-m", "hpcfed.main", *words, cwd=tmp_path)
    assert Path("calls").read_text() == "xx"
    assert main(["--resume", "a", "--rounds", "3", "--quiet"]) != 0  # only the file names it
