"""Builds one checked job from a job file, the environment and flags; reports all its mistakes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from hpcfed.config.check import check
from hpcfed.config.files import (
    EMBEDDED,
    drop_other_method,
    merge,
    read,
    read_preset,
    without_algorithm,
)
from hpcfed.config.job import Job, job_model
from hpcfed.config.sections import Data
from hpcfed.config.sources import given_job, stored_job
from hpcfed.config.validation_messages import CALL, PREFIX, Layer, explain, no_field, section, stray
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import refuse_import
from hpcfed.storage.fields import at, flat

DEFAULT_ALGORITHM = "fedclassavg"
MODULE = re.compile(r"[\w.]+:\w+")  # a method or model of one's own
MODELS = "--models.mix (models.proxy, models.server)"
OWN = "--own (of `hpcfed models` and `hpcfed probe`; in Python load_model(own=[...]))"


@dataclass(frozen=True)
class Given:
    """The values that a call in Python gives beside job files.

    job: a table that overrides job files.  fields: take the place of flags and override the
    environment.
    """

    job: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


NOTHING = Given()


@dataclass(frozen=True)
class Importable:
    """The methods and models outside hpcfed whose modules a job may import.

    names: "module:attribute", as the user names them.
    where: what names the others, for the message.
    method, model: the flags by which the user names a method or a model.
    """

    names: Collection[str]
    where: str
    method: str
    model: str


def load(
    argv: Sequence[str],
    stored: Callable[[Path], dict[str, Any]] = lambda path: {},
    environ: Mapping[str, str] = os.environ,
    given: Given = NOTHING,
    only: Importable | None = None,
) -> Job:
    """Return the checked job of a command line or of a call in Python.

    A command line is `[JOB.toml ...] [--field value ...]`.

    Precedence: flags, environment (HPCFED_DATA__ALPHA), job files, of which later ones win, preset,
    the method's own defaults of [local], defaults. A preset that flags or the environment name
    overrides the job files. Without job files the embedded job is used; with `--resume` they
    override the stored job of that run (`stored(path)`).
    given: what a call in Python gives in place of flags and of a file.
    only: limits the methods and models of the user's own; None: those of a run's stored job are
    limited to those that flags, environment or job files name too.
    Raises ConfigError with all mistakes in one message.
    """
    job, _, _ = resolve(argv, stored, environ, given, only)
    check(job, stored=bool(job.resume))
    return job


def resolve(
    argv: Sequence[str],
    stored: Callable[[Path], dict[str, Any]],
    environ: Mapping[str, str],
    given: Given = NOTHING,
    only: Importable | None = None,
) -> tuple[Job, list[Layer], list[str]]:
    """Return the job of a command line, with each field checked by itself.

    Returns also the other sources of values (of two layers the first wins), and the flags.
    """
    files, flags = split(argv)
    layers = read(*files)
    if given.job:
        layers = [*drop_other_method(layers, given.job), ("the job", given.job)]
    file, call = merge(*(values for _, values in layers)), given.fields
    resume = first_text(call, "resume") or peek("resume", flags, environ, file)
    old = (
        stored(Path(resume))
        if resume
        else {}
        if layers
        else merge(*(values for _, values in read(EMBEDDED)))
    )
    name = (
        first_text(call, "algorithm.name")
        or peek("algorithm.name", flags, environ, file, old)
        or DEFAULT_ALGORITHM
    )
    if resume and not only:
        own = user_names(flags, environ, merge(file, call))
        only = Importable(own, f"resume: the job stored in {resume}", "--algorithm.name", MODELS)
    if only:
        refuse_import([name], only.names, only.where, only.method)
    file, old = (about(name, table) for table in (file, old))
    if "algorithm" not in file:
        layers = without_algorithm(layers)
    chosen = first_text(call, "preset") or peek("preset", flags, environ)
    asked = chosen or peek("preset", [], {}, file, old) or "paper"
    data = first_text(call, "data.name") or peek("data.name", flags, environ, file, old)
    preset = read_preset(asked, name, data or Data().name)
    # a stored job already contains its preset, and the values that override it
    over = chosen and (layers or not resume)
    model = job_model(name)
    check_environment(model, environ)
    under = f"the job stored in {resume}" if resume else "the embedded job"
    below = [*layers[::-1], (under, old)]
    preset_layer = (f"preset {asked}", preset)
    places = [preset_layer, *below] if over else [*below, preset_layer]
    places = [(name, values) for name, values in [(CALL, call), *places] if values]
    try:
        tables = [preset, file, old] if over else [file, old, preset]
        job = fill_local_defaults(given_job(model, call, flags, tables))
    except (ValidationError, SettingsError, RecursionError) as error:
        raise ConfigError(explain(error, model, places, flags)) from error
    job._places = (places, flags)
    if only:
        refuse_import(models_of(job), only.names, only.where, only.model)
    return job, places, flags


def fill_local_defaults(job: Job) -> Job:
    """Return the job with its method's own defaults of [local] where nothing else was set."""
    own = job.algorithm.local_defaults
    missing = {name: own[name] for name in own if name not in job.local.model_fields_set}
    return job.model_copy(update={"local": job.local.model_copy(update=missing)})


def models_of(job: Job) -> list[str | None]:
    """Return the names of all models of a job."""
    return [*job.models.mix, job.models.proxy, job.models.server]


def user_names(flags: Sequence[str], environ: Mapping[str, str], file: dict[str, Any]) -> set[str]:
    """Return all "module:attribute" that flags, environment or job file give, in any field."""
    given = [*flags, *(value for name, value in environ.items() if name.startswith(PREFIX))]
    given += [str(value) for value in flat(file).values()]
    return {name for text in given for name in MODULE.findall(text)}


def again(stored: dict[str, Any], where: str, own: Collection[str] = ()) -> Job:
    """Return the job of a run as its results have it; flags and environment do not count.

    where: name of the run in messages.  own: methods and models outside hpcfed that may be
    imported.
    Raises ConfigError if this version of hpcfed does not accept the job.
    """
    source = f"the job stored in {where}"
    refuse_import([stored["algorithm"]["name"]], own, source, OWN)
    model = job_model(stored["algorithm"]["name"])
    try:
        job = stored_job(model, stored)
    except (ValidationError, RecursionError) as error:
        raise ConfigError(
            explain(error, model, [(f"the job stored in {where}", stored)], [])
        ) from error
    refuse_import(models_of(job), own, source, OWN)
    return job


def split(argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the job files, which stand before all flags, and the flags.

    In the names of flags - is replaced by _.
    """
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    return job_files(words), latest(switches([normalise_flag(w) for w in argv[len(words) :]]))


def job_files(words: Sequence[str]) -> list[Path]:
    """Return the paths of job files; raise ConfigError for a word that is none."""
    for wrong in [word for word in words if not word.endswith(".toml")]:
        raise ConfigError(stray(wrong))
    return [Path(word) for word in words]


def normalise_flag(word: str) -> str:
    """Return --dry-run as --dry_run; the no- of a switch stays."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word[2:].partition("=")
    no = "no-" if flag.startswith("no-") else ""
    return f"--{no}{flag.removeprefix('no-').replace('-', '_')}{equals}{value}"


def switches(words: list[str]) -> list[str]:
    """Return `--overwrite true` as --overwrite, and `--overwrite false` as --no-overwrite."""
    spread = [
        part
        for w in words
        for part in (w.split("=", 1) if w.lower().endswith(("=true", "=false")) else [w])
    ]
    result: list[str] = []
    for word in spread:
        value = word.lower() if result and result[-1].startswith("--") else ""
        if value == "false":
            result[-1] = result[-1].replace("--", "--no-", 1)
        elif value != "true":
            result.append(word)
    return result


def latest(words: list[str]) -> list[str]:
    """Return the words with only the last of several equal flags, as in any shell.

    pydantic-settings would join lists.
    """
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--") or not given:
            flag = word.partition("=")[0].replace("--no-", "--", 1)
            given.pop(flag, None)
            given[flag] = []
        given[next(reversed(given))].append(word)
    return [word for group in given.values() for word in group]


def about(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return a job's table for this algorithm, without the fields of another algorithm."""
    theirs = table.get("algorithm")
    other = isinstance(theirs, dict) and theirs.get("name", DEFAULT_ALGORITHM) != name
    return {key: value for key, value in table.items() if not (other and key == "algorithm")}


def first_text(table: dict[str, Any], field: str) -> str | None:
    """Return a field of a table if it is a text or a path; `resume` may be either."""
    value = at(table, field)
    return str(value) if isinstance(value, str | Path) and str(value) else None


def peek(
    field: str, flags: list[str], environ: Mapping[str, str], *files: dict[str, Any]
) -> str | None:
    """Return a field that decides how the rest is read, before the rest is checked."""
    flag = f"--{field}"
    for word, after in zip(flags[::-1], [None, *flags[::-1]], strict=False):
        if word == flag:
            return after
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    env = environ.get(PREFIX + field.upper().replace(".", "__"))
    return env or next((v for v in (at(file, field) for file in files) if isinstance(v, str)), None)


def check_environment(model: type[Job], environ: Mapping[str, str]) -> None:
    """Raise ConfigError for HPCFED_ variables that name no field.

    pydantic-settings would ignore them.
    """
    for name in (name for name in environ if name.upper().startswith(PREFIX)):
        # pydantic-settings would accept such a name, but other nodes would not get the variable
        if name != name.upper():
            raise ConfigError(f"environment variable {name}: write it in capitals, {name.upper()}")
        first, *others = name.removeprefix(PREFIX).lower().split("__")
        if first not in model.model_fields:
            raise ConfigError(f"environment variable {name}: {no_field(first, model)}")
        if others and not section(model, (first, *others[:-1])):
            raise ConfigError(
                f"environment variable {name}: {first} has no fields of that kind; see --help all"
            )
