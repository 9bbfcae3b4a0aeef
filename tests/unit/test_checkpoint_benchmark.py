"""benchmarks/checkpoint.py works; it measures nothing here."""

import subprocess
import sys
from pathlib import Path

from tests import limits

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_it_runs_small_and_writes_nothing():
    before = sorted((FOLDER / "results" / "bench").glob("*"))
    command = [sys.executable, str(FOLDER / "checkpoint.py"), "--check", "--passes", "1"]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=limits.COMMAND
    ).stdout
    assert "with a checkpoint of" in output and "'peak_with'" in output
    assert sorted((FOLDER / "results" / "bench").glob("*")) == before
