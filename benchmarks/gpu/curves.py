"""Learning curves of FedClassAvg on Fashion-MNIST in float32, tf32 and bf16: accuracy, seconds.

`FOLDER/env/bin/python benchmarks/gpu/curves.py FOLDER [--data fashion_mnist.h5]`

20 clients of four architectures, 20,000 images, 20 rounds, on 8 ranks with MPS if it is there. The
result files stay in FOLDER/runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from findings import Findings, carry_out, run
from mps import server

DATA = Path("data/fashion_mnist.h5")
PRECISIONS, RANKS = ("tf32", "bf16", "float32"), 8
JOB = (
    *("--algorithm.name", "fedclassavg", "--data.partition", "dirichlet", "--data.alpha", "0.5"),
    *("--clients", "20", "--local.augment", "simclr", "--local.batch", "64"),
    *("--run.ranks_per_gpu", str(RANKS), "--data.train_limit", "20000"),
    *("--evaluate.every", "1", "--evaluate.before", "false", "--checkpoint.every", "0"),
)


def work(report: Findings, options: argparse.Namespace) -> None:
    from hpcfed.storage.results import load as results

    data = "digits" if report.pretend else str(options.data)
    mix = "fedhenn-1,mlp" if report.pretend else "resnet18,shufflenetv2,googlenet,alexnet"
    rounds, runs = 2 if report.pretend else 20, options.folder.resolve() / "runs"
    with TemporaryDirectory() as folder, server(report, Path(folder)) as variables:
        for precision in PRECISIONS[:1] if report.pretend else PRECISIONS:
            flags = [*JOB, "--data.name", data, "--models.mix", mix, "--rounds", str(rounds)]
            flags += ["--run.device", report.kind, "--run.precision", precision]
            flags += ["--overwrite", "--out", str(runs / precision)]
            ranks = 2 if report.pretend else RANKS
            if not report.attempt(
                precision,
                lambda f=flags, r=ranks: run(f, report, r, **(variables or {})) or True,
            ):
                continue
            columns = results(runs / precision).columns
            report.value(
                precision,
                {
                    "accuracy": columns["clients/accuracy"].mean(1).tolist(),
                    "seconds of each round": columns["rounds/seconds"].tolist(),
                },
            )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DATA, help="HDF5 file of Fashion-MNIST")


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
