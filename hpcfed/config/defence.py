"""The part of a job that sets how the server defends its means against attackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Lt
from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from hpcfed.config.attack import hides_uploads
from hpcfed.config.conditions import field, other_than
from hpcfed.config.limits import PositiveInt
from hpcfed.config.sections import Section
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import Entry

if TYPE_CHECKING:
    from hpcfed.config.job import Job

FOLDER = "hpcfed.federation.transforms.defence"
DEFENCES = {  # the values of defence.by, but for "none"
    name: Entry(f"{FOLDER}.{target}", line, cite)
    for name, target, line, cite in (
        ("median", "median:Median", "the median of each value", "yin2018"),
        ("trimmed-mean", "median:TrimmedMean", "the mean without the extremes", "yin2018"),
        ("krum", "krum:Krum", "the update nearest to others", "blanchard2017"),
        ("multi-krum", "krum:MultiKrum", "the mean of those nearest to others", "blanchard2017"),
        ("bulyan", "krum:Bulyan", "Krum's choice, then the values near the median", "elmhamdi2018"),
        (
            "geometric-median",
            "geometric_median:GeometricMedian",
            "the point with the least distance to all",
            "pillutla2022",
        ),
        (
            "centred-clipping",
            "clipping:CentredClipping",
            "the mean of updates clipped around the last one",
            "karimireddy2021",
        ),
        ("norm-bound", "clipping:NormBound", "the mean of shortened updates", "sun2019"),
        ("foolsgold", "foolsgold:FoolsGold", "less weight for clients that act alike", "fung2020"),
        ("fltrust", "fltrust:FLTrust", "trust by the server's own update", "cao2021"),
        ("flame", "flame:Flame", "the majority's cluster, clipped, with noise", "nguyen2022flame"),
    )
}
ALIKE = (
    "krum",
    "multi-krum",
    "bulyan",
    "centred-clipping",
    "fltrust",
    "flame",
)  # count all clients alike
# uploads, or groups of them, that a rule needs against f attackers: a f + b
LEAST = {"trimmed-mean": (2, 1), "krum": (2, 3), "multi-krum": (2, 3), "bulyan": (4, 3)}


class Defence(Section):
    """What the server computes in the place of the mean of clients' uploads, so that attackers
    cannot move it at will (`hpcfed list defences`).

    It stands in the place of each mean over clients that a method computes.
    """

    by: Literal[
        "none",
        "median",
        "trimmed-mean",
        "krum",
        "multi-krum",
        "bulyan",
        "geometric-median",
        "centred-clipping",
        "norm-bound",
        "foolsgold",
        "fltrust",
        "flame",
    ] = "none"
    """The rule. Krum, multi-Krum, Bulyan, centred clipping, FLTrust and FLAME count clients alike;
    the others take into account the weights that clients have in the mean. FLTrust trains on
    labelled public data (data.public).
    """
    attackers: Annotated[float, Ge(0), Lt(0.5)] = field(0.2, used_if={"by": tuple(LEAST)})
    """Share of a cohort that the rule takes for attackers, rounded down to clients."""
    bucket: PositiveInt = field(1, used_if={"by": other_than("none", "norm-bound", "foolsgold")})
    """Clients whose uploads are averaged, in random groups, before the rule sees them (bucketing),
    which helps if honest clients differ much; 1: none.
    """
    best: PositiveInt | None = field(None, used_if={"by": "multi-krum"})
    """Multi-Krum: number of updates that are averaged. Default, and at most: all but the attackers
    and two.
    """
    iterations: PositiveInt | None = field(
        None, used_if={"by": ("geometric-median", "centred-clipping")}
    )
    """Iterations of the rule. Default: 100 of the geometric median, 1 of centred clipping."""
    nu: PositiveFloat = field(1e-5, used_if={"by": "geometric-median"})
    """Geometric median: smallest distance that counts."""
    clip: PositiveFloat | None = field(None, used_if={"by": ("centred-clipping", "norm-bound")})
    """Length to which updates are shortened: with norm-bound their own, by default the median of
    their lengths; with centred-clipping that of their difference to the server's last update.
    """
    noise: NonNegativeFloat = field(0.001, used_if={"by": "flame"})
    """FLAME: standard deviation of the noise over the median length of updates."""

    @model_validator(mode="after")
    def fits(self) -> Defence:
        if self.by == "centred-clipping" and self.clip is None:
            raise ValueError(
                "by = 'centred-clipping' clips the difference to the last update; set clip, such "
                "as 1 for updates of length 1 to 10"
            )
        return self


def check_defence(job: Job) -> None:
    """Raise ConfigError for a defence that other settings of the job rule out."""
    defence, where = job.defence, f"defence.by = {job.defence.by!r}"
    if defence.by == "none":
        return
    if other := hides_uploads(job) or ("[edges]" if job.edges.number else ""):
        raise ConfigError(
            f"{where} compares single uploads, but with {other} the server only gets sums of them; "
            f"remove one of both"
        )
    if defence.by in ALIKE and job.attack.by == "overweight":
        raise ConfigError(
            f"{where} counts clients alike, so that attack.by = 'overweight', which claims more "
            f"weight, has no effect; set another attack.by, or a defence.by such as 'median'"
        )
    if defence.by == "fltrust" and not job.data.public:
        raise ConfigError(
            f"{where}: the server trains on labelled examples of its own; set data.public to their "
            f"number, such as 100"
        )
    n = job.cohort_size
    f = int(defence.attackers * n + 1e-9)
    if defence.by in LEAST and not f:
        raise ConfigError(
            f"defence.attackers = {defence.attackers:g}: of a cohort of {n} that is no client, so "
            f"that {defence.by} withstands none; set a share of at least {1 / n:.3g}"
        )
    a, b = LEAST.get(defence.by, (0, 0))
    groups = -(-n // defence.bucket)
    if groups < a * f + b:
        units, size, smaller = "clients", "", "a smaller defence.attackers"
        if defence.bucket > 1:
            units, size = "groups", f" groups of {n} clients"
            smaller += ", a smaller defence.bucket"
        raise ConfigError(
            f"{where} needs {a} f + {b} = {a * f + b} {units} against f = {f} attackers, but a "
            f"cohort has {groups}{size}; set {smaller}, or a larger participation"
        )
    if defence.by in ALIKE and getattr(job.algorithm, "weighting", "uniform") != "uniform":
        raise ConfigError(
            f"{where} counts clients alike, but algorithm.weighting = "
            f"{job.algorithm.weighting!r}; remove algorithm.weighting, or set it to 'uniform'"
        )
