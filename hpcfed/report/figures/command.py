"""`hpcfed plot`: selection of figures and runs, and the files that are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcfed.core.errors import ConfigError, first_line, unknown
from hpcfed.core.progress import track
from hpcfed.report.figures import plotting
from hpcfed.report.figures.registry import ALL, FIGURES, select_figures
from hpcfed.report.figures.runs import load_runs
from hpcfed.results.columns import metrics
from hpcfed.results.run import Run
from hpcfed.storage.record import Record

OF_METRICS = "curves", "learning", "bytes", "time", "accuracies"  # figures of any metric
ENDINGS = "", "_before", "_received", "_pooled", "_before_pooled", "_received_pooled"
USUAL = "curves", "labels"  # figures by default


def plot(
    runs: Sequence[Path],
    figure: str | None = None,
    out: Path | None = None,
    format: str | None = None,
    metric: str | None = None,
) -> str:
    """Draw figures of runs, and return the paths of their files and notes on omitted ones.

    figure: names with commas, or all; None for curves, and the labels of the first run's clients.
    metric: the metric of curves and of clients' dots; default: each run's main one.
    Without out pictures are written to the first run's folder. Raises CheckpointError for a run
    without results, ConfigError for a picture that cannot be drawn or written.
    """
    loaded, names = load_runs(runs), select_figures(figure) if figure else USUAL
    if metric:
        for run in loaded:
            run.figure_metric = check_metric(run, metric)
        if not set(names) & set(OF_METRICS):
            raise ConfigError(
                f"plot: --metric {metric}, but {', '.join(names)} shows none; it is for "
                f"{', '.join(OF_METRICS)}"
            )
    messages = []
    for name in track_drawing(names):
        whose = loaded if figure or name == "curves" else loaded[:1]
        try:
            drawing = FIGURES[name].load()(whose)
        except ConfigError as error:
            if figure and figure != ALL:
                raise
            messages.append(f"left out: {first_line(error)}")
            continue
        bare = len(names) == 1 or (not figure and name == "curves")
        messages.append(str(plotting.save(drawing, place(name, loaded, out, format, bare))))
    return "\n".join(messages)


def check_metric(run: Run, name: str) -> str:
    """Return the metric as in column names. Raises ConfigError if the run has no such column."""
    columns = {
        c.partition("/")[2] for c in run.record.columns if c.startswith(("clients/", "rounds/"))
    }
    bases = metrics(run.record)
    choices = [n for base in bases for end in ENDINGS if (n := f"{base}{end}") in columns]
    if name not in choices:
        raise ConfigError(
            f"plot: --metric: {run.name}: {unknown('metric', name, choices, ', '.join(choices))}"
        )
    return name


def track_drawing(names: Sequence[str]) -> Iterator[str]:
    """Yield the figures, and show how many are done."""
    return track(names, "drawing", named=True)


def place(name: str, runs: Sequence[Run], out: Path | None, format: str | None, bare: bool) -> Path:
    """Return the path of a figure.

    bare: whether out names only this one; otherwise the figure's name is added.
    """
    usual = "comparison" if name == "curves" and len(runs) > 1 else name
    path = out or runs[0].folder / f"{usual}.png"
    if not path.name:
        raise ConfigError(
            f"{path}: is a folder, not a picture; end the name in {', '.join(plotting.FORMATS)}"
        )
    path = path.with_suffix(f".{format}") if format else path
    return path if bare or not out else path.with_name(f"{path.stem}-{name}{path.suffix}")


def at_end(record: Record, folder: Path) -> Path:
    """Draw the learning curves of a finished run into its folder."""
    run = Run(folder, record=record)
    run.name = folder.name
    return plotting.save(FIGURES["curves"].load()([run]), folder / "curves.png")
