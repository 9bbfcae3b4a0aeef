"""Saving of a run to a checkpoint, and restoring from one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import DamagedError, HpcfedError, WriteError
from hpcfed.core.safe_read import convert_unfit_errors
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.engine.fault_tolerance.background_save import BackgroundSave
from hpcfed.storage import checkpoint
from hpcfed.storage.record import RUN_ID, same_run

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds

Failure = TypeVar("Failure", bound=HpcfedError)


def save(rounds: Rounds, run: Path) -> None:
    """Write a checkpoint of all state that the next round depends on, and wait for it; collective.

    Raises WriteError, on all ranks, if the disk refuses it.
    """
    with BackgroundSave(rounds, run) as saver:
        saver.start()
        if error := saver.finish():
            raise everywhere(WriteError(error))


def everywhere(error: Failure) -> Failure:
    """Return the error marked as one that all ranks raise."""
    error.everywhere = True
    return error


def restore(rounds: Rounds, path: Path, needed: bool = True) -> None:
    """Continue from a checkpoint; collective: each rank reads its own clients.

    path: the index of one checkpoint, or a run folder for its newest undamaged checkpoint, as far
    as the ranks need its parts. Newer ones that are damaged are named on stderr.
    needed: whether it is an error if there is no checkpoint; otherwise nothing is done then.
    Raises the same CheckpointError on all ranks.
    """
    fed, damage = rounds.fed, ""
    looks = fed.comm.rank == 0  # other nodes may see a folder late
    files = fed.comm.bcast([str(file) for file in checkpoint.all_at(path)] if looks else [])
    for file in map(Path, files):
        if damage:
            fed.warnings.say(
                f"warning: {damage}\n  the run continues from the previous checkpoint, {file}"
            )
        damage = try_checkpoint(rounds, file)
        if not damage:
            fed.warnings.last_checkpoint = f"last checkpoint: {file}"
            return fed.turns.share_failures()
    if files:
        advice = fed.comm.bcast(checkpoint.advice(file) if looks else "")
        raise everywhere(DamagedError(f"{damage}\n  {advice}"))
    if needed:
        raise everywhere(checkpoint.none_at(path))


def try_checkpoint(rounds: Rounds, file: Path) -> str:
    """Continue from this checkpoint; collective.

    Returns the damage that a rank found, "" if there is none: then all ranks continue from it.
    """
    comm = rounds.fed.comm
    damages = comm.gather({comm.rank: on_all_ranks(comm, lambda: take_up(rounds, file))})
    return next(filter(None, damages.values()), "")


def take_up(rounds: Rounds, file: Path) -> str:
    """Restore this rank's part of the run from a checkpoint, and return its damage, or ""."""
    try:
        with checkpoint.Reader(file) as source:
            same_run({RUN_ID: rounds.run_id}, source.header, file)
            with convert_unfit_errors(file):
                snapshot.take_up(rounds, source)
    except DamagedError as error:
        return str(error)
    return ""
