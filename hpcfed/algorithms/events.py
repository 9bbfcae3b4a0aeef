"""EventBased: a method without rounds, as a few hooks for the events of virtual time.

A job is one client's stretch of work. It is fixed when it starts: what the client has then, and how
long it takes. When it ends, its result is merged, one job after the other, in the order (time,
client). The engine keeps the clock; a "round" is so many merges, after which there is a record.

With a server (`to_server`) as many clients as a cohort has work at the same time, each on what it
downloaded when its job started, and the server merges the results. Without one all clients work all
the time; a client sends its model to others when a job starts, where it arrives after latency and
upload, and merges the job's result itself with the models that have reached it. Who is free when a
job ends, how much the next one does, and whether the server makes a new model of each result or of
several together, says the method's `coordinator`.

Hooks, beside those of `Method`, in the order in which a job calls them: `seconds`, `work`, `near`,
`merge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt

from hpcfed.algorithms.base import Method, State, single_step
from hpcfed.core.params import Params
from hpcfed.training.local import sgd
from hpcfed.training.optimisers import learning_rate

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class Work:
    """One job: `number` counts those of its client, from 0; times in virtual seconds.

    amount: epochs, or steps where the job counts in steps.  share: of the work that is done before
    the client is lost, and with it the job; 1.0: all, and the client reports.  staleness: the
    server's merges since the start.
    failed: the client fails at the end of the job, and with it the job.
    group: of results that the server merges together, where its coordinator has such.
    """

    client: int
    number: int
    start: float
    finish: float
    amount: int
    share: float = 1.0
    staleness: int = 0
    failed: bool = False
    group: int = 0

    @property
    def reports(self) -> bool:
        return self.share == 1.0 and not self.failed


@dataclass(frozen=True)
class Decision:
    """What follows from the end of a job, or from a deadline.

    group: to which the job's result belongs.  closes: the group of results of which the server
    makes a new model now; None: none.  released: the clients that are free now.
    """

    group: int = 0
    closes: int | None = None
    released: tuple[int, ...] = ()


class Coordinator:
    """What the server decides as jobs end: who is free, how much the next job does, and when it
    makes a new model. Pure arithmetic in virtual time, the same on all ranks.

    The default: who has ended is free, does all work, and each merge is a new model. A method that
    buffers results has one of its own.
    """

    # whether results wait for `close`; else each accepted merge is a new model
    buffers: ClassVar[bool] = False

    def order(self, clients: list[int]) -> list[int]:
        """In which order clients that are free get their jobs."""
        return clients

    def begin(self, k: int, now: float, most: int) -> int:
        """Epochs or steps of client k's job that begins now, 1..most."""
        return most

    def end(self, job: Work) -> Decision:
        """A job ends, at its `finish`."""
        return Decision(released=(job.client,))

    def deadline(self) -> float:
        """When `expire` is due, whoever ends; infinite: never."""
        return float("inf")

    def expire(self) -> Decision:
        """The deadline has come."""
        raise NotImplementedError(f"{type(self).__name__} has no deadline")

    def close(self, fed: Federation, state: State, group: int) -> State:
        """The server's new model from what it has buffered of this group, and later ones keep."""
        raise NotImplementedError(f"{type(self).__name__} buffers nothing")

    def to_tree(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {}

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Continue from what `to_tree` gave."""


class EventBased(Method):
    """The defaults: clients that are free download the server's model, train it and send it
    back.
    """

    keeps_stragglers: ClassVar[bool] = True
    # whether the server merges results; else the clients do, each its own
    to_server: ClassVar[bool] = True

    @property
    def coordinator(self) -> Coordinator:
        """A new coordinator of the run's jobs."""
        return Coordinator()

    merges: PositiveInt | None = None
    """Merges that make one round of the record; none: as many as a cohort has clients."""

    def refuses(self, job: Job) -> dict[str, str]:
        """As for all methods; a deadline; and of an optimiser that takes one step and is forgotten,
        its moments.
        """
        same = type(self).work is EventBased.work
        found = super().refuses(job) | (single_step(job) if same else {})
        if job.system.deadline is not None:
            found["job"] = (
                "needs no deadline, for it has no rounds that could close; set "
                "system.deadline to none"
            )
        return found

    def seconds(self, fed: Federation, k: int, examples: int) -> float:
        """Virtual seconds of one job of client k with so many examples."""
        return fed.participation.profiles.seconds(k, examples, *fed.participation.announced(k))

    def work(self, fed: Federation, client: Client, job: Work) -> Any:
        """The job's result, which is sent. A job's number names its random draws, as a round's does
        elsewhere.
        """
        given = fed.down(client, client.memory.pop("download"))
        self.receive(client, given)
        train(self, fed, client, given, job)
        return fed.up(client, client.params(self.shared))

    def near(self, fed: Federation, k: int, number: int) -> list[int]:
        """The clients whose latest models the merge of client k's job needs, by the job's number;
        only without a server.
        """
        return []

    def merge(
        self, fed: Federation, job: Work, held: State, up: Any, near: dict[int, Params]
    ) -> State | None:
        """What the server, or without one the job's client, holds after this job; None: the job is
        rejected.

        held: the server's state, on all ranks, or the client's model, on its rank.  up: the job's
        result.  near: the models of the clients that `near` names, as they have arrived.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how results are merged")


def train(method: EventBased, fed: Federation, client: Client, given: State, job: Work) -> None:
    """Local training with the learning rate of the present round."""
    loss = partial(method.loss, client, given)
    sgd(fed, client, job.number, loss, views=method.views, lr=learning_rate(fed, fed.t))
