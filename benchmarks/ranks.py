"""FedClassAvg of 20 clients with the paper's four architectures and equal data, on two ranks and on
one.

    python benchmarks/ranks.py

Times are those of the result files' own columns, one thread a rank, rounds after the one in which
clients move to other ranks by measured cost. A rank's wait is the share of a round that it waits
for the other.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from launch import ROOT, on_ranks
from paired import Row, ratio, save

from hpcfed.storage.results import load

JOB = ROOT / "jobs" / "fedclassavg-cifar10-dirichlet.toml"
CLIENTS, EXAMPLES, BATCH = 20, 16, 8
WARM, ROUNDS, PASSES = (
    2,
    3,
    3,
)  # the first rounds measure, and move clients; then this number counts, in each run
FLAGS = (
    "--data.root",
    "../shared/data",
    "--clients",
    str(CLIENTS),
    "--data.partition",
    "iid",
    "--data.train_limit",
    str(CLIENTS * EXAMPLES),
    "--data.test_share",
    "0.1",
    "--local.batch",
    str(BATCH),
    "--local.epochs",
    "1",
    "--run.threads",
    "1",
    "--rounds",
    str(WARM + ROUNDS),
    "--run.rebalance",
    str(WARM),
    "--evaluate.every",
    "1000",
    "--checkpoint.every",
    "0",
    "--overwrite",
    "--quiet",
)


def main() -> None:
    if not (ROOT.parent / "shared" / "data" / "cifar10.h5").exists():
        sys.exit("skipped: ../shared/data/cifar10.h5 is not there")
    seconds: dict[int, list[float]] = {1: [], 2: []}
    waits = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(PASSES):
            for ranks in (1, 2) if i % 2 else (2, 1):
                took, wait = run(ranks, Path(folder))
                seconds[ranks].append(took)
                waits += [wait] if ranks == 2 else []
    share = np.array(waits)  # [passes, ranks]
    rows = [
        Row(
            "seconds of a round: 1 rank / 2 ranks",
            ratio(seconds[1], seconds[2]),
            least=1.9,
            details={"s": seconds},
        ),
        Row(
            "2 ranks, share of a round that the one that waits more waits",
            ratio(share.max(axis=1), np.ones(PASSES)),
            most=0.05,
            details={"of each rank, by pass": share.round(3).tolist()},
        ),
    ]
    save("ranks", rows)


def run(ranks: int, folder: Path) -> tuple[float, np.ndarray]:
    """Seconds of a round, and the share of it that each rank waits, [ranks]; both of the rounds
    that count.
    """
    on_ranks(ranks, "-m", "hpcfed.main", str(JOB), *FLAGS, "--out", str(folder / "run"))
    columns = load(folder / "run").columns
    took, waited = columns["rounds/seconds"][WARM:], columns["ranks/wait"][WARM:]
    return float(np.median(took[:-1])), np.median(waited[:-1] / took[:-1, None], axis=0)


if __name__ == "__main__":
    main()
