"""Selection of a round's cohort: uniform, by size, power of choice, E3CS, Oort, Poisson, or cyclic.

Power of choice: Cho et al., arXiv:2010.01243, the variant rpow-d. E3CS: Huang et al.,
arXiv:2011.08756.
Deviations of power of choice: the losses are those of the last local training, which clients
reported after their uploads, in a message of 4 bytes. They are not requested before each round.
Candidates are drawn in proportion to their examples, and the paper's server takes the plain mean of
the cohort's models: that is the method's weighting = "uniform"; with "samples" size counts twice.
Deviations of E3CS: the cap on probabilities is solved so that they sum to the cohort's size, from
memory of the paper. A cohort is drawn by systematic sampling over a random order, which gives each
client exactly its probability. The authors' quota "inc", 0 in the first quarter of the rounds and m
/ K afterwards, is quota = 1 with quota_after = 0.25. A client that could not be reached counts as
one that did not report.
Oort: see `oort.py`.
Poisson: each client takes part with the same probability, independently of all others, which is the
sampling that accounts of privacy assume. A cohort may be empty.
Cyclic: client k is in group k mod b, and only the clients of group t mod b take part in round t,
each with probability b times `participation`, at most 1. So rounds of one client are b apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.clients.oort import Oort
from hpcfed.core import rng

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcfed.config.selection import Selection
    from hpcfed.core.payload import Tally

REPORT_BYTES = 4  # what a client reports of its training losses, as float32


class Choice:
    """Cohort selection of a run, and what the server has learnt for it; the same on all ranks.

    sizes: training examples of all clients.
    cohort_size: number of clients in a cohort (`Job.cohort_size`).
    rounds: number of rounds of the run.
    participation: probability of each client (Poisson).
    """

    def __init__(
        self,
        selection: Selection,
        seed: int,
        sizes: Sequence[int] | np.ndarray,
        cohort_size: int,
        rounds: int = 1,
        participation: float = 1.0,
    ) -> None:
        self.selection, self.seed, self.rounds = selection, seed, rounds
        self.participation = participation
        self.sizes, self.m = sizes, cohort_size
        K = len(sizes)
        # last reported loss of each client; clients that were never chosen come first
        self.losses = np.full(K if selection.by == "power-of-choice" else 0, np.inf)
        self.log_weights = np.zeros(K if selection.by == "e3cs" else 0)
        self.oort = Oort(selection, sizes, cohort_size) if selection.by == "oort" else None

    @property
    def learns(self) -> bool:
        """Whether a cohort depends on the rounds before it."""
        return self.selection.by in ("power-of-choice", "e3cs", "oort")

    @property
    def needs_losses(self) -> bool:
        """Whether the clients of a cohort report on their training losses after their uploads."""
        return self.selection.reads_losses

    @property
    def nbytes(self) -> int:
        """Bytes of this report, which a client sends in addition to its method's upload."""
        return REPORT_BYTES if self.needs_losses else 0

    def report(self, tally: Tally, n: int) -> float:
        """Return what a client with n examples reports: its mean loss, or its utility for Oort.

        It is nan if the client has not trained on its own examples.
        """
        return n * tally.root_mean_square if self.oort else tally.mean_loss

    def sample(self, t: int, p: np.ndarray | None = None) -> list[int]:
        """Draw the cohort of round t, in id order.

        p: [K], probability of each client; methods may give it in place of equal probabilities.
        """
        K, by = len(self.sizes), self.selection.by
        g = rng.stream(self.seed, "cohort", t)
        if by == "e3cs":
            return draw_systematic(self.probabilities(t)[0], g)
        if self.oort:
            return self.oort.draw(t, g)
        if by in ("poisson", "cyclic"):  # in two steps, which take as long as the cohort is large
            b = count_groups(self.selection, self.participation) if by == "cyclic" else 1
            members = range(t % b, K, b)
            size = g.binomial(len(members), min(1.0, b * self.participation))
            chosen = g.choice(len(members), size, replace=False, shuffle=False)
            return sorted(members[i] for i in chosen.tolist())
        if by in ("size", "power-of-choice"):
            p = np.array(self.sizes) / sum(self.sizes)
        several = (self.selection.candidates or 2 * self.m) if by == "power-of-choice" else self.m
        several = min(several, K if p is None else int(np.count_nonzero(p)))
        chosen = g.choice(K, several, replace=False, p=p)
        if by == "power-of-choice":
            chosen = np.sort(chosen)
            chosen = chosen[np.argsort(-self.losses[chosen], kind="stable")[: self.m]]
        return sorted(chosen.tolist())

    def quota(self, t: int) -> float:
        """Return E3CS's minimum probability in round t, relative to that of a uniform choice."""
        return self.selection.quota if t >= self.selection.quota_after * self.rounds else 0.0

    def probabilities(self, t: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return E3CS's probabilities of the clients in round t, and which are capped at 1, [K]."""
        K = len(self.sizes)
        sigma = self.quota(t) * self.m / K
        return allocate(self.log_weights, self.m, sigma)

    def learn(
        self,
        t: int,
        reports: Collection[int],
        losses: dict[int, float],
        seconds: Mapping[int, float] | None = None,
    ) -> None:
        """Update the selection with the reports of round t.

        reports: clients that reported.
        losses: what they sent of their losses (`report`); {} if the selection needs nothing.
        seconds: virtual seconds of these clients from download to upload.
        """
        if self.oort:
            self.oort.learn(t, losses, seconds or {})
            return
        for k, loss in losses.items():
            self.losses[k] = loss
        if self.selection.by == "e3cs":
            K, m = len(self.sizes), self.m
            p, capped = self.probabilities(t)
            updated = [k for k in self.sample(t) if k in reports and not capped[k]]
            rest = m - self.quota(t) * m
            self.log_weights[updated] += rest * self.selection.eta / (K * p[updated])

    def to_tree(self) -> dict[str, Any]:
        """Return the values that a checkpoint saves."""
        tree = {"losses": self.losses.copy(), "log_weights": self.log_weights.copy()}
        return tree | ({"oort": self.oort.to_tree()} if self.oort else {})

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Restore the values that `to_tree` returned."""
        self.losses, self.log_weights = np.array(tree["losses"]), np.array(tree["log_weights"])
        if self.oort:
            self.oort.from_tree(tree["oort"])


def count_groups(selection: Selection, participation: float) -> int:
    """Return the number of groups of a cyclic selection."""
    return selection.groups or max(1, math.floor(1 / participation + 1e-9))


def allocate(log_weights: np.ndarray, m: int, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities that sum to m, each in [sigma, 1], and which are capped at 1.

    Weights are given by their logarithms, so that no ratio of those that are not capped underflows.

    p_i = sigma + (m - K sigma) w'_i / sum w' with w'_i = min(w_i, (1 - sigma) a). Here a = sum w' /
    (m - K sigma) if some p_i would exceed 1, so that the largest p_i is 1. Huang et al., sec. IV.
    """
    rest = m - len(log_weights) * sigma
    capped = np.zeros(len(log_weights), bool)
    while True:
        free = rest - (1 - sigma) * capped.sum()
        largest = log_weights.max(where=~capped, initial=-np.inf)
        share = np.exp(log_weights - largest, where=~capped, out=np.zeros(len(log_weights)))
        p = np.where(capped, 1.0, sigma + free * share / max(share.sum(), 1.0))
        over = ~capped & (p > 1)
        if not over.any():
            return p, capped
        capped |= over


def draw_systematic(p: np.ndarray, g: np.random.Generator) -> list[int]:
    """Draw sum(p) different clients, client i with probability p_i, in id order."""
    order = g.permutation(len(p))
    m = round(float(p.sum()))
    ends = np.cumsum(p[order])
    marks = g.random() + np.arange(m)
    at = np.minimum(np.searchsorted(ends * (m / ends[-1]), marks, side="right"), len(p) - 1)
    return sorted(order[at].tolist())
