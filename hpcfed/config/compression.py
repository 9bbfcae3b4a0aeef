"""The part of a job that sets how uploads and downloads are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from hpcfed.config.conditions import field, other_than
from hpcfed.config.limits import Count
from hpcfed.config.sections import Section
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import Entry

if TYPE_CHECKING:
    from hpcfed.config.job import Job

FOLDER = "hpcfed.federation.transforms.compression"
CODECS = {  # the values of compression.by and, but for "vote", of compression.down; not "none"
    name: Entry(f"{FOLDER}.{target}", line, cite)
    for name, target, line, cite in (
        ("top-k", "topk:TopK", "the largest values and their positions", "aji2017"),
        ("random-k", "randomk:RandomK", "values at random positions", "stich2018"),
        ("stc", "stc:STC", "signs of the largest values, and one magnitude", "sattler2020"),
        ("qsgd", "qsgd:QSGD", "values rounded at random to a few levels", "alistarh2017"),
        ("terngrad", "terngrad:TernGrad", "-1, 0 or 1 at random, times a scale", "wen2017"),
        ("sign", "sign:Sign", "one bit a value", "karimireddy2019,bernstein2018"),
        ("vote", "vote:MajorityVote", "one bit a value, and the majority decides", "bernstein2018"),
        ("eden", "eden:EDEN", "a few bits a value after a random rotation", "vargaftik2022"),
        ("powersgd", "powersgd:PowerSGD", "matrices as products of thin factors", "vogels2019"),
        ("int8", "int8:Int8", "one byte a value", ""),
        ("float16", "float16:Float16", "half precision", ""),
        ("sz3", "sz3:SZ3", "error-bounded by prediction (pysz)", "liang2023,wilkins2024"),
        ("zfp", "zfp:ZFP", "error-bounded by a transform of blocks (zfpy)", "lindstrom2014"),
    )
}
Codec = Literal[
    "none",
    "top-k",
    "random-k",
    "stc",
    "qsgd",
    "terngrad",
    "sign",
    "eden",
    "powersgd",
    "int8",
    "float16",
    "sz3",
    "zfp",
]


Uploads = Literal[Codec, "vote"]
ENCODED = {"by": other_than("none", "vote")}


def either(*names: str) -> tuple[dict[str, tuple[str, ...]], ...]:
    """Return the condition that uploads or downloads have one of these codecs."""
    return {"by": names}, {"down": names}


SPARSE = either("top-k", "random-k", "stc")
ON = (ENCODED, {"down": other_than("none")})


class Compression(Section):
    """How uploads and downloads are encoded (`hpcfed list codecs`).

    It applies to every method. Bytes are those of the encoded messages.
    """

    by: Uploads = "none"
    """Codec of what clients send: of the difference to what they received if the method sends
    models, otherwise of the values. Vote: clients send the signs of their updates, the server moves
    each value by `eta` in the direction of the majority, and clients receive the votes.
    """
    down: Codec = "none"
    """Codec of what clients receive: of the difference to what the client received last."""
    share: Annotated[float, Gt(0), Le(1)] = field(0.1, used_if=SPARSE)
    """Top-k, random-k, STC: share of the values that are sent; the paper's STC: 0.0025."""
    per: Literal["message", "tensor"] = field("message", used_if=SPARSE)
    """Top-k, random-k, STC: it is the share of all values of a message, or of each tensor."""
    bits: Annotated[int, Ge(1), Le(16)] = field(4, used_if=either("qsgd", "eden"))
    """QSGD (2 to 16) and EDEN (1 to 8): bits of each value."""
    bucket: PositiveInt = field(512, used_if=either("qsgd"))
    """QSGD: number of values that have a norm in common."""
    eta: PositiveFloat | None = field(None, used_if=(*either("sign"), {"by": "vote"}))
    """Signs: magnitude of all decoded values; default: the mean magnitude of each tensor. Vote:
    what each value moves by in a round; it has no default.
    """
    rank: PositiveInt = field(2, used_if=either("powersgd"))
    """PowerSGD: number of columns of a matrix's factors."""
    bound: NonNegativeFloat = field(0.01, used_if=either("sz3", "zfp"))
    """SZ3 and ZFP: largest error of a value over the range of its tensor, max - min; 0: none."""
    feedback: Literal["auto", "none", "ef14", "ef21"] = field("auto", used_if=ENCODED)
    """What becomes of what an upload loses. Ef14: the client adds it to its next one; ef21: the
    client encodes the difference to what the server has of it; auto: for biased codecs, ef14 where
    clients send new versions of models, and ef21 where they send other values; nothing for
    random-k, QSGD, TernGrad and EDEN.
    """
    min_size: Count = field(1000, used_if=ON)
    """Tensors with fewer values travel as they are."""

    @model_validator(mode="after")
    def fits(self) -> Compression:
        for codec, least, most in (("qsgd", 2, 16), ("eden", 1, 8)):
            if codec in (self.by, self.down) and not least <= self.bits <= most:
                raise ValueError(f"bits = {self.bits}, but {codec} takes {least} to {most} bits")
        if self.by == "vote" and self.eta is None:
            raise ValueError(
                "by = 'vote' moves each value by the same amount in a round; set eta, such as 0.001"
            )
        if self.by == "vote" and self.down != "none":
            raise ValueError(
                f"down = {self.down!r}, but with by = 'vote' clients receive the votes; remove down"
            )
        return self


def check_compression(job: Job) -> None:
    """Raise ConfigError for encoded messages that other settings of the job rule out."""
    up, down = job.compression.by, job.compression.down
    if up == down == "none":
        return
    where = f"compression.{f'by = {up!r}' if up != 'none' else f'down = {down!r}'}"
    if job.edges.number:
        raise ConfigError(
            f"{where}: edge servers send sums of what they receive, which are not encoded, so that "
            f"their traffic would be wrong; remove [edges] or [compression]"
        )
    if up != "none" and job.privacy.by in ("local", "distributed"):
        raise ConfigError(
            f"{where}: with privacy.by = {job.privacy.by!r} clients add noise to what is encoded, "
            f"which no codec makes shorter; set compression.by = 'none' or privacy.by = 'central'"
        )
    if up == "vote":
        check_vote(job)
    if up not in ("none", "vote") and job.secure.by != "none":
        raise ConfigError(
            f"{where}: with secure.by = {job.secure.by!r} clients send masked whole numbers, which "
            f"no codec makes shorter; set compression.by = 'none'"
        )


def check_vote(job: Job) -> None:
    """Raise ConfigError for votes that other settings of the job rule out."""
    where = "compression.by = 'vote'"
    if job.algorithm.in_virtual_time:
        raise ConfigError(
            f"{where}: the results of {job.algorithm.name} arrive one by one, so that there is no "
            f"vote; take a method that works in rounds, such as fedavg"
        )
    if job.privacy.bounds:
        raise ConfigError(
            f"{where}: with privacy.by = {job.privacy.by!r} the server adds clipped updates up, "
            f"but signs have no length to clip; set compression.by or privacy.by = 'none'"
        )
