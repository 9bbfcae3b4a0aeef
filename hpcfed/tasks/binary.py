"""Binary classification: two classes, of which the second is positive, and often rare.

It differs from classification with two classes in what is measured if the job names no metric:
where few examples are positive, accuracy alone says little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpcfed.tasks.classification import Classification


@dataclass(frozen=True)
class Binary(Classification):
    """A negative and a positive class."""

    name: ClassVar[str] = "binary"
    labels: ClassVar[str] = "two classes"
    n_outputs: ClassVar[int] = 2
    usual: ClassVar[tuple[str, ...]] = ("accuracy", "f1", "kappa", "pr_auc", "roc_auc")

    def report(
        self, soft: np.ndarray, names: Sequence[str] | Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Return the class, and the probability of the positive one."""
        classes = super().report(soft, names)["class"]
        return {"class": classes, f"probability_{names[1]}": soft[:, 1]}

    def infers(self, y: object) -> bool:
        return False
