"""Exchange of values between clients, server and ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from hpcfed.core.averaging import mean_of
from hpcfed.core.params import Params, Per, Term
from hpcfed.core.payload import on_device
from hpcfed.federation import device_rows
from hpcfed.federation.replay_log import AGAIN, GO, STOP, Again
from hpcfed.machine.heartbeat import Stopped

if TYPE_CHECKING:
    import torch

    from hpcfed.clients.client import Clients
    from hpcfed.comm import Comm
    from hpcfed.core.averaging import Quotients
    from hpcfed.federation.replay_log import ReplayLog
    from hpcfed.machine.clock import Clock

T = TypeVar("T")
Item = TypeVar("Item", bound=Hashable)  # item of the server's work


class Exchange:
    """Collective operations of a federation.

    They move what the server has received (`Uplink`), and count no bytes.
    Tensors that arrive are on this rank's device.
    placement: the rank of each client.
    """

    def __init__(
        self,
        comm: Comm,
        clients: Clients,
        placement: Sequence[int],
        device: torch.device,
        clock: Clock,
        replay: ReplayLog,
    ) -> None:
        self._comm, self._clients, self._placement = comm, clients, placement
        self._device, self._clock, self._replay = device, clock, replay

    def mean(
        self,
        terms: list[Term],
        keep: Params,
        per: Per = "mean",
        receiver: Callable[[Params, Per], Quotients] | None = None,
    ) -> Params:
        """Return the exact weighted mean of all ranks' terms; collective.

        The bits do not depend on the number of ranks, nor on the device of the terms.
        receiver: as `mean_of` takes it.
        """
        self.wait("mean")
        with self._clock("communicate"):
            return mean_of(terms, keep, per, self._comm.sum, device_rows.place, receiver)

    def gather(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Return all clients' values by id, on all ranks; collective; counts no bytes."""
        self.wait("gather")
        with self._clock("communicate"):
            return on_device(self._comm.gather(dict(by_client)), self._device)

    def each(self, by_client: Mapping[int, T]) -> Iterator[tuple[int, T]]:
        """Iterate over all clients' values in id order, on all ranks, one in memory at a time.

        Collective; counts no bytes. Meant for computations on pairs of clients.
        by_client: values of this rank's clients. A client without a value is left out.
        """
        self.wait("gather")
        senders = self._comm.gather(dict.fromkeys(by_client, 1))
        for k in senders:
            yield k, self.from_client(k, by_client.get(k))

    def from_client(self, k: int, value: T | None) -> T:
        """Return client k's value, which its own rank gives, on all ranks.

        Collective; counts no bytes.
        """
        self.wait(f"from client {k}")
        with self._clock("communicate"):
            return on_device(self._comm.bcast(value, root=self._placement[k]), self._device)

    def to_client(self, k: int, by_client: Mapping[int, T], senders: Iterable[int]) -> dict[int, T]:
        """Return the values of the given clients, in that order, on client k's rank; {} elsewhere.

        Collective; counts no bytes.
        by_client: values of this rank's clients.
        """
        self.wait(f"to client {k}")
        return self._moved(by_client, senders, self._placement[k])

    def at_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Return all clients' values on rank 0, which does the server's work; {} elsewhere.

        Collective; counts no bytes.
        """
        self.wait("at root")
        senders = self._comm.gather(dict.fromkeys(by_client, 1))
        return self._moved(by_client, senders, 0)

    def _moved(self, by_client: Mapping[int, T], senders: Iterable[int], rank: int) -> dict[int, T]:
        """Return the given clients' values, in that order, on one rank; {} elsewhere.

        Collective; counts no bytes.
        """
        with self._clock("communicate"):
            values = {
                k: self._comm.move(by_client.get(k), self._placement[k], rank) for k in senders
            }
        return on_device(values, self._device) if self._comm.rank == rank else {}

    def from_root(self, by_client: Mapping[int, T]) -> dict[int, T]:
        """Send values for clients from rank 0 to the ranks of these clients.

        Collective; counts no bytes.
        """
        self.wait("from root")
        senders = self._comm.bcast(list(by_client))
        with self._clock("communicate"):
            values = {k: self._comm.move(by_client.get(k), 0, self._placement[k]) for k in senders}
        return on_device(
            {k: value for k, value in values.items() if k in self._clients}, self._device
        )

    def on_root(self, fn: Callable[[], T]) -> T:
        """Compute a result of the server on rank 0, and send it to all ranks; collective."""
        with self._clock.rest("server"):
            value = fn() if self._comm.rank == 0 else None
        self.wait("on root")
        with self._clock("communicate"):
            return on_device(self._comm.bcast(value), self._device)

    def spread(self, items: Iterable[Item], work: Callable[[Item], T]) -> dict[Item, T]:
        """Return the results of independent pieces of the server's work, by item.

        Collective; counts no bytes. Results are in the items' order. Rank i mod R computes item i.
        """
        rank, size, keys = self._comm.rank, self._comm.size, list(items)
        if len(set(keys)) < len(keys):
            raise ValueError(f"items of server-side work come twice: {keys}; give each once")
        with self._clock.rest("server"):
            done = {i: work(item) for i, item in enumerate(keys) if i % size == rank}
        self.wait("spread")
        with self._clock("communicate"):
            results = on_device(self._comm.gather(done), self._device)
        return {item: results[i] for i, item in enumerate(keys)}

    def wait(self, what: str, over: bool = False) -> None:
        """Wait for all ranks before an exchange; the clock measures this time on its own.

        what: the exchange, in words.
        over: this rank has done all of its round, and need not stop before the round ends.
        Raises Stopped on all ranks if a signal asked one of them to stop; otherwise Again if a
        client has failed.
        """
        word = (
            STOP
            if self._clock.heartbeat.stop_requested and not over
            else AGAIN
            if self._replay.news
            else GO
        )
        self._clock.heartbeat.exchange = what
        with self._clock("wait"):
            word = self._comm.barrier(word)
        self._replay.exchanges += 1
        if word == STOP:
            stopped = Stopped()
            stopped.everywhere = True
            raise stopped
        if word == AGAIN:
            raise Again
