"""FedProx: FedAvg with a proximal term in the objective; the partial work of stragglers counts.

Li et al., MLSys 2020, arXiv:1812.06127, eq. 2 and algorithm 2.

Objective: F_k(w) + mu / 2 ||w - w_t||^2
Server: w <- sum_k p_k w_k
Round:
1. The server draws a cohort and sends it its model, w_t.
2. Each client minimises its loss plus the proximal term.
3. A straggler sends what it has reached.
4. The server takes the weighted mean of the models.

Deviations: clients are drawn without replacement. The paper draws client k with probability n_k / n
and takes the plain mean (sampling = "size", weighting = "uniform"); most code draws uniformly and
weights by n_k (the default here).
"""

from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import NonNegativeFloat, model_validator
from torch import Tensor

from hpcfed import Client, Federation, Guide, Model, Params, RoundBased
from hpcfed.training.losses import proximal


class FedProx(RoundBased):
    """FedAvg with a proximal term; mu = 0 without stragglers is FedAvg, bit for bit."""

    guide = Guide(
        data="different labels and sizes; unfinished work",
        sent="all weights",
        won="stragglers and skewed data: steadier than FedAvg",
    )

    keeps_stragglers: ClassVar[bool] = True

    mu: NonNegativeFloat = 0.1
    """Weight of the proximal term."""
    sampling: Literal["uniform", "size"] = "uniform"
    """Clients of a cohort are drawn uniformly, or in proportion to their numbers of examples
    (size), which selection.by = "size" does for any method.
    """

    @model_validator(mode="after")
    def counts_sizes_once(self) -> Self:
        if self.sampling == "size" and self.weighting == "samples":
            raise ValueError(
                "sampling = 'size' with weighting = 'samples' counts sizes twice; use 'uniform' "
                "in one"
            )
        return self

    def cohort(self, fed: Federation, t: int) -> list[int]:
        return fed.sample(
            t, p=np.array(fed.sizes) / sum(fed.sizes) if self.sampling == "size" else None
        )

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        return super().loss(client, state, model, x, y) + proximal(model, anchor=state, mu=self.mu)
