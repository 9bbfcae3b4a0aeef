"""Finish times of ranks that share cores or a GPU, and of the slowest rank.

Each rank gets an equal share, and no more than one core or GPU. Seconds of ranks may vary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

POINTS, REACH = 100, 6  # points of an integral, and its range in standard deviations


def finish(loads: Sequence[float], units: float) -> list[float]:
    """Return when each of these loads is done, in seconds.

    loads: seconds of each rank alone on one unit (its threads' cores, or a GPU).
    units: the number that they share, > 0.
    Ranks that are done wait without computing, so the others get more: with n left each has min(1,
    units / n).
    """
    done, now, before = [0.0] * len(loads), 0.0, 0.0
    order = sorted(range(len(loads)), key=lambda r: loads[r])
    for left, rank in zip(range(len(loads), 0, -1), order, strict=True):
        now += (loads[rank] - before) / min(1.0, units / left)
        done[rank], before = now, loads[rank]
    return done


def finish_by_group(loads: np.ndarray, of: np.ndarray, units: float) -> np.ndarray:
    """Return `finish` for the ranks of each node or GPU, [R]. of: [R], the one of each rank."""
    if np.bincount(of).max() <= units:
        return loads
    done = np.empty_like(loads)
    for one in np.unique(of):
        mine = np.flatnonzero(of == one)
        done[mine] = finish(loads[mine].tolist(), units)
    return done


def slowest(done: np.ndarray, deviation: np.ndarray) -> float:
    """Return the expected time when the last rank is done.

    done, deviation: [R], mean and standard deviation of each rank's seconds, normal and
    independent.
    The more ranks there are, the later it is: the mean of the maximum is the upper end of its range
    less the integral of the probability that all ranks are done.
    """
    if not deviation.any():
        return float(done.max())
    first, last = ((done + sign * REACH * deviation).max() for sign in (-1, 1))
    when = np.linspace(first, last, POINTS)
    near = (when[:, None] - done) / np.maximum(deviation, 1e-12 * last)
    chance = torch.special.ndtr(torch.from_numpy(near)).prod(1).numpy()
    return float(last - np.sum((chance[1:] + chance[:-1]) / 2 * np.diff(when)))
