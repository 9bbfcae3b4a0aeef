"""Under attack, and defended: accuracy of the honest clients, and the success of a backdoor.

`python benchmarks/attacks.py [--side-by-side 2] [--methods fedavg ...]`

`attacks.toml` names methods of four kinds (what clients send: weights, heads, prototypes, logits),
attacks and defences; shares of attackers are 0, 0.1 and 0.3, seeds three. Each finished run leaves
a row in results/attacks/rows.jsonl.xz, of which table and picture are made; the same command
continues with the rows that are missing. All runs of a seed come before those of the next one.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grid
import numpy as np
from matplotlib.figure import Figure
from pictures import reduce_colours
from runs import RESULTS

from hpcfed.results import summary
from hpcfed.storage.results import load

HERE = Path(__file__).parent
PLAN = tomllib.loads((HERE / "attacks.toml").read_text())
METHODS, ATTACKS, DEFENCES = (PLAN[name] for name in ("methods", "attacks", "defences"))
KEPT = RESULTS / "attacks"
ROWS = KEPT / "rows.jsonl.xz"
SHARES, SEEDS = (0.1, 0.3), (0, 1, 2)
NOBODY = "nobody"  # in the place of an attack
SIZE, POINTS = (7.2, 5.6), 7  # inches of the picture, and of its letters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    options = parser.parse_args()
    wanted = [cell for cell in cells() if cell.key.split("/")[0] in options.methods]
    failed = grid.fill(ROWS, wanted, figures, options.side_by_side)
    rows = grid.read(ROWS)
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / "table.md").write_text("\n".join(table(rows)) + "\n")
    draw(rows)
    if failed:
        raise SystemExit("\n".join(failed))


def cells() -> Iterator[grid.Cell]:
    """All runs, those of a seed together."""
    for seed in SEEDS:
        for method, how in METHODS.items():
            for defence, defended in DEFENCES.items():
                for attack, share, attacked in attacks():
                    flags = f"--algorithm.name {method} --seed {seed} {how['flags']} {attacked}"
                    yield grid.Cell(
                        key(method, defence, attack, share, seed),
                        HERE / "attacks-job.toml",
                        " ".join(f"{flags} {defended}".split()),
                    )


def attacks() -> Iterator[tuple[str, float, str]]:
    """Each attack with its share of attackers and its flags; nobody comes first."""
    yield NOBODY, 0.0, ""
    for share in SHARES:
        for attack, flags in ATTACKS.items():
            yield attack, share, f"{flags} --attack.share {share}"


def key(method: str, defence: str, attack: str, share: float, seed: int) -> str:
    return f"{method}/{defence}/{attack}/{share}/{seed}"


def figures(cell: str, path: Path) -> dict[str, Any]:
    """Of the honest clients: mean accuracy and that of the worst tenth in the last round; the
    success of a backdoor; bytes that a client sends in a round; and the commit.
    """
    record = load(path)
    return {
        **grid.of_clients(record, grid.COLUMNS[METHODS[cell.split("/")[0]]["measure"]]),
        "success": summary.facts(record).get("attack", {}).get("success"),
    }


def done(rows: Mapping[str, Any], *cell: Any) -> list[Any]:
    """The rows of a cell's seeds that are done and have not diverged."""
    lines = (rows.get(key(*cell, seed)) for seed in SEEDS)  # type: ignore[call-arg]
    return [line for line in lines if line and "accuracy" in line]


def mean(lines: list[Any], name: str) -> float | None:
    values = [line[name] for line in lines if line[name] is not None]
    return float(np.mean(values)) if values else None


def table(rows: Mapping[str, Any]) -> Iterator[str]:
    """Accuracy, worst tenth and success of each method, attack and share, by defence."""
    for method, how in METHODS.items():
        sent = mean(done(rows, method, "none", NOBODY, 0.0), "up")
        if sent is None:
            continue
        yield f"**{method}** ({how['kind']}, {sent / 1e3:,.2f} kB a client and round)"
        yield ""
        yield f"| attackers | {' | '.join(DEFENCES)} |"
        yield "|---" * (1 + len(DEFENCES)) + "|"
        for attack, share, _ in attacks():
            name = "none" if attack == NOBODY else f"{attack}, {share:.0%}"
            texts = (cell_text(rows, method, d, attack, share) for d in DEFENCES)
            yield f"| {name} | {' | '.join(texts)} |"
        yield ""
    finished = [line for line in rows.values() if "accuracy" in line]
    commits = sorted({line["commit"] for line in finished})
    total = sum(1 for _ in cells())
    yield (
        f"Accuracy of honest clients, mean (worst tenth); success of the backdoor after a slash. "
        f"{len(rows)} of {total} runs. "
        f"Commits: {', '.join(commits)}."
    )


def cell_text(rows: Mapping[str, Any], *cell: Any) -> str:
    lines = done(rows, *cell)
    if not lines:
        tried = rows.get(key(*cell, SEEDS[0]), {})  # type: ignore[call-arg]
        return next((word for word in ("refused", "diverged") if word in tried), "")
    success = mean(lines, "success")
    text = f"{mean(lines, 'accuracy'):.3f} ({mean(lines, 'worst_tenth'):.2f})"
    return text if success is None else f"{text} / {success:.2f}"


def draw(rows: Mapping[str, Any]) -> None:
    """Draw, for each defence, what the strongest share of attackers costs in accuracy."""
    figure = Figure(figsize=SIZE, layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    names = list(METHODS)
    for defence, axes in zip(DEFENCES, panels, strict=True):
        loss = np.full((len(names), len(ATTACKS)), np.nan)
        for i, method in enumerate(names):
            start = mean(done(rows, method, "none", NOBODY, 0.0), "accuracy")
            for j, attack in enumerate(ATTACKS):
                score = mean(done(rows, method, defence, attack, SHARES[-1]), "accuracy")
                if start is not None and score is not None:
                    loss[i, j] = score - start
        image = axes.imshow(loss, vmin=-0.5, vmax=0.5, cmap="RdBu", aspect="auto")
        for (i, j), value in np.ndenumerate(loss):
            if np.isfinite(value):
                axes.text(j, i, f"{value:+.2f}", ha="center", va="center", fontsize=POINTS - 1)
        axes.set_title(f"defence: {defence}", fontsize=POINTS + 1)
        axes.set_xticks(range(len(ATTACKS)), list(ATTACKS), rotation=45, ha="right")
        axes.set_yticks(range(len(names)), [f"{n} ({METHODS[n]['kind']})" for n in names])
        axes.tick_params(labelsize=POINTS)
    bar = figure.colorbar(image, ax=panels, shrink=0.6)
    bar.set_label(
        f"accuracy of honest clients with {SHARES[-1]:.0%} attackers,\nless that without any",
        fontsize=POINTS,
    )
    bar.ax.tick_params(labelsize=POINTS)
    figure.savefig(KEPT / "table.png", dpi=200)
    reduce_colours(KEPT / "table.png")


if __name__ == "__main__":
    main()
