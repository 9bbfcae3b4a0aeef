"""Tables and pictures of the study, from its rows.

Differences are paired by client and seed. Seeds are the clusters: clients of one run share a
server, so that intervals and tests are over the means of seeds (hpcfed.report.differences).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pictures import reduce_colours
from studyplan import PLAN, Task, chosen, difference, final, methods_of, results

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
    "epochs",
    "virtual s",
    "CPU s",
)

INTRODUCTION = """\
# Does the federation help?

How much more accurate are clients' own models than those of the matched job of local training,
which does the same work without the other clients (`hpcfed matched METHOD`), and than those of
local training that is tuned as well as the method? A method **helps** if the 95 % interval of the
first difference is above 0 in most cells, and **harms** if it is below. The
[design](../../study/design.md) says what the cells are, and what limits the answers. A rate and one
weight are chosen by validation; the other settings are those of the
[table of all methods](../methods/table.md), on all data alike.
""".splitlines()

Runs = dict[int, dict[str, Any]]  # rows of a method in a cell, by seed


def write(rows: Mapping[str, Any]) -> None:
    """Write a sentence per method, the table of each cell with finished methods, and the pictures
    over cells.
    """
    parts, means = [], {}  # means: of complete cells
    # over the matched baseline, and over tuned local training, by method and cell
    gains: dict[str, dict[str, Paired]] = {}
    over_local: dict[str, dict[str, Paired]] = {}
    for cell in PLAN["cells"]:
        runs, baselines = finished(cell, dict(rows))
        if runs:
            undecided, failed = missing(cell, dict(rows)), diverged(cell, dict(rows))
            so_far = f"So far without {', '.join(undecided)}." if undecided else "Complete."
            lost = "".join(f" {name} diverged with {which}." for name, which in failed.items())
            parts += [f"## {cell}", "", so_far + lost, "", *table(runs, baselines), ""]
            if not undecided:
                complete = {n: by_seed for n, by_seed in runs.items() if n not in failed}
                means[cell] = {name: accuracy(by_seed) for name, by_seed in complete.items()}
        for name in runs.keys() & baselines.keys() if "local" in runs else ():
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
        f"Tables: accuracy of clients' own models, mean over clients. {len(means)} of "
        f"{len(PLAN['cells'])} cells are complete.",
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
        for word, cells in (("helps", self.above), ("harms", self.below)):
            if 2 * len(cells) > self.cells:
                return word, cells
        return "no difference seen", []

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
    intervals = f"above 0 in {len(one.above)} and below in {len(one.below)} of {cells}"
    return f"**{name}** makes no difference that could be seen: {average}, {intervals}{over}."


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
    """The methods of a cell that lack a run which the plan has; of some all trials diverge."""
    unfinished = []
    for name in methods_of(cell):
        flags = chosen(cell, name, rows)
        if flags is None or (
            flags and any(task.key not in rows for task in own(cell, name, flags))
        ):
            unfinished.append(name)
    return unfinished


def diverged(cell: str, rows: dict[str, Any]) -> dict[str, str]:
    """The methods of a cell with runs that diverged, and with how many of the first seeds."""
    losses = {}
    for name in methods_of(cell):
        tasks = own(cell, name, flags) if (flags := chosen(cell, name, rows)) else []
        lost = sum("accuracy" not in rows.get(task.key, {"accuracy": 0}) for task in tasks)
        if lost:
            losses[name] = f"{lost} of {count_noun(len(tasks), 'seed')}"
    return losses


def own(cell: str, name: str, flags: str) -> list[Task]:
    """The runs of a method with the first seeds, without those of its matched baseline."""
    seeds = PLAN["seeds"][: PLAN["few"]]
    return [task for task in final(cell, name, flags, seeds) if task.kind != "matched"]


def accuracy(runs: Runs) -> float:
    return float(np.mean([mean(row["accuracy"]) for row in runs.values()]))


def mean(values: list[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def table(runs: dict[str, Runs], baselines: dict[str, Runs]) -> list[str]:
    """The lines of a cell's table, the most accurate method first."""
    over = {n: difference(r, runs["local"]) for n, r in runs.items() if "local" in runs}
    over.pop("local", None)
    alone = {n: difference(runs[n], baselines[n]) for n in runs if n in baselines}
    corrected = [correct(column) for column in (over, alone)]
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for name in sorted(runs, key=lambda name: -accuracy(runs[name])):
        by_seed = list(runs[name].values())
        over_local, over_matched = over.get(name), alone.get(name)
        cells = [
            f"{name} ({len(by_seed)})",
            f"{accuracy(runs[name]):.3f}",
            f"{np.mean([mean(row['received']) for row in by_seed]):.3f}",
            *difference_cells(over_local, corrected[0].get(name)),
            effect(over_local),
            better_and_worse(over_local),
            *difference_cells(over_matched, corrected[1].get(name)),
            f"{np.mean([row['up'] for row in by_seed]) / 1e3:,.1f}",
            f"{np.mean([row['epochs'] for row in by_seed]):.0f}",
            f"{np.mean([row['virtual'] for row in by_seed]):,.0f}",
            f"{np.mean([row['cpu'] for row in by_seed]):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


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
    """Draw mean ranks over the cells, one panel for clients with different models and one without.

    A panel needs two cells and three methods that all of its cells have; without one there is no
    picture, and the result is False.
    """
    panels: dict[str, list[Mapping[str, float]]] = {}
    for by_method in means.values():
        kind = "one architecture" if "fedavg" in by_method else "different models"
        panels.setdefault(kind, []).append(by_method)
    ranks = {kind: rank(cells) for kind, cells in panels.items() if len(cells) > 1}
    ranks = {kind: one for kind, one in ranks.items() if len(one.mean) >= LEAST}
    if ranks:
        plotting.save(draw(ranks), path)
        reduce_colours(path)
    return bool(ranks)
