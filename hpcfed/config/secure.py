"""The part of a job that sets how single uploads are hidden from the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import PositiveFloat

from hpcfed.config.conditions import field, other_than
from hpcfed.config.limits import PositiveInt
from hpcfed.config.sections import Section
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import Entry

if TYPE_CHECKING:
    from hpcfed.config.job import Job

ON = {"by": other_than("none")}
CODED = {"by": "lightsecagg"}

PROTOCOLS = {  # the values of secure.by
    name: Entry(f"hpcfed.federation.transforms.secure.{module}", line, cite)
    for name, module, line, cite in (
        ("secagg", "pairwise:PairwiseSum", "masks between all pairs of clients", "bonawitz2017"),
        ("secagg+", "pairwise:PairwiseSum", "masks between neighbours in a graph", "bell2020"),
        ("lightsecagg", "coded:CodedSum", "coded masks, recovered in one step", "so2022"),
    )
}


class Secure(Section):
    """Secure aggregation: the server learns sums of uploads, and no single one (see
    `hpcfed list protocols`).

    It needs the extra "secure". The bits of a run are those without masks, and the keys follow from
    the seed: the job shows costs and drop-outs, and protects nobody.
    """

    by: Literal["none", "secagg", "secagg+", "lightsecagg"] = "none"
    """The protocol: SecAgg, with masks between all pairs of clients; SecAgg+, between neighbours in
    a graph; LightSecAgg, with coded masks.
    """
    masks: Literal["made", "charged"] = field("made", used_if=ON)
    """Whether keys, shares and masks are made, or only their bytes and seconds are counted; results
    are the same.
    """
    threshold: Annotated[float, Gt(0), Lt(1)] = field(0.5, used_if=ON)
    """Share of clients (SecAgg+: of a client and its neighbours) of which more have to stay until
    the end for a sum to succeed.
    """
    neighbours: Annotated[PositiveInt, Ge(2)] | None = field(None, used_if={"by": "secagg+"})
    """Neighbours of each client. Default: 2 ceil(log2 n) of n clients."""
    colluding: Annotated[float, Ge(0), Lt(1)] = field(0.25, used_if=CODED)
    """Share of clients that together learn nothing about another one; smaller than threshold."""
    bound: PositiveFloat | None = field(None, used_if=ON)
    """Largest magnitude of a value in an upload, from which the scale of sums follows. Not needed
    if privacy.clip bounds uploads, or if clients vote (compression.by).
    """
    largest_weight: PositiveFloat | None = field(None, used_if="bound")
    """Largest weight of a client in a mean. Default: the largest number of examples of a client."""
    on_failure: Literal["keep", "stop"] = field("keep", used_if=ON)
    """What happens if too few clients stay: the round leaves server and clients as they are (keep),
    or the run ends (stop).
    """
    slowdown: PositiveFloat = field(1.0, used_if=ON)
    """Time that clients' devices take for keys and masks, over that of one core of a server."""


def check_secure(job: Job) -> None:
    """Raise ConfigError for a secure aggregation that is impossible, with the reason.

    Whether the method's server computes with more than sums, a trial shows later.
    """
    secure, where = job.secure, f"secure.by = {job.secure.by!r}"
    if secure.by == "none":
        return
    if job.edges.number:
        raise ConfigError(
            f"{where}: edge servers would get the uploads that it hides; remove [edges]"
        )
    if job.algorithm.in_virtual_time:
        raise ConfigError(
            f"{where}: the results of {job.algorithm.name} arrive one by one in virtual time, so "
            f"that no sum hides them; take a method that works in rounds, such as fedavg"
        )
    if job.selection.reads_losses:
        raise ConfigError(
            f"{where} hides what single clients send, but selection.by = {job.selection.by!r} "
            f"reads their losses; set selection.by = 'uniform'"
        )
    if secure.by == "lightsecagg" and secure.colluding >= secure.threshold:
        raise ConfigError(
            f"secure.colluding = {secure.colluding:g} has to be below secure.threshold = "
            f"{secure.threshold:g}: as many clients could remove the masks by themselves"
        )
    clipped = job.privacy.clip is not None and job.privacy.by not in ("local", "examples")
    bounded = clipped or job.compression.by == "vote"
    if not bounded and secure.bound is None:
        raise ConfigError(
            f"{where} adds up whole numbers, whose scale follows from a bound that is known "
            f"before; set secure.bound to the largest magnitude of a value that clients send, such "
            f"as 10, or bound uploads by privacy.clip"
        )
    if bounded and secure.bound is not None:
        bound = f"privacy.clip = {job.privacy.clip:g}" if clipped else "compression.by = 'vote'"
        raise ConfigError(
            f"secure.bound = {secure.bound:g} has no effect, for {bound} bounds what clients send; "
            f"remove it"
        )
