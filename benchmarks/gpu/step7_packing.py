"""7: 1, 2, 4 and 8 ranks on one GPU, with and without MPS. Decides how clients are packed.

`FOLDER/env/bin/python benchmarks/gpu/step7_packing.py FOLDER`

Runs of the paper's 20 clients, unequal, placed by measured cost; digests of all are compared. MPS
is started here, in folders of its own, where its control program is there, and ended after.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mps import server
from told import Told, carry_out, digest, run


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


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
