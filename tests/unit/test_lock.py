"""The lock of a run folder: one process has it, a dead one never, and nobody takes it by half."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hpcfed.core.errors import ConfigError, WriteError
from hpcfed.storage import lock, names
from hpcfed.storage.lock import ALIVE, DEAD, Holder, Lock, find_holder, this_process
from tests.mpirun import ROOT

HOLD = """
import sys
from pathlib import Path
from hpcfed.storage.lock import Lock
Lock(Path(sys.argv[1]), "theirs").take()
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nobody waits for another process to end."""
    monkeypatch.setattr(lock, "ENDING", 0.0)
    monkeypatch.setattr(lock, "LONGEST", 0.0)


def put(run: Path, holder: Holder, silent: float = 0.0) -> None:
    """A lock file of this holder, last renewed so many seconds ago."""
    path = names.lock_file(run)
    path.write_text(json.dumps(asdict(holder)))
    when = path.stat().st_mtime - silent
    os.utime(path, (when, when))


def unsupported(*_: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def owner(run: Path) -> str:
    """The ranks that have the folder."""
    holder = lock.read(names.lock_file(run))
    return holder.holder.world if holder else ""


FAR = replace(this_process("theirs"), host="node7", machine="another boot", job="", restart=0)


def test_a_live_process_keeps_the_folder_and_a_killed_one_loses_it(tmp_path: Path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with child:
        assert child.stdout.readline() == b"taken\n"
        with pytest.raises(ConfigError, match=f"another run has this folder: process {child.pid}"):
            Lock(tmp_path, "ours").take(force=True)
        assert find_holder(tmp_path).process == child.pid
        os.kill(child.pid, signal.SIGSTOP)  # it may go on at any time
        with pytest.raises(ConfigError):
            Lock(tmp_path, "ours").take()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but nobody has asked for it
        assert find_holder(tmp_path) is None
        ours = Lock(tmp_path, "ours")
        ours.take()
        assert owner(tmp_path) == "ours"
        ours.release()
    assert os.listdir(tmp_path) == []


def test_a_process_number_that_came_round_is_another_process(tmp_path: Path):
    put(tmp_path, replace(this_process("theirs"), started="1"))
    Lock(tmp_path, "ours").take()
    assert owner(tmp_path) == "ours"


@pytest.mark.parametrize(
    ("silent", "force", "taken"),
    [
        (0.0, False, False),
        (0.0, True, False),
        (ALIVE + 5, False, False),
        (ALIVE + 5, True, True),
        (DEAD + 5, False, True),
    ],
)
def test_on_another_machine_signs_of_life_decide_and_in_between_force(
    tmp_path: Path, silent, force, taken
):
    put(tmp_path, FAR, silent)
    if not taken:
        advice = "--force" if silent > ALIVE else "wait for its end"
        with pytest.raises(
            ConfigError, match=f"of {FAR.user} on node7, last heard of at .*{advice}"
        ):
            Lock(tmp_path, "ours").take(force)
    else:
        Lock(tmp_path, "ours").take(force)
    assert owner(tmp_path) == ("ours" if taken else "theirs")


def test_a_lock_dated_in_the_future_is_taken_by_force_if_it_is_not_renewed(tmp_path, monkeypatch):
    """The clock was set back by an hour."""
    monkeypatch.setattr(lock, "BEAT", 0.05)
    monkeypatch.setattr(lock, "LONGEST", 30.0)
    put(tmp_path, FAR, -3600.0)
    with pytest.raises(ConfigError, match="take the folder with --force"):
        Lock(tmp_path, "ours").take()
    Lock(tmp_path, "ours").take(force=True)
    assert owner(tmp_path) == "ours"


def test_a_batch_job_that_was_queued_again_follows_itself_and_no_other(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert this_process("", {"SLURM_RESTART_COUNT": "9" * 5000}).restart == 0
    for job, restart, taken in (("18", 1, False), ("17", 2, False), ("17", 1, True)):
        put(tmp_path, replace(FAR, job=job, restart=restart))
        if taken:
            Lock(tmp_path, "ours").take()
        else:
            with pytest.raises(ConfigError, match=f"batch job {job}"):
                Lock(tmp_path, "ours").take()


def test_numbers_of_ranks_run_in_turn_even_if_the_first_fails(tmp_path: Path):
    put(tmp_path, FAR)
    Lock(tmp_path, "theirs").take()
    assert lock.read(names.lock_file(tmp_path)).holder.process == os.getpid()


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("before", [None, FAR])
def test_of_many_that_want_it_at_once_one_has_it(tmp_path: Path, monkeypatch, links, before):
    """Also where the one before is dead, and where the file system has no hard links."""
    if not links:
        monkeypatch.setattr(lock.os, "link", unsupported)
    if before:
        put(tmp_path, before, DEAD + 5)
    gate, outcomes = threading.Barrier(8), []

    def want(name: str) -> None:
        me = replace(this_process(name), machine=name)  # as if on a machine of its own
        gate.wait()
        try:
            lock.take(names.lock_file(tmp_path), me)
            outcomes.append(name)
        except ConfigError:
            outcomes.append("")

    threads = [threading.Thread(target=want, args=[f"machine {i}"]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes)[:7] == [""] * 7 and max(outcomes) == owner(tmp_path) != ""
    assert os.listdir(tmp_path) == ["run.lock"]


def test_a_run_killed_while_it_took_a_stale_lock_blocks_no_other(tmp_path: Path):
    put(tmp_path, FAR, DEAD + 5)
    gone = replace(this_process("gone"), started="1")
    mark = tmp_path / f"run.lock.{FAR.token}.old"
    mark.write_text(json.dumps(asdict(gone)))
    lock.candidate(names.lock_file(tmp_path), gone)
    Lock(tmp_path, "ours").take()
    lock.tidy(names.lock_file(tmp_path))
    assert owner(tmp_path) == "ours" and os.listdir(tmp_path) == ["run.lock"]


def test_a_lock_that_a_full_disk_refuses_leaves_no_file(tmp_path: Path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(WriteError, match="No space left"):
            Lock(tmp_path, "ours").take()
    assert os.listdir(tmp_path) == []
    Lock(tmp_path, "ours").take()
    assert owner(tmp_path) == "ours"


def test_without_hard_links_a_disk_that_becomes_full_leaves_no_half_lock(tmp_path, monkeypatch):
    flushed = list[int]()

    def full(handle: int) -> None:
        flushed.append(handle)
        if len(flushed) > 1:  # the lock itself, after the temporary file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", unsupported)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left"):
        Lock(tmp_path, "ours").take()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"[" * 9000, b'{"token": "../../x", "process": 1}', b"\xff" * 20_000]
)
def test_an_empty_lock_file_is_taken_when_it_is_old(tmp_path: Path, text):
    path = names.lock_file(tmp_path)
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=f"{path} names no process.*--force"):
        Lock(tmp_path, "ours").take()
    os.utime(path, (0, 0))
    Lock(tmp_path, "ours").take()
    assert owner(tmp_path) == "ours"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_path_that_is_not_a_file_is_one_message(tmp_path: Path, make):
    make(names.lock_file(tmp_path))
    assert lock.read(names.lock_file(tmp_path)).holder == lock.Holder()
    with pytest.raises((ConfigError, WriteError)):
        Lock(tmp_path, "ours").take()


def test_a_holder_renews_its_lock_restores_it_and_ends_if_another_run_has_it(tmp_path: Path, capfd):
    ended: list[int] = []
    ours = Lock(tmp_path, "ours", ended.append)
    ours.take()
    path = names.lock_file(tmp_path)
    os.utime(path, (0, 0))
    ours.renew()
    assert path.stat().st_mtime > 0
    path.unlink()
    ours.renew()
    assert owner(tmp_path) == "ours" and ended == []
    put(tmp_path, FAR)
    ours.renew()
    assert ended == [2] and "on node7 has taken this run folder over" in capfd.readouterr().err
    ours.release()
    assert owner(tmp_path) == "theirs"


def test_a_holder_that_was_stopped_checks_the_lock_before_it_writes(tmp_path: Path, monkeypatch):
    """A run that goes on after another has taken its place writes nothing more."""
    ended: list[int] = []
    ours = Lock(tmp_path, "ours", ended.append)
    ours.take()
    put(tmp_path, FAR)
    ours.check()
    assert ended == []
    now = lock.monotonic() + 100
    monkeypatch.setattr(lock, "monotonic", lambda: now)
    ours.check()
    assert ended == [2]
    ours.release()
