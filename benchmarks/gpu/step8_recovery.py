"""8: FedAvg with ResNet-18, unequal clients, little memory, killed and resumed. Decides recovery.

`FOLDER/env/bin/python benchmarks/gpu/step8_recovery.py FOLDER`

A clean run with all clients in memory; the same with clients' moments on disk, killed (SIGKILL)
once its second checkpoint is there, and resumed: both must have the same digest. On two ranks too.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from told import ROOT, Told, carry_out, digest, run

ROUNDS = 5


def work(told: Told, given: argparse.Namespace) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        clean = told.attempt("a clean run", lambda: whole(told, folder / "clean", "4", 1))
        killed = told.attempt("killed and resumed", lambda: struck(told, folder / "killed"))
        told.check("killed and resumed, with clients on disk: the same bits", clean == killed)
        two = told.attempt("two ranks", lambda: whole(told, folder / "two", "0", 2))
        told.check("two ranks on the GPU: the same bits", clean == two)


def flags(told: Told, out: Path, resident: str) -> list[str]:
    from gpu import PAPER, SMALL

    case = SMALL if told.pretend else replace(PAPER, clients=10)
    case = replace(
        case,
        model=case.model.split(",")[0],
        flags=("--algorithm.name", "fedavg", "--local.keep_optimiser", "true"),
    )
    return [
        *case.words,
        *("--rounds", str(ROUNDS), "--checkpoint.every", "1", "--run.device", told.kind),
        *("--run.resident", resident, "--run.device_resident", resident),
        *("--run.ranks_per_gpu", "2"),
        *("--training.engine", "traced" if told.pretend else "graphed"),
        *("--overwrite", "--out", str(out)),
    ]


def whole(told: Told, out: Path, resident: str, ranks: int) -> str:
    """The digest of a run that nothing cuts short."""
    start = perf_counter()
    run(flags(told, out, resident), told, ranks)
    told.value(f"seconds, {out.name}", perf_counter() - start)
    return digest(out, told)


def struck(told: Told, out: Path) -> str:
    """The digest of a run that is killed after its second checkpoint and then resumed."""
    from hpcfed.storage.names import checkpoint_file

    words = [sys.executable, "-m", "hpcfed.main", *flags(told, out, "0"), "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    try:
        while process.poll() is None and not checkpoint_file(out, 2).exists():
            sleep(0.02)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    told.check("the kill met a run that was going on", process.wait() == -signal.SIGKILL)
    run(["--resume", str(out)], told)
    return digest(out, told)


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
