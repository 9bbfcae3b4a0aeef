"""Printed tables: aligned columns, with colour on a terminal and plain elsewhere."""

import os
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hpcfed.core.errors import plain, printable
from hpcfed.core.progress import interactive
from hpcfed.core.wording import cut_middle

LEAST = 20  # characters to which the name of a run is cut at most
WIDTH = 200  # characters of a line without a terminal, so that nothing is wrapped


class Plain(Console):
    """A console that prints text alone; control characters, for instance in names, are escaped."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else plain(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


class Lasting(Plain):
    """The console of a run, which continues without one if the reader of its output goes away."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "w") as nowhere:  # what Python flushes at its end goes there
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def console(kind: type[Console] = Plain) -> Console:
    """Return the console on which commands print; brackets are text, not markup."""
    shown = terminal()
    return kind(
        force_terminal=shown,
        width=None if shown else WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def terminal() -> bool:
    """Return whether stdout ends at a terminal.

    Open MPI gives its ranks a pseudo-terminal in any case; then the output of mpirun decides.
    """
    try:
        beyond = (
            os.readlink(f"/proc/{os.getppid()}/fd/1")
            if "OMPI_COMM_WORLD_SIZE" in os.environ
            else "/dev/"
        )
    except OSError:  # no /proc, or a parent of another user
        beyond = "/dev/"
    return interactive(sys.stdout) and beyond.startswith("/dev/") and beyond != os.devnull


class Name:
    """The name of a run in a table: where it does not fit it is cut in its middle.

    Names of a sweep begin alike and end with what tells them apart, such as the seed.
    """

    def __init__(self, text: str):
        self.text = printable(text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(LEAST, len(self.text)), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(cut_middle(self.text, options.max_width), no_wrap=True)


def table(heads: str, rows: Iterable[tuple[object, ...]], named: bool = False) -> Table:
    """Return a table with these rows.

    heads: names of the columns, separated by commas, with `>` before those of numbers.
    named: the first column has names, which are cut in their middle.
    """
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads.split(","):
        grid.add_column(
            Text(printable(head.lstrip(">"))), justify="right" if head.startswith(">") else "left"
        )
    for row in rows:
        cells: list[RenderableType] = [Text(printable(cell)) for cell in row]
        grid.add_row(*([Name(str(row[0])), *cells[1:]] if named else cells))
    return grid


def size(n: float) -> str:
    """Format a number of bytes in powers of 1000: `82.1 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < (999.5 if unit == "B" else 999.95):
            return f"{n:.3g} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def duration(seconds: float) -> str:
    """Format a number of seconds: `0.25 s`, `41.3 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
