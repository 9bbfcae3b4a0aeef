"""FIARSE: each client trains the most important weights of one model, as many as it can hold.

A weight is as important as it is large. Sub-models are so not slices of layers but chosen weight by
weight, and training itself decides which weights become large.

Wu et al. (FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel Extraction),
NeurIPS 2024, arXiv:2407.19389. S_k are the weights that client k has, a share g_k of all, and
theta_k is the magnitude of the smallest of them (with largest_of = "layer" of those in one layer).
The mask of weight i is 1 if it is in S_k and |w_i| >= theta_k, and 0 otherwise. It is computed anew
in each step, theta_k once per round; the mask's gradient makes the factor c_i.

Objective: F_k(w_S); grad_i <- c_i grad_i; c_i = 1 + 2 theta_k |w_i| / (|w_i| + theta_k)^2
Server: w_i <- mean_(k: i in S_k) w_ki
Round:
1. The server sends each client the largest weights of the model, as many as the client can hold,
   and a bit for each weight that says whether it is among them.
2. The client trains them; in its steps those that have become smaller than theta_k count as 0.
3. It sends all weights of S_k, also those that count as 0 by now.
4. The server averages each weight over the clients that had it; others stay.

Deviations: the text of the paper was not at hand; formulas are those of the authors' code
(HarliWu/FIARSE). There a client whose update of a weight is exactly 0 does not count in its
mean, and weights as large as theta_k exceed the share g_k; here the first of them are taken. With
g_k = 1 the factor is 1. Layers of normalisation are sent whole. Each size has statistics of batch
normalisation of its own, the mean over the clients of this size; the code computes them in a pass
of their own. The masked model is as large in memory, and takes as long, as the full one.
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from hpcfed import Client, Federation, Guide, Job, Mean, Model, Params, RoundBased, Upload
from hpcfed.algorithms.base import common_name, score_common
from hpcfed.algorithms.personal.fedbn import ALL as NORMS
from hpcfed.config.conditions import below, field
from hpcfed.core.architecture import Architecture
from hpcfed.models.variants import name_variant

HOLDS = "holds"  # the variant of architectures that says a client's share of the weights
Size = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class State:
    """The server's state.

    weights: all weights that a mask may leave out as one vector, "masked", [P]; parameters of
    layers of normalisation by their names.
    statistics: those of batch normalisation, "SIZE/name".
    """

    weights: Params
    statistics: Params


class FIARSE(RoundBased):
    """With sizes = [1] it is FedAvg with equal weights, bit for bit."""

    guide = Guide(
        data="alike to different labels",
        sent="the largest weights, and which they are",
        won="above HeteroFL, FedRolex and ScaleFL with four sizes of clients",
    )

    per: ClassVar[str] = "value"
    trains_parts: ClassVar[bool] = False

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of a value: 1, or its number of training examples."""
    sizes: Annotated[tuple[Size, ...], Field(min_length=1)] = (1.0, 0.25, 0.0625, 0.015625)
    """Shares of the weights that clients have: client k has that of sizes[k modulo length]."""
    largest_of: Literal["model", "layer"] = field("model", used_if={"sizes": below(1)})
    """The largest weights are those of the whole model, or of each layer as many in proportion."""

    @property
    def variants(self) -> Any:
        return tuple(name_variant(HOLDS, f"{size:g}") for size in self.sizes)

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if min(self.sizes) < 1 and job.local.keep_optimiser:
            why = (
                "needs a new optimiser in each round, for a client has other weights then, but the "
                "optimiser's moments are kept; set local.keep_optimiser = false"
            )
            reasons["job"] = why
        return reasons

    def init(self, fed: Federation) -> State:
        start, buffers = fed.initial(), statistics_of(fed)
        statistics = Params()
        for size in sorted(set(self.sizes), reverse=True):
            statistics.update(start.pick(buffers.__contains__).clone().prefixed(f"{size:g}/"))
        return State(join(model_of(fed), start.pick(fed.trainable)), statistics)

    def model(self, state: State) -> Params:
        return Params({**state.weights, **state.statistics})

    def positions(self, fed: Federation, state: State, share: float) -> Tensor:
        """Return the places in the vector of weights of the largest ones, ascending."""
        weights = state.weights["masked"].abs()
        if self.largest_of == "model":
            return largest(weights, share)
        lengths = [sum(counts.values()) for counts in layers_of(model_of(fed)).values()]
        starts = [0, *accumulate(lengths)]
        layers = zip(starts, weights.split(lengths), strict=False)
        return torch.cat([start + largest(layer, share) for start, layer in layers])

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        size = size_of(client.architecture)
        values = Params({**state.weights, **state.statistics.under(f"{size:g}/")})
        if size < 1:
            at = self.positions(fed, state, size)
            mask = torch.zeros_like(values["masked"], dtype=torch.bool)
            mask[at] = True
            values |= {"masked": values["masked"][at], "mask": to_bytes(mask)}
        return values

    def receive(self, client: Client, state: Params) -> None:
        client.load(split(client.model, state))

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        """Return the loss of the masked weights. state: what `masks` returns."""
        masks, least = state.under("mask/"), state.under("least/")
        if not masks:
            return super().loss(client, state, model, x, y)
        weights = {
            name: mask_weight(value, masks[name], least[name])
            for name, value in model.named_parameters()
            if name in masks
        }
        return client.task.loss(functional_call(model, weights, (x,)), y)

    def masks(self, client: Client, download: Params) -> Params:
        """Return what training needs of a download: masks of the weights, and least magnitudes.

        They are "mask/name", whether the client has a weight, and "least/name", theta_k; nothing if
        it has all weights.
        """
        if "mask" not in download:
            return Params()
        masks, values = of_layers(client.model, has(download)), split(client.model, download)
        least: dict[str, Tensor] = {}
        for names in layers_of(client.model).values():
            magnitudes = [torch.where(masks[n], values[n].abs(), torch.inf).amin() for n in names]
            least |= dict.fromkeys(names, torch.stack(magnitudes).amin())
        if self.largest_of == "model":
            least = dict.fromkeys(least, torch.stack([*least.values()]).amin())
        return Params({**masks.prefixed("mask/"), **Params(least).prefixed("least/")})

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        self.train(fed, client, self.masks(client, download), t)
        trained, buffers = client.params(), statistics_of(fed)
        sent, at = join(client.model, trained.pick(fed.trainable)), {}
        if "mask" in download:
            places = has(download).nonzero()[:, 0]
            at["masked"] = (places.cpu(),)
            sent["masked"] = sent["masked"][places]
        prefix = f"{size_of(client.architecture):g}/"
        after, before = (
            values.pick(buffers.__contains__).prefixed(prefix) for values in (trained, download)
        )
        return Upload(
            Mean.of(Params({**sent, **after}), self.weight(client), at),
            relative_to=Params({**download.pick(sent.__contains__), **before}),
        )

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        return State(mean.pick(state.weights.__contains__), mean.pick(lambda name: "/" in name))

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        """Return the main metric of the sub-model of each size on the whole test split."""
        if not fed.job.evaluate.common:
            return {}
        name, numbers = common_name(fed), {}
        base = Architecture.parse(fed.architectures[0])
        for i, size in enumerate(sorted(set(self.sizes), reverse=True)):
            kind = f"{replace(base, variants=())}{name_variant(HOLDS, f'{size:g}')}"
            numbers[f"{name}@{size:g}" if i else name] = score_common(self, fed, state, kind)
        return numbers


def hold(model: Model, size: float) -> Model:
    """Return the model as it is: its architecture's name alone says a client's share of it.

    hpcfed.models.variants loads this function by its name.
    """
    return model


def size_of(architecture: str) -> float:
    """Return the share of the weights that a client of this architecture has, g_k."""
    return next(
        float(v.options[0]) for v in Architecture.parse(architecture).variants if v.name == HOLDS
    )


def model_of(fed: Federation) -> Model:
    """Return a model of the clients' architecture, whose weights mean nothing."""
    return fed.module(fed.architectures[0]).model


def statistics_of(fed: Federation) -> set[str]:
    """Return the names of the statistics of batch normalisation."""
    return {name for name in fed.shapes() if not fed.trainable(name)}


def layers_of(model: Model) -> dict[str, dict[str, int]]:
    """Return the number of weights of each parameter that a mask may leave out, by layer and name.

    These are all parameters but those of layers of normalisation.
    """
    norms = {path for path, module in model.named_modules() if isinstance(module, NORMS)}
    layers: dict[str, dict[str, int]] = {}
    for name, value in model.named_parameters():
        layer = name.rpartition(".")[0]
        if layer not in norms:
            layers.setdefault(layer, {})[name] = value.numel()
    return layers


def join(model: Model, values: Params) -> Params:
    """Return a model's parameters, those that a mask may leave out as one vector, "masked"."""
    names = [name for layer in layers_of(model).values() for name in layer]
    flat = torch.cat([values[name].flatten() for name in names])
    return Params({"masked": flat, **values.pick(lambda name: name not in names)})


def split(model: Model, download: Params) -> Params:
    """Return the tensors of a download by name; weights that the client does not have are 0."""
    flat, others = download["masked"], download.pick(lambda n: n not in ("masked", "mask"))
    if "mask" in download:
        mask = has(download)
        flat = torch.zeros_like(mask, dtype=flat.dtype).masked_scatter(mask, flat)
    return Params({**of_layers(model, flat), **others})


def of_layers(model: Model, flat: Tensor) -> Params:
    """Return the parts of a vector of all weights that a mask may leave out, by their names.

    What is beyond them (bits that fill up a byte) is cut off.
    """
    counts = {name: n for layer in layers_of(model).values() for name, n in layer.items()}
    shapes = dict(model.named_parameters())
    parts = flat[: sum(counts.values())].split([*counts.values()])
    return Params({n: v.view(shapes[n].shape) for n, v in zip(counts, parts, strict=True)})


def largest(weights: Tensor, share: float) -> Tensor:
    """Return the places of the largest values, ascending; of equal ones the first, at least one.

    weights: [n], magnitudes of weights.  share: of the places.
    """
    n = max(1, int(share * len(weights)))
    least = weights.topk(n).values[-1]
    above = weights > least
    equal = (weights == least).nonzero()[:, 0]
    above[equal[: n - int(above.sum())]] = True
    return above.nonzero()[:, 0]


def to_bytes(mask: Tensor) -> Tensor:
    """Return a mask [n], bool, as bytes [n / 8], whose lowest bits come first."""
    padded = torch.nn.functional.pad(mask, (0, -len(mask) % 8)).view(-1, 8).long()
    return (padded << torch.arange(8, device=mask.device)).sum(1).to(torch.uint8)


def has(download: Params) -> Tensor:
    """Return whether the client has each weight: the mask of a download, [n], and up to 7 zeros."""
    bits = torch.arange(8, device=download["mask"].device)
    return (download["mask"][:, None] >> bits & 1).flatten().bool()


def mask_weight(value: Tensor, mask: Tensor, least: Tensor) -> Tensor:
    """Return a parameter with 0 for weights that the client lacks, or that are below `least`.

    The gradient of others is multiplied by c_i.
    """
    magnitude = value.detach().abs()
    tiny = torch.finfo(magnitude.dtype).tiny
    factor = 1 + 2 * least * magnitude / (magnitude + least).square().clamp(min=tiny)
    masked = torch.where(mask & (magnitude >= least), value, 0)
    scaled = factor * masked
    return masked.detach() + (scaled - scaled.detach())
