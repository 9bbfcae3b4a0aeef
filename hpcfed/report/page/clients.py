"""A page for each client: its results by method, its curves, and its classes."""

from __future__ import annotations

import io
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.core.paths import output
from hpcfed.core.version import __version__
from hpcfed.report.page import write
from hpcfed.report.page.methods import over_seeds
from hpcfed.results.columns import (
    column,
    format_metric,
    is_high,
    last,
    rounds_with_values,
    title_metric,
)
from hpcfed.results.run import Run
from hpcfed.results.summary import summary_statistics
from hpcfed.results.trained.export import numbers

if TYPE_CHECKING:
    from hpcfed.report.figures.groups import Group

MOST = 1_000  # pages
POLICY = (  # what the browser may load: no scripts, and nothing from elsewhere
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
ALL = "all"


def write_pages(runs: Sequence[Run], clients: str, page: Path) -> list[Path]:
    """Write a page for each of these clients beside the page of the runs, and return their paths.

    clients: numbers or names with commas, or `all`. Raises ConfigError for a client that no run
    has, and for a population, whose clients are not the same from round to round.
    """
    if any("clients/id" in run.record.columns for run in runs):
        raise ConfigError("report: --clients: runs of a population have no pages of clients")
    K = max(run.job["clients"] for run in runs)
    names = next((run.client_names for run in runs if run.client_names), [])
    chosen = choose(clients, K, names)
    if len(chosen) > MOST:
        raise ConfigError(f"report: --clients: {len(chosen):,} pages; name at most {MOST:,}")
    folder = page.with_name(f"{page.stem}-clients")
    paths = []
    for k in chosen:
        path = folder / f"client-{k}.html"
        with output(path, "the page of a client"):
            folder.mkdir(exist_ok=True)
            path.write_text(render(runs, k, names, f"../{page.name}"), encoding="utf-8")
        paths.append(path)
    return paths


def choose(clients: str, K: int, names: Sequence[str]) -> list[int]:
    """Return the numbers of these clients. Raises ConfigError for one that no run has."""
    if clients == ALL:
        return list(range(K))
    if set(clients.split(",")) <= set(names):
        return [names.index(name) for name in clients.split(",")]
    chosen = numbers(clients) or []
    for k in chosen:
        if not 0 <= k < K:
            raise ConfigError(f"report: --clients {k}: these runs have the clients 0 to {K - 1}")
    return chosen


def render(runs: Sequence[Run], k: int, names: Sequence[str], back: str) -> str:
    """Return the page of client k, with a section for each first metric of the runs."""
    from hpcfed.report.figures.curves import by_line

    cases = by_line([run for run in runs if k < run.job["clients"]])
    by_metric: dict[str, list[Group]] = {}
    for case in cases:
        by_metric.setdefault(case.runs[0].main_metric, []).append(case)
    results = [
        sentences({case.label: case.runs for case in alike}, k, metric)
        for metric, alike in by_metric.items()
    ]
    title = f"Client {k}" + (f": {names[k]}" if names else "")
    return write.template("client.html").render(
        title=title,
        policy=write.markup(POLICY),
        style=write.markup(write.part("page.css")),
        back=back,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M %Z"),
        result=[sentence for several in results for sentence in several],
        sections=[section(alike, k, metric) for metric, alike in by_metric.items()],
        labels=labels(cases[0].runs[0], k),
    )


def section(cases: Sequence[Group], k: int, metric: str) -> dict[str, Any]:
    """Return the table and the curves of client k in the runs with this first metric."""
    heads = ["method", title_metric(metric), "place", "before training", "train loss"]
    return {
        "metric": title_metric(metric),
        "rows": [heads, *(line(case.label, case.runs, k, metric) for case in cases)],
        "curve": b64encode(curve(cases, k, metric)).decode(),
    }


def of_client(run: Run, name: str, k: int) -> float:
    """Return the last value of a column that this client has; nan if there is none."""
    values = column(run.record, f"clients/{name}")[:, k]
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else float("nan")


def place(run: Run, k: int, metric: str) -> float:
    """Return the place of a client among all, from 1; nan if it was not evaluated."""
    values = last(run.record, f"clients/{metric}")
    values = values if is_high(metric) else -values
    return 1.0 + float(np.sum(values > values[k])) if np.isfinite(values[k]) else float("nan")


def line(label: str, runs: Sequence[Run], k: int, metric: str) -> list[str]:
    """Return the row of a method."""
    places = [place(run, k, metric) for run in runs]
    n = runs[0].job["clients"]
    mean_place = f"{np.mean(places):.3g} of {n}" if np.isfinite(places).all() else "-"
    return [
        label,
        cell(runs, k, metric, metric),
        mean_place,
        cell(runs, k, f"{metric}_before", metric),
        cell(runs, k, "train_loss", "loss"),
    ]


def cell(runs: Sequence[Run], k: int, name: str, metric: str) -> str:
    """Return the mean of a column over seeds as text; "-" if a run has no value."""
    values = [of_client(run, name, k) for run in runs]
    return over_seeds(values if np.isfinite(values).all() else [], metric).partition(" (")[0]


def sentences(cases: Mapping[str, Sequence[Run]], k: int, metric: str) -> list[str]:
    """Return which method is best for this client, and how it compares with the others."""
    means = {
        label: float(np.mean([of_client(run, metric, k) for run in runs]))
        for label, runs in cases.items()
    }
    finite = {label: value for label, value in means.items() if np.isfinite(value)}
    if not finite:
        return [f"No {title_metric(metric)} of this client was recorded."]
    best = (max if is_high(metric) else min)(finite, key=lambda label: finite[label])
    rows = (summary_statistics(last(run.record, f"clients/{metric}")) for run in cases[best])
    everyone = [row["mean"] for row in rows if row["mean"] is not None]
    mean = format_metric(metric, float(np.mean(everyone)) if everyone else None)  # "-" for None
    among = f", the best of {len(finite)} methods for it," if len(finite) > 1 else ""
    return [
        f"With {best}{among} this client has a test {title_metric(metric)} of "
        f"{format_metric(metric, finite[best])}.",
        f"The mean over all clients is {mean}.",
    ]


def curve(cases: Sequence[Group], k: int, metric: str) -> bytes:
    """Return the client's metric over rounds as SVG: a line per method, thin the clients' mean."""
    from hpcfed.report.figures import plotting
    from hpcfed.report.figures.groups import lines_of

    looks = lines_of(cases)
    drawing, [ax] = plotting.panels(1, wide=True, below=plotting.lines(list(looks), plotting.PAGE))
    for group in cases:
        shared = set.intersection(
            *(set(rounds_with_values(run.record, f"clients/{metric}")) for run in group.runs)
        )
        t = np.array(sorted(shared), dtype=int)
        values = np.array([column(r.record, f"clients/{metric}")[t] for r in group.runs])
        style = plotting.style(looks[group.label])
        client = values[:, :, k].mean(0)
        finite = np.isfinite(client)
        plotting.line(ax, t[finite] + 1, client[finite], style)
        if len(t):
            ax.plot(t + 1, np.nanmean(values, (0, 2)), linewidth=0.5, **style)
    plotting.frame(ax, "round", f"test {title_metric(metric)}")
    plotting.set_x_axis(ax, integer=True)
    plotting.legend(drawing, looks)
    out = io.BytesIO()
    drawing.savefig(out, format="svg")
    return out.getvalue()


def labels(run: Run, k: int) -> list[tuple[str, int, float, float]]:
    """Return name, number of examples, share, and share of all clients of each class."""
    counts = run.label_counts
    if counts is None:
        return []
    mine, everyone = counts[k] / max(1, counts[k].sum()), counts.sum(0) / max(1, counts.sum())
    facts: Any = zip(map(str, run.classes), counts[k].tolist(), mine, everyone, strict=True)
    return [(name, n, float(share), float(of_all)) for name, n, share, of_all in facts]
