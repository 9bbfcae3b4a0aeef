"""What protection and compression of uploads cost: accuracy against epsilon, and against bytes.

`python benchmarks/uploads.py [privacy] [compression] [--data fashion-mnist cifar10]
[--side-by-side 2]`

`uploads.toml` names the methods and what is done to their uploads; the jobs beside it say the rest.
Each cell of methods x variants x data has three seeds. A finished run leaves one row in
results/uploads/rows.jsonl.xz, which the tables and pictures are made of, and no other file; the
same command continues with the rows that are missing.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grid
import numpy as np
from matplotlib.figure import Figure
from pictures import reduce_colours
from runs import RESULTS

from hpcfed.results import privacy, summary
from hpcfed.storage.results import load

HERE = Path(__file__).parent
PLAN = tomllib.loads((HERE / "uploads.toml").read_text())
KEPT = RESULTS / "uploads"
ROWS = KEPT / "rows.jsonl.xz"
STUDIES = ("privacy", "compression")
DATA = ("fashion-mnist", "cifar10")
SEEDS = (0, 1, 2)
PLAIN = "as they are"
TITLES = {"privacy": "What privacy costs", "compression": "What compression costs"}
CAPTIONS = {
    "privacy": "Test accuracy, mean over 1,000 clients with 60 examples each (Dirichlet(0.5)), of "
    "which about 100 take part in each of 30 rounds; central noise, delta 1e-5, adaptive clipping. "
    "FedAvg and SCAFFOLD are judged by the model that clients receive, the others by clients' own "
    "models after the last training of each. In brackets what a client sends in a round.",
    "compression": "Test accuracy, mean over 20 clients with 300 examples each (Dirichlet(0.5)), "
    "which all take part in each of 20 rounds. FedAvg and SCAFFOLD, with one architecture, are "
    "judged by the model that clients receive, the others, with two, by clients' own models. In "
    "brackets what a client sends in a round: the length of the encoded message.",
}
SIZE, POINTS = (7.0, 3.0), 8  # inches of a picture, and of its letters


class Cell(NamedTuple):
    """One run."""

    study: str
    data: str
    method: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        return "/".join(map(str, self))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", default=STUDIES)
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    options = parser.parse_args()
    wanted = [
        grid.Cell(cell.key, HERE / PLAN[cell.study]["job"], flags(cell))
        for cell in cells()
        if cell.study in options.studies
        and cell.data in options.data
        and (not options.only or cell.method in options.only)
    ]
    failed = grid.fill(ROWS, wanted, figures, options.side_by_side)
    rows = grid.read(ROWS)
    for study in STUDIES:
        if names := data_with_runs(study, rows):
            write_table(study, names, rows)
            draw(study, names, rows)
    if failed:
        raise SystemExit("\n".join(failed))


def cells() -> Iterator[Cell]:
    """All runs, the first seed of all cells first."""
    for seed in SEEDS:
        for study in STUDIES:
            for data in DATA:
                for method, how in PLAN["methods"].items():
                    for variant in how.get("only", PLAN[study]["variants"]):
                        yield Cell(study, data, method, variant, seed)


def flags(cell: Cell) -> str:
    """The flags of a run over its study's job."""
    method = PLAN["methods"][cell.method].get("flags", "")
    in_study = PLAN[cell.study].get("methods", {}).get(cell.method, "")
    variant = PLAN[cell.study]["variants"][cell.variant]
    start = f"--algorithm.name {cell.method} --data.name {cell.data} --seed {cell.seed}"
    return " ".join(f"{start} {method} {in_study} {variant}".split())


def figures(key: str, path: Path) -> dict[str, float | str | None]:
    """Accuracy of the last round (mean over clients, and of the worst tenth), bytes that a client
    sends in a round, epsilon, seconds, and the commit of hpcfed; it ends in "+" if files differ.
    """
    record, method = load(path), key.split("/")[2]
    return {
        **grid.of_clients(record, grid.COLUMNS[PLAN["methods"][method]["measure"]]),
        "down": round(float(summary.traffic(record)["down_per_client_round"]), 1),
        "epsilon": privacy.facts(record).get("epsilon"),
        "seconds": round(float(record.column("rounds/seconds").sum()), 1),
    }


def by_seed(rows: Mapping[str, Any], study: str, data: str, method: str, variant: str) -> list[Any]:
    """Return the lines of a cell's seeds that are done."""
    lines = (rows.get(Cell(study, data, method, variant, seed).key) for seed in SEEDS)
    return [line for line in lines if line]


def diverged(lines: Sequence[Any]) -> int:
    """Return how many of these runs had a loss of nan."""
    return sum("diverged" in line for line in lines)


def data_with_runs(study: str, rows: Mapping[str, Any]) -> list[str]:
    return [data for data in DATA if any(key.startswith(f"{study}/{data}/") for key in rows)]


def write_table(study: str, names: Sequence[str], rows: Mapping[str, Any]) -> None:
    """Write the study's table: mean accuracy over seeds, with the deviation, and bytes sent."""
    variants = list(PLAN[study]["variants"])
    text = [f"# {TITLES[study]}", "", CAPTIONS[study], ""]
    for data in names:
        text += [f"**{data}**", "", f"| method | {' | '.join(variants)} |"]
        text += ["|---" * (1 + len(variants)) + "|"]
        for method in PLAN["methods"]:
            lines = [by_seed(rows, study, data, method, variant) for variant in variants]
            if any(lines):
                text.append(f"| {method} | {' | '.join(map(cell_text, lines))} |")
        text.append("")
    done = [cell for cell in cells() if cell.study == study and cell.key in rows]
    commits = sorted({line["commit"] for cell in done if "commit" in (line := rows[cell.key])})
    planned = sum(cell.study == study for cell in cells())
    text += [f"{len(done)} of {planned} runs. Commits: {', '.join(commits)}.", ""]
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{study}.md").write_text("\n".join(text))


def cell_text(lines: list[Any]) -> str:
    if not lines:
        return ""
    if n := diverged(lines):
        return f"{n} of {len(lines)} diverged"
    scores = [line["accuracy"] for line in lines]
    spread = f" ± {np.std(scores, ddof=1):.3f}" if len(scores) > 1 else ""
    sent = np.mean([line["up"] for line in lines]) / 1e3
    return f"{np.mean(scores):.3f}{spread} ({sent:,.2f} kB)"


def draw(study: str, names: Sequence[str], rows: Mapping[str, Any]) -> None:
    """Draw accuracy against epsilon, or against bytes, one panel for each data set."""
    figure = Figure(figsize=SIZE, layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for data, axes in zip(names, panels, strict=True):
        for i, method in enumerate(name for name in PLAN["methods"] if name != "local"):
            points = list(points_of(study, rows, data, method))
            if not points:
                continue
            x, y, low, high = zip(*points, strict=True)
            colour = f"C{i}"
            style = {"color": colour, "marker": "os^Dvx"[i], "markersize": 4, "label": method}
            line = "-" if study == "privacy" else ""
            axes.plot(x, y, linestyle=line, linewidth=1, **style)
            axes.vlines(x, low, high, color=colour, linewidth=0.8)
        local = by_seed(rows, study, data, "local", PLAIN)
        if local and not diverged(local):
            level = np.mean([line["accuracy"] for line in local])
            axes.axhline(level, color="grey", linestyle=":", linewidth=1, label="local training")
        axes.set_title(data, fontsize=POINTS)
        if study == "privacy":
            axes.set_xticks(range(5), ["2", "4", "8", "clip only", "none"])
            axes.set_xlabel("epsilon", fontsize=POINTS)
        else:
            axes.set_xscale("log")
            axes.set_xlabel("bytes that a client sends in a round", fontsize=POINTS)
        axes.set_ylabel("accuracy, mean over clients", fontsize=POINTS)
        axes.tick_params(labelsize=POINTS)
        axes.grid(alpha=0.3)
    entries: dict[str, Any] = {}  # a method may have runs in one panel alone
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        entries.values(), entries, loc="outside upper center", ncols=7, fontsize=POINTS - 1
    )
    figure.savefig(KEPT / f"{study}.png", dpi=200)
    reduce_colours(KEPT / f"{study}.png")


def points_of(
    study: str, rows: Mapping[str, Any], data: str, method: str
) -> Iterator[tuple[float, float, float, float]]:
    """Yield position, mean accuracy, lowest and highest seed of each variant."""
    variants = list(PLAN[study]["variants"])
    order = list(reversed(variants)) if study == "privacy" else variants
    for at, variant in enumerate(order):
        lines = by_seed(rows, study, data, method, variant)
        if lines and not diverged(lines):
            scores = [line["accuracy"] for line in lines]
            x = at if study == "privacy" else float(np.mean([line["up"] for line in lines]))
            yield x, float(np.mean(scores)), min(scores), max(scores)


if __name__ == "__main__":
    main()
