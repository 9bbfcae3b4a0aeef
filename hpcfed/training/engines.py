"""The engines that compute a client's local steps in the training loop.

eager: the loss, then autograd, in Python; its bits are the law. graphed: the eager step and its
optimiser, captured as one CUDA graph (`hpcfed.training.graphs`), for full batches. It has the bits
of eager: its first replay is compared with an eager step. stacked: several clients of a tiny model
train as one (`hpcfed.training.stacked`), with different bits; the others train as with auto.

auto: stacked for many small clients; otherwise graphed on a GPU if there are enough steps to pay
for the capture, and eager on the CPU. A user's own objective or model is captured or stacked only
if the job asks for that engine: Python code in it runs while a step is captured, and not when it is
replayed.

A step that cannot be captured trains with the eager engine; the run prints one warning about it.
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
from hpcfed.training.graphs import Differentiated, Fixed, Graph
from hpcfed.training.objective import (
    Objective,
    Unshareable,
    extract_tensors,
    flat,
    form,
    is_users,
    like,
    settings,
    signature,
    title,
)
from hpcfed.training.optimisers import Gradient, alike

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.training.local import LocalSteps, Loss

# steps of a rank on a GPU that pay for a capture, an estimate: each step is some ms shorter,
# because Python starts kernels more slowly than the GPU runs them
MANY = 1_000

Step = Callable[[Any, Any], None]  # one local step on a batch


def engine(steps: LocalSteps, loss: Loss) -> Step:
    """Return the step function of the job's engine for these local steps."""
    fed = steps.fed
    wanted, gpu = fed.job.training.engine, fed.device.type == "cuda"
    pays = wanted != "eager" and gpu and fed.gpu.graphs and worth(steps, loss)
    return Graphed(steps, loss) if wanted == "graphed" or pays else partial(eager, steps, loss)


def worth(steps: LocalSteps, loss: Loss) -> bool:
    """Return whether a capture pays on a GPU, which depends on the job alone."""
    fed = steps.fed
    own_weights = fed.job.local.class_weights == "client"  # a capture would serve one client
    if own_weights or is_users(loss, steps.client.architecture):
        return False
    return (fed.job.rounds - fed.t) * fed.cohort_size / fed.comm.size * len(steps) >= MANY


def eager(steps: LocalSteps, loss: Loss, x: Any, y: Any) -> None:
    """Make one step by autograd."""
    with autocast(steps.fed.job.run.precision, steps.fed.device):
        value = loss(steps.model, x, y)
    check_value(loss, value, steps.leaves if not steps.losses else ())
    steps.descend(value)


def check_value(loss: Loss, value: Any, leaves: Sequence[Tensor]) -> None:
    """Raise OwnError if a loss is not a scalar that depends on the model, or has changed the model.

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
        advice = "return a scalar: its .mean(), or remove reduction='none'"
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
    gradients = torch.autograd.grad(value, params, materialize_grads=True)
    return [alike(g, p) for g, p in zip(gradients, params, strict=True)]


def full(steps: LocalSteps) -> int:
    """Return the number of examples in a full batch.

    It is the batch size, or the size of the largest client if that is smaller.
    """
    own_data = steps.data is steps.client.train
    return min(steps.size, steps.fed.largest if own_data else len(steps.data))


def with_tensors(
    fed: Federation, refill: Callable[[Sequence[Tensor]], Loss], n: int, x: Any, y: Any
) -> Objective:
    """Return a loss as a function of the model and all tensors; `refill` replaces its own tensors.

    n: number of the loss's own tensors, which come first; the tensors of a batch like (x, y)
    follow.
    """
    m = len(flat(x))

    def objective(model: Any, inputs: Sequence[Tensor]) -> Tensor:
        with autocast(fed.job.run.precision, fed.device):
            return refill(inputs[:n])(model, like(x, inputs[n : n + m]), like(y, inputs[n + m :]))

    return objective


class Graphed:
    """A step by one launch of a CUDA graph, which all clients of an architecture share.

    It is for full batches only. A graph for each size of a last batch would cost seconds and serve
    one step in each epoch, so those steps are eager, with the same bits. The steps' optimiser is
    replaced by the one that graphs use; any step may use it.
    """

    def __init__(self, steps: LocalSteps, loss: Loss):
        self.steps, self.loss, self.shared = steps, loss, steps.skeleton.captured
        self.full = full(steps)
        self.by_size: dict[int, Graph | None] = {}  # by size of batch; None: it cannot be captured
        self.key: Hashable = None  # of the graphs that it may use; None: it is eager
        try:
            fixed, self.own_tensors, self.refill = extract_tensors(loss)
            names, clip = steps.optimiser.names, steps.optimiser.clip
            self.key = "graph", fixed, names, clip, settings(steps.model)
            steps.optimiser = Fixed.of(steps.skeleton, steps.optimiser)
        except Unshareable as why:
            self.give_up(why)

    def __call__(self, x: Any, y: Any) -> None:
        graph = self.graph(x, y)
        if graph is None:
            eager(self.steps, self.loss, x, y)
        else:
            self.steps.done(graph([*flat(x), *flat(y)]))

    def graph(self, x: Any, y: Any) -> Graph | None:
        """Return the graph for batches like this one, with this client's tensors in it.

        None if there can be none.
        """
        size = len(flat(x)[0])  # the batches of a client differ only in this
        if self.key is None or size < self.full:
            return None
        if size not in self.by_size:
            key = self.key, form(x), tuple(signature(v) for v in (*flat(x), *flat(y)))
            if key not in self.shared:
                start = perf_counter()
                try:
                    self.shared[key] = self.capture(x, y)
                # torch raises many types of errors; eager needs no capture
                except Exception as why:
                    self.give_up(why)
                    self.shared[key] = None
                self.steps.once += perf_counter() - start
            graph = self.by_size[size] = self.shared[key]
            if graph is not None:
                graph.give(self.own_tensors)
        return self.by_size[size]

    def capture(self, x: Any, y: Any) -> Graph:
        """Return a graph. Raises whatever torch raises if the step cannot be captured."""
        batch, own_tensors = [*flat(x), *flat(y)], self.own_tensors
        return Graph(self.differentiated(x, y), self.steps.optimiser, own_tensors, batch)

    def differentiated(self, x: Any, y: Any) -> Differentiated:
        """Return the eager step before its optimiser: (all inputs) -> loss and gradient."""
        steps = self.steps
        objective = with_tensors(steps.fed, self.refill, len(self.own_tensors), x, y)
        leaves = [steps.skeleton.parameters[name] for name in steps.optimiser.names]

        def step(inputs: Sequence[Tensor]) -> tuple[Tensor, Gradient]:
            value = objective(steps.skeleton.model, inputs)
            return value.detach(), gradient(value, leaves)

        return step

    def give_up(self, why: Exception) -> None:
        """Warn that the eager engine takes over."""
        self.steps.fed.warnings.say(
            f"{title(self.loss)} cannot be captured ({first_line(why)}); it trains with the "
            f"eager engine"
        )
