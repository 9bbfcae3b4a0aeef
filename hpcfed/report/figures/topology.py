"""Figure of the topology of methods without a server, and the distance of clients' models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from hpcfed.core.errors import ConfigError
from hpcfed.report.figures import plotting
from hpcfed.report.figures.curves import common_metric, in_words
from hpcfed.report.figures.groups import by_title
from hpcfed.results.columns import by_round, last
from hpcfed.results.run import Run

LINKS = "links"
NUMBERED = 40  # clients up to which numbers are shown


@dataclass(frozen=True)
class Topology:
    """One run.

    at: [K, 2], positions of its clients in the drawing, within -1..1.
    links: [E, 2], neighbours.
    metric: [K], main metric of the last evaluation; nan if there is none.
    rounds: [E], from 1, in which distance was measured.
    distance: root of the mean squared distance of a client's model to the mean model.
    """

    run: Run
    at: np.ndarray
    links: np.ndarray
    metric: np.ndarray
    rounds: np.ndarray
    distance: np.ndarray


def numbers(runs: Sequence[Run]) -> list[Topology]:
    """Return the topologies of the runs that recorded one.

    Raises ConfigError if none did, or if their metrics differ.
    """
    graphs = [topology(run) for run in runs if LINKS in run.record.arrays]
    if not graphs:
        raise ConfigError(
            "topology: no run recorded who are neighbours; methods without a server do, for up "
            "to 1,000 "
            "clients, as algorithm.name = 'dsgd' or 'swift' (algorithm.topology)"
        )
    common_metric("topology", [one.run for one in graphs], main=True)
    return graphs


def topology(run: Run) -> Topology:
    distance = by_round(run.record, "consensus_distance")
    rounds = np.flatnonzero(np.isfinite(distance))
    clients, kind = run.fields["clients"], run.fields.get("algorithm.topology", "")
    metric = last(run.record, f"clients/{run.main_metric}")
    return Topology(
        run,
        circular_layout(kind, clients),
        run.record.arrays[LINKS],
        metric,
        rounds + 1,
        distance[rounds],
    )


def circular_layout(kind: str, clients: int) -> np.ndarray:
    """Return places on a circle, clockwise from the top; a star has client 0 in the middle."""
    if kind == "star" and clients > 1:
        return np.concatenate([np.zeros((1, 2)), circular_layout("", clients - 1)])
    angle = 2 * np.pi * np.arange(clients) / clients
    return np.stack([np.sin(angle), np.cos(angle)], 1)


def figure(runs: Sequence[Run]) -> Figure:
    """Draw each run's graph, coloured by the main metric, and the distance over rounds below."""
    graphs = numbers(runs)
    below = any(len(one.rounds) for one in graphs)
    looks = by_title([one.run for one in graphs])
    lines = plotting.lines(list(looks), plotting.PAGE) if below else 0
    drawing, axes = plotting.panels(len(graphs) + below, height=2.9, below=lines)
    values = np.concatenate([one.metric[np.isfinite(one.metric)] for one in graphs])
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    shades = ScalarMappable(Normalize(low, max(high, low + 0.01 * max(1.0, abs(low)))), "cividis")
    for ax, one in zip(axes, graphs, strict=False):
        graph(ax, one, shades)
    if len(values):
        bar = drawing.colorbar(shades, ax=axes[: len(graphs)], shrink=0.7, aspect=30)
        bar.set_label(
            f"test {in_words(graphs[0].run.main_metric)} of a client", fontsize=plotting.LETTERS
        )
        bar.ax.tick_params(labelsize=plotting.SMALL)
    if below:
        for one in graphs:
            style = plotting.style(looks[one.run.title])
            plotting.line(axes[-1], one.rounds, one.distance, style)
        plotting.frame(
            axes[-1], "round", "distance to the mean model,\nroot mean square over clients"
        )
        plotting.set_x_axis(axes[-1], integer=True)
        plotting.upwards(axes[-1])
        plotting.legend(drawing, looks)
    return drawing


def graph(ax: Axes, one: Topology, shades: ScalarMappable) -> None:
    """Draw clients as dots and links as lines, which are thinner the more there are."""
    K, numbered = len(one.at), len(one.at) <= NUMBERED
    width = float(np.clip(40 / max(1, len(one.links)), 0.15, 1.0))
    ax.add_collection(
        LineCollection(one.at[one.links], colors=plotting.GREY, linewidths=width, zorder=1)
    )
    colours = shades.to_rgba(np.nan_to_num(one.metric))
    colours[~np.isfinite(one.metric)] = (1, 1, 1, 1)
    x, y = one.at.T
    ax.scatter(x, y, np.clip(1500 / K, 5, 110), colours, edgecolor="black", linewidth=0.5, zorder=2)
    for k in range(K if numbered else 0):
        light = colours[k, :3].mean() > 0.5
        ax.annotate(
            str(k),
            one.at[k],
            ha="center",
            va="center",
            fontsize=6,
            color="black" if light else "white",
        )
    ax.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    ax.axis("off")
    plotting.head(
        ax,
        f"{one.run.title}: {one.run.fields.get('algorithm.topology', 'links')}, "
        f"{len(one.links):,} links",
    )
