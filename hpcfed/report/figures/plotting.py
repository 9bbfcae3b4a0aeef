"""Common style of all figures: colours, sizes, axes, files.

It uses matplotlib's objects without pyplot, so no display is needed and nothing global changes;
a notebook displays a `Picture` all the same.
Sizes are those of a paper: a panel is as wide as a column or a part of it, and its text is readable
without enlarging.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from hpcfed.core.errors import ConfigError, format_error, unknown
from hpcfed.core.paths import output
from hpcfed.core.wording import join_few
from hpcfed.report.colours import Look
from hpcfed.report.figures.runs import short

FORMATS = (".png", ".svg", ".pdf")
COLUMN, PAGE = 3.4, 7.0  # inches, of a paper's column and of its page
SMALL, LETTERS = 7, 8  # points: of ticks and legends, of axes and titles
DPI = 200
GREY = "0.45"
NARROW = 0.15  # inches for an upright text
HANDLE, LETTER = (
    0.48,
    0.053,
)  # inches in a legend: of the symbol, and of one letter
DOTTED = 30  # points of a curve up to which each has a marker
WIDELY = 10  # ratio of values above which an axis is logarithmic


FAMILIES = ("serif", "sans-serif", "monospace")  # of fonts, besides their own names
# Publishers ask for fonts as TrueType; matplotlib embeds Type 3 by default.
EMBEDDED: dict[Any, Any] = {"pdf.fonttype": 42}


class Picture(Figure):
    """A figure that a notebook displays, without pyplot.

    fonts: their family; "" is matplotlib's own.
    notes: what a reader must know of it, such as runs that were left out.
    """

    fonts = ""
    notes: tuple[str, ...] = ()

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        with text_in(self.fonts):
            self.savefig(data, format="png", dpi=DPI)
        return data.getvalue()


@contextmanager
def text_in(fonts: str) -> Iterator[None]:
    """Draw text in this family of fonts inside the block; "" is matplotlib's own.

    Raises ConfigError if this machine has no such font.
    """
    if fonts and fonts not in FAMILIES:
        names = sorted({font.name for font in font_manager.fontManager.ttflist})
        if fonts not in names:
            raise ConfigError(
                f"plot: --fonts: {unknown('font', fonts, names, f'{join_few(FAMILIES, 3)}')}"
            )
    roman = fonts == "serif" or "Times" in fonts
    chosen: dict[Any, Any] = {
        "font.family": [fonts],
        "mathtext.fontset": "stix" if roman else "dejavusans",
    }
    with rc_context(EMBEDDED | chosen if fonts else EMBEDDED):
        yield


def style(look: Look) -> dict[str, Any]:
    """Return colour and dashes of a line, as matplotlib takes them."""
    return {"color": look.light, "linestyle": look.dash}


def panels(
    n: int,
    across: int = 2,
    height: float = 2.3,
    below: int = 0,
    wide: bool = False,
    **shared: bool,
) -> tuple[Picture, list[Axes]]:
    """Return a figure with n panels, `across` in a row.

    One panel is as wide as a column; several, or a wide one, are as wide as a page.
    height: inches of a row of panels.
    below: lines of a legend below the panels.
    shared: sharex, sharey.
    """
    across = min(n, across)
    rows = -(-n // across)
    return grid(
        n, across, (PAGE if wide or across > 1 else COLUMN, height * rows + 0.16 * below), **shared
    )


def grid(
    n: int, across: int, size: tuple[float, float], **shared: Any
) -> tuple[Picture, list[Axes]]:
    """Return a figure of this size in inches with n panels, `across` in a row."""
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(-(-n // across), across, squeeze=False, **shared).ravel().tolist()
    for ax in axes[n:]:
        ax.remove()
    return figure, axes[:n]


def frame(ax: Axes, x: str = "", y: str = "") -> None:
    """Set the common style of axes, and their labels."""
    ax.set_xlabel(x, fontsize=LETTERS)
    ax.set_ylabel(y, fontsize=LETTERS)
    ax.tick_params(labelsize=SMALL)
    ax.yaxis.get_offset_text().set_fontsize(SMALL)
    ax.grid(alpha=0.3, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def head(ax: Axes, title: str) -> None:
    """Set a panel's title, wrapped to its width."""
    width = ax.figure.get_figwidth() / ax.get_gridspec().ncols  # type: ignore[union-attr]
    ax.set_title(fill(plain(short(title, 120)), int(width / 0.066)), fontsize=SMALL)


def dot(look: Look) -> Line2D:
    """Return the legend symbol of a strip of dots."""
    return Line2D([], [], color=look.light, marker=look.marker, linestyle="", markersize=4)


def line(ax: Axes, x: np.ndarray, y: np.ndarray, style: dict[str, Any]) -> None:
    """Draw a curve, with markers if it has few points."""
    ax.plot(x, y, linewidth=1.2, marker="o" if len(x) <= DOTTED else "", markersize=2.5, **style)


def band(
    ax: Axes, x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray, style: dict[str, Any]
) -> None:
    """Draw a band between two bounds of a curve; for a single point, an error bar."""
    if len(x) == 1:
        ax.errorbar(x, y, [y - low, high - y], capsize=3, linewidth=1.2, **style)
    ax.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def set_x_axis(ax: Axes, integer: bool = False) -> None:
    """Let the x axis go from 0 to slightly beyond the last value, with few ticks.

    integer: whether ticks are integers.
    """
    ax.set_xlim(0, beyond(ax.dataLim.xmax))
    ax.xaxis.set_major_locator(
        MaxNLocator(5, integer=integer, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10])
    )


def unit(axis: Axis, name: str) -> None:
    """Format ticks in B, kB, MB (or s, ks), or as plain numbers if there is no unit."""
    axis.set_major_formatter(EngFormatter(name) if name else "{x:g}")


def upwards(ax: Axes) -> None:
    """Let the y axis go from 0 to slightly above the largest value."""
    ax.set_ylim(0, beyond(ax.dataLim.ymax))


def beyond(most: float) -> float:
    """Return the end of an axis that begins at 0, given its largest value."""
    return 1.05 * most if np.isfinite(most) and most > 0 else 1.0


def logarithmic_across(ax: Axes, name: str) -> None:
    """Make the x axis logarithmic, with a few ticks for any number of decades."""
    ax.set_xscale("log")
    ax.autoscale(axis="x")
    low, high = ax.get_xlim()
    decades = np.log10(high / low)
    ax.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5) if decades < 1 else (1, 3) if decades < 2 else (1,))
    )
    ax.xaxis.set_minor_formatter(NullFormatter())
    unit(ax.xaxis, name)


def plain_log(ax: Axes) -> None:
    """Give a logarithmic y axis ticks with plain numbers, also if it has less than a decade."""
    low, high = ax.get_ylim()
    narrow = np.log10(high / low) < 1.5
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    ax.yaxis.set_minor_formatter(NullFormatter())
    unit(ax.yaxis, "")


def widely(values: Sequence[float]) -> bool:
    """Return whether values > 0 differ so much that their axis should be logarithmic."""
    return len(values) > 0 and max(values) > WIDELY * min(values)


def legend(figure: Figure, looks: Mapping[str, Look]) -> None:
    """Draw a legend of lines below the figure. looks: of the lines, by text."""
    below(figure, [Line2D([], [], **style(look)) for look in looks.values()], list(looks))


def below(figure: Figure, handles: Sequence[Artist], texts: Sequence[str]) -> None:
    """Draw a legend below the figure, in as many columns as its longest text allows."""
    width = figure.get_figwidth()
    words = [plain(shorten_legend(text, width)) for text in texts]
    figure.legend(
        handles,
        words,
        loc="outside lower center",
        ncols=columns(words, width),
        fontsize=SMALL,
        frameon=False,
        handlelength=2.2,
        columnspacing=1.2,
    )


def columns(texts: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit side by side, evenly filled.

    width: of the figure, in inches.
    """
    each = HANDLE + LETTER * max(map(len, texts), default=1)
    rows = -(-len(texts) // max(1, int(width / each)))
    return -(-len(texts) // max(1, rows))


def lines(texts: Sequence[str], width: float) -> int:
    """Return the number of lines of such a legend."""
    return -(-len(texts) // columns([shorten_legend(text, width) for text in texts], width))


def shorten_legend(text: str, width: float) -> str:
    """Return a legend's text, shortened to a figure of this width and to 60 letters at most."""
    return short(text, min(60, int((width - HANDLE) / LETTER)))


def plain(text: str) -> str:
    """Return a user's text for matplotlib.

    Dollar signs would begin a formula, and no font has control characters.
    """
    return format_error(text).replace("$", r"\$")


def step(n: int, most: int = 30) -> int:
    """Return the interval of ticks, so that n places have at most `most`."""
    return next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, n) if n / s <= most)


def places(n: int, most: int = 30) -> np.ndarray:
    """Return the places of 0..n-1 that get a tick."""
    return np.arange(0, n, step(n, most)) if n else np.arange(0)


def name_clients(ax: Axes, texts: Sequence[str], width: float, both: bool = False) -> None:
    """Label clients with their numbers or names below a panel of this width in inches.

    Names stand upright.  both: label the other axis too.
    """
    names = [plain(short(text, 16)) for text in texts]
    upright = not all(text.isdigit() for text in texts)
    each = NARROW if upright else LETTER * max(map(len, names), default=0) + 0.09
    at = places(len(names), max(1, int(width / each)))
    shown = [names[i] for i in at]
    ax.set_xticks(at, shown, rotation=90 if upright else 0)
    if both:
        ax.set_yticks(at, shown)


def resize(figure: Figure, size: tuple[float, float]) -> None:
    """Give a figure another size in inches, with the legend in as many columns as then fit."""
    figure.set_size_inches(size)
    for old in list(figure.legends):
        handles, texts = old.legend_handles, [text.get_text() for text in old.get_texts()]
        old.remove()
        below(figure, [handle for handle in handles if handle], texts)


def save(figure: Figure, path: Path) -> Path:
    """Write the picture in the format of the path's ending, and return the path.

    Fonts are embedded in PDF. Raises ConfigError if that fails.
    """
    check_format(path)
    with output(path, "the picture"), text_in(getattr(figure, "fonts", "")):
        figure.savefig(path, dpi=DPI)
    return path


def check_format(path: Path) -> Path:
    """Return the path of a picture. Raises ConfigError for one that ends in no picture format."""
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"{path}: no picture format {path.suffix!r}; end the name in {', '.join(FORMATS)}"
        )
    return path
