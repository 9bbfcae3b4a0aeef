"""benchmarks/gpu.py, every part of which runs on the CPU too, so that it works where there is a GPU
to measure.
"""

import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from tests import limits

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

from cases import LOGISTIC, Case  # noqa: E402
from naive import Order  # noqa: E402
from pretend import capture_on_cpu  # noqa: E402
from side import Side  # noqa: E402

FEW = replace(LOGISTIC, clients=2, n=25)


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
    assert said.count("'eager and graphed have the same bits': True") == 2
    assert "'losses do not depend on ranks': True" in said
    assert "{'fedhenn-1': 1, 'mlp': 1}" in said and "one model, all of it averaged" in said
    assert "this Python has no module pfl" in said
    assert sorted((FOLDER / "results" / "bench").glob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    assert gpu().count("\n") == 1


def test_a_graphed_side_that_has_captured_nothing_is_an_error():
    side = Side(FEW, "cpu", "graphed")
    side()
    with pytest.raises(RuntimeError, match="no step of logistic was captured"):
        side.check_captures()
    with capture_on_cpu():
        side = Side(FEW, "cpu", "graphed")
        side()
        assert side.check_captures() == {"logistic": 1}
        assert side.steps(times=1)["logistic"]["share of training"] > 0


def test_operations_are_those_that_are_computed():
    """Of logistic regression on 784 values: forward, and backward to the weights alone, each 784 x
    10 products and as many sums.
    """
    assert Side(FEW, "cpu", "eager").flop_by_example() == {"logistic": 2 * 2 * 784 * 10}


def test_clients_of_unequal_sizes_are_the_same_for_the_naive_loop():
    case: Case = replace(FEW, partition="quantity", clients=3)
    side = Side(case, "cpu", "eager")
    sizes = [len(y) for _, y in side.data()]
    assert sizes == list(side.fed.sizes) and len(set(sizes)) > 1
    order = Order(sizes, 10)
    rows = list(order)
    assert len(rows) == len(order.owners())
    assert sorted(chain.from_iterable(rows)) == list(range(sum(sizes)))
    owned = zip(order.owners(), rows, strict=True)
    first = chain.from_iterable(part for k, part in owned if k == 0)
    assert sorted(first) == list(range(sizes[0]))
