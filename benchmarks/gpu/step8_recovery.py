"""8: FedAvg with ResNet-18, unequal clients, little memory, killed and resumed. Decides recovery.

`FOLDER/env/bin/python benchmarks/gpu/step8_recovery.py FOLDER`

A clean run with all clients in memory; the same with clients' moments on disk, killed (SIGKILL)
once its second checkpoint is there, and resumed; and one on two ranks. All must have the same
digest. They run beside each other.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from findings import ROOT, Findings, carry_out, digest, run

ROUNDS = 5


def work(report: Findings, options: argparse.Namespace) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        runs = {
            "a clean run": lambda: whole(report, folder / "clean", "4", 1),
            "killed and resumed": lambda: struck(report, folder / "killed"),
            "two ranks": lambda: whole(report, folder / "two", "0", 2),
        }
        flags(report, folder, "0")  # writes the examples that all of them read
        with ThreadPoolExecutor(len(runs)) as beside:
            digests = list(beside.map(report.attempt, runs, runs.values()))
        report.value("digests", dict(zip(runs, digests, strict=True)))
        clean, killed, two = digests
        report.check("killed and resumed, with clients on disk: the same bits", clean == killed)
        report.check("two ranks on the GPU: the same bits", clean == two)


def flags(report: Findings, out: Path, resident: str) -> list[str]:
    from gpu import PAPER, SMALL

    case = SMALL if report.pretend else replace(PAPER, clients=10)
    case = replace(
        case,
        model=case.model.split(",")[0],
        flags=("--algorithm.name", "fedavg", "--local.keep_optimiser", "true"),
    )
    return [
        *case.words,
        *("--rounds", str(ROUNDS), "--checkpoint.every", "1", "--run.device", report.kind),
        *("--run.resident", resident, "--run.device_resident", resident),
        *("--run.ranks_per_gpu", "2"),
        *("--training.engine", "traced" if report.pretend else "graphed"),
        *("--overwrite", "--out", str(out)),
    ]


def whole(report: Findings, out: Path, resident: str, ranks: int) -> str:
    """The digest of a run that nothing cuts short."""
    start = perf_counter()
    run(flags(report, out, resident), report, ranks)
    report.value(f"seconds, {out.name}", perf_counter() - start)
    return digest(out, report)


def struck(report: Findings, out: Path) -> str:
    """The digest of a run that is killed after its second checkpoint and then resumed."""
    from hpcfed.storage.names import checkpoint_file

    words = [sys.executable, "-m", "hpcfed.main", *flags(report, out, "0"), "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    try:
        while process.poll() is None and not checkpoint_file(out, 2).exists():
            sleep(0.02)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    report.check("the kill met a run that was going on", process.wait() == -signal.SIGKILL)
    run(["--resume", str(out)], report)
    return digest(out, report)


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
