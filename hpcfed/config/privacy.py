"""The part of a job that sets how the presence of a client, or of an example, is hidden."""

from typing import Annotated, Literal

from annotated_types import Gt, Lt
from pydantic import NonNegativeFloat, PositiveFloat

from hpcfed.config.conditions import field, other_than
from hpcfed.config.sections import Section

ON = {"by": other_than("none")}


class Privacy(Section):
    """Differential privacy: clipped uploads, noise, and the account of what they reveal."""

    by: Literal["none", "central", "local", "examples"] = "none"
    """Where noise is added: by the server to the sum of clipped uploads (central), by each client
    to its own upload (local), or to each gradient of local training (examples): DP-SGD.
    """
    clip: PositiveFloat | None = field(None, used_if=ON)
    """Largest L2 norm of a client's upload, of which longer ones are shortened to it: of its update
    where the method sends models, otherwise of the values. None: there is no bound.
    """
    noise: NonNegativeFloat = field(0.0, used_if=ON)
    """Standard deviation of the noise over clip."""
    delta: Annotated[float, Gt(0), Lt(1)] = field(1e-5, used_if=ON)
    """Probability with which the guarantee may fail."""
    cap: PositiveFloat | None = field(None, used_if=ON)
    """Number of examples from which clients have the same weight: min(n, cap) / cap. None: methods
    that weight clients by their examples are refused, unless their weighting is "uniform".
    """
