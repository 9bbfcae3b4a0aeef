"""Paired differences: intervals and tests.

The choice of tests follows Demšar (JMLR 7, 2006, sections 3.1 and 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SURE = 0.95  # of a confidence interval
DRAWS = 10_000  # of the bootstrap
FEW = 13  # pairs up to which all 2 ** n signs are counted if ranks are tied
PLACES = 12  # decimals: differences that are equal but for rounding are tied
Interval = tuple[float, float]


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


def wilcoxon(differences: np.ndarray) -> float:
    """Return p of the two-sided signed-rank test.

    differences: [n]; the ranks of zeros are split between both signs, as in Demšar.
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
    """Return the smallest possible p of the signed-rank test for n pairs: all of one sign."""
    return 2.0 / 2**n


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values corrected for several comparisons by Holm's method.

    The i-th smallest of m, from 0, is multiplied by m - i, and is never below the one before it.
    """
    corrected, reached = [0.0] * len(ps), 0.0
    for i, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        reached = max(reached, min(1.0, (len(ps) - i) * ps[place]))
        corrected[place] = reached
    return corrected
