"""Progress display of a run: a bar on a terminal, plain lines elsewhere; rank 0 only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from hpcfed.core.errors import WARNING, HpcfedError, format_error, printable
from hpcfed.core.tables import Lasting, console
from hpcfed.results import summary
from hpcfed.results.columns import format_metric, main_metric, title_metric
from hpcfed.storage import names
from hpcfed.storage.results import Record

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.machine.heartbeat import Heartbeat
    from hpcfed.storage.results import Results


OFTEN = 60.0  # seconds between two lines in a long round, without a terminal
LINE = 40  # characters of a rank's activity


class TwoLines(Bar):
    """A bar as wide as the terminal, with facts about the round in a line below it.

    Beside the bar they would leave no space for it on a narrow terminal.
    """

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(line) for task in self.tasks if (line := task.fields.get("line")))


def round_bar(console: Console, shown: bool) -> TwoLines:
    """Return a bar over rounds."""
    return TwoLines(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        expand=True,
        disable=not shown,
    )


class Cell:
    """A bar in a notebook's output, which is redrawn in place; no widgets are needed."""

    def __init__(self, name: str, total: int):
        self.name, self.total, self.done, self.line = name, total, 0, ""
        self.handle: Any = None

    def update(self, done: int, line: str) -> None:
        """Show the number of rounds done, and a line about the last one."""
        self.done, self.line = done, line
        if self.handle is None:
            from IPython.display import display  # here, because only a notebook has and needs it

            self.handle = display(self, display_id=True)
        else:
            self.handle.update(self)

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.done}" max="{self.total}"></progress>'
        return f"<code>{escape(self.name)} {bar} {escape(self.text())}</code>"

    def __repr__(self) -> str:
        return f"{self.name} {self.text()}"

    def text(self) -> str:
        return f"{self.done}/{self.total}  {self.line}"


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Display:
    """A bar over a run's rounds, in a notebook's cell or on a terminal.

    active: whether it is shown, unless the job is quiet.
    """

    def __init__(self, job: Job, active: bool = True):
        self.job, self.console = job, console(Lasting)
        shown = active and not job.quiet
        self.cell = Cell(job.algorithm.name, job.rounds) if shown and in_notebook() else None
        self.live = shown and self.cell is None and self.console.is_terminal
        self.bar = round_bar(self.console, self.live)
        self.task = self.bar.add_task(job.algorithm.name, total=job.rounds, line="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def advance(self, done: int, line: str, left: str = "") -> bool:
        """Show the number of rounds done; return False if there is no bar.

        line: about the last round.  left: the time left, which a bar on a terminal has anyway.
        """
        if self.cell:
            self.cell.update(done, line + left)
        elif self.live:
            self.bar.update(self.task, completed=done, line=line)
        return bool(self.cell or self.live)


class Rounds(Display):
    """Progress of a run that other processes compute, read from its results."""

    def __init__(self, job: Job):
        super().__init__(job)
        self.rounds = 0

    def show(self, record: Record | None) -> None:
        """Show new rounds of the run's record."""
        if self.job.quiet or record is None or record.rounds <= self.rounds:
            return
        start, self.rounds = self.rounds, record.rounds
        metric = main_metric(record)
        values = [mean(row) for row in record.column(f"clients/{metric}")]
        loss = [mean(row) for row in record.column("clients/train_loss")]
        last = next((a for a in values[::-1] if not np.isnan(a)), float("nan"))
        if not self.advance(self.rounds, brief(last, loss[-1], metric)):
            for t in range(start, self.rounds):
                self.console.print(
                    f"round {t + 1}/{self.job.rounds}  {brief(values[t], loss[t], metric)}"
                )


class Progress(Display):
    """Progress of this process's run; silent if it is not active or the job is quiet.

    metric: the main metric of the run.
    """

    def __init__(
        self, job: Job, folder: Path, architectures: Sequence[str], metric: str, active: bool
    ):
        super().__init__(job, active)
        self.folder, self.architectures, self.active = folder, architectures, active
        self.inside = self.bar.add_task("", total=None, line="", visible=False)
        self.begun: float | None = None
        self.spoken = monotonic()  # when the last line was printed
        self.metric, self.value = metric, float("nan")

    def __enter__(self) -> Self:
        super().__enter__()
        mix = ", ".join(sorted(set(self.architectures)))
        self.say(
            f"{self.job.algorithm.name}: {self.job.clients} clients ({mix}) on "
            f"{summary.data_name(self.job.data.model_dump())}, "
            f"{self.job.data.partition}; results in {printable(self.folder)}"
        )
        self.say(
            f"train loss: mean of {self.job.algorithm.name}'s own objective, with all its terms; "
            "those of two methods are not the same quantity"
        )
        return self

    def say(self, text: str) -> None:
        if self.active and not self.job.quiet:
            with suppress(OSError):  # a full disk of a log does not end the run
                self.bar.console.print(text)

    def round(self, t: int, row: dict[str, Any]) -> None:
        """Show that t rounds are done."""
        value = mean(row[f"clients/{self.metric}"])
        loss = mean(row["clients/train_loss"])
        self.value = self.value if np.isnan(value) else value  # of the last evaluation
        text = line(self.value, loss, row["rounds/seconds"], self.metric)
        left = self.left(t)
        if self.advance(t, brief(self.value, loss, self.metric), left):
            self.bar.update(self.inside, visible=False)
        else:
            self.say(f"round {t}/{self.job.rounds}  {text}{left}")
            self.spoken = monotonic()
        if self.job.verbose:
            self.clients(t, row)

    def look(self, heartbeat: Heartbeat) -> None:
        """Show the progress of this rank's clients inside a round.

        It is called when a client begins or ends, and shows a bar, or without a terminal an
        occasional line.
        """
        if not self.active or self.job.quiet or self.cell:
            return
        # some methods have several turns of each client
        several = heartbeat.total and heartbeat.done
        n = (heartbeat.done - 1) % heartbeat.total + 1 if several else 0
        if self.live:
            self.bar.update(
                self.inside,
                description=f"round {heartbeat.t + 1}",
                total=heartbeat.total or None,
                completed=n,
                line=f"{heartbeat.phase} {heartbeat.client}"[:LINE],
                visible=True,
            )
        elif monotonic() - self.spoken > OFTEN:
            of = f"{n} of {heartbeat.total} clients of rank 0, " if heartbeat.total else ""
            self.say(
                f"in round {heartbeat.t + 1}/{self.job.rounds}: {of}{heartbeat.phase} "
                f"{heartbeat.client}"
            )
            self.spoken = monotonic()

    def left(self, t: int) -> str:
        """Return the time left, from the rounds seen so far; "" after the first or the last."""
        now, starting = monotonic(), self.begun is None
        if starting:
            self.begun, self.first_t = now, t
            return ""
        if t >= self.job.rounds:
            return ""
        per_round = (now - self.begun) / (t - self.first_t)  # type: ignore[operator]
        return f"  {summary.duration((self.job.rounds - t) * per_round)} left"

    def clients(self, t: int, row: dict[str, Any]) -> None:
        for i in np.flatnonzero(row["clients/cohort"]):
            k = row["clients/id"][i] if "clients/id" in row else i
            self.say(
                f"  round {t}  client {k} ({self.architectures[int(k)]})  "
                f"train loss {row['clients/train_loss'][i]:.3f}  {title_metric(self.metric)} "
                f"{format_metric(self.metric, row[f'clients/{self.metric}'][i])}  "
                f"{row['clients/seconds'][i]:.2f} s"
            )

    def report_moves(self, n: int) -> None:
        if n:
            self.say(f"moved {n} clients between ranks by measured cost")

    def finish(
        self, results: Results | None, picture: Callable[[Record, Path], Path] | None
    ) -> None:
        """Print the summary, and the files that were written.

        picture: draws a record into a folder and returns the path; None: no picture is drawn.
        """
        if not self.active or results is None:
            return
        self.bar.stop()
        record = results.record()  # from memory: reading the file may fail
        try:
            self.console.print(summary.render(record))
            self.console.print(f"results: {printable(names.results_file(self.folder))}")
            if picture:
                self.console.print(f"picture: {printable(picture(record, self.folder))}")
        except (OSError, HpcfedError) as error:  # the run is done, and its results are there
            with suppress(OSError):
                text = format_error(f"{WARNING}no picture or table: {error}")
                print(text, file=sys.stderr, flush=True)


def brief(value: float, loss: float, metric: str = "accuracy") -> str:
    """Return a round's numbers without its seconds, for use beside a bar."""
    score = f"{title_metric(metric)} {format_metric(metric, value, 3)}"
    parts = {score: value, f"train loss {loss:.3g}": loss}
    return " ".join(text for text, value in parts.items() if not np.isnan(value))


def line(value: float, loss: float, seconds: float, metric: str = "accuracy") -> str:
    """Return a round's numbers in one line, without those that are nan.

    A metric is nan before the first evaluation.
    loss: of training, the mean of the method's own objective.
    """
    score = f"{title_metric(metric)} {format_metric(metric, value)}  "
    parts = {score: value, f"train loss {loss:.3f}  ": loss}
    return (
        "".join(text for text, value in parts.items() if not np.isnan(value))
        + f"{seconds:.1f} s/round"
    )


def mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
