"""Exchange: what goes between clients and server and between ranks; all of it is counted and
checked here.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hpcfed.core import own
from hpcfed.core.averaging import mean_of
from hpcfed.core.errors import DivergedError, format_error
from hpcfed.core.params import Mean, Params, Part, Per
from hpcfed.core.payload import Tally, nbytes, not_finite, on_device
from hpcfed.federation.journal import AGAIN, GO, STOP, Again, Journal
from hpcfed.machine.clock import Clock
from hpcfed.machine.pulse import Pulse, Stopped

if TYPE_CHECKING:
    import torch

    from hpcfed.clients.client import Client, Clients
    from hpcfed.comm import Comm

T = TypeVar("T")


@dataclass(eq=False, kw_only=True)
class Exchange:
    """The collectives of a federation. down, up, mean and gather count bytes; the others move what
    is counted so.

    Tensors that arrive are on this rank's device.
    """

    comm: Comm
    clients: Clients
    device: torch.device
    placement: list[int]  # the rank of each client
    speeds: list[float]  # of each rank, relative to one another
    share: float = 0.0  # bytes of a GPU's memory for this rank; 0 on a CPU
    clock: Clock = field(default_factory=Clock)
    tally: defaultdict[int, Tally] = field(
        default_factory=lambda: defaultdict(Tally)
    )  # of who did something
    journal: Journal = field(default_factory=Journal)
    said: set[str] = field(default_factory=set)
    unheard: list[str] = field(default_factory=list)  # warnings of another rank than 0, see `heard`
    meanwhile: Callable[[], object] = lambda: (
        None
    )  # what a rank does instead of waiting for slower ones
    t: int = 0
    last_checkpoint: str = "no checkpoint yet"

    @property
    def pulse(self) -> Pulse:
        """What this rank is doing."""
        return self.clock.pulse

    def say(self, message: str) -> None:
        """Warn of something once: on rank 0 at once, of another rank as soon as `heard` is told."""
        if message in self.said:
            return
        self.said.add(message)
        if self.comm.rank:
            self.unheard.append(message)
            return
        with suppress(OSError):  # where the disk of a log is full the run goes on
            print(format_error(f"hpcfed: {message}"), file=sys.stderr, flush=True)

    def heard(self, by_rank: Sequence[Sequence[str]]) -> None:
        """What each rank had to say since the last time, [R]: rank 0 says what it has not said.

        What concerns several ranks alike is said once, with all of them.
        """
        self.unheard = []
        if self.comm.rank:
            return
        ranks: dict[str, list[str]] = {}
        for rank, messages in enumerate(by_rank):
            for message in messages:
                ranks.setdefault(message, []).append(str(rank))
        for message, of in ranks.items():
            if message not in self.said:
                self.say(f"rank{'s' * (len(of) > 1)} {', '.join(of)}: {message}")

    def down(self, client: Client, value: T, times: int = 1) -> T:
        """Send a value to a client, or so many of that size: its bytes are counted."""
        self.tally[client.id].down += times * nbytes(value)
        return value

    def up(self, client: Client, value: T, times: int = 1) -> T:
        """Send a client's value to the server, or to so many others: its bytes are counted.

        Not for what `mean` or `gather` count.

        Raises DivergedError for a value that is nan or infinite.
        """
        self.upload(client.id, value, times * nbytes(value))
        return value

    def mean(
        self,
        uploads: Iterable[tuple[int, Mean]],
        keep: Params,
        per: Per = "mean",
        counted: bool = True,
        last: bool = False,
    ) -> Params:
        """The exact weighted mean over all clients of all ranks; collective, the same bits for any
        ranks.

        uploads: (client id, its part), one after the other.  keep: values where the weights sum to
        0, and the shapes.  per: what has a weight of its own (a whole part, a tensor, a row of it,
        a value).  counted: false for what the server computes itself from earlier uploads.  last:
        no client's own model changes any more in this round, so that it can be evaluated before the
        ranks wait for one another. Raises DivergedError for a value that is nan or infinite, naming
        client and tensor.
        """
        parts: list[Part] = []
        for k, part in uploads:
            if not isinstance(part, Mean):
                raise own.OwnError(
                    f"{own.caller()}fed.mean gets a {type(part).__name__} from client {k}; give "
                    f"(client id, Mean.of(Params, weight)) for each client"
                )
            self.upload(k, [p.value for p in part.parts], part.nbytes if counted else 0)
            parts.extend(part.parts)
        if last:
            self.meanwhile()
        if not keep:
            return keep
        self.wait("mean")
        with self.clock("communicate"):
            return mean_of(parts, keep, per, self.comm.sum)

    def gather(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """All clients' values, by id, on all ranks; collective; bytes are counted as uploads."""
        for k, value in by_client.items():
            self.upload(k, value, nbytes(value))
        self.wait("gather")
        with self.clock("communicate"):
            return on_device(self.comm.gather(dict(by_client)), self.device)

    def each(self, by_client: Mapping[int, T]) -> Iterator[tuple[int, T]]:
        """All clients' values in id order, on all ranks, one in memory at a time; collective,
        nothing is counted.

        For what concerns pairs of clients. by_client: this rank's; a client that nobody gives is
        left out.
        """
        self.wait("gather")
        given = self.comm.gather(dict.fromkeys(by_client, 1))
        for k in given:
            yield k, self.from_client(k, by_client.get(k))

    def from_client(self, k: int, value: T | None) -> T:
        """Client k's value, which its own rank gives, on all ranks; collective, not counted."""
        self.wait(f"from client {k}")
        with self.clock("communicate"):
            return on_device(self.comm.bcast(value, root=self.placement[k]), self.device)

    def to_client(self, k: int, by_client: Mapping[int, T], given: Iterable[int]) -> dict[int, T]:
        """Values of the given clients, in that order, on the rank of client k, none elsewhere;
        collective, not counted.

        by_client: this rank's own.
        """
        self.wait(f"to client {k}")
        return self.moved(by_client, given, self.placement[k])

    def at_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """All clients' values on rank 0, which does the server's work, none elsewhere; collective,
        not counted.
        """
        self.wait("at root")
        given = self.comm.gather(dict.fromkeys(by_client, 1))
        return self.moved(by_client, given, 0)

    def moved(self, by_client: Mapping[int, T], given: Iterable[int], rank: int) -> dict[int, T]:
        """The given clients' values, in that order, on one rank, none elsewhere; collective, not
        counted.
        """
        with self.clock("communicate"):
            moved = {k: self.comm.move(by_client.get(k), self.placement[k], rank) for k in given}
        return on_device(moved, self.device) if self.comm.rank == rank else {}

    def from_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Values for clients from rank 0 to the ranks that hold them; collective, not counted."""
        self.wait("from root")
        given = self.comm.bcast(list(by_client))
        with self.clock("communicate"):
            moved = {k: self.comm.move(by_client.get(k), 0, self.placement[k]) for k in given}
        return on_device({k: value for k, value in moved.items() if k in self.clients}, self.device)

    def on_root(self, fn: Callable[[], T]) -> T:
        """The result of server-side work: done on rank 0, then sent to all ranks; collective."""
        with self.clock.rest("server"):
            value = fn() if self.comm.rank == 0 else None
        self.wait("on root")
        with self.clock("communicate"):
            return on_device(self.comm.bcast(value), self.device)

    def wait(self, what: str, over: bool = False) -> None:
        """Until all ranks are here, before an exchange; what the slowest rank costs the others is
        timed apart.

        what: the exchange, in words.  over: this rank has done all of the round, and need not stop
        in it. Here a round ends that cannot go on: raises Stopped on all ranks where a signal asked
        one of them to stop, and else Again where a client has failed.
        """
        word = (
            STOP if self.pulse.stop_requested and not over else AGAIN if self.journal.news else GO
        )
        self.pulse.exchange = what
        with self.clock("wait"):
            word = self.comm.barrier(word)
        self.journal.exchanges += 1
        if word == STOP:
            stopped = Stopped()
            stopped.everywhere = True
            raise stopped
        if word == AGAIN:
            raise Again

    def upload(self, k: int, value: Any, size: int) -> None:
        """What client k sends: counted, and refused with a DivergedError where it is not finite."""
        self.tally[k].up += size
        if name := not_finite(value):
            raise DivergedError(
                f"{self.where(self.clients.get(k))}: its {name} is nan or infinite after round "
                f"{self.t + 1}; "
                f"{self.last_checkpoint}\n  a smaller local.lr may help"
            )

    def where(self, client: Client | None) -> str:
        """Rank and client, as error messages name them."""
        who = f"client {client.id} ({client.architecture})" if client else "server"
        return f"rank {self.comm.rank} of {self.comm.size}: {who}"
