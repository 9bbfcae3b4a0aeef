"""How far slow work is, on stderr: a bar in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from hpcfed.core.errors import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")
SHOWN: list[Progress] = []  # the bars that are on the screen
FIRST, EVERY = 5.0, 30.0  # seconds before the first line where there is no terminal, and the others


def track(things: Iterable[T], what: str, named: bool = False) -> Iterator[T]:
    """These things one after the other, while it is shown how many of them are done.

    what: what is done to them, as `probing 20 models`.  named: say which of them is in hand too.
    Work of less than five seconds says nothing where stderr is no terminal.
    """
    total = len(things) if isinstance(things, Sized) else None
    yield from (bar if sys.stderr.isatty() else lines)(things, what, total, named)


def title(what: str, thing: object, named: bool) -> str:
    """What is done, and to which of them."""
    return f"{what}: {thing}" if named else what


def bar(things: Iterable[T], what: str, total: int | None, named: bool) -> Iterator[T]:
    """With a bar on stderr, which is gone when all are done.

    Below another one where that is shown.
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
    """The bars on stderr: new ones, or those that are shown already."""
    if SHOWN:
        yield SHOWN[-1]
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    own = sys.stdout.isatty()  # what is printed there goes above the bars
    with Progress(
        *columns, console=on_stderr(), transient=True, redirect_stdout=own, redirect_stderr=True
    ) as shown:
        SHOWN.append(shown)
        try:
            yield shown
        finally:
            SHOWN.pop()


def on_stderr() -> Console:
    """A console that writes to stderr as it is now, and takes no text for markup."""
    from rich.console import Console

    return Console(file=sys.stderr, markup=False, highlight=False, emoji=False)


def lines(things: Iterable[T], what: str, total: int | None, named: bool) -> Iterator[T]:
    """With a line on stderr when it takes long, and then every half minute."""
    due = monotonic() + FIRST
    for done, thing in enumerate(things):
        if monotonic() >= due:
            of = "" if total is None else f" of {total}"
            say(f"{title(what, thing, named)}: {done}{of} done")
            due = monotonic() + EVERY
        yield thing


def say(text: str) -> None:
    """A line on stderr, at once."""
    print(plain(text), file=sys.stderr, flush=True)
