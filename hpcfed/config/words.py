"""The words of a command line: `[JOB.toml ...] [--field value ...] [--help [TOPIC ...]]`.

They are read once, from left to right. Names of fields are checked here as far as they are known
without the class of a method, so that a wrong one is refused before anything large is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcfed.config.fields import SWITCH, annotation_of, field_names, is_switch
from hpcfed.config.job import Job
from hpcfed.config.layers import COMMAND_LINE, Layer
from hpcfed.config.validation_messages import no_field
from hpcfed.core.errors import ConfigError
from hpcfed.storage.fields import nested

HELP = ("--help", "-h")
METHOD = "algorithm."  # begins the names of a method's own fields
NAMES = [name for name in field_names(Job) if name != "algorithm"] + [f"{METHOD}name"]


class Flag(NamedTuple):
    """A field as the command line gives it.

    name: dotted, with _ for -.  text: its value.
    no: whether it has the no- of a switch.  alone: whether it has no value.
    """

    name: str
    text: str = ""
    no: bool = False
    alone: bool = True

    @property
    def words(self) -> list[str]:
        """The words that give the field to another command."""
        name = f"--no-{self.name}" if self.no else f"--{self.name}"
        return [name] if self.alone else [name, self.text]


@dataclass(frozen=True)
class CommandLine:
    """The words of a command line.

    files: job files.  flags: by name; of several equal ones the last.
    topics: what --help asks for; None without --help.
    """

    files: tuple[Path, ...]
    flags: Mapping[str, Flag]
    topics: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, words: Iterable[str]) -> CommandLine:
        """Return the words in order. Raises ConfigError for a word without a meaning."""
        files, flags, topics = list[Path](), dict[str, Flag](), list[str]()
        wants_help, takes = False, "file"  # takes: what a word that begins with no -- would be
        for word in words:
            head, equals, value = word.partition("=")
            if head in HELP:
                wants_help, takes = True, "topic"
                topics += [value.removeprefix("--")] * bool(equals)
            elif word.startswith("--"):
                last = read_flag(head, value if equals else None)
                flags.pop(last.name, None)  # of several equal ones the last counts
                flags[last.name], takes = last, "value" if last.alone else ""
            elif takes == "value":
                flags[last.name], takes = take(last, word), ""
            elif takes in ("file", "topic") and word.endswith(".toml") and word[0] != "-":
                files.append(Path(word))
            elif takes == "topic" and not word.startswith("-"):
                topics.append(word)
            else:
                raise ConfigError(stray(word))
        return cls(tuple(files), flags, tuple(topics) if wants_help else None)

    def layer(self) -> Layer:
        """Return the values as they are typed, and true or false of switches.

        Raises ConfigError for a flag of no field; a method's own fields are not checked yet.
        """
        values: dict[str, Any] = {}
        for each in self.flags.values():
            of_method = each.name.startswith(METHOD) and each.name.count(".") == 1
            if not of_method and each.name not in NAMES:
                raise ConfigError(f"{COMMAND_LINE}: {no_field(each.name, NAMES)}")
            values[each.name] = not each.no if each.alone or each.no else each.text
        return Layer(COMMAND_LINE, nested(values), {name: flag(name) for name in self.flags})

    def check(self, model: type[Job]) -> None:
        """Raise ConfigError for a flag that the class of the job does not have, or not so.

        A switch takes true, false or nothing, other fields one value. `Job` itself knows no
        parameters of methods.
        """
        names = field_names(model)
        for each in self.flags.values():
            if model is Job and each.name.startswith(METHOD):
                continue
            kind = annotation_of(model, each.name.split("."))
            if each.name not in names or (each.no and not is_switch(kind)):
                name = f"no-{each.name}" if each.no else each.name
                raise ConfigError(f"{COMMAND_LINE}: {no_field(name, names)}")
            if each.alone and not is_switch(kind):
                raise ConfigError(f"{COMMAND_LINE}: {flag(each.name)}: expected one argument")
            usual = {"true"} if each.no else SWITCH
            if not each.alone and is_switch(kind) and each.text.lower() not in usual:
                raise ConfigError(stray(each.text))


def read_flag(head: str, value: str | None) -> Flag:
    """Return the flag of a word, `--data.alpha` or `--no-dry-run`, with the value after its =."""
    name = head[2:]
    no = name.startswith("no-")
    name = name.removeprefix("no-").replace("-", "_")
    return Flag(name, no=no) if value is None else take(Flag(name, no=no), value)


def take(each: Flag, word: str) -> Flag:
    """Return the flag with its value."""
    return each._replace(text=word, alone=False)


def flag(name: str) -> str:
    """Return a field as it is typed: --dry-run, --local.lr."""
    return f"--{name}" if "." in name else f"--{name.replace('_', '-')}"


def stray(word: str) -> str:
    """Return the message for a word of the command line that belongs to no field."""
    if word.endswith(".toml"):
        return (
            f"{COMMAND_LINE}: {word}: job files come before all flags; later ones override "
            f"earlier ones"
        )
    return f"{COMMAND_LINE}: {word!r} is neither a job file (.toml) nor the value of a --field"


def job_files(words: Sequence[str]) -> list[Path]:
    """Return the paths of job files; raise ConfigError for a word that is none."""
    for wrong in [word for word in words if not word.endswith(".toml")]:
        raise ConfigError(stray(wrong))
    return [Path(word) for word in words]
