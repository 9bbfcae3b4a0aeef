"""Uploads of bounded length, and their exact sum on a grid that tells nothing about them.

A client's update d_k = v_k - reference (the value itself, if the method names no reference) is
shortened to the bound C, and weighted by u_k in [0, 1]. The server learns sum_k u_k d_k, exactly:
the scale of the grid follows from C and from the number of clients, not from the values
(`comm.exact`), so that the sum is the only thing that depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.comm.exact import HostRows
from hpcfed.core.averaging import Quotients, Row
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params, Per
from hpcfed.federation.sealed import MeanRule, Sealed
from hpcfed.federation.upload import Transform, Upload

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.transforms.secure.sums import SecureSums

ROUNDED = 1e-6  # by what float32 may exceed the bound, relatively


class Bound(Transform):
    """Shortens the update of each upload to a length, and bounds its weight.

    clip: the length C of all parts together; None: there is no bound.
    cap: weights are min(weight, cap) / cap; None: they must not exceed 1.
    """

    def __init__(self, clip: float | None, cap: float | None) -> None:
        self.clip, self.cap = clip, cap

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        updates = difference(upload)
        factor = min(1.0, (self.clip or math.inf) / (length(updates.parts.values()) or 1.0))
        parts = {name: self._shortened(fed, part, factor) for name, part in updates.parts.items()}
        return updates.changed(parts)

    def _shortened(self, fed: Federation, part: Any, factor: float) -> Any:
        if not isinstance(part, Mean):
            return part
        terms = []
        for term in part.terms:
            value = term.value if factor == 1 else term.value.map(lambda v: v * factor)
            terms.append(term._replace(value=value, weight=self._bounded(fed, term.weight)))
        return Mean(tuple(terms))

    def _bounded(self, fed: Federation, weight: Any) -> Any:
        """Return a term's weight, at most 1."""
        if self.cap:
            cap = self.cap
            if isinstance(weight, Params):
                return weight.map(lambda w: w.clamp(max=cap) / cap)
            return min(weight, cap) / cap
        largest = max(map(peak, weight.values())) if isinstance(weight, Params) else weight
        if largest > 1:
            raise ConfigError(
                f"{fed.job.algorithm.name}: a client's weight is {largest:g}, but a bound on what "
                f"a client changes needs weights of at most 1\n  set privacy.cap to a number of "
                f"examples, or algorithm.weighting = 'uniform'"
            )
        return weight


def difference(upload: Upload) -> Upload:
    """Return the upload with updates in the place of parts that are new versions of a reference."""
    parts = {}
    for name, reference in upload.relative_to.items():
        part = upload.parts.get(name)
        if reference is not None and isinstance(part, Mean):
            parts[name] = Mean(
                tuple(
                    term._replace(
                        value=Params({n: v - reference[n] for n, v in term.value.items()})
                    )
                    for term in part.terms
                )
            )
    return upload.changed(parts, updates=parts)


def length(parts: Any) -> float:
    """Return the L2 norm of all values of the means among these parts, without their weights."""
    squares = (
        torch.linalg.vector_norm(value.detach().double()).item() ** 2
        for part in parts
        if isinstance(part, Mean)
        for term in part.terms
        for value in term.value.values()
    )
    return math.sqrt(sum(squares))


def peak(value: Tensor) -> float:
    return value.abs().max().item() if value.numel() else 0.0


class BoundedMean(MeanRule):
    """The mean of uploads that `Bound` has bounded.

    clip: the bound C of values, from which the scale of the sums follows; None: it follows from the
    values.
    largest_weight: of a client in a mean.
    secure: adds up such that single terms stay hidden; None: they are added up openly.
    """

    def __init__(
        self, clip: float | None, largest_weight: float = 1.0, secure: SecureSums | None = None
    ) -> None:
        self.clip, self.largest_weight, self.secure = clip, largest_weight, secure

    def mean(
        self, fed: Federation, parts: list[tuple[int, Sealed]], keep: Params, per: Per
    ) -> Params:
        clients = [k for k, part in parts for _ in part.terms_for(self)]
        rows = [Row(term, keep, per) for _, part in parts for term in part.terms_for(self)]
        # a rank without clients learns from the others what they have sent
        updates = bool(fed.comm.barrier(any(part.is_update for _, part in parts)))
        quotients = self.quotients(fed, keep, per, updates)
        shapes, factors = [a.shape for a in quotients.arrays], [row.factor for row in rows]
        fed.exchange.wait("mean")
        with fed.clock("communicate"):
            declared = DeclaredRows(
                rows, clients, fed.K, self.clip, self.largest_weight, quotients.first
            )
            self.sum(fed, declared, shapes, factors, quotients)
        return quotients.mean()

    def quotients(self, fed: Federation, keep: Params, per: Per, updates: bool) -> Quotients:
        """Return the target of the sum, which makes means of totals.

        updates: whether the parts are changes of what `keep` has.
        """
        return UpdatedQuotients(keep, per) if updates else Quotients(keep, per)

    def sum(
        self,
        fed: Federation,
        rows: DeclaredRows,
        shapes: Sequence[tuple[int, ...]],
        factors: Sequence[float],
        into: Quotients,
    ) -> None:
        """Add the rows of all ranks up; collective."""
        if self.secure:
            self.secure.sum(fed, rows, shapes, factors, into)
        else:
            fed.comm.sum(rows, shapes, factors, into)


class UpdatedQuotients(Quotients):
    """Divides totals of updates by their weights, and adds the old values."""

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        if i < self.first:
            return
        weight, old = self.weight(i, start, len(total)), self.old(i, start, len(total))
        np.divide(total, weight, out=total, where=weight > 0)  # otherwise the total is 0
        total += old


class DeclaredRows(HostRows):
    """Rows whose largest values and number are declared, not measured.

    clients: of the rows, [rows].
    expected: number of clients that may have a row.
    bound: of the values; None: they are measured.
    largest_weight: of a row, which multiplies its values.
    first: the number of arrays that are weights.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        clients: Sequence[int],
        expected: int,
        bound: float | None,
        largest_weight: float,
        first: int,
    ) -> None:
        super().__init__(rows)
        self.clients, self.expected = clients, expected
        self.bound, self.largest_weight, self.first = bound, largest_weight, first

    def largest(self, shapes: Sequence[tuple[int, ...]], factors: Sequence[float]) -> np.ndarray:
        peaks = super().largest(shapes, factors)
        if self.bound is None:
            return peaks
        of_values = np.where(np.arange(len(shapes)) < self.first, 1.0, self.bound)
        bounds = of_values * self.largest_weight * (1 + ROUNDED)
        assert (peaks <= bounds).all()  # `Bound` has shortened them
        return bounds
