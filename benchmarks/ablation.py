"""Local training, local training with FedClassAvg's views and loss, FedClassAvg and its ablations:
one table.

`python benchmarks/ablation.py [--seeds 0,1,2] [--side-by-side 2] [--variants ...] [--job
benchmarks/ablation.toml]`

Each variant differs from the next in one thing, so that the table separates what averaging adds
from what the contrastive loss and its augmentation add. Writes one result file a run and the table,
as Markdown and JSON, to benchmarks/results/<job's name>/. Runs that are there already are not run
again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import archive
import numpy as np
from runs import RESULTS, Run, run_all, slug

from hpcfed.results.summary import facts
from hpcfed.storage.results import load

LOCAL, OURS = ("--algorithm.name", "local"), ("--algorithm.name", "fedclassavg")
PLAIN = ("--algorithm.contrastive", "false")
RHO = ("--algorithm.rho", "0.4662")  # the paper's table 1, Fashion-MNIST
NO_RHO = ("--algorithm.rho", "0")
VARIANTS = {
    "local training": LOCAL,
    "local training, two views + CL": (*LOCAL, "--algorithm.contrastive", "true"),
    "CA": (*OURS, *PLAIN, *NO_RHO),
    "CA + PR": (*OURS, *PLAIN, *RHO),
    "CA + CL": (*OURS, *NO_RHO),
    "CA + PR + CL (FedClassAvg)": (*OURS, *RHO),
}


def main() -> None:
    options = arguments()
    folder = RESULTS / options.job.stem
    folder.mkdir(parents=True, exist_ok=True)
    archive.unpack(folder)
    names = [name for name in VARIANTS if slug(name) in options.variants]
    plan = planned(options.job, options.seeds, names)
    run_all(plan.values(), options.side_by_side)
    archive.pack(folder)
    runs = [(name, seed, run.kept.with_suffix("")) for (name, seed), run in plan.items()]
    table = {name: collect([out for n, _, out in runs if n == name]) for name in names}
    record = {"job": options.job.name, "seeds": options.seeds, "rows": table}
    (folder / "table.json").write_text(json.dumps(record, indent=1))
    text = markdown(table, options.seeds)
    (folder / "table.md").write_text(text)
    print(text)


def planned(
    job: Path, seeds: Sequence[int] = (0, 1, 2), names: Sequence[str] = tuple(VARIANTS)
) -> dict[tuple[str, int], Run]:
    """The run of each variant and seed."""
    return {
        (name, seed): Run(
            job,
            (*VARIANTS[name], "--seed", str(seed)),
            RESULTS / job.stem / f"{slug(name)}-seed{seed}.h5",
        )
        for seed in seeds
        for name in names
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", type=Path, default=Path(__file__).parent / "ablation.toml")
    parser.add_argument(
        "--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0, 1, 2]
    )
    every = [slug(name) for name in VARIANTS]
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=every,
        default=every,
        help="only these; local-training first",
    )
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    return parser.parse_args()


def collect(outs: list[Path]) -> dict[str, object]:
    """Mean accuracy of each seed, their mean and deviation, and the mean spread over clients."""
    rows = [facts(load(out.with_suffix(".h5"))) for out in outs]
    means = [f["accuracy"]["mean"] for f in rows]
    return {
        "by_seed": means,
        "mean": float(np.mean(means)),
        "std_over_seeds": float(np.std(means, ddof=1)) if len(means) > 1 else 0.0,
        "std_over_clients": float(np.mean([f["accuracy"]["std"] for f in rows])),
        "up_per_client_round": rows[0]["traffic"]["up_per_client_round"],
        "seconds": float(np.mean([f["time"]["seconds"] for f in rows])),
    }


def markdown(table: dict[str, dict], seeds: list[int]) -> str:
    """The table; the last column is the paired difference to local training over seeds."""
    base = np.array(table["local training"]["by_seed"])
    rows = [
        "| variant | accuracy, mean over seeds | std over seeds | std over clients | over local "
        "training, by seed |",
        "|---|---|---|---|---|",
    ]
    for name, row in table.items():
        gain = ", ".join(f"{d:+.4f}" for d in np.array(row["by_seed"]) - base)
        spread = f"{row['std_over_seeds']:.4f} | {row['std_over_clients']:.4f}"
        rows.append(f"| {name} | {row['mean']:.4f} | {spread} | {gain} |")
    return "\n".join(
        [*rows, "", f"Seeds {', '.join(map(str, seeds))}; last round, mean over clients.", ""]
    )


if __name__ == "__main__":
    main()
