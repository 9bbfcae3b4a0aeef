"""The engines that compute a client's local steps in the training loop.

eager: the loss, then autograd, in Python; its bits are the law. traced: the step is recorded once
for each architecture and shape of a batch, and replayed (`hpcfed.training.recorded_step`). graphed:
the eager step and its optimiser, captured as one CUDA graph (`hpcfed.training.graphs`), for full
batches and for sizes of smaller ones that come often. Both have the bits of eager: their first
replay is compared with an eager step. stacked: several clients of a tiny model train as one
(`hpcfed.training.stacked`), with different bits; the others train as with auto.

auto: stacked for many small clients; on a GPU graphed, on the CPU traced if a step is so short that
Python takes most of its time, if there are enough steps to pay for that; otherwise eager. A user's
own objective or model is traced, captured or stacked only if the job asks for that engine: Python
code in it runs while a step is recorded, and not when it is replayed.

A step that cannot be recorded or captured trains with the eager engine; the run prints one warning
about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpcfed.core import rng, user_code
from hpcfed.core.errors import first_line
from hpcfed.models.precision import autocast
from hpcfed.training.graphs import Differentiated, Fixed, Graph, check_unchanged, restore_tensors
from hpcfed.training.objective import (
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
from hpcfed.training.optimisers import Gradient
from hpcfed.training.recorded_step import Objective, RecordedStep, alike

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
# eager steps of a smaller batch's size on a rank before the next one is captured. On an H200 they
# take 15 ms (ResNet-18) to 42 ms (GoogLeNet), their graphs a tenth of that, and a capture, with the
# steps before and after it, as long as about eight of them
OFTEN = 8
# most graphs of one step for different sizes, for each keeps some memory of the GPU
MOST_SIZES = 32

AGAIN = "backward through the graph a second time"  # in torch's message

Step = Callable[[Any, Any], None]  # one local step on a batch


def engine(steps: LocalSteps, loss: Loss) -> Step:
    """Return the step function of the job's engine for these local steps."""
    fed = steps.fed
    if steps.private:
        return partial(steps.learn, loss)
    wanted, gpu = fed.job.training.engine, fed.device.type == "cuda"
    pays = wanted in ("auto", "stacked") and worth(steps, loss, gpu)
    if wanted == "graphed" or (pays and gpu and fed.gpu.graphs):
        return Graphed(steps, loss)
    if wanted == "traced" or (pays and not gpu):
        return Traced(steps, loss)
    return partial(eager, steps, loss)


def worth(steps: LocalSteps, loss: Loss, gpu: bool) -> bool:
    """Return whether recording pays, which depends on the job but not on the machine's speed."""
    fed = steps.fed
    own_weights = fed.job.local.class_weights == "client"  # a capture would serve one client
    if own_weights or is_users(loss, steps.client.architecture):
        return False
    n = (fed.job.rounds - fed.t) * fed.cohort_size / fed.comm.size * len(steps)
    short = gpu or fed.store.work(steps.client.architecture) * steps.size * steps.views <= SHORT
    return short and n >= (MANY_ON_GPU if gpu else MANY)


def eager(steps: LocalSteps, loss: Loss, x: Any, y: Any) -> None:
    """Make one step by autograd."""
    with autocast(steps.fed.job.run.precision, steps.fed.device, steps.model, x):
        value = loss(steps.model, x, y)
    check_value(loss, value, steps.leaves if not steps.losses else ())
    try:
        steps.descend(value)
    except RuntimeError as error:
        if AGAIN not in str(error):
            raise
        raise user_code.OwnError(
            f"{place_of(loss)} returns a value that was differentiated before; return the loss "
            f"without calling backward(), which hpcfed does, and .detach() what it takes from an "
            f"earlier batch"
        ) from error


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
    raise user_code.OwnError(f"{place_of(loss)} {what}; {advice}")


def place_of(loss: Loss) -> str:
    """Return where a loss is defined, and its name, as the beginning of a message."""
    fn = loss.func if isinstance(loss, partial) else loss
    return f"{user_code.line_of(fn)}: {title(loss)}"


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
        of_batch, labels = like(x, inputs[n : n + m]), like(y, inputs[n + m :])
        with autocast(fed.job.run.precision, fed.device, model, of_batch):
            return refill(inputs[:n])(model, of_batch, labels)

    return objective


class Traced:
    """A step by replay of a recording, which all clients of an architecture share."""

    verb = "recorded"  # the word for it in messages

    def __init__(self, steps: LocalSteps, loss: Loss):
        self.steps, self.loss, self.shared = steps, loss, steps.skeleton.captured
        self.by_size: dict[int, Any] = {}  # recordings for this client's batches; None: none
        self.key: Hashable = None  # of the recordings that it may use; None: it is eager
        try:
            fixed, self.loss_tensors, self.refill = extract_tensors(loss)
            names, clip = steps.optimiser.names, steps.optimiser.clip
            self.key = self.verb, fixed, names, clip, settings(steps.model)
        except Unshareable as why:
            self.give_up(why)

    def __call__(self, x: Any, y: Any) -> None:
        step = self.recording(x, y)
        if step is None:
            eager(self.steps, self.loss, x, y)
        else:
            self.steps.step(*step([*self.loss_tensors, *flat(x), *flat(y)]))

    def recording(self, x: Any, y: Any) -> Any:
        """Return the recording for batches like this one; None if there can be none."""
        if self.key is None:
            return None
        size = len(flat(x)[0])  # the batches of a client differ only in this
        if size not in self.by_size:
            key = self.key, form(x), tuple(signature(v) for v in (*flat(x), *flat(y)))
            if key not in self.shared:
                start = perf_counter()
                try:
                    self.shared[key] = self.record(x, y)
                # torch raises many types of errors; eager needs no recording
                except Exception as why:
                    self.give_up(why)
                    self.shared[key] = None
                self.steps.once += perf_counter() - start
            self.by_size[size] = self.shared[key]
        return self.by_size[size]

    def record(self, x: Any, y: Any) -> Any:
        """Return a new recording. Raises whatever torch raises if there can be none."""
        steps = self.steps
        inputs = [*self.loss_tensors, *flat(x), *flat(y)]
        objective = with_tensors(steps.fed, self.refill, len(self.loss_tensors), x, y)
        recording = RecordedStep(steps.skeleton, objective, inputs, steps.optimiser.names)
        compare([recording, self.differentiated(x, y)], inputs, steps)
        return recording

    def differentiated(self, x: Any, y: Any) -> Differentiated:
        """Return the eager step before its optimiser: (all inputs) -> loss and gradient."""
        steps = self.steps
        objective = with_tensors(steps.fed, self.refill, len(self.loss_tensors), x, y)
        leaves = [steps.skeleton.parameters[name] for name in steps.optimiser.names]

        def step(inputs: Sequence[Tensor]) -> tuple[Tensor, Gradient]:
            value = objective(steps.skeleton.model, inputs)
            return value.detach(), gradient(value, leaves)

        return step

    def give_up(self, why: Exception) -> None:
        """Warn that the eager engine takes over."""
        self.steps.fed.warnings.say(
            f"{title(self.loss)} cannot be {self.verb} ({first_line(why)}); it trains with the "
            f"eager engine"
        )


class Graphed(Traced):
    """A step by one launch of a CUDA graph, which all clients of an architecture share.

    The last batch of an epoch may be smaller, and has its own size at each client: such a step is
    eager, with the same bits, until batches of its size have come OFTEN times on this rank. The
    steps' optimiser is replaced by the one that graphs use; any step may use it.
    """

    verb = "captured"

    def __init__(self, steps: LocalSteps, loss: Loss):
        super().__init__(steps, loss)
        self.full = full(steps)
        if self.key is not None:
            steps.optimiser = Fixed.of(steps.skeleton, steps.optimiser)

    def __call__(self, x: Any, y: Any) -> None:
        size = len(flat(x)[0])
        new = size not in self.by_size
        graph = self.recording(x, y) if size >= self.full or self.is_often(size) else None
        if graph is None:
            return eager(self.steps, self.loss, x, y)
        if new:
            graph.give(self.loss_tensors)
        self.steps.done(graph([*flat(x), *flat(y)]))

    def is_often(self, size: int) -> bool:
        """Count a batch that is not full, and return whether its size has come often enough."""
        if self.key is None:
            return False
        counts = self.shared.setdefault(("sizes", self.key), Counter())
        if counts[size] < OFTEN and sum(n == OFTEN for n in counts.values()) < MOST_SIZES:
            counts[size] += 1
            return False
        return counts[size] == OFTEN

    def record(self, x: Any, y: Any) -> Graph:
        """Return a graph. Raises whatever torch raises if the step cannot be captured."""
        batch = [*flat(x), *flat(y)]
        return Graph(self.differentiated(x, y), self.steps.optimiser, self.loss_tensors, batch)


def compare(runs: Sequence[Differentiated], inputs: Sequence[Tensor], steps: LocalSteps) -> None:
    """Raise RuntimeError unless these steps have the same bits from the same state, and change no
    inputs.

    Compared are the loss, the gradient, and the model after it. The model stays as it was.
    """
    weights, outcomes, before = steps.skeleton.flat, [], [v.clone() for v in inputs]
    for run in runs:
        with restore_tensors([weights, *inputs]), rng.scoped(0, "compare", device=weights.device):
            value, gradient = run(inputs)
            outcomes.append([value, *gradient, weights.clone()])
            check_unchanged(inputs, before)
    if not all(map(torch.equal, *outcomes)):
        raise RuntimeError("its replay has other bits than the step itself")
