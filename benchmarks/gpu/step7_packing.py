"""7: 1 to 16 ranks on one GPU, with and without MPS, in three precisions. Decides how clients are
packed.

`FOLDER/env/bin/python benchmarks/gpu/step7_packing.py FOLDER`

Runs of the paper's 20 clients, unequal, placed by measured cost; within a precision the digests of
all are compared. MPS is started here, in folders of its own, if its control program is there, and
ended after. The goals of speed, 5 times the naive loop of step 6 and 50,000 examples a second, are
held against the best packing: one rank in float32 cannot reach them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from findings import Findings, carry_out, digest, run
from mps import find, server

STAGES = (  # with MPS?, precisions and ranks; what says most comes first: the time may end early
    (True, (("bf16", 8), ("bf16", 10))),
    (False, (("tf32", 1), ("tf32", 8))),
    (True, (("tf32", 10), ("tf32", 4), ("float32", 8))),
    (False, (("bf16", 1), ("float32", 1), ("float32", 8))),
    (True, (("bf16", 16), ("tf32", 16))),
)
TRIAL = ((False, (("float32", 1), ("float32", 2))),)  # on the CPU
RATE = 50_000.0  # goal, examples a second
QUERY = ("--query-gpu=power.draw,utilization.gpu", "--format=csv,noheader,nounits")


def work(report: Findings, options: argparse.Namespace) -> None:
    digests: dict[str, dict[str, str]] = {}
    rates: dict[str, float] = {}
    runs = options.folder.resolve() / "runs"  # whose result files stay
    with TemporaryDirectory() as folder:
        for mps, packings in TRIAL if report.pretend else STAGES:
            with server(report, Path(folder)) if mps else nothing() as variables:
                for precision, ranks in packings if variables is not None else ():
                    name = f"{precision}, {ranks} ranks{', MPS' * mps}"
                    out = runs / name.replace(", ", "-").replace(" ", "-")
                    measure = partial(one, report, ranks, precision, out, name, variables)
                    if result := report.attempt(name, measure):
                        digests.setdefault(precision, {})[name], rates[name] = result
                        summarise(report, digests, rates)


def summarise(
    report: Findings, digests: dict[str, dict[str, str]], rates: dict[str, float]
) -> None:
    """Enter what the packings so far show, for the time may end with any of them."""
    report.value("digests", digests)
    for precision, by_name in digests.items():
        report.check(f"{precision}: all have the same bits", len(set(by_name.values())) == 1)
    best = max(rates, key=lambda name: rates[name])
    report.value("best packing", f"{best}: {rates[best]:,.0f} examples a second")
    report.value(f"goal of {RATE:,.0f} examples a second is met", rates[best] >= RATE)


def one(
    report: Findings, ranks: int, precision: str, out: Path, name: str, variables: dict[str, str]
) -> tuple[str, float]:
    """Return the digest of one run and its examples a second."""
    import gpu
    from cases import QUIET

    from hpcfed.storage.results import load as results

    case = gpu.SMALL if report.pretend else gpu.PAPER
    rounds = 6 if report.pretend else gpu.WARM + gpu.ROUNDS
    flags = [
        *case.words,
        *QUIET,
        *("--rounds", str(rounds), "--run.device", report.kind),
        *("--run.ranks_per_gpu", str(max(ranks, 8))),
        *("--run.precision", precision, "--log.energy", str(not report.pretend).lower()),
        *("--training.engine", "traced" if report.pretend else "graphed"),
        *("--overwrite", "--out", str(out)),
    ]
    with watched() as samples:
        run(flags, report, ranks, **variables)
    columns = results(out).columns
    every = columns["rounds/seconds"]
    seconds = every[gpu.WARM : -1]  # the last round is evaluated
    rate = float(case.clients * case.n / np.median(seconds))
    report.value(
        name,
        {
            "seconds of each round": every.tolist(),
            "examples a second": rate,
            "bytes of the GPU by rank": columns["ranks/peak_device_bytes"][-1].tolist(),
            "seconds of training by rank": columns["ranks/train"][-1].tolist(),
            "watts and utilisation of the GPU, each second": samples,
        },
    )
    return digest(out, report), rate


@contextmanager
def watched() -> Iterator[list[str]]:
    """Yield a list of what nvidia-smi says each second inside the block; empty without it."""
    samples: list[str] = []
    smi, ended = find("nvidia-smi"), threading.Event()

    def sample() -> None:
        while smi and not ended.wait(1.0):
            answer = subprocess.run([smi, *QUERY], capture_output=True, text=True, timeout=30)
            samples.append(answer.stdout.strip())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


@contextmanager
def nothing() -> Iterator[dict[str, str]]:
    yield {}


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
