"""EventBased: base class of methods without rounds, driven by events in virtual time.

A job is a unit of one client's work. What it starts from and how long it takes are fixed when it
starts. When it ends, its result is merged. Results are merged one after the other, in the order
(time, client). The engine keeps the clock. A "round" is a number of merges, followed by a record.

With a server (`to_server`) as many clients as a cohort has work at the same time. Each works on
what it downloaded when its job started, and the server merges the results. Without a server all
clients work all the time. When a client has merged the result of a job, its next job starts with
sending the new model to others, where it arrives after latency and upload. The client merges the
result itself, with the models that have reached it. The method's `coordinator` decides which
clients are free when a job ends, how much work the next job does, and whether the server makes a
new model of each result or of several together.

Hooks, beside those of `Method`, in the order in which a job calls them: `seconds`, `work`, `near`,
`merge`, `send`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt

from hpcfed.algorithms.base import Method, State
from hpcfed.core.params import Params
from hpcfed.federation.upload import Upload
from hpcfed.training.local import sgd
from hpcfed.training.optimisers import learning_rate

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class Work:
    """One job, a unit of a client's work; times are in virtual seconds.

    number: index of the job among those of its client, from 0.
    amount: epochs, or steps if jobs are counted in steps.
    share: part of the work that is done before the client, and with it the job, is lost; 1.0: all
    of it, and the client reports.
    staleness: the server's merges since the job's start.
    failed: whether the client, and with it the job, fails at the end of the job.
    group: of results that the server merges together, if its coordinator forms groups.
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
    """Decision of a coordinator after the end of a job, or at a deadline.

    group: group of the job's result.
    closes: group of results of which the server makes a new model now; None: none.
    released: clients that are free now.
    """

    group: int = 0
    closes: int | None = None
    released: tuple[int, ...] = ()


class Coordinator:
    """Decides as jobs end: which clients are free, how much they do next, when a new model is made.

    It computes in virtual time only and is the same on all ranks. By default a client is free when
    its job ends, does all its work, and each merge is a new model. A method that buffers results
    has its own coordinator.
    """

    # whether results are buffered until `close`; otherwise each accepted merge is a new model
    buffers: ClassVar[bool] = False

    def order(self, clients: list[int]) -> list[int]:
        """Return free clients in the order in which they get their jobs."""
        return clients

    def begin(self, k: int, now: float, most: int) -> int:
        """Return the epochs or steps, 1..most, of client k's job that begins now."""
        return most

    def end(self, job: Work) -> Decision:
        """Return the decision at the end of a job, at its `finish`."""
        return Decision(released=(job.client,))

    def deadline(self) -> float:
        """Return the time at which `expire` is called, whichever jobs end; infinite: never."""
        return float("inf")

    def expire(self) -> Decision:
        """Return the decision at the deadline."""
        raise NotImplementedError(f"{type(self).__name__} has no deadline")

    def close(self, fed: Federation, state: State, group: int) -> State:
        """Return the state with a new model made from the buffered results of this group.

        Results of other groups stay buffered.
        """
        raise NotImplementedError(f"{type(self).__name__} buffers nothing")

    def to_tree(self) -> dict[str, Any]:
        """Return the coordinator's state for a checkpoint."""
        return {}

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Restore the state that `to_tree` returned."""


class EventBased(Method):
    """Base class of asynchronous methods.

    By default free clients download the server's model, train it and send it back.
    """

    keeps_stragglers: ClassVar[bool] = True
    in_virtual_time: ClassVar[bool] = True
    # whether the server merges results; otherwise each client merges its own
    to_server: ClassVar[bool] = True

    @property
    def coordinator(self) -> Coordinator:
        """New coordinator of the run's jobs."""
        return Coordinator()

    @property
    def edges(self) -> str:
        """What edge servers can do, as it follows from the coordinator.

        An edge can merge what its own clients send, unless the coordinator orders all clients or
        has deadlines for all of them.
        """
        ours = type(self.coordinator)
        for_all = ours.order is not Coordinator.order or ours.deadline is not Coordinator.deadline
        return "models" if self.to_server and not for_all else ""

    merges: PositiveInt | None = None
    """Number of merges that make one round of the record; none: as many as a cohort has clients."""

    def refuses(self, job: Job) -> dict[str, str]:
        """Return the general reasons, and one against a deadline."""
        reasons = super().refuses(job)
        if job.system.deadline is not None:
            reasons["job"] = (
                "needs no deadline, because it has no rounds that could close; set "
                "system.deadline to none"
            )
        return reasons

    def seconds(self, fed: Federation, k: int, examples: int) -> float:
        """Return the virtual seconds of one task of client k with these examples."""
        return fed.participants.profiles.seconds(k, examples, *fed.participants.announced(k))

    def work(self, fed: Federation, client: Client, job: Work) -> Any:
        """Do the job of a client and return its result: an `Upload`, or without a server Params.

        The job's number names its random streams, like the round in synchronous methods.
        """
        download = fed.down(client, client.memory.pop("download"))
        self.receive(client, download)
        train(self, fed, client, download, job)
        return Upload(client.params(self.shared), relative_to=download)

    def near(self, fed: Federation, k: int, number: int) -> list[int]:
        """Return the clients whose latest models are needed to merge client k's job of this number.

        This applies only to methods without a server.
        """
        return []

    def merge(
        self, fed: Federation, job: Work, current: State, up: Any, near: dict[int, Params]
    ) -> State | None:
        """Merge the result of a job; return the new state, or None to reject the job.

        current: the server's state, on all ranks; without a server the model of the job's client,
        on its rank.
        up: what the server has of the job's result, its only part, or a dict of its parts.
        near: models of the clients that `near` names, as they have arrived.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how results are merged")

    def send(self, fed: Federation, client: Client) -> Upload:
        """Return the message with which the next job starts, after the last one was merged.

        This applies only to methods without a server.
        """
        return Upload(client.params(self.shared))


def train(method: EventBased, fed: Federation, client: Client, received: State, job: Work) -> None:
    """Train the client locally with the learning rate of the present round."""
    loss = partial(method.loss, client, received)
    sgd(fed, client, job.number, loss, views=method.views, lr=learning_rate(fed, fed.t))
