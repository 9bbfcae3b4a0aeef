"""Next token: the class of a text is the token that follows it.

It differs from classification in that rare classes are nothing odd: most tokens are rare.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpcfed.tasks.classification import Classification


@dataclass(frozen=True)
class NextToken(Classification):
    """The token that follows, one of a vocabulary."""

    name: ClassVar[str] = "next"
    labels: ClassVar[str] = "next tokens"

    def infers(self, y: object) -> bool:
        return False

    def rare(self, number: np.ndarray) -> list[int]:
        return []
