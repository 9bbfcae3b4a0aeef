"""The part of a job that sets which clients attack the others, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import NonNegativeFloat, NonNegativeInt, model_validator

from hpcfed.config.conditions import field, other_than
from hpcfed.config.limits import PositiveInt
from hpcfed.config.sections import Section
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import Entry

if TYPE_CHECKING:
    from hpcfed.config.job import Job

FOLDER = "hpcfed.federation.transforms.attack"
ATTACKS = {  # the values of attack.by, but for "none"
    name: Entry(f"{FOLDER}.{target}", line, cite)
    for name, target, line, cite in (
        ("label-flip", "data:LabelFlip", "trains on wrong labels", "tolpegin2020"),
        ("backdoor", "data:Backdoor", "teaches a class for a trigger", "bagdasaryan2020,gu2017"),
        ("edge-case", "data:EdgeCase", "teaches a class for images of other data", "wang2020tails"),
        ("noise", "alone:Noise", "random updates", "blanchard2017"),
        ("sign-flip", "alone:SignFlip", "updates in the opposite direction", "li2019rsa"),
        ("free-rider", "alone:FreeRider", "no work: what was received", "fraboni2021"),
        ("overweight", "alone:Overweight", "claims more examples", ""),
        ("alie", "together:ALittleIsEnough", "a little beside the mean", "baruch2019"),
        ("ipm", "together:InnerProduct", "the honest mean, reversed", "xie2020fall"),
        ("fang", "together:Fang", "beyond the honest extremes", "fang2020"),
        ("fang-krum", "together:FangOnKrum", "as far as Krum chooses it", "fang2020"),
        ("min-max", "together:MinMax", "as far as honest ones are apart", "shejwalkar2021"),
        ("min-sum", "together:MinSum", "as far in the sum of distances", "shejwalkar2021"),
    )
}
ALONE = ("label-flip", "noise", "sign-flip", "free-rider", "overweight", "backdoor", "edge-case")
TOGETHER = ("alie", "ipm", "fang", "fang-krum", "min-max", "min-sum")
TARGETED = ("backdoor", "edge-case")
SCALED = ("noise", "sign-flip", "free-rider", "overweight", *TARGETED, "alie", "ipm")
ON = {"by": other_than("none")}
BACKDOOR, EDGE_CASE = {"by": "backdoor"}, {"by": "edge-case"}


class Attack(Section):
    """Clients that attack: who they are, from when, and what they do (`hpcfed list attacks`).

    It applies to whatever a method's clients send: weights, heads, prototypes, logits, kernels.
    """

    by: Literal[
        "none",
        "label-flip",
        "backdoor",
        "edge-case",
        "noise",
        "sign-flip",
        "free-rider",
        "overweight",
        "alie",
        "ipm",
        "fang",
        "fang-krum",
        "min-max",
        "min-sum",
    ] = "none"
    """The attack. ALIE, IPM, both of Fang, min-max and min-sum know what honest clients of the
    round send, and all attackers send the same.
    """
    share: Annotated[float, Ge(0), Lt(1)] = field(0.2, used_if=ON)
    """Share of the clients that attack, drawn once; rounded to clients."""
    clients: tuple[NonNegativeInt, ...] = field((), used_if=ON)
    """The clients that attack, by id, in the place of a share."""
    start: PositiveInt = field(1, used_if=ON)
    """Round in which they begin, from 1."""
    scale: NonNegativeFloat | None = field(None, used_if={"by": SCALED})
    """Strength. Noise: standard deviation of values (0.1). Sign-flip: factor of the reversed update
    (1). Free-rider: standard deviation of noise on what it received (0). Overweight: factor of its
    weight in means (10). Backdoor and edge case: factor of the update (1; clients over attackers:
    the attackers' model replaces the server's). ALIE: standard deviations beside the mean (by the
    numbers of clients and attackers). IPM: factor of the reversed mean (0.1).
    """
    direction: Literal["std", "mean", "sign"] = field("std", used_if={"by": ("min-max", "min-sum")})
    """Min-max and min-sum: against the standard deviation of honest updates, their mean, or the
    sign of the mean.
    """
    target: NonNegativeInt = field(0, used_if={"by": TARGETED})
    """Backdoor: class that the model is to see in images with the trigger; edge case: in images of
    the other data set.
    """
    poisoned: Annotated[float, Gt(0), Le(1)] = field(0.5, used_if={"by": TARGETED})
    """Share of an attacker's training examples that get the trigger, or an image of the other data
    set in their place, and the target.
    """
    patch: PositiveInt = field(4, used_if=BACKDOOR)
    """Backdoor: side of the trigger, a bright square in the lower right corner, in pixels."""
    distributed: bool = field(False, used_if=BACKDOOR)
    """Backdoor: each attacker has a quarter of the trigger only, in turn; success is that of all of
    it. It takes a `patch` of 2 or more.
    """
    source: str = field("", used_if=EDGE_CASE)
    """Edge case: data set with images of the same shape that clients do not have."""
    source_class: NonNegativeInt = field(0, used_if=EDGE_CASE)
    """Edge case: class of the images in that data set."""
    public: Annotated[float, Ge(0), Le(1)] = field(0.0, used_if={"by": ("label-flip", "backdoor")})
    """Share of the public examples (data.public) that somebody has poisoned likewise before the
    run; they reach all clients and the server.
    """

    def number(self, clients: int) -> int:
        """Return the number of attackers.  clients: of the job."""
        return 0 if self.by == "none" else len(self.clients) or round(self.share * clients)

    @model_validator(mode="after")
    def fits(self) -> Attack:
        if self.by == "edge-case" and not self.source:
            raise ValueError(
                "by = 'edge-case' needs images that clients do not have; set source to a data set "
                "with images of the same shape"
            )
        if self.clients and self.share != type(self).model_fields["share"].default:
            raise ValueError("set share or clients, not both")
        if self.by == "backdoor" and self.distributed and self.patch < 2:
            raise ValueError(
                f"patch = {self.patch}: a trigger of one pixel has no quarters; set patch to 2 or "
                f"more, or remove distributed"
            )
        if len(set(self.clients)) < len(self.clients):
            raise ValueError("clients: a client is named twice")
        return self


def hides_uploads(job: Job) -> str:
    """Return the setting of a job with which the server gets only sums of uploads; "": none."""
    settings = {
        f"privacy.by = {job.privacy.by!r}": job.privacy.bounds and job.privacy.by != "local",
        f"secure.by = {job.secure.by!r}": job.secure.by != "none",
        "compression.by = 'vote'": job.compression.by == "vote",
    }
    return next((setting for setting, active in settings.items() if active), "")


def bounds_weights(job: Job) -> str:
    """Return why a client of a job gains nothing by claiming more weight; "": it may."""
    if job.compression.by == "vote":
        return "with compression.by = 'vote' each client has one vote"
    if job.privacy.bounds:
        return f"privacy.by = {job.privacy.by!r} bounds what a client counts"
    return ""


def check_attack(job: Job) -> None:
    """Raise ConfigError for an attack that other settings of the job rule out."""
    attack, where = job.attack, f"attack.by = {job.attack.by!r}"
    if attack.by == "none":
        return
    if beyond := [k for k in attack.clients if k >= job.clients]:
        raise ConfigError(
            f"attack.clients: there is no client {beyond[0]}; clients are 0..{job.clients - 1}"
        )
    n, K = attack.number(job.clients), job.clients
    if not n and attack.share:
        raise ConfigError(
            f"attack.share = {attack.share:g}: of {K} clients that is nobody; set a share of at "
            f"least {1 / K:.3g}, or 0"
        )
    if n == K:
        raise ConfigError(
            f"{where}: all {K} clients attack, and nobody is left to be evaluated; set a smaller "
            f"attack.share, or fewer attack.clients"
        )
    if attack.by == "alie" and attack.scale is None and n > K // 2:
        raise ConfigError(
            f"{where}: {n} of {K} clients are the majority, and need not hide; set a smaller "
            f"attack.share, or attack.scale"
        )
    if attack.start > job.rounds:
        raise ConfigError(
            f"attack.start = {attack.start}: the run has {job.rounds} rounds; set a smaller one"
        )
    if attack.public and not job.data.public:
        raise ConfigError(
            f"attack.public = {attack.public:g}: there are no public examples; set data.public"
        )
    if attack.by == "overweight" and (reason := bounds_weights(job)):
        raise ConfigError(
            f"{where} claims more weight, but {reason}, so that it has no effect; set another "
            f"attack.by, such as 'sign-flip'"
        )
    if attack.by not in TOGETHER:
        return
    if reason := hides_uploads(job):
        raise ConfigError(
            f"{where} replaces uploads by what it knows of others, but with {reason} nobody gets "
            f"single uploads; take one of {', '.join(ALONE)}, or remove that setting"
        )
    if job.algorithm.in_virtual_time:
        raise ConfigError(
            f"{where} needs what the other clients of a round send, but the results of "
            f"{job.algorithm.name} arrive one by one; take one of {', '.join(ALONE)}"
        )
