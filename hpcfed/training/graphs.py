"""A recorded step and its optimiser as one CUDA graph: the GPU gets one launch instead of one for
each kernel.

A graph reads and writes fixed memory. Weights are in it already (a skeleton's flat vector, into
which each client's are copied), moments and the learning rate are copied in at a client's start,
each batch before its step. Augmentation and normalisation stay outside: they end in the copy of the
batch.

Dropout: a captured kernel reads the seed and the offset of the default generator from memory that
each replay fills with what the generator has then, and a replay advances it as the kernels would
have. So `rng.scoped` around a client's steps holds for a graph as it does for eager steps,
whichever client came before.
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
from hpcfed.training.optimisers import Moments, Optimiser
from hpcfed.training.recorded_step import RecordedStep

WARM = 3  # steps before a capture, in which libraries make what they make at a first call

Replay = Callable[[], Tensor]  # makes a step; returns its loss, which the next one overwrites


class Graph:
    """One captured step of a skeleton's model: (batch) -> its loss.

    given: tensors of the objective that stay as they are for all steps of a client; `give` copies
    others in.  batch: an example of what it will get. The weights and the optimiser are after the
    capture as they were before it. Raises whatever torch raises where a step cannot be captured: it
    needs the host, say.
    """

    def __init__(
        self,
        tape: RecordedStep,
        optimiser: Optimiser,
        given: Sequence[Tensor],
        batch: Sequence[Tensor],
    ):
        self.given, self.batch = ([v.clone() for v in part] for part in (given, batch))
        flat = optimiser.skeleton.flat
        if any(v.device != flat.device for v in (*given, *batch)):
            raise RuntimeError(
                "it holds a tensor on another device, whose value would be captured for good"
            )

        def step() -> Tensor:
            value, gradient = tape([*self.given, *self.batch])
            optimiser.step(gradient)
            return value

        with (
            restore_tensors([flat, *optimiser.moments.values()]),
            rng.scoped(0, "capture", device=flat.device),
        ):
            self.replay = capture(step, flat.device)

    def give(self, given: Sequence[Tensor]) -> None:
        """Make these the objective's own tensors."""
        copy(self.given, given)

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        copy(self.batch, batch)
        return self.replay().clone()


class Fixed(Optimiser):
    """The optimiser of a graph: for one client after the other, in memory of its own."""

    @classmethod
    def of(cls, skeleton: Skeleton, client: Optimiser) -> Fixed:
        """That for what this client's trains, at the point where the client's is."""
        key = "optimiser", client.names, client.clip
        if key not in skeleton.tapes:
            skeleton.tapes[key] = cls(
                skeleton,
                client.settings,
                0.0,
                frozenset(client.names).__contains__,
                None,
                client.clip,
            )
        own = skeleton.tapes[key]
        copy([own.lr, *own.moments.values()], [client.lr, *client.moments.values()])
        return own

    def moments_to_keep(self) -> Moments:
        return {name: v.clone() for name, v in self.moments.items()}


def capture(step: Callable[[], Tensor], device: torch.device) -> Replay:
    """A CUDA graph of what `step` does.

    It is called some times for real before, on a stream of its own.

    Raises what torch raises where it cannot be captured; the thread is then on the stream on which
    it was, and the next capture finds nothing of the failed one.
    """
    if device.type != "cuda":
        raise RuntimeError("the device is no GPU")
    with torch.cuda.device(device):  # to which the thread goes back as it leaves a stream
        return captured(step, device)


def captured(step: Callable[[], Tensor], device: torch.device) -> Replay:
    """As `capture`, on a GPU that is the thread's current one."""
    stream, _ = place(device)
    before = torch.cuda.current_stream(device)
    stream.wait_stream(before)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                step()
        try:
            value = recorded(graph, step, device)
        except BaseException:
            torch.cuda.set_stream(before)  # which torch does only where a capture ends well
            drop(graph, device)
            raise
    finally:
        torch.cuda.set_stream(before)
        before.wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return value

    return replay


def recorded(graph: torch.cuda.CUDAGraph, step: Callable[[], Tensor], device: torch.device) -> Any:
    """Make the graph one of what `step` does; returns what it returned."""
    stream, pool = place(device)
    # "thread_local": meanwhile the shelf's thread may take memory, which is no part of the graph
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        return step()


LOST: list[torch.cuda.CUDAGraph] = []  # captures that failed; see `drop`


def drop(graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
    """Make later captures independent of one that failed.

    torch's `capture_end` throws before it tidies up: the pool goes on recording, so it and its
    stream are given up, and the default generator takes itself for captured, so that the next
    dropout would raise, until another capture has ended well: a small one does that. The allocators
    may ask the failed graph later whose memory is whose, so it lives on.
    """
    _, pool = place(device)
    place.cache_clear()
    LOST.append(graph)
    with suppress(RuntimeError):  # it was not recording any more
        torch._C._cuda_endAllocateToPool(device.index, pool)
    before = torch.cuda.current_stream(device)
    try:
        recorded(torch.cuda.CUDAGraph(), lambda: torch.zeros(1, device=device), device)
    except RuntimeError:  # what was wrong with the first is told, not this
        place.cache_clear()
    finally:
        torch.cuda.set_stream(before)


@cache
def place(device: torch.device) -> tuple[torch.cuda.Stream, Any]:
    """Where a rank's graphs are captured, and the memory of their inner values.

    One pool for all: they run one after the other, and nothing inside one is read once another
    runs, for the loss is copied out and all else that lasts lies outside. So they take as much as
    the largest, not as all together.
    """
    return torch.cuda.Stream(device), torch.cuda.graph_pool_handle()


def copy(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """The values into the memory of the tensors, one by one."""
    for own, value in zip(to, values, strict=True):
        own.copy_(value)


@contextmanager
def restore_tensors(tensors: Sequence[Tensor]) -> Iterator[None]:
    """The tensors are after the block as they were before it."""
    before = [v.clone() for v in tensors]
    try:
        yield
    finally:
        copy(tensors, before)
