"""Logs of ranks: a line per round of each rank, and the error that ended it."""

import re
from pathlib import Path

import pytest

import hpcfed
from hpcfed.core.errors import ConfigError
from tests.mpirun import mpirun

TINY = {"rounds": 2, "clients": 3, "quiet": True, "models": {"mix": ["mlp"], "d": 8}}
TINY |= {"data": {"train_limit": 100}, "algorithm": "fedavg", "log": {"ranks": True}}


def texts(path: Path) -> list[str]:
    """Return the lines of a log without their times."""
    return [line[20:] for line in path.read_text().splitlines()]


def test_each_rank_logs_its_rounds_and_a_resumed_run_appends(tmp_path):
    words = ["--models.mix", "mlp", "--clients", "3", "--data.train_limit", "100", "--log.ranks"]
    words += ["--models.d", "8", "--quiet", "--algorithm.name", "fedavg"]
    mpirun(2, "-m", "hpcfed.main", *words, "--rounds", "2", "--out", "a", cwd=tmp_path)
    logs = [texts(tmp_path / "a" / "ranks" / f"rank-{rank}.log") for rank in range(2)]
    for rank, (start, *rounds, end) in enumerate(logs):
        assert start.startswith(f"rank {rank} of 2, process ") and end == "ended in order"
        assert [line.partition(":")[0] for line in rounds] == ["round 1", "round 2"]
        assert all(re.search(r"train [\d.e-]+ s.*peak memory [\d.]+ MB", line) for line in rounds)
    assert sum(int(re.search(r": (\d) client", log[0])[1]) for log in logs) == 3
    hpcfed.run(**TINY | {"rounds": 3}, resume=tmp_path / "a")
    start, third, end = texts(tmp_path / "a/ranks/rank-0.log")[4:]
    assert start.startswith("rank 0 of 1, process ") and end == "ended in order"
    assert third.startswith("round 3: 3 clients; ")


def test_the_error_that_ended_a_rank_is_in_its_log(tmp_path):
    def fail(run: hpcfed.Run, row: dict[str, float]) -> None:
        raise KeyError("absent")

    with pytest.raises(ConfigError):
        hpcfed.run(**TINY, out=tmp_path / "a", on_round=fail)
    last = (tmp_path / "a/ranks/rank-0.log").read_text()
    assert "ended by an error: on_round" in last and "KeyError: 'absent'" in last


def test_nothing_is_written_unless_asked_for(tmp_path):
    run = hpcfed.run(**TINY | {"log": {}}, out=tmp_path / "a")
    assert not (run.folder / "ranks").exists()
