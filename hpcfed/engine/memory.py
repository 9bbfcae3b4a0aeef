"""Whether what a rank computes fits into its share of a GPU: asked before it trains.

What is counted is the least that a run takes, so that a job that is refused cannot run. One that is
let through may still run out of memory, in a method that computes more than a plain loss; that is
told by `hpcfed.machine.faults`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from hpcfed.comm.agree import agreed
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.machine.devices import lowered
from hpcfed.machine.faults import explained, out_of_memory
from hpcfed.models.flat import Skeleton
from hpcfed.models.model import Pair
from hpcfed.training.engines import gradient

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.world import World

CONTEXT = 2**29  # bytes of each process's CUDA context: an allowance, not measured
FEW = 2  # examples of the batch from which an estimate is made
VALUE = 4  # bytes of a float32
GIB = 2**30


@dataclass(frozen=True)
class Need:
    """Bytes that a rank takes of a GPU at least.

    modules: weights and moments of each architecture.  examples: of its clients.  resting: clients'
    weights.
    steps: the most that one local step takes beside that, its gradient included, by architecture.
    """

    modules: int
    examples: int
    resting: int
    steps: dict[str, int]

    @property
    def steady(self) -> int:
        """What is there all the time."""
        return CONTEXT + self.modules + self.examples + self.resting

    @property
    def total(self) -> int:
        return self.steady + max(self.steps.values(), default=0)


def check(facts: World, fed: Federation) -> None:
    """Measure a local step of each architecture, and refuse what does not fit; collective. On a CPU
    nothing is done.

    Raises ConfigError on all ranks alike, which names the first rank whose share is too small.
    """
    agreed(
        fed.comm,
        lambda: refuse(need(facts, fed), fed.share, fed.job.local.batch) if fed.share else None,
    )


def need(facts: World, fed: Federation) -> Need:
    """What this rank takes: measured on a GPU, on a CPU estimated from what autograd keeps."""
    mine = list(fed.clients) if not facts.many else []  # of a population few are there at a time
    kinds = sorted({fed.architectures[k] for k in fed.clients})
    flat = {name: VALUE * fed.store.layout(name).size for name in kinds}
    # weights, two moments; the gradient is the step's
    copies = 3 if fed.job.local.optimiser == "adam" else 1
    value = facts.data.train.x.itemsize
    weights = 0 if fed.store.stateless else sum(flat[fed.architectures[k]] for k in mine)
    return Need(
        modules=copies * sum(flat.values()),
        examples=value * math.prod(facts.shape) * sum(int(fed.sizes[k]) for k in mine),
        resting=min(weights, int(fed.share / 2)) if fed.share else weights,
        steps={name: peak(fed, name) for name in kinds},
    )


def refuse(need: Need, share: float, batch: int) -> None:
    """ConfigError where a rank needs more than its share of a GPU; share: bytes."""
    if need.total <= share:
        return
    name = max(need.steps, key=need.steps.__getitem__, default="")
    step = max(1, need.steps.get(name, 0))
    smaller = min(
        batch - 1, int(batch * (share - need.steady) / step)
    )  # a step grows with its examples
    advice = f"local.batch = {smaller} may fit, or " if smaller > 0 else ""
    raise ConfigError(
        f"not enough GPU memory: a rank needs at least {need.total / GIB:.2f} GiB, its share of "
        f"the GPU is "
        f"{share / GIB:.2f} GiB\n  {need.modules / GIB:.2f} for models, "
        f"{need.examples / GIB:.2f} for examples, "
        f"{need.resting / GIB:.2f} for clients' weights, {step / GIB:.2f} for a step of {name} "
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
            return measured(fed, lambda: step(fed, skeleton, batch), architecture)
        kept = estimated(
            lambda n: forward(fed, skeleton, n), skeleton.model.parameters(), min(batch, FEW), batch
        )
        return kept + VALUE * skeleton.layout.n_params


def step(fed: Federation, skeleton: Skeleton, n: int) -> None:
    """A local step as far as memory goes: forward and backward."""
    gradient(forward(fed, skeleton, n), list(skeleton.parameters.values()))


def forward(fed: Federation, skeleton: Skeleton, n: int) -> Tensor:
    """The loss of n empty examples, in as many views as the method has. Returns a scalar."""
    kind = torch.long if fed.store.vocabulary else torch.float
    x = torch.zeros(n, *fed.store.form[0], dtype=kind, device=fed.device)
    y = torch.zeros(n, dtype=torch.long, device=fed.device)
    model = skeleton.model.train()
    parts = (model.own, model.proxy) if isinstance(model, Pair) else (model,)
    with lowered(fed.job.run.precision, fed.device):
        return sum(  # type: ignore[return-value]
            cross_entropy(part(x.clone()), y)
            for part in parts
            for _ in range(fed.job.algorithm.views)
        )


def measured(fed: Federation, run: Callable[[], None], architecture: str) -> int:
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
        raise explained(
            error, f"a first step of {architecture}", fed.job, fed.device, before
        ) from error
    return torch.cuda.max_memory_allocated(fed.device) - before


def estimated(
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
