"""The code of users' methods and models in a job, and whether it has changed since a run began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.config.architectures import find
from hpcfed.core import user_code
from hpcfed.core.architecture import Architecture
from hpcfed.core.code_digest import digest
from hpcfed.core.errors import ConfigError
from hpcfed.core.version import __version__

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


def own_names(method: str, models: Iterable[str]) -> list[str]:
    """Return those of these names that are users' own, as "module:attribute"."""
    named = filter(None, models)
    parts = [part.base for name in named for part in Architecture.parse(name).parts]
    bases = [base for base in parts if ":" in base and find(base).own]
    return list(dict.fromkeys([*([method] if ":" in method else []), *bases]))


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return the digest of the code of each name, which is imported."""
    return {name: digest(user_code.load("own", name, "module:attribute")) for name in names}


def changed(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose code is other than that with which a run began."""
    return [name for name, code in now.items() if stored.get(name, code) != code]


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
