"""Distributed noise in a round: uploads as integers, each with its client's share of the noise.

What a client adds to the sums is one vector for each part of its upload: its values times their
weight, or where values have weights of their own, weight * value and count_scale * weight. Clipped
and rotated, it is rounded to the grid of step 1 / s, and noise is added (`discrete`). The server
adds the integers up exactly, takes the sum modulo 2^bits, and rotates it back. With secure sums it
learns nothing else.

Weights u = min(n, cap) are encoded as u / U with U = cap, so that no vector is longer than the
bound C, and the server multiplies the sum by U. Its noise then is z C U, as with central noise.

One client's noise has standard deviation z C / sqrt(n), with n the number of clients of which the
job expects to hear at least (`privacy.fewest`). Epsilon of a round is that of the clients whose
noise the sum has, if these are fewer. It is computed by Renyi divergences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.comm.sum_messages import Totals
from hpcfed.core import rng
from hpcfed.core.averaging import weight_shape
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params, Per, Term
from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.sealed import MeanRule, Sealed
from hpcfed.federation.transforms.bounded import (
    ROUNDED,
    DeclaredRows,
    Form,
    form_of,
    means_of,
    scale_of_counts,
)
from hpcfed.federation.transforms.hadamard import draw_signs, padded, rotate, rotate_back
from hpcfed.federation.transforms.privacy import discrete
from hpcfed.federation.transforms.privacy.account import Account
from hpcfed.federation.transforms.privacy.accounting import LIMITS, package, round_up
from hpcfed.federation.transforms.privacy.central import (
    CentralBound,
    CentralMean,
    probability,
)

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.comm import Comm
    from hpcfed.config.job import Job
    from hpcfed.config.privacy import Privacy
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.upload import Upload

DEVIATIONS = 4  # of the size of a Poisson cohort, for which sums have room
SUM, FORM = "sum", "form"  # tensors of an encoded part


class Shares(CentralBound):
    """Clips uploads, and encodes them as integers with the client's share of the noise."""

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        clipped, rule = super().upload(fed, client, upload), fed.rule
        assert isinstance(rule, DistributedMean)
        terms = {name: mean.terms[0] for name, mean in means_of(clipped).items()}
        if any(are_pieces(fed, term) for term in terms.values()):  # of a trial (`learning`)
            return clipped  # how large complete ones are, the mean of these shows
        scales = {
            name: scale_of_counts(self.count_scale, rule.clip, term) for name, term in terms.items()
        }
        forms = {
            name: rule.complete_form_of(name, form_of(term, name in clipped.updates, client.n))
            for name, term in terms.items()
        }
        vectors = {
            name: vector(term, scales[name], rule.largest(forms[name]))
            for name, term in terms.items()
        }
        lengths = {name: padded(len(values)) for name, values in vectors.items()}
        if self.learning:
            rule.lengths |= lengths
            rule.evenly |= {name for name, form in forms.items() if Form.ONES in form}
        grid = rule.grid(fed)
        g = rng.stream(fed.seed, "privacy", "share", fed.moment, client.id, fed.replay.streams)
        rotated = [
            grid.scale * rotate(values, rule.signs(fed, lengths[name]))
            for name, values in vectors.items()
        ]
        integers = grid.encode(np.concatenate([np.zeros(0), *rotated]), g)
        parts, sizes, start = {}, {}, 0
        for name in terms:
            stop = start + lengths[name]
            parts[name] = Mean.of(
                Params(
                    {
                        SUM: torch.from_numpy(integers[start:stop].astype(np.float64)),
                        FORM: torch.tensor(float(forms[name])),
                    }
                )
            )
            sizes[name] = bytes_of_bits(grid.bits * lengths[name])
            start = stop
        return clipped.changed(parts, sizes=sizes)


def are_pieces(fed: Federation, term: Term) -> bool:
    """Return whether a term has rows of tensors whose shapes nobody knows yet."""
    return any(name not in fed.shapes_of_means for name, axes in term.at.items() if len(axes))


def vector(term: Term, count_scale: float, largest: float) -> np.ndarray:
    """Return what a term adds to the sums, float64, its tensors in the order of their names.

    largest: weight of any client, by which weights that are numbers are divided.
    """
    names, weight = sorted(term.value), term.weight
    if not isinstance(weight, Params):
        return np.concatenate([weight / largest * flat(term.value[name]) for name in names])
    totals = [flat(term.value[name].double() * weight[name].double()) for name in names]
    return np.concatenate([*totals, *(count_scale * flat(weight[name]) for name in names)])


def flat(value: Tensor) -> np.ndarray:
    return value.detach().double().cpu().numpy().reshape(-1)


class Grid:
    """The grid of a round's integers, and the noise of one client on it.

    lengths: padded lengths of the vectors of an upload.  n: number of clients.
    sigma: standard deviation of one client's noise, in units of values.
    """

    def __init__(self, privacy: Privacy, lengths: Sequence[int], n: int, sigma: float) -> None:
        assert privacy.clip is not None
        self.mechanism: Any = privacy.kind
        self.bits, self.sigma, self.n = privacy.bits, sigma, n
        self.clip, self.D = privacy.clip * (1 + ROUNDED), sum(lengths)
        shortest = min(lengths, default=1)  # all of a client may be in one part
        self.scale = discrete.find_scale(self.bits, n, shortest, self.clip, sigma)

    def check(self) -> None:
        """Raise ValueError for noise that cannot be drawn on the grid."""
        if self.mechanism == "discrete-gaussian":
            discrete.check_variance(discrete.grid_variance(self.mechanism, self.sigma, self.scale))

    def encode(self, values: np.ndarray, g: np.random.Generator) -> np.ndarray:
        """Return the integers that a client sends, int64.  values: in steps of the grid."""
        bound = discrete.rounded_norm(self.clip * self.scale, self.D)
        integers = discrete.round_at_random(values, bound, g)
        if self.sigma:
            size = len(values)
            integers += discrete.draw_noise(self.mechanism, self.sigma, self.scale, size, g)
        beyond = np.abs(integers) >= 1 << self.bits
        integers[beyond] = discrete.wrap(integers[beyond], self.bits)
        return integers

    def divergences(self, n: int, q: float) -> np.ndarray:
        """Return the Renyi divergences of one sum with the noise of n clients."""
        if not self.sigma:
            return np.full(len(discrete.ORDERS), math.inf)
        values = discrete.divergences_of(
            self.mechanism, n, self.clip, self.sigma, float(self.scale), self.D, q
        )
        return np.array(values)


def make_grid(job: Job, lengths: Mapping[str, int], z: float) -> Grid:
    """Return the grid of a run with this noise multiplier. Raises ValueError if there is none.

    lengths: padded length of each part of an upload.
    """
    assert job.privacy.clip is not None
    expected = probability(job) * job.clients
    most = min(job.clients, math.ceil(expected + DEVIATIONS * math.sqrt(expected)))
    sigma = z * job.privacy.clip / math.sqrt(fewest(job))
    return Grid(job.privacy, list(lengths.values()), most, sigma)


def fewest(job: Job) -> int:
    """Return the number of clients whose noise together is that of the job."""
    return job.privacy.fewest or max(1, round(probability(job) * job.clients))


class DistributedMean(CentralMean):
    """The mean of encoded uploads.

    lengths: padded length of each part of an upload, as the trial had them.
    evenly: names of the parts whose weights are 1, not numbers of examples.
    wraps: values of this round's sums that left the ring.
    sent: number of uploads in the last round, of all ranks.
    """

    def __init__(self, privacy: Privacy, poisson: bool) -> None:
        self.lengths: dict[str, int] = {}
        self.evenly: set[str] = set()
        self.sent = 0
        super().__init__(privacy, poisson)

    def begin(self) -> None:
        super().begin()
        self.wraps = 0

    def grid(self, fed: Federation) -> Grid:
        """Return the grid of the run's integers."""
        return make_grid(fed.job, self.lengths, fed.noise_multiplier)

    def open(self, fed: Federation) -> None:
        try:
            self.grid(fed).check()
        except ValueError as error:
            raise ConfigError(
                f"{self.hidden_by}: {error}; set another privacy.bits or privacy.noise"
            ) from None

    def signs(self, fed: Federation, D: int) -> np.ndarray:
        """Return the signs of this round's rotation, the same for all clients, [D]."""
        return draw_signs(rng.stream(fed.seed, "privacy", "signs", fed.moment), D)

    def report(self) -> float:
        return float(self.uploads)

    def close(self, fed: Federation, uploads: int, reports: Collection[float]) -> None:
        self.sent = int(sum(reports))

    def learn(self, trial: MeanRule) -> None:
        super().learn(trial)
        assert isinstance(trial, DistributedMean)
        self.lengths |= trial.lengths
        self.evenly |= trial.evenly

    def fresh(self) -> CentralMean:
        rule = super().fresh()
        assert isinstance(rule, DistributedMean)
        rule.lengths, rule.evenly = {}, set()
        return rule

    def complete_form_of(self, part: str, form: Form) -> Form:
        """Return the form of a client's part; one example does not tell by which weight it has 1.

        All clients of a trial have several examples of each class.
        """
        return form | Form.ONES if part in self.evenly else form

    def average(
        self, fed: Federation, parts: list[tuple[int, Sealed]], keep: Params, per: Per
    ) -> Params:
        terms = [(k, term) for k, part in parts for term in part.terms_for(self)]
        if any(SUM not in term.value for _, term in terms):
            return super().average(fed, parts, keep, per)
        fed.exchange.wait("mean")
        with fed.clock("communicate"):
            sent = max((int(term.value[FORM]) for _, term in terms), default=0)
            form = self.complete_form(fed, Form(fed.comm.barrier(sent)), per)
            grid = self.grid(fed)
            std = self.largest(form) * grid.sigma * math.sqrt(fewest(fed.job))
            into = self.receiver(fed, keep, per, form, std, no_noise)
            layout = Layout(keep, per, into.divisor is None)
            total = self.integers(fed, terms, padded(layout.size), grid)
        wrapped = discrete.wrap(total, grid.bits)
        self.wraps += int((wrapped != total).sum())
        signs = self.signs(fed, len(total))
        values = rotate_back(self.largest(form) * wrapped / grid.scale, signs, layout.size)
        for i, array in enumerate(into.arrays):
            part = layout.part(values, i, into.n_first, into.count_scale)
            if part is not None:
                into.finish(i, 0, part)
                array.reshape(-1)[:] = part
        return into.mean()

    def integers(
        self, fed: Federation, terms: list[tuple[int, Term]], D: int, grid: Grid
    ) -> np.ndarray:
        """Return the exact sum of the integers of all clients, [D] int64; collective."""
        rows: Any = [[flat(term.value[SUM])] for _, term in terms]
        clients = [k for k, _ in terms]
        declared = DeclaredRows(rows, clients, fed.K, np.array([2.0**grid.bits]), grid.bits)
        into: Any = Totals([(D,)])
        self.sum(fed, declared, [(D,)], [1.0] * len(rows), into)
        return np.rint(into.arrays[0]).astype(np.int64)

    def columns(self) -> dict[str, float]:
        return super().columns() | {"rounds/wraps": float(self.wraps)}


def no_noise(i: int, start: int, n: int) -> np.ndarray:
    """Return zeros: the sum has its noise already."""
    return np.zeros(n)


class Layout:
    """The places of a mean's totals in a client's vector (`vector`).

    weighted: whether values have weights of their own, which are part of it.
    """

    def __init__(self, keep: Params, per: Per, weighted: bool) -> None:
        names, start = sorted(keep), 0
        shapes = {name: tuple(value.shape) for name, value in keep.items()}
        weights = {name: weight_shape(shape, per) for name, shape in shapes.items() if weighted}
        self.slots: list[dict[str, slice]] = []
        for sizes in (shapes, weights) if weighted else (shapes,):
            slots = {}
            for name in names:
                slots[name] = slice(start, start + math.prod(sizes[name]))
                start = slots[name].stop
            self.slots.append(slots)
        self.size, self.names = start, list(keep)

    def part(
        self, values: np.ndarray, i: int, n_first: int, count_scale: float
    ) -> np.ndarray | None:
        """Return the total of array i of a receiver; None: the vector has none.

        n_first: number of its arrays that are weights.
        """
        if i >= n_first:
            return values[self.slots[0][self.names[i - n_first]]].copy()
        return values[self.slots[1][self.names[i]]] / count_scale if len(self.slots) > 1 else None


class DistributedAccount(Account):
    """The account of distributed noise: the number of clients in each sum decides its cost.

    sums: numbers of sums by the number of clients whose noise they have.
    """

    def __init__(self, job: Job, rule: DistributedMean) -> None:
        super().__init__(job)
        self.accountant = replace(self.accountant, by="rdp")  # the only one for such sums
        self.job, self.rule, self.sums = job, rule, Counter[int]()

    def calibrate(self, times: int) -> float:
        n = fewest(self.job)

        def excess(log_z: float) -> float:
            cost = self.epsilon(Counter({n: times}), math.exp(log_z))
            return math.log(max(cost, 1e-12) / (self.budget or 1.0))

        low, high = math.log(LIMITS[0]) / 2, math.log(LIMITS[1]) / 2
        if excess(low) < 0 or excess(high) > 0:
            raise ValueError(f"no noise costs it in {times} sums; privacy.bits may be too few")
        from scipy.optimize import brentq  # here: runs without noise do not load scipy

        return round_up(math.exp(brentq(excess, low, high, xtol=1e-7)))

    def epsilon(self, sums: Mapping[int, int], z: float) -> float:
        """Return epsilon of sums; sums: their number, by the clients whose noise they have."""
        if not sums:
            return 0.0
        try:
            grid = make_grid(self.job, self.rule.lengths, z)
        except ValueError:  # noise beyond the ring
            return 0.0
        total = sum(times * grid.divergences(n, self.q) for n, times in sums.items())
        return float(
            package("rdp").compute_epsilon(discrete.ORDERS, total, self.accountant.delta)[0]
        )

    def note(self, comm: Comm, cohort: Collection[int], each: int) -> None:
        reports = self.rule.sent // max(1, each)
        self.sums[min(max(1, reports), fewest(self.job))] += each

    @property
    def excess(self) -> str:
        return (
            f"only {min(self.sums)} clients have sent in a round, so that its sum has less noise "
            f"than that of {fewest(self.job)}; set privacy.fewest to the smallest number of "
            f"clients that is likely, so that each of them adds more noise"
        )

    def cost(self, more: int) -> float:
        ahead = Counter({fewest(self.job): more}) if more else Counter[int]()
        return self.epsilon(self.sums + ahead, self.z)

    def to_tree(self) -> dict[str, Any]:
        sums = np.array(sorted(self.sums.items()), dtype=np.int64).reshape(-1, 2)
        return super().to_tree() | {"sums": sums}

    def from_tree(self, tree: dict[str, Any]) -> None:
        super().from_tree(tree)
        self.sums = Counter(dict(np.array(tree["sums"]).tolist()))
