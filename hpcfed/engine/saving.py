"""A run to a checkpoint and back: the server's state, and each client's weights and memory, by client."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.comm.agree import agreed
from hpcfed.config.job import EXACT
from hpcfed.payload import on_device
from hpcfed.storage import checkpoint

if TYPE_CHECKING:
    from hpcfed.algorithms.base import State
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation import Federation


def save(rounds: Rounds, run: Path) -> None:
    """Write a checkpoint of all that the next round depends on; collective, rank 0 writes client after client."""
    fed, root = rounds.fed, rounds.fed.comm.rank == 0
    with fed.clock("checkpoint"):
        header = {"job": fed.job.identity()}
        with checkpoint.writer(run, rounds.t, header) if root else nullcontext() as file:
            if root:
                file.put("state", to_tree(rounds.state))
                file.put("scores", {"last": rounds.scores, "stale": rounds.stale, "seconds": rounds.seconds})
                file.put("time", rounds.virtual())
            for k, parcel in parcels(rounds):
                if root:
                    file.put(f"clients/{k}", parcel)
        if root:
            checkpoint.prune(run, fed.job.checkpoint.keep)
    fed.last_checkpoint = f"last checkpoint: {checkpoint.newest(run)}"


def parcels(rounds: Rounds):
    """What each client keeps, and the pooled client K, one after the other on rank 0; collective.

    A client that keeps nothing is left out. With it goes what it has done of a round that was stopped.
    """
    fed = rounds.fed
    mine = {k: 1 for k in fed.keeping() if k in fed.clients or (k == fed.K and fed.comm.rank == 0)}
    for k in fed.comm.gather(mine):
        fed.pulse.beats += 1
        owner = 0 if k == fed.K else fed.placement[k]
        yield k, fed.comm.move(fed.parcel(k) if k in mine else None, owner, 0)


def restore(rounds: Rounds, path: Path) -> None:
    """Continue from a checkpoint: each rank reads its own clients. Raises CheckpointError on all ranks alike.

    path: a run folder (its newest checkpoint) or one checkpoint file.
    """
    agreed(rounds.fed.comm, lambda: read(rounds, path))
    rounds.fed.spread()


def read(rounds: Rounds, path: Path) -> None:
    """What `restore` does on one rank."""
    fed = rounds.fed
    with checkpoint.open_checkpoint(path) as file:
        saved = {"training": EXACT} | file.header["job"]  # older ones do not say so, and were all exact
        checkpoint.same_job(fed.job.identity(), saved, ignore=set())
        rounds.t = file.rounds
        rounds.state = from_tree(rounds.state, file.get("state"), fed)
        scores = file.get("scores")
        rounds.scores, rounds.stale, rounds.seconds = (np.array(scores[n]) for n in ("last", "stale", "seconds"))
        rounds.go_on(file.get("time"))
        for name in file.names("clients/"):
            k = int(name.removeprefix("clients/"))
            if k in fed.clients:
                fed.restore(k, file.get(name))
            elif k == fed.K and fed.comm.rank == 0:
                fed.pooled().memory = on_device(file.get(name)["memory"], fed.device)
        fed.last_checkpoint = f"last checkpoint: {file.path}"


def to_tree(state: State) -> Any:
    """A state as nested dicts: Params as they are, a dataclass as a dict of its fields."""
    return {f.name: getattr(state, f.name) for f in fields(state)} if is_dataclass(state) else state


def from_tree(like: State, tree: Any, fed: Federation) -> State:
    """The inverse of `to_tree`; like: the algorithm's initial state, for its type."""
    tree = on_device(tree, fed.device)
    return type(like)(**tree) if is_dataclass(like) else type(like)(tree)
