"""Compression of uploads and downloads: each codec is one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Return the codec of this name, as `Codec.of_job`; None for "none"."""
    return None if name == "none" else CODECS[name].load().of_job(settings, unbiased)
