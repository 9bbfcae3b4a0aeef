"""The code of users' methods and models in a job, and whether it has changed since a run began."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.core.errors import ConfigError
from hpcfed.core.version import __version__
from hpcfed.models.own_code import changed, digests, own_names

if TYPE_CHECKING:
    from hpcfed.config.job import Job

ANEW = (
    "start anew (--overwrite, or another --out), or continue all the same with --own-changed (in "
    "Python overwrite=True or own_changed=True)"
)


def names_of(job: Job) -> list[str]:
    """Return the names of the users' methods, models and metrics of a job."""
    named = own_names(job.algorithm.name, [*job.models.mix, job.models.proxy, job.models.server])
    return [*named, *(name for name in job.evaluate.metrics if ":" in name)]


def check(job: Job, folder: Path, header: Mapping[str, Any]) -> list[str]:
    """Check the code of a run that is to be resumed, and return warnings.

    header: of the run's results.
    Raises ConfigError if a method or model of the user has changed, unless the job accepts that.
    """
    differ = changed(header.get("own", {}), digests(names_of(job)))
    if differ and not job.own_changed:
        raise ConfigError(refusal(differ, str(folder)))
    before = header.get("versions", {}).get("hpcfed", __version__)
    warnings = [f"{name} has changed since {folder} began" for name in differ]
    warnings += [f"{folder} began with hpcfed {before}, and continues with {__version__}"] * (
        before != __version__
    )
    return warnings


def refusal(names: list[str], folder: str) -> str:
    """Return the message about changed code."""
    return (
        f"the code of {', '.join(names)} has changed since {folder} began, so its rounds would be "
        f"of two methods; {ANEW}"
    )
