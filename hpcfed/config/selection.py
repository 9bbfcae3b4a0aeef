"""The part of a job that says how a round's cohort is chosen."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from hpcfed.config.parts import Part, Share


class Selection(Part):
    """How the clients of a round are chosen, for every method that works in rounds."""

    by: Literal["uniform", "size", "power-of-choice", "e3cs"] = "uniform"
    """Alike; in proportion to examples (use weighting = 'uniform'); highest losses of some
    candidates; E3CS: who reports.
    """
    candidates: PositiveInt | None = None
    """Power of choice: clients drawn by size, of which those with the highest losses train.
    Default: two cohorts.
    """
    quota: Share = 0.5
    """E3CS: least probability of each client, over that of a uniform choice."""
    eta: PositiveFloat = 0.5
    """E3CS: learning rate of its weights."""
