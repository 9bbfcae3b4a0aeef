"""The console command `hpcfed`: runs a job, looks things up and reads result files. Only `hpcfed
run` under a launcher needs MPI.

A command is one function and one line in `hpcfed.launch.commands`, which names its arguments. The
function returns what is
printed: text, a list or dict (as JSON), or a table of rich; a number is the exit status. Its module
is imported only when the command is called, so that `hpcfed list` and `hpcfed --help` answer at
once.
"""

import atexit
import gc
import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpcfed.core.errors import (
    HpcfedError,
    escape_unprintable,
    format_error,
    plain,
    printable,
    unknown,
)
from hpcfed.core.version import __version__
from hpcfed.launch.commands import COMMANDS

# what was imported lasts: not to look for garbage in it at the end saves half a second with torch
atexit.register(gc.freeze)

FIRST = """\
hpcfed run: no job is given, so the embedded one runs. 20 clients hold scanned digits of
scikit-learn, about 72 each, and some digits more than others; they have four different small
models. With FedClassAvg they share nothing but the classifier, for 40 rounds.
"""
NEXT = """
Next:
  hpcfed run --algorithm.name local       the same clients, each alone
  hpcfed compare {ours} {other}
  hpcfed plot {ours} {other} -o curves.png"""

OF_JOB = "[JOB.toml ...] [--field value ...] [options]"  # the usage of a job's command line


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. The exit status: 0 or its own, 2 for a user's error, 1 if the reader has
    gone.
    """
    escape_unprintable()
    options = _options(words)
    inputs = [item for value in options.values() for item in _items(value)]
    try:
        answer = COMMANDS[options.pop("command")].load()(**options)
        if isinstance(answer, int):
            return answer
        _print(answer, inputs)
        sys.stdout.flush()
    except HpcfedError as error:
        print(f"hpcfed: {format_error(error, inputs)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # e.g. `hpcfed list | head -1`; at exit Python flushes stdout once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from hpcfed.core import user_code  # here: `hpcfed --help` answers at once

        if not (theirs := user_code.explain_error(error)):
            raise
        print(f"hpcfed: {format_error(theirs)}", file=sys.stderr)
        return 2
    return 0


def _options(words: Sequence[str] | None) -> dict[str, Any]:
    """The command and the values of its arguments."""
    arguments = list(sys.argv[1:] if words is None else words)
    if arguments[:1] == ["run"]:  # all its words are the run's own, --help among them
        own_folder()
        return {"command": "run", "words": arguments[1:]}
    parser = _parser()
    if not arguments:
        parser.print_help()
        raise SystemExit(0)
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        message = unknown("command", arguments[0], COMMANDS, "hpcfed --help")
        parser.error(message.replace("\n  ", "; "))  # `Parser.error` prints one line
    options, others = parser.parse_known_args(words)
    if COMMANDS[options.command].fields:
        own_folder()
        return {**vars(options), "words": others}
    if others:
        parser.error(f"{options.command}: unrecognized arguments: {' '.join(others)}")
    if vars(options).get("own"):
        own_folder()
    return vars(options)


def own_folder() -> None:
    """Let the user's own methods and models be found in the current folder, as with python
    -m.
    """
    sys.path.insert(0, "")


class Parser(ArgumentParser):
    """argparse, whose messages repeat words of the command line, which shells make of folders."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> ArgumentParser:
    parser = Parser(
        "hpcfed",
        description="Run a job; look up what it can name; read what runs have written.",
    )
    parser.add_argument("--version", action="version", version=f"hpcfed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        usage = (
            f"{' '.join(['hpcfed', name, *command.places])} {OF_JOB}" if command.fields else None
        )
        sub = commands.add_parser(
            name, help=command.line, description=command.line, usage=usage, allow_abbrev=False
        )
        for names, options in command.arguments:
            sub.add_argument(*names, **options)
    return parser


def run(words: Sequence[str]) -> int | str:
    """The command `hpcfed run`: a run, as `python -m hpcfed.main` does it; its exit status. Without
    words it says what it does, and what to try next. With --help: the text.
    """
    from hpcfed.comm.connect import detect_launcher, other_process_reports
    from hpcfed.config.load import refuse_early
    from hpcfed.config.words import CommandLine

    if detect_launcher(os.environ)[1] == 1:
        line = CommandLine.parse(words)
        if line.topics is not None:
            from hpcfed.config.help import help
            from hpcfed.engine.folder import read_job

            return help(line, read_job)
        refuse_early(line)
    from hpcfed.main import program  # here: `hpcfed list` runs nothing

    if words or other_process_reports(os.environ):
        return program(words)
    print(FIRST, flush=True)
    status = program([])
    if not status:
        print(plain(NEXT.format(ours=first_folder("fedclassavg"), other=first_folder("local"))))
    return status


def first_folder(method: str) -> str:
    """Where the embedded job puts a run of this method."""
    from hpcfed.config.load import load

    return str(load(["--algorithm.name", method]).folder)


def completion(shell: str) -> str:
    """The command: a script of this shell, after which Tab completes commands, options, fields,
    their values, names and files.
    """
    import shtab

    from hpcfed.report.completion import VALUES, field_values

    fields = field_values()
    parser = _parser()
    [commands] = [action for action in parser._actions if action.dest == "command"]
    parsers: Any = commands.choices
    for name, sub in parsers.items():
        for action in sub._actions:
            action.choices = action.choices or VALUES.get(action.dest, list)() or None
        options = {option for action in sub._actions for option in action.option_strings}
        for option, values in fields.items() if COMMANDS[name].fields else ():
            if option not in options:
                sub.add_argument(option, choices=values or None)
        if COMMANDS[name].fields:
            sub.add_argument("words", nargs="*", type=Path)
        for action in sub._actions:
            if action.type is Path:
                action.complete = shtab.FILE
    return shtab.complete(parser, shell=shell)


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _print(answer: Any, inputs: Sequence[object]) -> None:
    """Print an answer.

    inputs: values that the user gave, such as names of folders.
    """
    if isinstance(answer, str):
        print(plain(answer, inputs))
    elif isinstance(answer, list | dict):
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        from hpcfed.core.tables import console

        console().print(answer)


if __name__ == "__main__":
    sys.exit(main())
