"""An eager step and its optimiser as one CUDA graph, which the GPU starts by a single launch.

A graph reads and writes fixed memory. Weights are in it already (a skeleton's flat vector, into
which each client's are copied), moments and the learning rate are copied in at a client's start,
each batch before its step. Augmentation and normalisation stay outside: they end in the copy of the
batch.

Dropout: a captured kernel reads the seed and the offset of the default generator from memory. Each
replay fills this memory with the generator's present state, and advances the generator as the
kernels would have. So `rng.scoped` around a client's steps has the same effect on a graph as on
eager steps, whichever client came before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hpcfed.core import rng
from hpcfed.models.flat import Skeleton
from hpcfed.training.optimisers import Gradient, Moments, Optimiser

WARM = 3  # steps before a capture, in which libraries initialise themselves

Replay = Callable[[], Tensor]  # makes a step and returns its loss, which the next step overwrites
Differentiated = Callable[[Sequence[Tensor]], tuple[Tensor, Gradient]]  # inputs -> loss, gradient


class Graph:
    """One captured step of a skeleton's model: (batch) -> its loss.

    differentiated: the eager step before its optimiser: (own_tensors and batch) -> loss and
    gradient.
    own_tensors: tensors of the objective that are constant for all steps of a client; `give`
    replaces their values.  batch: an example of its batches.
    The weights and the optimiser are the same after the capture as before it. Raises whatever torch
    raises if a step cannot be captured, for example because it needs the host, and RuntimeError if
    the first replay has other bits than the eager step.
    """

    def __init__(
        self,
        differentiated: Differentiated,
        optimiser: Optimiser,
        own_tensors: Sequence[Tensor],
        batch: Sequence[Tensor],
    ):
        self.loss_tensors, self.batch = ([v.clone() for v in part] for part in (own_tensors, batch))
        flat = optimiser.skeleton.flat
        if any(v.device != flat.device for v in (*own_tensors, *batch)):
            raise RuntimeError(
                "it holds a tensor on another device, whose value would be captured for good"
            )

        def step() -> Tensor:
            value, gradient = differentiated([*self.loss_tensors, *self.batch])
            optimiser.step(gradient)
            return value

        state = [flat, *optimiser.moments.values()]
        with restore_tensors(state), rng.scoped(0, "capture", device=flat.device):
            self.replay = capture(step, flat.device)
        replayed, eager = (outcome(run, state) for run in (self.replay, step))
        if not all(map(torch.equal, replayed, eager)):
            raise RuntimeError("its replay has other bits than the step itself")
        check_unchanged(self.loss_tensors, own_tensors)

    def give(self, own_tensors: Sequence[Tensor]) -> None:
        """Copy in these values of the objective's own tensors."""
        copy(self.loss_tensors, own_tensors)

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        copy(self.batch, batch)
        return self.replay().clone()


def check_unchanged(tensors: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Raise RuntimeError if a step has changed the tensors that its objective holds.

    A recording changes copies of them, or once too often, so that eager steps would find others.
    """
    for value, old in zip(tensors, before, strict=True):
        same = (value == old) | (value != value) & (old != old)  # nan is as it was
        if not same.all():
            raise RuntimeError("it changes a tensor that it holds, such as running statistics")


def outcome(step: Callable[[], Tensor], state: Sequence[Tensor]) -> list[Tensor]:
    """Return the loss of a step and the state after it; the state stays as it was."""
    with restore_tensors(state), rng.scoped(0, "capture", device=state[0].device):
        return [step().clone(), *(v.clone() for v in state)]


class Fixed(Optimiser):
    """The optimiser of a graph, which serves one client after the other in its own memory."""

    @classmethod
    def of(cls, skeleton: Skeleton, client: Optimiser) -> Fixed:
        """Return the optimiser for the parameters that this client's trains, in the same state."""
        key = "optimiser", client.names, client.clip
        if key not in skeleton.captured:
            skeleton.captured[key] = cls(
                skeleton,
                client.settings,
                0.0,
                frozenset(client.names).__contains__,
                None,
                client.clip,
            )
        optimiser = skeleton.captured[key]
        copy([optimiser.lr, *optimiser.moments.values()], [client.lr, *client.moments.values()])
        return optimiser

    def moments_to_keep(self) -> Moments:
        return {name: v.clone() for name, v in self.moments.items()}


def capture(step: Callable[[], Tensor], device: torch.device) -> Replay:
    """Capture a step as a CUDA graph, and return its replay.

    Before that, the step runs WARM times on a separate stream.

    Raises what torch raises if it cannot be captured. The thread is then on its previous stream,
    and the failed capture does not affect the next one.
    """
    if device.type != "cuda":
        raise RuntimeError("the device is not a GPU")
    # the device to which the thread returns when it leaves a stream
    with torch.cuda.device(device):
        return captured(step, device)


def captured(step: Callable[[], Tensor], device: torch.device) -> Replay:
    """Capture a step on the thread's current GPU; see `capture`."""
    stream, pool, _ = place(device)
    before = torch.cuda.current_stream(device)
    stream.wait_stream(before)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                step()
        try:
            value = record(graph, step, stream, pool)
        except BaseException:
            torch.cuda.set_stream(before)  # torch does this only if a capture succeeds
            drop(graph, device)
            raise
    finally:
        torch.cuda.set_stream(before)
        before.wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return value

    return replay


def record(
    graph: torch.cuda.CUDAGraph, step: Callable[[], Tensor], stream: torch.cuda.Stream, pool: Any
) -> Any:
    """Record a step into the graph, and return what the step returned."""
    # "thread_local": the thread of the LRU store may allocate memory outside the graph meanwhile
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        return step()


LOST: list[torch.cuda.CUDAGraph] = []  # captures that failed; see `drop`


def drop(graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
    """Make later captures independent of one that failed.

    torch's `capture_end` raises before it cleans up. The pool continues to record, so it and its
    stream are abandoned. The default generator still counts as captured, so the next dropout would
    raise until another capture has ended well; a small one is made for that. The allocators may ask
    the failed graph later for the owner of memory, so it is kept.
    """
    _, pool, _ = place(device)
    place.cache_clear()
    LOST.append(graph)
    with suppress(RuntimeError):  # it had stopped recording already
        torch._C._cuda_endAllocateToPool(device.index, pool)
    with suppress(RuntimeError):  # the error of the first capture is reported, not this one
        place(device)  # captures a small graph


@cache
def place(device: torch.device) -> tuple[torch.cuda.Stream, Any, torch.cuda.CUDAGraph]:
    """Return the stream on which a rank captures graphs, the memory pool of their inner values, and
    a graph that keeps the pool.

    All graphs share one pool. They run one after the other, and nothing inside a graph is read
    after another has run: the loss is copied out, and all other lasting values lie outside. So the
    pool is as large as the largest graph, not as all together.

    torch counts the graphs of a pool. A capture into a pool that has memory but no graph any more,
    as after the first of two runs in one process, fails in an internal assertion: the small graph
    is there for as long as the process.
    """
    stream, pool, keeper = (
        torch.cuda.Stream(device),
        torch.cuda.graph_pool_handle(),
        torch.cuda.CUDAGraph(),
    )
    before = torch.cuda.current_stream(device)
    try:
        record(keeper, lambda: torch.zeros(1, device=device), stream, pool)
    finally:
        torch.cuda.set_stream(before)
    return stream, pool, keeper


def copy(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy the values into the memory of the tensors."""
    if to:
        torch._foreach_copy_(list(to), list(values))


@contextmanager
def restore_tensors(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore the values of these tensors after the block."""
    before = [v.clone() for v in tensors]
    try:
        yield
    finally:
        copy(tensors, before)
