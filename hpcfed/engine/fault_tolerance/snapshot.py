"""What a checkpoint holds: the server's state, and each client's weights and memory, by client.

It comes from one function, `items`, and goes back through one, `take_up`, wherever it was
meanwhile: in files (`storage.checkpoint.Reader`) or in memory (`Snapshot`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.params import Params
from hpcfed.core.payload import from_tree, on_device, to_tree
from hpcfed.machine.transfer import Transfer
from hpcfed.storage.equality import same_job
from hpcfed.storage.record import JOB_ID, RUN_ID

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds


class Source(Protocol):
    """What a run can go on from."""

    header: dict[str, Any]
    rounds: int

    def names(self, prefix: str = "") -> list[str]: ...

    def get(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Snapshot:
    """Items of a checkpoint in the host's memory, which nothing that the run does later changes."""

    header: dict[str, Any]
    rounds: int
    items: dict[str, Any]

    def names(self, prefix: str = "") -> list[str]:
        return [name for name in self.items if name.startswith(prefix)]

    def get(self, name: str) -> Any:
        return self.items[name]


def header(rounds: Rounds) -> dict[str, Any]:
    """What a checkpoint says of its run.

    job: what results depend on.  settings: the whole job, and the batch job that works on it, for a
    resume without results.
    """
    job = rounds.fed.job
    batch = os.environ.get("SLURM_JOB_ID", "")
    known = {"job": job.identity(), "settings": job.plain(), JOB_ID: batch}
    return known | {RUN_ID: rounds.run_id}


def items(rounds: Rounds) -> Iterator[tuple[str, Any]]:
    """This rank's part of a checkpoint, by name: its clients' weights and memories; on rank 0 what
    all ranks share too.

    The run's own tensors, to be read before it goes on. A client that keeps nothing is left out;
    what it has done of a round that was stopped goes with it. The pooled client is number K.
    """
    fed = rounds.fed
    if fed.comm.rank == 0:
        yield "state", to_tree(rounds.state)
        evaluation = rounds.evaluation
        last = {"last": evaluation.scores, "stale": evaluation.stale}
        last |= {"seconds": rounds.balance.seconds}
        yield "scores", last | evaluation.metrics.to_tree()
        yield "time", rounds.schedule.to_tree()
    for k in sorted(fed.placement.with_parcel()):
        if k in fed.clients or (k == fed.K and fed.comm.rank == 0):
            yield f"clients/{k}", fed.placement.parcel(k)


def take_snapshot(rounds: Rounds) -> Snapshot:
    """A copy of this rank's part.

    Weights on the host are not copied: a store never writes into a vector that it keeps, but
    replaces it. So beside the methods' memories (moments, say) only the weights of clients that
    train meanwhile take memory twice.
    """
    device = rounds.fed.device
    copy: Callable[[Tensor], Tensor] = (
        Transfer(device).down if device.type == "cuda" else Tensor.clone
    )
    share = copy if device.type == "cuda" else lambda weights: weights
    held = {}
    for name, item in items(rounds):
        if name.startswith("clients/"):
            held[name] = {
                what: copy_value(part, share if what == "weights" else copy)
                for what, part in item.items()
            }
        else:
            held[name] = copy_value(item, copy)
    return Snapshot(header(rounds), rounds.t, held)


def copy_value(value: Any, how: Callable[[Tensor], Tensor]) -> Any:
    """Nested values with all tensors and arrays copied."""
    match value:
        case dict():
            copies = {name: copy_value(part, how) for name, part in value.items()}
            return Params(copies) if isinstance(value, Params) else copies
        case list():
            return [copy_value(part, how) for part in value]
        case tuple():
            return tuple(copy_value(part, how) for part in value)
        case torch.Tensor():
            return how(value.detach())
        case np.ndarray():
            return value.copy()
        case _:
            return value


def take_up(rounds: Rounds, source: Source) -> None:
    """Continue from a source that has the items of all ranks.

    This rank takes what is shared, and its own clients.

    What it gave before, in part, does no harm. Raises CheckpointError if it is of another job.
    """
    fed = rounds.fed
    same_job(fed.job.identity(), source.header["job"], ignore=set(), defaults=fed.job.usual())
    rounds.t = source.rounds
    rounds.state = from_tree(rounds.state, source.get("state"), fed.device)
    scores = source.get("scores")
    rounds.evaluation.scores, rounds.evaluation.stale, rounds.balance.seconds = (
        np.array(scores[n]) for n in ("last", "stale", "seconds")
    )
    rounds.evaluation.metrics.from_tree(scores)
    rounds.schedule.from_tree(source.get("time"))
    for k in [*fed.store]:  # what the method gave them at its start, and what a damaged source gave
        fed.store.forget(k)
    fed.replay.clear()
    for name in source.names("clients/"):
        k = int(name.removeprefix("clients/"))
        if k in fed.clients:
            fed.placement.restore(k, source.get(name))
        elif k == fed.K and fed.comm.rank == 0:
            fed.pooled().memory = on_device(source.get(name)["memory"], fed.device)
