"""Turns: the work of the clients of a round, one after the other, and the handling of failures.

A turn fails if a loss, a weight (`training.divergence`) or an upload (`Uplink.send`) is nan or
infinite, if the client's examples cannot be used, or for lack of memory. Any other error is a
mistake in code, and ends the run. What follows a failure depends on the job's run.on_client_fault:

- "stop", and always outside a round: an error that names the client ends the run on all ranks, with
  exit status 2.
- "drop": the failure is logged (`ReplayLog.fail`), and the rank continues with its next client. At
  the next exchange all ranks raise Again (`Exchange.wait`). `Rounds.step` then undoes the round,
  lets all ranks know who has failed (`Turns.share_failures`), and does it again without these
  clients; turns that were completed before its first exchange are not repeated.
  `Participants.begin` (in virtual time `Events`) counts what a failed client received and computed,
  as for one that drops out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcfed.core.errors import ConfigError, everywhere
from hpcfed.federation.replay_log import Turn
from hpcfed.machine.error_messages import explain_fault, kind, memory_allocated

if TYPE_CHECKING:
    import torch

    from hpcfed.clients.client import Client, ClientStore
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.federation.replay_log import ReplayLog
    from hpcfed.federation.tallies import Tallies
    from hpcfed.federation.upload import Upload
    from hpcfed.federation.warnings import Warnings
    from hpcfed.machine.clock import Clock


@dataclass
class OpenTurn:
    """A turn in progress, of one or several clients.

    values: the upload of each client, as the server has it, or None for one that sends nothing;
    None until they are known, and after a failure.
    """

    group: list[int]
    values: list[Upload | None] | None = None

    def uploads(self) -> Iterator[tuple[int, Upload]]:
        """Iterate over (id, upload) of the clients that send one; empty if the turn failed."""
        for k, upload in zip(self.group, self.values or (), strict=False):
            if upload is not None:
                yield k, upload


class Turns:
    """Turns of this rank's clients: completed ones are replayed, new ones are logged as they end.

    grouping: cohort -> groups of clients, each of which trains on one rank; the same on all ranks.
    meanwhile: called by `RoundBased.round` when no client's own model changes any more in the
    round; it scores this rank's clients, instead of waiting for slower ranks.
    """

    def __init__(
        self,
        job: Job,
        comm: Comm,
        store: ClientStore,
        device: torch.device,
        clock: Clock,
        replay: ReplayLog,
        tallies: Tallies,
        warnings: Warnings,
    ) -> None:
        self.grouping: Callable[[Sequence[int]], list[list[int]]] = lambda ks: [[k] for k in ks]
        self.meanwhile: Callable[[], object] = lambda: None
        self._job, self._comm, self._store, self._device = job, comm, store, device
        self._clock, self._replay, self._tallies, self._warnings = clock, replay, tallies, warnings
        self.active: Collection[int] = ()  # the clients that are working
        self._warned: set[int] = set()  # clients whose failure has been reported

    @contextmanager
    def take(self, clients: Sequence[Client], task: int = 0) -> Iterator[OpenTurn]:
        """Yield one turn of these clients, which is done, and repeated, as a unit.

        Inside the block the caller sets `values`, unless they are set: then the turn is completed
        already, and is not done again. In a turn of several clients, no client keeps state between
        rounds. A client that fails leaves the round (run.on_client_fault = "drop"), or ends the
        run.
        task: number of the client's task, if it may have several in a round.
        """
        turn = OpenTurn([client.id for client in clients])
        self.active = turn.group
        done = [self._replay.next(k, turn.group) for k in turn.group]
        try:
            if all(done):
                turn.values = self._replayed(turn.group, done)  # type: ignore[arg-type]
                yield turn
                return
            undo_log, run = self._store.undo_log, self._job.run
            self._clock.heartbeat.enter("train")
            self._clock.heartbeat.visit(", ".join(f"{c.id} ({c.architecture})" for c in clients))
            drops = run.on_client_fault == "drop" and undo_log.open
            # A turn is logged if nothing else has changed its clients in this round. After an
            # exchange it depends on the participants, which change when a client leaves. A secure
            # sum that fails undoes all turns.
            secure = self._job.secure
            logged = undo_log.open and undo_log.before.isdisjoint(turn.group)
            logged = logged and not (drops and self._replay.exchanges)
            logged = logged and (secure.by == "none" or secure.on_failure == "stop")
            for k in turn.group:
                undo_log.note(k)
            steady = memory_allocated(self._device)
            try:
                with self._clock.charged("train"):
                    yield turn
                    for client in clients:
                        self._store.arrange(client.id)
            except Exception as error:
                if not kind(error):
                    raise
                turn.values = None
                self._fail(clients, error, task, drops, steady)
                return
            for k, value in zip(turn.group, turn.values or (), strict=True) if logged else ():
                late = self._replay.exchanges > 0
                self._replay.of(k).turns.append(
                    Turn(value, copy(self._tallies.get(k)), turn.group, late)
                )
                undo_log.drop(k)
        finally:
            self.active = ()
            self._clock.heartbeat.finish(len(turn.group))

    def _replayed(self, group: Sequence[int], done: Sequence[Turn]) -> list[Upload | None]:
        """Return the values of a completed turn, and restore its tallies."""
        self._tallies |= {
            k: copy(turn.tally) for k, turn in zip(group, done, strict=True) if turn.tally
        }
        return [None if turn.value is None else turn.value.on_device(self._device) for turn in done]

    def _fail(
        self, clients: Sequence[Client], error: Exception, task: int, drops: bool, steady: int
    ) -> None:
        """Remove the failed client from the round, or end the run.

        If it is unknown which client of a group failed, all of them leave the round.
        """
        whose = getattr(error, "client", None)
        failed = [client for client in clients if whose in (None, client.id)]
        where = self._warnings.where(failed[0])
        fault = explain_fault(error, where, self._job, self._device, steady)
        if not drops:
            raise fault from (None if fault is error else error)
        for client in failed:
            self._replay.fail(client.id, task, kind(error), str(fault))

    def share_failures(self) -> None:
        """Tell all ranks which clients have left the round; collective.

        Rank 0 warns once of each client that fails. Raises ConfigError, on all ranks, in a round
        that an earlier process began with run.on_client_fault = "stop", if turns that depend on
        what the client sent are done: their clients cannot go back.
        """
        failures = self._comm.gather(self._replay.failures())
        if failures and self._comm.barrier(int(self._replay.has_late_turns())):
            k, failed = next(iter(failures.items()))
            message = next(iter(failed.values()))[1].splitlines()[0]
            refusal = ConfigError(
                f"{message}\n  client {k} cannot leave the round: it was begun with "
                f"run.on_client_fault = 'stop', and other clients have computed with what this one "
                f"sent; resume an earlier checkpoint with run.on_client_fault = 'drop'"
            )
            raise everywhere(refusal)
        for k, failed in failures.items():
            self._replay.left[k] = failed
            if self._comm.rank == 0 and k not in self._warned:
                message = next(iter(failed.values()))[1].splitlines()[0]
                self._warnings.say(
                    f"{message}\n  client {k} leaves the round, as run.on_client_fault = 'drop' "
                    f"has it"
                )
            self._warned.add(k)
