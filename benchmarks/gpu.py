"""FedClassAvg of the paper's 20 clients on one GPU: engines, precisions and ranks against the naive
loop.

`python benchmarks/gpu.py [--passes 5] [--check]`: under 10 minutes

20 clients, 5 of each of the paper's four architectures, batches of 64, two views of 3x32x32, noise;
`naive.py` has the loop. All in one process, in turns, but for several ranks a GPU, which are runs
of their own (time-sliced, unless an MPS server runs). Without a GPU nothing is measured; --check
runs every part on the CPU, with small models and few examples, and writes nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import COLOUR, QUIET, Case
from launch import mpirun, on_ranks
from naive import Naive
from paired import Ratio, Row, interleaved, ratio, save, table
from side import SIDES, Side
from torch import nn

from hpcfed.comm.serial import Serial
from hpcfed.config.load import load
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation, world
from hpcfed.machine import devices
from hpcfed.storage.results import load as results

PAPER = Case(
    "resnet18,shufflenetv2,googlenet,alexnet",
    nn.Module,
    COLOUR,
    clients=20,
    n=640,
    batch=64,
    optimiser="adam",
    lr=1e-3,
    flags=("--algorithm.name", "fedclassavg", "--local.augment", "simclr"),
)
SMALL = replace(PAPER, model="cnn,mlp", clients=4, n=16, batch=8)
LEAST = {"graphed": 5.0}
WARM, ROUNDS = (
    2,
    4,
)  # of a run on several ranks: the first rounds record and capture, the others count
DIGITS = (
    "--data.name",
    "digits",
    "--algorithm.name",
    "fedclassavg",
    "--models.mix",
    "cnn,mlp,fedhenn-3,fedhenn-5",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="run every part on the CPU, small")
    options = parser.parse_args()
    if options.check:
        rows, more = measure(SMALL, "cpu", 1, ranks=(1, 2), rounds=2)
        print(table(rows), more, sep="\n")
    elif not torch.cuda.is_available():
        print("skipped: torch sees no GPU here (--check runs every part small, on the CPU)")
    else:
        rows, more = measure(PAPER, "cuda", options.passes, ranks=(1, 2, 4), rounds=20)
        save("gpu", rows, **more)


def measure(
    case: Case, kind: str, passes: int, ranks: tuple[int, ...], rounds: int
) -> tuple[list[Row], dict]:
    """All rows, and what is no ratio. rounds: of the run whose accuracy is compared."""
    sides = {
        name: Side(case, kind, name) for name, p in SIDES.items() if kind == "cuda" or p != "tf32"
    }
    naive = Naive(case, sides["eager"].device)
    seconds = interleaved({"naive": naive.round, **sides}, passes)
    rows = [
        row for name, side in sides.items() for row in speed(case, side, name, seconds)
    ]  # each does the same
    more = {
        "device": devices.describe(sides["eager"].device),
        "eager and graphed have the same bits": sides["eager"].weights()
        == sides["graphed"].weights(),
        "peak bytes of a client's training": sides["eager"].peaks(),
    }
    sides.clear()  # several ranks need the memory
    del naive
    with tempfile.TemporaryDirectory() as folder:
        rows += [*accuracies(kind, rounds), *shared(case, kind, ranks, Path(folder), more)]
    return rows, more


def speed(case: Case, side: Side, name: str, seconds: dict[str, list[float]]) -> Iterator[Row]:
    """The naive loop over this side, with its throughput; and where its time goes."""
    median = float(np.median(seconds[name]))
    rate, peak = side.flop / median, side.peak_flop_rate
    details = {
        "seconds": median,
        "naive": float(np.median(seconds["naive"])),
        "flop/s": rate,
        "samples/s": case.clients * case.n / median,
        "of peak": rate / peak if peak else None,
    }
    yield Row(
        f"naive loop over hpcfed, {name}",
        ratio(seconds["naive"], seconds[name]),
        least=LEAST.get(name),
        details=details,
    )
    launching, running = side.shares()
    yield Row(
        f"{name}, profiled: share of training in which the host launches kernels", one(launching)
    )
    yield Row(f"{name}, profiled: share of training in which kernels run", one(running))


def accuracies(kind: str, rounds: int) -> Iterator[Row]:
    """A short run on digits with each engine: mean accuracy over clients."""
    found = {}
    for engine in ("eager", "graphed"):
        job = load(
            [*DIGITS, "--run.device", kind, "--rounds", str(rounds), "--training.engine", engine],
            environ={},
        )
        going = started(job)
        found[engine] = [going.step()[0] for _ in range(rounds)][-1]["clients/accuracy"].mean()
    yield Row(
        "accuracy on digits, graphed over eager",
        one(found["graphed"] / found["eager"]),
        details=found,
    )


def started(job: Any) -> Rounds:
    return Rounds(federation(job, Serial(), world(job, Serial())))


def shared(
    case: Case, kind: str, ranks: tuple[int, ...], folder: Path, more: dict[str, Any]
) -> Iterator[Row]:
    """Several ranks on one GPU against one; whether they have the same bits goes into `more`."""
    runs: dict[int, Any] = {}
    for n in ranks if launchable() else ranks[:1]:
        flags = (
            *case.words,
            *QUIET,
            "--rounds",
            str(WARM + ROUNDS),
            "--run.device",
            kind,
            "--run.rebalance",
            "0",
            "--training.engine",
            "graphed",
            "--overwrite",
            "--quiet",
            "--out",
            str(folder / str(n)),
        )
        on_ranks(n, "-m", "hpcfed.main", *flags)
        runs[n] = results(folder / str(n)).columns
    more["bytes of the GPU's memory by rank"] = {
        n: c["ranks/peak_device_bytes"][-1].tolist() for n, c in runs.items()
    }
    more["losses do not depend on ranks"] = all(
        np.array_equal(c["clients/train_loss"], runs[1]["clients/train_loss"])
        for c in runs.values()
    )
    seconds = {n: c["rounds/seconds"][WARM:] for n, c in runs.items()}
    for n in [n for n in runs if n > 1]:
        yield Row(
            f"seconds of a round: 1 rank / {n} ranks on one GPU", ratio(seconds[1], seconds[n])
        )


def launchable() -> bool:
    """Whether several ranks can be started here; says why not."""
    try:
        return bool(mpirun())
    except RuntimeError as why:
        print(f"skipped: several ranks ({why})")
        return False


def one(value: float) -> Ratio:
    return Ratio(float(value), float(value), float(value))


if __name__ == "__main__":
    main()
