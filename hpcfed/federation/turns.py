"""Turns: the clients of a round one after the other, each once, and what becomes of one that
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from hpcfed.core.errors import DivergedError, HpcfedError
from hpcfed.core.payload import not_finite, on_device
from hpcfed.federation.exchange import Exchange
from hpcfed.federation.journal import Entry, Turn
from hpcfed.machine.faults import explain_fault, kind, memory_allocated

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, ClientStore
    from hpcfed.config.job import Job

T = TypeVar("T")


@dataclass(eq=False, kw_only=True)
class Turns(Exchange):
    """The part of a federation that lets clients work, and moves and restores them."""

    job: Job
    store: ClientStore
    grouping: Callable[[Sequence[int]], list[list[int]]] = lambda cohort: [[k] for k in cohort]
    warned: set[int] = field(default_factory=set)  # clients of whose failures was spoken

    def mine(self, cohort: Iterable[int]) -> list[Client]:
        """This rank's clients of the cohort, in id order."""
        return [self.clients[k] for k in cohort if k in self.clients]

    def run(self, cohort: Iterable[int], work: Callable[[Client], T], job: int = 0) -> dict[int, T]:
        """Every client's turn, in id order: what `work` returned for each of this rank's clients.

        As `stream`, but all of it is done when this returns.
        """
        return dict(self.stream(cohort, work, job=job))

    def stream(
        self,
        cohort: Iterable[int],
        work: Callable[[Client], T],
        together: Callable[[Sequence[Client]], list[T] | None] | None = None,
        job: int = 0,
    ) -> Iterator[tuple[int, T]]:
        """The turns of this rank's clients of the cohort, in id order, as (id, what `work`
        returned), one result in memory at a time; for `mean`. Nothing is done before it is asked.

        work: trains a client, and returns a value that can travel (`comm.codec`) and in which all
        is that it leaves elsewhere: a turn that is done is not done again when the round is, its
        value is used again. What a round does to clients outside of turns is undone then, and done
        again.
        together: the same work for several clients at once (`groups`), or None where it cannot be
        done so and each works alone.  job: number of the client's, where it may have several in a
        round.
        With run.on_client_fault = "drop" a client that fails is left out here; all ranks learn of
        it when they meet.
        """

        def alone(clients: Sequence[Client]) -> list[T]:
            return [work(client) for client in clients]

        def at_once(clients: Sequence[Client]) -> list[T]:
            values = together(clients) if together and len(clients) > 1 else None
            return alone(clients) if values is None else values

        for group in self.groups(list(cohort)) if together else [[k] for k in cohort]:
            if clients := self.mine(group):
                yield from self.joint(clients, at_once, job)

    def groups(self, cohort: Sequence[int]) -> list[list[int]]:
        """The cohort in parts, each of which trains on one rank; the same on all ranks."""
        return self.grouping(cohort)

    def joint(
        self, clients: Sequence[Client], work: Callable[[Sequence[Client]], list[T]], job: int = 0
    ) -> Iterator[tuple[int, T]]:
        """One turn of several clients, which is done, or begun again, as a whole; as `stream` has
        it for one.

        work: clients -> what each hands on. Of several, none keeps anything from round to round.
        """
        group = [client.id for client in clients]
        done = [self.journal.next(k, group) for k in group]
        try:
            values = self.again(group, done) if all(done) else self.turn(clients, work, job)  # type: ignore[arg-type]
        except Left:
            return
        finally:
            self.pulse.finish(len(group))
        yield from zip(group, values, strict=True)

    def again(self, group: Sequence[int], done: Sequence[Turn]) -> list[Any]:
        """What a turn that is done handed on; its tallies too are what they were."""
        self.tally |= {
            k: copy(turn.tally) for k, turn in zip(group, done, strict=True) if turn.tally
        }
        return [on_device(turn.value, self.device) for turn in done]

    def turn(
        self, clients: Sequence[Client], work: Callable[[Sequence[Client]], list[T]], job: int
    ) -> list[T]:
        """One turn; its end is written down where nothing else has changed the clients in this
        round.
        """
        group, past = [client.id for client in clients], self.store.past
        self.pulse.enter("train")
        self.pulse.visit(", ".join(f"{client.id} ({client.architecture})" for client in clients))
        drops = self.job.run.on_client_fault == "drop" and past.open
        # A turn after an exchange hangs on who took part in that, which changes when somebody
        # leaves the round.
        whole = (
            past.open and past.before.isdisjoint(group) and not (drops and self.journal.exchanges)
        )
        for k in group:
            past.note(k)
        steady = memory_allocated(self.device)
        try:
            values = work(clients)
            self.check(clients, values if drops else ())
        except Exception as error:
            if not kind(error):
                raise
            self.fails(clients, error, job, drops, steady)
        for k, value in zip(group, values if whole else (), strict=whole):
            self.journal.of(k).turns.append(Turn(value, copy(self.tally.get(k)), group))
            past.drop(k)
        return values

    def check(self, clients: Sequence[Client], values: Sequence[Any]) -> None:
        """DivergedError where a client hands on what is not finite."""
        for client, value in zip(clients, values, strict=False):
            if name := not_finite(value):
                error = DivergedError(
                    f"{self.where(client)}: its {name} is nan or infinite in round {self.t + 1}"
                )
                error.client = client.id
                raise error

    def fails(
        self, clients: Sequence[Client], error: Exception, job: int, drops: bool, steady: int
    ) -> NoReturn:
        """Let the client that failed leave the round, all of a group where that is not known; or
        end the run.
        """
        whose = getattr(error, "client", None)
        failed = [client for client in clients if whose in (None, client.id)]
        told = explain_fault(error, self.where(failed[0]), self.job, self.device, steady)
        if not drops:
            raise told from (None if told is error else error)
        for client in failed:
            self.journal.fail(client.id, job, kind(error), str(told))
        raise Left from error

    def spread(self) -> None:
        """All ranks learn who has left the round; collective. Each client's first failure is
        told.
        """
        for k, failed in self.comm.gather(self.journal.failures()).items():
            self.journal.left[k] = failed
            if self.comm.rank == 0 and k not in self.warned:
                message = next(iter(failed.values()))[1].splitlines()[0]
                self.say(
                    f"{message}\n  client {k} leaves the round, as run.on_client_fault = 'drop' "
                    f"has it"
                )
            self.warned.add(k)

    def parcel(self, k: int) -> dict[str, Any]:
        """All that goes with client k to another rank, or to a checkpoint."""
        entry = {"round": self.journal.of(k).encode()} if k in self.journal else {}
        return self.store.parcel(k) | entry

    def keeps(self, k: int) -> bool:
        """Whether client k of this rank has such a parcel."""
        return k in self.store or k in self.journal

    def keeping(self) -> set[int]:
        """The clients of this rank that have one."""
        return {*self.store, *self.journal}

    def hand_over(self, k: int, src: int, dst: int) -> None:
        """Move client k, with weights and memory, from one rank to another; collective."""
        parcel = self.comm.move(self.parcel(k) if k in self.clients else None, src, dst)
        self.store.forget(k)
        self.journal.entries.pop(k, None)
        self.placement[k] = dst
        if self.comm.rank == dst:
            self.restore(k, parcel)  # type: ignore[arg-type]  # it comes to dst

    def restore(self, k: int, saved: dict[str, Any]) -> None:
        """Give client k of this rank what its parcel holds."""
        self.store.put(k, saved["weights"], saved["memory"])
        if "round" in saved:
            self.journal.entries[k] = Entry.decode(np.asarray(saved["round"]))


class Left(HpcfedError):
    """A client has failed and left the round."""
