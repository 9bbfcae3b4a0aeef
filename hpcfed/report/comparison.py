"""Methods against a baseline: what their paired runs say together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcfed.report import differences
from hpcfed.report.measures import View
from hpcfed.report.pairs import Method, Pair, counts, pairs

ENOUGH = 3  # seeds for an interval and a test over them


@dataclass(frozen=True)
class Comparison:
    """One method against the baseline: over seeds, or over the clients of the one seed that there
    is.

    pairs: one of each seed.  interval, p: None where there are too few of them.  counts: clients
    that are better, worse and equal, over all pairs.
    """

    method: Method
    pairs: list[Pair]
    mean: float
    base: float
    interval: differences.Interval | None
    p: float | None
    counts: tuple[int, int, int]
    holm: float | None = None

    @property
    def seeds(self) -> int:
        return len(self.pairs)

    @property
    def clients(self) -> int:
        """Over all seeds; 0 for a number that is not of clients."""
        return sum(len(pair.clients) for pair in self.pairs)

    @property
    def difference(self) -> float:
        return self.mean - self.base


def against(one: Method, base: Method, view: View, anyway: bool = False) -> Comparison:
    """A method against the baseline. anyway: also where they are not comparable."""
    found = pairs(one, base, view, anyway)
    mean, other = (
        float(np.mean([getattr(pair, name) for pair in found])) for name in ("mean", "base")
    )
    interval, p = None, None
    if len(found) >= ENOUGH:
        each = np.array([pair.mean - pair.base for pair in found])
        interval, p = differences.t_interval(each), differences.wilcoxon(each)
    elif len(found) == 1 and len(found[0].clients) > 1:
        interval = differences.bootstrap(found[0].clients, found[0].seed)
        p = differences.wilcoxon(found[0].clients)
    return Comparison(one, found, mean, other, interval, p, counts(found, view.measure.high))


def apply_holm(found: list[Comparison]) -> list[Comparison]:
    """With Holm's correction, where there are several tests."""
    tested = [one.p for one in found if one.p is not None]
    if len(tested) < 2:
        return found
    fair = iter(differences.holm(tested))
    return [one if one.p is None else replace(one, holm=next(fair)) for one in found]


def compare_all(
    found: list[Method], base: Method, view: View, anyway: bool = False
) -> list[Comparison]:
    """All others against the baseline."""
    return apply_holm([against(one, base, view, anyway) for one in found if one is not base])
