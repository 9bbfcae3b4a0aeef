"""benchmarks/gpu.py, every part of which runs on the CPU too, so that it works where there is a GPU
to measure.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import limits

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def gpu(*flags: str) -> str:
    """What the benchmark prints."""
    command = [sys.executable, str(FOLDER / "gpu.py"), *flags]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=limits.COMMAND
    ).stdout


def test_every_part_runs_on_the_cpu_and_writes_nothing():
    before = sorted((FOLDER / "results" / "bench").glob("*"))
    said = gpu("--check")
    assert "naive loop over hpcfed, graphed bf16" in said and "2 ranks on one GPU" in said
    assert (
        "'eager and graphed have the same bits': True" in said
        and "'losses do not depend on ranks': True" in said
    )
    assert sorted((FOLDER / "results" / "bench").glob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    assert gpu().count("\n") == 1
