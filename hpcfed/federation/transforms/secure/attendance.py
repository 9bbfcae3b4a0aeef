"""Attendance: which clients take part in each stage of one secure sum, and whether they suffice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

STAGES = ("keys", "shares", "inputs", "answers")


class SumFailed(Exception):
    """Too few clients take part for the secure sum to be unmasked."""


@dataclass(frozen=True)
class Attendance:
    """The clients that complete each stage, in id order; each stage has clients of the one before.

    keys: they advertise public keys.
    shares: they send shares of their secrets to their neighbours, through the server.
    inputs: they send their masked values; the sum is that of these clients.
    answers: they answer the server with what it needs to remove the masks.
    """

    keys: Sequence[int]
    shares: Sequence[int]
    inputs: Sequence[int]
    answers: Sequence[int]

    def __post_init__(self) -> None:
        for earlier, later in pairwise(STAGES):
            if extra := set(getattr(self, later)) - set(getattr(self, earlier)):
                raise ValueError(f"client {min(extra)} has {later}, but no {earlier}")

    def stage(self, i: int) -> Sequence[int]:
        """Return the clients of a stage by its number, as in STAGES."""
        return getattr(self, STAGES[i])

    def failed_stage(self, graph: Mapping[int, Sequence[int]], t: int) -> int | None:
        """Return the number of the stage after which the sum fails; None if it succeeds.

        graph: the neighbours of each client. For each client that has come so far, t clients of its
        neighbourhood (itself and its neighbours) have to come so far too. For each client that
        shared secrets and then dropped out, t of its neighbours have to answer.
        """
        for i in range(len(STAGES) - 1):
            present = set(self.stage(i))
            if any(len(present.intersection((k, *graph[k]))) < t for k in present):
                return i
        if not self.inputs:
            return STAGES.index("inputs")
        answering = set(self.answers)
        needed = [(k, *graph[k]) for k in self.inputs]
        senders = set(self.inputs)
        needed += [
            tuple(graph[k])
            for k in self.shares
            if k not in senders and not senders.isdisjoint(graph[k])
        ]
        too_few = any(len(answering.intersection(holders)) < t for holders in needed)
        return STAGES.index("answers") if too_few else None
