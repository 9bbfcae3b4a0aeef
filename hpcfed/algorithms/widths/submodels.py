"""Sub-models of a server's full-width model: their download, training and aggregation."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed import Client, Federation, Job, Mean, Params
from hpcfed.algorithms.base import Method, common_name, score_common
from hpcfed.core.architecture import Architecture
from hpcfed.federation.upload import Upload
from hpcfed.models.hooks import PureHook
from hpcfed.models.layers import BatchNorm2d
from hpcfed.models.scores import Mask, absent_classes, mask_logits
from hpcfed.models.widths import Choose, Window, first, take
from hpcfed.training.infer import FORWARD, outputs

Assignment = Literal["fix", "dynamic"]
HEAD = ("head.weight", "head.bias")
ABSENT = "absent"  # among the tensors of a local objective: whether the client lacks each class
# endings of the names of batch statistics, or of their moments
MEANS, SQUARES = ".running_mean", ".running_var"


@dataclass(frozen=True)
class Wide:
    """The server's state.

    weights: those of the model at full width, its buffers included.
    statistics: those of batch normalisation at other widths or for evaluation, "architecture/name";
    they replace the window's slice.
    t: the round whose windows are in force.
    """

    weights: Params
    statistics: Params
    t: int = 0


def base(fed: Federation) -> str:
    """Return the clients' one architecture, at full width."""
    return str(Architecture.parse(fed.architectures[0]).full)


def levels(fed: Federation) -> list[str]:
    """Return the clients' architecture at full width and at the job's widths, the widest first."""
    return [
        str(Architecture.parse(base(fed)).at(width))
        for width in sorted({1.0, *fed.job.models.widths}, reverse=True)
    ]


def refusal(job: Job, assignment: Assignment, moves: bool) -> dict[str, str]:
    """Return why a method with changing windows or widths cannot run the job, as `refuses` does.

    The optimiser's moments belong to units, and cannot be kept for a client whose units change.
    """
    widths = set(job.models.widths)
    changes = (assignment == "dynamic" and len(widths) > 1) or (moves and min(widths) < 1)
    if changes and job.local.keep_optimiser:
        why = (
            "needs a new optimiser in each round, for a client's units are others then, but the "
            "optimiser's moments are kept; set local.keep_optimiser = false"
        )
        return {"job": why}
    return {}


def accuracies(
    method: Method, fed: Federation, state: Wide, architectures: Iterable[str]
) -> dict[str, float]:
    """Return the accuracy of the whole model and of its sub-models, for `columns`; collective.

    It is measured on the whole test split, if evaluate.common.
    architectures: those of the sub-models.
    """
    if not fed.job.evaluate.common:
        return {}
    full = base(fed)
    return {
        f"{common_name(fed)}{name.removeprefix(full)}": score_common(method, fed, state, name)
        for name in (*architectures, full)
    }


def window(fed: Federation, architecture: str, choose: Choose = first) -> Window:
    """Return the places of this architecture's units in the model at full width.

    The units are by default the first ones. The window is empty at full width.
    """
    width = Architecture.parse(architecture).width
    return fed.store.units(architecture).window(width, choose) if width < 1 else {}


def start(fed: Federation, measured: Iterable[str] = ()) -> Wide:
    """Return the state before the first round.

    measured: architectures that have batch statistics of their own.
    """
    weights, statistics = fed.initial(architecture=base(fed)), Params()
    for architecture in measured:
        fresh = take(weights.pick(buffers(fed)), window(fed, architecture))
        statistics.update(fresh.clone().prefixed(f"{architecture}/"))
    return Wide(weights, statistics)


def buffers(fed: Federation) -> Callable[[str], bool]:
    """Return a test for names: whether a name is that of a batch statistic."""
    return set(fed.store.layout(base(fed)).buffers).__contains__


def piece(client: Client, state: Wide, at: Window) -> Params:
    """Return a client's download: its window of the weights, and its batch statistics.

    The batch statistics are those of its architecture.
    """
    return Params({**take(state.weights, at), **state.statistics.under(f"{client.architecture}/")})


@dataclass(frozen=True)
class Scaler(PureHook):
    """A hook that multiplies a layer's output by 1 / width."""

    width: float

    def __call__(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / self.width


@contextmanager
def scale_outputs(client: Client, active: bool = True) -> Iterator[None]:
    """Multiply the outputs of the body's layers by 1 / width inside the context.

    This is HeteroFL's scaler, for training.
    """
    width, body = Architecture.parse(client.architecture).width, client.model.body
    layers = (
        [m for m in body.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        if active and width < 1
        else []
    )
    hooks = [layer.register_forward_hook(Scaler(width)) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def present_classes(client: Client, classes: int) -> np.ndarray:
    """Return the classes of which the client has training examples, ascending."""
    return np.flatnonzero(np.bincount(client.train.labels, minlength=classes))


def mask_absent(client: Client, logits: Tensor, mask: Mask) -> Tensor:
    """Return logits with those of the classes masked that the client does not have."""
    if mask == "none":
        return logits
    return mask_logits(logits, present_classes(client, logits.shape[1]), mask)


def with_absent(download: Params, present: np.ndarray | None) -> Params:
    """Return the download and, where logits are masked, whether the client lacks each class.

    That is one tensor, ABSENT, for all local steps: none has to wait until a GPU has it.
    present: the classes that the client has; None: nothing is masked.
    """
    if present is None:
        return download
    bias = download["head.bias"]
    return Params({**download, ABSENT: absent_classes(present, len(bias), bias.device)})


def reason_for_classes(mask: Mask) -> str:
    """Return why a method needs classes, as `Method.needs_classes`."""
    return "" if mask == "none" else "algorithm.mask masks the logits of absent classes"


def upload(client: Client, at: Window, weight: float, classes: np.ndarray | None = None) -> Mean:
    """Return the client's tensors as pieces of the server's.

    classes: the only rows of the head that are sent; None: all.
    """
    values = client.params()
    if classes is not None and len(classes) < len(values["head.bias"]):
        at = {**at, **{name: (classes, *at.get(name, ())[1:]) for name in HEAD}}
    return Mean.of(rows_of_head(values, classes), weight, at)


def rows_of_head(values: Params, classes: np.ndarray | None) -> Params:
    """Return a model's tensors with these rows of the head alone; None: with all."""
    if classes is None or len(classes) == len(values["head.bias"]):
        return values
    rows = torch.as_tensor(classes, device=values["head.bias"].device)
    return Params({**values, **{name: values[name][rows] for name in HEAD}})


def measured_statistics(fed: Federation, state: Wide, weights: Params, cohort: list[int]) -> Params:
    """Return the batch statistics that new weights have on the cohort's data; collective.

    They are measured for the architectures of which the state has any. The clients receive the new
    parameters for that, and send the moments of their examples.
    """
    measured = sorted({name.partition("/")[0] for name in state.statistics})
    if not measured:
        return state.statistics
    is_buffer = buffers(fed)
    parameters = weights.pick(lambda name: not is_buffer(name))

    def query(client: Client) -> Upload:
        return Upload(measure(fed, client, fed.down(client, parameters), measured))

    nobody = state.statistics.map(lambda v: torch.full_like(v, torch.nan, dtype=torch.float64))
    moments = fed.mean(fed.stream(cohort, query), keep=nobody, per="tensor")
    return pool_statistics(moments, state.statistics)


def pool_statistics(moments: Params, old: Params) -> Params:
    """Return batch statistics of all clients' values together; where these are nan, the old ones.

    moments: "architecture/layer.running_mean", the mean, and "... .running_var", the mean square,
    float64. The variance is E[x^2] - E[x]^2, which includes that between batches and clients.
    """
    statistics = Params()
    for name, value in moments.items():
        if name.endswith(SQUARES):
            mean = moments[name.removesuffix(SQUARES) + MEANS]
            value = (value - mean.square()).clamp(min=0)
        statistics[name] = torch.where(value.isnan(), old[name], value.to(old[name].dtype))
    return statistics


def measure(fed: Federation, client: Client, parameters: Params, architectures: list[str]) -> Mean:
    """Return mean and mean square of the inputs of the batch normalisation layers.

    They are measured on the client's examples, and named "architecture/name", as `pool_statistics`
    takes them. A layer counts as many values as one of its channels has.

    Each layer normalises by its batch, without dropout and scaler; batches too small for that do
    not count (`BatchNorm2d`). Diao et al., ICLR 2021, section 3 ("static batch normalization").
    """
    values, counts = Params(), Params()
    for architecture in architectures:
        module = fed.module(architecture)
        module.assign(take(parameters, window(fed, architecture)))
        norms = {
            path: m for path, m in module.model.eval().named_modules() if isinstance(m, _BatchNorm)
        }
        with ExitStack() as stack:
            sums = {path: Moments() for path in norms}
            for path, norm in norms.items():
                norm.reset_running_stats()
                # normalise batches that are too small by the mean of those before
                norm.momentum = None
                norm.train()
                stack.enter_context(norm.register_forward_hook(sums[path]))
            outputs(fed, module.model, client.train)
        fed.tallies[client.id].work += FORWARD * client.n
        for path, moments in sums.items():
            if moments.count:
                for suffix, total in ((MEANS, moments.total), (SQUARES, moments.squares)):
                    name = f"{architecture}/{path}{suffix}"
                    values[name] = total / moments.count
                    counts[name] = torch.tensor(float(moments.count), device=total.device)
    return Mean.of(values, counts)


class Moments:
    """Hook of a batch normalisation layer that sums its inputs by channel, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Any = 0.0  # a tensor [channels] after the first batch, like squares
        self.squares: Any = 0.0

    def __call__(self, norm: _BatchNorm, inputs: tuple[Tensor], out: Tensor) -> None:
        (x,) = inputs
        if isinstance(norm, BatchNorm2d) and norm.skips(x):
            return
        count = x.numel() // x.shape[1]
        axes = [0, *range(2, x.ndim)]
        var, mean = (v.double() for v in torch.var_mean(x, axes, correction=0))
        self.count += count
        self.total += count * mean
        self.squares += count * (var + mean.square())
