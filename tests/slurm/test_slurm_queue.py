"""Runs in the queue of a real Slurm: whatever it does with them, they end with the bits of an
unbroken run.

Where the page on clusters has a command for it, that is the one that is called, with the fields of
a tiny job added.
"""

import shlex
import shutil
import subprocess

import pytest

from hpcfed.storage import results
from hpcfed.storage.digest import digest
from tests import forked
from tests.slurm.desk import ARRAY, CHAIN, JOB, LIMIT, QUEUED, STOP, Desk

pytestmark = pytest.mark.timeout(3 * LIMIT)
RUN = [*JOB, "--out", "run"]
REQUEUED_AT_FIRST = (
    '[ "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; exec sleep 60; }'
)


@pytest.fixture(scope="module")
def chain(cluster, tmp_path_factory) -> tuple[Desk, list[str]]:
    """Three links, of which the first stands in round 2 until its time is up: Slurm looks twice a
    minute.
    """
    desk = Desk(cluster, tmp_path_factory.mktemp("chain") / "desk")
    ids = desk.submit(*CHAIN[2:], *RUN, "--partition", "urgent")
    desk.waiting(ids[0])
    desk.call("scontrol", "update", f"JobId={ids[0]}", "TimeLimit=2")
    return desk, ids


@pytest.mark.usefixtures("chain")  # which waits meanwhile
def test_three_nodes_give_the_bits_of_one_rank(desk, wanted):
    desk.open()
    (job,) = desk.submit(*QUEUED[2:], *RUN)
    assert desk.done(job)["NumNodes"] == "3"
    record = results.load(desk.folder / "run")
    assert (record.header["ranks"], digest(desk.folder / "run")) == (3, wanted)


def test_each_task_of_an_array_has_its_own_run(desk):
    desk.open()
    (array,) = desk.submit(*ARRAY[2:], *JOB)
    assert [desk.ended(f"{array}_{i}")["ExitCode"] for i in range(2)] == ["0:0", "0:0"]
    assert len({digest(run) for run in (desk.folder / "runs").glob("*Gated*")}) == 2


def test_a_task_of_a_sweep_that_fails_leaves_the_others_alone_and_the_table_says_so(desk):
    methods = "local,fedavg,tests.system.faulty:Faulty"
    options = ["--algorithm.name", methods, "--out", "sweep", "--submit", "--time", "10"]
    submitted = desk.hpcfed("sweep", *JOB[2:], *options)
    array = submitted.split()[2].rstrip(",")
    ended = [desk.ended(f"{array}_{i}")["ExitCode"] for i in range(3)]
    assert ended == ["0:0", "0:0", "2:0"], desk.printed()
    table = desk.hpcfed("table", "sweep").splitlines()
    assert [line.split()[0] for line in table if line.endswith("failed")] == ["Faulty"]
    assert "client 2 (mlp): the loss is nan in round 1" in table[-1]


def test_a_run_asked_to_stop_saves_and_continues_when_it_is_submitted_again(desk, wanted):
    job, waits = desk.submit(*RUN, "--time", "10", "--chain", "2")
    desk.waiting(job)
    pending, _, stop = desk.submission.rpartition(": ")[2].partition("; ")
    desk.call(*shlex.split(pending))
    assert desk.ended(waits)["JobState"] == "CANCELLED"  # else it would go on with what is to stop
    assert stop.split() == [*STOP[:1], "--quiet", *STOP[1:-1], job, waits]
    desk.call(*STOP[:-1], job)
    assert desk.ended(job)["ExitCode"] == "75:0"
    desk.open()
    (second,) = desk.submit(*RUN, "--nodes", "2", "--time", "10")
    desk.done(second)
    assert digest(desk.folder / "run") == wanted


def test_a_study_runs_on_each_number_of_ranks_with_the_same_bits(desk, wanted):
    desk.open()
    (job,) = desk.submit(*RUN, "--time", "10", "--nodes", "3", "--ranks", "1,2")
    desk.done(job)
    runs = [desk.folder / f"run-ranks{ranks}" for ranks in (1, 2)]
    assert [results.load(run).header["ranks"] for run in runs] == [1, 2]
    assert [digest(run) for run in runs] == [wanted, wanted]


def test_a_folder_whose_job_waits_in_the_queue_is_refused_until_that_job_is_cancelled(desk):
    later = ["--sbatch=--begin=now+1hour", "--time", "10"]
    (job,) = desk.submit(*RUN, *later)
    assert desk.show(job)["JobState"] == "PENDING"
    again = [forked.python(), "-m", "hpcfed.cli", "submit", *RUN, *later]
    where = {"cwd": desk.folder, "env": desk.env, "capture_output": True, "text": True}
    second = subprocess.run(again, **where, timeout=LIMIT)
    assert second.returncode == 2 and f"job {job} in the queue is to run in run" in second.stderr
    (other,) = desk.submit(*JOB, "--out", "another", *later)
    desk.call("scancel", job)
    assert desk.ended(job)["JobState"] == "CANCELLED"
    (third,) = desk.submit(*RUN, *later)
    desk.call("scancel", other, third)


def test_a_requeued_job_that_waits_again_is_seen_too(desk):
    (job,) = desk.submit(*RUN, "--nodes", "2", "--time", "10")
    desk.waiting(job)
    desk.call("scontrol", "requeuehold", job)
    desk.until(lambda: desk.show(job)["JobState"] == "PENDING", "not back in the queue")
    again = [forked.python(), "-m", "hpcfed.cli", "submit", *RUN, "--rounds", "1", "--time", "10"]
    where = {"cwd": desk.folder, "env": desk.env, "capture_output": True, "text": True}
    second = subprocess.run(again, **where, timeout=LIMIT)
    assert second.returncode == 2 and f"scancel {job}" in second.stderr
    desk.call("scancel", job)


def test_a_chain_continues_after_the_time_limit_and_its_remaining_jobs_end_at_once(chain, wanted):
    desk, ids = chain
    assert desk.ended(ids[0])["ExitCode"] == "75:0"
    desk.open()
    desk.done(ids[1])
    assert digest(desk.folder / "run") == wanted
    desk.done(ids[2])
    assert (
        "hpcfed supervise: run: all its rounds are done"
        in (desk.folder / f"slurm-{ids[2]}.out").read_text()
    )


def test_requeued_before_its_first_round_in_mid_round_and_preempted_a_run_ends_with_the_same_bits(
    desk, unbroken, wanted
):
    shutil.copytree(
        unbroken, desk.folder / "run"
    )  # which is to be overwritten, and by the first start is not yet
    (job,) = desk.submit(
        *RUN, "--overwrite", "--nodes", "2", "--time", "10", "--env", REQUEUED_AT_FIRST
    )
    desk.waiting(job)
    desk.call("scontrol", "requeue", job)  # ends all processes; what is left is the last checkpoint
    again = {"Restarts": "2", "JobState": "RUNNING"}  # then no process of the first start is left
    desk.until(lambda: again.items() <= desk.show(job).items(), "not started again")
    (desk.folder / "waiting").unlink(missing_ok=True)
    desk.waiting(job)
    other = desk.call(
        "sbatch",
        "--parsable",
        "--partition=urgent",
        "--nodes=3",
        "--exclusive",
        "--wrap",
        "hostname",
    )
    desk.done(other.strip())
    desk.open()
    assert desk.done(job)["Restarts"] == "3"
    assert [past["rounds"] for past in results.load(desk.folder / "run").header["history"]] == [
        1,
        1,
    ]
    assert digest(desk.folder / "run") == wanted
