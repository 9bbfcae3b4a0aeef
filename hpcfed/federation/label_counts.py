"""Examples of each class of clients that train on other examples than their own."""

from collections.abc import Mapping
from typing import Any

import numpy as np


class ChangedCounts:
    """Label counts of clients, of which some have other labels for a while.

    changed: the present counts of these, by client.
    """

    def __init__(self, counts: Any, changed: Mapping[int, np.ndarray]) -> None:
        self.counts, self.changed = counts, changed

    def __getitem__(self, k: int) -> np.ndarray:
        return self.changed[k] if k in self.changed else self.counts[k]
