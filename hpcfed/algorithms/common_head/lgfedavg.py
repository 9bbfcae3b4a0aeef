"""LG-FedAvg: clients share the last layer of their models and keep the other layers local.

Liang et al., 2020, arXiv:2001.01523, algorithm 1.

Objective: F_k(b_k, c_k)
Server: c <- sum_k p_k c_k
Round:
1. The server sends the last layer c to the cohort.
2. Each client trains it together with its own body b_k.
3. It sends the last layer c_k; its body stays.
4. The server takes the weighted mean of the last layers.

Deviations: the shared part is the head, one linear layer, so that bodies may differ. The paper's
auxiliary losses on representations are left out, as in its experiments on federated data.
"""

from typing import ClassVar

from hpcfed import Guide, RoundBased
from hpcfed.models.model import in_head


class LGFedAvg(RoundBased):
    """Averaging of heads; it equals FedClassAvg without its two losses."""

    guide = Guide(
        data="few classes per client, new clients",
        sent="the upper layers",
        won="about FedAvg's accuracy with half of the bytes",
    )

    accepts: ClassVar[str] = "a common head"

    def shared(self, name: str) -> bool:
        return in_head(name)
