"""Builds one checked job from a job file, the environment and flags; reports all its mistakes."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic import ValidationError

from hpcfed.comm.connect import detect_launcher
from hpcfed.config.check import check, check_fields
from hpcfed.config.effects import Effects, Idle
from hpcfed.config.fields import annotation_of, format_flag_value, read_text, section, table_names
from hpcfed.config.files import EMBEDDED, drop_other_method, read, read_preset
from hpcfed.config.job import Job, job_model
from hpcfed.config.layers import (
    CALL,
    DEFAULT,
    PREFIX,
    STORED,
    Layer,
    environment,
    has,
    merge,
    origin,
    variable,
)
from hpcfed.config.methods import ALGORITHMS, with_registered_name
from hpcfed.config.sections import Data
from hpcfed.config.validation_messages import explain, no_field, reason
from hpcfed.config.words import NAMES, CommandLine, flag
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError, format_error
from hpcfed.core.exit_status import WRONG
from hpcfed.core.registry import find, outside, refuse_import
from hpcfed.storage.fields import Fields, at, flat, nested

DEFAULT_ALGORITHM = "fedclassavg"
MODULE = re.compile(r"[\w.]+:\w+")  # the user's own method or model
MODELS = "--models.mix (models.proxy, models.server)"
METRICS = "--evaluate.metrics"
# fields that may name the user's own code
OWN_CODE = (
    "algorithm.name",
    "models.mix",
    "models.proxy",
    "models.server",
    "evaluate.metrics",
    "on_round",
)
OWN = (
    "--own (of `hpcfed predict`, `models`, `adapt`, and `hpcfed probe`, from whose file figures "
    "are drawn; in Python load_model(own=[...]))"
)


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
    method, model, metric, callback: the flags by which the user names a method, a model, a metric
        or the function of on_round.
    """

    names: Collection[str]
    where: str
    method: str
    model: str
    metric: str
    callback: str


@dataclass(frozen=True)
class Resolved:
    """The job of a command line, with each field checked by itself.

    layers: the sources of its values, of which the first wins.  files: the job files named.
    """

    job: Job
    layers: Sequence[Layer]
    files: Sequence[Path]


def load(
    words: Sequence[str] | CommandLine,
    stored: Callable[[Path], dict[str, Any]] = lambda path: {},
    environ: Mapping[str, str] = os.environ,
    arguments: Given = NOTHING,
    only: Importable | None = None,
) -> Job:
    """Return the checked job of a command line or of a call in Python.

    words: `[JOB.toml ...] [--field value ...]`, or these words parsed.

    Precedence: flags, environment (HPCFED_DATA__ALPHA), job files, of which later ones win, preset,
    the method's own defaults of [local], defaults. A preset that flags or the environment name
    overrides the job files. Without job files the embedded job is used; with `--resume` they
    override the stored job of that run (`stored(path)`).
    arguments: what a call in Python gives in place of flags and of a file.
    only: limits the methods and models of the user's own; None: those of a run's stored job are
    limited to those that flags, environment or job files name too.
    Raises ConfigError with all mistakes in one message.
    """
    line = words if isinstance(words, CommandLine) else CommandLine.parse(words)
    job = resolve(line, stored, environ, arguments, only).job
    refuse_both(job)
    check(job, stored=bool(job.resume))
    return job


def load_derived(fields: Fields) -> tuple[dict[str, Any], dict[str, Idle]]:
    """Return the tables of a job that a command derives, and its fields without effect, left out.

    fields: of the job, by name.
    Raises ConfigError as `load` does.
    """
    derived = Given(job=nested(fields))
    effects = Effects(resolve(CommandLine.parse([]), lambda path: {}, {}, derived).job)
    idle = {name: reason for name in fields if (reason := effects.idle(name))}
    table = nested({name: value for name, value in fields.items() if name not in idle})
    load([], environ={}, arguments=Given(job=table))
    return table, idle


def refuse_early(words: CommandLine) -> None:
    """Raise ConfigError for mistakes in a command that show without its method.

    They are reported before torch is imported, which takes seconds.
    """
    job = load_without_method(words)
    refuse_both(job)
    if not job.resume:
        check_fields(job)


def refuse_both(job: Job) -> None:
    """Raise ConfigError for a command or call that continues a run and also replaces it.

    A job file may set overwrite for the runs that it starts, of which a flag continues one.
    """
    for layer in job._layers if job.resume and job.overwrite else ():
        typed = layer.places or layer.name == CALL
        if typed and {"resume", "overwrite"} <= layer.values.keys():
            raise ConfigError(
                f"{layer.place(['resume'])}: it continues the run in {job.resume}, and overwrite "
                f"replaces it; give one of them"
            )


def load_without_method(
    words: CommandLine, stored: Callable[[Path], dict[str, Any]] = lambda path: {}
) -> Job:
    """Return the job of a command line, of whose method nothing but the name is looked at.

    The method is not imported, and with it torch, which takes seconds.
    Raises ConfigError for a value of another field that is wrong by itself.
    """
    sources = layers_of(words, stored)
    if ":" not in sources.method:
        find("algorithm", sources.method, ALGORITHMS)
    words.check(Job)
    job = checked(Job, [*sources.layers, Layer("the method", {"algorithm": {}})])
    return job.model_copy(update={"algorithm": SimpleNamespace(name=sources.method)})


def exit_if_wrong(argv: Sequence[str]) -> None:
    """End a program of one process for mistakes that `refuse_early` sees."""
    try:
        words = CommandLine.parse(argv)
        if words.topics is None and detect_launcher(os.environ)[1] == 1:
            refuse_early(words)
    except ConfigError as error:
        print(f"hpcfed: {format_error(error)}", file=sys.stderr)
        raise SystemExit(WRONG) from None


class Sources(NamedTuple):
    """The layers of a job's values, of which the first wins, and what they decide.

    method: the name of the method.  only: as `load` takes it.
    """

    layers: list[Layer]
    method: str
    only: Importable | None


def resolve(
    words: CommandLine,
    stored: Callable[[Path], dict[str, Any]],
    environ: Mapping[str, str] = os.environ,
    arguments: Given = NOTHING,
    only: Importable | None = None,
) -> Resolved:
    """Return the job of a command line, with each field checked by itself."""
    sources = layers_of(words, stored, environ, arguments, only)
    model = job_model(sources.method)
    words.check(model)
    job = fill_implied_defaults(checked(model, sources.layers))
    if only := sources.only:
        refuse_import(models_of(job), only.names, only.where, only.model)
        refuse_import(job.evaluate.metrics, only.names, only.where, only.metric)
        refuse_import([job.on_round], only.names, only.where, only.callback)
    return Resolved(job, job._layers, words.files)


def layers_of(
    words: CommandLine,
    stored: Callable[[Path], dict[str, Any]],
    environ: Mapping[str, str] = os.environ,
    arguments: Given = NOTHING,
    only: Importable | None = None,
) -> Sources:
    """Return the sources of a job's values, one over another; see `load`."""
    check_environment(environ)
    flags, variables = words.layer(), environment(environ)
    call = Layer(CALL, arguments.fields)
    above = [spelt(call), spelt(flags)]
    named_above = merge(*(layer.values for layer in reversed(above)))
    upper = [*above, *drop_other_method([spelt(variables)], named_above)]
    files = read(*words.files)
    if arguments.job:
        table = with_registered_name(arguments.job)
        files = [*drop_other_method(files, table), Layer("the job", table)]
    named = files  # by the user
    resume = text_at([*upper, *files[::-1]], "resume")
    if resume:
        values = merge(*(layer.values for layer in files))
        files = [*drop_other_method([stored_layer(resume, stored)], values), *files]
    lower = files[::-1] or [embedded()]  # the first wins

    name = text_at([*upper, *lower], "algorithm.name") or DEFAULT_ALGORITHM
    if resume and not only:
        names = user_names([*upper, *named])
        only = Importable(
            names,
            f"resume: {below_name(resume)}",
            method="--algorithm.name",
            model=MODELS,
            metric=METRICS,
            callback="--on-round",
        )
    if only:
        refuse_import([name], only.names, only.where, only.method)
    lower = drop_other_method(lower[::-1], {"algorithm": {"name": name}})[::-1]

    override = text_at(upper, "preset")  # over job files; one that they name lies under them
    preset_name = override or text_at(lower, "preset") or "paper"
    data = text_at([*upper, *lower], "data.name") or Data().name
    preset = Layer(f"preset {preset_name}", read_preset(preset_name, name, data))
    # a stored job already contains its preset, and the values that override it
    lower = [preset, *lower] if override and (named or not resume) else [*lower, preset]

    layers = [layer for layer in (*upper, *lower) if layer.values]
    refuse_plain_tables(layers)
    refuse_tables_of_values(layers)
    return Sources(layers, name, only)


def refuse_plain_tables(layers: Sequence[Layer]) -> None:
    """Raise ConfigError for values in place of tables: `data = "digits"` instead of [data].

    Merged, such a value would disappear under the table of a higher layer, and hide the tables of
    lower ones.
    """
    wrong = [
        f"{layer.place(path)}: must be a table, got {value!r:.60}; write {table_with(path, value)}"
        for layer in layers
        for path in (name.split(".") for name in ("algorithm", *table_names(Job)))
        if has(layer.values, path)
        and not isinstance(value := at(layer.values, ".".join(path)), dict)
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def refuse_tables_of_values(layers: Sequence[Layer]) -> None:
    """Raise ConfigError for tables in place of single values: [rounds] instead of `rounds = 5`.

    Merged, such a table would disappear under the value of a higher layer. A method's own fields
    are checked with its class.
    """
    wrong = [
        f"{layer.place(name.split('.'))}: must be one value, not a table, got {value!r:.60}; write "
        f"{name} = ..., {flag(name)} ... or {variable(name)}=..."
        for layer in layers
        for name in NAMES
        if isinstance(value := at(layer.values, name), dict)
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def table_with(path: Sequence[str], value: Any) -> str:
    """Return how a table is written: with this value as its name, if it has one."""
    name = ".".join(path)
    if name in ("algorithm", "data") and value and isinstance(value, str):
        text = shlex.quote(value)
        return (
            f"[{name}] name = {json.dumps(value)}, --{name}.name {text} or "
            f"{variable(name)}__NAME={text}"
        )
    fields = f"[{name}] FIELD = ..., --{name}.FIELD or {variable(name)}__FIELD"
    return f"its fields, as {fields}; they are listed by --help {name}"


def spelt(layer: Layer) -> Layer:
    """Return the layer with the method's name as in the registry."""
    return layer._replace(values=with_registered_name(layer.values))


def below_name(resume: str) -> str:
    return f"{STORED}{resume}"


def stored_layer(resume: str, stored: Callable[[Path], dict[str, Any]]) -> Layer:
    """Return the job of the run that is to be resumed."""
    return Layer(below_name(resume), stored(Path(resume)))


def embedded() -> Layer:
    """Return the job that runs if none is given."""
    return Layer(DEFAULT, merge(*(layer.values for layer in read(EMBEDDED))))


def text_at(layers: Iterable[Layer], name: str) -> str | None:
    """Return a field that decides how the others are read, as a text, of the first layer with it.

    A path is one too.
    """
    values = (at(layer.values, name) for layer in layers)
    return next((str(value) for value in values if value and isinstance(value, str | Path)), None)


def read_texts(layer: Layer, model: type[Job]) -> Layer:
    """Return the layer with its texts as values of the types of the model's fields."""

    def value(path: list[str], item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value([*path, key], inner) for key, inner in item.items()}
        return read_text(item, annotation_of(model, path)) if isinstance(item, str) else item

    return layer._replace(values={key: value([key], item) for key, item in layer.values.items()})


def checked(model: type[Job], layers: Sequence[Layer]) -> Job:
    """Return the job of these layers, of which the first wins, and each field checked by itself."""
    try:
        typed = [read_texts(layer, model) if layer.places else layer for layer in layers]
        job = model.model_validate(merge(*(layer.values for layer in reversed(typed))))
    except ValidationError as error:
        raise ConfigError(explain(error, model, layers)) from error
    except RecursionError as error:
        raise ConfigError(f"{layers[0].name}: tables are nested too deep") from error
    job._layers = layers
    return job


def fill_implied_defaults(job: Job) -> Job:
    """Return the job with the defaults that other settings imply where nothing else was set.

    The embedded job counts as nothing: its values are not the user's.
    Raises ConfigError for a default of a method that its field does not take.
    """
    tables: dict[str, dict[str, Any]] = {}
    filled = set()
    for source, values in job.implied.items():
        for name, value in values.items():
            table, _, last = name.partition(".")
            if last in getattr(job, table).model_fields_set and not is_embedded(job, name):
                continue
            filled.add(name)
            tables.setdefault(table, {})[last] = implied_value(job, source, name, value)
    update = {
        table: getattr(job, table).model_copy(update=values) for table, values in tables.items()
    }
    job = job.model_copy(update=update)
    job._layers = [
        without(layer, filled) if layer.name == DEFAULT else layer for layer in job._layers
    ]
    return job


def is_embedded(job: Job, name: str) -> bool:
    """Return whether a field has its value from the embedded job."""
    return origin(name.split("."), job._layers) == f"{DEFAULT}: {name}"


def without(layer: Layer, fields: Collection[str]) -> Layer:
    """Return the layer without these fields."""
    values = {name: value for name, value in flat(layer.values).items() if name not in fields}
    return layer._replace(values=nested(values))


def implied_value(job: Job, source: str, name: str, value: Any) -> Any:
    """Return an implied value as its field takes it; raises ConfigError if the field does not."""
    table, _, last = name.partition(".")
    section = getattr(job, table)
    if last not in type(section).model_fields:
        raise ConfigError(f"{source}: {name}: {no_field(last, type(section))}")
    try:
        return getattr(type(section).model_validate(section.model_dump() | {last: value}), last)
    except ValidationError as error:
        why = reason(error.errors()[0])
        raise ConfigError(f"{source}: {name}: {why}, got {value!r}") from error


def models_of(job: Job) -> list[str | None]:
    """Return the names of all models of a job."""
    return [*job.models.mix, job.models.proxy, job.models.server]


def user_names(layers: Iterable[Layer]) -> set[str]:
    """Return all "module:attribute" that a user gives in these layers, in any field."""
    texts = (str(value) for layer in layers for value in flat(layer.values).values())
    return {name for text in texts for name in MODULE.findall(text)}


def continuing(job: Job, folder: Path) -> str:
    """Return the flags with which a command continues the run in this folder.

    Among them are all names of the user's own code, which a stored job alone does not import.
    """
    if user_code.LENT:  # no other process can import what a script or notebook defines
        return "hpcfed.run(..., resume=True)"
    words = ["--resume", str(folder)]
    for name in OWN_CODE:
        value = reduce(getattr, name.split("."), job)
        names = list(value) if isinstance(value, tuple) else [value]
        if any(base for one in names for base in outside(one)):
            words += [flag(name), format_flag_value(names)]
    return shlex.join(words)


def again(stored: dict[str, Any], where: str, importable: Collection[str] = ()) -> Job:
    """Return the job of a run as its results have it; flags and environment do not count.

    where: name of the run in messages.  importable: methods and models outside hpcfed that may be
    imported.
    Raises ConfigError if this version of hpcfed does not accept the job.
    """
    layer = Layer(below_name(where), stored)
    refuse_import([stored["algorithm"]["name"]], importable, layer.name, OWN)
    job = fill_implied_defaults(checked(job_model(stored["algorithm"]["name"]), [layer]))
    refuse_import([*models_of(job), *job.evaluate.metrics], importable, layer.name, OWN)
    return job


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for HPCFED_ variables of no field of the job.

    Fields of its tables are checked with the values.
    """
    for name in (name for name in environ if name.upper().startswith(PREFIX)):
        # on Linux another name, which other nodes would not get
        if name != name.upper():
            raise ConfigError(f"environment variable {name}: write it in capitals, {name.upper()}")
        path = name.removeprefix(PREFIX).lower().split("__")
        if path[0] not in Job.model_fields:
            raise ConfigError(f"environment variable {name}: {no_field(path[0], Job)}")
        above = path[:-1]
        if above and above != ["algorithm"] and not section(Job, above):
            raise ConfigError(
                f"environment variable {name}: {'.'.join(above)} has no such fields; see --help all"
            )
