"""Resume from the newest intact checkpoint, which is verified while it is read, all ranks together.

A damaged one changes nothing but the states of clients, which the next one replaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import CheckpointError, DamagedError, everywhere
from hpcfed.core.safe_read import convert_unfit_errors
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.storage import checkpoint, names
from hpcfed.storage.record import RUN_ID, same_run

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds


def restore(rounds: Rounds, path: Path, needed: bool = True) -> None:
    """Continue from a checkpoint; collective: each rank reads its own clients.

    path: the index of one checkpoint, or a run folder for its newest intact checkpoint. Newer ones
    that are damaged are named on stderr.
    needed: whether it is an error if there is no checkpoint; otherwise nothing is done then.
    Raises DamagedError if all are damaged, CheckpointError if one is needed and there is none; on
    all ranks alike.
    """
    fed, damage = rounds.fed, ""
    looks = fed.comm.rank == 0  # other nodes may see a folder late
    indices = fed.comm.bcast([str(index) for index in checkpoint.all_at(path)] if looks else [])
    for index in map(Path, indices):
        if damage:
            fed.warnings.say(
                f"{damage}\n  so the run continues from the checkpoint before it, {index}"
            )
        damage = read(rounds, index)
        if not damage:
            fed.warnings.last_checkpoint = f"last checkpoint: {index}"
            fed.turns.share_failures()
            return
    if damage:
        advice = fed.comm.bcast(checkpoint.advice(index) if looks else "")
        raise everywhere(DamagedError(f"{damage}\n  {advice}"))
    if needed:
        refusal = checkpoint.none_at(path)
        raise everywhere(refusal)


def read(rounds: Rounds, index: Path) -> str:
    """Restore the run from a checkpoint unless it is damaged; collective.

    Returns the damage that a rank has found, "" if there is none. Raises CheckpointError on all
    ranks for a checkpoint that is intact, but of another run, or not what this job saves.
    """
    comm = rounds.fed.comm

    def read_own() -> tuple[str, snapshot.Shared | None]:
        with convert_unfit_errors(index):
            try:
                with checkpoint.Reader(index) as source:
                    if source.final:
                        raise CheckpointError(
                            f"{index}: holds the models after the method's final step, from which "
                            f"no run continues; give its folder, --resume {names.run_of(index)}"
                        )
                    same_run({RUN_ID: rounds.run_id}, source.header, index)
                    return "", snapshot.take_clients(rounds, source)
            except DamagedError as error:
                return str(error), None

    damage, shared = on_all_ranks(comm, read_own)
    by_rank = comm.gather({comm.rank: damage})
    if damage := next(filter(None, by_rank.values()), ""):
        return damage

    def restore_shared() -> None:
        assert shared is not None
        with convert_unfit_errors(index):
            snapshot.take_shared(rounds, shared)

    on_all_ranks(comm, restore_shared)
    return ""
