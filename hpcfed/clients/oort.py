"""Oort: a cohort of clients that have high losses on many examples and are not slow, and new ones.

Lai et al. (Oort: Efficient Federated Learning via Guided Participant Selection), OSDI 2021,
arXiv:2010.06081, algorithm 1. After its upload a client reports its utility U_k = n_k sqrt(mean
over its examples of the squared loss), 4 bytes; the server also learns how long it took. In round t
= 1, 2, ... a client that has reported, last in round t_k, has the score

    (min(U_k, clip) - U_min) / (clip - U_min) + sqrt(0.1 log t / t_k),

times (T / seconds_k)^slow if it took longer than T. The share 1 - e of the cohort is drawn among
such clients, in proportion to their scores, if these reach the cut-off; the rest are clients that
have never reported, in proportion to their examples. T is a quantile of the clients' seconds.

Deviations: a client's losses are the mean ones of its batches during training, each for all
examples of its batch. The authors' scores are those of the repository SymbioticLab/Oort, without
its factor of U_min and its list of clients that have taken part too often; where it has too few new
clients, the cohort is smaller, and here it has more of the others. Clients without examples are
never new. A client that trains but does not report keeps its utility.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hpcfed.config.selection import Selection

FLAT = 0.1  # relative change of the utilities below which the pace relaxes
SHARP = 5.0  # and from which it tightens
STEP = 0.05  # of the quantile
LEAST = 1e-9  # score, so that every client has a probability


class Oort:
    """What the server knows of the clients, and the cohorts that follow from it.

    sizes: training examples of all clients.
    m: size of a cohort.
    """

    def __init__(self, selection: Selection, sizes: Sequence[int] | np.ndarray, m: int) -> None:
        self.selection, self.sizes, self.m = selection, np.asarray(sizes, dtype=float), m
        K = len(self.sizes)
        self.utilities = np.full(K, np.nan)  # as they were reported last; nan: never
        self.rounds = np.zeros(K, dtype=np.int64)  # of these reports, from 1
        self.seconds = np.full(K, np.nan)  # that the clients took in these rounds
        self.quantile = selection.preferred  # of the seconds: the preferred duration
        # mean utility of the clients of a round that were not new, of the last rounds
        self.history = np.zeros(0)

    def draw(self, t: int, g: np.random.Generator) -> list[int]:
        """Return the cohort of round t, from 0, in id order."""
        reported = np.flatnonzero(~np.isnan(self.utilities))
        new = np.flatnonzero(np.isnan(self.utilities) & (self.sizes > 0))
        how = self.selection
        share = max(how.explore * how.explore_decay**t, min(how.explore, how.explore_least))
        n_new = min(len(new), max(int(share * self.m), self.m - len(reported)))
        again = self.exploit(t, reported, min(self.m - n_new, len(reported)), g)
        p = self.sizes[new]
        chosen = g.choice(new, n_new, replace=False, p=p / p.sum()) if n_new else new[:0]
        return sorted([*again, *chosen.tolist()])

    def exploit(self, t: int, reported: np.ndarray, n: int, g: np.random.Generator) -> list[int]:
        """Draw n clients among those with the highest scores."""
        if not n:
            return []
        scores = self.scores(t, reported)
        lowest = np.sort(scores)[-n] * self.selection.cutoff
        candidates = reported[scores >= lowest]
        p = scores[scores >= lowest]
        return g.choice(candidates, n, replace=False, p=p / p.sum()).tolist()

    def scores(self, t: int, reported: np.ndarray) -> np.ndarray:
        """Return the scores of clients that have reported, > 0, in round t, from 0."""
        values = self.utilities[reported]
        values = np.minimum(values, np.quantile(values, self.selection.clip))
        least, span = values.min(), np.ptp(values)
        scores = (values - least) / span if span else np.ones(len(values))
        # an evaluation after the run's only round asks for its cohort again
        scores = scores + np.sqrt(0.1 * math.log(max(t, 1) + 1) / self.rounds[reported])
        took = self.seconds[reported]
        preferred = np.quantile(took, self.quantile)
        slow = took > preferred
        factors = np.divide(preferred, took, out=np.ones(len(took)), where=slow)
        return np.maximum(scores * factors**self.selection.slow, LEAST)

    def learn(self, t: int, utilities: Mapping[int, float], seconds: Mapping[int, float]) -> None:
        """Take over the reports of round t, from 0, and adapt the preferred duration."""
        again = [u for k, u in utilities.items() if not math.isnan(self.utilities[k])]
        for k, utility in utilities.items():
            self.utilities[k], self.rounds[k], self.seconds[k] = utility, t + 1, seconds[k]
        pace = self.selection.pace
        self.history = np.append(self.history, np.mean(again) if again else 0.0)
        self.history = self.history[-2 * pace :]
        if (t + 1) % pace == 0 and len(self.history) == 2 * pace:
            before, now = self.history[:pace].sum(), self.history[pace:].sum()
            if abs(now - before) <= FLAT * before:
                self.quantile = min(1.0, self.quantile + STEP)
            elif abs(now - before) >= SHARP * before:
                self.quantile = max(STEP, self.quantile - STEP)

    def to_tree(self) -> dict[str, Any]:
        """Return the values that a checkpoint saves."""
        return {
            "utilities": self.utilities.copy(),
            "rounds": self.rounds.copy(),
            "seconds": self.seconds.copy(),
            "history": self.history.copy(),
            "quantile": self.quantile,
        }

    def from_tree(self, tree: Mapping[str, Any]) -> None:
        """Restore the values that `to_tree` returned."""
        self.utilities, self.seconds = np.array(tree["utilities"]), np.array(tree["seconds"])
        self.rounds, self.history = np.array(tree["rounds"]), np.array(tree["history"])
        self.quantile = float(tree["quantile"])
