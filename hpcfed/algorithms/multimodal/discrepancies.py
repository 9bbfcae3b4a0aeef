"""How far encoders have moved from their common start, and clusters of clients by that.

Ouyang et al. (Harmony), MobiSys 2023, doi:10.1145/3581791.3596844, eq. 9.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from hpcfed import Params
from hpcfed.algorithms.clusters import kmeans

ITERATIONS = 20  # largest number of iterations of K-means


def discrepancy(encoder: Params, initial: Params) -> float:
    """Return 1 - cos of the flattened parameters, in float64; 0 for an unchanged encoder."""
    a, b = (torch.cat([p[n].double().flatten() for n in initial]) for p in (encoder, initial))
    if torch.equal(a, b):
        return 0.0
    return max(0.0, 1 - float(F.cosine_similarity(a, b, dim=0)))


def cluster(d: Tensor, number: int) -> list[int]:
    """Return the cluster of each row of discrepancies [N, M], by K-means.

    Each modality is divided by its maximum, where that is not 0. The first centre is the point
    farthest from the mean; each further centre is the point farthest from the centres chosen so
    far. There are at most as many centres as different points.
    """
    points = d / d.amax(0).clamp(min=torch.finfo(d.dtype).tiny)
    if number >= len(points):
        return list(range(len(points)))
    taken = [int((points - points.mean(0)).norm(dim=1).argmax())]
    while len(taken) < number:
        far = torch.cdist(points, points[taken]).amin(1)
        if not far.max():
            break
        taken.append(int(far.argmax()))
    centres = Params(d=points[taken])
    return kmeans.lloyd(Params(d=points), centres, lambda name: True, 0.0, ITERATIONS)[1]
