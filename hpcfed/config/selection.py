"""The part of a job that sets how a round's cohort is chosen."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from hpcfed.config.conditions import field
from hpcfed.config.sections import Section, Share
from hpcfed.core.registry import Entry

SELECTIONS = {  # the values of selection.by
    name: Entry("hpcfed.clients.selection:Choice", line, cite)
    for name, line, cite in (
        ("uniform", "all clients equally likely", ""),
        ("size", "in proportion to clients' numbers of examples", ""),
        ("power-of-choice", "the highest losses among candidates drawn by size", "cho2020powd"),
        ("e3cs", "clients that report become likelier, with a quota for all", "huang2020e3cs"),
        ("poisson", "each client independently, so that cohorts differ in size", ""),
        ("cyclic", "groups of clients in turn, in a group each client independently", ""),
    )
}


class Selection(Section):
    """How the clients of a round are chosen (`hpcfed list selections`).

    It applies to every method that works in rounds.
    """

    by: Literal["uniform", "size", "power-of-choice", "e3cs", "poisson", "cyclic"] = "uniform"
    """Uniform; in proportion to examples (use weighting = 'uniform'); the highest losses among
    candidates drawn in proportion to examples (likewise); E3CS: prefers clients that report;
    Poisson: each client with probability `participation`, the default with central privacy; cyclic:
    Poisson among the clients of one group, whose turn it is, the default with correlated noise.
    """
    groups: PositiveInt | None = field(None, used_if={"by": "cyclic"})
    """Cyclic: number b of groups; client k takes part in rounds k mod b, b + k mod b, ... only.
    Default: so many that each has about a cohort, 1 / participation.
    """
    candidates: PositiveInt | None = field(None, used_if={"by": "power-of-choice"})
    """Power of choice: clients drawn by size, of which those with the highest losses train.
    Default: two cohorts.
    """
    quota: Share = field(0.5, used_if={"by": "e3cs"})
    """E3CS: minimum probability of each client, relative to a uniform choice."""
    quota_after: Share = field(0.0, used_if="quota")
    """E3CS: share of the run's rounds before the quota begins; until then it is 0. Authors' "inc":
    0.25, with quota = 1.
    """
    eta: PositiveFloat = field(0.5, used_if={"by": "e3cs"})
    """E3CS: learning rate of its weights."""
