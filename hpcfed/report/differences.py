"""Paired differences: how large, how sure.

The choice of tests follows Demšar (JMLR 7, 2006, sections 3.1 and 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SURE = 0.95  # of a confidence interval
DRAWS = 10_000  # of the bootstrap
FEW = 13  # up to so many pairs all 2 ** n signs are counted where ranks are tied
PLACES = 12  # decimals: differences that are equal but for rounding are tied
Interval = tuple[float, float]


def t_interval(differences: np.ndarray) -> Interval:
    """Mean ± t(n - 1) sd / sqrt(n), sd with n - 1. differences: [n], n >= 2, one of each seed."""
    from scipy import stats  # here: it takes a second, which no other report should wait for

    n, mean = len(differences), float(differences.mean())
    reach = float(stats.t.ppf((1 + SURE) / 2, n - 1)) * float(differences.std(ddof=1)) / n**0.5
    return mean - reach, mean + reach


def bootstrap(differences: np.ndarray, seed: int) -> Interval:
    """Percentiles of the means of DRAWS samples with replacement.

    differences: [n], n >= 2, one of each client.
    """
    from scipy import stats

    from hpcfed.core.rng import stream

    found = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=DRAWS,
        confidence_level=SURE,
        method="percentile",
        batch=max(1, 10**6 // len(differences)),
        rng=stream(seed, "bootstrap"),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def wilcoxon(differences: np.ndarray) -> float:
    """p of the two-sided signed-rank test.

    [n]; the ranks of zeros are split between both signs, as Demšar has it.
    """
    from scipy import stats

    rounded = differences.round(PLACES)
    distinct = rounded.all() and len(np.unique(abs(rounded))) == len(rounded)
    # inf: all signs
    few = stats.PermutationMethod(n_resamples=np.inf) if len(rounded) <= FEW else "asymptotic"
    return float(
        stats.wilcoxon(rounded, zero_method="zsplit", method="auto" if distinct else few).pvalue
    )


def least(n: int) -> float:
    """The smallest p that the signed-rank test can give for n pairs: all of one sign."""
    return 2.0 / 2**n


def holm(ps: Sequence[float]) -> list[float]:
    """p corrected for several comparisons: the i-th smallest of m, from 0, times m - i, never below
    one before it.
    """
    corrected, reached = [0.0] * len(ps), 0.0
    for i, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        reached = max(reached, min(1.0, (len(ps) - i) * ps[place]))
        corrected[place] = reached
    return corrected
