"""benchmarks/chaos.py: names draw runs, faults do what they say, the table tells what became of it;
a run is struck.
"""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from hpcfed.core.errors import DamagedError
from hpcfed.core.rng import stream
from hpcfed.storage import names
from hpcfed.storage.results import Results, load
from tests import limits
from tests.mpirun import environment, ulfm

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import calls  # noqa: E402
import chaos  # noqa: E402
import faults  # noqa: E402
import report  # noqa: E402
import tally  # noqa: E402
from struck import JOBS, History, Outcome  # noqa: E402
from watched import Hung, Told, Watched  # noqa: E402


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


def test_a_run_that_has_saved_is_gone_on_with_and_one_that_has_not_begins_anew(tmp_path):
    case = chaos.draw(0, "node", 0)
    assert not {"--resume", "--overwrite"} & set(case.command(tmp_path, later=True))
    names.results_file(tmp_path).touch()
    assert case.command(tmp_path, later=True)[-1] == "--overwrite"
    names.checkpoint_folder(tmp_path).mkdir()
    names.checkpoint_file(tmp_path, 2).touch()
    assert case.command(tmp_path, later=True)[-2:] == ["--resume", str(tmp_path)]


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
def test_a_damaged_file_is_not_what_it_was(tmp_path, deed):
    path, content = tmp_path / "part", bytes(range(100))
    path.write_bytes(content)
    deed(lambda run: [run / "part"], tmp_path, stream(0, "damage"))
    assert not path.exists() or path.read_bytes() != content


@pytest.mark.parametrize(
    "kind", [kind for kind, fault in faults.FAULTS.items() if fault.rounds == faults.GOING_ON]
)
def test_what_strikes_a_run_that_goes_on_does_so_before_its_end(kind):
    """After that nothing could mend a file, and the clean end of the run would be chance."""
    assert {chaos.draw(0, kind, i).round for i in range(50)} <= set(
        range(1, faults.ROUNDS // 2 + 1)
    )


def test_a_bit_is_flipped_in_place_as_soon_as_there_is_a_file(tmp_path):
    """Now and then the file is as old as before."""
    path, calls, ages = tmp_path / "part", [], set()

    def files(run: Path) -> list[Path]:
        calls.append(run)
        if len(calls) == 3:
            path.write_bytes(bytes(100))
        return [path] if path.exists() else []

    def until(condition, what: str) -> None:
        while not condition():
            pass

    job, g, before = Namespace(until=until), stream(0, "flip"), bytes(100)
    for _ in range(8):
        faults.during(faults.flipped, files, job, tmp_path, g)
        after = path.read_bytes()
        changed = [a ^ b for a, b in zip(before, after, strict=True)]
        assert sum(byte.bit_count() for byte in changed) == 1
        before = after
        ages.add(path.stat().st_mtime_ns)
    assert 1 < len(ages) < 8


def test_another_program_writes_into_the_results_of_a_run(tmp_path):
    made = Results(tmp_path, {}, {})
    made.append({"rounds/seconds": 1.0})
    made.write()
    faults.opened(faults.result_file, tmp_path, stream(0, "write"))
    with pytest.raises(DamagedError, match="results.h5: damaged"):
        load(tmp_path)


def test_runs_that_a_result_file_has_are_not_made_again(tmp_path):
    options = asked(results=tmp_path / "chaos.json", runs=5)
    cases = chaos.drawn(options)
    outcomes = [
        Outcome(cases[0], "same", 2, 1.5, (0,), took=3.0),
        Outcome(cases[1], "lost", 0, 1.0, (75, 2), unexpected=True, said="why"),
    ]
    assert chaos.recorded(options) == []
    chaos.save(outcomes, options)
    assert chaos.recorded(options) == outcomes
    assert chaos.recorded(asked(results=options.results, seed=1)) == []


def test_what_a_run_told_before_and_after_the_fault_gives_repeated_rounds_and_seconds():
    told = [Told(t, 0.1 * i) for i, t in enumerate([1, 2, 3, 4, 3, 4, 5, 6])]
    seen = History(hit=0.35, reached=4, told=told, end=2.0)
    assert (seen.repeated, seen.seconds) == (2, pytest.approx(0.25))
    assert History(hit=0.35, reached=6, told=told, end=2.0).seconds == pytest.approx(1.65)


def test_the_table_counts_and_comes_back_from_its_file(tmp_path):
    runs = {kind: chaos.draw(0, kind, 0) for kind in ("kill", "node")}
    outcomes = [
        Outcome(runs["kill"], "same", 2, 1.5, (0,)),
        Outcome(runs["kill"], "same", 4, 2.5, (0,)),
        Outcome(runs["node"], "hung"),
        Outcome(runs["node"], "lost", 0, 1.0, (2,), unexpected=True),
    ]
    found = tally.rows(outcomes, faults.FAULTS)
    assert tally.table(found).splitlines()[2:] == [
        "| SIGKILL of a rank | 2 | 2 | 3 (4) | 2 (2.5) | 0 | 0 | 0 | 0 |",
        "| SIGKILL of mpirun and all ranks, --resume | 2 | 0 |  |  | 1 | 1 | 0 | 1 |",
        "| all | 4 | 2 | 3 (4) | 2 (2.5) | 1 | 1 | 0 | 1 |",
    ]
    (tmp_path / "chaos.json").write_text(json.dumps({"rows": found, "machine": chaos.machine()}))
    assert tally.table(found) in report.compose(tmp_path)


def test_a_command_that_does_not_end_is_hung_and_nothing_of_it_is_left():
    command = [
        sys.executable,
        "-c",
        "print('round 1/9 ', flush=True); import time; time.sleep(600)",
    ]
    with Watched(command, limit=60) as job:
        job.until(lambda: job.reached == 1, "round 1")
        job.deadline = 0
        with pytest.raises(Hung, match="no end within the time limit"):
            job.finish()
    assert job.process.returncode is not None


def test_a_supervised_run_of_which_all_ranks_are_killed_at_once_comes_to_the_same_bits():
    ulfm()
    before = sorted((FOLDER / "results" / "bench").glob("*"))
    command = [sys.executable, str(FOLDER / "chaos.py"), "--only", "kill-all", "--number", "8"]
    said = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
        check=True,
        env=environment({}),
    ).stdout
    assert "| SIGKILL of all ranks, ULFM, hpcfed supervise | 1 | 1 |" in said
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
