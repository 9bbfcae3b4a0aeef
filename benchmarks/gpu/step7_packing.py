"""7: 1, 2, 4 and 8 ranks on one GPU, with and without MPS. Decides how clients are packed.

`FOLDER/env/bin/python benchmarks/gpu/step7_packing.py FOLDER`

Runs of the paper's 20 clients, unequal, placed by measured cost; digests of all are compared. MPS
is started here, in folders of its own, where its control program is there, and ended after.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from told import Told, carry_out, digest, run

CONTROL = "nvidia-cuda-mps-control"


def work(told: Told, given: argparse.Namespace) -> None:
    found: dict[str, str | None] = {}
    with TemporaryDirectory() as folder:
        # the plain runs first: they say most where the time ends early
        for mps in (False, True):
            with server(told, Path(folder)) if mps else nothing() as variables:
                if variables is None:
                    continue
                for n in (1, 2) if told.pretend else (1, 2, 4, 8):
                    name = f"{n} ranks{', MPS' * mps}"
                    out = Path(folder) / name.replace(" ", "-").replace(",", "")
                    found[name] = told.attempt(
                        name,
                        lambda n=n, out=out, name=name, v=variables: one(told, n, out, name, v),
                    )
    kept = [value for value in found.values() if value]
    told.value("digests", found)
    told.check("all have the same bits", len(set(kept)) == 1)


def one(told: Told, ranks: int, out: Path, name: str, variables: dict[str, str]) -> str:
    """One run: its seconds a round, memory and digest."""
    import gpu
    from cases import QUIET

    from hpcfed.storage.results import load as results

    case = gpu.SMALL if told.pretend else gpu.PAPER
    rounds = 6 if told.pretend else gpu.WARM + gpu.ROUNDS
    flags = [
        *case.words,
        *QUIET,
        *("--rounds", str(rounds), "--run.device", told.kind, "--run.ranks_per_gpu", "8"),
        *("--training.engine", "traced" if told.pretend else "graphed"),
        *("--overwrite", "--out", str(out)),
    ]
    run(flags, told, ranks, **variables)
    columns = results(out).columns
    told.value(
        name,
        {
            "seconds of the last rounds": columns["rounds/seconds"][gpu.WARM :].tolist(),
            "bytes of the GPU by rank": columns["ranks/peak_device_bytes"][-1].tolist(),
            "seconds of training by rank": columns["ranks/train"][-1].tolist(),
        },
    )
    return digest(out, told)


@contextmanager
def nothing() -> Iterator[dict[str, str]]:
    yield {}


@contextmanager
def server(told: Told, folder: Path) -> Iterator[dict[str, str] | None]:
    """The variables with which programs use an MPS server that runs inside; None where there is
    none to be had.
    """
    if told.pretend or not shutil.which(CONTROL):
        told.value("MPS", "not tried: no control program here")
        yield None
        return
    import os

    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    variables = {name: str(folder / name) for name in names}
    for place in variables.values():
        Path(place).mkdir(exist_ok=True)
    environment = os.environ | variables
    started = subprocess.run([CONTROL, "-d"], env=environment, capture_output=True, text=True)
    told.value("MPS", started.stderr.strip() or "started")
    try:
        yield variables if started.returncode == 0 else None
    finally:
        if started.returncode == 0:
            subprocess.run([CONTROL], input="quit\n", env=environment, text=True, timeout=30)


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
