"""The runs by which the contract examines a method: each is made once, and all claims look at it.

| run       | ranks | rounds | what is special                                                     |
|-----------|-------|--------|---------------------------------------------------------------------|
| `whole`   | 1     | 1 to 3 | seen after each round; messages are noted in 1 and 2; scores from 2 |
|           |       |        | on; in 3 a client drops out                                         |
| `spread`  | 3     | 1 to 3 | saved, then clients move after round 1; in 3 that client fails      |
| `stopped` | 1     | 2      | continues from what `spread` saved; a signal ends it                |
| `resumed` | 2     | 2      | continues from what `stopped` saved; late scores; rank 0 owns no    |
|           |       |        | client                                                              |
| `graphed` | 1     | 1, 2   | no evaluation, no undo log; recorded steps, as CUDA graphs with a   |
|           |       |        | stand-in for the capture; bf16, but all layers are small; messages  |
|           |       |        | are changed and changed back; in 3 the loss is nan                  |
| `away`    | 1     | 1, 2   | on a GPU that is not there; resumed after round 1                   |

All of them must have the bits of `whole`. If one does not, leave out what is special about it,
one thing after the other, to find the cause.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.algorithms import load
from hpcfed.algorithms.base import RoundBased
from hpcfed.algorithms.events import EventBased
from hpcfed.clients.participation import Draws
from hpcfed.comm import Comm, Serial
from hpcfed.config.job import Job
from hpcfed.core.errors import DivergedError
from hpcfed.core.payload import has_usual_strides, tensors
from hpcfed.data import augment
from hpcfed.engine.decide import world
from hpcfed.engine.evaluation import Evaluation
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.run import open_results
from hpcfed.engine.setup import federation
from hpcfed.launch.plan.command import demand
from hpcfed.launch.plan.costs import Costs
from hpcfed.launch.plan.predict import Demand
from hpcfed.machine.heartbeat import Heartbeat, Stopped
from hpcfed.models import precision
from hpcfed.storage import names
from hpcfed.training import graphs, local, optimisers, stacked
from tests import saving
from tests.contract import toy
from tests.contract.messages import Noted, round_trip
from tests.pretended_gpu import WAITS, on_host, pretended_gpu
from tests.threads import spmd

ROUNDS = 3
SAVED, MOVED, STOPPED, FAILED = 1, 1, 2, 3  # the rounds, counted from 1, after or in which it is so
EVALUATED = 2  # from this round on
NOTED_ROUNDS = 2  # whose messages are noted; the first uploads of peers are their common start
DIVERGED = 3  # the round in which the loss of `graphed` is nan
LONG = ("--rounds", str(ROUNDS), "--local.keep_optimiser", "true")
SCORED = (
    *("--evaluate.common", "true", "--evaluate.received", "true"),
    *("--evaluate.every", str(EVALUATED)),
)
OF_COHORT = ("--evaluate.before", "false", "--evaluate.clients", "cohort")
LAST_RANK = ("--run.speeds", "1e-9,1")  # of two, which gets all clients
UNSCORED = ("--evaluate.every", "1000", "--evaluate.before", "false")
DROP = ("--run.on_client_fault", "drop")
LARGE = 1e15  # multiply-adds, which no layer here has
NOTED: dict[str, Noted] = {}  # messages of the run `whole` of each method
FEW = 30_000  # bytes of clients' states on a GPU; one takes 10,000 to 70,000


@dataclass
class Watch:
    """A run after each of its rounds, and what else claims are about."""

    outcomes: list[toy.Outcome] = field(default_factory=list)  # of one row each
    messages: str = ""  # on stderr
    moved: int = 0  # clients that changed their rank
    owners: tuple[int, ...] = ()  # ranks that own a client
    turns: int = 0  # finished turns in what a stopped round saved
    # only of `whole`
    announced: tuple[list[int], list[int]] = ([], [])  # bytes down and up of each client
    demand: Demand | None = None  # what `plan` says of a method in rounds
    generators: tuple[Any, Any] = (None, None)  # states of the global ones, before and after
    copied: tuple[Any, Any] = (None, None)  # a copy for a checkpoint, before and after a round
    replaced: tuple[Any, Any] = (None, None)  # the state that a round replaces, before and after it
    untouched: tuple[Any, Any] = (None, None)  # the state before and after a round of nobody
    formats: list[str] = field(default_factory=list)  # tensors of state and memory in another order
    steps: int = 0  # of training in the round that `stopped` will not end
    # only of `away`
    waits: int = 0  # for the GPU, between the first and the last local step of a client
    # only of `graphed`
    diverged: str = ""  # what a nan loss in the round after ends it with

    def column(self, name: str) -> np.ndarray:
        """A column of the clients' table, [rounds, K]."""
        return np.concatenate([outcome.column(name) for outcome in self.outcomes])


def once(make: Callable[[Any], Watch]) -> Any:
    """A run that is made when a claim first looks at it. Its error is that of all who look."""

    def look(self: Examination) -> Watch:
        if make.__name__ not in self.made:
            try:
                self.made[make.__name__] = make(self), None
            except (Exception, pytest.fail.Exception) as error:
                self.made[make.__name__] = None, error
        run, error = self.made[make.__name__]
        if error:
            raise error
        return run

    return property(look, doc=make.__doc__)


class Examination:
    """The runs of one method over the same small job.

    folder: where their files go. flags: what is set beside `LONG` and `SCORED`; default: what makes
    clients as different as the method accepts. make: the job of a method and flags.
    """

    def __init__(
        self,
        method: str,
        folder: Path,
        flags: tuple[str, ...] | None = None,
        make: Callable[..., Job] = toy.job,
    ):
        self.method, self.folder, self.make = method, folder, make
        self.made: dict[str, tuple[Any, BaseException | None]] = {}  # run or error, by name
        self.usual = flags is None and make is toy.job
        self.event_based = issubclass(load(method), EventBased)
        # who fails in the last round, which `whole` finds: a client, and the number of that round;
        # in virtual time of its task
        self.victim: tuple[int, int] | None = None
        self.flags = toy.different(method) if flags is None else flags
        out = ("--out", str(folder / "whole"))
        self.job = make(method, *LONG, *SCORED, *self.flags, *DROP, *out)
        # where no client may leave a round, turns after an exchange are written down too
        self.stopping = make(method, *LONG, *SCORED, *self.flags)
        self.ending = make(method, *LONG, *SCORED, *self.flags, *LAST_RANK)

    @cached_property
    def trains(self) -> bool:
        """Whether clients train; else the server does it all."""
        return bool(self.whole.outcomes[0].column("examples").any())

    @once
    def whole(self) -> Watch:
        """The run on one rank, and its result file, partition and last checkpoint."""
        run, watch, noted = self.folder / "whole", Watch(), Noted()
        run.mkdir()
        before = global_generators()
        facts = world(self.job, Serial())
        rounds = Rounds(federation(self.job, Serial(), facts))
        start = toy.outcome(rounds, [])
        watch.formats += not_row_major([start.state, start.memory])
        results = open_results(self.job, run, facts, rounds)
        facts.partition.save(names.partition_file(run))
        down, up = zip(
            *(rounds.algorithm.traffic(rounds.fed, k) for k in range(rounds.fed.K)), strict=True
        )
        watch.announced = list(down), list(up)
        if isinstance(rounds.algorithm, RoundBased):
            watch.demand = demand(rounds.fed, np.zeros(rounds.fed.K), costs())
        with redirect_stderr(StringIO()) as stderr:
            for t in range(1, ROUNDS + 1):
                taken = snapshot.take_snapshot(rounds).items if t == STOPPED else {}
                copy, old = dict(toy.leaves(taken)), rounds.state
                values = dict(toy.leaves(snapshot.to_tree(old)))
                counting = rounds.fed.clock.heartbeat = Steps()
                if t == FAILED and not self.event_based:
                    self.victim = rounds.algorithm.cohort(rounds.fed, t - 1)[1], t - 1
                special = self.failure(drops_out=True) if t == FAILED else nullcontext()
                with noted.noting(rounds.fed) if t <= NOTED_ROUNDS else special:
                    row = rounds.step()[0]
                results.append(row)
                outcome = toy.outcome(rounds, [row])
                watch.formats += not_row_major([outcome.state, outcome.memory])
                watch.outcomes.append(outcome)
                if t <= NOTED_ROUNDS:
                    noted.add(watch.outcomes[-1])
                if t == STOPPED:
                    watch.copied = copy, dict(toy.leaves(taken))
                    watch.replaced = values, dict(toy.leaves(snapshot.to_tree(old)))
                    watch.steps = counting.made
        if self.usual:
            NOTED[self.method] = noted
        saving.save(rounds, run)
        results.finish()
        watch.generators = before, global_generators()
        watch.messages = stderr.getvalue()
        if not self.event_based:  # whose rounds wait until enough clients have reported
            old = toy.copies(snapshot.to_tree(rounds.state))
            with drop_out():
                row = rounds.step()[0]
            watch.untouched = old, toy.outcome(rounds, [row])
        return watch

    @once
    def spread(self) -> Watch:
        """The run on three ranks."""
        watch = Watch()
        assert self.whole  # finds the victim

        def on_rank(comm: Comm) -> list[toy.Outcome]:
            rounds, outcomes = toy.start(comm, self.job), []
            for t in range(1, ROUNDS + 1):
                outcomes.append(toy.outcome(rounds, [rounds.step()[0]]))
                if t == SAVED:
                    saving.save(rounds, self.folder / "saved")
                if t == MOVED:  # as if the smallest clients had been the slowest
                    rounds.balance.seconds = np.array([32, 16, 8, 4, 2, 1]) / np.array(
                        rounds.fed.sizes
                    )
                    changed = rounds.balance.rebalance()
            if comm.rank == 0:
                watch.moved = changed
            return outcomes

        with redirect_stderr(StringIO()) as stderr, self.failure(drops_out=False):
            watch.outcomes = same_on_all(spmd(3, on_rank))
        watch.messages = stderr.getvalue()
        return watch

    @once
    def stopped(self) -> Watch:
        """The run that continues from the checkpoint of three ranks, and is stopped in a round."""
        assert self.spread
        watch, rounds = Watch(), toy.start(Serial(), self.stopping)
        restore(rounds, self.folder / "saved")
        rounds.fed.clock.heartbeat = Impatient(rounds, self.whole.steps // 2, self.trains)
        with pytest.raises(Stopped):
            rounds.step()
        saving.save(rounds, self.folder / "stopped")
        watch.turns = finished_turns(rounds)
        return watch

    @once
    def resumed(self) -> Watch:
        """The run that ends the stopped round on two ranks."""
        assert self.stopped
        watch = Watch()

        def on_rank(comm: Comm) -> list[toy.Outcome]:
            rounds = toy.start(comm, self.ending)
            restore(rounds, self.folder / "stopped")
            outcomes = [toy.outcome(rounds, [rounds.step()[0]])]
            if comm.rank == 0:
                watch.owners = tuple(set(rounds.fed.placement.ranks))
            return outcomes

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Evaluation, "independent", False)  # scored when the round is over
            watch.outcomes = same_on_all(spmd(2, on_rank))
        return watch

    @once
    def graphed(self) -> Watch:
        """The run with replayed steps, without evaluation and undo log; a loss of nan ends it.

        A change of all messages and its inverse change no bit. Objectives are computed under
        autocast, as if a model had a large layer too: small layers and the formulas of losses have
        the bits of float32.
        """
        flags = (*LONG, *UNSCORED, *self.flags, "--training.engine", "graphed")
        watch, flags = Watch(), (*flags, "--run.precision", "bf16")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graphs, "capture", toy.capture_on_cpu([]))
            patch.setattr(precision, "SMALL", LARGE)
            patch.setattr(precision, "least_batch", lambda model: 0)
            rounds = toy.start(Serial(), self.make(self.method, *flags))
            rounds.fed.transforms += round_trip()
            for _ in range(DIVERGED - 1):
                watch.outcomes.append(toy.outcome(rounds, [rounds.step()[0]]))
        with nan_losses(load(self.method)):
            try:
                rounds.step()
            except DivergedError as error:
                watch.diverged = str(error)
        return watch

    @once
    def away(self) -> Watch:
        """The run on a pretended GPU, in whose memory a few clients' states fit.

        A GPU draws an augmentation's order otherwise, and its Adam keeps the rate in float32; here
        it does as the CPU does.
        """
        flags = (*SCORED, *OF_COHORT, *self.flags, *DROP, "--training.engine", "eager")
        flags = (*flags, "--run.device", "cuda", "--run.device_resident", str(FEW / 2**30))
        watch = Watch()
        with pretended_gpu(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(augment, "shuffled", lambda n, g: torch.randperm(n, generator=g).tolist())
            patch.setitem(optimisers.RATE, "cuda", optimisers.RATE["cpu"])
            steps = WaitsOfSteps(patch)
            rounds = toy.start(Serial(), self.make(self.method, *LONG, *flags))
            for t in (1, 2):
                watch.outcomes.append(on_host(toy.outcome(rounds, [rounds.step()[0]])))
                if t == SAVED:
                    saving.save(rounds, self.folder / "away")
                    rounds = toy.start(Serial(), self.make(self.method, *LONG, *flags))
                    restore(rounds, self.folder / "away")
        watch.waits = steps.count
        return watch

    @contextmanager
    def failure(self, drops_out: bool) -> Iterator[None]:
        """Inside, a client of the last round fails at the end of its training, or drops out then.

        In virtual time one that drops out does not do all its work, so there it fails in all runs.
        """
        if drops_out and not self.event_based:
            with drop_out(self.victim):
                yield
        else:
            with failure(self.find_victim if self.event_based else self.victim):
                yield

    def find_victim(self, k: int, number: int) -> tuple[int, int]:
        """In virtual time: the first task that is trained while this is asked."""
        self.victim = self.victim or (k, number)
        return self.victim


def not_row_major(value: Any) -> list[str]:
    """Names of the tensors and arrays in a value that are in another order in memory."""
    each = (
        (name, v if isinstance(v, torch.Tensor) else torch.from_numpy(v))
        for name, v in tensors(value)
    )
    return [name for name, tensor in each if not has_usual_strides(tensor)]


class SameForAll(dict):
    """A thousandth of a second for an example of any architecture."""

    def __missing__(self, kind: str) -> float:
        return 1e-3

    def __contains__(self, kind: object) -> bool:
        return True


def costs() -> Costs:
    """What `plan` would have measured, if only training took time."""
    seconds = {"evaluate": 0.0, "rest": 0.0, "server": 0.0}
    memory = {"peak": 0.0, "gpu": 0.0}
    return Costs(SameForAll(), **seconds, **memory, placed=[], cores=2, processor="", job={})


class WaitsOfSteps:
    """Counts waits for a pretended GPU from the end of a client's step to the end of its next."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.count, self.client, self.before = 0, None, 0  # before: waits until the last step
        done = local.LocalSteps.done

        def note(steps: local.LocalSteps, value: Any) -> None:
            done(steps, value)
            if steps is self.client:
                self.count += WAITS.count - self.before
            self.client, self.before = steps, WAITS.count

        patch.setattr(local.LocalSteps, "done", note)


class Steps(Heartbeat):
    """A heartbeat that counts steps of training."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def step(self) -> None:
        self.made += 1
        super().step()


class Impatient(Steps):
    """A rank that is asked to stop, and has no time left, after so many steps, and after a client's
    turn where clients have turns.
    """

    def __init__(self, rounds: Rounds, steps: int, turns: bool):
        super().__init__()
        self.rounds, self.steps, self.turns = rounds, steps, turns

    def step(self) -> None:
        enough = self.made + 1 >= self.steps
        if enough and (finished_turns(self.rounds) or not self.turns):
            self.ask(-1.0)
        super().step()


def finished_turns(rounds: Rounds) -> int:
    """Turns that this rank's clients are through with in the round that is open."""
    replay = rounds.fed.replay
    return sum(len(replay.turns(k)) for k in replay.entries)


def same_on_all(ranks: list[list[toy.Outcome]]) -> list[toy.Outcome]:
    """What every rank says; fails where one says something else."""
    for other in ranks[1:]:
        assert toy.differences(other, ranks[0]) == []
    return ranks[0]


def global_generators() -> tuple[Any, ...]:
    """States of the generators that nobody may draw from."""
    return torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


@contextmanager
def drop_out(victim: tuple[int, int] | None = None) -> Iterator[None]:
    """Inside, a client drops out of a round when it has done all its work; None: all, of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Draws, "dropout", lambda self, t, k: 1.0 if victim in (None, (k, t)) else None
        )
        yield


@contextmanager
def failure(victim: tuple[int, int] | Callable[[int, int], tuple[int, int]]) -> Iterator[None]:
    """Inside, a client's weights are found to have diverged at the end of its training in a round.

    victim: client and number of the round, or a function that says so of those that it is asked.
    """
    check_finite = local.check_finite

    def checked(fed: Any, client: Any, t: int, *rest: Any) -> Any:
        if (client.id, t) == (victim(client.id, t) if callable(victim) else victim):
            error = DivergedError(f"{fed.warnings.where(client)}: the loss is nan")
            error.client = client.id
            raise error
        return check_finite(fed, client, t, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "check_finite", checked)
        patch.setattr(stacked, "check_finite", checked)
        patch.setattr(stacked, "finite", lambda rows: False)  # so that it looks at each client
        yield


@contextmanager
def nan_losses(method: type) -> Iterator[None]:
    """Inside, every loss of the method is nan."""
    loss: Callable = method.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "loss", lambda *args, **more: loss(*args, **more) * torch.nan)
        yield


def learned(outcome: toy.Outcome) -> list:
    """What training leaves, without what evaluation adds."""
    return [outcome.state, outcome.weights, outcome.memory, outcome.column("train_loss")]


def of_cohort(outcome: toy.Outcome) -> toy.Outcome:
    """The outcome with scores of the round's cohort alone, after its training, as `OF_COHORT` has
    them; none is pooled.
    """
    cohort = outcome.column("cohort")[0].astype(bool)
    (row,) = without_faults(outcome).rows
    clients = {n: c[cohort] for n, c in row.items() if n.startswith("clients/")}
    others = ("_before", "_pooled")
    rows = [{n: c for n, c in (row | clients).items() if not n.endswith(others)}]
    return replace(outcome, scores=outcome.scores[cohort], rows=rows)


def without_faults(outcome: toy.Outcome) -> toy.Outcome:
    """The outcome without who failed; what else it says is the same for a client that drops out."""
    rows = [{n: c for n, c in row.items() if n != "clients/fault"} for row in outcome.rows]
    return replace(outcome, rows=rows)
