"""benchmarks/chaos.py: names draw runs, faults do what they say;
a run is struck.
"""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from hpcfed.core.rng import stream
from tests import forked, limits
from tests.mpirun import environment, ulfm

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import calls  # noqa: E402
import chaos  # noqa: E402
import faults  # noqa: E402
import tally  # noqa: E402
from struck import JOBS, Outcome  # noqa: E402


def asked(**options: object) -> Namespace:
    return Namespace(
        **{
            "runs": 2 * len(faults.FAULTS),
            "seed": 0,
            "only": None,
            "number": None,
            "results": None,
            "at_once": 1,
        }
        | options
    )


def test_a_failing_run_can_be_had_again_by_its_name():
    runs = chaos.drawn(asked())
    last = runs[-1]
    assert chaos.drawn(asked(only=[last.kind], number=last.number)) == [last]
    assert f"--seed 0 --only {last.kind} --number {last.number}" in str(Outcome(last, "lost"))


def test_each_kind_has_its_turns_with_few_ranks_in_its_rounds():
    runs = chaos.drawn(asked(runs=20 * len(faults.FAULTS)))
    assert len(set(runs)) == len(runs) and {run.job for run in runs} == set(JOBS)
    for run in runs:
        first, last = run.fault.rounds
        assert (
            first <= run.round <= last < faults.ROUNDS
            and run.fault.fewest <= run.ranks[0] <= chaos.MOST
        )


@pytest.mark.parametrize("deed", [faults.flipped, faults.truncated, faults.removed])
def test_a_damaged_file_is_detected(tmp_path, deed):
    path, content = tmp_path / "part", bytes(range(100))
    path.write_bytes(content)
    deed(lambda run: [run / "part"], tmp_path, stream(0, "damage"))
    assert not path.exists() or path.read_bytes() != content


def test_a_supervised_run_ends_with_the_same_bits_after_all_ranks_are_killed_at_once():
    ulfm()
    before = sorted((FOLDER / "results" / "bench").glob("*"))
    command = [forked.python(), str(FOLDER / "chaos.py"), "--only", "kill-all", "--number", "33"]
    output = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
        check=True,
        env=environment({}),
    ).stdout
    assert "| SIGKILL of all ranks, ULFM, hpcfed supervise | 1 | 1 |" in output
    assert sorted((FOLDER / "results" / "bench").glob("*")) == before


@pytest.mark.skipif(not calls.compiler(), reason="no C compiler, cc")
def test_the_file_call_that_is_named_is_struck_and_no_other(tmp_path):
    """The third write below the run folder is lost, though it counts as done."""
    one = calls.Calls("write", "lose", most=1)
    words = one.words(tmp_path / "run", 1, stream(0, "calls"))
    words[words.index("CALLS_AT=1")] = "CALLS_AT=3"
    deed = "import sys; [open(f'{sys.argv[1]}{i}', 'wb', 0).write(b'ab') for i in range(5)]"
    command = [*words, sys.executable, "-c", deed, str(tmp_path / "run")]
    subprocess.run(command, check=True)
    assert [(tmp_path / f"run{i}").read_bytes() for i in range(5)] == [b"ab"] * 2 + [b""] + (
        [b"ab"] * 2
    )
    assert (tmp_path / "struck").read_text() == f"write {tmp_path}/run2\n"


def test_a_run_counts_only_if_its_file_call_was_struck():
    case = chaos.draw(0, "call-write", 0)
    reached, missed = Outcome(case, "same", struck="write run/results.h5"), Outcome(case, "same")
    killed = Outcome(chaos.draw(0, "kill", 0), "same")
    rows = tally.rows([reached, missed, killed], faults.FAULTS)
    assert [(row["kind"], row["runs"]) for row in rows] == [("kill", 1), ("call-write", 1)]
    assert Outcome.of(reached.plain()) == reached
