"""The benchmarks of `make bench`: each can be run, and the table says what their files say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import limits

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import remake  # noqa: E402
import report  # noqa: E402
from apart import Apart  # noqa: E402
from paired import RESULTS, Ratio, Row  # noqa: E402


def test_each_benchmark_can_be_imported_and_has_a_main():
    code = (
        "import importlib, sys; print([callable(importlib.import_module(name).main) for name "
        "in sys.argv[1:]])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, *report.CPU],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
    )
    assert said.stdout.strip() == str([True] * len(report.CPU)), said.stderr


def test_make_bench_runs_what_the_table_holds():
    line = re.search(r"^BENCH := (.*)$", (FOLDER.parent / "Makefile").read_text(), re.MULTILINE)
    assert line and tuple(line[1].split()) == report.CPU


@pytest.mark.skipif(not (RESULTS / "table.md").exists(), reason="no benchmark has been run")
def test_the_table_is_composed_of_the_files():
    assert (RESULTS / "table.md").read_text() == report.compose(RESULTS)


def test_a_row_comes_back_from_its_file():
    row = Row("a over b", Ratio(1.5, 1.0, 2.0), most=1.4, details={"n": 3})
    kept = {
        "what": "a over b",
        "ratio": [1.5, 1.0, 2.0],
        "most": 1.4,
        "least": None,
        "details": {"n": 3},
        "met": False,
    }
    assert report.row(json.loads(json.dumps(kept))) == row and not row.met


def test_what_runs_apart_leaves_this_process_as_it_is():
    with Apart(changing) as other:
        assert other() is True and "CHANGED" not in os.environ


def changing():
    os.environ["CHANGED"] = "yes"
    return lambda: os.environ["CHANGED"]


REMADE_NEXT = ("methods", "ablation-digits")  # by `python benchmarks/remake.py` with these names
not_yet = pytest.mark.xfail(strict=True, reason="its runs have not been made anew yet")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=not_yet if name in REMADE_NEXT else ()) for name in remake.SHOWN],
)
def test_results_that_are_shown_are_of_the_jobs_that_their_command_would_run(name: str):
    runs = remake.SHOWN[name][0]()
    made = {run.kept.resolve() for run in runs}
    assert made == {path.resolve() for path in (remake.RESULTS / name).glob("*.h5")}
    assert {run.kept.name: lines for run in runs if (lines := remake.stale(run))} == {}


def test_a_result_of_another_job_is_stale_with_the_fields_that_differ():
    run = remake.SHOWN["demo"][0]()[0]
    assert remake.stale(run) == []
    other = run._replace(flags=(*run.flags, "--rounds", "3", "--local.lr", "0.1"))
    assert remake.stale(other) == ["local.lr was 0.0005, is 0.1", "rounds was 80, is 3"]
    gone = run._replace(kept=run.kept.with_name("none.h5"))
    assert remake.stale(gone) == ["there is no such file"]


def test_the_readmes_sweep_is_what_remakes_its_table():
    flags = " ".join(remake.SHOWN["try"][0]()[-1].flags)
    readme = (FOLDER.parent / "README.md").read_text()
    assert (
        f"hpcfed sweep --algorithm.name {','.join(remake.TRY)} --seed 0,1,2 --rounds 20" in readme
    )
    assert flags == "--algorithm.name fedclassavg --seed 2 --rounds 20"


def test_every_folder_of_results_can_be_remade():
    assert {path.parent.name for path in remake.RESULTS.glob("*/*.h5")} == set(remake.SHOWN)
