"""The part of a job that says what is evaluated."""

from typing import Annotated, Literal

from pydantic import Field

from hpcfed.config.conditions import field
from hpcfed.config.limits import Names, PositiveInt
from hpcfed.config.sections import Section


class Evaluate(Section):
    """When clients are evaluated on their test sets."""

    every: PositiveInt = 1
    """Evaluate after every so many rounds, and after the last."""
    before: bool = True
    """Evaluate the cohort before local training too."""
    received: bool = False
    """Evaluate all clients also with the model that the server would send them now, before they
    train it.
    """
    common: bool = False
    """Evaluate the server's model, where it is a whole one, on the whole test split."""
    clients: Literal["auto", "all", "cohort"] | PositiveInt = "auto"
    """Whom to evaluate after a round: all, the cohort, or so many drawn once; auto: all of up to
    1,000 clients, and of more the cohort.
    """
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each client's training examples that are held out to choose values by: models are
    scored on them too.
    """
    validation_model: Literal["own", "received"] = field("own", used_if="validation")
    """Which model is scored on them: a client's own, in its round that of its local training; or
    what it would receive next, so that values are chosen for the server's model.
    """
    metrics: Names = ()
    """What to measure beside accuracy (`hpcfed list metrics`), separated by commas; none: accuracy
    for classes, what is usual for the task of other data.
    """
    batch: PositiveInt = 256
    """Examples in one forward pass."""
