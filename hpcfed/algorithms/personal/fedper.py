"""FedPer: clients share the lower layers; each keeps the upper ones, and trains all together.

Arivazhagan et al., 2019, arXiv:1912.00818, algorithms 1 and 2.

Objective: F_k(b, h_k)
Server: b <- sum_k p_k b_k
Round:
1. The server sends the body b to the cohort.
2. Each client trains it together with its own head h_k.
3. It sends the body b_k; its head stays.
4. The server takes the weighted mean of the bodies.

Deviations: the personal layers are the head, one linear layer; the paper also keeps the last blocks
of the body.
"""

from typing import ClassVar

from hpcfed import Guide, RoundBased
from hpcfed.models.model import in_head


class FedPer(RoundBased):
    """Averaging of bodies; what it keeps is what LG-FedAvg sends."""

    guide = Guide(
        data="few classes per client, personal tastes",
        sent="the body",
        won="few classes per client, and users' ratings of images: above FedAvg",
    )

    reads_head: ClassVar[bool] = True

    def shared(self, name: str) -> bool:
        return not in_head(name)
