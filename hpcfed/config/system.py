"""The part of a job that models the clients' devices and network."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from hpcfed.config.conditions import field, other_than
from hpcfed.config.limits import FileName
from hpcfed.config.sections import NonNegative, Section

DRAWN = {"distribution": other_than("file")}


class System(Section):
    """The clients' devices and network, in virtual time.

    This models the clients, not the machine that runs the simulation.
    """

    distribution: Literal["equal", "uniform", "lognormal", "file", "measured"] = "equal"
    """How speed, bandwidth and latency differ between clients; file: read from `file`; measured:
    speeds from `measured`, the rest equal.
    """
    spread: NonNegative = field(
        0.5, used_if={"distribution": ("uniform", "lognormal")}, refused=False
    )
    """Uniform: factors from 1 - spread to 1 + spread; lognormal: standard deviation of their
    logarithms.
    """
    speed: PositiveFloat = field(1e10, used_if=DRAWN, refused=False)
    """Multiply-adds per second of the median device."""
    bandwidth: PositiveFloat = field(1e6, used_if=DRAWN, refused=False)
    """Bytes per second of the median client, up and down."""
    latency: NonNegative = field(0.1, used_if=DRAWN, refused=False)
    """Seconds of one exchange with the median client, in addition to the transfer of its bytes."""
    availability: Annotated[float, Field(gt=0, le=1)] = field(1.0, used_if=DRAWN, refused=False)
    """Share of the rounds or jobs for which a client can be reached."""
    file: FileName | None = None
    """CSV of all clients: client,speed,bandwidth,latency,availability."""
    measured: FileName | None = None
    """CSV of measurements, one line per client and round: client,seconds,examples."""
    trace: FileName | None = None
    """CSV of availability and speed over virtual time: client,time,available,speed."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client is lost in the middle of its work and never reports."""
    deadline: PositiveFloat | None = None
    """Virtual seconds after which a round closes; later clients are left out, or do the part of
    their work that fits.
    """

    @model_validator(mode="after")
    def agrees(self) -> Self:
        if (self.distribution == "file") != (self.file is not None):
            raise ValueError("distribution = 'file' and file go together: set both or none")
        if (self.distribution == "measured") != (self.measured is not None):
            raise ValueError("distribution = 'measured' and measured go together: set both or none")
        if self.distribution == "uniform" and self.spread >= 1:
            raise ValueError(
                f"distribution = 'uniform' needs spread < 1, but it is {self.spread:g}"
            )
        return self
