"""`hpcfed plot`: selection of figures and runs, and the files that are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcfed.core.errors import ConfigError, first_line, unknown
from hpcfed.core.progress import track
from hpcfed.report.figures import plotting
from hpcfed.report.figures.curves import BANDS
from hpcfed.report.figures.registry import ALL, FIGURES, select_figures
from hpcfed.report.figures.runs import load_with_notes
from hpcfed.report.naming import Names
from hpcfed.results.columns import metrics
from hpcfed.results.run import Run, folder_at
from hpcfed.storage import names
from hpcfed.storage.record import Record

Size = str | Sequence[float] | None  # of a figure: width and height in inches, or 3.4x2.3

OF_METRICS = "curves", "learning", "bytes", "time", "accuracies"  # figures of any metric
ENDINGS = "", "_before", "_received", "_pooled", "_before_pooled", "_received_pooled"
WITH_BANDS = "curves", "learning", "bytes", "time"
USUAL = "curves", "labels"  # figures by default


def plot(
    runs: Sequence[Path | Run],
    figure: str | None = None,
    out: Path | None = None,
    format: str | None = None,
    metric: str | None = None,
    names: Names = None,
    band: str | None = None,
    size: Size = None,
    title: str | None = None,
    fonts: str | None = None,
) -> str:
    """Draw figures of runs, and return the paths of their files and notes on omitted ones.

    figure: names with commas, or all; None for curves, and the labels of the first run's clients.
    Without out pictures are written to the first run's folder. The other arguments are those of
    `draw`. Raises CheckpointError for a run without results, ConfigError for a picture that cannot
    be drawn or written.
    """
    loaded, notes = load_with_notes(runs, names)
    drawings = draw(loaded, figure, metric, band, size, title, fonts)
    messages = write(drawings, loaded, figure, folder_at(runs[0]), out, format)
    return "\n".join([*messages, *notes])


def write(
    drawings: Mapping[str, plotting.Picture | ConfigError],
    runs: Sequence[Run],
    figure: str | None,
    folder: Path,
    out: Path | None,
    format: str | None = None,
) -> list[str]:
    """Write figures of runs, and return their paths, and notes on omitted ones.

    figure, out, format: as `plot` takes them.  folder: where they are written without out.
    """
    messages = []
    for name, drawing in drawings.items():
        if isinstance(drawing, ConfigError):
            messages.append(f"left out: {first_line(drawing)}")
            continue
        bare = len(drawings) == 1 or (not figure and name == "curves")
        path = place(name, runs, folder, out, format, bare)
        messages.append(str(plotting.save(drawing, path)))
        messages += [f"{name}: {note}" for note in drawing.notes]
    return messages


def draw(
    runs: Sequence[Run],
    figure: str | None = None,
    metric: str | None = None,
    band: str | None = None,
    size: Size = None,
    title: str | None = None,
    fonts: str | None = None,
) -> dict[str, plotting.Picture | ConfigError]:
    """Return figures by name, and the errors of those that were not asked for by name.

    figure: as `plot` takes it; without it, curves are asked for.
    metric: the metric of curves and of clients' dots; default: each run's main one.
    band: over what the bands of curves are, seeds or clients; default: seeds, if there are several.
    size: of each figure, in inches; title: above it; fonts: a family, by name.
    """
    names = select_figures(figure) if figure else USUAL
    for option, value, where in (("metric", metric, OF_METRICS), ("band", band, WITH_BANDS)):
        if value and not set(names) & set(where):
            raise ConfigError(
                f"plot: --{option} {value}, but {', '.join(names)} shows none; it is for "
                f"{', '.join(where)}"
            )
    if band and band not in BANDS:
        raise ConfigError(f"plot: --band: {unknown('band', band, BANDS)}")
    inches = parse_size(size)
    for run in runs:
        run.figure_metric = check_metric(run, metric) if metric else ""
        run.figure_band = band or ""
    drawings: dict[str, plotting.Picture | ConfigError] = {}
    for name in track_drawing(names):
        whose = runs if figure or name == "curves" else runs[:1]
        try:
            with plotting.text_in(fonts or ""):
                drawing = FIGURES[name].load()(whose)
                if title:
                    drawing.suptitle(plotting.plain(title), fontsize=plotting.LETTERS)
                if inches:
                    plotting.resize(drawing, inches)
        except ConfigError as error:
            if figure != ALL and (figure or name == "curves"):
                raise
            drawings[name] = error
            continue
        drawing.fonts = fonts or ""
        drawings[name] = drawing
    return drawings


def parse_size(size: Size) -> tuple[float, float] | None:
    """Return width and height in inches, from numbers or a text such as 3.4x2.3."""
    if size is None:
        return None
    parts = size.lower().split("x") if isinstance(size, str) else size
    try:
        width, height = map(float, parts)
    except (TypeError, ValueError):
        width = height = 0.0
    if not all(0.5 <= inches <= 100 for inches in (width, height)):
        raise ConfigError(
            f"plot: --size {size}: give width and height in inches, from 0.5 to 100, as in 3.4x2.3"
        )
    return width, height


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


def place(
    name: str,
    runs: Sequence[Run],
    folder: Path,
    out: Path | None,
    format: str | None,
    bare: bool,
) -> Path:
    """Return the path of a figure.

    folder: where it is written if out does not say so.
    bare: whether out names only this one; otherwise the figure's name is added.
    """
    usual = "comparison" if name == "curves" and len(runs) > 1 else name
    path = out or folder / f"{usual}.png"
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
    return plotting.save(FIGURES["curves"].load()([run]), names.picture_file(folder))
