"""Contents of a checkpoint: the server's state, and each client's weights and memory, by client.

`items` collects them. `take_clients` and `take_shared` restore them from files
(`storage.checkpoint.Reader`), `take_up` from memory (`Snapshot`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.params import Params
from hpcfed.core.payload import from_tree, on_device, to_tree
from hpcfed.machine.transfer import Transfer
from hpcfed.storage.equality import same_job
from hpcfed.storage.record import JOB_ID, RUN_ID, WEIGHTS

if TYPE_CHECKING:
    from hpcfed.engine.rounds import Rounds


class Source(Protocol):
    """A source that a run can continue from."""

    @property
    def header(self) -> dict[str, Any]: ...

    @property
    def rounds(self) -> int: ...

    def names(self, prefix: str = "") -> list[str]: ...

    def get(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Snapshot:
    """Items of a checkpoint in the host's memory, which later rounds do not change."""

    header: dict[str, Any]
    rounds: int
    items: dict[str, Any]

    def names(self, prefix: str = "") -> list[str]:
        return [name for name in self.items if name.startswith(prefix)]

    def get(self, name: str) -> Any:
        return self.items[name]


@dataclass(frozen=True)
class Shared:
    """The items of a checkpoint that all ranks share, and of rank 0 the pooled client's memory."""

    rounds: int
    state: Any
    scores: Any
    time: Any
    pooled: dict[str, Any] | None = None


def header(rounds: Rounds) -> dict[str, Any]:
    """Return the header of a checkpoint.

    job: the fields on which results depend.
    settings: the complete job, and the batch job that runs it, for a resume without results.
    weights: checksums of the files that models started from.
    """
    job, weights = rounds.fed.job, rounds.fed.store.finetuning.checksums
    batch = os.environ.get("SLURM_JOB_ID", "")
    fields = {"job": job.identity(), "settings": job.plain(), JOB_ID: batch}
    return fields | {RUN_ID: rounds.run_id} | ({WEIGHTS: weights} if weights else {})


def items(rounds: Rounds) -> Iterator[tuple[str, Any]]:
    """Yield this rank's part of a checkpoint, as pairs of name and item.

    The part has its clients' weights and memories, and on rank 0 also the state that all ranks
    share. Items are the run's own tensors, to be read before the run continues. A client without
    state is left out. Work of a client in a round that was stopped is included. The pooled client
    has number K.
    """
    fed = rounds.fed
    if fed.comm.rank == 0:
        yield "state", to_tree(rounds.state)
        evaluation = rounds.evaluation
        last = {"last": evaluation.scores, "stale": evaluation.stale}
        last |= {"cohort": np.array(evaluation.last_cohort, np.int64)}
        last |= {"seconds": rounds.balance.seconds} | rounds.early_stop.to_tree()
        yield "scores", last | evaluation.metrics.to_tree()
        yield "time", rounds.schedule.to_tree()
    for k in sorted(fed.placement.with_parcel()):
        if k in fed.clients or (k == fed.K and fed.comm.rank == 0):
            yield f"clients/{k}", fed.placement.parcel(k)


def take_snapshot(rounds: Rounds) -> Snapshot:
    """Return a copy of this rank's part.

    Weights on the host are not copied: a store never writes into a vector that it keeps, but
    replaces it. So apart from the methods' memories (moments, say) only the weights of clients that
    train meanwhile take memory twice.
    """
    device = rounds.fed.device
    copy: Callable[[Tensor], Tensor] = (
        Transfer(device).down if device.type == "cuda" else Tensor.clone
    )
    share = copy if device.type == "cuda" else lambda weights: weights
    copies = {}
    for name, item in items(rounds):
        if name.startswith("clients/"):
            copies[name] = {
                what: copy_value(part, share if what == "weights" else copy)
                for what, part in item.items()
            }
        else:
            copies[name] = copy_value(item, copy)
    return Snapshot(header(rounds), rounds.t, copies)


def copy_value(value: Any, how: Callable[[Tensor], Tensor]) -> Any:
    """Return nested values with all tensors and arrays copied."""
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
    """Restore the run from a source that has the items of all ranks.

    This rank takes the shared items, and those of its own clients. Raises CheckpointError if the
    source is of another job.
    """
    take_shared(rounds, take_clients(rounds, source))


def take_clients(rounds: Rounds, source: Source) -> Shared:
    """Restore the states of this rank's clients; return the shared items, to be restored later.

    A later call replaces all that a call has restored, so that one that fails halfway does no harm.
    Raises CheckpointError if the source is of another job.
    """
    fed = rounds.fed
    same_job(fed.job.identity(), source.header["job"])
    fed.store.finetuning.same_weights(source.header.get(WEIGHTS))
    shared = Shared(source.rounds, *(source.get(name) for name in ("state", "scores", "time")))
    for k in [*fed.store]:  # from the method's start, or from a damaged source
        fed.store.forget(k)
    fed.replay.clear()
    for name in source.names("clients/"):
        k = int(name.removeprefix("clients/"))
        if k in fed.clients:
            fed.placement.restore(k, check_weights(rounds, k, source.get(name)))
        elif k == fed.K and fed.comm.rank == 0:
            shared = replace(shared, pooled=source.get(name)["memory"])
    return shared


def take_shared(rounds: Rounds, shared: Shared) -> None:
    """Restore the items that all ranks share, and the pooled client."""
    fed, scores = rounds.fed, shared.scores
    rounds.t = shared.rounds
    rounds.state = from_tree(rounds.state, shared.state, fed.device)
    rounds.evaluation.scores, rounds.evaluation.stale, rounds.balance.seconds = (
        np.array(scores[n]) for n in ("last", "stale", "seconds")
    )
    # checkpoints of earlier versions have no cohort
    rounds.evaluation.last_cohort = np.asarray(scores["cohort"]).tolist()
    rounds.evaluation.metrics.from_tree(scores)
    rounds.early_stop.from_tree(scores)
    rounds.schedule.from_tree(shared.time)
    if shared.pooled is not None:
        fed.pooled().memory = on_device(shared.pooled, fed.device)


def check_weights(rounds: Rounds, k: int, parcel: dict[str, Any]) -> dict[str, Any]:
    """Return the parcel of client k.

    Raises ValueError for weights that do not fill the client's model, which would end its training
    at the first step.
    """
    weights, fed = parcel["weights"], rounds.fed
    if weights is not None and not rounds.algorithm.draws_widths:
        layout = fed.store.layout(fed.clients[k].architecture)
        if tuple(weights.shape) != (layout.size,):
            raise ValueError(
                f"client {k} has weights of shape {list(weights.shape)}; its model takes "
                f"[{layout.size}]"
            )
    return parcel
