"""The charts of the page as an empty Bokeh document, filled by the page's script.

The script (`files/curves.js`) finds models by their names: `x`, and for each quantity
`lines-accuracy` and so on.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from bokeh.core.properties import field
from bokeh.document import Document
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from hpcfed.report.colours import LIGHT

HEIGHT = 300
REACH = 14  # pixels: how wide a line is for the pointer
TOOLS = "pan,box_zoom,wheel_zoom,reset,save"
NUMBER = {"$snap_x": "printf", "$snap_y": "printf"}


@cache
def charts(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the document as JSON, and the page's element of each of its roots.

    names: of the quantities drawn over x.
    """
    document = Document()
    x = Range1d(start=0, end=1, name="x")
    figures = {f"chart-{name}": curve(name, x) for name in names} | {
        "chart-labels": labels(),
        "chart-phases": phases(),
    }
    for one in figures.values():
        document.add_root(one)
    roots = {one.id: element for element, one in figures.items()}
    return {"document": document.to_json(deferred=False), "roots": roots}


def curve(name: str, x: Range1d) -> figure:
    """Return a chart of one quantity over x: bands, clients, runs, and dots for short curves."""
    chart = empty(name, x_range=x)
    bands, clients = (
        source(f"bands-{name}", "xs ys colour"),
        source(f"clients-{name}", "xs ys colour name"),
    )
    lines, dots = (
        source(f"lines-{name}", "xs ys colour name dash"),
        source(f"dots-{name}", "x y colour size"),
    )
    chart.patches("xs", "ys", source=bands, color=field("colour"), fill_alpha=0.15, line_alpha=0)
    near = [
        chart.multi_line("xs", "ys", source=one, line_alpha=0, line_width=REACH)
        for one in (clients, lines)
    ]
    chart.multi_line(
        "xs", "ys", source=clients, color=field("colour"), line_width=1, line_alpha=0.5
    )
    chart.multi_line(
        "xs", "ys", source=lines, color=field("colour"), line_dash=field("dash"), line_width=2
    )
    chart.scatter("x", "y", source=dots, color=field("colour"), size=field("size"))
    hover(
        chart,
        f"hover-{name}",
        [("", "@name"), ("x", "$snap_x{%.6g}"), ("y", "$snap_y{%.6g}")],
        near,
        NUMBER,
    )
    return chart


def labels() -> figure:
    """Return a chart of training examples of each class by client; darker means more."""
    chart = empty(
        "labels",
        x_range=Range1d(start=0, end=1, name="x-labels"),
        y_range=Range1d(start=0, end=1, name="y-labels"),
    )
    cells = source("cells-labels", "x y client label n a")
    glyphs = chart.rect(
        "x", "y", 1, 1, source=cells, fill_color=LIGHT[0], fill_alpha=field("a"), line_alpha=0
    )
    chart.xaxis.ticker, chart.yaxis.ticker = FixedTicker(ticks=[]), FixedTicker(ticks=[])
    chart.grid.visible = False
    hover(
        chart,
        "hover-labels",
        [("client", "@client"), ("class", "@label"), ("examples", "@n")],
        [glyphs],
    )
    return chart


def phases() -> figure:
    """Return a chart of seconds of each phase, one bar for each rank."""
    chart = empty("phases", x_range=Range1d(start=0, end=1, name="x-phases"))
    bars = source("bars-phases", "rank bottom top colour phase seconds")
    glyphs = chart.vbar("rank", 0.8, "top", "bottom", source=bars, color=field("colour"))
    chart.xaxis.ticker = FixedTicker(ticks=[])
    chart.y_range.start = 0  # type: ignore[attr-defined]
    tips = [("rank", "@rank"), ("phase", "@phase"), ("", "@seconds{%.4g} s")]
    hover(chart, "hover-phases", tips, [glyphs], {"@seconds": "printf"})
    return chart


def source(name: str, columns: str) -> ColumnDataSource:
    return ColumnDataSource(name=name, data={column: [] for column in columns.split()})


def empty(name: str, **ranges: Any) -> figure:
    """Return an empty chart; colours come from the page's style."""
    chart = figure(
        name=name,
        height=HEIGHT,
        sizing_mode="stretch_width",
        tools=TOOLS,
        active_drag="box_zoom",
        active_scroll=None,
        toolbar_location="above",
        **ranges,
    )
    chart.toolbar.logo = None
    for axis in chart.axis:
        axis.formatter = NumeralTickFormatter()  # one whose words the script can replace
    chart.background_fill_color = chart.border_fill_color = chart.outline_line_color = None
    return chart


def hover(
    chart: figure, name: str, tips: list[tuple[str, str]], near: list[Any], formats: Any = None
) -> None:
    chart.add_tools(
        HoverTool(
            name=name,
            renderers=near,
            tooltips=tips,
            formatters=formats or {},
            mode="mouse",
            line_policy="nearest",
            point_policy="follow_mouse",
        )
    )
