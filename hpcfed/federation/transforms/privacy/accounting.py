"""Privacy accounting: epsilon of what a run has released, by Google's dp-accounting.

A release is a sum over the clients of one cohort, in which no client has more than the bound C,
plus Gaussian noise of standard deviation z C. The ledger of a run is the list of its releases. They
all count, also those before a run was resumed or extended.

Neighbours are what epsilon compares: two federations that differ in one client. "add-remove": it
takes part or does not; "zero-out": its data are replaced by none, so that it sends zeros;
"replace": by any other data, which changes the sum by up to 2 C.

Accountants: "pld", privacy loss distributions, close to exact; "rdp", Renyi differential privacy,
an upper bound. The two read one event differently under replacement: the PLD accountant doubles the
sensitivity itself, the RDP accountant does not, so it gets z / 2 here
(google/differential-privacy, issue 378).

Cohorts: "poisson": each client takes part with probability q, independently; this event is exact.
"fixed": m of N clients without replacement. Then only a replacement is defined. RDP has this event.
PLD does not; its number is that of a Poisson cohort with z / 2 under add-remove, as jax-privacy
computes it for batches of fixed size, for which no proof is known to us. With q = 1 all clients
take part, and nothing is sampled.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from hpcfed.core.optional_imports import import_extra

By = Literal["pld", "rdp"]
Neighbours = Literal["add-remove", "replace", "zero-out"]
Cohorts = Literal["poisson", "fixed"]

FINE, COARSE = 1e-4, 1e-3  # intervals of privacy loss; coarser ones give larger epsilons, faster
AGREE = 1.001  # the coarse interval will do if it changes epsilon by no more than this factor
DIGITS = 6  # significant digits of a noise multiplier that is calculated
LIMITS = 1e-3, 1e6  # of the noise multipliers that are tried
MOST = 1e6  # intervals of the privacy loss over a run


class Release(NamedTuple):
    """Equal releases: noise multiplier, probability or share of a cohort, and their number."""

    z: float
    q: float
    times: int = 1


class Ledger(list[Release]):
    """The releases of a run in their order."""

    def add(self, z: float, q: float, times: int = 1) -> None:
        """Note releases; equal ones in a row are one entry."""
        if self and self[-1][:2] == (z, q):
            self[-1] = self[-1]._replace(times=self[-1].times + times)
        elif times:
            self.append(Release(z, q, times))

    def then(self, z: float, q: float, times: int = 1) -> Ledger:
        """Return the ledger with further releases; this one stays as it is."""
        longer = Ledger(self)
        longer.add(z, q, times)
        return longer

    def to_tree(self) -> np.ndarray:
        """Return the part of a checkpoint that concerns the ledger, [n, 3]."""
        return np.array(self, dtype=float).reshape(-1, 3)

    @classmethod
    def from_tree(cls, tree: np.ndarray) -> Ledger:
        """Return the ledger from what `to_tree` returned."""
        return cls(Release(z, q, int(times)) for z, q, times in np.array(tree).tolist())


@dataclass(frozen=True)
class Accountant:
    """Computes epsilon of ledgers at one delta.

    clients: number of all clients, which a cohort of fixed size needs.
    interval: of privacy loss (PLD).
    """

    delta: float
    by: By = "pld"
    neighbours: Neighbours = "add-remove"
    cohorts: Cohorts = "poisson"
    clients: int = 0
    interval: float = FINE

    def epsilon(self, ledger: Sequence[Release]) -> float:
        """Return epsilon after these releases: 0 without any, inf if one has no noise."""
        ledger = [release for release in ledger if release.times and release.q]
        if not ledger:
            return 0.0
        if not all(release.z for release in ledger):
            return math.inf
        sampled = any(release.q < 1 for release in ledger)
        if self.by == "rdp":
            return self._rdp(ledger)
        if not sampled:
            return self._gaussian(ledger)
        return self._pld(tuple(ledger))

    def cost(self, z: float, *parts: tuple[float, int]) -> float:
        """Return epsilon after releases with one noise multiplier.

        parts: pairs of q and a number of releases.
        """
        return self.epsilon([Release(z, q, times) for q, times in parts])

    @property
    def _doubled(self) -> bool:
        """Whether one client changes the sum by up to 2 C."""
        return self.neighbours == "replace"

    def _gaussian(self, ledger: Sequence[Release]) -> float:
        """Return epsilon of Gaussian noise without sampling, in closed form."""
        z = math.fsum(release.times / release.z**2 for release in ledger) ** -0.5
        gaussian = package("gaussian_mechanism")
        with np.errstate(divide="ignore"):  # in its search for a bracket
            return float(gaussian.get_epsilon_gaussian(z / (2 if self._doubled else 1), self.delta))

    def _rdp(self, ledger: Sequence[Release]) -> float:
        """Return epsilon by Renyi divergences, which add up over the entries of the ledger."""
        clients = self.clients if self.cohorts == "fixed" else 0
        orders, total = np.zeros(0), np.zeros(())
        for z, q, times in ledger:
            noise = z / 2 if self._doubled else z
            orders, divergences = renyi(noise, q, self.neighbours, clients)
            total = total + times * divergences
        with silent():
            return float(package("rdp").compute_epsilon(orders, total, self.delta)[0])

    @lru_cache(maxsize=256)  # noqa: B019  # after a round it is what the one before foresaw
    def _pld(self, ledger: tuple[Release, ...]) -> float:
        """Return epsilon by privacy loss distributions, one for each entry of the ledger."""
        fixed = self.cohorts == "fixed"
        neighbours = "add-remove" if fixed else self.neighbours
        losses: Any = None
        for z, q, times in ledger:
            one = loss(z / 2 if fixed else z, q, neighbours, self.interval)
            part = one.self_compose(times) if times > 1 else one
            losses = part if losses is None else losses.compose(part)
        return float(losses.get_epsilon_for_delta(self.delta))

    def for_run(self, z: float, *parts: tuple[float, int]) -> Accountant:
        """Return the accountant with the interval for such a run.

        parts: pairs of q and a number of releases.

        It is the coarse one if that changes epsilon by 0.1 % at most, since each round computes
        epsilon anew. A run with so little noise that its privacy loss is enormous gets a coarser
        one.
        """
        if self.by != "pld" or not is_sampled(parts) or not z:
            return self
        enormous = sum(q * times for q, times in parts) / (2 * z**2) / MOST
        coarse = replace(self, interval=max(COARSE, enormous))
        if enormous > COARSE or coarse.cost(z, *parts) <= AGREE * self.cost(z, *parts):
            return coarse
        return self

    @cache  # noqa: B019  # accountants are few and small
    def calibrate(self, epsilon: float, *parts: tuple[float, int]) -> float:
        """Return the smallest noise multiplier with which releases cost at most this epsilon.

        parts: pairs of q and a number of releases.
        It is rounded up to DIGITS digits. Raises ValueError if that is beyond LIMITS.
        """
        z = replace(self, interval=COARSE)._solve(epsilon, parts, guess=1.0)
        accountant = self.for_run(z, *parts)
        if accountant.interval != COARSE and accountant.by == "pld" and is_sampled(parts):
            z = accountant._solve(epsilon, parts, guess=z)
        z = round_up(z)
        while accountant.cost(z, *parts) > epsilon:
            z = round_up(z * (1 + 10.0**-DIGITS))
        return z

    def _solve(self, epsilon: float, parts: Sequence[tuple[float, int]], guess: float) -> float:
        """Return the noise multiplier that costs this epsilon, to 1e-7 relatively."""

        def excess(log_z: float) -> float:
            return math.log(max(self.cost(math.exp(log_z), *parts), 1e-12) / epsilon)

        excess = cache(excess)
        at = math.log(guess)
        step = math.copysign(0.1, excess(at))
        other = at + step
        while excess(other) * step > 0:
            step *= 2
            at, other = other, other + step
            if not LIMITS[0] <= math.exp(other) <= LIMITS[1]:
                raise ValueError(
                    f"no noise multiplier between {LIMITS[0]:g} and {LIMITS[1]:g} costs epsilon "
                    f"{epsilon:g} in {sum(times for _, times in parts)} releases"
                )
        from scipy.optimize import brentq  # here: runs without noise do not load scipy

        return math.exp(brentq(excess, at, other, xtol=1e-7))


def is_sampled(parts: Sequence[tuple[float, int]]) -> bool:
    """Return whether an example or a client is left out of some of these releases."""
    return any(q < 1 for q, _ in parts)


def round_up(value: float) -> float:
    """Return the value with DIGITS significant digits, not below it."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.{DIGITS}g}")


@lru_cache(maxsize=16)
def loss(z: float, q: float, neighbours: Neighbours, interval: float) -> Any:
    """Return the privacy loss distribution of one release."""
    losses = package("pld.privacy_loss_distribution")
    return losses.from_gaussian_mechanism(
        standard_deviation=z,
        value_discretization_interval=interval,
        sampling_prob=q,
        neighboring_relation=relation(neighbours),
    )


@cache  # without a limit: each round of DP-SGD needs those of many q, one per size of client
def renyi(z: float, q: float, neighbours: Neighbours, clients: int) -> tuple[np.ndarray, ...]:
    """Return the orders and Renyi divergences of one release, [n] each.

    They take a third of a second, and rounds with the same noise have the same ones.
    clients: the number of clients of whom a cohort of fixed size is drawn; 0: Poisson cohorts.
    """
    accounting, rdp = package(), package("rdp")
    accountant = rdp.RdpAccountant(neighboring_relation=relation(neighbours))
    event = accounting.GaussianDpEvent(z)
    if q < 1 and clients:
        event = accounting.SampledWithoutReplacementDpEvent(clients, round(q * clients), event)
    elif q < 1:
        event = accounting.PoissonSampledDpEvent(q, event)
    with silent():
        accountant.compose(event)
    return accountant.orders, accountant.rdp


def relation(neighbours: Neighbours) -> Any:
    """Return dp-accounting's name of a relation of neighbours."""
    names = {
        "add-remove": "ADD_OR_REMOVE_ONE",
        "replace": "REPLACE_ONE",
        "zero-out": "REPLACE_SPECIAL",
    }
    return package().NeighboringRelation[names[neighbours]]


def package(module: str = "") -> Any:
    """Import dp-accounting, or a module of it. Raises ConfigError if it is missing."""
    name = f"dp_accounting.{module}" if module else "dp_accounting"
    return import_extra(name, "privacy", "accounting of privacy")


@contextmanager
def silent() -> Iterator[None]:
    """Hide warnings of orders that the RDP accountant leaves out, since others remain."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
