"""Resume from a checkpoint: first the ranks choose and verify one, then each reads its part of it.

Until it is chosen nothing of the run changes, so an older one can be taken for a damaged one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import DamagedError, everywhere
from hpcfed.core.safe_read import convert_unfit_errors
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.storage import checkpoint
from hpcfed.storage.record import RUN_ID, same_run

if TYPE_CHECKING:
    from hpcfed.comm import Comm
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation


def restore(rounds: Rounds, path: Path, needed: bool = True) -> None:
    """Continue from a checkpoint; collective: each rank reads its own clients.

    path: the index of one checkpoint, or a run folder for its newest intact checkpoint.
    needed: whether it is an error if there is no checkpoint; otherwise nothing is done then.
    Raises CheckpointError on all ranks alike.
    """
    fed = rounds.fed
    index = choose(fed, path, needed)
    if index:
        on_all_ranks(fed.comm, lambda: read(rounds, index))
        fed.warnings.last_checkpoint = f"last checkpoint: {index}"
        fed.turns.share_failures()


def choose(fed: Federation, path: Path, needed: bool) -> Path | None:
    """Return the index of the newest intact checkpoint, None if there is none; collective.

    Each rank verifies some of the parts. Newer checkpoints that are damaged are named on stderr.
    Raises DamagedError if all are damaged, CheckpointError if one is needed and there is none.
    """
    comm, damage = fed.comm, ""
    looks = comm.rank == 0  # other nodes may see a folder late
    indices = comm.bcast([str(index) for index in checkpoint.all_at(path)] if looks else [])
    for index in map(Path, indices):
        if damage:
            fed.warnings.say(
                f"warning: {damage}\n  so the run continues from the checkpoint before it, {index}"
            )
        damage = verify(comm, index)
        if not damage:
            return index
    if damage:
        advice = comm.bcast(checkpoint.advice(index) if looks else "")
        raise everywhere(DamagedError(f"{damage}\n  {advice}"))
    if needed:
        refusal = checkpoint.none_at(path)
        raise everywhere(refusal)
    return None


def verify(comm: Comm, index: Path) -> str:
    """Return what is damaged of a checkpoint, "" if it is intact; collective."""
    try:
        on_all_ranks(comm, lambda: checkpoint.verify(index, slice(comm.rank, None, comm.size)))
    except DamagedError as error:
        return str(error)
    return ""


def read(rounds: Rounds, index: Path) -> None:
    """Restore this rank's part of the run from a checkpoint."""
    with checkpoint.Reader(index) as source:
        same_run({RUN_ID: rounds.run_id}, source.header, index)
        with convert_unfit_errors(index):
            snapshot.take_up(rounds, source)
