"""Tables and pictures of the study, from its rows.

Differences are paired by client and seed. Seeds are the clusters: clients of one run share a
server, so that intervals and tests are over the means of seeds (hpcfed.report.differences).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from forks import diverged
from pictures import reduce_colours
from studyplan import PLAN, chosen, difference, final, methods_of, results, tuning

from hpcfed.core.wording import count_noun
from hpcfed.report.differences import Paired, holm
from hpcfed.report.figures import plotting
from hpcfed.report.figures.ranks import LEAST, draw
from hpcfed.report.ranks import rank

HEADS = (
    "method",
    "accuracy",
    "received",
    "over local",
    "95 % interval",
    "p (Holm)",
    "effect",
    "better / worse",
    "over its matched baseline",
    "95 % interval",
    "p (Holm)",
    "kB up",
    "epochs / of its baseline",
    "virtual s",
    "CPU s",
)

INTRODUCTION = """\
# Does the federation help?

How much more accurate are clients' own models than those of the matched job of local training,
which does the same work without the other clients (`hpcfed matched METHOD`), and than those of
local training that is tuned as well as the method? A method **helps** if the 95 % interval of the
first difference is above 0 in most cells, in two or more of them, and its mean over cells is at
least 0.01; it **harms** if both are below 0 by the same rule. The
[design](../../study/design.md) says what the cells are, and what limits the answers. A rate and one
weight are chosen by validation; the other settings are those of the
[table of all methods](../methods/table.md), on all data alike.
""".splitlines()

Runs = dict[int, dict[str, Any]]  # rows of a method in a cell, by seed


def write(rows: Mapping[str, Any]) -> None:
    """Write a sentence per method, the table of each cell with finished methods, and the pictures
    over cells.
    """
    parts, complete = [], 0
    means: dict[str, dict[str, float]] = {}  # by complete cell and method
    # over the matched baseline, and over tuned local training, by method and cell
    gains: dict[str, dict[str, Paired]] = {}
    over_local: dict[str, dict[str, Paired]] = {}
    for cell in PLAN["cells"]:
        runs, baselines = finished(cell, dict(rows))
        if runs:
            undecided, failed = missing(cell, dict(rows)), failures(cell, dict(rows))
            failing = failures(cell, dict(rows), kinds=("seed",))
            seeds = common_seeds({n: by_seed for n, by_seed in runs.items() if n not in failing})
            parts += [f"## {cell}", "", introduction(undecided, failed, seeds), ""]
            parts += [*table(runs, baselines, seeds), ""]
            complete += not undecided
            if not undecided and cell not in PLAN["apart"]:
                means[cell] = {n: accuracy(runs[n], seeds) for n in runs if n not in failing}
        counts = "local" in runs and cell not in PLAN["apart"]
        for name in runs.keys() & baselines.keys() if counts else ():
            gain, over = (difference(runs[name], one) for one in (baselines[name], runs["local"]))
            if gain and gain.interval and over:
                gains.setdefault(name, {})[cell] = gain
                over_local.setdefault(name, {})[cell] = over
    if not parts:
        return
    folder = results()
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = {name: verdict(gains[name], over_local[name]) for name in sorted(gains)}
    briefs = {name: one.brief for name, one in verdicts.items()}
    (folder / "verdicts.json").write_text(json.dumps(briefs, indent=0) + "\n")
    order = sorted(verdicts, key=lambda name: -verdicts[name].mean)
    lines = [f"- {sentence(name, gains[name], verdicts[name])}" for name in order]
    head = [*INTRODUCTION, "", *lines, "", *overview(gains, order), ""]
    if draw_ranks(means, folder / "ranks.png"):
        head += ["![Mean ranks of methods over the cells that all of them have](ranks.png)", ""]
    caption = [
        "Tables: accuracy of clients' own models, mean over clients and over the seeds that all "
        "methods of the cell have. Differences are over the seeds that both sides have; in "
        f"parentheses are the method's. {complete} of {len(PLAN['cells'])} cells are complete. "
        f"{', '.join(PLAN['apart'])}: in no verdict and no rank.",
        "",
    ]
    (folder / "table.md").write_text("\n".join([*head, *caption, *parts]))


class Verdict(NamedTuple):
    """What a method does beside its matched baseline, over the cells with an interval.

    above, below: the cells whose interval is above 0, and below.  mean: of the gains, over cells.
    over_local: mean gain over tuned local training in the same cells.
    """

    cells: int
    above: list[str]
    below: list[str]
    mean: float
    over_local: float

    @property
    def decision(self) -> tuple[str, list[str]]:
        """Whether it helps or harms by the rule of design.md, and the cells that say so."""
        for word, cells, sign in (("helps", self.above, 1), ("harms", self.below, -1)):
            in_most = len(cells) > 1 and 2 * len(cells) > self.cells
            if in_most and sign * self.mean >= PLAN["relevant"]:
                return word, cells
        return ("one cell, no verdict" if self.cells == 1 else "neither helps nor harms"), []

    @property
    def brief(self) -> str:
        """For a table."""
        word, deciding = self.decision
        cells = f"{len(deciding)} of " * bool(deciding) + count_noun(self.cells, "cell")
        return f"{word}: {self.mean:+.3f}, {cells}; {self.over_local:+.3f} over tuned local"


def verdict(gains: Mapping[str, Paired], over_local: Mapping[str, Paired]) -> Verdict:
    """gains: over the matched baseline, with an interval, by cell.  over_local: by cell."""
    intervals = {cell: one.interval for cell, one in gains.items() if one.interval}
    return Verdict(
        cells=len(gains),
        above=[cell for cell, (low, _) in intervals.items() if low > 0],
        below=[cell for cell, (_, high) in intervals.items() if high < 0],
        mean=float(np.mean([one.mean for one in gains.values()])),
        over_local=float(np.mean([over_local[cell].mean for cell in gains])),
    )


def sentence(name: str, gains: Mapping[str, Paired], one: Verdict) -> str:
    """What a method does beside its matched baseline, as a sentence.  gains: as in `verdict`."""
    average = f"{one.mean:+.3f} on average"
    over = f"; over tuned local training {one.over_local:+.3f}"
    cells = count_noun(one.cells, "cell")
    word, deciding = one.decision
    if deciding:
        most = max(deciding, key=lambda cell: abs(gains[cell].mean))
        return (
            f"**{name} {word}** in {len(deciding)} of {cells}: {average}, most in {most} "
            f"({gains[most].mean:+.3f}){over}."
        )
    if one.cells == 1:
        [(cell, gain)] = gains.items()
        low, high = gain.interval or (np.nan, np.nan)
        return (
            f"**{name}** was run in one cell, {cell}, which gives no verdict: {one.mean:+.3f}, "
            f"interval {low:+.3f} to {high:+.3f}{over}."
        )
    intervals = f"interval above 0 in {len(one.above)} and below in {len(one.below)} of {cells}"
    return f"**{name}** neither helps nor harms by this rule: {average}, {intervals}{over}."


def overview(gains: Mapping[str, Mapping[str, Paired]], order: list[str]) -> list[str]:
    """The lines of a table of all gains over matched baselines, a row for each method.

    gains: by method and cell.
    """
    cells = [cell for cell in PLAN["cells"] if any(cell in one for one in gains.values())]
    lines = [
        "Gains over the matched baseline, by cell; bold: the interval leaves out 0.",
        "",
        f"| method | {' | '.join(cells)} |",
        "|---" * (1 + len(cells)) + "|",
    ]
    for name in order:
        texts = [mark(gains[name][cell]) if cell in gains[name] else "" for cell in cells]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return lines


def mark(one: Paired) -> str:
    """A gain, bold if its interval leaves out 0."""
    low, high = one.interval or (0.0, 0.0)
    return f"**{one.mean:+.3f}**" if low > 0 or high < 0 else f"{one.mean:+.3f}"


def finished(cell: str, rows: dict[str, Any]) -> tuple[dict[str, Runs], dict[str, Runs]]:
    """The runs of each method of a cell, and those of its matched baseline, by seed."""
    runs: dict[str, Runs] = {}
    baselines: dict[str, Runs] = {}
    for name in methods_of(cell):
        flags = chosen(cell, name, rows)
        for task in final(cell, name, flags, PLAN["seeds"]) if flags else ():
            row = rows.get(task.key)
            if row and "accuracy" in row:
                kind = baselines if task.kind == "matched" else runs
                kind.setdefault(name, {})[task.seed] = row
    return runs, baselines


def missing(cell: str, rows: dict[str, Any]) -> list[str]:
    """The methods of a cell that lack a run of the plan, of their own or of the baseline.

    Failed runs have a row.
    """

    def lacks(name: str) -> bool:
        flags = chosen(cell, name, rows)
        tasks = final(cell, name, flags, PLAN["seeds"]) if flags else ()
        return flags is None or any(task.key not in rows for task in tasks)

    return [name for name in methods_of(cell) if lacks(name)]


def failures(
    cell: str, rows: dict[str, Any], kinds: Sequence[str] = ("seed", "matched")
) -> dict[str, str]:
    """The methods of a cell with failed runs, and which: of all trials, or of these seeds.

    kinds: "seed" for a method's own runs, "matched" for those of its baseline.
    """
    failed = {}
    for name in methods_of(cell):
        flags = chosen(cell, name, rows)
        if flags == "":
            trials = [rows[task.key]["failed"] for task in tuning(cell, name).values()]
            failed[name] = f"{name} is absent: {reason(trials)} in all {len(trials)} trials"
        parts = []
        for kind in kinds:
            whose = name if kind == "seed" else f"{name}'s matched baseline"
            tasks = [t for t in final(cell, name, flags or "", PLAN["seeds"]) if t.kind == kind]
            done = [rows.get(task.key, {}) for task in tasks] if flags else []
            if why := [row["failed"] for row in done if "failed" in row]:
                seeds = count_noun(len(tasks), "seed")
                parts.append(f"{whose} {reason(why)} with {len(why)} of {seeds}")
        if parts:
            failed[name] = ", and ".join(parts)
    return failed


def reason(messages: list[str]) -> str:
    """Why runs failed: they diverged, or were refused with the first message."""
    refused = [message for message in messages if not diverged(message)]
    return f"failed ({refused[0]})" if refused else "diverged"


def introduction(undecided: list[str], failed: Mapping[str, str], seeds: list[int]) -> str:
    """What is above the table of a cell.

    undecided: methods that lack runs.  failed: by method, as a sentence.  seeds: of accuracies.
    """
    so_far = f"So far without all runs of {', '.join(undecided)}." if undecided else "Complete."
    of_seeds = f"Accuracies are means over seeds {', '.join(map(str, seeds))}."
    return " ".join([so_far, *(f"{text}." for text in failed.values()), of_seeds])


def common_seeds(runs: Mapping[str, Runs]) -> list[int]:
    """The seeds that all of these methods have."""
    return [seed for seed in PLAN["seeds"] if all(seed in by_seed for by_seed in runs.values())]


def accuracy(runs: Runs, seeds: list[int]) -> float:
    """The mean accuracy over those of these seeds that there are; nan without any."""
    values = [mean(runs[seed]["accuracy"]) for seed in seeds if seed in runs]
    return float(np.mean(values)) if values else np.nan


def mean(values: list[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def table(runs: dict[str, Runs], baselines: dict[str, Runs], seeds: list[int]) -> list[str]:
    """The lines of a cell's table, the most accurate method first; last, those with other seeds.

    seeds: of accuracies.
    """
    over = {n: difference(r, runs["local"]) for n, r in runs.items() if "local" in runs}
    over.pop("local", None)
    alone = {n: difference(runs[n], baselines[n]) for n in runs if n in baselines}
    corrected = [correct(column) for column in (over, alone)]
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    lacks = {name: not set(seeds) <= runs[name].keys() for name in runs}
    means = {name: accuracy(runs[name], seeds) for name in runs}
    for name in sorted(runs, key=lambda name: (lacks[name], -np.nan_to_num(means[name]))):
        by_seed = list(runs[name].values())
        shared = [runs[name][seed] for seed in seeds if seed in runs[name]]
        over_local, over_matched = over.get(name), alone.get(name)
        cells = [
            f"{name} ({len(by_seed)})",
            f"{means[name]:.3f}",
            f"{np.mean([mean(row['received']) for row in shared]):.3f}" if shared else "",
            *difference_cells(over_local, corrected[0].get(name)),
            effect(over_local),
            better_and_worse(over_local),
            *difference_cells(over_matched, corrected[1].get(name)),
            f"{np.mean([row['up'] for row in by_seed]) / 1e3:,.1f}",
            " / ".join(f"{e:.0f}" for e in epochs(by_seed, baselines.get(name, {}))),
            f"{np.mean([row['virtual'] for row in by_seed]):,.0f}",
            f"{np.mean([row['cpu'] for row in by_seed]):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def epochs(by_seed: list[dict[str, Any]], baseline: Runs) -> list[float]:
    """Mean epochs over a client's examples of a method's runs, and of its baseline's."""
    sides = [by_seed, list(baseline.values())]
    return [float(np.mean([row["epochs"] for row in side])) for side in sides if side]


def correct(column: Mapping[str, Paired | None]) -> dict[str, float]:
    """p values of the methods that have one, corrected by Holm's method."""
    tested = {name: one.p for name, one in column.items() if one and one.p is not None}
    return dict(zip(tested, holm([p for p in tested.values() if p is not None]), strict=True))


def difference_cells(one: Paired | None, p: float | None) -> tuple[str, str, str]:
    """Mean, interval and corrected p as text; empty for what is not there."""
    if not one:
        return "", "", ""
    low_high = " to ".join(f"{end:+.3f}" for end in one.interval or ())
    return f"{one.mean:+.3f}", low_high, "" if p is None else f"{p:.3f}"


def effect(one: Paired | None) -> str:
    """The effect size as text; empty if there is none."""
    return "" if one is None or one.effect is None else f"{one.effect:+.2f}"


def better_and_worse(one: Paired | None) -> str:
    """The shares of clients that a method makes better and worse, as text."""
    return f"{(one.clients > 0).mean():.0%} / {(one.clients < 0).mean():.0%}" if one else ""


def draw_ranks(means: Mapping[str, Mapping[str, float]], path: Path) -> bool:
    """Draw mean ranks over cells, one panel for clients with different models and one without.

    means: by cell and method, each over seeds that all methods of the cell have.

    A panel needs two cells and three methods that all of its cells have; without one there is no
    picture, and the result is False.
    """
    panels: dict[str, list[Mapping[str, float]]] = {}
    for by_method in means.values():
        kind = "one architecture" if "fedavg" in by_method else "different models"
        panels.setdefault(kind, []).append(by_method)
    ranks = {kind: rank(cells) for kind, cells in panels.items() if len(cells) > 1}
    ranks = {kind: one for kind, one in ranks.items() if len(one.mean) >= LEAST}
    path.unlink(missing_ok=True)  # of rows that were complete before
    if ranks:
        plotting.save(draw(ranks), path)
        reduce_colours(path)
    return bool(ranks)
