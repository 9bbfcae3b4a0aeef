"""Learning curves of FedClassAvg on Fashion-MNIST in float32, tf32 and bf16: accuracy, seconds.

`FOLDER/env/bin/python benchmarks/gpu/curves.py FOLDER [--data fashion_mnist.h5]`

20 clients of four architectures, 30 rounds; the committed runs on CPUs (results/evidence) are the
reference for the accuracies. The digest of float32 on one rank and on four has to be the same.
`hpcfed plan` predicts the rounds of both from the run on one rank: what it needs to be calibrated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from findings import Findings, carry_out, command, digest, run

DATA = Path("data/fashion_mnist.h5")
RUNS = (("float32", 1), ("float32", 4), ("tf32", 4), ("bf16", 4))  # precision, ranks
MARGIN = 0.15  # goal of plan's relative error
JOB = (
    *("--algorithm.name", "fedclassavg", "--data.partition", "dirichlet", "--data.alpha", "0.5"),
    *("--clients", "20", "--local.augment", "simclr", "--local.batch", "64"),
    *("--evaluate.every", "1", "--evaluate.before", "false", "--checkpoint.every", "0"),
)


def work(report: Findings, options: argparse.Namespace) -> None:
    from hpcfed.storage.results import load as results

    data, digests = ("digits" if report.pretend else str(options.data)), {}
    mix = "fedhenn-1,mlp" if report.pretend else "resnet18,shufflenetv2,googlenet,alexnet"
    rounds = 2 if report.pretend else 30
    with TemporaryDirectory() as folder:
        trial = Path()
        for precision, ranks in RUNS[:2] if report.pretend else RUNS:
            name = f"{precision}, {ranks} ranks"
            out = Path(folder) / name.replace(", ", "-").replace(" ", "-")
            flags = [*JOB, "--data.name", data, "--models.mix", mix, "--rounds", str(rounds)]
            flags += ["--run.device", report.kind, "--run.precision", precision]
            flags += ["--run.ranks_per_gpu", "4", "--out", str(out)]
            if not report.attempt(name, lambda f=flags, r=ranks: run(f, report, r) or True):
                continue
            columns = results(out).columns
            report.value(
                name,
                {
                    "accuracy": columns["clients/accuracy"].mean(1).tolist(),
                    "seconds of each round": columns["rounds/seconds"].tolist(),
                },
            )
            digests[precision, ranks] = digest(out, report)
            if precision == "float32":
                trial = out if ranks == 1 else trial
                report.attempt(f"plan, {name}", partial(plan, report, name, flags, trial, out))
    if ("float32", 1) in digests and ("float32", 4) in digests:
        same = digests["float32", 1] == digests["float32", 4]
        report.check("one rank and four have the same bits", same)


def plan(report: Findings, name: str, flags: Sequence[str], trial: Path, out: Path) -> None:
    """Enter the seconds of a run's rounds as `hpcfed plan` predicts them, and as measured."""
    from hpcfed.launch.plan.costs import PHASES
    from hpcfed.storage.results import load as results

    record = results(out)
    ranks, columns = record.header["ranks"], record.columns
    words = ["--costs", trial, "--nodes", "1", "--ranks-per-node", ranks, "--json"]
    words += ["--gpus-per-node", 0 if report.pretend else 1]
    status, text = command(
        [
            sys.executable,
            "-m",
            "hpcfed.cli",
            "plan",
            *flags[: flags.index("--out")],
            *map(str, words),
        ],
        report,
    )
    if status:
        raise RuntimeError(text[-1500:])
    facts = json.loads(text[text.index("{") :])
    [predicted] = facts["clusters"]
    seconds = float(np.median(columns["rounds/seconds"][1:]))
    report.value(
        f"plan, {name}",
        {
            "seconds of a round, predicted": predicted["seconds"],
            "seconds of a round, measured": seconds,
            "within 15 %": abs(predicted["seconds"] / seconds - 1) <= MARGIN,
            "parts, predicted": predicted["parts"],
            "parts by rank, measured": {
                phase: np.median(columns[f"ranks/{phase}"][1:], 0).tolist() for phase in PHASES
            },
            "basis": facts["basis"],
        },
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DATA, help="HDF5 file of Fashion-MNIST")


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
