"""Sums of bounded uploads whose single terms the server does not learn.

The values of each client are put on the grid of the declared bound (`bounded.DeclaredRows`), as
integers modulo 2**64; masks are added to these, ranks add them up, and the masks are removed. The
sum is the integer that `Comm.sum` has without masks, so no bit of a run depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.comm.exact import quantise, restore, scale
from hpcfed.core import rng
from hpcfed.core.errors import DivergedError
from hpcfed.core.params import Params
from hpcfed.core.payload import magnitudes
from hpcfed.federation.transforms.bounded import means_of
from hpcfed.federation.transforms.secure.attendance import ANSWERS, STAGES, Attendance, SumFailed
from hpcfed.federation.transforms.secure.coded import CodedSum, piece_of
from hpcfed.federation.transforms.secure.costs import (
    Cost,
    Sizes,
    Speeds,
    add_coded_seconds,
    add_pairwise_seconds,
    coded_cost,
    pairwise_cost,
)
from hpcfed.federation.transforms.secure.graph import Complete, Graph, Harary, default_degree
from hpcfed.federation.transforms.secure.keys import primitives
from hpcfed.federation.transforms.secure.pairwise import Gather, PairwiseSum
from hpcfed.federation.upload import Transform, Upload

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.comm import Comm
    from hpcfed.config.secure import Secure
    from hpcfed.core.averaging import Quotients
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.transforms.bounded import DeclaredRows

Shapes = Sequence[tuple[int, ...]]
# of the random streams of a sum: seed, round (`Federation.moment`), number in the round
Name = tuple[int, int | str, int]
MORE_EXCHANGES = len(STAGES) - 1  # beside the one that every upload takes


class Envelope(Transform):
    """Checks that uploads stay within a declared bound, and leaves their bytes to the masked sum.

    bound: of each value's magnitude; None: other transforms have bounded the uploads.
    largest_weight: of a term in a mean.
    """

    def __init__(self, bound: float | None, largest_weight: float) -> None:
        self.bound, self.largest_weight = bound, largest_weight

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        """Return the upload. Raises DivergedError for a value or weight beyond the bound."""
        means = means_of(upload)
        if self.bound is not None:
            for part in means.values():
                for term in part.terms:
                    self._check(fed, client, term.value, term.weight, self.bound)
        return upload.changed({}, sizes=dict.fromkeys(means, 0))

    def _check(
        self, fed: Federation, client: Client, value: Params, weight: float | Params, bound: float
    ) -> None:
        weights = weight if isinstance(weight, Params) else {"": torch.tensor(weight)}
        for what, named, largest, setting in (
            ("", value, bound, "secure.bound"),
            ("weight", weights, self.largest_weight, "secure.largest_weight"),
        ):
            for name, peak in zip(named, magnitudes(named.values()), strict=True):
                if peak > largest:
                    whose = " of ".join(filter(None, (what, name)))
                    error = DivergedError(
                        f"{fed.warnings.where(client)}: its {whose} reaches {peak:g} in an "
                        f"upload, beyond {setting} = {largest:g}\n  set a larger {setting}; if "
                        f"training diverges, a smaller local.lr"
                    )
                    error.client = client.id
                    raise error


class SecureSums:
    """Adds up declared rows of all ranks by the protocol that a job names.

    cohort: clients of a round, of which a trial announces the bytes.
    """

    def __init__(self, secure: Secure, cohort: int) -> None:
        if secure.masks == "made":
            primitives()
        self.secure, self.cohort = secure, cohort
        self.speeds = Speeds(slowdown=secure.slowdown)

    def of_trial(self) -> AnnouncedSums:
        """Return what stands in its place in a trial, of which only bytes count."""
        return AnnouncedSums(self.secure, self.cohort)

    def sum(
        self,
        fed: Federation,
        rows: DeclaredRows,
        shapes: Shapes,
        factors: Sequence[float],
        into: Quotients,
    ) -> None:
        """Add the rows of all ranks up; collective. Raises SumFailed on all ranks."""
        words = sum(map(math.prod, shapes))
        by_rank = fed.comm.gather({fed.comm.rank: rows.clients})
        senders = sorted({k for clients in by_rank.values() for k in clients})
        invited = sorted({*senders, *fed.participants.lost})
        if not invited:
            fed.comm.sum(rows, shapes, factors, into)
            return
        attendance = Attendance(invited, invited, senders, senders)
        number = fed.tallies.secure_sums
        fed.tallies.secure_sums += 1
        plan = self.plan(attendance, words, (fed.seed, fed.moment, number), rows.bits)
        failed = plan.failed_stage()
        if failed is not None:
            count_bytes(fed, plan.cost(filter(fed.clients.__contains__, invited), failed))
            raise SumFailed(
                f"{len(senders)} of {len(invited)} clients have sent masked values, but "
                f"secure.by = {self.secure.by!r} with secure.threshold = "
                f"{self.secure.threshold:g} needs {plan.demand}"
            )
        if self.secure.masks == "charged":
            fed.comm.sum(rows, shapes, factors, into)
            count_bytes(fed, plan.cost(filter(fed.clients.__contains__, invited)))
        else:
            n = sum(map(len, by_rank.values()))
            scales = [
                scale(float(peak), max(n, rows.expected)) for peak in rows.largest(shapes, factors)
            ]
            execution = plan.execution(fed)
            integers = Integers(rows, factors, shapes, scales)
            store(into, shapes, scales, total(execution, integers.by_client(), fed.comm.sum_words))
            count_bytes(fed, execution.costs)
        self._count_seconds(fed, plan)

    def plan(
        self, attendance: Attendance, words: int, name: Name, bits: int = 64
    ) -> PairwisePlan | CodedPlan:
        """Return the protocol of one sum, the same on all ranks.

        bits: lower ones of the sum of each value that count.
        """
        n, secure = len(attendance.keys), self.secure
        if secure.by == "lightsecagg":
            colluding = min(int(secure.colluding * n), threshold(n, secure.threshold) - 1)
            return CodedPlan(attendance, words, threshold(n, secure.threshold), colluding, name)
        degree = n - 1
        graph: Graph = Complete(attendance.keys)
        if secure.by == "secagg+" and (secure.neighbours or default_degree(n)) < n - 1:
            g = rng.stream(name[0], "secure graph", *name[1:])
            graph = Harary(attendance.keys, secure.neighbours or default_degree(n), g)
            degree = len(graph.neighbours(attendance.keys[0]))
        t = threshold(degree + 1, secure.threshold)
        return PairwisePlan(attendance, words, graph, t, name, bits)

    def _count_seconds(self, fed: Federation, plan: PairwisePlan | CodedPlan) -> None:
        """Add the seconds of the protocol to the virtual time of the round, on all ranks."""
        costs = {k: Cost() for k in plan.attendance.keys}
        fed.tallies.server_delay += plan.add_seconds(costs, self.speeds)
        latency = fed.participants.profiles.latency
        for k, cost in costs.items():
            fed.tallies.delays[k] += cost.seconds + MORE_EXCHANGES * float(latency[k])


class AnnouncedSums(SecureSums):
    """Secure sums in a trial: rows are added up openly, with the bytes of a full cohort."""

    def sum(
        self,
        fed: Federation,
        rows: DeclaredRows,
        shapes: Shapes,
        factors: Sequence[float],
        into: Quotients,
    ) -> None:
        words = sum(map(math.prod, shapes))
        everybody = Attendance(*(range(self.cohort) for _ in STAGES))
        cost = self.plan(everybody, words, (fed.seed, fed.moment, 0), rows.bits).cost([0])[0]
        count_bytes(fed, dict.fromkeys(rows.clients, cost))
        fed.comm.sum(rows, shapes, factors, into)


class PairwisePlan:
    """A sum by SecAgg or SecAgg+; the parameters are those of `PairwiseSum`."""

    def __init__(
        self,
        attendance: Attendance,
        words: int,
        graph: Graph,
        t: int,
        name: Name,
        bits: int,
    ) -> None:
        self.attendance, self.words, self.graph, self.t = attendance, words, graph, t
        self.name, self.bits = name, bits

    @property
    def demand(self) -> str:
        """What has to stay for the sum to succeed, in words."""
        if isinstance(self.graph, Complete):
            return f"{self.t}"
        n = 1 + len(self.graph.neighbours(self.attendance.keys[0]))
        return f"{self.t} of each client and its neighbours, which are {n}"

    def failed_stage(self) -> int | None:
        return self.attendance.failed_stage(self.graph, self.t)

    def cost(self, clients: Any, last: int = ANSWERS) -> dict[int, Cost]:
        """Return the bytes of these clients if this stage is the last."""
        sizes = Sizes(value=self.bits / 8)
        return pairwise_cost(self.attendance, self.graph, self.words, clients, last, sizes)

    def add_seconds(self, costs: Mapping[int, Cost], speeds: Speeds) -> float:
        """Add the seconds of all clients to their costs; return the server's."""
        return add_pairwise_seconds(
            costs, self.attendance, self.graph, self.t, self.words * self.bits / 8, speeds
        )

    def execution(self, fed: Federation) -> PairwiseSum:
        return PairwiseSum(
            self.attendance,
            self.words,
            self.graph,
            self.t,
            fed.clients,
            random_bytes(self.name),
            gather_by(fed.comm),
            (fed.comm.rank, fed.comm.size),
            self.bits,
        )


class CodedPlan:
    """A sum by LightSecAgg; the parameters are those of `CodedSum` and `PairwisePlan`."""

    def __init__(
        self,
        attendance: Attendance,
        words: int,
        survivors: int,
        colluding: int,
        name: Name,
    ) -> None:
        self.attendance, self.words = attendance, words
        self.survivors, self.colluding, self.name = survivors, colluding, name
        self.piece = piece_of(words, survivors, colluding)

    @property
    def demand(self) -> str:
        """What has to stay for the sum to succeed, in words."""
        return f"{self.survivors}"

    def failed_stage(self) -> int | None:
        return self.attendance.failed_stage(Complete(self.attendance.keys), self.survivors)

    def cost(self, clients: Any, last: int = ANSWERS) -> dict[int, Cost]:
        """Return the bytes of these clients if this stage is the last."""
        return coded_cost(self.attendance, self.words, self.piece, clients, last)

    def add_seconds(self, costs: Mapping[int, Cost], speeds: Speeds) -> float:
        """Add the seconds of all clients to their costs; return the server's."""
        return add_coded_seconds(
            costs, self.attendance, self.survivors, self.piece, self.words, speeds
        )

    def execution(self, fed: Federation) -> CodedSum:
        return CodedSum(
            self.attendance,
            self.words,
            self.survivors,
            self.colluding,
            fed.clients,
            random_bytes(self.name),
            gather_by(fed.comm),
            (fed.comm.rank, fed.comm.size),
        )


def threshold(n: int, share: float) -> int:
    """Return the number of n clients that have to stay: more than the share, and 2 at least."""
    return max(2, math.floor(share * n) + 1)


def random_bytes(name: Name) -> Callable[[int], Callable[[int], bytes]]:
    """Return what makes the source of random bytes of each client in one sum."""
    seed, *key = name
    return lambda k: rng.stream(seed, "secure keys", *key, k).bytes


def gather_by(comm: Comm) -> Gather:
    """Return the function that gathers messages; one rank does not pack its own."""
    return dict if comm.size == 1 else partial(gather_messages, comm.gather)


def gather_messages(
    gather: Callable[[dict[int, Any]], dict[int, Any]], items: dict[int, Any]
) -> dict[int, Any]:
    """Return the messages of all ranks by sender; collective.

    items: of each sender bytes, a number, an array of integers of more than a byte, or by receiver
    bytes of one length.
    """
    return {k: unpack(item) for k, item in gather({k: pack(v) for k, v in items.items()}).items()}


def pack(item: Any) -> Any:
    """Return messages as what `Comm.gather` carries: arrays, few of them."""
    if isinstance(item, bytes):
        return np.frombuffer(item, np.uint8)
    if isinstance(item, dict):
        joined = np.frombuffer(b"".join(item.values()), np.uint8)
        return [np.array(list(item), np.int64), joined]
    return item


def unpack(item: Any) -> Any:
    """Return the messages from what `pack` made of them."""
    if isinstance(item, list):
        receivers, joined = item
        parts = joined.reshape(len(receivers), -1) if len(receivers) else []
        return {k: part.tobytes() for k, part in zip(receivers.tolist(), parts, strict=True)}
    is_bytes = isinstance(item, np.ndarray) and item.dtype == np.uint8
    return item.tobytes() if is_bytes else item


def count_bytes(fed: Federation, costs: Mapping[int, Cost]) -> None:
    """Add the bytes of a secure sum to the tallies of this rank's clients."""
    for k, cost in costs.items():
        fed.tallies[k].up += sum(cost.up)
        fed.tallies[k].down += sum(cost.down)
        fed.tallies.sum_messages[k] += sum(cost.down)


class Integers:
    """The rows of a rank as integers on the grid, by client.

    scales: of each array.
    """

    def __init__(
        self, rows: DeclaredRows, factors: Sequence[float], shapes: Shapes, scales: Sequence[int]
    ) -> None:
        self._rows, self._factors, self._scales = rows, factors, scales
        self._sizes = [math.prod(shape) for shape in shapes]

    def by_client(self) -> dict[int, Callable[[], np.ndarray]]:
        """Return for each client a function that returns its integers, [m] uint64."""
        numbers: dict[int, list[int]] = {}
        for j, k in enumerate(self._rows.clients):
            numbers.setdefault(k, []).append(j)
        return {k: partial(self._of, js) for k, js in numbers.items()}

    def _of(self, numbers: Sequence[int]) -> np.ndarray:
        """Return the sum of the rows of these numbers."""
        flat, buffer = np.empty(sum(self._sizes)), np.empty(max(self._sizes, default=0))
        factors = [self._factors[j] for j in numbers]
        start = 0
        for i, (size, s) in enumerate(zip(self._sizes, self._scales, strict=True)):
            pieces = [np.asarray(self._rows.rows[j][i]).reshape(-1) for j in numbers]
            quantise(flat[start : start + size], pieces, factors, s, buffer)
            start += size
        return flat.astype(np.int64).view(np.uint64)


def total(
    execution: PairwiseSum | CodedSum,
    integers: Mapping[int, Callable[[], np.ndarray]],
    sum_words: Callable[[np.ndarray], None],
) -> np.ndarray:
    """Return the sum of the clients' integers, [m] int64; collective.

    integers: of this rank's clients.
    sum_words: as `Comm.sum_words`.
    """
    execution.prepare()
    result = execution.empty()
    for k, values in integers.items():
        execution.add(result, execution.masked(k, values()))
    result = execution.unmask(result)
    sum_words(result.reshape(-1))
    return execution.integers(result)


def store(into: Quotients, shapes: Shapes, scales: Sequence[int], totals: np.ndarray) -> None:
    """Convert totals from the grid to values, finish them, and store them.

    totals: [m] int64 of all arrays, one after the other, of magnitudes that float64 has exactly.
    """
    start = 0
    for i, (shape, s) in enumerate(zip(shapes, scales, strict=True)):
        values = totals[start : start + math.prod(shape)].astype(float)
        restore(values, s, i)
        into.finish(i, 0, values)
        into.arrays[i].reshape(-1)[:] = values
        start += len(values)
