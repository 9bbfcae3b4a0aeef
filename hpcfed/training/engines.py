"""How a client's local step is computed: the engines behind the one training loop.

All give the same bits.

eager: the loss, then autograd, in Python. traced: the step is recorded once for each architecture
and shape of a batch, and replayed (`hpcfed.training.recorded_step`). graphed: what is recorded
becomes one CUDA graph together with the optimiser (`hpcfed.training.graphs`), for full batches.
auto: on the CPU traced where a step is so short that Python is most of it, on a GPU graphed, each
where there are enough steps to pay for the recording; eager elsewhere. stacked: several clients
train as one (`hpcfed.training.stacked`, with bits of its own); those that cannot are traced.

An objective that cannot be recorded trains eagerly, a step that cannot be captured is replayed, and
the run says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpcfed.core import user_code
from hpcfed.core.errors import first_line
from hpcfed.machine.devices import autocast
from hpcfed.training.graphs import Fixed, Graph
from hpcfed.training.objective import extract_tensors, flat, form, like, title
from hpcfed.training.recorded_step import Objective, RecordedStep, alike, signature
from hpcfed.training.side_effects import Untraceable, of_model

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.training.local import LocalSteps, Loss

SHORT = 2e7  # multiply-adds of a step, forward: about a millisecond, of which Python is a fifth
# steps of a rank, of which each is about 0.1 ms shorter: two seconds, as long as the first
# recording
MANY = 20_000
# of which each is some ms shorter, for a GPU is faster than Python starts its kernels; an estimate
MANY_ON_GPU = 1_000

Step = Callable[[Any, Any], None]  # one local step on a batch


def engine(steps: LocalSteps, loss: Loss) -> Step:
    """The step of the job's engine for these local steps."""
    wanted, gpu = steps.fed.job.training.engine, steps.fed.device.type == "cuda"
    if wanted == "eager" or (wanted == "auto" and not worth(steps, gpu)):
        return partial(eager, steps, loss)
    return (
        Graphed(steps, loss)
        if wanted == "graphed" or (wanted == "auto" and gpu and steps.fed.gpu.graphs)
        else Traced(steps, loss)
    )


def eager(steps: LocalSteps, loss: Loss, x: Any, y: Any) -> None:
    """One step by autograd."""
    with autocast(steps.fed.job.run.precision, steps.fed.device):
        value = loss(steps.model, x, y)
    sound(loss, value, steps.leaves)
    steps.descend(value)


def sound(loss: Loss, value: Any, leaves: Sequence[Tensor]) -> None:
    """OwnError where a loss is no scalar that depends on the model, or has changed the model."""
    fn = loss.func if isinstance(loss, partial) else loss
    changed = [str(p.dtype) for p in leaves if p.dtype != torch.float32]
    if isinstance(value, Tensor) and not value.dim() and value.requires_grad and not changed:
        return
    if not isinstance(value, Tensor):
        what = "returns None (is a `return` missing?)" if value is None else f"returns {value!r}"
        advice = "return a scalar tensor, as F.cross_entropy(model(x), y)"
    elif value.dim():
        what = f"returns a tensor of shape {list(value.shape)}"
        advice = "return a scalar: its .mean(), or leave reduction='none' away"
    elif changed:
        what = f"has changed the model, whose weights are {changed[0]} now"
        advice = (
            "the model belongs to hpcfed and stays float32: leave .half(), .double() and .to(...) "
            "away, and set run.precision = 'bf16' for a lower precision"
        )
    else:
        what = "does not depend on the model's parameters: it has no gradient"
        advice = "compute it from model(x), without .item(), .detach() or torch.no_grad()"
    raise user_code.OwnError(f"{user_code.line_of(fn)}: {title(loss)} {what}; {advice}")


def gradient(value: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a loss by parameter, in their memory layouts.

    0 where the loss does not reach one.
    """
    found = torch.autograd.grad(value, params, materialize_grads=True)
    return [alike(g, p) for g, p in zip(found, params, strict=True)]


def worth(steps: LocalSteps, gpu: bool) -> bool:
    """Whether recording pays: a function of the job, not of how fast this machine is."""
    fed = steps.fed
    n = (fed.job.rounds - fed.t) * fed.cohort_size / fed.comm.size * len(steps)
    short = gpu or fed.store.work(steps.client.architecture) * steps.size * steps.views <= SHORT
    return short and n >= (MANY_ON_GPU if gpu else MANY)


def full(steps: LocalSteps) -> int:
    """Examples of a full batch: as many as a step takes, or all of the largest client's."""
    own = steps.data is steps.client.train
    return min(steps.size, steps.fed.largest if own else len(steps.data))


def recordable(
    fed: Federation, refill: Callable[[Sequence[Tensor]], Loss], n: int, x: Any, y: Any
) -> Objective:
    """An opened loss as one of the model and all tensors: its own n, then those of a batch like
    this one.
    """
    m = len(flat(x))

    def objective(model: Any, inputs: Sequence[Tensor]) -> Tensor:
        with autocast(fed.job.run.precision, fed.device):
            return refill(inputs[:n])(model, like(x, inputs[n : n + m]), like(y, inputs[n + m :]))

    return objective


class Traced:
    """One step by replay of a recording, which all clients of an architecture share."""

    def __init__(self, steps: LocalSteps, loss: Loss):
        self.steps, self.loss, self.tapes = steps, loss, steps.skeleton.tapes
        self.found: dict[int, RecordedStep | None] = {}
        try:
            fixed, self.given, self.refill = extract_tensors(loss)
            self.key = fixed, steps.optimiser.names, of_model(steps.model)
        except Untraceable as why:
            self.key = None
            self.give_up(why)

    def __call__(self, x: Any, y: Any) -> None:
        tape = self.tape(x, y) if self.key else None
        if tape is None:
            eager(self.steps, self.loss, x, y)
        else:
            self.steps.step(*tape([*self.given, *flat(x), *flat(y)]))

    def tape(self, x: Any, y: Any) -> RecordedStep | None:
        """The recording for batches like this; None where there can be none."""
        size = len(flat(x)[0])  # the one thing in which the batches of a client differ
        if size not in self.found:
            key = self.key, form(x), tuple(signature(v) for v in (*flat(x), *flat(y)))
            if key not in self.tapes:
                start = perf_counter()
                self.tapes[key] = self.record(x, y)
                self.steps.once += perf_counter() - start
            self.found[size] = self.tapes[key]
        return self.found[size]

    def record(self, x: Any, y: Any) -> RecordedStep | None:
        """A new recording; None where there can be none."""
        objective = recordable(self.steps.fed, self.refill, len(self.given), x, y)
        try:
            return RecordedStep(
                self.steps.skeleton,
                objective,
                [*self.given, *flat(x), *flat(y)],
                self.steps.optimiser.names,
            )
        except (
            Exception
        ) as why:  # torch raises many kinds; whatever it is, the eager engine needs no recording
            return self.give_up(why)

    def give_up(self, why: Exception, what: str = "recorded", other: str = "eager") -> None:
        """Say that another engine takes over."""
        told = f"{title(self.loss)} cannot be {what} ({first_line(why)})"
        self.steps.fed.warnings.say(f"{told}; it trains with the {other} engine")


class Graphed(Traced):
    """One step by one launch of a graph, which all clients of an architecture share.

    Full batches only: a graph for each size of a last batch would cost seconds and serve one step a
    pass, so these steps are eager, with the same bits. The steps' optimiser is from then on the one
    that graphs use; any step may use it.
    """

    def __init__(self, steps: LocalSteps, loss: Loss):
        super().__init__(steps, loss)
        self.full = full(steps)
        if self.key:
            self.key = "graph", steps.optimiser.clip, *self.key
            steps.optimiser = Fixed.of(steps.skeleton, steps.optimiser)

    def __call__(self, x: Any, y: Any) -> None:
        size = len(flat(x)[0])
        if size < self.full:
            return eager(self.steps, self.loss, x, y)
        new = self.key and size not in self.found
        graph = self.tape(x, y) if self.key else None
        if not isinstance(graph, Graph):
            return super().__call__(x, y)
        if new:
            graph.give(self.given)
        self.steps.done(graph([*flat(x), *flat(y)]))

    def record(self, x: Any, y: Any) -> Graph | RecordedStep | None:
        """A graph, or a mere recording where it cannot be captured."""
        tape = super().record(x, y)
        try:
            return (
                Graph(tape, self.steps.optimiser, self.given, [*flat(x), *flat(y)])
                if tape
                else None
            )
        except Exception as why:  # whatever it is, a recording needs no capture
            self.give_up(why, "captured", "traced")
            return tape
