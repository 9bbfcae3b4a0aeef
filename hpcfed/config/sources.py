"""What a job's values come from: calls in Python, flags, the environment, and tables of files."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any, NoReturn

from pydantic.fields import FieldInfo
from pydantic_settings import (
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)

from hpcfed.config.job import PROGRAM, Job
from hpcfed.config.validation_messages import no_field, stray
from hpcfed.core.errors import ConfigError

READING = Lock()  # held while flags are read: a model's parser keeps what it has read last


def given_job(
    model: type[Job],
    call: dict[str, Any],
    flags: list[str],
    tables: Sequence[dict[str, Any]],
) -> Job:
    """Return a job from a call's fields, flags, environment and tables, of which the first wins.

    Raises ConfigError for flags without a field, ValidationError for values that the model does not
    accept, and SettingsError for variables that cannot be read.
    """
    over = [InitSettingsSource(model, values) for values in (call, read_flags(model, flags))]
    under = [InitSettingsSource(model, table) for table in tables]
    return filled(model, [*over, Environment(model), *under])


def stored_job(model: type[Job], stored: dict[str, Any]) -> Job:
    """Return a job from one table: flags and environment do not count.

    Raises ValidationError for values that the model does not accept.
    """
    return filled(model, [InitSettingsSource(model, stored)])


def filled(model: type[Job], sources: Sequence[PydanticBaseSettingsSource]) -> Job:
    """Return a job with the values of these sources; the first wins."""
    return model(_build_sources=(tuple(sources), {}))  # type: ignore[call-arg]  # they give all


def read_flags(model: type[Job], flags: list[str]) -> dict[str, Any]:
    """Return the fields that flags give, as a nested table."""
    with READING:
        return dict(reader(model)(args=flags)())


@cache
def reader(model: type[Job]) -> CliSettingsSource[Any]:
    """Return what reads the flags of a model. Making it takes longer than all else of a job."""
    return CliSettingsSource(model, root_parser=Parser(PROGRAM, allow_abbrev=False))


class Environment(EnvSettingsSource):
    """Variables of the environment as a source of fields.

    Several values are written as on the command line: HPCFED_MODELS__MIX=mlp,cnn.
    """

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> Any:
        is_json = value.startswith(("[", "{"))
        return (
            super().decode_complex_value(field_name, field, value) if is_json else value.split(",")
        )


class Parser(ArgumentParser):
    """An argument parser that raises ConfigError instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        unknown, _, words = message.partition("unrecognized arguments: ")
        if unknown or not words:
            raise ConfigError(f"command line: {message.removeprefix('argument ')}")
        word = (words.split() or [words])[0]
        if not word.startswith("--"):
            raise ConfigError(stray(word))
        known = [
            o.removeprefix("--") for o in self._option_string_actions if not o.startswith("--no-")
        ]
        raise ConfigError(
            f"command line: {no_field(word.removeprefix('--').partition('=')[0], known)}"
        )
