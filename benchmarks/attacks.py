"""Under attack, and defended: accuracy of the honest clients, and the success of a backdoor.

`python benchmarks/attacks.py [--side-by-side 2] [--methods fedavg ...]`

`attacks.toml` names methods of four kinds (what clients send: weights, heads, prototypes, logits),
attacks and defences; shares of attackers are 0, 0.1 and 0.3, seeds three. Attackers of 0.1 are
among those of 0.3. What an attack costs is measured on the same clients: those that are honest at
its share, without an attack and with it. Each finished run leaves a row in
results/attacks/rows.jsonl.xz, of which table and picture are made; the same command continues with
the rows that are missing.

All runs of a seed come before those of the next one: first those without attackers, then the larger
share, of which the picture is made, then the smaller one.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import grid
import numpy as np
import rowfiles
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pictures import reduce_colours
from runs import RESULTS

from hpcfed.core import rng
from hpcfed.report.fairness import worst_tenth
from hpcfed.storage.results import load

HERE = Path(__file__).parent
JOB = HERE / "attacks-job.toml"
CLIENTS = tomllib.loads(JOB.read_text())["clients"]
PLAN = tomllib.loads((HERE / "attacks.toml").read_text())
METHODS, ATTACKS, DEFENCES = (PLAN[name] for name in ("methods", "attacks", "defences"))
KEPT = RESULTS / "attacks"
ROWS = KEPT / "rows.jsonl.xz"
SHARES, SEEDS = (0.1, 0.3), (0, 1, 2)
NOBODY = "nobody"  # in the place of an attack
BASE_RATE = "--attack.by backdoor --attack.target 0 --attack.share 0"  # success without an attack
FLIP = 2  # usual strength of sign-flip
SIZE, POINTS = (8.2, 5.8), 7  # inches of the picture, and of its letters


class Score(NamedTuple):
    """Of a run, over the clients that are honest at a share of attackers.

    success: of a backdoor; None: it is not measured.
    """

    accuracy: float
    worst_tenth: float
    success: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    options = parser.parse_args()
    mixes = {local(METHODS[method]["mix"]) for method in options.methods}
    wanted = [cell for cell in cells() if cell.key.split("/")[0] in mixes.union(options.methods)]
    failed = grid.fill(ROWS, wanted, figures, options.side_by_side)
    rows = grid.read(ROWS)
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / "table.md").write_text("\n".join(table(rows)) + "\n")
    draw(rows)
    if failed:
        raise SystemExit("\n".join(failed))


def cells() -> Iterator[grid.Cell]:
    """All runs, in their order."""
    for seed in SEEDS:
        for mix in dict.fromkeys(how["mix"] for how in METHODS.values()):
            flags = f"--algorithm.name local --seed {seed} --models.mix {mix}"
            yield grid.Cell(key(local(mix), "none", NOBODY, 0.0, seed), JOB, flags)
        for share in (0.0, *reversed(SHARES)):
            for defence, defended in DEFENCES.items():
                for method, how in METHODS.items():
                    for attack, attacked in attacks(share, seed, how.get("flip", FLIP)):
                        words = (
                            f"--algorithm.name {method} --seed {seed} --models.mix {how['mix']}",
                            *(how["flags"], attacked, defended),
                        )
                        name = key(method, defence, attack, share, seed)
                        yield grid.Cell(name, JOB, " ".join(filter(None, words)))


def attacks(share: float, seed: int, flip: float) -> Iterator[tuple[str, str]]:
    """Each attack of a share of attackers, and its flags; share 0: nobody attacks."""
    if not share:
        yield NOBODY, BASE_RATE
        return
    who = ",".join(map(str, sorted(attackers(share, seed))))
    for attack, flags in ATTACKS.items():
        yield attack, f"{flags.format(flip=flip)} --attack.clients {who}"


@cache
def attackers(share: float, seed: int) -> frozenset[int]:
    """The clients that attack; those of a smaller share are among those of a larger one."""
    order = rng.stream(seed, "attackers").permutation(CLIENTS)
    return frozenset(order[: round(share * CLIENTS)].tolist())


def local(mix: str) -> str:
    """In the place of a method: local training alone, of these architectures."""
    return f"local {mix}"


def key(method: str, defence: str, attack: str, share: float, seed: int) -> str:
    return f"{method}/{defence}/{attack}/{share}/{seed}"


def figures(cell: str, path: Path) -> dict[str, Any]:
    """Of the honest clients: mean accuracy and that of the worst tenth in the last round; the
    success of a backdoor; bytes that a client sends in a round; and the commit.

    Without an attack also accuracy and success of each client, as far as they have any.
    """
    method, _, attack, _, _ = cell.split("/")
    record, measure = load(path), METHODS[method]["measure"] if method in METHODS else "own"
    row = grid.of_clients(record, grid.COLUMNS[measure])
    if "rounds/attack_success" in record.columns:
        row["success"] = round(float(record.column("rounds/attack_success")[-1]), 4)
    if attack == NOBODY:
        row["accuracies"] = rowfiles.by_client(record.column(grid.COLUMNS[measure])[-1])
        if "clients/attack_success" in record.columns:
            row["successes"] = rowfiles.by_client(record.column("clients/attack_success")[-1])
    return row


def score(line: Mapping[str, Any], attack: str, share: float, seed: int) -> Score:
    """The numbers of a row, over the clients that are honest at this share of attackers."""
    if attack != NOBODY:
        return Score(line["accuracy"], line["worst_tenth"], line.get("success"))
    accuracies = of_honest(line["accuracies"], share, seed)
    success = line.get("success")
    if "successes" in line:
        success = float(of_honest(line["successes"], share, seed).mean())
    return Score(float(accuracies.mean()), worst_tenth(accuracies, high=True), success)


def of_honest(values: list[float | None], share: float, seed: int) -> np.ndarray:
    """The values of the honest clients that have one."""
    bad = attackers(share, seed)
    return np.array([v for k, v in enumerate(values) if k not in bad and v is not None])


class Seeds(NamedTuple):
    """What the runs of a cell of the table say.

    scores: by seed.  diverged: number of runs.  refused: whether the defence does not apply.
    """

    scores: dict[int, Score]
    diverged: int
    refused: bool

    @property
    def divergence(self) -> str:
        """How many of the runs diverged; "" if none did."""
        runs = self.diverged + len(self.scores)
        return f"diverged {self.diverged}/{runs}" if self.diverged else ""

    def mean(self, name: str) -> float | None:
        """The mean over the runs that did not diverge; None if none of them has a value."""
        values = [getattr(one, name) for one in self.scores.values()]
        values = [value for value in values if value is not None]
        return float(np.mean(values)) if values else None


def seeds(rows: Mapping[str, Any], method: str, defence: str, attack: str, share: float) -> Seeds:
    """The runs of a cell that are done.

    share: of attackers; without an attack that by which clients count as honest.
    """
    run_share = 0.0 if attack == NOBODY else share
    lines = {
        seed: line
        for seed in SEEDS
        if (line := rows.get(key(method, defence, attack, run_share, seed)))
    }
    return Seeds(
        {s: score(line, attack, share, s) for s, line in lines.items() if "accuracy" in line},
        sum("diverged" in line for line in lines.values()),
        any("refused" in line for line in lines.values()),
    )


def table(rows: Mapping[str, Any]) -> Iterator[str]:
    """Accuracy, worst tenth and success of each method, attack and share, by defence."""
    yield from ("# Attacks and defences, in numbers", "")
    for method, how in METHODS.items():
        clean = rows.get(key(method, "none", NOBODY, 0.0, SEEDS[0]), {})
        if "up" not in clean:
            continue
        yield f"**{method}** ({how['kind']}, {clean['up'] / 1e3:,.2f} kB a client and round)"
        yield ""
        yield f"| attackers | {' | '.join(DEFENCES)} |"
        yield "|---" * (1 + len(DEFENCES)) + "|"
        for share in SHARES:
            alone = text(seeds(rows, local(how["mix"]), "none", NOBODY, share))
            yield f"| honest at {share:.0%}, local training | {alone} |{' |' * (len(DEFENCES) - 1)}"
            for attack in (NOBODY, *ATTACKS):
                start = "honest at " if attack == NOBODY else ""
                name = f"{start}{share:.0%}, {'no attack' if attack == NOBODY else attack}"
                texts = (text(seeds(rows, method, d, attack, share)) for d in DEFENCES)
                yield f"| {name} | {' | '.join(texts)} |"
        yield ""
    wanted = {cell.key for cell in cells()}
    finished = [line for name, line in rows.items() if name in wanted]
    commits = sorted({line["commit"] for line in finished if "commit" in line})
    yield PLAN["notes"].strip()
    yield ""
    yield (
        f"{len(finished)} of {len(wanted)} runs. Commits: {', '.join(commits)} "
        "(+: a file of results had changed, no code)."
    )


def text(runs: Seeds) -> str:
    """A cell of the table."""
    if not runs.scores:
        return "refused" if runs.refused else runs.divergence
    accuracy, worst, success = (runs.mean(name) for name in Score._fields)
    shown = f"{accuracy:.3f} ({worst:.2f})" + ("" if success is None else f" / {success:.2f}")
    return ", ".join(filter(None, (shown, runs.divergence)))


def draw(rows: Mapping[str, Any]) -> None:
    """Draw, for each defence, what the strongest share of attackers costs in accuracy, and how
    often its backdoor succeeds.
    """
    figure = Figure(figsize=SIZE, layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    names, last = list(METHODS), len(ATTACKS)
    for defence, axes in zip(DEFENCES, panels, strict=True):
        loss, success = np.full((len(names), last), np.nan), np.full((len(names), 1), np.nan)
        for i, method in enumerate(names):
            for j, attack in enumerate(ATTACKS):
                runs = seeds(rows, method, defence, attack, SHARES[-1])
                loss[i, j] = cost(rows, method, runs)
                write(axes, i, j, short(loss[i, j], runs))
                if attack == "backdoor" and runs.scores:
                    success[i, 0] = runs.mean("success")
                    write(axes, i, last, f"{success[i, 0]:.2f}", light=success[i, 0] > 0.5)
        rows_at = (len(names) - 0.5, -0.5)
        of_loss = axes.imshow(
            loss, vmin=-0.5, vmax=0.5, cmap="RdBu", extent=(-0.5, last - 0.5, *rows_at)
        )
        of_success = axes.imshow(
            success, vmin=0, vmax=1, cmap="Purples", extent=(last - 0.5, last + 0.5, *rows_at)
        )
        axes.set(xlim=(-0.5, last + 0.5), aspect="auto")
        axes.axvline(last - 0.5, color="black", linewidth=1)
        axes.set_title(f"defence: {defence}", fontsize=POINTS + 1)
        axes.set_xticks(range(last + 1), [*ATTACKS, "its success"], rotation=45, ha="right")
        axes.set_yticks(range(len(names)), [f"{n} ({METHODS[n]['kind']})" for n in names])
        axes.tick_params(labelsize=POINTS)
    for image, axes, words in (
        (
            of_loss,
            panels[2],
            f"accuracy of honest clients with {SHARES[-1]:.0%} attackers,\nless theirs without any "
            f"(*: without the seeds\nthat diverged; div.: all of them; ref.: refused)",
        ),
        (of_success, panels[5], "share of images with the trigger\nthat are taken for the target"),
    ):
        bar = figure.colorbar(image, ax=axes)
        bar.set_label(words, fontsize=POINTS)
        bar.ax.tick_params(labelsize=POINTS)
    figure.savefig(KEPT / "table.png", dpi=200)
    reduce_colours(KEPT / "table.png", 256)


def write(axes: Axes, row: int, column: int, text: str, light: bool = False) -> None:
    """Write into a cell of the picture."""
    colour = "white" if light else "black"
    axes.text(column, row, text, ha="center", va="center", fontsize=POINTS - 1, color=colour)


def short(loss: float, runs: Seeds) -> str:
    """A cell of the picture."""
    if np.isnan(loss):
        return "div." if runs.diverged else "ref." if runs.refused else ""
    return f"{loss:+.2f}".replace("+0.00", "0").replace("-0.00", "0") + "*" * bool(runs.diverged)


def cost(rows: Mapping[str, Any], method: str, runs: Seeds) -> float:
    """The change of accuracy by an attack, mean over seeds; nan if there is none."""
    start = seeds(rows, method, "none", NOBODY, SHARES[-1]).scores
    changes = [
        one.accuracy - start[seed].accuracy for seed, one in runs.scores.items() if seed in start
    ]
    return float(np.mean(changes)) if changes else float("nan")


if __name__ == "__main__":
    main()
