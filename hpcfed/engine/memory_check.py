"""The check that a rank's computation fits into its share of a GPU, before it trains.

It computes the least memory that a run needs, so a job that it refuses cannot run. A job that it
accepts may still run out of memory, in a method that computes more than a plain loss;
`hpcfed.machine.error_messages` reports that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from hpcfed.comm.collective_errors import on_all_ranks
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import zeros
from hpcfed.core.shapes import each, parts
from hpcfed.machine.device_choice import resident_bytes
from hpcfed.machine.devices import CONTEXT
from hpcfed.machine.error_messages import explain_fault, out_of_memory
from hpcfed.models.flat import Skeleton
from hpcfed.models.model import Pair
from hpcfed.models.precision import autocast
from hpcfed.training.engines import gradient
from hpcfed.training.optimisers import buffers

if TYPE_CHECKING:
    from hpcfed.engine.world import World
    from hpcfed.federation.federation import Federation

FEW = 2  # examples of the batch from which an estimate is made
VALUE = 4  # bytes of a float32
GIB = 2**30


@dataclass(frozen=True)
class Need:
    """The least memory that a rank needs on a GPU, in bytes.

    modules: weights of each architecture, and the moments of one client.
    examples: training examples of the rank's clients.
    resting: clients' weights, and their moments if clients keep them.
    steps: largest memory of one local step beside that, its gradient included, by architecture.
    moments: of all architectures' graphs, each of which has its own; None if no graph is captured.
    """

    modules: int
    examples: int
    resting: int
    steps: dict[str, int]
    moments: int | None = None

    @property
    def graphs(self) -> int:
        """Memory that graphs keep: their moments, and one pool as large as their largest step.

        While another architecture trains for the first time, its step needs memory beside the pool.
        So the two largest steps count, of which `total` has one.
        """
        if self.moments is None:
            return 0
        return self.moments + sum(sorted(self.steps.values())[-2:-1])

    @property
    def steady(self) -> int:
        """Memory that is in use all the time."""
        return CONTEXT + self.modules + self.examples + self.resting

    @property
    def total(self) -> int:
        return self.steady + self.graphs + max(self.steps.values(), default=0)


def check(facts: World, fed: Federation) -> None:
    """Measure a local step of each architecture, and refuse a job that does not fit; collective.

    On a CPU nothing is done. Raises the same ConfigError on all ranks; it names the first rank
    whose share is too small.
    """
    on_all_ranks(fed.comm, lambda: settle(need(facts, fed), fed) if fed.gpu.memory else None)


def settle(need: Need, fed: Federation) -> None:
    """Switch off graphs if they do not fit and the job does not ask for them.

    Results have the same bits without graphs, so each rank decides for itself. Raises ConfigError
    if the rest does not fit either.
    """
    spare = need.graphs and need.total > fed.gpu.memory and fed.job.training.engine != "graphed"
    if spare:
        need = replace(need, moments=None)
    refuse(need, fed.gpu.memory, fed.job.local.batch)
    if spare:
        fed.gpu.graphs = False
        fed.warnings.say("graphs of local steps do not fit into the GPU's memory; steps are eager")


def need(facts: World, fed: Federation) -> Need:
    """Return this rank's need, measured on a GPU and estimated from autograd's memory on a CPU."""
    # few clients of a population exist at a time
    mine = list(fed.clients) if not facts.many else []
    kinds = sorted({fed.architectures[k] for k in fed.clients})
    flat = {name: VALUE * fed.store.layout(name).size for name in kinds}
    n = len(buffers(fed.job.local))  # moments; the gradient is the step's
    x = parts(facts.data.train.x)
    # bytes; with noise, images are float32
    example = sum(
        (VALUE if facts.shift.noise else part.itemsize) * math.prod(part.shape[1:]) for part in x
    )
    weights = 0 if fed.store.stateless else sum(flat[fed.architectures[k]] for k in mine)
    if fed.job.local.keep_optimiser:
        weights += n * sum(flat[fed.architectures[k]] for k in mine)
    captured = fed.device.type == "cuda" and fed.job.training.engine != "eager"
    return Need(
        # clients train one after the other, so the largest client's moments count
        modules=sum(flat.values()) + n * max(flat.values(), default=0),
        examples=example * sum(int(fed.sizes[k]) for k in mine),
        resting=int(min(weights, resident_bytes(fed.job, fed.gpu.memory)))
        if fed.gpu.memory
        else weights,
        steps={name: peak(fed, name) for name in kinds},
        moments=n * sum(flat.values()) if captured else None,
    )


def refuse(need: Need, share: float, batch: int) -> None:
    """Raise ConfigError if a rank needs more than its share of a GPU.

    share: bytes.
    """
    if need.total <= share:
        return
    name = max(need.steps, key=need.steps.__getitem__, default="")
    step = max(1, need.steps.get(name, 0))
    # a step's memory grows with its examples
    smaller = min(batch - 1, int(batch * (share - need.steady - need.graphs) / step))
    advice = f"local.batch = {smaller} may fit, or " if smaller > 0 else ""
    if need.graphs:
        advice += "training.engine = 'eager' needs no memory for graphs, or "
    raise ConfigError(
        f"not enough GPU memory: a rank needs at least {need.total / GIB:.2f} GiB, its share of "
        f"the GPU is "
        f"{share / GIB:.2f} GiB\n  {need.modules / GIB:.2f} for models, "
        f"{need.examples / GIB:.2f} for examples, "
        f"{need.resting / GIB:.2f} for clients' weights, "
        f"{need.graphs / GIB:.2f} for graphs, {step / GIB:.2f} for a step of {name} "
        f"at local.batch = {batch}"
        f"\n  {advice}start fewer ranks on a GPU, or more nodes"
    )


def peak(fed: Federation, architecture: str) -> int:
    """Return the bytes of one local step beside the model, with the job's batch size."""
    largest = max(
        (int(fed.sizes[k]) for k in fed.clients if fed.architectures[k] == architecture), default=1
    )
    batch = max(1, min(fed.job.local.batch, largest))
    with fed.scoped("memory", architecture):
        skeleton = Skeleton(fed.store.build(architecture), fed.device)
        if fed.device.type == "cuda":
            return measure_step(fed, lambda: step(fed, skeleton, batch), architecture)
        activations = estimate_activations(
            lambda n: forward(fed, skeleton, n), skeleton.model.parameters(), min(batch, FEW), batch
        )
        return activations + VALUE * skeleton.layout.gradient_size


def step(fed: Federation, skeleton: Skeleton, n: int) -> None:
    """Run a forward and a backward pass, which determine the memory of a local step."""
    gradient(forward(fed, skeleton, n), list(skeleton.parameters.values()))


def forward(fed: Federation, skeleton: Skeleton, n: int) -> Tensor:
    """Return the loss of n empty examples, a scalar, in as many views as the method has.

    All views pass the model at once, as in FedClassAvg's training: for each shape a GPU's library
    chooses its kernels anew.
    """
    n *= fed.job.algorithm.views
    x = zeros(fed.store.form[0], n, fed.store.vocabulary, fed.device)
    y = torch.zeros(n, dtype=torch.long, device=fed.device)
    model = skeleton.model.train()
    models = (model.own, model.proxy) if isinstance(model, Pair) else (model,)
    with autocast(fed.job.run.precision, fed.device):
        return sum(  # type: ignore[return-value]
            cross_entropy(part(each(x, torch.clone)), y) for part in models
        )


def measure_step(fed: Federation, run: Callable[[], None], architecture: str) -> int:
    """Return the peak GPU memory of a step in bytes, by torch's allocator.

    Raises MemoryFault if the step does not fit at all.
    """
    torch.cuda.reset_peak_memory_stats(fed.device)
    before = torch.cuda.memory_allocated(fed.device)
    try:
        run()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise explain_fault(
            error, f"a first step of {architecture}", fed.job, fed.device, before
        ) from error
    return torch.cuda.max_memory_allocated(fed.device) - before


def estimate_activations(
    forward: Callable[[int], Tensor], params: Iterable[Tensor], few: int, batch: int
) -> int:
    """Return the bytes that autograd keeps between forward and backward of a batch.

    The estimate scales up a forward pass of `few` examples. With the gradient added it was 0.76 to
    1.19 of a step's peak on a CPU, for five models and 64 images of 3x32x32.
    """
    weights = {p.untyped_storage().data_ptr() for p in params}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            storages[memory.data_ptr()] = memory.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward(few)
    return sum(storages.values()) * batch // few
