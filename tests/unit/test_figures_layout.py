"""What pictures leave out and where they put their scales and keys."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from hpcfed.report.figures import curves, labels, memory, models, models_tsne
from hpcfed.report.figures.curves import EPOCHS, TRAFFIC
from hpcfed.report.figures.groups import Group
from hpcfed.report.figures.labels import Labels

pytestmark = pytest.mark.quick


def planes(n: int, clients: int = 3) -> list[models_tsne.Plane]:
    g, whose = np.random.default_rng(0), np.repeat(np.arange(clients), 4)
    names = list(map(str, range(clients)))
    one = (["a", "b"], np.arange(clients), names, g.normal(size=(len(whose), 2)), whose % 2, whose)
    return [models_tsne.Plane(f"run {i}\n3 clients", *one) for i in range(n)]


@pytest.mark.parametrize("runs, across, scales", [(1, 1, 2), (4, 2, 2), (5, 3, 2)])
def test_alike_runs_of_tsne_share_their_scales_at_the_right(runs, across, scales, monkeypatch):
    monkeypatch.setattr(models_tsne, "numbers", lambda _: planes(runs))
    drawing = models_tsne.figure([])
    drawing.draw_without_rendering()
    bars = [ax for ax in drawing.axes if ax.get_label() == "<colorbar>" or ax.get_ylabel()]
    panels = [ax for ax in drawing.axes if ax not in bars]
    assert (len(panels), len(bars)) == (2 * runs, scales)
    left = sorted({round(ax.get_position().x0, 3) for ax in panels})
    widths = {round(ax.get_position().width, 2) for ax in panels}
    assert len(left) == across and len(widths) == 1
    assert all(bar.get_position().x0 > max(left) for bar in bars)
    gaps = np.diff(left) - next(iter(widths))
    assert (gaps < 0.05).all()  # no hole between columns


def test_cka_leaves_out_a_checkpoint_just_before_the_next():
    assert models.apart(np.array([13, 26, 39, 40])).tolist() == [0, 1, 3]
    assert models.apart(np.array([1, 2])).tolist() == [0, 1]
    assert models.apart(np.array([7])).tolist() == [0]


def test_ranks_have_no_order_so_that_no_line_joins_their_peaks():
    ax = Figure().subplots()
    memory.by_rank(ax, memory.Peaks(None, np.ones((2, 3))), {"color": "red", "linestyle": "--"})
    assert [line.get_linestyle() for line in ax.lines] == ["None"]


def test_a_constant_line_names_the_missing_values_of_a_run():
    ax = Figure().subplots()
    curves.scale(ax, [1e6], 2, TRAFFIC)
    assert ax.get_xlabel() == "\n(level line: no traffic)"


@pytest.mark.parametrize("epochs, panels", [([1.0, 2.0], 1), ([2.0, 4.0], 2)])
def test_epochs_are_no_panel_of_their_own_if_they_are_the_rounds(epochs, panels, monkeypatch):
    values = {"rounds": [1, 2], **{name: [0, 0] for name in ("traffic", "seconds", "epsilon")}}
    values["epochs"] = epochs
    one = curves.Curve(
        mean=np.ones(2), std=np.zeros(2), **{n: np.array(v) for n, v in values.items()}
    )
    run = type("Run", (), {"drawn_metric": "accuracy", "record": None, "method": "local"})()
    monkeypatch.setattr(curves, "numbers", lambda runs: {Group("", "a", (run,)): one})
    monkeypatch.setattr(curves, "title", lambda record: "a run")
    drawing = curves.figure([run])
    assert len(drawing.axes) == panels
    assert (EPOCHS.text in [ax.get_xlabel() for ax in drawing.axes]) == (panels == 2)


def test_the_largest_dot_of_the_key_stays_above_the_panel(monkeypatch):
    counts = np.array([[27, 0], [1, 5]])
    monkeypatch.setattr(
        labels, "numbers", lambda _: [Labels("digits", ["a", "b"], ["0", "1"], counts)]
    )
    drawing = labels.figure([])
    drawing.draw_without_rendering()
    ax = drawing.axes[0]
    key = ax.get_legend().legend_handles[-1]
    radius = np.sqrt(key.get_sizes()[0]) / 2  # points
    assert radius < labels.KEY / 2
