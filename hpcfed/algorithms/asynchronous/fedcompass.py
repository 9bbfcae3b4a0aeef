"""FedCompass: the server chooses clients' numbers of steps so that they arrive together, in groups.

Li et al., ICLR 2024, arXiv:2309.14675. The server estimates each client's seconds per step s_k from
its reports: the seconds from a job's start to its report, divided by the steps done in it. A free
client joins the open group for which it can do the most steps, floor((arrival of the group - now) /
s_k), if their number is in min_steps..local.steps. Otherwise it opens a group of its own. Its
number of steps is then such that the fastest client of an open group can do local.steps steps
between the latest time of that group and the arrival of the new one. A group closes when all its
clients have arrived, or at `slack` times its expected duration. The model of a client that comes
later waits in a buffer for the next group that closes, and the client gets work at once. tau_k is
the number of new models since client k's download. A client's first model, which reveals its speed,
is merged alone.

Objective: F_k(w)
Server: w <- (1 - sum_k a_k) w + sum_k a_k w_k; a_k = alpha s(tau_k) / N
Round:
1. The server estimates each client's seconds per step from its reports.
2. A free client joins the open group for which it can do the most steps, or opens one.
3. It trains this number of steps, so that the group arrives together.
4. The group closes when all have arrived, or after `slack` times its expected duration.
5. The server merges the models of the group, and those that came too late for an earlier one.

Deviations: the implementation is based on this description and on the public code, APPFL's
compass_scheduler.py and fedcompass_aggregator.py, not on the paper's text; slack = 1.2 and
min_steps are the paper's from memory. N is the number of clients that work at the same time; with
participation = 1, as in the paper, these are all clients. If several late models of one client
wait, all of them count; in APPFL the newer one replaces the older one. Where clients' speeds vary
by 30 %, this changes the server's model by most of what one closing group changes. Clients of
different sizes have equal weights, as in that code. Batch statistics are averaged like parameters;
APPFL takes their plain mean over the group. The number of steps, which the server sends with the
model, is part of the message's header and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from pydantic import NonNegativeFloat, PositiveInt

from hpcfed import EventBased, Federation, Guide, Job, Params, Share
from hpcfed.algorithms.asynchronous.staleness import damping
from hpcfed.algorithms.events import Coordinator, Decision, Work
from hpcfed.config.conditions import field, other_than

FIRST, LATE = -1, -2  # groups of first reports (each merged alone) and of late ones


@dataclass(frozen=True)
class State:
    """State of the server: its model, and the models of groups that have not closed yet.

    model: the server's model.
    waiting: sums of the models whose group has not closed, by "group staleness".
    counts: number of models in each sum.
    """

    model: Params
    waiting: dict[str, Params]
    counts: dict[str, int]


@dataclass
class Group:
    """Clients that are expected to arrive together.

    working, arrived: ids of clients.
    expected, latest: times of arrival in virtual seconds.
    """

    working: list[int]
    arrived: list[int]
    expected: float
    latest: float


class Compass(Coordinator):
    """Coordinator that forms the groups and estimates the clients' speeds."""

    buffers = True

    def __init__(self, method: FedCompass) -> None:
        self.method = method
        self.speed: dict[int, float] = {}  # seconds per step of each client that has reported
        self.group_of: dict[int, int] = {}  # group of each open job, by client
        self.groups: dict[int, Group] = {}
        self.opened = 0  # number of groups so far

    def order(self, clients: list[int]) -> list[int]:
        """Sort clients by speed, the fastest first and those of unknown speed last."""
        return sorted(clients, key=lambda k: (self.speed.get(k, inf), k))

    def begin(self, k: int, now: float, most: int) -> int:
        steps, group = self.assign(k, now, most) if k in self.speed else (most, FIRST)
        self.group_of[k] = group
        return steps

    def assign(self, k: int, now: float, most: int) -> tuple[int, int]:
        """Return the number of steps and the group of client k's next job."""
        least, speed = self.method.min_steps, self.speed[k]
        fits = [(floor((g.expected - now) / speed), i) for i, g in self.groups.items()]
        fits = [(steps, i) for steps, i in fits if least <= steps <= most]
        if fits:
            steps, group = max(fits)
            self.groups[group].working.append(k)
            return steps, group
        after = [
            floor((g.latest + most * self.fastest(g) - now) / speed)
            for g in self.groups.values()
            if now < g.latest
        ]
        steps = max((steps for steps in after if steps <= most), default=most)
        steps = max(steps, least)
        self.opened += 1
        takes = steps * speed
        self.groups[self.opened] = Group([k], [], now + takes, now + self.method.slack * takes)
        return steps, self.opened

    def fastest(self, group: Group) -> float:
        """Return the seconds per step of the group's fastest client."""
        return min(self.speed[k] for k in group.working + group.arrived)

    def end(self, job: Work) -> Decision:
        k, now, number = job.client, job.finish, self.group_of.pop(job.client)
        if job.reports:
            measured = (job.finish - job.start) / job.amount  # stragglers do fewer than assigned
            newest = self.method.newest if k in self.speed else 1.0
            self.speed[k] = newest * measured + (1 - newest) * self.speed.get(k, 0.0)
        if number == FIRST:
            return Decision(FIRST, FIRST if job.reports else None, (k,))
        group = self.groups.get(number)
        if group is None or now > group.latest:
            if group is not None:
                group.working.remove(k)
                self.drop(number)
            return Decision(LATE, None, (k,))
        group.working.remove(k)
        if job.reports:
            group.arrived.append(k)
        if group.working:
            return Decision(number, None, () if job.reports else (k,))
        del self.groups[number]
        closes = number if group.arrived else None
        return Decision(
            number, closes, tuple(group.arrived if job.reports else [*group.arrived, k])
        )

    def drop(self, number: int) -> None:
        """Delete a group if no client of it works or has arrived."""
        if not self.groups[number].working and not self.groups[number].arrived:
            del self.groups[number]

    def deadline(self) -> float:
        """Return the time at which the next group closes at the latest.

        Only groups in which a client has arrived count; infinite if there is none.
        """
        return min((g.latest for g in self.groups.values() if g.arrived), default=inf)

    def expire(self) -> Decision:
        _, number = min((g.latest, i) for i, g in self.groups.items() if g.arrived)
        group = self.groups.pop(number)
        return Decision(number, number, tuple(group.arrived))

    def close(self, fed: Federation, state: State, group: int) -> State:
        method, merged, weight = self.method, Params(), 0.0
        ripe = (FIRST,) if group == FIRST else (group, LATE)
        waiting, counts = {}, {}
        for key, models in state.waiting.items():
            number, staleness = map(int, key.split())
            if number in ripe:
                alpha = method.alpha * damping(staleness, method.staleness, method.a, b=0)
                alpha /= fed.cohort_size
                weight += alpha * state.counts[key]
                merged = merged + alpha * models if merged else alpha * models
            else:
                older = f"{number} {staleness + 1}"
                waiting[older], counts[older] = models, state.counts[key]
        return State((1 - weight) * state.model + merged, waiting, counts)

    def to_tree(self) -> dict[str, Any]:
        groups = [
            {
                "number": i,
                "working": np.array(g.working, np.int64),
                "arrived": np.array(g.arrived, np.int64),
                "times": np.array([g.expected, g.latest]),
            }
            for i, g in self.groups.items()
        ]
        return {
            "opened": self.opened,
            "speed": keyed(self.speed, np.float64),
            "group_of": keyed(self.group_of, np.int64),
            "groups": groups,
        }

    def from_tree(self, tree: dict[str, Any]) -> None:
        self.opened = tree["opened"]
        self.speed, self.group_of = unkeyed(tree["speed"]), unkeyed(tree["group_of"])
        self.groups = {}
        for g in tree["groups"]:
            working, arrived = (np.asarray(g[name]).tolist() for name in ("working", "arrived"))
            self.groups[g["number"]] = Group(working, arrived, *np.asarray(g["times"]).tolist())


def keyed(values: dict[int, Any], kind: type) -> dict[str, np.ndarray]:
    """Return values by client as arrays of ids and of values."""
    return {"clients": np.array([*values], np.int64), "values": np.array([*values.values()], kind)}


def unkeyed(tree: dict[str, Any]) -> dict[int, Any]:
    """Return the values by client of which `keyed` made arrays."""
    ids, values = (np.asarray(tree[name]).tolist() for name in ("clients", "values"))
    return dict(zip(ids, values, strict=True))


class FedCompass(EventBased):
    """Asynchronous method in which local.steps is the most that a client does in one job.

    participation * clients work, or wait for their group, at the same time.
    """

    guide = Guide(
        data="different sizes; hospitals",
        sent="all weights, in groups that arrive together",
        won="cross-silo: time, above FedAvg, FedAsync and FedBuff",
    )

    local_defaults: ClassVar[dict[str, Any]] = {"steps": 100}

    alpha: Share = 0.9
    """Total weight of all clients' models in a new model."""
    staleness: Literal["const", "poly"] = "poly"
    """How the weight of a model falls with its staleness s: not at all, or as (s + 1)^-a."""
    a: NonNegativeFloat = field(0.5, used_if={"staleness": other_than("const")})
    """Poly: a, how fast the weight falls."""
    min_steps: PositiveInt = 20
    """Fewest steps with which a client joins a group."""
    slack: Annotated[float, Ge(1)] = 1.2
    """A group closes after this many times its expected duration, even if clients are missing."""
    newest: Share = 0.9
    """Weight of the newest measurement in a client's seconds per step."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        steps = job.local.steps
        if steps is None:
            reasons["job"] = (
                "needs jobs counted in steps; set local.steps to the most steps of a job"
            )
        elif steps < self.min_steps:
            reasons["job"] = (
                f"needs algorithm.min_steps = {self.min_steps} of at most local.steps = {steps}; "
                f"lower algorithm.min_steps"
            )
        return reasons

    @property
    def coordinator(self) -> Compass:
        return Compass(self)

    def init(self, fed: Federation) -> State:
        return State(fed.initial(), {}, {})

    def model(self, state: State) -> Params:
        return state.model

    def merge(
        self, fed: Federation, job: Work, current: State, up: Params, near: dict[int, Params]
    ) -> State:
        key = f"{job.group} {job.staleness}"
        summed = current.waiting[key] + up if key in current.waiting else up
        counts = current.counts | {key: current.counts.get(key, 0) + 1}
        return State(current.model, current.waiting | {key: summed}, counts)
