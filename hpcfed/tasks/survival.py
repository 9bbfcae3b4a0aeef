"""Survival: the time to an event, or the time for which an example was observed without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hpcfed.core.errors import DataError, first_bad
from hpcfed.tasks.task import Answers, Metric, Task

if TYPE_CHECKING:
    from torch import Tensor

RISK = ("log risk",)  # output of a model


def c_index(answers: Answers) -> float:
    """Return the share of comparable pairs whose shorter time has the higher risk.

    Equal risks count half. A pair i, j is comparable if the event of i was observed, and time_i <
    time_j, or the times are equal and j is censored. The result is nan without comparable pairs.
    Memory: [n]; time: events times n.
    Harrell, Lee and Mark, Statistics in Medicine 15(4), 1996.
    """
    time, event, risk = answers["time"], answers["event"].astype(bool), answers["risk"]
    pairs = twice = 0  # comparable pairs; 2 for each correct pair and 1 for a tie
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        others = risk[later]
        pairs += len(others)
        twice += 2 * int((others < risk[i]).sum()) + int((others == risk[i]).sum())
    return twice / (2 * pairs) if pairs else float("nan")


def cox(risk: Tensor, y: Tensor) -> Tensor:
    """Return the negative log partial likelihood of survival times, over n; a scalar.

    -1/n sum over observed events i of (risk_i - log sum_{j: time_j >= time_i} exp(risk_j)).
    risk: [n], logarithms of risks.  y: [n, 2], time, and 1 if the event was observed, else 0.
    Cox, J. R. Stat. Soc. B 34(2), 1972; equal times as Breslow, Biometrics 30(1), 1974.
    Divided by n, not by the number of events, as in FLamby: a batch without events contributes 0.
    """
    import torch

    order = y[:, 0].argsort(descending=True, stable=True)
    time, event, risk = y[order, 0], y[order, 1], risk[order]
    last = torch.searchsorted(-time, -time, right=True) - 1  # the last row with the same time
    return (event * (risk.logcumsumexp(0)[last] - risk)).mean()


@dataclass(frozen=True)
class Survival(Task):
    """Times and events, [n, 2], float32; a model has one output, the logarithm of the risk.

    Answers: time; event, whether it was observed (else the time is censored); risk, the model's
    output, float32, higher for shorter times.
    """

    name: ClassVar[str] = "survival"
    labels: ClassVar[str] = "survival times"
    n_outputs: ClassVar[int] = 1
    compares_examples: ClassVar[bool] = True
    columns: ClassVar[Mapping[str, str]] = {"label": "time", "event": "event seen (1) or not (0)"}
    metrics: ClassVar[Mapping[str, Metric]] = {
        "c_index": Metric(
            "C-index",
            "Harrell's: share of comparable pairs of survival times that are ranked right",
            c_index,
        )
    }
    usual: ClassVar[tuple[str, ...]] = ("c_index",)

    def check(self, y: np.ndarray, n: int, where: str) -> np.ndarray:
        """Return [n, 2], float32: time, >= 0, and whether the event was seen, 0 or 1.

        Raises DataError.
        """
        if y.shape != (n, 2) or y.dtype.kind not in "iuf":
            raise DataError(
                f"{where}: {y.dtype} {list(y.shape)} holds no survival times of {n} examples; "
                f"store floats [n, 2]: time, and 1 if the event was observed, else 0"
            )
        first_bad(y[:, 0], ~np.isfinite(y[:, 0]) | (y[:, 0] < 0), where, "a time is 0 or more")
        first_bad(y[:, 1], (y[:, 1] != 0) & (y[:, 1] != 1), where, "an event is 1 (seen) or 0")
        return y.astype(np.float32)

    def output_names(
        self, names: Sequence[str] | None, parts: Sequence[np.ndarray], where: Sequence[str]
    ) -> tuple[str, ...]:
        return tuple(names) if names is not None and len(names) == 1 else RISK

    def strata(self, y: np.ndarray) -> np.ndarray:
        """Return whether the event was seen."""
        return y[:, 1].astype(np.int64)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return Cox's loss. output: [n, 1].  y: [n, 2], time and event."""
        return cox(output[:, 0], y)

    def report(
        self, soft: np.ndarray, names: Sequence[str] | Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Return the risk relative to that of an output of 0."""
        return {"risk": np.exp(soft[:, 0])}

    def answers(self, output: Tensor, y: Tensor) -> Answers:
        time, event = y.cpu().numpy().T
        return {
            "time": time,
            "event": event.astype(np.uint8),
            "risk": output[:, 0].cpu().numpy(),
        }

    def scored(self, answers: Answers) -> tuple[np.ndarray, np.ndarray]:
        """Return times and events, [n, 2], and the logarithms of risks, [n]."""
        return np.stack([answers["time"], answers["event"]], 1), answers["risk"]
