"""`python -m hpcfed.main --help [all | SECTION | FIELD | METHOD]`: the fields of a job.

The values shown are those that the command would run with.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from hpcfed.config.files import EMBEDDED, merge, read
from hpcfed.config.job import FREE, PROGRAM, Job, algorithm_model
from hpcfed.config.limits import limits, meaning
from hpcfed.config.load import DEFAULT_ALGORITHM, again, resolve, split
from hpcfed.config.methods import ALGORITHMS
from hpcfed.config.validation_messages import PREFIX, Layer, kind_of, origin
from hpcfed.config.validation_messages import section as class_at
from hpcfed.core.errors import ConfigError, HpcfedError, unknown
from hpcfed.storage.fields import covers

USAGE = f"usage: {PROGRAM} [--FIELD VALUE ...]"
FLAGS = ("--help", "-h")
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

    mistake: why the command would be refused; the job is then the embedded one.
    layers: the sources of values beside flags and environment, by name; the first wins.
    files: the job files that it names.
    """

    model: type[Job]
    job: Job
    layers: Sequence[Layer]
    flags: Sequence[str]
    mistake: str = ""
    files: Sequence[Path] = ()


def asks_for_help(words: Sequence[str]) -> bool:
    """Return whether a command line asks for help."""
    return any(word.partition("=")[0] in FLAGS for word in words)


def help(words: Sequence[str], stored: Callable[[Path], dict[str, Any]] = lambda path: {}) -> str:
    """Return the text that a command line with --help asks for.

    words: `[JOB.toml ...] [--FIELD VALUE ...] --help [TOPIC ...]`, in any order.
    Raises ConfigError for a topic that is no field, table or method, with the nearest ones.
    """
    job, topics = split_words(words)
    width = min(WIDEST, shutil.get_terminal_size().columns)
    texts = [about(topic, job, stored, width) for topic in topics]
    return "\n\n".join(texts or [brief(command(job, stored))])


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that belong to the job, and the topics after --help.

    A .toml among the topics is a job file, after those before --help.
    """
    at = next(i for i, word in enumerate(words) if word.partition("=")[0] in FLAGS)
    own = [words[at].partition("=")[2]] if "=" in words[at] else []
    end = next((i for i, w in enumerate(words[at + 1 :], at + 1) if w.startswith("-")), len(words))
    found = [*own, *words[at + 1 : end]]
    files = [word for word in found if word.endswith(".toml")]
    rest = [w for w in [*words[:at], *words[end:]] if w.partition("=")[0] not in FLAGS]
    before = list(takewhile(lambda word: not word.startswith("-"), rest))
    return [*before, *files, *rest[len(before) :]], [
        word.removeprefix("--") for word in found if word not in files
    ]


def command(words: Sequence[str], stored: Callable[[Path], dict[str, Any]]) -> Command:
    """Return the command that these words would run.

    If they are refused, it has the embedded job and the reason.
    """
    try:
        job, layers, flags = resolve(words, stored, os.environ)
        return Command(type(job), job, layers, flags, files=split(words)[0])
    except HpcfedError as error:
        table = merge(*(values for _, values in read(EMBEDDED)))
        name = {"name": DEFAULT_ALGORITHM}
        job = again(merge(table, {"algorithm": name}), "the embedded job")
        return Command(type(job), job, [("the embedded job", table)], [], str(error))


def brief(found: Command) -> str:
    """Return the short help, which fits a screen: usage, the main fields, and where the rest is."""
    most = NARROW - 4 - max(map(len, MAIN.values()))
    flags = [cut(f"{flag(name)} {value(found.job, name)}", most) for name in MAIN]
    wide = max(map(len, flags))
    lines = [f"  {a:<{wide}}  {b}" for a, b in zip(flags, MAIN.values(), strict=True)]
    first = next((name for name, _ in found.layers), "defaults")
    file = ", ".join(map(str, found.files)) or first
    whose = "of this command" if not found.mistake else "of the embedded job"
    head = f"{USAGE}\n\nThe main fields, with the values {whose} ({file}):\n"
    sections = textwrap.fill(
        ", ".join(tables()), NARROW, initial_indent=" " * 18, subsequent_indent=" " * 18
    )
    return "\n".join([head, *lines, "", MORE.format(sections=sections), *refusal_lines(found)])


def refusal_lines(found: Command) -> list[str]:
    return [f"\nAs it is, the command would be refused: {found.mistake}"] * bool(found.mistake)


def flag(name: str) -> str:
    """Return a field as it is typed: --dry-run, --local.lr."""
    return f"--{name}" if "." in name else f"--{name.replace('_', '-')}"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def tables() -> list[str]:
    """Return the names of a job's tables, and `job` for the fields outside all tables."""
    parts = [name for name, field in Job.model_fields.items() if is_part(field.annotation)]
    return [TOP, "algorithm", *parts]


def is_part(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def about(
    topic: str, words: Sequence[str], stored: Callable[[Path], dict[str, Any]], width: int
) -> str:
    """Return the help for one topic, or for all topics of that name."""
    found = command(words, stored)
    if topic == ALL:
        return "\n\n".join(section(found, name, width) for name in tables())
    texts = []
    if topic in tables():
        texts.append(section(found, topic, width))
    if topic in ALGORITHMS or ":" in topic:
        texts.append(method(topic, words, stored, width))
    names = field_names(found.model)
    exact = topic.replace("-", "_")
    fields = [exact] if exact in names else [n for n in names if n.rpartition(".")[2] == exact]
    texts += [field(found, name, width) for name in fields]
    if not texts:
        choices = {*names, *(n.rpartition(".")[2] for n in names), *tables(), ALL, *ALGORITHMS}
        raise ConfigError(unknown("field, section or method", topic, choices, "--help all"))
    return "\n\n".join(texts)


def field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of all fields."""
    names = []
    for name, info in model.model_fields.items():
        if is_part(info.annotation):
            names += field_names(info.annotation, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def method(
    name: str, words: Sequence[str], stored: Callable[[Path], dict[str, Any]], width: int
) -> str:
    """Return the parameters of a method, with the values that the command would give it."""
    found = command([*words, "--algorithm.name", name], stored)
    if found.mistake:  # a parameter may have to be given, for example: show the defaults
        model = algorithm_model(name)
        infos = model.model_fields
        rows = [entry(f"algorithm.{n}", usual(info), info, width) for n, info in infos.items()]
        return "\n".join([f"method {name}:\n", *rows, *refusal_lines(found)])
    return section(found, "algorithm", width)


def section(found: Command, name: str, width: int) -> str:
    """Return the help for all fields of a table of the job."""
    if name == TOP:
        fields = found.model.model_fields
        infos, prefix = {n: i for n, i in fields.items() if not is_part(i.annotation)}, ""
        head = "fields that stand in no table:"
    else:
        part = table_at(found.model, [name])
        infos, prefix = part.model_fields, f"{name}."
        text = (
            f"method {found.job.algorithm.name} (more: hpcfed show {found.job.algorithm.name})"
            if name == "algorithm"
            else " ".join((part.__doc__ or "").split()).rstrip(".")
        )
        head = f"[{name}] {text}:"
    rows = [entry(prefix + n, value(found.job, prefix + n), i, width) for n, i in infos.items()]
    return "\n".join([textwrap.fill(head, width), "", *rows])


def entry(name: str, shown: str, info: FieldInfo, width: int) -> str:
    """Return one field of a table in two lines: flag, value, type and range; and its meaning."""
    first = f"  {flag(name)} {shown}"
    kind = f"  ({', '.join(filter(None, (kind_of(info.annotation), limits(info))))})"
    lines = textwrap.wrap(first + kind, width, subsequent_indent=" " * 8)
    text = textwrap.wrap(meaning(info), width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join([*lines, *text])


def field(found: Command, name: str, width: int) -> str:
    """Return the long help for one field."""
    info = at(found.model, name)
    path = name.split(".")
    source = origin(path, found.layers, found.flags)
    shown, default = value(found.job, name), usual(info)
    whence = f", from {source.removesuffix(f': {name}')}" if source != name else ""
    free = "may change" if covers(FREE, name) else "stays as it was"
    table, _, last = name.rpartition(".")
    facts = [
        ("value", f"{shown}{whence}"),
        ("default", default),
        ("type", ", ".join(filter(None, (kind_of(info.annotation), limits(info))))),
        ("job file", f"[{table}] {last} = ..." if table else f"{last} = ..., above all tables"),
        ("environment", PREFIX + name.replace(".", "__").upper()),
        ("on --resume", free),
    ]
    lines = [f"{a + ':':<13}{b}" for a, b in facts]
    return "\n".join(
        [flag(name), textwrap.fill(meaning(info), width), "", *lines, *refusal_lines(found)]
    )


def table_at(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    """Return the class of the table of the job at this path, which exists."""
    found = class_at(model, path)
    assert found is not None
    return found


def at(model: type[BaseModel], name: str) -> FieldInfo:
    """Return the description of the field with this dotted name."""
    *tables, last = name.split(".")
    return table_at(model, tables).model_fields[last]


def value(job: Job, name: str) -> str:
    """Return a field's value as flags take it."""
    if name == "out" and job.out is None:
        return str(job.folder)
    found: Any = job
    for part in name.split("."):
        found = getattr(found, part)
    return format_flag_value(to_jsonable_python(found))


def usual(info: FieldInfo) -> str:
    """Return a field's own default, without job files, presets and flags."""
    default = info.get_default(call_default_factory=True)
    return (
        "must be given"
        if default is PydanticUndefined
        else format_flag_value(to_jsonable_python(default))
    )


def format_flag_value(value: Any) -> str:
    """Return a value as flags take it: `true`, `none`, `mlp,cnn`."""
    if isinstance(value, list):
        return ",".join(map(format_flag_value, value)) or "none"
    text = str(value) or "''"
    return text.lower() if value is None or isinstance(value, bool) else text
