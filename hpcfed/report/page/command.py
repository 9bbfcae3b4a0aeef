"""`hpcfed report RUN... -o report.html`: all that result files tell, on one page for a browser."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.paths import output
from hpcfed.core.version import __version__
from hpcfed.report import colours
from hpcfed.report.page import curves, job, methods, notes, packed, tables, write
from hpcfed.report.page.runs import Shown, load_runs
from hpcfed.storage import names

NAME = "report.html"


def report(runs: Sequence[Path], out: Path | None = None) -> str:
    """The command. Without out: in the folder of the first run or sweep. Returns the page's path.

    Raises CheckpointError for a run without results, ConfigError where a library is missing or the
    disk refuses.
    """
    write.check()
    found, absent = load_runs(runs, time.time())
    if not found:
        raise CheckpointError(
            "report: none of these runs has results yet:\n  " + "\n  ".join(absent)
        )
    path = out or names.folder_of(runs[0]) / NAME
    if path.suffix != ".html":
        raise ConfigError(f"{path}: not the name of a page; end it in .html")
    text = render_page(found, absent)
    with output(path, "the page"):
        path.write_text(text, encoding="utf-8")
    return str(path)


def render_page(found: Sequence[Shown], absent: Sequence[str] = ()) -> str:
    """The page of these runs. absent: a sentence for each run that has no results."""
    choices = [curves.choose_curves(run.record, len(found)) for run in found]
    said, groups = notes.notes(found, absent), methods.seeds(found)
    facts = [
        ("job", "Job", job.jobs(found)),
        ("environment", "Environment", job.environments(found)),
    ]
    return write.page(
        read(found, choices, groups),
        title=title(found),
        made=time.strftime("%Y-%m-%d %H:%M %Z"),
        notes=said,
        version=__version__,
        y=curves.Y,
        single=len(found) == 1,
        parts=parts(bool(said)),
        comparison=methods.comparison(found),
        architectures=methods.by_architecture(found, groups),
        metrics=methods.by_metric(found, groups),
        facts=facts,
        resolution=resolution(found, choices),
    )


def read(
    found: Sequence[Shown],
    choices: Sequence[curves.Chosen],
    groups: Sequence[tuple[str, list[int]]],
) -> dict[str, Any]:
    """What the page's scripts read. groups: the runs that are seeds of one method."""
    from hpcfed.report.page import charts

    return {
        "x": curves.X,
        "y": curves.Y,
        "steps": packed.STEPS,
        **colours.for_scripts(),
        "heads": {"runs": tables.RUNS, "clients": tables.CLIENTS},
        "methods": [{"name": name, "runs": places} for name, places in groups],
        "rows": [tables.run(run) for run in found],
        "runs": [content(run, choice) for run, choice in zip(found, choices, strict=True)],
        "charts": charts.charts(),
    }


def content(run: Shown, choice: curves.Chosen) -> dict[str, Any]:
    """One run of it."""
    record, ids = run.record, choice.clients
    return {
        "name": run.name,
        "ids": ids.tolist(),
        "some": some(run, len(ids)),
        "curves": curves.content(record, choice),
        "table": tables.clients(record, ids),
        "labels": tables.labels(record, ids),
        "phases": tables.phases(record),
    }


def some(run: Shown, n: int) -> str:
    """Which clients the page has, where not all."""
    K = run.job["clients"]
    if n == K:
        return ""
    return (
        f"{n:,} of {K:,} clients, evenly chosen"
        if n
        else f"{K:,} clients; so many are not shown one by one"
    )


def resolution(found: Sequence[Shown], choices: Sequence[curves.Chosen]) -> str:
    """How exact the curves are."""
    text = (
        f"Curves of runs are exact; each curve of a client is rounded to {packed.STEPS:,} steps "
        f"between its lowest and highest value."
    )
    if all(len(c.rounds) == run.record.rounds for run, c in zip(found, choices, strict=True)):
        return text
    most = f"{curves.MOST_ROUNDS:,}"
    return (
        f"{text} Of a run with more than {most} rounds the page has at most {most} of those "
        f"with an evaluation."
    )


def title(found: Sequence[Shown]) -> str:
    return found[0].name if len(found) == 1 else f"{len(found)} runs"


def parts(warned: bool) -> list[tuple[str, str]]:
    """The page's parts, as its head lists them."""
    known = [("warnings", "Warnings")] * warned
    return [
        *known,
        ("methods", "Methods"),
        ("all-runs", "Runs"),
        ("curves", "Curves"),
        ("one-run", "Clients, labels, phases"),
        ("job", "Job"),
        ("environment", "Environment"),
    ]
