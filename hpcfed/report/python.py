"""Tables, comparisons, figures and pages from Python, with the words of the commands.

Runs are paths, `Run`s, or a list of these, such as `hpcfed.sweep` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.config.methods import name_of, own_name
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.optional_imports import import_extra
from hpcfed.results.run import Run, folder_at

if TYPE_CHECKING:
    import pandas

    from hpcfed.report.figures.plotting import Picture
    from hpcfed.report.formats import Grid

Runs = str | Path | Run | Sequence[str | Path | Run]
Words = str | Sequence[str] | None  # one with commas, or several
Metric = str | Callable[..., Any] | None  # its name, or a function as evaluate.metrics takes it
Names = str | Mapping[str | type, str] | None  # by method: its name in jobs, or its class


def table(
    runs: Runs,
    *,
    rows: Words = None,
    columns: Words = None,
    value: str | None = None,
    metric: Metric = None,
    deviation: str | None = None,
    percent: bool = False,
    choose: Words = None,
    layout: str | None = None,
    paper: bool = False,
    names: Names = None,
    format: str | None = None,
    out: str | Path | None = None,
) -> pandas.DataFrame | str:
    """Return methods by data sets, over seeds: `hpcfed table` as a DataFrame.

    Its index are the rows; its columns are mean, std and seeds, below the columns of the table if
    there are several. `frame.attrs` has the caption and the notes. With format ("text", "markdown",
    "latex", "csv") the table as text, or with out the path of the file that it was written to; this
    needs no pandas. names: of methods and data: `{"fedavg": "FedAvg", Mine: "Ours"}`. percent: the
    numbers, and those of CSV, are in percent if they are shares. The other arguments are those of
    the command; rows, columns and choose may be lists, and metric a function. Raises ConfigError
    and CheckpointError.
    """
    from hpcfed.report import formats
    from hpcfed.report.table import make_grid  # here: `hpcfed list` reads no results

    grid = make_grid(
        places(runs),
        rows=with_commas("rows", rows),
        columns=with_commas("columns", columns),
        value=text("value", value),
        deviation=text("deviation", deviation),
        percent=percent,
        layout=text("layout", layout),
        paper=paper,
        metric=metric_name(metric),
        choose=with_commas("choose", choose),
        names=by_name(names),
    )
    if format or out:
        return formats.save_or_return(pick(formats.FORMATS, format)(grid), as_path(out))
    return to_frame(grid, pandas_for("table"))


def compare(
    runs: Runs,
    *,
    baseline: str | type | Path | Run | None = None,
    value: str | None = None,
    metric: Metric = None,
    percent: bool = False,
    anyway: bool = False,
    names: Names = None,
    format: str | None = None,
    out: str | Path | None = None,
) -> pandas.DataFrame | str:
    """Return differences, intervals and tests of methods: `hpcfed compare` as a DataFrame.

    It has a row for each method but the baseline. `frame.attrs` has the caption and the notes.
    format, out, names, percent: as `table` takes them; baseline: a method, or one of its runs.
    """
    from hpcfed.report import compare as command
    from hpcfed.report.formats import save_or_return

    result = command.make_comparison(
        places(runs),
        baseline=baseline_name(baseline),
        value=text("value", value),
        anyway=anyway,
        percent=percent,
        metric=metric_name(metric),
        names=by_name(names),
    )
    if format or out:
        return save_or_return(pick(command.FORMATS, format)(result), as_path(out))
    rows = [command.numbers(one, result) for one in result.done]
    frame = pandas_for("compare").DataFrame(rows, columns=command.NAMES).set_index("method")
    frame.attrs = {"caption": result.caption, "notes": command.notes(result)}
    return frame


def plot(
    runs: Runs,
    figure: str | Sequence[str] = "curves",
    *,
    metric: Metric = None,
    band: str | None = None,
    size: str | Sequence[float] | None = None,
    title: str | None = None,
    fonts: str | None = None,
    names: Names = None,
    out: str | Path | None = None,
) -> Picture | list[Picture]:
    """Draw a figure of runs, which a notebook displays: `hpcfed plot` as a matplotlib Figure.

    figure: a name of `hpcfed list figures`; for several, in a list or separated by commas, and for
    "all", the result is a list. out: also write it there, as .png, .svg or .pdf, with the fonts
    embedded. size: width and height in inches. The other arguments are those of the command.
    """
    from hpcfed.report.figures import command
    from hpcfed.report.figures.registry import ALL
    from hpcfed.report.figures.runs import load_with_notes

    paths, target, figures = places(runs), as_path(out), with_commas("figure", figure)
    loaded, notes = load_with_notes(paths, by_name(names))
    drawings = command.draw(
        loaded,
        figures,
        metric_name(metric),
        text("band", band),
        size,
        text("title", title),
        text("fonts", fonts),
    )
    if target:
        command.write(drawings, loaded, figures, folder_at(paths[0]), target)
    pictures = [one for one in drawings.values() if not isinstance(one, ConfigError)]
    for one in pictures:
        one.notes += notes
    return pictures[0] if len(pictures) == 1 and figures != ALL else pictures


def report(
    runs: Runs,
    *,
    out: str | Path | None = None,
    metric: Metric = None,
    names: Names = None,
    clients: str | int | Sequence[int | str] | None = None,
) -> Path:
    """Write one page for a browser, and return its path: `hpcfed report`.

    clients: numbers or names of clients, or "all", of which each gets a page beside it.
    """
    from hpcfed.report.page import command

    which = client_words(clients)
    metric = metric_name(metric)
    return Path(command.report(places(runs), as_path(out), metric, by_name(names), which))


def places(runs: Runs) -> list[Path | Run]:
    """Return runs as a list. Raises ConfigError for something else."""
    items = list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    for item in items:
        if not isinstance(item, str | Path | Run):
            raise ConfigError(
                f"runs: a {type(item).__name__}; give paths of runs or sweeps, or what hpcfed.run, "
                "hpcfed.load or hpcfed.sweep returned"
            )
    if not items:
        raise ConfigError("runs: the list is empty; give at least one run")
    return [Path(item) if isinstance(item, str) else item for item in items]


def text(argument: str, value: Any) -> str | None:
    """Return an argument that is a text. Raises ConfigError for something else."""
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{argument} = {value!r:.60}: give a text")


def with_commas(argument: str, value: Any) -> str | None:
    """Return a text, or several with commas as in a command. Raises ConfigError for others."""
    if not isinstance(value, list | tuple):
        return text(argument, value)
    return ",".join(text(argument, one) or "" for one in value)


def metric_name(metric: Any) -> str | None:
    """Return a metric's name in jobs. Raises ConfigError for neither a name nor a function."""
    return own_name(metric) if callable(metric) else text("metric", metric)


def baseline_name(baseline: Any) -> str | None:
    """Return a method or the path of a run as a text. Raises ConfigError for something else."""
    if isinstance(baseline, type):
        return name_of(baseline)
    return (
        str(folder_at(baseline)) if isinstance(baseline, Path | Run) else text("baseline", baseline)
    )


def client_words(clients: Any) -> str | None:
    """Return numbers and names with commas. Raises ConfigError for something else."""
    if clients is None or isinstance(clients, str):
        return clients
    several = list(clients) if isinstance(clients, Iterable) else [clients]
    if not all(isinstance(one, Integral | str) for one in several):
        raise ConfigError(f"clients = {clients!r:.60}: give numbers or names of clients, or 'all'")
    return ",".join(map(str, several))


def by_name(names: Any) -> str | dict[str, str] | None:
    """Return names by the names of methods in jobs, in place of their classes.

    Raises ConfigError for something else.
    """
    if not isinstance(names, Mapping):
        return text("names", names)
    return {name_of(key) if isinstance(key, type) else key: text for key, text in names.items()}


def as_path(out: Any) -> Path | None:
    """Return the file to write. Raises ConfigError for something else."""
    if isinstance(out, Path):
        return out
    name = text("out", out)
    return None if name is None else Path(name)


def pick(formats: Mapping[str, Any], name: Any) -> Any:
    """Return the format of this name, text by default. Raises ConfigError for another name."""
    name = text("format", name) or "text"
    if name not in formats:
        raise ConfigError(f"format: {unknown('format', name, formats)}")
    return formats[name]


def pandas_for(name: str) -> Any:
    """Return pandas. Raises ConfigError, which says what needs none, if it is missing."""
    return import_extra("pandas", "export", f"hpcfed.{name} without format='text'")


def to_frame(grid: Grid, pandas: Any) -> pandas.DataFrame:
    """Return a table with its numbers in full."""
    heads = [tuple(level) for level in zip(*grid.levels(), strict=True)]
    fields = ("mean", "std", "seeds")
    columns = [(*head, field) for head in heads for field in fields]
    rows = [
        [number for cell in line for number in (cell.mean, cell.deviation, cell.seeds)]
        for line in grid.cells
    ]
    single = len(heads) == 1
    index = pandas.Index(grid.labels(), name=grid.corner())
    names = list(fields) if single else pandas.MultiIndex.from_tuples(columns)
    frame = pandas.DataFrame(rows, index=index, columns=names)
    numbers = {
        name: float
        for name, (*_, field) in zip(frame.columns, columns, strict=True)
        if field != "seeds"
    }
    frame = frame.astype(numbers)
    frame.attrs = {"caption": grid.caption, "notes": list(grid.notes)}
    return frame
