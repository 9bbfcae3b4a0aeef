"""Projection onto the probability simplex."""

import torch
from torch import Tensor


def nearest_on_simplex(rows: Tensor) -> Tensor:
    """Return for each row the nearest point that is >= 0 and sums to 1; [n, m].

    Duchi et al., ICML 2008, figure 1.
    """
    falling = rows.sort(dim=1, descending=True).values
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    excess = (falling.cumsum(1) - 1) / count
    last = (falling > excess).sum(1, keepdim=True)
    return (rows - excess.gather(1, last - 1)).clamp(min=0)
