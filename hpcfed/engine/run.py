"""A run from a job to its end; the set-up before the loop of rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.config.architectures import find as find_model
from hpcfed.core.errors import ConfigError, DataError, WriteError
from hpcfed.core.exit_status import DONE
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data import DATASETS
from hpcfed.data.partition_file import Partition, check_seal
from hpcfed.engine import changed_code, describe, memory_check
from hpcfed.engine.adapted import keep_adapted
from hpcfed.engine.calibration import calibrate
from hpcfed.engine.fault_tolerance.recover import Course, run_with_recovery
from hpcfed.engine.folder import prepare, run_id
from hpcfed.engine.loop import Loop
from hpcfed.engine.method_trial import rehearse
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import World, federation, world
from hpcfed.report.progress import Progress
from hpcfed.report.sinks import logs
from hpcfed.report.sinks.logs import Logs
from hpcfed.results.summary import data_name
from hpcfed.storage import checkpoint, names
from hpcfed.storage.record import FINISHED, STOPPED, Record
from hpcfed.storage.results import Results, Rows, set_aside

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.engine.fault_tolerance.watchdog import Guard
    from hpcfed.federation.federation import Federation


FEW = 8  # classes and clients that a warning names
# partitions with which clients of a single label are intended, or nothing unusual
BY_CLASS = ("classes", "shards", "dirichlet", "inner-dirichlet", "pathological", "distribution")


def run(job: Job, comm: Comm, guard: Guard | None = None) -> int:
    """Run a job on these ranks, and return the exit status (`hpcfed.core.exit_status`); collective.

    guard: watchdog of the start, until the ranks can watch one another, and of the end.
    """
    return run_with_recovery(Course(job, guard=guard), comm, attempt)


def run_here(job: Job, comm: Comm) -> tuple[int, int | None]:
    """Run a job in a process that continues afterwards.

    Returns the exit status, and the signal that stopped the run, or None.
    """
    course = Course(job, owns_process=False)
    return run_with_recovery(course, comm, attempt), course.signals.got


def attempt(course: Course, comm: Comm) -> int:
    """Run the job from where it stands to its end, and return the exit status; collective."""
    job = course.job
    if logs.sink_names(job.log):
        on_all_ranks(comm, lambda: logs.check(job.log) if comm.rank == 0 else None)
    folder = course.enter(comm)
    facts = course.facts or world(job, comm)
    comm.confirm()
    course.facts = facts
    if not course.begun:
        rehearse(job, comm, facts)
    fed = federation(job, comm, facts)
    fed.clock.heartbeat = course.heartbeat
    for odd in (
        *facts.data.notes,
        *merged_users(job, facts),
        *odd_labels(job, facts),
        *odd_settings(job),
    ):
        fed.warnings.say(f"warning: {odd}")
    if folder is None:
        if comm.rank == 0:
            describe.plan(job, facts, fed)
        return DONE
    warn(fed)
    if not course.begun:
        calibrate(facts, fed)
        memory_check.check(facts, fed)
    if job.resume and not course.begun:
        told = on_all_ranks(
            comm, lambda: changed_code.check(job, folder) if comm.rank == 0 else list[str]()
        )
        for line in told:
            fed.warnings.say(f"warning: {line}")
    prepare(job, comm, folder, ours=course.begun)
    rounds = Rounds(fed)
    try:
        rounds.run_id = run_id(job, comm, folder, course.claim.world, ours=course.begun)
        course.restore(rounds, folder)
        check_rounds(job, rounds.t, folder)
        if not course.begun and not rounds.t:
            on_all_ranks(
                comm,
                lambda: (
                    facts.partition.save(names.partition_file(folder), rounds.run_id)
                    if comm.rank == 0
                    else None
                ),
            )
        elif comm.rank == 0:
            keep_partition(facts, folder, rounds)
        known = course.rows
        results = on_all_ranks(
            comm,
            lambda: (
                open_results(job, folder, facts, rounds, known, course.record)
                if comm.rank == 0
                else None
            ),
        )
        course.results, course.record = results, None
        shown = comm.rank == 0 and (course.owns_process or not job.quiet)
        with (
            Logs(job.log, folder, fed.warnings.say) as log,
            Progress(job, folder, facts, active=shown) as progress,
        ):
            for line in describe.setting(facts, fed) if shown and not course.begun else ():
                progress.say(line)
            keep_adapted(rounds, facts, folder)
            begin(log, rounds, results, course)
            course.begun = True
            course.heartbeat.look = progress.look
            status = Loop(rounds, folder, results, progress, course, log).run()
            if comm.rank == 0:
                keep_partition(facts, folder, rounds)
            log.end(FINISHED if status == DONE else STOPPED)
            return status
    finally:
        fed.store.close()


def check_rounds(job: Job, done: int, folder: Path) -> None:
    """Raise ConfigError if a resumed run is to have fewer rounds than it has done."""
    if done > job.rounds:
        raise ConfigError(
            f"rounds = {job.rounds}, but {folder} has done {done}; give {done} or more, or resume "
            f"an earlier checkpoint of {names.checkpoint_folder(folder)}, which drops later rounds"
        )


def begin(log: Logs, rounds: Rounds, results: Results | None, course: Course) -> None:
    """Open the logs that the job asks for, on rank 0; collective."""
    if logs.sink_names(course.job.log):
        known = (results.header, rounds.t, results.row, not course.begun) if results else ()
        on_all_ranks(rounds.fed.comm, lambda: log.begin(*known) if known else None)


def warn(fed: Federation) -> None:
    """Warn, also if the job is quiet, about ranks without clients.

    These ranks compute nothing, and wait in each round.
    """
    idle = fed.comm.size - len(set(fed.placement.ranks))
    if idle:
        fed.warnings.say(f"warning: {idle} of {fed.comm.size} ranks have no client and stay idle")


def odd_settings(job: Job) -> list[str]:
    """Return warnings about settings that can be meant and rarely are, one line each."""
    found, models, by = [], job.models, job.selection.by
    drawn = [kind for kind in models.mix if not find_model(kind).own and "clip:" not in kind]
    if (models.lora or models.train) and not models.weights and drawn:
        how = f"models.lora = {models.lora}" if models.lora else "models.train"
        found.append(
            f"{how} without models.weights: what is not trained of {drawn[0]} stays at its random "
            f"initial values"
        )
    twice = getattr(job.algorithm, "weighting", "") == "samples"
    if by in ("size", "power-of-choice") and twice:
        found.append(
            f"selection.by = {by!r} draws clients in proportion to their examples, which then "
            f"count again in the mean; set algorithm.weighting = 'uniform'"
        )
    return found


def merged_users(job: Job, facts: World) -> list[str]:
    """Return a warning if clients have the examples of several natural clients with names."""
    data, users = facts.data, facts.data.train.users
    natural = job.data.partition == "natural" and not job.data.partition_file
    if not natural or users is None or not data.user_names:
        return []
    assert isinstance(facts.partition, Partition)  # a population has no users
    names = [[data.user_names[i] for i in np.unique(users[r])] for r in facts.partition.train]
    several = [f"client {k} has {join_few(own, FEW)}" for k, own in enumerate(names) if own[1:]]
    if not several:
        return []
    column, total = job.columns.client or "its users", sum(map(len, names))
    return [
        f"{data_name(job.data.model_dump())}: {column} has {total} values for {job.clients} "
        f"clients, so some are merged: {join_few(several, FEW, '; ')}; set clients = {total} for "
        f"one client each"
    ]


def odd_labels(job: Job, facts: World) -> list[str]:
    """Return warnings about the labels of the training data, one line each.

    They name classes that have no example or only one, clients whose examples all have one label,
    and a column of clients that the job does not use.
    """
    y, C = facts.data.train.y, len(facts.data.classes)
    if not isinstance(facts.partition, Partition) or not len(y) or facts.data.task == "survival":
        return []
    about = job.data.model_dump()
    name, found = data_name(about), list[str]()
    number = np.bincount(y, minlength=C)
    empty = np.flatnonzero(number == 0).tolist()
    if empty and about["name"] not in DATASETS:  # whose classes are as they should be
        found.append(
            f"{name}: {len(empty)} of {C} classes have no training example "
            f"({join_few(empty, FEW)}); labels are expected to be 0, 1, 2, ... without gaps: "
            f"renumber them if these classes do not exist"
        )
    if np.count_nonzero(number) == 1:
        only = facts.data.classes[int(number.argmax())]
        found.append(
            f"{name}: all training examples have the label {only}; there is nothing to learn"
        )
        return found
    if facts.data.task == "next":  # many tokens are rare
        return found
    if len(single := np.flatnonzero(number == 1).tolist()):
        told = join_few([facts.data.classes[c] for c in single], FEW)
        found.append(
            f"{name}: {len(single)} of {C} classes have a single training example ({told}); leave "
            f"them out, unless that is meant"
        )
    held = [y[rows] for rows in facts.partition.train]
    alike = [k for k, own in enumerate(held) if len(own) > 1 and own.min() == own.max()]
    if alike and job.data.partition not in BY_CLASS:
        found.append(
            f"{name}: all training examples of {count_noun(len(alike), 'client')} have one label "
            f"(client {join_few(alike, FEW)}), so that local accuracy says little there; check "
            f"data.partition = {job.data.partition!r}, unless that is meant"
        )
    used = job.data.partition == "natural" or job.data.partition_by == "client"
    if job.columns.client and not used and not job.data.partition_file:
        found.append(
            f"{name}: column {job.columns.client!r} names clients, but data.partition = "
            f"{job.data.partition!r} shares the examples out otherwise; set data.partition = "
            f"'natural' for one client each"
        )
    return found


def keep_partition(facts: World, folder: Path, rounds: Rounds) -> None:
    """Write the partition file again if it is missing or damaged."""
    path = names.partition_file(folder)
    if not isinstance(facts.partition, Partition):
        return
    try:
        check_seal(path)
    except (DataError, OSError):
        rounds.fed.warnings.say(
            f"warning: {path}: damaged or missing; it is written again from memory"
        )
        try:
            facts.partition.save(path, rounds.run_id)
        except WriteError as error:
            rounds.fed.warnings.say(f"warning: {error}")


def open_results(
    job: Job,
    folder: Path,
    facts: World,
    rounds: Rounds,
    known: Rows | None = None,
    memory: Record | None = None,
) -> Results:
    """Return the result file: a new one, or that of a resumed run, cut to its checkpoint.

    known: rows that may not be on disk.
    memory: all rows, if this rank 0 has them in memory from before another rank's death.
    """
    header, known = describe.header(job, facts, rounds), known or {}
    arrays, say = describe.arrays(facts, rounds), rounds.fed.warnings.say

    def warn(text: str) -> None:
        say(f"warning: {text}")

    if rounds.t > len(known):
        results = Results.resume(folder, rounds.t, header, known, arrays, memory, warn)
        checkpoint.drop_after(
            folder, rounds.t
        )  # only now: it may remove a copy that `resume` needed
        if results.lost:
            warn(explain_lost_rounds(results))
        elif results.source != results.path:
            warn(
                f"{results.path}: damaged or missing; the run goes on with the copy in "
                f"{results.source}"
            )
        return results
    checkpoint.drop_after(folder, rounds.t)
    results = Results(folder, header, arrays, warn)
    for t in range(rounds.t):  # a rank died before any of them was on disk
        results.append(known[str(t)])
    return results


def explain_lost_rounds(results: Results) -> str:
    """Return a sentence about rounds without a record."""
    first, last = results.lost[0], results.lost[-1]
    which = f"round {first}" if first == last else f"rounds {first} to {last}"
    aside = set_aside(results.path)
    where = f"; what cannot be read is kept as {aside}" if aside.exists() else ""
    return (
        f"{results.path}: damaged, incomplete or missing, and so are its copies beside the "
        f"checkpoints: the records of {which} are lost, and stay empty; the run goes on from the "
        f"checkpoint of round {results.rounds}, which is whole{where}"
    )
