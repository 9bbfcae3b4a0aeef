"""Whether what a rank computes fits into its share of a GPU: asked before it trains.

What is counted is the least that a run takes, so that a job that is refused cannot run. One that is
let through may still run out of memory, in a method that computes more than a plain loss; that is
told by `hpcfed.machine.error_messages`.
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
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import zeros
from hpcfed.core.shapes import each, parts
from hpcfed.machine.devices import CONTEXT, autocast
from hpcfed.machine.error_messages import explain_fault, out_of_memory
from hpcfed.models.flat import Skeleton
from hpcfed.models.model import Pair
from hpcfed.training.engines import gradient
from hpcfed.training.optimisers import buffers

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.world import World

FEW = 2  # examples of the batch from which an estimate is made
VALUE = 4  # bytes of a float32
GIB = 2**30


@dataclass(frozen=True)
class Need:
    """Bytes that a rank takes of a GPU at least.

    modules: weights of each architecture, and the moments of one client.  examples: of its clients.
    resting: clients' weights, and moments where they keep them.
    steps: the most that one local step takes beside that, its gradient included, by architecture.
    moments: of each architecture's graph, which has its own; None where no graph is captured.
    """

    modules: int
    examples: int
    resting: int
    steps: dict[str, int]
    moments: int | None = None

    @property
    def graphs(self) -> int:
        """What graphs keep: their moments, and one pool, as large as their largest step.

        While that of another architecture trains for the first time its step lies beside the pool;
        so of all steps the largest two count, of which `total` has one.
        """
        if self.moments is None:
            return 0
        return self.moments + sum(sorted(self.steps.values())[-2:-1])

    @property
    def steady(self) -> int:
        """What is there all the time."""
        return CONTEXT + self.modules + self.examples + self.resting

    @property
    def total(self) -> int:
        return self.steady + self.graphs + max(self.steps.values(), default=0)


def check(facts: World, fed: Federation) -> None:
    """Measure a local step of each architecture, and refuse what does not fit; collective.

    On a CPU nothing is done.

    Raises ConfigError on all ranks alike, which names the first rank whose share is too small.
    """
    on_all_ranks(fed.comm, lambda: settle(need(facts, fed), fed) if fed.gpu.memory else None)


def settle(need: Need, fed: Federation) -> None:
    """Do without graphs where the engine is free and what they keep does not fit: the bits are the
    same, so each rank decides for itself. Raises ConfigError where the rest does not fit either.
    """
    spare = need.graphs and need.total > fed.gpu.memory and fed.job.training.engine == "auto"
    if spare:
        need = replace(need, moments=None)
    refuse(need, fed.gpu.memory, fed.job.local.batch)
    if spare:
        fed.gpu.graphs = False
        fed.warnings.say("graphs of local steps do not fit into the GPU's memory; steps are traced")


def need(facts: World, fed: Federation) -> Need:
    """What this rank takes: measured on a GPU, on a CPU estimated from what autograd keeps."""
    mine = list(fed.clients) if not facts.many else []  # of a population few are there at a time
    kinds = sorted({fed.architectures[k] for k in fed.clients})
    flat = {name: VALUE * fed.store.layout(name).size for name in kinds}
    n = len(buffers(fed.job.local))  # moments; the gradient is the step's
    x = parts(facts.data.train.x)
    example = sum(part.itemsize * math.prod(part.shape[1:]) for part in x)  # bytes
    weights = 0 if fed.store.stateless else sum(flat[fed.architectures[k]] for k in mine)
    if fed.job.local.keep_optimiser:
        weights += n * sum(flat[fed.architectures[k]] for k in mine)
    captured = fed.device.type == "cuda" and fed.job.training.engine in ("auto", "graphed")
    return Need(
        # clients train one after the other: the largest one's moments are the most
        modules=sum(flat.values()) + n * max(flat.values(), default=0),
        examples=example * sum(int(fed.sizes[k]) for k in mine),
        resting=min(weights, int(fed.gpu.memory / 2)) if fed.gpu.memory else weights,
        steps={name: peak(fed, name) for name in kinds},
        moments=n * sum(flat.values()) if captured else None,
    )


def refuse(need: Need, share: float, batch: int) -> None:
    """ConfigError where a rank needs more than its share of a GPU; share: bytes."""
    if need.total <= share:
        return
    name = max(need.steps, key=need.steps.__getitem__, default="")
    step = max(1, need.steps.get(name, 0))
    smaller = min(
        batch - 1, int(batch * (share - need.steady - need.graphs) / step)
    )  # a step grows with its examples
    advice = f"local.batch = {smaller} may fit, or " if smaller > 0 else ""
    if need.graphs:
        advice += "training.engine = 'traced' needs no memory for graphs, or "
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
    """Bytes that one local step of an architecture takes beside its module, at the job's batch."""
    largest = max(
        (int(fed.sizes[k]) for k in fed.clients if fed.architectures[k] == architecture), default=1
    )
    batch = max(1, min(fed.job.local.batch, largest))
    with rng.scoped(fed.seed, "memory", architecture, device=fed.device):
        skeleton = Skeleton(fed.store.build(architecture), fed.device)
        if fed.device.type == "cuda":
            return measure_step(fed, lambda: step(fed, skeleton, batch), architecture)
        kept = estimate_activations(
            lambda n: forward(fed, skeleton, n), skeleton.model.parameters(), min(batch, FEW), batch
        )
        return kept + VALUE * skeleton.layout.n_params


def step(fed: Federation, skeleton: Skeleton, n: int) -> None:
    """A local step as far as memory goes: forward and backward."""
    gradient(forward(fed, skeleton, n), list(skeleton.parameters.values()))


def forward(fed: Federation, skeleton: Skeleton, n: int) -> Tensor:
    """The loss of n empty examples, in as many views as the method has. Returns a scalar."""
    x = zeros(fed.store.form[0], n, fed.store.vocabulary, fed.device)
    y = torch.zeros(n, dtype=torch.long, device=fed.device)
    model = skeleton.model.train()
    models = (model.own, model.proxy) if isinstance(model, Pair) else (model,)
    with autocast(fed.job.run.precision, fed.device):
        return sum(  # type: ignore[return-value]
            cross_entropy(part(each(x, torch.clone)), y)
            for part in models
            for _ in range(fed.job.algorithm.views)
        )


def measure_step(fed: Federation, run: Callable[[], None], architecture: str) -> int:
    """The most bytes of the GPU that a step has at once, as torch's allocator counts them.

    Raises MemoryFault where it does not fit at all.
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
    """Bytes that autograd keeps between forward and backward of a batch, from those of few
    examples.

    With the gradient that was 0.76 to 1.19 of a step's peak on a CPU, for five models and 64 images
    of 3x32x32.
    """
    own = {p.untyped_storage().data_ptr() for p in params}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            found[memory.data_ptr()] = memory.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward(few)
    return sum(found.values()) * batch // few
