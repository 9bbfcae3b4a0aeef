"""Writes a job as the text of a job file."""

from __future__ import annotations

from typing import Any

import tomli_w

from hpcfed.core.errors import ConfigError
from hpcfed.storage.fields import flat

# fields that belong to one call of a run, not to its job
OF_ONE_CALL = ("out", "resume", "overwrite", "force", "dry_run", "quiet", "verbose")


def without_call(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job without the fields that belong to one call of it."""
    return {name: value for name, value in job.items() if name not in OF_ONE_CALL}


def to_toml(job: dict[str, Any]) -> str:
    """Return the TOML text of a job's fields, nested.

    Fields that are None have no line: TOML has no such value, and None is their default.

    Raises ConfigError for a field that no job file can hold: None in a list, a name of a file that
    is not Unicode text.
    """
    for name, value in flat(job).items():
        try:
            tomli_w.dumps({} if value is None else {name: value}).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name}: {value!r:.200} cannot be written to a job file: {error}"
            ) from error
    return tomli_w.dumps(without_none(job))


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Return the tables without values that are None."""
    return {
        name: without_none(value) if isinstance(value, dict) else value
        for name, value in table.items()
        if value is not None
    }
