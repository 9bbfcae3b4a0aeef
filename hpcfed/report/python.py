"""Tables, comparisons, figures and pages from Python, with the words of the commands.

Runs are paths, `Run`s, or a list of these, such as `hpcfed.sweep` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.config.methods import name_of
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.optional_imports import import_extra
from hpcfed.results.run import Run, folder_at

if TYPE_CHECKING:
    import pandas

    from hpcfed.report.figures.plotting import Picture
    from hpcfed.report.formats import Grid

Runs = str | Path | Run | Sequence[str | Path | Run]
Names = str | Mapping[str | type, str] | None  # by method: its name in jobs, or its class


def table(
    runs: Runs,
    *,
    rows: str | None = None,
    columns: str | None = None,
    value: str | None = None,
    metric: str | None = None,
    deviation: str | None = None,
    percent: bool = False,
    choose: str | None = None,
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
    needs no pandas. names: of methods and data: `{"fedavg": "FedAvg", Mine: "Ours"}`. The other
    arguments are those of the command. Raises ConfigError and CheckpointError.
    """
    from hpcfed.report import formats
    from hpcfed.report.table import make_grid  # here: `hpcfed list` reads no results

    grid = make_grid(
        places(runs),
        rows=rows,
        columns=columns,
        value=value,
        deviation=deviation,
        percent=percent,
        layout=layout,
        paper=paper,
        metric=metric,
        choose=choose,
        names=by_name(names),
    )
    if format or out:
        return formats.save_or_return(pick(formats.FORMATS, format)(grid), as_path(out))
    return to_frame(grid, pandas_for("table"))


def compare(
    runs: Runs,
    *,
    baseline: str | type | None = None,
    value: str | None = None,
    metric: str | None = None,
    percent: bool = False,
    anyway: bool = False,
    names: Names = None,
    format: str | None = None,
    out: str | Path | None = None,
) -> pandas.DataFrame | str:
    """Return differences, intervals and tests of methods: `hpcfed compare` as a DataFrame.

    It has a row for each method but the baseline. `frame.attrs` has the caption and the notes.
    format, out, names: as `table` takes them; baseline: a method, or one of its runs.
    """
    from hpcfed.report import compare as command
    from hpcfed.report.formats import save_or_return

    result = command.make_comparison(
        places(runs),
        baseline=name_of(baseline) if isinstance(baseline, type) else baseline,
        value=value,
        anyway=anyway,
        percent=percent,
        metric=metric,
        names=by_name(names),
    )
    if format or out:
        return save_or_return(pick(command.FORMATS, format)(result), as_path(out))
    rows = [command.numbers(one, result.base) for one in result.done]
    frame = pandas_for("compare").DataFrame(rows, columns=command.NAMES).set_index("method")
    frame.attrs = {"caption": result.caption, "notes": command.notes(result)}
    return frame


def plot(
    runs: Runs,
    figure: str = "curves",
    *,
    metric: str | None = None,
    band: str | None = None,
    size: str | Sequence[float] | None = None,
    title: str | None = None,
    fonts: str | None = None,
    names: Names = None,
    out: str | Path | None = None,
) -> Picture | list[Picture]:
    """Draw a figure of runs, which a notebook displays: `hpcfed plot` as a matplotlib Figure.

    figure: a name of `hpcfed list figures`; for several, separated by commas, and for "all", the
    result is a list. out: also write it there, as .png, .svg or .pdf, with the fonts embedded.
    size: width and height in inches. The other arguments are those of the command.
    """
    from hpcfed.report.figures import command
    from hpcfed.report.figures.registry import ALL
    from hpcfed.report.figures.runs import load_with_notes

    paths = places(runs)
    loaded, notes = load_with_notes(paths, by_name(names))
    drawings = command.draw(loaded, figure, metric, band, size, title, fonts)
    if out:
        command.write(drawings, loaded, figure, folder_at(paths[0]), as_path(out))
    pictures = [one for one in drawings.values() if not isinstance(one, ConfigError)]
    for one in pictures:
        one.notes += notes
    return pictures[0] if len(pictures) == 1 and figure != ALL else pictures


def report(
    runs: Runs,
    *,
    out: str | Path | None = None,
    metric: str | None = None,
    names: Names = None,
    clients: str | Sequence[int | str] | None = None,
) -> Path:
    """Write one page for a browser, and return its path: `hpcfed report`.

    clients: numbers or names of clients, or "all", of which each gets a page beside it.
    """
    from hpcfed.report.page import command

    which = clients if isinstance(clients, str | None) else ",".join(map(str, clients))
    return Path(command.report(places(runs), as_path(out), metric, by_name(names), which))


def places(runs: Runs) -> list[Path | Run]:
    """Return runs as a list. Raises ConfigError for something else."""
    items = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    for item in items:
        if not isinstance(item, str | Path | Run):
            raise ConfigError(
                f"runs: a {type(item).__name__}; give paths of runs or sweeps, or what hpcfed.run, "
                "hpcfed.load or hpcfed.sweep returned"
            )
    if not items:
        raise ConfigError("runs: the list is empty; give at least one run")
    return [Path(item) if isinstance(item, str) else item for item in items]


def by_name(names: Names) -> str | dict[str, str] | None:
    """Return names by the names of methods in jobs, in place of their classes."""
    if not isinstance(names, Mapping):
        return names
    return {name_of(key) if isinstance(key, type) else key: text for key, text in names.items()}


def as_path(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)


def pick(formats: Mapping[str, Any], name: str | None) -> Any:
    """Return the format of this name, text by default. Raises ConfigError for another name."""
    if (name or "text") not in formats:
        raise ConfigError(f"format: {unknown('format', str(name), formats)}")
    return formats[name or "text"]


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
