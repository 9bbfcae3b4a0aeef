"""`python -m hpcfed.main --help [all | SECTION | FIELD | METHOD]`: the fields of a job.

The values shown are those that the command would run with.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from hpcfed.config.conditions import meaning
from hpcfed.config.fields import (
    default_of,
    field_names,
    format_flag_value,
    is_part,
    kind_of,
    table_names,
)
from hpcfed.config.fields import section as class_at
from hpcfed.config.job import FREE, PROGRAM, Job, algorithm_model
from hpcfed.config.layers import Layer, origin, variable
from hpcfed.config.limits import limits
from hpcfed.config.load import DEFAULT_ALGORITHM, checked, embedded, job_model, resolve
from hpcfed.config.methods import ALGORITHMS, registered_name
from hpcfed.config.words import CommandLine, Flag, flag
from hpcfed.core.errors import ConfigError, HpcfedError, unknown
from hpcfed.storage.fields import covers

Stored = Callable[[Path], dict[str, Any]]  # the job of a run's folder
USAGE = f"usage: {PROGRAM} [--FIELD VALUE ...]"
TOP, ALL = "job", "all"  # topics: the fields outside all tables of the job; every field
MAIN = {  # the fields that most users set, each in a few words
    "algorithm.name": "method (hpcfed list algorithms)",
    "data.name": "known set, file, folder, hf:",
    "data.partition": "how clients share the examples",
    "models.mix": "architectures, in turn",
    "clients": "number of clients",
    "rounds": "rounds to run in all",
    "local.epochs": "passes over own data a round",
    "local.lr": "learning rate",
    "seed": "names all random draws",
    "out": "folder of the results",
}
MORE = """\
also: --dry-run checks the job and shows the plan; --resume RUN continues a run

  --help FIELD    one field, as in --help local.lr
  --help METHOD   the parameters of a method, as in --help fedprox
  --help SECTION  all fields of a table of the job:
{sections}
  --help all      every field

HPCFED_LOCAL__LR in the environment and [local] lr in a job file are --local.lr.
hpcfed --help lists the commands that read results, draw, compare and sweep."""
NARROW = 80  # characters of a line of the short help
WIDEST = 100  # characters of a line


@dataclass(frozen=True)
class Command:
    """The job that a command line would run.

    job, layers, files: as in `load.Resolved`; if the command would be refused, of the embedded job.
    mistake: why it would be.
    """

    job: Job
    layers: Sequence[Layer]
    files: Sequence[Path] = ()
    mistake: str = ""


def help(words: CommandLine, stored: Stored = lambda path: {}) -> str:
    """Return the text that a command line with --help asks for.

    Raises ConfigError for a topic that is not a field, table or method, with the nearest ones.
    """
    width = min(WIDEST, shutil.get_terminal_size().columns)
    texts = [about(topic, words, stored, width) for topic in words.topics or ()]
    return "\n\n".join(texts or [brief(command(words, stored))])


def command(words: CommandLine, stored: Stored) -> Command:
    """Return the command that these words would run.

    If they are refused, it has the embedded job and the reason.
    """
    try:
        resolved = resolve(words, stored)
        return Command(resolved.job, resolved.layers, resolved.files)
    except HpcfedError as error:
        job = checked(job_model(DEFAULT_ALGORITHM), [embedded()])
        return Command(job, job._layers, mistake=str(error))


def brief(shown: Command) -> str:
    """Return the short help, which fits a screen: usage, the main fields, and where the rest is."""
    most = NARROW - 4 - max(map(len, MAIN.values()))
    flags = [cut(f"{flag(name)} {value(shown.job, name)}", most) for name in MAIN]
    wide = max(map(len, flags))
    lines = [f"  {a:<{wide}}  {b}" for a, b in zip(flags, MAIN.values(), strict=True)]
    below = (layer.name for layer in shown.layers if not layer.places)  # no flags or variables
    file = ", ".join(map(str, shown.files)) or next(below, "defaults")
    whose = "of this command" if not shown.mistake else "of the embedded job"
    head = f"{USAGE}\n\nThe main fields, with the values {whose} ({file}):\n"
    sections = textwrap.fill(
        ", ".join(tables()), NARROW, initial_indent=" " * 18, subsequent_indent=" " * 18
    )
    return "\n".join([head, *lines, "", MORE.format(sections=sections), *refusal_lines(shown)])


def refusal_lines(shown: Command) -> list[str]:
    return [f"\nAs it is, the command would be refused: {shown.mistake}"] * bool(shown.mistake)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def tables() -> list[str]:
    """Return the names of a job's tables, and `job` for the fields outside all tables."""
    return [TOP, "algorithm", *table_names(Job)]


def about(topic: str, words: CommandLine, stored: Stored, width: int) -> str:
    """Return the help for one topic, or for all topics of that name."""
    shown = command(words, stored)
    if topic == ALL:
        return "\n\n".join(section(shown, name, width) for name in tables())
    texts = []
    if topic in tables():
        texts.append(section(shown, topic, width))
    name = registered_name(topic)
    if name in ALGORITHMS or ":" in name:
        texts.append(method(name, words, stored, width))
    names = field_names(type(shown.job))
    exact = topic.replace("-", "_")
    fields = [exact] if exact in names else [n for n in names if n.rpartition(".")[2] == exact]
    texts += [field(shown, name, width) for name in fields]
    if not texts:
        choices = {*names, *(n.rpartition(".")[2] for n in names), *tables(), ALL, *ALGORITHMS}
        raise ConfigError(unknown("field, section or method", topic, choices, "--help all"))
    return "\n\n".join(texts)


def method(name: str, words: CommandLine, stored: Stored, width: int) -> str:
    """Return the parameters of a method, with the values that the command would give it."""
    chosen = Flag("algorithm.name", name, alone=False)
    shown = command(replace(words, flags={**words.flags, chosen.name: chosen}), stored)
    if shown.mistake:  # a parameter may have to be given, for example: show the defaults
        model = algorithm_model(name)
        infos = model.model_fields
        rows = [entry(f"algorithm.{n}", usual(infos[n]), model, n, width) for n in infos]
        return "\n".join([f"method {name}:\n", *rows, *refusal_lines(shown)])
    return section(shown, "algorithm", width)


def section(shown: Command, name: str, width: int) -> str:
    """Return the help for all fields of a table of the job."""
    part: type[BaseModel] = type(shown.job)
    prefix = ""
    if name == TOP:
        head = "fields outside tables:"
    else:
        part, prefix = table_at(part, name.split(".")), f"{name}."
        text = (
            f"method {shown.job.algorithm.name} (more: hpcfed show {shown.job.algorithm.name})"
            if name == "algorithm"
            else " ".join((part.__doc__ or "").split()).rstrip(".")
        )
        head = f"[{name}] {text}:"
    names = [n for n, info in part.model_fields.items() if not is_part(info.annotation)]
    rows = [entry(prefix + n, value(shown.job, prefix + n), part, n, width) for n in names]
    return "\n".join([textwrap.fill(head, width), "", *rows])


def entry(name: str, shown: str, part: type[BaseModel], last: str, width: int) -> str:
    """Return one field of a table in two lines: flag, value, type and range; and its meaning.

    part: the table's class.  last: the field's name in it.
    """
    info = part.model_fields[last]
    head = f"  {flag(name)} {shown}"
    kind = f"  ({', '.join(filter(None, (kind_of(info.annotation), limits(info))))})"
    lines = textwrap.wrap(head + kind, width, subsequent_indent=" " * 8)
    text = meaning(part, last, Job)
    lines += textwrap.wrap(text, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def field(shown: Command, name: str, width: int) -> str:
    """Return the long help for one field."""
    path = name.split(".")
    part = table_at(type(shown.job), path[:-1])
    info = part.model_fields[path[-1]]
    source = origin(path, shown.layers)
    whence = f", from {source.removesuffix(f': {name}')}" if source != name else ""
    free = "may change" if covers(FREE, name) else "stays as it was"
    table, _, last = name.rpartition(".")
    facts = [
        ("value", f"{value(shown.job, name)}{whence}"),
        ("default", usual(info)),
        ("type", ", ".join(filter(None, (kind_of(info.annotation), limits(info))))),
        ("job file", f"[{table}] {last} = ..." if table else f"{last} = ..., above all tables"),
        ("environment", variable(name)),
        ("on --resume", free),
    ]
    lines = [f"{a + ':':<13}{b}" for a, b in facts]
    text = textwrap.fill(meaning(part, path[-1], Job), width)
    return "\n".join([flag(name), text, "", *lines, *refusal_lines(shown)])


def table_at(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    """Return the class of the table of the job at this path, which exists."""
    table = class_at(model, path)
    assert table is not None
    return table


def value(job: Job, name: str) -> str:
    """Return a field's value as flags take it."""
    if name == "out" and job.out is None:
        return str(job.folder)
    field = reduce(getattr, name.split("."), job)
    return format_flag_value(to_jsonable_python(field))


def usual(info: FieldInfo) -> str:
    """Return a field's own default, without job files, presets and flags."""
    default = default_of(info)
    if default is not PydanticUndefined:
        return format_flag_value(to_jsonable_python(default))
    return "must be given" if info.is_required() else "follows from other fields"
