"""The engines that compute a client's local steps in the training loop.

All give the same bits, except stacked.

eager: the loss, then autograd, in Python. traced: the step is recorded once for each architecture
and shape of a batch, and replayed (`hpcfed.training.recorded_step`). graphed: the recorded step and
the optimiser become one CUDA graph (`hpcfed.training.graphs`), for full batches. auto: on the CPU
traced if a step is so short that Python takes most of its time, on a GPU graphed, in both cases if
there are enough steps to pay for the recording; otherwise eager. stacked: several clients train as
one (`hpcfed.training.stacked`, with bits of its own); clients that cannot are traced.

An objective that cannot be recorded trains with the eager engine, and a step that cannot be
captured is replayed; the run prints one warning about it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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

SHORT = 2e7  # forward multiply-adds of a step of about 1 ms, of which Python takes a fifth
# steps of a rank that pay for a recording: each is about 0.1 ms shorter, together two seconds, the
# time of the first recording
MANY = 20_000
# the same on a GPU, an estimate: each step is some ms shorter, because Python starts kernels more
# slowly than the GPU runs them
MANY_ON_GPU = 1_000

Step = Callable[[Any, Any], None]  # one local step on a batch


def engine(steps: LocalSteps, loss: Loss) -> Step:
    """Return the step function of the job's engine for these local steps."""
    wanted, gpu = steps.fed.job.training.engine, steps.fed.device.type == "cuda"
    if wanted == "eager" or (wanted == "auto" and not worth(steps, gpu)):
        return partial(eager, steps, loss)
    return (
        Graphed(steps, loss)
        if wanted == "graphed" or (wanted == "auto" and gpu and steps.fed.gpu.graphs)
        else Traced(steps, loss)
    )


def eager(steps: LocalSteps, loss: Loss, x: Any, y: Any) -> None:
    """Make one step by autograd."""
    with autocast(steps.fed.job.run.precision, steps.fed.device):
        value = loss(steps.model, x, y)
    check_value(loss, value, steps.leaves if not steps.losses else ())
    steps.descend(value)


def check_value(loss: Loss, value: Any, leaves: Sequence[Tensor]) -> None:
    """Raise OwnError if a loss is no scalar that depends on the model, or has changed the model.

    leaves: parameters that are examined; a client's first step examines them for all its steps.
    """
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
    fn = loss.func if isinstance(loss, partial) else loss
    raise user_code.OwnError(f"{user_code.line_of(fn)}: {title(loss)} {what}; {advice}")


def gradient(value: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss by parameter, in the parameters' memory layouts.

    It is 0 for a parameter that the loss does not reach.
    """
    found = torch.autograd.grad(value, params, materialize_grads=True)
    return [alike(g, p) for g, p in zip(found, params, strict=True)]


def worth(steps: LocalSteps, gpu: bool) -> bool:
    """Return whether recording pays, which depends on the job but not on the machine's speed."""
    fed = steps.fed
    n = (fed.job.rounds - fed.t) * fed.cohort_size / fed.comm.size * len(steps)
    short = gpu or fed.store.work(steps.client.architecture) * steps.size * steps.views <= SHORT
    return short and n >= (MANY_ON_GPU if gpu else MANY)


def full(steps: LocalSteps) -> int:
    """Return the number of examples in a full batch.

    It is the batch size, or the size of the largest client if that is smaller.
    """
    own = steps.data is steps.client.train
    return min(steps.size, steps.fed.largest if own else len(steps.data))


def recordable(
    fed: Federation, refill: Callable[[Sequence[Tensor]], Loss], n: int, x: Any, y: Any
) -> Objective:
    """Return a loss, whose tensors `refill` replaces, as a function of the model and all tensors.

    n: number of the loss's own tensors, which come first; the tensors of a batch like (x, y)
    follow.
    """
    m = len(flat(x))

    def objective(model: Any, inputs: Sequence[Tensor]) -> Tensor:
        with autocast(fed.job.run.precision, fed.device):
            return refill(inputs[:n])(model, like(x, inputs[n : n + m]), like(y, inputs[n + m :]))

    return objective


class Traced:
    """A step by replay of a recording, which all clients of an architecture share."""

    def __init__(self, steps: LocalSteps, loss: Loss):
        self.steps, self.loss, self.recorded = steps, loss, steps.skeleton.recorded
        self.found: dict[int, Graph | RecordedStep | None] = {}
        self.key: tuple[Hashable, ...] | None = None  # of its recordings; None: there are none
        try:
            fixed, self.given, self.refill = extract_tensors(loss)
            self.key = fixed, steps.optimiser.names, of_model(steps.model)
        except Untraceable as why:
            self.give_up(why)

    def __call__(self, x: Any, y: Any) -> None:
        step = self.recorded_step(x, y) if self.key else None
        if isinstance(step, RecordedStep):
            self.steps.step(*step([*self.given, *flat(x), *flat(y)]))
        else:
            eager(self.steps, self.loss, x, y)

    def recorded_step(self, x: Any, y: Any) -> Graph | RecordedStep | None:
        """Return the recording for batches like this one; None if there can be none."""
        size = len(flat(x)[0])  # the batches of a client differ only in this
        if size not in self.found:
            key = self.key, form(x), tuple(signature(v) for v in (*flat(x), *flat(y)))
            if key not in self.recorded:
                start = perf_counter()
                self.recorded[key] = self.record(x, y)
                self.steps.once += perf_counter() - start
            self.found[size] = self.recorded[key]
        return self.found[size]

    def record(self, x: Any, y: Any) -> Graph | RecordedStep | None:
        """Return a new recording; None if there can be none."""
        return self.trace(x, y)

    def trace(self, x: Any, y: Any) -> RecordedStep | None:
        """Return a recording of the operations; None, with a warning, if there can be none."""
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
        ) as why:  # torch raises many kinds of errors; the eager engine needs no recording
            self.give_up(why)
            return None

    def give_up(self, why: Exception, what: str = "recorded", other: str = "eager") -> None:
        """Warn that another engine takes over."""
        told = f"{title(self.loss)} cannot be {what} ({first_line(why)})"
        self.steps.fed.warnings.say(f"{told}; it trains with the {other} engine")


class Graphed(Traced):
    """A step by one launch of a CUDA graph, which all clients of an architecture share.

    It is for full batches only. A graph for each size of a last batch would cost seconds and serve
    one step in each epoch, so those steps are eager, with the same bits. The steps' optimiser is
    replaced by the one that graphs use; any step may use it.
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
        graph = self.recorded_step(x, y) if self.key else None
        if not isinstance(graph, Graph):
            return super().__call__(x, y)
        if new:
            graph.give(self.given)
        self.steps.done(graph([*flat(x), *flat(y)]))

    def record(self, x: Any, y: Any) -> Graph | RecordedStep | None:
        """Return a graph, or a plain recording if it cannot be captured.

        The result is None if the step cannot be recorded either.
        """
        step = self.trace(x, y)
        try:
            return (
                Graph(step, self.steps.optimiser, self.given, [*flat(x), *flat(y)])
                if step
                else None
            )
        except Exception as why:  # of any kind: a recording needs no capture
            self.give_up(why, "captured", "traced")
            return step
