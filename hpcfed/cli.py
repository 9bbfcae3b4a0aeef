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
    """One command: its target is called with the values of its arguments, by name.

    fields: whether it takes a job's command line too, all words that are not its own; they are its `words`.
    """

    arguments: tuple[Argument, ...] = ()
    fields: bool = False


RUN = argument("run", type=Path, metavar="RUN", help="folder of a run, or its results.h5")
RUNS = argument("runs", type=Path, metavar="RUN", nargs="+", help="folder of a run, or its results.h5")
JSON = argument("--json", action="store_true", help="machine-readable output")
NAME = argument("name", metavar="NAME", help="an algorithm, data set, partition or model")
KINDS = ("algorithms", "datasets", "partitions", "models")
KIND = argument("kind", nargs="?", choices=KINDS, help="only these; default: all four")
OUT = argument("-o", "--out", type=Path, metavar="FILE", help="picture to write; default: in RUN")
WORDS = argument("words", nargs="+", metavar="COMMAND", help="-- mpirun -np 4 python -m hpcfed.main JOB.toml ...")
FORMAT = argument("--format", choices=("png", "svg", "pdf"), help="default: the ending of FILE, or png")


AGAIN = argument("--again", action="store_true", help="go on, whatever --overwrite says, as after a first start")
SUBMIT = (
    argument("--nodes", type=int, default=1, metavar="N"),
    argument("--ntasks-per-node", type=int, metavar="N", help="ranks of a node; default: one for each GPU, or one"),
    argument("--gpus-per-node", metavar="[TYPE:]N"),
    argument("--cpus-per-task", type=int, metavar="N", help="cores of a rank; run.threads says how many it uses"),
    *(argument(f"--{name}", help="as sbatch has it") for name in
      ("mem", "time", "partition", "account", "qos", "constraint")),
    argument("--env", action="append", metavar="LINE", help="line of shell to begin with, as 'module load openmpi'"),
    argument("--container", metavar="IMAGE", help="of apptainer, in which the ranks run"),
    argument("--launcher", default="auto", metavar="COMMAND", help="as mpirun or 'srun --mpi=pmi2'; default: auto"),
    argument("--chain", type=int, default=1, metavar="N", help="jobs, each to go on where the one before stopped"),
    argument("--each", action="append", metavar="FIELDS", help="a run with these fields too, as task of an array job"),
    argument("--ranks", metavar="1,2,4", help="a run on each of these numbers of ranks, one after the other"),
    argument("--dry-run", action="store_true", help="print the script (of a chain: the first), submit nothing"),
)  # fmt: skip


def command(target: str, line: str, *arguments: Argument, fields: bool = False) -> Command:
    return Command(target, line, arguments=arguments, fields=fields)


COMMANDS = {
    "list": command("hpcfed.report.catalogue:listing", "what a job can name, a line each", KIND, JSON),
    "show": command("hpcfed.report.catalogue:show", "one name: its parameters and its source", NAME, JSON),
    "summary": command("hpcfed.report.summary:summary", "accuracy, traffic and time of a run", RUN, JSON),
    "plot": command("hpcfed.report.plot:plot", "learning curves and label distribution", RUNS, OUT, FORMAT),
    "cite": command("hpcfed.report.cite:cite", "BibTeX of what a run used", RUN),
    "supervise": command("hpcfed.engine.supervise:supervise", "start a run, again when it is cut short", AGAIN, WORDS),
    "submit": command("hpcfed.slurm.submit:submit", "a run as a batch job of Slurm", *SUBMIT, fields=True),
    "digest": command("hpcfed.storage.digest:digest", "SHA-256 of a run's results and weights", RUN),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. The exit status: 0 or its own, 2 for a user's error, 1 if the reader has gone."""
    escape_unprintable()
    options = _options(words)
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


def _options(words: Sequence[str] | None) -> dict[str, Any]:
    """The command and the values of its arguments."""
    parser = _parser()
    known, others = parser.parse_known_args(words)
    if COMMANDS[known.command].fields:
        return {**vars(known), "words": others}
    if others:
        parser.error(f"{known.command}: unrecognized arguments: {' '.join(others)}")
    return vars(known)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("hpcfed", description="Look up what a job can name; read what runs have written.")
    parser.add_argument("--version", action="version", version=f"hpcfed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        usage = f"hpcfed {name} [JOB.toml] [--field value ...] [options]" if command.fields else None
        sub = commands.add_parser(name, help=command.line, description=command.line, usage=usage, allow_abbrev=False)
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
