"""The part of a job that sets how a round's cohort is chosen."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from hpcfed.config.conditions import below, field
from hpcfed.config.sections import Section, Share
from hpcfed.core.registry import Entry

SELECTIONS = {  # the values of selection.by
    name: Entry("hpcfed.clients.selection:Choice", line, cite)
    for name, line, cite in (
        ("uniform", "all clients equally likely", ""),
        ("size", "in proportion to clients' numbers of examples", ""),
        ("power-of-choice", "the highest losses among candidates drawn by size", "cho2020powd"),
        ("e3cs", "clients that report become likelier, with a quota for all", "huang2020e3cs"),
        (
            "oort",
            "the highest losses over all examples, slow clients less, and new ones",
            "lai2021",
        ),
        ("poisson", "each client independently, so that cohorts differ in size", ""),
        ("cyclic", "groups of clients in turn, in a group each client independently", ""),
    )
}


class Selection(Section):
    """How the clients of a round are chosen (`hpcfed list selections`).

    It applies to every method that works in rounds.
    """

    by: Literal["uniform", "size", "power-of-choice", "e3cs", "oort", "poisson", "cyclic"] = (
        "uniform"
    )
    """Uniform; in proportion to examples (use weighting = 'uniform'); the highest losses among
    candidates drawn in proportion to examples (likewise); E3CS: prefers clients that report;
    Oort: prefers clients whose losses are high on many examples and who are not slow, and tries new
    ones; Poisson: each client with probability `participation`, the default with central privacy;
    cyclic: Poisson among the clients of one group, whose turn it is, the default with correlated
    noise.
    """
    groups: PositiveInt | None = field(None, used_if={"by": "cyclic"})
    """Cyclic: number b of groups; client k takes part in rounds k mod b, b + k mod b, ... only.
    Default: 1 / participation, so that each group has about one cohort.
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
    explore: Share = field(0.9, used_if={"by": "oort"})
    """Oort: share of clients in the first cohort that have never reported, drawn by size."""
    explore_decay: Annotated[float, Field(gt=0, le=1)] = field(0.98, used_if="explore")
    """Oort: factor of this share from round to round."""
    explore_least: Share = field(0.2, used_if={"explore_decay": below(1)})
    """Oort: below which this share does not fall."""
    cutoff: Share = field(0.95, used_if={"by": "oort"})
    """Oort: the other clients are drawn among those whose utility is at least this multiple of the
    lowest one that the cohort would have if it took the highest.
    """
    clip: Share = field(0.95, used_if={"by": "oort"})
    """Oort: quantile of the utilities to which larger ones are reduced."""
    slow: NonNegativeFloat = field(2.0, used_if={"by": "oort"})
    """Oort: power of (preferred seconds / seconds of the client) in the utility of clients that are
    slower than preferred.
    """
    preferred: Share = field(0.1, used_if="slow")
    """Oort: quantile of the clients' seconds that is the preferred duration of a round at first."""
    pace: PositiveInt = field(20, used_if="slow")
    """Oort: rounds after which this quantile rises by 0.05 if utilities have not changed by more
    than a tenth, and falls by as much if they are more than six times those of the rounds before.
    """

    @property
    def reads_losses(self) -> bool:
        """Whether clients report on their training losses."""
        return self.by in ("power-of-choice", "oort")
