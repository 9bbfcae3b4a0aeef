"""The part of a job that sets how clients adapt their models after the last round."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from hpcfed.config.conditions import field, other_than
from hpcfed.config.sections import Section

ADAPTS = {"how": other_than("none")}


class Adapt(Section):
    """Local adaptation of the clients' models after the last round, with any method.

    It needs no communication, and no round or checkpoint contains it. With privacy.by = "examples"
    it has no noise: what it learns stays with the client, and the account does not count it.
    """

    how: Literal["none", "all", "head", "ewc", "distil"] = "none"
    """None; fine-tuning of all layers, or only of the head; of all layers with elastic weight
    consolidation, or with distillation from the model before.
    """
    epochs: NonNegativeInt = field(1, used_if=ADAPTS)
    """Epochs over the client's data; 0 leaves the model as it is."""
    lr: PositiveFloat | None = field(None, used_if=ADAPTS)
    """Learning rate; none: that of local training."""
    lam: NonNegativeFloat = field(5000.0, used_if={"how": "ewc"})
    """Ewc: weight of the penalty; 0 is fine-tuning."""
    alpha: Annotated[float, Field(ge=0, le=1)] = field(0.95, used_if={"how": "distil"})
    """Distil: weight of the distillation; 0 is fine-tuning."""
    tau: PositiveFloat = field(6.0, used_if={"how": "distil"})
    """Distil: temperature."""
    save: bool = field(False, used_if=ADAPTS)
    """Write the adapted models into the run's folder `adapted`; needs hpcfed[models]."""
