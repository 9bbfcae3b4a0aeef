"""A GPU that is not there: a capture on the CPU, to try what runs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hpcfed.training import graphs

HELD: list[Callable[[], Tensor]] = []  # the steps that were captured so


@contextmanager
def capture_on_cpu() -> Iterator[None]:
    """Inside, calling a step again stands for the replay of its CUDA graph.

    What is decided, kept, copied in and copied out is that of a GPU; times are not.
    """
    real = graphs.capture

    def again(step: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
        if device.type != "cpu":
            return real(step, device)
        for _ in range(graphs.WARM + 1):  # the last one is what a GPU records
            loss = step().clone()
        HELD.append(step)
        return lambda: loss.copy_(step())  # a graph's loss lies where it lies

    graphs.capture = again
    try:
        yield
    finally:
        graphs.capture = real
