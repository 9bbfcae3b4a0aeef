"""A disk that is really full: a small file system in memory, where this process may mount one."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.disks import fill
from hpcfed.storage import results
from hpcfed.storage.digest import digest
from tests.system.live import started
from tests.system.several import together

RESUME_ME = 75
JOB = shlex.split(
    "--clients 4 --models.mix fedhenn-1 --models.d 16 --data.train_limit 80 --checkpoint.every 2 "
    "--evaluate.every 1 "
    "--rounds 100000 --training.engine eager"
)


@pytest.fixture
def disk(tmp_path, request) -> Iterator[Path]:
    """A file system of 8 MB, or as its parameter says."""
    size = getattr(request, "param", "size=8m")
    place = tmp_path / "disk"
    place.mkdir()
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", place], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"no file system can be mounted here: {tried.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_is_full_for_a_while_costs_warnings_and_no_round(disk, tmp_path):
    with started(2, *JOB, "--out", str(disk / "run")) as job:
        job.until("round 3/")
        filler = disk / "filler"
        fill(filler)
        job.until_warned("hpcfed: warning: no checkpoint of round")
        filler.unlink()
        os.kill(job.ranks()[1], signal.SIGTERM)
        job.ends(RESUME_ME)
    assert "No space left on device" in job.err and "Traceback" not in job.err
    rounds = ["--rounds", str(results.load(disk / "run").rounds + 2)]
    words = {
        "run": ["--resume", str(disk / "run")],
        "clean": [*JOB, "--out", str(tmp_path / "clean")],
    }
    together(1, tmp_path, {name: [*its, *rounds] for name, its in words.items()})
    assert digest(disk / "run") == digest(tmp_path / "clean")


def test_a_full_disk_ends_a_run_whose_checkpoints_are_required(disk):
    with started(2, *JOB, "--out", str(disk / "run"), "--checkpoint.required") as job:
        job.until("round 3/")
        fill(disk / "filler")
        job.ends(RESUME_ME)
    assert (
        job.err.count("hpcfed: ") == 1
        and "No space left on device" in job.err
        and "Traceback" not in job.err
    )


@pytest.mark.parametrize("disk", ["size=64k", "nr_inodes=14"], indirect=True)
def test_a_disk_that_is_too_small_from_the_start_is_no_mistake_of_the_job(disk, tmp_path):
    """It may have room later: status 75, after which the run is started again."""
    words = [*JOB, "--rounds", "4", "--out", str(disk / "run")]
    (outcome,) = together(1, tmp_path, {"run": words})["run"]
    assert outcome.status == RESUME_ME, outcome.err
    assert "No space left on device" in outcome.err and "Traceback" not in outcome.err
