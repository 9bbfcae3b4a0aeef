"""A run to a checkpoint and back: the server's state, and each client's weights and memory, by client."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.comm.agree import agreed
from hpcfed.engine.snapshot import header, take_up, to_tree
from hpcfed.storage import checkpoint

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds


def save(rounds: Rounds, run: Path) -> None:
    """Write a checkpoint of all that the next round depends on; collective, rank 0 writes client after client."""
    fed, root = rounds.fed, rounds.fed.comm.rank == 0
    with fed.clock("checkpoint"):
        with checkpoint.writer(run, rounds.t, header(rounds)) if root else nullcontext() as file:
            if root:
                file.put("state", to_tree(rounds.state))
                file.put("scores", {"last": rounds.scores, "stale": rounds.stale, "seconds": rounds.seconds})
                file.put("time", rounds.virtual())
            for k, parcel in parcels(rounds):
                if root:
                    file.put(f"clients/{k}", parcel)
            fed.comm.confirm()
        if root:
            checkpoint.prune(run, fed.job.checkpoint.keep)
    fed.last_checkpoint = f"last checkpoint: {checkpoint.newest(run)}"


def parcels(rounds: Rounds):
    """What each client keeps, and the pooled client K, one after the other on rank 0; collective.

    A client that keeps nothing is left out.
    """
    fed = rounds.fed
    mine = {k: 1 for k in fed.store if k in fed.clients or (k == fed.K and fed.comm.rank == 0)}
    for k in fed.comm.gather(mine):
        owner = 0 if k == fed.K else fed.placement[k]
        yield k, fed.comm.move(fed.store.parcel(k) if k in mine else None, owner, 0)


def restore(rounds: Rounds, path: Path) -> None:
    """Continue from a checkpoint: each rank reads its own clients. Raises CheckpointError on all ranks alike.

    path: a run folder (its newest checkpoint) or one checkpoint file.
    """
    agreed(rounds.fed.comm, lambda: read(rounds, path))


def read(rounds: Rounds, path: Path) -> None:
    """What `restore` does on one rank."""
    with checkpoint.open_checkpoint(path) as file:
        take_up(rounds, file)
        rounds.fed.last_checkpoint = f"last checkpoint: {file.path}"
