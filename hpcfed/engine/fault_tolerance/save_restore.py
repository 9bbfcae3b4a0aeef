"""Saving of a run to a checkpoint, and restoring from one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import CheckpointError, DamagedError, WriteError
from hpcfed.core.safe_read import convert_unfit_errors
from hpcfed.engine.fault_tolerance.background_save import BackgroundSave
from hpcfed.engine.fault_tolerance.snapshot import take_up
from hpcfed.storage import checkpoint
from hpcfed.storage.checkpoint_parts import adopt_all
from hpcfed.storage.record import RUN_ID, same_run

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation


def save(rounds: Rounds, run: Path) -> None:
    """Write a checkpoint of all state that the next round depends on, and wait for it; collective.

    Raises WriteError, on all ranks, if the disk refuses it.
    """
    with BackgroundSave(rounds, run) as saver:
        saver.start()
        if error := saver.finish():
            raise everywhere(error)


def everywhere(error: str) -> WriteError:
    """Return an error marked as one that all ranks raise."""
    raised = WriteError(error)
    raised.everywhere = True
    return raised


def restore(rounds: Rounds, path: Path) -> None:
    """Continue from a checkpoint; collective: each rank reads its own clients.

    path: the index of one checkpoint, or a run folder for its newest undamaged checkpoint, as far
    as the ranks need its parts. Newer ones that are damaged are named on stderr.
    Raises CheckpointError on all ranks alike.
    """
    fed, damage = rounds.fed, ""
    for file in checkpoints_to_try(fed, path):
        if damage:
            fed.warnings.say(
                f"warning: {damage}\n  so the run goes on from the checkpoint before it, {file}"
            )
        damage = try_checkpoint(rounds, file)
        if not damage:
            fed.warnings.last_checkpoint = f"last checkpoint: {file}"
            return fed.turns.share_failures()
    on_all_ranks(fed.comm, lambda: refuse(damage, file) if fed.comm.rank == 0 else None)


def exists(fed: Federation, run: Path) -> bool:
    """Return whether a run folder has a checkpoint; collective."""

    def found() -> bool:
        try:
            return bool(candidates(fed, run))
        except CheckpointError:
            return False

    return fed.comm.bcast(on_all_ranks(fed.comm, lambda: found() if fed.comm.rank == 0 else False))


def checkpoints_to_try(fed: Federation, path: Path) -> list[Path]:
    """Return the checkpoints to try, as rank 0 finds them: other nodes may see a folder late."""
    found = on_all_ranks(fed.comm, lambda: candidates(fed, path) if fed.comm.rank == 0 else [])
    return [Path(name) for name in fed.comm.bcast([str(file) for file in found])]


def candidates(fed: Federation, path: Path) -> list[Path]:
    """Return the checkpoints at that path.

    They include those that lack only the index because the run ended before it was written.
    """
    for index in adopt_all(path):
        fed.warnings.say(f"warning: {index}: was missing or damaged, and is made anew of its parts")
    return checkpoint.candidates(path)


def try_checkpoint(rounds: Rounds, file: Path) -> str:
    """Try to continue from this checkpoint; collective.

    Returns the damage that a rank found, "" if there is none.
    """
    comm = rounds.fed.comm
    texts = comm.gather({comm.rank: on_all_ranks(comm, lambda: try_on_rank(rounds, file))})
    return next(filter(None, texts.values()), "")


def try_on_rank(rounds: Rounds, file: Path) -> str:
    """Try a checkpoint on one rank; part of `try_checkpoint`."""
    try:
        with checkpoint.Reader(file) as source:
            same_run({RUN_ID: rounds.run_id}, source.header, file)
            with convert_unfit_errors(file):
                take_up(rounds, source)
    except DamagedError as error:
        return str(error)
    return ""


def refuse(damage: str, file: Path) -> NoReturn:
    raise checkpoint.with_advice(DamagedError(damage), file)
