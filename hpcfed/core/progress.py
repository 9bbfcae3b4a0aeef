"""Progress of slow work on stderr: a bar in a terminal, otherwise occasional lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TextIO, TypeVar

from hpcfed.core.errors import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")
SHOWN: list[Progress] = []  # displays in use; bars are added to the last
FIRST, EVERY = 5.0, 30.0  # seconds before the first line without a terminal, and between lines


def track(things: Iterable[T], what: str, named: bool = False) -> Iterator[T]:
    """Iterate over items while showing how many of them are done.

    what: the work on them, such as `probing 20 models`.
    named: also show the current item.
    Work of less than five seconds prints nothing if stderr is not a terminal.
    """
    total = len(things) if isinstance(things, Sized) else None
    yield from (bar if interactive(sys.stderr) else lines)(things, what, total, named)


def interactive(stream: TextIO | None) -> bool:
    """Return whether a stream ends at a terminal on which a bar can be redrawn; None: it is closed.

    A command in a notebook (`!hpcfed ...`) has a pseudo-terminal, but the notebook would show the
    codes that redraw a bar.
    """
    notebook = "JPY_PARENT_PID" in os.environ or "inline" in os.environ.get("MPLBACKEND", "")
    return stream is not None and stream.isatty() and not notebook


def title(what: str, thing: object, named: bool) -> str:
    """Return the description of the work, with the current item if it is named."""
    return f"{what}: {thing}" if named else what


def bar(things: Iterable[T], what: str, total: int | None, named: bool) -> Iterator[T]:
    """Show a bar on stderr while iterating; the bar is removed at the end.

    If another bar is shown, the new one appears below it.
    """
    with display() as shown:
        task = shown.add_task(what, total=total)
        try:
            for thing in things:
                shown.update(task, description=title(what, thing, named))
                yield thing
                shown.advance(task)
        finally:
            shown.remove_task(task)


@contextmanager
def display() -> Iterator[Progress]:
    """Yield the display of bars on stderr, which nested calls share."""
    if SHOWN:
        yield SHOWN[-1]
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    # if stdout is a terminal too, its text is printed above the bars
    redirect = interactive(sys.stdout)
    with Progress(
        *columns,
        console=on_stderr(),
        transient=True,
        redirect_stdout=redirect,
        redirect_stderr=True,
    ) as shown:
        SHOWN.append(shown)
        try:
            yield shown
        finally:
            SHOWN.pop()


def on_stderr() -> Console:
    """Return a console that writes to the present stderr and interprets no markup."""
    from rich.console import Console

    return Console(file=sys.stderr, markup=False, highlight=False, emoji=False)


def lines(things: Iterable[T], what: str, total: int | None, named: bool) -> Iterator[T]:
    """Print a line on stderr after some seconds, and then every half minute."""
    due = monotonic() + FIRST
    for done, thing in enumerate(things):
        if monotonic() >= due:
            of = "" if total is None else f" of {total}"
            say(f"{title(what, thing, named)}: {done}{of} done")
            due = monotonic() + EVERY
        yield thing


def say(text: str) -> None:
    """Print a line on stderr, and flush it."""
    print(plain(text), file=sys.stderr, flush=True)
