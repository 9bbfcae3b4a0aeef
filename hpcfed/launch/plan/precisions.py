"""Training in float32 and with run.precision = "bf16": how the seconds of a job differ.

The short run has one precision; the other one follows from single training steps in both, which are
measured here, on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfed.core.rng import scoped
from hpcfed.engine.memory_check import step
from hpcfed.machine.processor import find_bfloat16
from hpcfed.storage.fields import at

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.launch.plan.costs import Costs
    from hpcfed.launch.plan.predict import Demand

FIELD = "run.precision"
PRECISIONS = ("float32", "bf16")
TURNS = 5  # steps in each precision, of which the fastest counts


def comparable(job: Job, trial: Costs) -> bool:
    """Return whether both precisions are to be compared.

    They are on CPUs, if the job or the short run has bf16, or if this processor has bfloat16.
    """
    precisions = {job.run.precision, at(trial.job, FIELD)}
    if trial.processor != "cpu" or not precisions <= set(PRECISIONS):
        return False
    return "bf16" in precisions or bool(find_bfloat16())


def measure_ratios(fed: Federation) -> dict[str, float]:
    """Return how many times as long a training step takes in float32 as in bf16, by architecture.

    It is 1 without measurement if no layer is computed in bfloat16 for the job's batches.
    fed: on the CPU, made for run.precision = "bf16"; its job stays as it is.
    """
    job, n = fed.job, min(fed.job.local.batch, fed.largest)
    ratios, threads = {}, torch.get_num_threads()
    torch.set_num_threads(job.run.threads)
    try:
        for name in sorted(set(fed.architectures)):
            least = min(fed.store.bf16_batches(name).values(), default=np.inf)
            if least > n * job.algorithm.views:
                ratios[name] = 1.0
                continue
            seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
            for _ in range(1 + TURNS):
                for precision in PRECISIONS:
                    fed.job = with_precision(job, precision)
                    seconds[precision].append(time_step(fed, name, n))
            ratios[name] = min(seconds["float32"][1:]) / min(seconds["bf16"][1:])
    finally:
        fed.job = job
        torch.set_num_threads(threads)
    return ratios


def with_precision(job: Job, precision: str) -> Job:
    """Return the job with another run.precision."""
    return job.model_copy(update={"run": job.run.model_copy(update={"precision": precision})})


def time_step(fed: Federation, architecture: str, n: int) -> float:
    """Return the CPU seconds of a training step on n examples, in the views that the method has."""
    with scoped(fed.seed, "plan", architecture):
        start = process_time()
        step(fed, fed.store.skeleton(architecture), n)
        return process_time() - start


def convert(demand: Demand, ratios: Mapping[str, float], source: str, target: str) -> Demand:
    """Return a demand in another precision: only local training takes other seconds.

    source: the precision of the demand.  ratios: of `measure_ratios`.
    """
    factors = np.array([ratios[name] for name in demand.architectures])
    power = PRECISIONS.index(source) - PRECISIONS.index(target)
    return replace(demand, train=demand.train * factors**power)
