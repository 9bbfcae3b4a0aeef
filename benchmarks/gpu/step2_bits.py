"""2: four models, 20 steps, eager, traced and graphed, twice each. Decides whether bits are equal.

`FOLDER/env/bin/python benchmarks/gpu/step2_bits.py FOLDER`

Also for tf32 and bf16; warnings of kernels that torch does not know to be deterministic are listed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from told import Told, carry_out

if TYPE_CHECKING:
    from cases import Case

STEPS, LAST = 20, 7  # full batches, and examples of the last one
ENGINES = ("eager", "traced", "graphed")


def work(told: Told, given: argparse.Namespace) -> None:
    from gpu import PAPER, SMALL

    case = SMALL if told.pretend else PAPER
    steps = 2 if told.pretend else STEPS
    models = case.model.split(",")
    case = replace(case, clients=1, n=steps * case.batch + LAST, partition="iid")
    for precision in ("float32", "bf16") if told.pretend else ("float32", "tf32", "bf16"):
        for model in models:
            one = replace(case, model=model)
            found = {
                f"{engine} {turn}": told.attempt(
                    f"{model} {precision} {engine} {turn}",
                    partial(bits, told, one, engine, precision),
                )
                for engine in ENGINES
                for turn in (1, 2)
            }
            told.value(f"{model} {precision}", found)
            for engine in ENGINES:
                first, second = found[f"{engine} 1"], found[f"{engine} 2"]
                told.check(
                    f"{model} {precision} {engine}: twice the same bits",
                    first is not None and first == second,
                )
            told.check(
                f"{model} {precision}: the engines have the same bits",
                len(set(found.values())) == 1,
            )


def bits(told: Told, case: Case, engine: str, precision: str) -> str:
    """SHA-256 of the weights after one round of this case's one client."""
    from side import Side, free

    free()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        side = Side.of(case, told.kind, engine, precision)
        side()
    for line in sorted({str(w.message)[:200] for w in seen if "determin" in str(w.message)}):
        told.value(f"warning, {case.model} {engine}", line)
    if engine == "graphed":
        side.check_captures()
    return hashlib.sha256(b"".join(side.weights())).hexdigest()


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
