"""A run from a job to its end: set-up, the files of the run, and the loop of rounds."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.algorithms.trial import check_privacy
from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import ConfigError, DataError, WriteError, everywhere
from hpcfed.core.exit_status import DONE
from hpcfed.data.partition_file import Partition, check_seal
from hpcfed.engine import describe, dryrun, memory_check
from hpcfed.engine.adapted import keep_adapted
from hpcfed.engine.calibration import calibrate
from hpcfed.engine.checks import check_deadline
from hpcfed.engine.decide import world
from hpcfed.engine.fault_tolerance.recover import Course, run_with_recovery
from hpcfed.engine.loop import Loop
from hpcfed.engine.on_round import Callback
from hpcfed.engine.privacy import open_account
from hpcfed.engine.rank_log import RankLog
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation
from hpcfed.machine.devices import allocated_gpus
from hpcfed.machine.energy import meter_of_rank
from hpcfed.machine.processor import find_bfloat16
from hpcfed.report.progress import Progress
from hpcfed.report.sinks.logs import Logs
from hpcfed.storage import checkpoint, names
from hpcfed.storage.record import FINISHED, STOPPED, Record
from hpcfed.storage.results import Results, Rows, set_aside

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.engine.fault_tolerance.watchdog import Guard
    from hpcfed.engine.world import World
    from hpcfed.federation.federation import Federation


def run(job: Job, comm: Comm, guard: Guard | None = None) -> int:
    """Run a job on these ranks, and return the exit status (`hpcfed.core.exit_status`); collective.

    guard: watchdog of the start, until the ranks can watch one another, and of the end.
    """
    return run_with_recovery(Course(job, guard), comm, attempt)


def run_here(job: Job, comm: Comm) -> tuple[int, int | None]:
    """Run a job in a process that continues afterwards.

    Returns the exit status, and the signal that stopped the run, or None.
    """
    course = Course(job, owns_process=False)
    return run_with_recovery(course, comm, attempt), course.monitor.signals.got


def attempt(course: Course, comm: Comm) -> int:
    """Run the job from where it stands to its end, and return the exit status; collective."""
    job, folder = course.job, course.enter(comm)
    decided = course.world or world(job, comm)
    comm.confirm()
    course.world = decided
    fed = federation(job, comm, decided)
    fed.clock.heartbeat = course.monitor.heartbeat
    if job.log.energy:
        fed.clock.meter = meter_of_rank(comm, fed.device)
        if fed.clock.meter.why:
            fed.warnings.say(f"log.energy: {fed.clock.meter.why}")
    warn(fed, decided)
    check_privacy(fed)
    check_deadline(fed)
    if folder is None:
        open_account(fed)
        if comm.rank == 0:
            dryrun.show(job, decided, fed)
        return DONE
    if not course.begun:
        calibrate(decided, fed)
        memory_check.check(decided, fed)
    course.claim.prepare(job, comm, folder, ours=course.begun)
    rounds = Rounds(fed)
    rounds.run_id = decided.run_id or course.claim.world
    try:
        course.restore(rounds, folder)
        check_rounds(job, rounds.t, folder)
        return run_rounds(course, rounds, folder)
    finally:
        fed.store.close()


def run_rounds(course: Course, rounds: Rounds, folder: Path) -> int:
    """Run the remaining rounds, with results, logs and progress; return the exit status."""
    job, fed, decided, monitor = course.job, rounds.fed, course.world, course.monitor
    assert decided is not None
    shown = fed.comm.rank == 0 and (monitor.owns_process or not job.quiet)
    with Logs(job.log, folder, fed.warnings.say) as log, RankLog(fed, folder) as rank_log:
        opened = partial(open_files, course, rounds, folder, log)
        results = on_all_ranks(fed.comm, lambda: opened() if fed.comm.rank == 0 else None)
        course.records.results, course.records.record = results, None
        metric = decided.metrics[0]
        with Progress(job, folder, decided.architectures, metric, active=shown) as progress:
            for line in describe.setting(decided, fed) if shown and not course.begun else ():
                progress.say(line)
            keep_adapted(rounds, decided, folder)
            course.begun = True
            monitor.heartbeat.look = progress.look
            callback = Callback(job, folder, results) if job.on_round and results else None
            status = Loop(rounds, folder, results, progress, course, log, callback, rank_log).run()
            if fed.comm.rank == 0:
                keep_partition(decided, folder, rounds)
            log.end(FINISHED if status == DONE else STOPPED)
            return status


def open_files(course: Course, rounds: Rounds, folder: Path, log: Logs) -> Results:
    """Write the partition, and open the results and the logs that the job asks for, on rank 0."""
    job, decided, records = course.job, course.world, course.records
    assert decided is not None
    course.check()
    if course.begun or rounds.t:
        keep_partition(decided, folder, rounds)
    else:
        save_partition(decided, names.partition_file(folder), rounds)
    results = open_results(job, folder, decided, rounds, records.rows, records.record)
    log.begin(results.header, rounds.t, results.row, not course.begun)
    return results


def check_rounds(job: Job, done: int, folder: Path) -> None:
    """Raise ConfigError, on all ranks, if a resumed run is to have fewer rounds than are done."""
    if done > job.rounds:
        error = ConfigError(
            f"rounds = {job.rounds}, but {folder} has done {done}; give {done} or more, or resume "
            f"an earlier checkpoint of {names.checkpoint_folder(folder)}, which drops later rounds"
        )
        raise everywhere(error)


def warn(fed: Federation, decided: World) -> None:
    """Say the warnings about job and data, and about ranks without clients, which stay idle."""
    for line in decided.warnings:
        fed.warnings.say(line)
    on_cpu = fed.device.type == "cpu"
    if on_cpu and fed.job.run.device == "auto" and (gpus := allocated_gpus()):
        fed.warnings.say(
            f"the batch job has GPUs ({gpus}), but torch sees none, so that the run computes on "
            f"the CPU; install torch for CUDA, start the container with --nv, or set run.device = "
            f"'cpu' if it is meant"
        )
    if on_cpu and fed.job.run.precision == "bf16" and find_bfloat16() == "":
        fed.warnings.say(
            "this processor has no instructions for bfloat16 (avx512_bf16, amx_bf16): "
            "run.precision = 'bf16' is emulated by float32 and saves no time; set run.precision = "
            "'float32' unless you want the results of bfloat16"
        )
    idle = fed.comm.size - len(set(fed.placement.ranks))
    if idle and not fed.job.dry_run:  # the plan says it
        fed.warnings.say(f"{idle} of {fed.comm.size} ranks have no client and are idle")


def save_partition(world: World, path: Path, rounds: Rounds) -> None:
    """Write the partition, with what clients hold out of it; a population has no file."""
    if isinstance(world.partition, Partition):
        world.partition.save(path, rounds.run_id, world.held_out)


def keep_partition(world: World, folder: Path, rounds: Rounds) -> None:
    """Write the partition file again if it is missing or damaged."""
    path = names.partition_file(folder)
    if not isinstance(world.partition, Partition):
        return
    try:
        check_seal(path)
    except (DataError, OSError):
        rounds.fed.warnings.say(f"{path}: damaged or missing; it is written again from memory")
        try:
            save_partition(world, path, rounds)
        except WriteError as error:
            rounds.fed.warnings.say(str(error))


def open_results(
    job: Job,
    folder: Path,
    world: World,
    rounds: Rounds,
    rows: Rows | None = None,
    memory: Record | None = None,
) -> Results:
    """Return the result file: a new one, or that of a resumed run, cut to its checkpoint on disk.

    rows: of rounds that may not be on disk.
    memory: all rows, if this rank 0 has them in memory from before another rank's death.
    """
    header, rows = describe.header(job, world, rounds), rows or {}
    arrays, warn = describe.arrays(world, rounds), rounds.fed.warnings.say
    if rounds.t > len(rows):
        results = Results.resume(folder, rounds.t, header, rows, arrays, memory, warn)
        if results.lost:
            warn(explain_lost_rounds(results))
        elif results.source != results.path:
            warn(
                f"{results.path}: damaged or missing; the run continues with the copy in "
                f"{results.source}"
            )
    else:
        results = Results(folder, header, arrays, warn)
        for t in range(rounds.t):  # a rank died before any of them was on disk
            results.append(rows[str(t)])
    if os.path.exists(results.path):
        # before later checkpoints are gone, whose rounds the file has, perhaps as a finished run
        with suppress(WriteError):  # `Output.begin` tries again, and reports it
            results.finish()
    # only now: it may remove a copy that `Results.resume` needed
    checkpoint.drop_after(folder, rounds.t)
    return results


def explain_lost_rounds(results: Results) -> str:
    """Return a sentence about rounds without a record."""
    earliest, last = results.lost[0], results.lost[-1]
    which = f"round {earliest}" if earliest == last else f"rounds {earliest} to {last}"
    aside = set_aside(results.path)
    where = f"; what cannot be read is kept as {aside}" if aside.exists() else ""
    return (
        f"{results.path}: damaged, incomplete or missing, and so are its copies beside the "
        f"checkpoints: the records of {which} are lost and stay empty; the run continues from the "
        f"checkpoint of round {results.rounds}, which is intact{where}"
    )
