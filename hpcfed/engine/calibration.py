"""Measurement of a local step of each architecture: before clients are placed on GPUs, and for a
dry run.

On CPUs clients are placed by multiply-adds. These say little about a GPU, which computes one large
product many times faster than as many multiply-adds in small products. No result depends on the
measured times, because no result depends on the placement of clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hpcfed.engine import balance
from hpcfed.engine.memory_check import step
from hpcfed.machine.assignment import place
from hpcfed.models.flat import Skeleton
from hpcfed.training import graphs

if TYPE_CHECKING:
    from hpcfed.engine.world import World
    from hpcfed.federation.federation import Federation

STEPS, FEW = 10, 2  # steps that are timed, after the warm-up: on a GPU, on a CPU


def calibrate(facts: World, fed: Federation) -> None:
    """Place clients by measured seconds, if all ranks compute on GPUs; collective.

    It must be called before any client has trained. Rank 0 measures for all ranks while no other
    rank computes, so that all ranks have the same costs; run.speeds describes ranks of other
    speeds. With one rank or one architecture nothing is done. Nothing is done either if a step does
    not fit into memory; the check of memory (`engine.memory_check`) reports that.
    """
    kinds = sorted(set(fed.architectures))
    if fed.comm.size == 1 or len(kinds) == 1 or not on_gpus(fed):
        return
    measured_seconds = fed.comm.bcast(measured(fed, kinds) if fed.comm.rank == 0 else None)
    if not measured_seconds:
        return
    sizes = zip(fed.architectures, fed.sizes, strict=True)
    fed.placement.costs = [float(measured_seconds[kind]) * n for kind, n in sizes]
    if not facts.many:  # with a population each round's clients are placed anew
        places = place(fed.placement.costs, fed.comm.size, fed.placement.speeds)
        balance.move(fed, dict(enumerate(places)))


def on_gpus(fed: Federation) -> bool:
    """Return whether all ranks compute on GPUs; collective."""
    return all(fed.comm.gather({fed.comm.rank: fed.device.type == "cuda"}).values())


def local_seconds(facts: World, fed: Federation) -> float:
    """Return the seconds in which the rank with most work trains its clients once; 0 if unknown.

    Each architecture's step is measured here, and counted as often as its clients make it.
    """
    kinds = sorted(set(fed.architectures))
    rates = {} if facts.many else measured(fed, kinds)
    if not rates:
        return 0.0
    local, load = fed.job.local, [0.0] * fed.comm.size
    for rank, kind, n in zip(fed.placement.ranks, fed.architectures, fed.sizes, strict=True):
        examples = local.steps * min(local.batch, n) if local.steps else local.epochs * n
        load[rank] += rates[kind] * examples
    return max(load)


def measured(fed: Federation, kinds: list[str]) -> dict[str, float]:
    """Return the seconds per example of a step of each architecture; {} if one does not fit."""
    try:
        return {kind: seconds(fed, kind) for kind in kinds}
    except RuntimeError:
        return {}
    finally:
        graphs.place.cache_clear()  # frees the memory pool of the graphs that were captured here
        torch.cuda.empty_cache()


def seconds(fed: Federation, kind: str) -> float:
    """Return the seconds per example of a step with the job's batch size."""
    batch = min(fed.job.local.batch, fed.largest)
    with fed.scoped("calibration", kind):
        skeleton = Skeleton(fed.store.build(kind), fed.device)
        run = prepared(partial(step, fed, skeleton, batch), fed)
        return timed(run, fed.device) / batch


def prepared(run: Callable[[], Any], fed: Federation) -> Callable[[], Any]:
    """Return the step as a CUDA graph if the job captures steps and this one can be captured.

    Otherwise the step is returned as it is.
    """
    if fed.device.type == "cuda" and fed.job.training.engine != "eager":
        try:
            return graphs.capture(run, fed.device)
        except Exception:  # in any case the step can be timed as it is
            return run
    return run


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one step, on a GPU by its own clock."""
    if device.type != "cuda":
        run()
        before = time.perf_counter()
        for _ in range(FEW):
            run()
        return (time.perf_counter() - before) / FEW
    with torch.cuda.device(device):
        for _ in range(graphs.WARM):
            run()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(STEPS):
            run()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / 1000 / STEPS
