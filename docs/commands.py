"""The reference of the commands, from what parses them."""

from text import code, joined, prose, sentence, table

from hpcfed.launch.commands import COMMANDS, Argument, Command

INTRO = """
# Commands

A run is `hpcfed run [JOB.toml ...] [--field value ...]`, which is `python -m hpcfed.main` by
another name, under `mpirun` or not; its flags are the [fields of a job](job.md). No other command
needs MPI.
Commands that read runs read result files alone, also during a run.

Exit statuses, of runs and of commands:

| status | meaning |
|---|---|
| 0 | done; also where ranks died and the others went on |
| 1 | a bug, with a traceback; a rank's death where `run.on_fault = "stop"`; a failed sweep's run |
| 2 | a mistake in job, data or files: one message says what, where, which value and what to do |
| 70 | ended by the watchdog, because no rank made progress; continue with `--resume` |
| 75 | stopped by a signal and saved, by a rank's death or a full disk; continue with `--resume` |
"""
MANY = {"+": "one or more", "*": "any number"}  # of nargs


def page() -> str:
    """The whole page."""
    return joined(INTRO, *(section(name, command) for name, command in COMMANDS.items()))


def section(name: str, command: Command) -> str:
    """One command with its arguments."""
    fields = "It takes job files and fields too, as a run does." if command.fields else ""
    rows = (
        table(("argument", "", "meaning"), map(row, command.arguments)) if command.arguments else ""
    )
    return joined(f"## hpcfed {name}", f"{sentence(prose(command.line))}. {fields}", rows)


def row(argument: Argument) -> tuple[str, ...]:
    """One argument: its names, what follows it, what it means."""
    names, options = argument
    value = " or ".join(options.get("choices", [options.get("metavar", "")]))
    if not names[0].startswith("-"):
        names, value = [value], MANY.get(options.get("nargs", ""), "")
    return ", ".join(map(code, names)), prose(value), prose(options.get("help", ""))
