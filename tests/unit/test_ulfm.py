"""What Open MPI is told before it starts: where a run is to outlive its ranks, and where ranks
share cores.
"""

import subprocess
import sys

import pytest

from hpcfed.comm import settings, ulfm
from hpcfed.main import patience


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        ("", "^han,adapt,hcoll,portals4"),
        ("^ucc", "^ucc,han,adapt,hcoll,portals4"),
        ("^han", "^han,adapt,hcoll,portals4"),
        ("tuned,basic,libnbc", "tuned,basic,libnbc"),
        ("han,tuned,basic", "tuned,basic"),
    ],
)
def test_collectives_that_return_wrong_sums_after_a_death_are_switched_off(values, taken):
    assert ulfm.fit(values) == taken


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("true", True), ("0", False), (None, False)]
)
def test_the_launcher_says_whether_a_run_outlives_its_ranks(monkeypatch, value, on):
    monkeypatch.delenv(ulfm.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(ulfm.SWITCH, value)
    assert ulfm.available() is on


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], 1800),
        (["a.toml", "--run.watchdog", "20"], 20),
        (["--run.watchdog=0"], 0),
        (["--run.watchdog", "soon"], 0),
        (["--run.watchdog", "nan"], 0),
        (["--run.watchdog"], 0),
    ],
)
def test_at_the_start_ranks_wait_for_one_another_as_long_as_the_watchdog(words, seconds):
    assert patience(words) == seconds


@pytest.mark.parametrize(
    ("env", "cores", "yields"),
    [
        ({settings.HERE: "4"}, 2, "true"),
        ({settings.HERE: "2"}, 2, None),
        ({}, 1, None),
        ({settings.HERE: "4", settings.YIELD: "0"}, 2, "0"),
    ],
)
def test_waiting_ranks_yield_shared_cores(env, cores, yields):
    settings.prepare(env, cores)
    assert env.get(settings.YIELD) == yields


def test_a_start_of_mpi_that_does_not_end_ends_with_one_message_and_no_traceback():
    code = "import ctypes; from hpcfed.comm.ulfm import limit_start\n"
    wait = (
        "with limit_start(0.2): ctypes.PyDLL(None).pause()  # holds the lock of the interpreter\n"
    )
    done = subprocess.run([sys.executable, "-c", code + wait], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "MPI has not started within 0.2 s" in done.stderr
