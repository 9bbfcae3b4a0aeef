"""The part of a job that sets edge servers between the clients and the server."""

from typing import Annotated, Self

from annotated_types import Ge
from pydantic import Field, PositiveFloat, model_validator

from hpcfed.config.conditions import field
from hpcfed.config.limits import Count, FileName, PositiveInt
from hpcfed.config.sections import NonNegative, Section


class Edges(Section):
    """Edge servers: each aggregates its clients, and the server aggregates the edges."""

    number: Count = 0
    """Number of edge servers; 0: clients talk to the server."""
    clients: tuple[Annotated[int, Ge(0)], ...] = field((), used_if="number")
    """The edge server of each client, in id order; default: client k has edge k modulo number."""
    file: FileName | None = field(None, used_if="number")
    """CSV with the edge server of each client instead: client,edge."""
    rounds: PositiveInt = field(1, used_if="number")
    """Rounds after which the server aggregates the edges; between these each edge has its own
    model.
    """
    bandwidth: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = field(
        (1e7,), used_if="number"
    )
    """Bytes per second between an edge and the server, up and down; one number, or one per edge."""
    latency: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = field(
        (0.1,), used_if="number"
    )
    """Seconds of one exchange of an edge with the server, in addition to the transfer; one number,
    or one per edge.
    """

    @model_validator(mode="after")
    def agrees(self) -> Self:
        if self.clients and self.file is not None:
            raise ValueError("clients and file both say which client has which edge: set one")
        for name in ("bandwidth", "latency"):
            count = len(getattr(self, name))
            if self.number and count not in (1, self.number):
                raise ValueError(
                    f"{name} has {count} numbers for {self.number} edges; give one, or one per edge"
                )
        for k, e in enumerate(self.clients):
            if self.number and e >= self.number:
                raise ValueError(
                    f"clients: client {k} has edge {e}; edges are 0..{self.number - 1}"
                )
        return self
