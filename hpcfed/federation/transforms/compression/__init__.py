"""Compression of uploads and downloads: each codec is one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcfed.config.compression import CODECS
from hpcfed.federation.transforms.compression.codec import Codec
from hpcfed.federation.transforms.compression.transform import Compression, Feedback
from hpcfed.federation.transforms.compression.vote import MajorityVote, Signs

if TYPE_CHECKING:
    from hpcfed.config.compression import Compression as Settings
    from hpcfed.federation.federation import Federation


def install_compression(fed: Federation) -> None:
    """Give a federation the transform of its job's compression; with votes, the rule for means.

    Raises ConfigError if the package of a codec is missing.
    """
    settings = fed.job.compression
    if settings.by == "vote":
        assert settings.eta is not None
        fed.transforms.append(Signs())
        fed.rule = MajorityVote(settings.eta)
    elif settings.by != "none" or settings.down != "none":
        fed.transforms.append(transform_of(settings))


def transform_of(settings: Settings) -> Compression:
    """Return the transform of a job's codecs."""
    feedback: Feedback = settings.feedback
    # codecs that are right in the mean enlarge values, and errors that are added to later messages
    up = codec_of(settings.by, settings, unbiased=feedback in ("auto", "none"))
    if feedback == "auto" and not (up and up.contracts):
        feedback = "none"
    return Compression(up, codec_of(settings.down, settings, unbiased=False), feedback)


def codec_of(name: str, settings: Settings, unbiased: bool) -> Codec | None:
    """Return the codec of this name with the job's settings; None for "none".

    unbiased: random-k, QSGD and TernGrad decode values that are right in the mean.
    """
    if name == "none":
        return None
    together = settings.per == "message"
    arguments: dict[str, dict[str, Any]] = {
        "top-k": {"share": settings.share, "together": together},
        "random-k": {"share": settings.share, "together": together, "scaled": unbiased},
        "stc": {"share": settings.share, "together": together},
        "qsgd": {
            "levels": 2 ** (settings.bits - 1) - 1,
            "bucket": settings.bucket,
            "unbiased": unbiased,
        },
        "terngrad": {"unbiased": unbiased},
        "sign": {"eta": settings.eta},
        "eden": {"bits": settings.bits},
        "powersgd": {"rank": settings.rank},
        "sz3": {"bound": settings.bound},
        "zfp": {"bound": settings.bound},
    }
    return CODECS[name].load()(**arguments.get(name, {}), min_size=settings.min_size)
