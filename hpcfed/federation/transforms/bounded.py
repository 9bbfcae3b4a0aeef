"""Uploads of bounded length, and their exact sum on a grid that tells nothing about them.

A client's update d_k = v_k - reference (the value itself, if the method names no reference) is
shortened to the bound C, and weighted by u_k in [0, 1]. The server learns sum_k u_k d_k, exactly:
the scale of the grid follows from C and from the number of clients, not from the values
(`comm.exact`), so that the sum is the only thing that depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from enum import IntFlag
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfed.comm.exact import HostRows
from hpcfed.core.averaging import Quotients, Row, weight_shape, zero_pad_tensor
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params, Per, Term
from hpcfed.core.payload import nbytes
from hpcfed.federation.sealed import MeanRule, Sealed
from hpcfed.federation.upload import Transform, Upload

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.transforms.secure.sums import SecureSums

K = TypeVar("K")
Name = tuple[str, str]  # of a part of an upload, and of a tensor in it
ROUNDED = 2.0**-22  # relatively, more than what rounding to float32 adds to a length


class Completing(Transform):
    """A transform that sends complete tensors in the place of their rows.

    learning: whether it does not know yet how large tensors are, as in a trial, from which it
    learns that (`Federation.shapes_of_means`); pieces of unknown tensors then stay what they are.
    """

    learning = False

    def of_trial(self) -> Completing:
        transform = copy(self)
        transform.learning = True
        return transform

    def complete(self, fed: Federation, upload: Upload) -> Upload:
        """Return the upload with complete tensors in the place of rows, and their weights by row.

        Which rows a client has (prototypes of its classes, say) is not sent then: others are zero,
        with weight 0.
        Raises ConfigError for pieces other than rows, such as those of sub-models.
        """
        parts = {}
        for name, mean in means_of(upload).items():
            pieces = {
                tensor for term in mean.terms for tensor, axes in term.at.items() if len(axes)
            }
            if pieces & set(upload.relative_to.get(name) or ()):  # of a model that it received
                raise sends_pieces(fed)
            if pieces:
                parts[name] = Mean(tuple(self._fill(fed, term) for term in mean.terms))
        # not those of rows that compression has encoded, which tell how many there are
        sizes = {name: nbytes(part) for name, part in parts.items()}
        return upload.changed(parts, sizes=sizes) if parts else upload

    def _fill(self, fed: Federation, term: Term) -> Term:
        """Return a term of complete tensors."""
        values, weights, at = {}, {}, {}
        for name, value in term.value.items():
            weight = term.weight[name] if isinstance(term.weight, Params) else term.weight
            rows = weight_shape(tuple(value.shape), "row")
            weight = torch.as_tensor(weight, dtype=value.dtype, device=value.device)
            values[name], weights[name] = value, weight.expand(rows).clone()
            axes, shape = term.at.get(name, ()), fed.shapes_of_means.get(name)
            if len(axes) > 1 or (shape is None and not self.learning):
                raise sends_pieces(fed)
            if len(axes):
                at[name] = axes
            if shape is not None and len(axes):
                values[name] = zero_pad_tensor(value, shape, axes)
                weights[name] = zero_pad_tensor(weights[name], weight_shape(shape, "row"), axes)
                at[name] = (torch.arange(shape[0]),)  # for methods that read it
        return Term(Params(values), Params(weights), at)


class Bound(Completing):
    """Shortens the update of each upload to a length, and bounds its weight.

    The length is the L2 norm of what the client adds to the sums: of its values, or for values with
    weights of their own (one for each class, say) of weight * value and of the weights.

    clip: the length C of all parts together.
    cap: weights are min(weight, cap) / cap; None: they must not exceed 1.
    layers: each of the L tensors has the length C / sqrt(L) instead.
    count_scale: factor of tensors of weights in the length; None: as `scale_of_counts` has it.
    """

    def __init__(
        self,
        clip: float,
        cap: float | None = None,
        layers: bool = False,
        count_scale: float | None = None,
    ) -> None:
        self.clip, self.cap, self.layers, self.count_scale = clip, cap, layers, count_scale

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        upload = difference(upload)
        squares = self.squares(fed, upload, self.clip)
        return self.shortened(fed, upload, squares, self.clip)

    def squares(self, fed: Federation, upload: Upload, clip: float) -> dict[Name, float]:
        """Return the sum of squares of what each tensor of an upload adds to the sums."""
        squares: dict[Name, float] = {}
        for part, mean in means_of(upload).items():
            check_single(fed, mean)
            (term,) = mean.terms
            scale = scale_of_counts(self.count_scale, clip, term)
            squares |= {(part, tensor): square(term, tensor, scale) for tensor in term.value}
        return squares

    def shortened(
        self, fed: Federation, upload: Upload, squares: Mapping[Name, float], clip: float
    ) -> Upload:
        """Return an upload of updates with this length and bounded weights.

        squares: of its tensors.
        """
        factors = shrink(squares, clip, self.layers)
        parts = {}
        for name, mean in means_of(upload).items():
            terms = (
                term._replace(
                    value=self._scaled(term, name, factors),
                    weight=self._weight(fed, term, name, factors),
                )
                for term in mean.terms
            )
            parts[name] = Mean(tuple(terms))
        return upload.changed(parts)

    def _scaled(self, term: Term, part: str, factors: Mapping[Name, float]) -> Params:
        """Return the values of a term, shortened unless their weights are."""
        if isinstance(term.weight, Params):
            return term.value
        return Params(
            {name: scale(value, factors[part, name]) for name, value in term.value.items()}
        )

    def _weight(self, fed: Federation, term: Term, part: str, factors: Mapping[Name, float]) -> Any:
        """Return a term's weight: a tensor shortened, a number bounded."""
        weight = term.weight
        if not isinstance(weight, Params):
            return self.bounded(fed, weight)
        return Params({name: scale(w, factors[part, name]) for name, w in weight.items()})

    def bounded(self, fed: Federation, weight: float) -> float:
        """Return a number as weight, at most 1."""
        if self.cap:
            return min(weight, self.cap) / self.cap
        if weight > 1:
            raise ConfigError(
                f"{fed.job.algorithm.name}: a client's weight is {weight:g}, but a bound on what "
                f"a client changes needs weights of at most 1\n  set privacy.cap to a number of "
                f"examples, or algorithm.weighting = 'uniform'"
            )
        return weight


def means_of(upload: Upload) -> dict[str, Mean]:
    """Return the parts of an upload that are means."""
    return {name: part for name, part in upload.parts.items() if isinstance(part, Mean)}


def check_single(fed: Federation, mean: Mean) -> None:
    """Raise ConfigError for a mean of several terms, whose sum may be longer than each of them."""
    if len(mean.terms) != 1:
        raise ConfigError(
            f"{fed.job.algorithm.name}: a client sends several terms of one mean, for which no "
            f"bound on what it changes is defined; take another method, such as fedavg"
        )


def sends_pieces(fed: Federation) -> ConfigError:
    """Return the error for a method whose clients have sub-models."""
    return ConfigError(
        f"{fed.job.algorithm.name}: its clients send pieces of larger tensors, and which they are "
        f"tells about the client; take a method whose clients send complete tensors, such as fedavg"
    )


def valid(name: str, value: Tensor, old: Tensor) -> Tensor:
    """Return a tensor with old values in the place of those that noise has made impossible.

    These are negative variances of batch normalisation.
    """
    return torch.where(value < 0, old, value) if name.endswith("running_var") else value


def scale_of_counts(setting: float | None, clip: float, term: Term) -> float:
    """Return the factor of the weights of a term in its length.

    setting: of the job; None: clip / sqrt(2 n) of n weights, so that weights of 1 take half of the
    squared bound.
    """
    sizes = term.weight.values() if isinstance(term.weight, Params) else ()
    return setting or default_scale(clip, sum(weight.numel() for weight in sizes))


def default_scale(clip: float, n: int) -> float:
    """Return the factor of n weights in a length."""
    return clip / math.sqrt(2 * max(1, n))


def square(term: Term, name: str, count_scale: float) -> float:
    """Return the sum of squares of what a tensor of a term adds to the sums, in float64."""
    value = term.value[name].detach().double()
    if not isinstance(term.weight, Params):
        return float(value.square().sum())
    weight = term.weight[name].detach().double()
    return float((value * weight).square().sum() + count_scale**2 * weight.square().sum())


def shrink(squares: Mapping[K, float], clip: float, layers: bool) -> dict[K, float]:
    """Return the factor of each tensor, at most 1, with which the bound holds."""
    if layers:
        share = clip / math.sqrt(max(1, len(squares)))
        return {name: factor(math.sqrt(value), share) for name, value in squares.items()}
    return dict.fromkeys(squares, factor(math.sqrt(math.fsum(squares.values())), clip))


def factor(length: float, bound: float) -> float:
    """Return the factor that shortens a vector of this length to the bound; 1 if it is within it.

    It is smaller by what rounding may add.
    """
    return 1.0 if length <= bound else bound / length * (1 - ROUNDED)


def scale(value: Tensor, by: float) -> Tensor:
    """Return the tensor times a factor; the same tensor if that is 1."""
    return value if by == 1 else (value.double() * by).to(value.dtype)


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


class Form(IntFlag):
    """What the terms of a mean are, the same for all clients but for ONES.

    SENT: somebody sends one.  UPDATE: they are changes of what the mean replaces.
    TENSORS: their weights are tensors.  ONES: weights are 1, not numbers of examples. A client with
    one example cannot tell, so the flag is the highest one, and that of any client counts.
    """

    SENT = 1
    UPDATE = 2
    TENSORS = 4
    ONES = 8


def form_of(term: Term, is_update: bool, n: int) -> Form:
    """Return the form of the term of a client with n examples."""
    form = Form.SENT | (Form.UPDATE if is_update else Form(0))
    if isinstance(term.weight, Params):
        return form | Form.TENSORS
    return form | (Form.ONES if term.weight == 1 and n > 1 else Form(0))


class BoundedMean(MeanRule):
    """The mean of uploads that `Bound` has bounded.

    clip: the bound C of values, from which the scale of the sums follows.
    largest_weight: of a client in a mean.
    secure: adds up such that single terms stay hidden; None: they are added up openly.
    """

    def __init__(
        self, clip: float, largest_weight: float = 1.0, secure: SecureSums | None = None
    ) -> None:
        self.clip, self.largest_weight, self.secure = clip, largest_weight, secure

    def mean(
        self, fed: Federation, parts: list[tuple[int, Sealed]], keep: Params, per: Per
    ) -> Params:
        terms = [(term, part) for _, part in parts for term in part.terms_for(self)]
        fed.note_shapes([term for term, _ in terms], keep)
        rows = [Row(term, keep, per) for term, _ in terms]
        fed.exchange.wait("mean")
        with fed.clock("communicate"):
            # a rank without clients learns from the others what they have sent
            forms = (form_of(term, part.is_update, fed.sizes[part.client]) for term, part in terms)
            form = max(forms, default=Form(0))
            quotients = self.quotients(fed, keep, per, Form(fed.comm.barrier(int(form))))
            shapes, factors = [a.shape for a in quotients.arrays], [row.factor for row in rows]
            clients = [part.client for _, part in terms]
            declared = DeclaredRows(rows, clients, fed.K, self.bounds(quotients))
            self.sum(fed, declared, shapes, factors, quotients)
        return quotients.mean()

    def fresh(self) -> BoundedMean:
        rule = copy(self)
        rule.secure = self.secure and self.secure.of_trial()
        return rule

    def bounds(self, quotients: Quotients) -> np.ndarray:
        """Return bounds of the values of a row's arrays."""
        of_values = np.where(is_weight(quotients), 1.0, self.clip)
        return of_values * self.largest_weight * (1 + ROUNDED)

    def quotients(self, fed: Federation, keep: Params, per: Per, form: Form) -> Quotients:
        """Return the target of the sum, which makes means of totals."""
        return UpdatedQuotients(keep, per) if Form.UPDATE in form else Quotients(keep, per)

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


def is_weight(quotients: Quotients) -> np.ndarray:
    """Return which of the arrays are weights."""
    return np.arange(len(quotients.arrays)) < quotients.n_first


class UpdatedQuotients(Quotients):
    """Divides totals of updates by their weights, and adds the old values."""

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        if i < self.n_first:
            return
        weight, old = self.weight(i, start, len(total)), self.old(i, start, len(total))
        np.divide(total, weight, out=total, where=weight > 0)  # otherwise the total is 0
        total += old


class DeclaredRows(HostRows):
    """Rows whose largest values and number are declared, not measured.

    clients: of the rows, [rows].
    expected: number of clients that may have a row.
    bounds: of each array, [A].
    bits: lower ones of a sum that count, so that no others travel if it is masked.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        clients: Sequence[int],
        expected: int,
        bounds: np.ndarray,
        bits: int = 64,
    ) -> None:
        super().__init__(rows)
        self.clients, self.expected, self.bounds, self.bits = clients, expected, bounds, bits

    def largest(self, shapes: Sequence[tuple[int, ...]], factors: Sequence[float]) -> np.ndarray:
        assert (super().largest(shapes, factors) <= self.bounds).all()  # `Bound` has shortened them
        return self.bounds
