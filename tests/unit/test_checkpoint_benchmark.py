"""benchmarks/checkpoint.py works; it measures nothing here."""

import subprocess
from pathlib import Path

from tests import forked, limits
from tests.mpirun import environment

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_it_runs_small_and_writes_nothing():
    before = sorted((FOLDER / "results" / "bench").glob("*"))
    command = [forked.python(), str(FOLDER / "checkpoint.py"), "--check", "--passes", "1"]
    output = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=limits.COMMAND,
        env=environment({}),
    ).stdout
    assert "with a checkpoint of" in output and "'peak_with'" in output
    assert sorted((FOLDER / "results" / "bench").glob("*")) == before
