"""The console command `hpcfed`: looks things up and reads result files; never needs MPI.

A command is one function and one line in `hpcfed.launch.commands`, which names its arguments. The
function returns what is
printed: text, a list or dict (as JSON), or a table of rich; a number is the exit status. Its module
is imported only when the command is called, so that `hpcfed list` and `hpcfed --help` answer at
once.
"""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any, NoReturn

from hpcfed.core.errors import HpcfedError, escape_unprintable, format_error, plain, printable
from hpcfed.core.version import __version__
from hpcfed.launch.commands import COMMANDS


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. The exit status: 0 or its own, 2 for a user's error, 1 if the reader has
    gone.
    """
    escape_unprintable()
    options = _options(words)
    given = [item for value in options.values() for item in _items(value)]
    try:
        answer = COMMANDS[options.pop("command")].load()(**options)
        if isinstance(answer, int):
            return answer
        _print(answer, given)
        sys.stdout.flush()
    except HpcfedError as error:
        print(f"hpcfed: {format_error(error, given)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # e.g. `hpcfed list | head -1`; at exit Python flushes stdout once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from hpcfed.core import own  # here: `hpcfed --help` answers at once

        if not (theirs := own.explain_error(error)):
            raise
        print(f"hpcfed: {format_error(theirs)}", file=sys.stderr)
        return 2
    return 0


def _options(words: Sequence[str] | None) -> dict[str, Any]:
    """The command and the values of its arguments."""
    parser = _parser()
    known, others = parser.parse_known_args(words)
    if COMMANDS[known.command].fields:
        sys.path.insert(
            0, ""
        )  # methods and models of one's own, in the folder where one starts, as with python -m
        return {**vars(known), "words": others}
    if others:
        parser.error(f"{known.command}: unrecognized arguments: {' '.join(others)}")
    return vars(known)


class Parser(ArgumentParser):
    """argparse, whose messages repeat words of the command line, which shells make of folders."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> ArgumentParser:
    parser = Parser(
        "hpcfed", description="Look up what a job can name; read what runs have written."
    )
    parser.add_argument("--version", action="version", version=f"hpcfed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        usage = (
            f"hpcfed {name} [JOB.toml ...] [--field value ...] [options]"
            if command.fields
            else None
        )
        sub = commands.add_parser(
            name, help=command.line, description=command.line, usage=usage, allow_abbrev=False
        )
        for names, options in command.arguments:
            sub.add_argument(*names, **options)
    return parser


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _print(answer: Any, given: Sequence[object]) -> None:
    """given: by the user, such as names of folders."""
    if isinstance(answer, str):
        print(plain(answer, given))
    elif isinstance(answer, list | dict):
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        from hpcfed.core.tables import console

        console().print(answer)


if __name__ == "__main__":
    sys.exit(main())
