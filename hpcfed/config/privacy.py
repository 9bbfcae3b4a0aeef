"""The part of a job that sets how the presence of a client, or of an example, is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from hpcfed.config.conditions import field, other_than
from hpcfed.config.sections import Section

if TYPE_CHECKING:
    from hpcfed.config.job import Job

PAPERS = {  # keys of references.bib, by the value of privacy.by, .mechanism or .clipping
    "central": ("mcmahan2018dp",),
    "adaptive": ("andrew2021",),
    "distributed": ("kairouz2021ddg", "agarwal2021skellam"),
    "correlated": ("kairouz2021dpftrl", "choquettechoo2023"),
    "examples": ("abadi2016",),
}
ON = {"by": other_than("none")}
BOUNDED = {"by": ("central", "local", "distributed", "correlated")}
CENTRAL = {"by": "central"}
DISTRIBUTED = {"by": "distributed"}
MECHANISMS = {  # by privacy.by, the default first
    "distributed": ("discrete-gaussian", "skellam"),
    "correlated": ("banded", "tree"),
}
ADAPTIVE = {"clipping": "adaptive"}


class Privacy(Section):
    """Differential privacy: clipped uploads, noise, and the account of what they reveal."""

    by: Literal["none", "central", "local", "distributed", "correlated", "examples"] = "none"
    """Where noise is added: by the server to the sum of clipped uploads (central; correlated over
    rounds), by each client to its own upload (local), as shares of the noise of the sum
    (distributed), or to each gradient of local training (examples): DP-SGD.
    """
    clip: PositiveFloat | None = field(None, used_if=ON)
    """Bound C: largest L2 norm of a client's upload, to which longer ones are scaled: of its update
    if the method sends models, otherwise of the values; with examples, of the gradient of each.
    It has to be set.
    """
    clipping: Literal["flat", "layers", "adaptive"] = field("flat", used_if=BOUNDED)
    """Flat: the bound is that of all tensors together; layers: each of L tensors has the bound
    clip / sqrt(L); adaptive: flat, and the bound follows a quantile of the clients' norms.
    """
    noise: NonNegativeFloat | None = field(None, used_if=ON)
    """Noise multiplier z: standard deviation of the noise over the bound C, of local noise over 2
    C. Default: what the epsilon of the job needs, or 0.
    """
    epsilon: Annotated[float, Gt(0), Le(1000)] | None = field(None, used_if=ON)
    """Budget: without `noise` the least noise with which all rounds stay within it is computed;
    with `noise` the run ends before the round that would exceed it.
    """
    delta: Annotated[float, Gt(0), Lt(1)] = field(1e-5, used_if=ON)
    """Probability with which the guarantee may fail; smaller than 1 / clients."""
    accountant: Literal["pld", "rdp"] = field(
        "pld",
        used_if={"by": ("central", "local", "correlated", "examples")},
        why="the account of distributed noise is by Renyi divergences (privacy.by)",
    )
    """How epsilon is computed: privacy loss distributions, close to exact; Renyi differential
    privacy, an upper bound.
    """
    neighbours: Literal["add-remove", "replace", "zero-out"] = field("add-remove", used_if=CENTRAL)
    """What epsilon compares: a client takes part or not; its data are any others; its data are
    none, so that it sends zeros.
    """
    cap: PositiveFloat | None = field(
        None, used_if={"by": ("central", "distributed", "correlated")}
    )
    """Number of examples from which clients have the same weight: min(n, cap) / cap. None: all
    clients have the same weight.
    """
    count_scale: PositiveFloat | None = field(None, used_if=BOUNDED)
    """Factor of counts beside sums in a client's norm, for methods whose uploads have a weight for
    each class: more of it means less noise in the counts, and more in the sums. Default: with n
    weights of 1 they take half of the squared bound, clip / sqrt(2 n).
    """
    mechanism: Literal["discrete-gaussian", "skellam", "banded", "tree"] | None = field(
        None, used_if={"by": ("distributed", "correlated")}
    )
    """Distributed: discrete-gaussian (default) or skellam noise. Correlated: by banded Toeplitz
    matrices (banded, default), or by the nodes of trees over rounds (tree).
    """
    bits: Annotated[int, Ge(4), Le(24)] = field(16, used_if=DISTRIBUTED)
    """Distributed: bits of each integer that a client sends; sums are modulo 2^bits."""
    fewest: PositiveInt | None = field(None, used_if=DISTRIBUTED)
    """Distributed: number of clients whose shares together have the multiplier `noise`; a round
    with fewer costs more. Default: the expected cohort.
    """
    quantile: Annotated[float, Gt(0), Lt(1)] = field(0.5, used_if=ADAPTIVE)
    """Adaptive: the share of clients whose norms the bound is to exceed."""
    clip_rate: PositiveFloat = field(0.2, used_if=ADAPTIVE)
    """Adaptive: learning rate of the bound's logarithm."""
    bit_noise: NonNegativeFloat | None = field(None, used_if=ADAPTIVE)
    """Adaptive: standard deviation of the noise on the number of clients within the bound. Default:
    a twentieth of the expected cohort, if there is noise.
    """

    @property
    def has_noise(self) -> bool:
        """Whether what is released has noise, so that it has a finite epsilon."""
        return self.by != "none" and bool(self.noise or (self.noise is None and self.epsilon))

    @property
    def kind(self) -> str:
        """The mechanism of distributed or correlated noise."""
        return self.mechanism or MECHANISMS[self.by][0]

    @property
    def sampling(self) -> str:
        """The selection of cohorts on which the account counts; "": any."""
        return {"central": "poisson", "distributed": "poisson", "correlated": "cyclic"}.get(
            self.by, ""
        )

    @property
    def bounds(self) -> bool:
        """Whether what a client sends is bounded, and has noise as a whole."""
        return self.by not in ("none", "examples")


def refusals(job: Job) -> Iterator[str]:
    """Yield the reasons why no account of privacy can be kept of a job, and what to do."""
    privacy, method, selection = job.privacy, job.algorithm, job.selection
    if privacy.by != "none" and privacy.clip is None:
        bounded = "what it sends" if privacy.bounds else "each example's gradient"
        yield f"it hides nothing unless {bounded} is bounded; set privacy.clip"
    if not privacy.bounds:
        return
    if method.in_virtual_time:
        yield (
            f"{method.name} works without rounds, and how often a client sends then depends on the "
            f"others; take a method that works in rounds, such as fedavg"
        )
    if selection.by in ("size", "e3cs") or selection.reads_losses:
        yield (
            f"selection.by = {selection.by!r} chooses clients by their data, or by what they "
            f"report, which no noise hides; set selection.by = 'poisson'"
        )
    if getattr(method, "weighting", "") == "samples" and not privacy.cap:
        yield (
            "algorithm.weighting = 'samples': a client counts by its examples without limit; set "
            "algorithm.weighting = 'uniform'"
            + (", or privacy.cap" if privacy.by != "local" else "")
        )
    if job.local.class_weights == "all":
        yield (
            "local.class_weights = 'all' follow from the numbers of examples of each class, which "
            "no noise hides; set local.class_weights = 'client'"
        )
    if privacy.clipping == "adaptive" and privacy.by != "central":
        yield "only the server's independent noise can adapt to a bound that changes; set " + (
            "privacy.clipping = 'flat'"
        )
    if privacy.clipping == "adaptive" and job.secure.by != "none":
        yield (
            "clients send whether their update is within the bound, and no mask of secure.by hides "
            "that; set privacy.clipping = 'flat'"
        )
    kinds = MECHANISMS.get(privacy.by, ())
    if privacy.mechanism and privacy.mechanism not in kinds:
        yield f"it has no mechanism {privacy.mechanism!r}; take {' or '.join(map(repr, kinds))}"
    if privacy.sampling:
        yield from refusals_of_sampling(job)


def refusals_of_sampling(job: Job) -> Iterator[str]:
    """Yield the reasons that concern cohorts, and the server's sum over them."""
    privacy, method = job.privacy, job.algorithm
    if job.edges.number:
        yield (
            "edge servers take means of their own clients, and the account knows those of all "
            "clients; set edges.number = 0"
        )
    if not method.samples_cohorts:
        yield f"{method.name} schedules its clients itself; take a method such as fedavg"
    if job.local.stragglers:
        yield (
            "local.stragglers is a share of a cohort, so that who is slow depends on who else is "
            "in it; set local.stragglers = 0, and system.dropout instead, which is about each "
            "client by itself"
        )
    if privacy.by != "correlated" and job.selection.by == "cyclic":
        yield (
            "the account takes cohorts to be independent of one another, and by selection.by = "
            "'cyclic' a client is in every b-th round; set selection.by = 'poisson', or "
            "privacy.by = 'correlated'"
        )
    if privacy.by == "correlated" and job.selection.by != "cyclic":
        yield (
            f"a client may take part in every b-th round only, which selection.by = "
            f"{job.selection.by!r} does not ensure; set selection.by = 'cyclic'"
        )
    if job.cohort_size == job.clients:
        return
    if job.selection.by == "uniform" and privacy.neighbours != "replace":
        yield (
            f"cohorts of a fixed size (selection.by = 'uniform') have no client more or less; set "
            f"selection.by = 'poisson', or privacy.neighbours = 'replace' instead of "
            f"{privacy.neighbours!r}"
        )
    poisson = job.selection.by == "poisson"
    if poisson and privacy.accountant == "rdp" and privacy.neighbours == "replace":
        yield (
            "the accountant 'rdp' has no Poisson cohorts with privacy.neighbours = 'replace'; set "
            "privacy.accountant = 'pld'"
        )
