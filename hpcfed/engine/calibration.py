"""What a local step of each architecture takes on a GPU, measured before clients are placed.

Multiply-adds, by which clients are placed on CPUs, say little there: a GPU computes a large product
many times faster than as many multiply-adds in small ones. No result depends on what is measured,
for none depends on where clients are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hpcfed.core import rng
from hpcfed.engine import balance
from hpcfed.engine.memory import step
from hpcfed.machine.placement import place
from hpcfed.models.flat import Skeleton
from hpcfed.training import graphs

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.world import World

STEPS = 10  # that are timed, after those that warm up


def calibrate(facts: World, fed: Federation) -> None:
    """Place clients by measured seconds, where all ranks compute on GPUs; collective.

    To be called before any client has trained. Rank 0 measures for all, while nobody else computes,
    so that all ranks have the same costs; ranks of other speeds are told by run.speeds. Nothing is
    done where there is nothing to choose, and where a step does not fit: the check of memory tells
    that.
    """
    kinds = sorted(set(fed.architectures))
    if fed.comm.size == 1 or len(kinds) == 1 or not on_gpus(fed):
        return
    found = fed.comm.bcast(measured(fed, kinds) if fed.comm.rank == 0 else None)
    if not found:
        return
    sizes = zip(fed.architectures, fed.sizes, strict=True)
    fed.placement.costs = [float(found[kind]) * n for kind, n in sizes]
    if not facts.many:  # of a population each round's clients are placed anew
        places = place(fed.placement.costs, fed.comm.size, fed.placement.speeds)
        balance.move(fed, dict(enumerate(places)))


def on_gpus(fed: Federation) -> bool:
    """Whether all ranks compute on GPUs; collective."""
    return all(fed.comm.gather({fed.comm.rank: fed.device.type == "cuda"}).values())


def measured(fed: Federation, kinds: list[str]) -> dict[str, float]:
    """Seconds an example of each architecture takes in a step; empty where one does not fit."""
    try:
        return {kind: seconds(fed, kind) for kind in kinds}
    except RuntimeError:
        return {}
    finally:
        graphs.place.cache_clear()  # the pool goes with the graphs that were captured for this
        torch.cuda.empty_cache()


def seconds(fed: Federation, kind: str) -> float:
    """Seconds of the GPU for an example, in steps of the job's batch."""
    batch = min(fed.job.local.batch, fed.largest)
    with rng.scoped(fed.seed, "calibration", kind, device=fed.device):
        skeleton = Skeleton(fed.store.build(kind), fed.device)
        run = prepared(partial(step, fed, skeleton, batch), fed)
        return timed(run, fed.device) / batch


def prepared(run: Callable[[], Any], fed: Federation) -> Callable[[], Any]:
    """The step as a graph, where the job captures its steps and this one can be."""
    if fed.job.training.engine in ("auto", "graphed"):
        try:
            return graphs.capture(run, fed.device)
        except Exception:  # whatever it is, the step can be timed as it is
            return run
    return run


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a step, by the GPU's own clock."""
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
