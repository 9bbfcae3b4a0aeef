"""Shared parts of the methods whose server matches units of the clients' models."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from hpcfed import Client, Federation, Params, RoundBased, Upload
from hpcfed.algorithms.base import find_units, score_server
from hpcfed.algorithms.matching import nonparametric
from hpcfed.algorithms.matching.nonparametric import Prior
from hpcfed.algorithms.matching.permutation import Order
from hpcfed.config.conditions import Unused, other_than, unless
from hpcfed.models.widths import Units, take
from hpcfed.training.server import parameters

# what a client sends: under "model" tensors, under "counts" its number of examples of each class
Sent = dict[str, Params]


@dataclass(frozen=True)
class State:
    """The server's wide model, and the places of the clients' units in it.

    model: the wide model.
    sizes: number of units of each of its groups, [G], in the order of groups.
    orders: for each client of the last cohort, under "ID/GROUP", the places of its units, int64.
    """

    model: Params
    sizes: Tensor
    orders: Params = dataclasses.field(default_factory=Params)


class Matched(RoundBased):
    """A method whose server matches units: the groups of units, and the tensors that count."""

    start: Literal["common", "own"] = "common"
    """Clients of the first round start from one model, or each from its own random weights.
    """

    def units(self, fed: Federation) -> Units:
        """Return the groups of units of the clients' model.

        Raises ConfigError for an architecture whose groups are not known.
        """
        return find_units(fed, "matches the units of models", "cnn or mlp for one, or fedavg")

    def counts(self, fed: Federation) -> Callable[[str], bool]:
        """Return a test for the names of tensors: whether units are matched by this tensor.

        Units are matched by parameters, not by statistics.
        """
        return parameters(fed.module(fed.architectures[0]))


class Widened(Matched):
    """A server whose layers have as many units as the beta process finds (`nonparametric`)."""

    unused: ClassVar[Unused] = {
        "weighting": unless({"estimate": other_than("map")}),
    }

    estimate: Literal["map", "mean"] = "map"
    """A unit of the wide model is the posterior mean of the vectors matched to it, or their mean by
    `weighting`.
    """
    class_weights: Literal["shares", "clients"] = "shares"
    """Weights towards a class count by the client's share of all examples of that class, or as the
    client's other weights do.
    """
    sigma0: PositiveFloat = 1.0
    """Variance of the values of the wide model's units around their prior mean."""
    sigma: PositiveFloat = 1.0
    """Variance of the values of a client's units around those of the wide model's."""
    bias_mean: float = 0.1
    """Prior mean of biases; that of all other values is 0."""
    gamma: PositiveFloat = 1.0
    """Mass of the beta process: the larger, the more units the wide model has."""
    sweeps: NonNegativeInt = 5
    """Maximum number of times that every client's units are taken out and matched again."""

    @property
    def prior(self) -> Prior:
        """The prior that `nonparametric` takes, from this method's fields."""
        return Prior(self.sigma0, self.sigma, self.gamma, self.bias_mean)

    @property
    def needs_classes(self) -> str:
        shares = self.class_weights == "shares"
        return "algorithm.class_weights = 'shares' weighs by examples of a class" if shares else ""

    @property
    def reads_head(self) -> bool:
        """Whether the last layer's weights count by classes."""
        return self.class_weights == "shares"

    def upload(self, fed: Federation, client: Client, model: Params, last: bool = True) -> Upload:
        """Return tensors of a client's model, and with the last of them what `shares` needs."""
        parts: dict[str, Any] = {"model": model}
        if last and self.class_weights == "shares":
            counts = torch.as_tensor(fed.label_counts[client.id], device=fed.device)
            parts["counts"] = Params(examples=counts.to(torch.int32))
        return Upload(**parts)

    def shares(self, sent: Iterable[Sent]) -> list[Tensor]:
        """Return each client's part of the examples of each class, [C], float64; [] if not sent.

        All clients have equal parts of a class of which none has examples.
        """
        counts = [parts["counts"]["examples"].double() for parts in sent if "counts" in parts]
        if not counts:
            return []
        total = sum(counts, start=torch.zeros_like(counts[0]))
        return [torch.where(total > 0, count / total, 1 / len(counts)) for count in counts]

    def weigh(self, fed: Federation, k: int) -> float:
        """Return the weight of client k in the mean of a unit's vectors."""
        uniform = self.estimate == "map" or self.weighting == "uniform"
        return 1.0 if uniform else float(fed.sizes[k])

    def init(self, fed: Federation) -> State:
        return self.gathered(fed, fed.initial(), list(self.units(fed).sizes.values()), {})

    def widened(self, fed: Federation, sizes: Sequence[int]) -> Units:
        """Return the groups of a model whose groups have these sizes, in their order."""
        units = self.units(fed)
        for group, size in zip(list(units.sizes), sizes, strict=True):
            units = nonparametric.widen(units, group, size)
        return units

    def order(self, fed: Federation, state: State, k: int) -> Order:
        """Return, by group, the units of the server's model that client k downloads.

        A client of the last cohort gets the units that its own were matched to. Any other client
        gets those that most clients had.
        """
        orders = state.orders.under(f"{k}/")
        if orders:
            return {int(group): at.cpu().numpy() for group, at in orders.items()}
        sizes = self.units(fed).sizes
        return {group: torch.arange(size).numpy() for group, size in sizes.items()}

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        if self.start == "own" and not state.orders and client.id < fed.K:
            return fed.initial(k=client.id)
        order, wide = (
            self.order(fed, state, client.id),
            self.widened(fed, state.sizes.tolist()),
        )
        return take(state.model, wide.places(order))

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        score = score_server(fed, fed.architectures[0], state.model)
        return {"units": float(state.sizes.sum())} | score

    def gathered(
        self, fed: Federation, model: Params, sizes: Sequence[int], orders: Mapping[int, Order]
    ) -> State:
        """Return the state with a new wide model.

        orders: the places of the units of each client that contributed to it.
        """
        by_name = {
            f"{k}/{group}": torch.from_numpy(at).to(fed.device, torch.int64)
            for k, order in orders.items()
            for group, at in order.items()
        }
        return State(
            model, torch.tensor(list(sizes), dtype=torch.int64, device=fed.device), Params(by_name)
        )
