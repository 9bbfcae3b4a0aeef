"""The part of a job that says what is evaluated."""

from typing import Annotated, Literal

from pydantic import Field

from hpcfed.config.conditions import field
from hpcfed.config.limits import Count, Names, PositiveInt
from hpcfed.config.sections import Section

EVERYBODY = 1_000  # largest number of clients of which evaluate.clients = "auto" evaluates all


class Evaluate(Section):
    """When clients are evaluated on their test sets."""

    every: PositiveInt = 1
    """Rounds between evaluations; the last round is always evaluated."""
    before: bool = True
    """Evaluate the cohort before local training too."""
    received: bool = False
    """Evaluate clients also with the model that the server would send them now, before they train
    it.
    """
    common: bool = False
    """Evaluate the server's model, if it is a complete model, on the whole test split."""
    clients: Literal["auto", "all", "cohort"] | PositiveInt = "auto"
    """Clients to evaluate after a round: all, the cohort, or this number, drawn once; auto: all if
    there are at most 1,000 clients, else the cohort. A round's means and pooled values are those of
    these clients, and the others have no value in it.
    """
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each client's training examples that is held out for choosing values; models are
    also scored on it.
    """
    validation_model: Literal["own", "received"] = field("own", used_if="validation")
    """Model that is scored on them: the client's own after its local training; or the one that it
    would receive next, so that values are chosen for the server's model.
    """
    patience: Count = field(0, used_if="validation")
    """Evaluations without a lower validation loss, mean over clients, after which the run ends; 0:
    it runs all rounds.
    """
    metrics: Names = ()
    """Metrics besides the main one (`hpcfed list metrics`), separated by commas; none: the default
    metrics of the task.
    """
    groups: Annotated[str, Field(max_length=60)] = ""
    """Tables: a column of categories, such as sex. After the last round each metric is computed for
    the test examples of each category too, with an interval.
    """
    unseen: Annotated[str, Field(max_length=60)] = ""
    """Domain on which no client trains, and which is evaluated: the name of a natural client, or
    one of the angles in data.shift.degrees. Scored is the server's model if it is a complete one,
    else that of each client.
    """
    batch: PositiveInt = 256
    """Examples in one forward pass."""


def evaluates_all(wanted: str | int, clients: int) -> bool:
    """Return whether all clients are evaluated after a round.

    wanted: the job's evaluate.clients.  clients: how many there are.
    """
    return wanted == "all" or (wanted == "auto" and clients <= EVERYBODY)
