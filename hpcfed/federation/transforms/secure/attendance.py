"""Attendance: which clients take part in each stage of one secure sum, and whether they suffice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hpcfed.core.errors import HpcfedError
from hpcfed.federation.transforms.secure.graph import Graph

STAGES = ("keys", "shares", "inputs", "answers")
KEYS, SHARES, INPUTS, ANSWERS = range(len(STAGES))


class SumFailed(HpcfedError):
    """Too few clients stay for a secure sum to be unmasked; all ranks raise it."""

    everywhere = True


class Attendance:
    """The clients that complete each stage, in id order; each stage has clients of the one before.

    keys: they advertise public keys.
    shares: they send shares of their secrets to their neighbours, through the server.
    inputs: they send their masked values; the sum is that of these clients.
    answers: they answer the server with what it needs to remove the masks.
    """

    def __init__(
        self,
        keys: Sequence[int],
        shares: Sequence[int],
        inputs: Sequence[int],
        answers: Sequence[int],
    ) -> None:
        self.keys, self.shares, self.inputs, self.answers = keys, shares, inputs, answers
        self.sets = tuple(map(frozenset, (keys, shares, inputs, answers)))
        for i, (earlier, later) in enumerate(pairwise(self.sets)):
            if extra := later - earlier:
                raise ValueError(f"client {min(extra)} has {STAGES[i + 1]}, but no {STAGES[i]}")

    def failed_stage(self, graph: Graph, t: int) -> int | None:
        """Return the number of the stage after which the sum fails; None if it succeeds.

        For each client that has come so far, t clients of its neighbourhood (itself and its
        neighbours) have to come so far too. For each client that shared secrets and then dropped
        out, t of its neighbours have to answer.
        """
        for i in (KEYS, SHARES, INPUTS):
            present = self.sets[i]
            if not present or any(1 + graph.count(k, present) < t for k in present):
                return i
        answering, senders = self.sets[ANSWERS], self.sets[INPUTS]
        for k in self.shares:
            holders = graph.count(k, answering) + (k in answering)
            if holders < t and (k in senders or graph.count(k, senders)):
                return ANSWERS
        return None
