"""The charts of the page as an empty Bokeh document, filled by the page's script.

The script (`files/curves.js`) finds models by their names: `x`, and for each quantity
`lines-accuracy` and so on.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from bokeh.core.properties import field
from bokeh.document import Document
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

HEIGHT = 300
REACH = 14  # pixels: how wide a line is for the pointer
TOOLS = "pan,box_zoom,wheel_zoom,reset,save"


@cache
def charts(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the document as JSON, and the page's element of each of its roots.

    names: of the quantities drawn over x.
    """
    document = Document()
    x = Range1d(start=0, end=1, name="x")
    figures = {f"chart-{name}": curve(name, x) for name in names}
    for one in figures.values():
        document.add_root(one)
    roots = {one.id: element for element, one in figures.items()}
    return {"document": document.to_json(deferred=False), "roots": roots}


def curve(name: str, x: Range1d) -> figure:
    """Return a chart of one quantity over x: bands, clients, runs, and dots for short curves."""
    chart = empty(name, x)
    bands, clients = (
        source(f"bands-{name}", "xs ys colour"),
        source(f"clients-{name}", "xs ys colour name"),
    )
    lines, dots = (
        source(f"lines-{name}", "xs ys colour name dash"),
        source(f"dots-{name}", "x y colour size"),
    )
    chart.patches("xs", "ys", source=bands, color=field("colour"), fill_alpha=0.15, line_alpha=0)
    near: list[Any] = [
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
    chart.add_tools(
        HoverTool(
            name=f"hover-{name}",
            renderers=near,
            tooltips=[("", "@name"), ("x", "$snap_x{%.6g}"), ("y", "$snap_y{%.6g}")],
            formatters={"$snap_x": "printf", "$snap_y": "printf"},
            mode="mouse",
            line_policy="nearest",
            point_policy="follow_mouse",
        )
    )
    return chart


def source(name: str, columns: str) -> ColumnDataSource:
    return ColumnDataSource(name=name, data={column: [] for column in columns.split()})


def empty(name: str, x: Range1d) -> figure:
    """Return an empty chart; colours come from the page's style."""
    chart = figure(
        name=name,
        height=HEIGHT,
        sizing_mode="stretch_width",
        tools=TOOLS,
        active_drag="box_zoom",
        active_scroll=None,
        toolbar_location="above",
        x_range=x,
    )
    chart.toolbar.logo = None
    for axis in chart.axis:
        axis.formatter = NumeralTickFormatter()  # one whose words the script can replace
    chart.background_fill_color = chart.border_fill_color = chart.outline_line_color = None
    return chart
