"""The console command `hpcfed`: looks things up and reads result files; never needs MPI.

A command is one function and one line in COMMANDS, which names its arguments. The function returns what is
printed: text, a list or dict (as JSON), or a table of rich; a number is the exit status. Its module is imported only
when the command is called, so that `hpcfed list` and `hpcfed --help` answer at once.
"""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfed import __version__
from hpcfed.errors import HpcfedError, escape_unprintable, told
from hpcfed.registry import Entry

Argument = tuple[tuple[str, ...], dict[str, Any]]  # what ArgumentParser.add_argument takes


def argument(*names: str, **options: Any) -> Argument:
    """One argument of a command, as ArgumentParser.add_argument takes it."""
    return names, options


@dataclass(frozen=True)
class Command(Entry):
    """One command: its target is called with the values of its arguments, by name."""

    arguments: tuple[Argument, ...] = ()


RUN = argument("run", type=Path, metavar="RUN", help="folder of a run, or its results.h5")
RUNS = argument("runs", type=Path, metavar="RUN", nargs="+", help="folder of a run, or its results.h5")
JSON = argument("--json", action="store_true", help="machine-readable output")
NAME = argument("name", metavar="NAME", help="an algorithm, data set, partition or model")
KINDS = ("algorithms", "datasets", "partitions", "models")
KIND = argument("kind", nargs="?", choices=KINDS, help="only these; default: all four")
OUT = argument("-o", "--out", type=Path, metavar="FILE", help="picture to write; default: in RUN")
WORDS = argument("words", nargs="+", metavar="COMMAND", help="-- mpirun -np 4 python -m hpcfed.main JOB.toml ...")
FORMAT = argument("--format", choices=("png", "svg", "pdf"), help="default: the ending of FILE, or png")

JOB = argument("job", nargs="?", type=Path, metavar="JOB.toml", help="whose fields count; default: the embedded job")
RANKS = argument("--ranks", type=int, metavar="N", help="of the probe; default: Slurm's number of tasks, or 2")
FOLDER = argument("-o", "--out", type=Path, metavar="FOLDER", help="of runs; default: that of JOB, or runs")
SLURM = argument("--slurm", default="", metavar="OPTIONS", help="of srun and salloc, as in --slurm='--partition=gpu'")
LIMIT = argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for each probe; default 60")


def command(target: str, line: str, *arguments: Argument) -> Command:
    return Command(target, line, arguments=arguments)


COMMANDS = {
    "list": command("hpcfed.report.catalogue:listing", "what a job can name, a line each", KIND, JSON),
    "show": command("hpcfed.report.catalogue:show", "one name: its parameters and its source", NAME, JSON),
    "summary": command("hpcfed.report.summary:summary", "accuracy, traffic and time of a run", RUN, JSON),
    "plot": command("hpcfed.report.plot:plot", "learning curves and label distribution", RUNS, OUT, FORMAT),
    "cite": command("hpcfed.report.cite:cite", "BibTeX of what a run used", RUN),
    "supervise": command("hpcfed.engine.supervise:supervise", "start a run, again when it is cut short", WORDS),
    "doctor": command("hpcfed.doctor.main:doctor", "what runs meet on this machine, and what to change", JOB, RANKS,
                      FOLDER, SLURM, LIMIT, JSON),
    "digest": command("hpcfed.storage.digest:digest", "SHA-256 of a run's results and weights", RUN),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. The exit status: 0 or its own, 2 for a user's error, 1 if the reader has gone."""
    escape_unprintable()
    options = vars(_parser().parse_args(words))
    try:
        answer = COMMANDS[options.pop("command")].load()(**options)
        if isinstance(answer, int):
            return answer
        _print(answer)
        sys.stdout.flush()
    except HpcfedError as error:
        print(f"hpcfed: {told(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # e.g. `hpcfed list | head -1`; at exit Python flushes stdout once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser("hpcfed", description="Look up what a job can name; read what runs have written.")
    parser.add_argument("--version", action="version", version=f"hpcfed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.line, description=command.line)
        for names, options in command.arguments:
            sub.add_argument(*names, **options)
    return parser


def _print(answer: Any) -> None:
    if isinstance(answer, str):
        print(answer)
    elif isinstance(answer, list | dict):
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        from hpcfed.report.tables import console

        console().print(answer)


if __name__ == "__main__":
    sys.exit(main())
