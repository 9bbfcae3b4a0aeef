"""The part of a job that says how clients adapt their models after the last round."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from hpcfed.config.sections import Section


class Adapt(Section):
    """Local adaptation of the clients' models after the last round, with any method.

    It needs no communication, and no round or checkpoint contains it.
    """

    how: Literal["none", "all", "head", "ewc", "distil"] = "none"
    """None; fine-tuning of all layers, or of the head alone; of all with elastic weight
    consolidation, or with distillation from the model as it was.
    """
    epochs: NonNegativeInt = 1
    """Epochs over the client's data; 0 leaves the model as it is."""
    lr: PositiveFloat | None = None
    """Learning rate; none: that of local training."""
    lam: NonNegativeFloat = 5000.0
    """Ewc: weight of the penalty; 0 is fine-tuning."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Distil: weight of the distillation; 0 is fine-tuning."""
    tau: PositiveFloat = 6.0
    """Distil: temperature."""
    save: bool = False
    """Write the adapted models into the run's folder `adapted`; needs hpcfed[models]."""
