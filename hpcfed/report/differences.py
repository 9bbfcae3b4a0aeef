"""Paired differences: intervals, tests and effect sizes.

Clients of one run share a server and a seed, so that their differences are not independent. Seeds
are the clusters: with equally many clients per seed, the cluster-robust interval of the mean
difference is the t interval over the means of the seeds.

The choice of rank tests follows Demšar (JMLR 7, 2006, sections 3.1 and 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

SURE = 0.95  # of a confidence interval
DRAWS = 10_000  # of the bootstrap
FEW = 13  # pairs up to which all 2 ** n signs are counted if ranks are tied
DIGITS = 12  # of the compared values: differences that are equal but for rounding are tied
ENOUGH = 3  # seeds for an interval and a test over them
Interval = tuple[float, float]


@dataclass(frozen=True)
class Paired:
    """Paired differences of a method from a baseline.

    by_seed: for each seed, the differences of its clients, [K].
    scale: largest magnitude of the compared values; None: that of the differences.
    """

    by_seed: tuple[np.ndarray, ...]
    scale: float | None = None

    @property
    def seeds(self) -> np.ndarray:
        """[S], the mean over clients for each seed."""
        return np.array([clients.mean() for clients in self.by_seed])

    @property
    def clients(self) -> np.ndarray:
        """The differences of all clients, for all seeds."""
        return np.concatenate(self.by_seed)

    @property
    def mean(self) -> float:
        return float(self.seeds.mean())

    @property
    def interval(self) -> Interval | None:
        """The t interval over seeds; None if they are too few."""
        return t_interval(self.seeds) if len(self.by_seed) >= ENOUGH else None

    @property
    def p(self) -> float | None:
        """p of the paired t test over seeds; None if they are too few.

        It is below 0.05 exactly if the interval leaves out 0.
        """
        return self._p_over_seeds(t_test)

    @property
    def rank_p(self) -> float | None:
        """p of the signed-rank test over seeds; None if they are too few."""
        return self._p_over_seeds(wilcoxon)

    def _p_over_seeds(self, test: Callable[[np.ndarray, float | None], float]) -> float | None:
        enough = len(self.by_seed) >= ENOUGH
        return test(self.seeds, magnitude(self.clients, self.scale)) if enough else None

    @property
    def effect(self) -> float | None:
        """The mean over the standard deviation of the clients' differences (Cohen's d of pairs).

        None if there are fewer than two clients, or all differ by the same.
        """
        clients = self.clients
        if len(clients) < 2:
            return None
        spread = clients.std(ddof=1)
        rounded = without_rounding(spread, magnitude(clients, self.scale))
        return float(clients.mean() / spread) if rounded else None

    def counts(self, high: bool = True) -> tuple[int, int, int]:
        """Return the numbers of clients that are better, worse and equal.

        high: whether higher values are better.
        """
        clients = without_rounding(self.clients, magnitude(self.clients, self.scale))
        signs = clients * (1 if high else -1)
        return int((signs > 0).sum()), int((signs < 0).sum()), int((signs == 0).sum())


def magnitude(differences: np.ndarray, scale: float | None = None) -> float:
    """Return the magnitude of the compared values, if it is given, or of their differences."""
    return float(abs(differences).max(initial=0.0)) if scale is None else scale


def without_rounding(differences: np.ndarray, scale: float) -> np.ndarray:
    """Return differences in the first DIGITS digits of values up to this magnitude.

    Values that are equal but for rounding then have equal differences, or the difference 0.
    """
    return np.round(differences, DIGITS - math.ceil(math.log10(scale)) if scale else DIGITS)


def ranks_can_differ(seeds: Sequence[int], tests: int) -> bool:
    """Return whether signed-rank tests of all these comparisons can give a corrected p < 0.05.

    The smallest p of n seeds, 2 ** (1 - n), is multiplied by the number of tests (`holm`).

    seeds: of each comparison over seeds.  tests: number of all tests that are corrected together.
    """
    return all(tests * 2.0 ** (1 - n) < 1 - SURE for n in seeds)


def t_test(differences: np.ndarray, scale: float | None = None) -> float:
    """Return p of the two-sided paired t test; 1 if all differences are 0."""
    from scipy import stats

    rounded = without_rounding(differences, magnitude(differences, scale))
    if np.ptp(rounded) == 0:
        return 0.0 if rounded.any() else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def t_interval(differences: np.ndarray) -> Interval:
    """Return the interval mean ± t(n - 1) sd / sqrt(n), sd with n - 1.

    differences: [n], n >= 2, one for each seed.
    """
    from scipy import stats  # here, because importing it takes a second

    n, mean = len(differences), float(differences.mean())
    reach = float(stats.t.ppf((1 + SURE) / 2, n - 1)) * float(differences.std(ddof=1)) / n**0.5
    return mean - reach, mean + reach


def bootstrap(differences: np.ndarray, seed: int) -> Interval:
    """Return percentiles of the means of DRAWS samples with replacement.

    differences: [n], n >= 2, one for each client.
    """
    from scipy import stats

    from hpcfed.core.rng import stream

    result = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=DRAWS,
        confidence_level=SURE,
        method="percentile",
        batch=max(1, 10**6 // len(differences)),
        rng=stream(seed, "bootstrap"),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def wilcoxon(differences: np.ndarray, scale: float | None = None) -> float:
    """Return p of the two-sided signed-rank test.

    differences: [n]; the ranks of zeros are split between both signs, as in Demšar.
    """
    from scipy import stats

    rounded = without_rounding(differences, magnitude(differences, scale))
    distinct = rounded.all() and len(np.unique(abs(rounded))) == len(rounded)
    # inf: all signs
    tied = stats.PermutationMethod(n_resamples=np.inf) if len(rounded) <= FEW else "asymptotic"
    return float(
        stats.wilcoxon(rounded, zero_method="zsplit", method="auto" if distinct else tied).pvalue
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values corrected for several comparisons by Holm's method.

    The i-th smallest of m, from 0, is multiplied by m - i, and is never below the one before it.
    """
    corrected, reached = [0.0] * len(ps), 0.0
    for i, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        reached = max(reached, min(1.0, (len(ps) - i) * ps[place]))
        corrected[place] = reached
    return corrected
