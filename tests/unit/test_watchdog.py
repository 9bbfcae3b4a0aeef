"""The watchdog: what counts as getting on, who is named as silent, and how the run ends."""

import os
import shutil
from pathlib import Path

import pytest

from hpcfed.engine.fault_tolerance import watchdog
from hpcfed.engine.fault_tolerance.watchdog import HUNG, Watchdog
from hpcfed.machine.heartbeat import Heartbeat, Stopped
from hpcfed.storage import names

START = 1000.0


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time, which passes where somebody sleeps."""
    now = [START]
    monkeypatch.setattr(watchdog, "time", lambda: now[0])
    monkeypatch.setattr(watchdog, "sleep", lambda seconds: now.append(now.pop() + seconds))
    return now


def dogs(folder: Path, ranks: int, ended: list[int]) -> list[Watchdog]:
    """The watchdogs of ranks whose rounds have begun."""
    these = [
        Watchdog(Heartbeat(), rank, ranks, folder, 400.0, ended.append) for rank in range(ranks)
    ]
    for dog in these:
        dog.starting = False
    return these


def look(these: list[Watchdog], times: int, beating: tuple[int, ...] = ()) -> list[bool]:
    """So many looks, 10 s apart; whether each found the run stuck at the last."""
    for _ in range(times):
        for dog in these:
            dog.heartbeat.beats += dog.rank in beating
        now = dog_time(these) + 10
        stuck = [dog.is_stuck(now) for dog in these]
    return stuck


def dog_time(these: list[Watchdog]) -> float:
    return max(dog.last_check for dog in these)


def test_a_run_is_stuck_if_no_rank_makes_progress(clock, tmp_path):
    three = dogs(tmp_path, 3, [])
    assert look(three, 41) == [False] * 3
    assert look(three, 2) == [True] * 3  # the others' signs are seen a look later


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_clocks_of_nodes_may_differ(clock, tmp_path, skew):
    """A healthy rank is not taken for stuck, and a run that hangs is found in the usual time."""
    here, away = dogs(tmp_path, 2, [])
    for n in range(50):
        away.heartbeat.beats += 1
        away.is_stuck(START + skew + 10 * n)
        assert not here.is_stuck(START + 10 * n)
    for n in range(50, 92):
        away.is_stuck(START + skew + 10 * n)
        stuck = here.is_stuck(START + 10 * n)
    assert stuck and not here.silent(here.signs(), START + 910)


def test_on_a_full_or_missing_disk_no_rank_counts_as_silent(clock, tmp_path, monkeypatch):
    """A sign that cannot be renewed, or is gone with its folder, says nothing of the rank."""
    full = dogs(tmp_path, 2, [])
    look(full, 3)
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "write_text", lambda *_: os.write(os.open("/dev/full", os.O_WRONLY), b"full")
        )
        assert look(full, 99, beating=(1,)) == [False, False]
    shutil.rmtree(names.watch_folder(tmp_path))
    names.watch_folder(tmp_path).touch()
    assert look(full, 99, beating=(1,)) == [False, False]


def test_a_process_that_was_itself_stopped_resets_its_watch(clock, tmp_path):
    (alone,) = dogs(tmp_path, 1, [])
    assert (
        not alone.is_stuck(START + 10)
        and not alone.is_stuck(START + 5000)
        and not alone.is_stuck(START + 5010)
    )


def test_all_ranks_report_their_position_and_the_silent_one_is_named(
    clock, tmp_path, capfd, monkeypatch
):
    ended, killed = [], []
    three = dogs(tmp_path, 3, ended)
    three[1].heartbeat.t, three[1].heartbeat.phase, three[1].heartbeat.client = (
        4,
        "train",
        "7 (mlp)",
    )
    look(three, 1)
    assert look(three[::2], 42) == [True] * 2
    clock[0] = dog_time(three)
    monkeypatch.setattr(
        watchdog, "kill", lambda silent: killed.extend(sign.rank for sign in silent)
    )
    for dog in three[::2]:
        dog.end_run()
    err = capfd.readouterr().err
    assert (ended, killed) == ([HUNG] * 2, [1])
    assert (
        "rank 0 of 3: no progress for 400 s, at round 1, start" in err
        and "rank 2 of 3: no progress" in err
    )
    assert f"rank 1 of 3 is silent, as a stopped process is: process {os.getpid()}" in err
    assert (
        "it was at round 5, train, last client 7 (mlp)" in err
        and err.count("the run ends with status 70") == 1
    )


def test_a_rank_asked_to_stop_finishes_its_current_client_if_time_permits():
    heartbeat = Heartbeat()
    heartbeat.ask(1000.0)
    heartbeat.step()
    with pytest.raises(Stopped):
        heartbeat.visit("0")
    heartbeat.ask(-1.0)
    with pytest.raises(Stopped):
        heartbeat.step()


def test_ranks_do_not_wait_for_ever_for_one_that_has_left_the_run(clock, tmp_path):
    """Which has removed its sign: they count what they see anew after the time allowed."""
    three = dogs(tmp_path, 3, [])
    look(three, 3)
    three.pop()
    names.watch_file(tmp_path, 2).unlink()
    assert look(three, 41) == [False, False]
    assert look(three, 45) == [True, True]
