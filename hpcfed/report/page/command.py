"""`hpcfed report RUN... -o report.html`: the contents of result files on one page for a browser."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.paths import output
from hpcfed.core.version import __version__
from hpcfed.report.colours import Look, looks
from hpcfed.report.naming import Names, find_named, with_titles
from hpcfed.report.page import curves, job, methods, notes, result, tables, write
from hpcfed.report.page.clients import write_pages
from hpcfed.results.run import Run, folder_at, name_runs

NAME = "report.html"


def report(
    runs: Sequence[Path | Run],
    out: Path | None = None,
    metric: str | None = None,
    names: Names = None,
    clients: str | None = None,
) -> str:
    """Write the page of these runs, and return its path.

    clients: numbers or names with commas, or all, of which each gets a page beside it.
    names: of methods and data, as `find_named` takes them.
    metric: of curves, tables and the comparison; default: the first one that runs have.
    out: default: in the folder of the first run or sweep. Raises CheckpointError for a run without
    results, ConfigError if a library is missing, the file cannot be written, or a run has not
    measured the metric.
    """
    write.check()
    begun, absent = split_runs(find_named(runs, names))
    if not begun:
        raise CheckpointError(
            "report: none of these runs has results yet:\n  " + "\n  ".join(absent)
        )
    name_runs(begun)
    begun = [run.with_metric(metric) for run in begun] if metric else begun
    path = out or folder_at(runs[0]) / NAME
    if path.suffix != ".html":
        raise ConfigError(f"{path}: not the name of a page; end it in .html")
    text = render_page(begun, absent)
    if clients:
        write_pages(begun, clients, path)
    with output(path, "the page"):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return str(path)


def split_runs(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs that have results, and a sentence for each of the others."""
    absent = [f"{run.path}: {notes.describe_state(run.state)}" for run in runs if not run.begun]
    return [run for run in runs if run.begun], absent


def render_page(
    runs: Sequence[Run], absent: Sequence[str] = (), live: dict[str, Any] | None = None
) -> str:
    """Return the page of these runs.

    absent: a sentence for each run that has no results.
    live: further data of a page that is served (`report/watch/web.py`); None for a file.
    """
    metric, others = tables.page_metric(runs), tables.further_metrics(runs)
    axes = curves.y_axes(tables.curve_metrics(runs)) if runs else {}
    data = changes(runs, absent, live is not None)
    above, below = data.pop("above"), data.pop("below")
    return write.page(
        data | constants(runs, metric, axes, others) | ({"live": live} if live else {}),
        above,
        below,
        live=live is not None,
        title=title(live["names"] if live else [run.name for run in runs]),
        made=time.strftime("%Y-%m-%d %H:%M %Z"),
        version=__version__,
        y=axes,
        parts=parts(bool(runs), "<li>" in above),
        metric=methods.metric_words(metric),
        choices=[(name, methods.metric_words(name)["title"]) for name in (metric, *others)],
        resolution=data["resolution"],
    )


def constants(
    runs: Sequence[Run], metric: str, axes: dict[str, tuple[str, str]], others: Sequence[str]
) -> dict[str, Any]:
    """Return the data of the page's scripts that do not change during runs.

    others: further metrics, which the clients' table has.
    """
    from hpcfed.report.page import charts

    return {
        "x": curves.X,
        "y": axes,
        "metrics": [metric, *others],
        "heads": {
            "runs": tables.run_heads(runs, metric),
            "clients": tables.client_heads(runs, metric, others),
        },
        "charts": charts.charts(tuple(axes)),
    }


def changes(runs: Sequence[Run], absent: Sequence[str] = (), live: bool = False) -> dict[str, Any]:
    """Return the data of the page's scripts that change during runs.

    live: whether the page is served; it then has fewer curves of clients, and shows the state of
    runs elsewhere than in its warnings.
    above, below: sections as HTML, with their text escaped.
    """
    metric, others = tables.page_metric(runs), tables.further_metrics(runs)
    titled, drawn = with_titles(runs), tables.curve_metrics(runs)
    groups = methods.seeds(titled)
    lines = looks([runs[places[0]].method for _, places in groups])
    each = looks([run.method for run in runs])
    choices = [curves.choose_curves(run.record, len(runs), live) for run in runs]
    facts = [
        ("job", "Job", job.jobs(runs)),
        ("environment", "Environment", job.environments(runs)),
    ]
    return {
        "metric": metric,
        "resolution": resolution(runs, choices),
        "methods": [
            {"name": name, "runs": places, "look": for_script(look)}
            for (name, places), look in zip(groups, lines, strict=True)
        ],
        "rows": [tables.run(run, metric) for run in runs],
        "runs": [
            content(run, choice, metric, drawn) | {"look": for_script(look)}
            for run, choice, look in zip(runs, choices, each, strict=True)
        ],
        "above": write.section(
            "above.html",
            begun=bool(runs),
            result=result.sentences(titled),
            notes=notes.notes(runs, absent, states=not live),
            chosen=methods.by_chosen_metric(titled, metric, others),
            metrics=methods.by_metric(runs, groups),
            groups=methods.by_group(runs),
        ),
        "below": write.section("below.html", facts=facts if runs else [], single=len(runs) == 1),
    }


def for_script(look: Look) -> dict[str, Any]:
    """Return colours, on light and on dark ground, and dashes of a line for the page's scripts."""
    return {"colours": [look.light, look.dark], "dash": look.dash}


def content(run: Run, choice: curves.Chosen, metric: str, drawn: Sequence[str]) -> dict[str, Any]:
    """Return the data of one run. drawn: the metrics that have curves."""
    record, ids = run.record, choice.clients
    return {
        "name": run.name,
        "ids": ids.tolist(),
        "some": some(run, len(ids)),
        "curves": curves.content(record, choice, drawn),
        "table": tables.clients(record, ids, metric),
    }


def some(run: Run, n: int) -> str:
    """Return which clients the page has, if not all."""
    K = run.job["clients"]
    if n == K:
        return ""
    return (
        f"{n:,} of {K:,} clients, evenly chosen"
        if n
        else f"{K:,} clients, too many to show one by one"
    )


def resolution(runs: Sequence[Run], choices: Sequence[curves.Chosen]) -> str:
    """Return a note on the rounds that curves have, "" if these are all."""
    if all(len(c.rounds) == run.record.rounds for run, c in zip(runs, choices, strict=True)):
        return ""
    most = f"{curves.MOST_ROUNDS:,}"
    return (
        f"Of a run with more than {most} rounds the page has at most {most} of those with an "
        "evaluation."
    )


def title(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} runs"


def parts(begun: bool, warned: bool) -> list[tuple[str, str]]:
    """Return the page's parts, as listed in its head."""
    sections = [("warnings", "Warnings")] * warned
    if not begun:
        return sections
    return [
        *sections,
        ("methods", "Methods"),
        ("all-runs", "Runs"),
        ("curves", "Curves"),
        ("one-run", "Clients"),
        ("job", "Job"),
        ("environment", "Environment"),
    ]
