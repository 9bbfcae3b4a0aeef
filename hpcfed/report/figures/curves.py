"""Figures of accuracy over rounds, local epochs, bytes, virtual seconds or epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import join_few
from hpcfed.report.colours import Look
from hpcfed.report.figures import plotting
from hpcfed.report.figures.groups import Group, groups, lines_of, unfinished_apart
from hpcfed.report.figures.runs import left_out, short
from hpcfed.results.columns import (
    by_round,
    evaluated_rounds,
    is_share,
    main_metric,
    metric_by_client,
    so_far,
    title_metric,
)
from hpcfed.results.run import Run
from hpcfed.results.summary import title
from hpcfed.storage.record import Record

SEEDS, CLIENTS = BANDS = ("seeds", "clients")
PHASES = {"_before": "before training", "_received": "of received models"}
FEW = 8  # lines of a panel up to which they have bands, which would hide one another


@dataclass(frozen=True)
class Curve:
    """One run over its evaluated rounds, each array [E].

    rounds: counted from 1.
    epochs, traffic: cumulative local epochs, and bytes down and up, mean over all clients.
    seconds: cumulative virtual seconds; 0 if none were recorded.
    epsilon: of what was released so far; 0 without an account of privacy.
    mean, std: of the evaluated clients' test accuracy, or other metric; std is that of the
    population, 0 for a pooled metric; for a band over seeds it is the sample standard deviation of
    their means.
    share: whether the metric is at most 1.
    seeds: number of runs.
    band: over what std is, seeds or clients.
    """

    rounds: np.ndarray
    epochs: np.ndarray
    traffic: np.ndarray
    seconds: np.ndarray
    epsilon: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    share: bool = True
    seeds: int = 1
    band: str = CLIENTS

    @classmethod
    def of(cls, record: Record, metric: str = "") -> Curve:
        name = metric or main_metric(record)
        values = metric_by_client(record, name)
        t = np.flatnonzero(np.isfinite(values).any(1))
        values = values[t]  # [E, K]
        x = {name: values[t] for name, values in so_far(record).items()}
        seconds = x["virtual"] if np.isfinite(x["virtual"]).all() else np.zeros(len(t))
        mean, std = np.nanmean(values, 1), np.nanstd(values, 1)
        share = is_share(bare(name))
        epsilon = np.nan_to_num(x["epsilon"])
        return cls(t + 1, x["epochs"], x["bytes"], seconds, epsilon, mean, std, share)

    @classmethod
    def pool(cls, curves: Sequence[Curve], band: str = CLIENTS) -> Curve:
        """Return runs with different seeds as one curve, over the rounds that all have.

        band: over what std is: seeds, or the clients of all seeds.
        """
        rounds = reduce(np.intersect1d, (curve.rounds for curve in curves))
        arrays = [f.name for f in fields(cls) if f.name not in ("share", "seeds", "band")]
        rows = [
            [getattr(curve, name)[np.isin(curve.rounds, rounds)] for name in arrays]
            for curve in curves
        ]
        pooled = cls(*np.mean(np.array(rows, dtype=float), 0))
        n, means = len(curves), np.array([row[-2] for row in rows], dtype=float)
        if band == SEEDS:
            std = means.std(0, ddof=1) if n > 1 else np.zeros(len(rounds))
        else:
            std = np.sqrt(np.mean([(row[-2] - pooled.mean) ** 2 + row[-1] ** 2 for row in rows], 0))
        return replace(pooled, rounds=rounds, std=std, share=curves[0].share, seeds=n, band=band)


@dataclass(frozen=True)
class Axis:
    """The x axis of curves.

    name: of a field of Curve.
    unit: of its ticks, "" for plain numbers.
    none: what a run of a level line lacks, in words.
    """

    name: str
    text: str
    unit: str = ""
    none: str = ""

    def of(self, curve: Curve) -> np.ndarray:
        return getattr(curve, self.name)


ROUNDS = Axis("rounds", "round")
EPOCHS = Axis("epochs", "local epochs per client", none="no local training")
TRAFFIC = Axis("traffic", "traffic per client, down + up", "B", "no traffic")
SECONDS = Axis("seconds", "virtual time", "s", "no virtual time")
EPSILON = Axis("epsilon", "epsilon so far", none="no account of privacy")


def pooled(runs: Sequence[Run]) -> Curve:
    """Return the curve of runs that differ only in their seed."""
    band = runs[0].figure_band or (SEEDS if len(runs) > 1 else CLIENTS)
    return Curve.pool([Curve.of(run.record, run.drawn_metric) for run in runs], band)


def numbers(runs: Sequence[Run]) -> dict[Group, Curve]:
    """Return the curves, one for runs that differ only in their seed.

    Unfinished runs beside finished ones are curves of their own.
    """
    return {group: pooled(group.runs) for group in by_line(runs)}


def by_line(runs: Sequence[Run]) -> list[Group]:
    """Return the groups of runs, whose labels tell them apart in one panel."""
    lines = unfinished_apart(groups(runs))
    several = len({group.panel for group in lines}) > 1
    return [replace(g, label=f"{g.label}; {g.panel}") if several else g for g in lines]


def common_metric(figure: str, runs: Sequence[Run], main: bool = False) -> str:
    """Return the metric that a figure draws of these runs, as in column names.

    main: whether it draws the runs' main metric, whichever --metric names.
    Raises ConfigError if they differ, because one axis shows one metric.
    """
    examples: dict[str, Run] = {}
    for run in runs:
        examples.setdefault(run.main_metric if main else run.drawn_metric, run)
    if len(examples) == 1:
        return next(iter(examples))
    differing = [f"{title_metric(name)} of {run.name}" for name, run in examples.items()]
    common = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    option = f", or --metric {', '.join(common)}" if common and not main else ""
    raise ConfigError(
        f"{figure}: the runs' metrics differ: {join_few(differing, 4)}; one axis shows one metric; "
        f"give runs of one task{option}"
    )


def with_values(
    figure: str, of: Mapping[Group, Curve]
) -> tuple[dict[Group, Curve], tuple[str, ...]]:
    """Return the curves that have points, and notes on the runs of the others.

    Raises ConfigError if no curve has any.
    """
    curves = {group: curve for group, curve in of.items() if len(curve.rounds)}
    absent = [run for group in of if group not in curves for run in group.runs]
    if not curves:
        raise ConfigError(f"{figure}: {absent[0].name}: {explain_absence(absent[0])}")
    return curves, left_out(absent, explain_absence)


def explain_absence(run: Run) -> str:
    """Return why the metric that figures draw has no value for a run, and what to do."""
    record, name = run.record, run.drawn_metric
    if np.isfinite(metric_by_client(record, name)).any():
        return "no evaluated round in common with runs of other seeds"
    if not len(evaluated_rounds(record)):
        return "no round has been evaluated yet; evaluate.every says after which rounds"
    phase = next((end for end in PHASES if name.removesuffix("_pooled").endswith(end)), "")
    if not len(evaluated_rounds(record, f"clients/{main_metric(record)}{phase}")):
        return f"{name} was not recorded; run the job with evaluate.{phase[1:]} = true"
    pooled = f"{name}_pooled"
    if np.isfinite(by_round(record, pooled)).any():
        return (
            f"{name} is undefined for all clients, as with test examples of one class alone; "
            f"--metric {pooled} is over the test examples of all clients together"
        )
    return f"{name} is undefined in all evaluated rounds; choose another metric (--metric)"


def cut_notes(all_groups: Iterable[Group]) -> tuple[str, ...]:
    """Return a note for each curve that lacks the last rounds of some of its seeds.

    A seed may have ended early (evaluate.patience), and the mean is over the rounds that all have.
    """
    several = (group for group in all_groups if len(group.runs) > 1)
    ends = {group: [run.record.rounds for run in group.runs] for group in several}
    return tuple(
        f"{group.label} is drawn up to round {min(rounds)}, the last that all {len(rounds)} seeds "
        f"have, of up to {max(rounds)}"
        for group, rounds in ends.items()
        if min(rounds) < max(rounds)
    )


def figure(runs: Sequence[Run]) -> Figure:
    """Draw mean accuracy, or another metric, with a panel for each x axis and a line for each case.

    Runs that differ only in their seed are one line. A band shows one standard deviation over
    seeds or clients. Raises ConfigError if no run has a value, or if the runs' metrics differ.
    """
    metric = common_metric("curves", runs)
    of, absent = with_values("curves", numbers(runs))
    curves, looks = list(of.values()), lines_of(list(of))
    across = [
        ROUNDS,
        *(
            axis
            for axis in (EPOCHS, TRAFFIC, SECONDS, EPSILON)
            if any(axis.of(curve).any() for curve in curves)
            and not (axis is EPOCHS and all(np.allclose(c.epochs, c.rounds) for c in curves))
        ),
    ]
    below = plotting.lines(list(looks), plotting.PAGE) if len(runs) > 1 else 1
    drawing, axes = plotting.panels(len(across), below=below, sharey=True)
    for ax, axis in zip(axes, across, strict=True):
        lines(ax, axis, curves, list(looks.values()))
    for ax in axes[::2]:
        ax.set_ylabel(y(len(curves), metric, curves), fontsize=plotting.LETTERS)
    if len(runs) > 1:
        plotting.legend(drawing, looks)
    else:
        heading = plotting.plain(short(title(runs[0].record), 100))
        drawing.suptitle(heading, fontsize=plotting.LETTERS)
    drawing.notes = (*absent, *cut_notes(of))
    return drawing


def y(lines: int, metric: str, curves: Sequence[Curve] = ()) -> str:
    """Return the label of a metric's axis in a panel of one or several lines.

    metric: as in column names.  curves: those of the figure.
    """
    seeds = max((curve.seeds for curve in curves), default=1)
    over = "mean ± std" if lines <= FEW else "mean"
    whose = "clients" if seeds == 1 else f"clients of {seeds} seeds"
    if any(curve.band == SEEDS for curve in curves):
        whose = f"{seeds} seeds"
    if metric.endswith("_pooled"):
        what = f"test {in_words(metric.removesuffix('_pooled'))},\nall test examples together"
        return what if seeds == 1 else f"{what}, {over} over {seeds} seeds"
    return f"test {in_words(metric)},\n{over} over {whose}"


def bare(metric: str) -> str:
    """Return the name of a metric as in column names, without its phase."""
    for phase in (*PHASES, "_pooled"):
        metric = metric.removesuffix(phase)
    return metric


def in_words(metric: str) -> str:
    """Return the title of a metric as in column names."""
    for phase, words in PHASES.items():
        if metric.endswith(phase):
            return f"{title_metric(metric.removesuffix(phase))} {words}"
    return f"{title_metric(metric)} after local training"


def lines(ax: Axes, axis: Axis, curves: Sequence[Curve], looks: Sequence[Look]) -> None:
    """Draw one panel with all curves, with bands if there are few. looks: of the curves."""
    plotting.frame(ax, axis.text)
    for look, curve in zip(looks, curves, strict=True):
        line(ax, axis.of(curve), curve, plotting.style(look), band=len(curves) <= FEW)
    plotting.set_x_axis(ax, integer=axis is ROUNDS)
    scale(ax, [axis.of(curve)[-1] for curve in curves if axis.of(curve).any()], len(curves), axis)


def line(ax: Axes, x: np.ndarray, curve: Curve, style: dict[str, Any], band: bool) -> None:
    """Draw one run in one panel; a level line at its last value if x stays 0 (no traffic)."""
    if not x.any():
        for level in curve.mean[-1:]:
            ax.axhline(level, linewidth=1.2, **style)
        return
    plotting.line(ax, x, curve.mean, style)
    if band:
        plotting.band(
            ax,
            x,
            curve.mean,
            (curve.mean - curve.std).clip(min=None if (curve.mean < 0).any() else 0),
            (curve.mean + curve.std).clip(max=1 if curve.share else None),
            style,
        )


def scale(ax: Axes, totals: Sequence[float], curves: int, axis: Axis) -> None:
    """Set the ticks of the x axis with their unit, and its label.

    It is logarithmic for curves whose totals differ widely. The label explains level lines.
    """
    if not totals:
        ax.xaxis.set_major_formatter(NullFormatter())
    elif plotting.widely(totals) and axis is not ROUNDS:
        plotting.logarithmic_across(ax, axis.unit)
    elif axis.unit:
        plotting.unit(ax.xaxis, axis.unit)
    if len(totals) < curves:
        ax.set_xlabel(f"{ax.get_xlabel()}\n(level line: {axis.none})", fontsize=plotting.LETTERS)
