"""2: four models, 20 steps, eager and graphed twice, traced once. Decides whether bits are equal.

`FOLDER/env/bin/python benchmarks/gpu/step2_bits.py FOLDER [--models resnet18 ...]`

Also sums of uploads on the device and on the host: their bits, and milliseconds a client.
Also for tf32 and bf16; warnings of kernels that torch does not know to be deterministic are listed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from findings import Findings, carry_out

if TYPE_CHECKING:
    import torch
    from cases import Case

    from hpcfed.core.params import Params, Per, Term

STEPS, LAST = 20, 7  # full batches, and examples of the last one
TURNS = {"eager": 2, "traced": 1, "graphed": 2}  # of each engine


def work(report: Findings, options: argparse.Namespace) -> None:
    from gpu import PAPER, SMALL

    report.attempt("sums", partial(sums, report))
    case = SMALL if report.pretend else PAPER
    steps = 2 if report.pretend else STEPS
    models = case.model.split(",")
    if options.models and not report.pretend:
        models = options.models
    case = replace(case, clients=1, n=steps * case.batch + LAST, partition="iid")
    for precision in ("float32", "bf16") if report.pretend else ("float32", "tf32", "bf16"):
        for model in models:
            one = replace(case, model=model)
            digests = {
                f"{engine} {turn}": report.attempt(
                    f"{model} {precision} {engine} {turn}",
                    partial(bits, report, one, engine, precision),
                )
                for engine, turns in TURNS.items()
                for turn in range(1, turns + 1)
            }
            report.value(f"{model} {precision}", digests)
            for engine, turns in TURNS.items():
                of_engine = {digests[f"{engine} {turn}"] for turn in range(1, turns + 1)}
                report.check(
                    f"{model} {precision} {engine}: the same bits in {turns} runs",
                    len(of_engine) == 1 and None not in of_engine,
                )
            report.check(
                f"{model} {precision}: the engines have the same bits",
                len(set(digests.values())) == 1,
            )


WEIGHTS = (1.0, 1 / 3, 1e-20, 250.0, 0.0)  # of the clients of a sum


def sums(report: Findings) -> None:
    """Compare sums on the device with those on the host, for values of any bits."""
    import numpy as np
    import torch

    from hpcfed.core import rng
    from hpcfed.core.params import Mean, Params

    device, draws = torch.device(report.kind), rng.stream(0, "sums")
    bytes_each = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}
    for dtype, width in bytes_each.items():

        def values(rows: int, dtype: torch.dtype = dtype, width: int = width) -> Params:
            raw = np.frombuffer(draws.bytes(rows * 500 * width), np.uint8).copy()
            any_bits = torch.from_numpy(raw).view(dtype).reshape(rows, 500)  # subnormal as well
            finite = torch.where(any_bits.isfinite(), any_bits, 0)
            return Params(a=(finite * 2.0**-10).to(device))  # so that totals are finite

        means = [Mean.of(values(300), weight).terms[0] for weight in WEIGHTS]
        at = {"a": (list(range(299, 99, -1)),)}
        pieces = [Mean.of(values(200), weight, at).terms[0] for weight in WEIGHTS]
        cases: tuple[tuple[Per, list[Term]], ...]
        cases = ("mean", means), ("value", [*means, *pieces])
        for per, terms in cases:
            here, on_gpu = both_means(terms, values(300), per)
            report.check(f"sums of {dtype} per {per}: the host's bits", here[0] == on_gpu[0])
    n = 10**4 if report.pretend else 11 * 10**6  # values of ResNet-18
    model = Params({f"{i}": torch.ones(n // 50, device=device) for i in range(50)})
    terms = [Mean.of(model, weight).terms[0] for weight in WEIGHTS]
    both_means(terms, model, "mean")  # first, libraries initialise themselves
    here, on_gpu = both_means(terms, model, "mean")
    report.value("sums, milliseconds a client on the device", 1e3 * here[1] / len(terms))
    report.value("sums, milliseconds a client on the host", 1e3 * on_gpu[1] / len(terms))


def both_means(
    terms: list[Term], keep: Params, per: Per
) -> tuple[tuple[bytes, float], tuple[bytes, float]]:
    """Return bytes and seconds of the mean that the device adds up, and of the host's."""
    import torch

    from hpcfed.comm import Serial
    from hpcfed.core.averaging import mean_of
    from hpcfed.federation.device_rows import DeviceRows

    device = next(iter(keep.values())).device
    differences = []
    for place in (partial(DeviceRows, device=device), list):
        start = perf_counter()
        mean = mean_of(terms, keep, per, Serial().sum, place)
        raw = b"".join(
            value.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for value in mean.values()
        )
        differences.append((raw, perf_counter() - start))
    return differences[0], differences[1]


def bits(report: Findings, case: Case, engine: str, precision: str) -> str:
    """SHA-256 of the weights after one round of this case's one client."""
    from side import Side, free

    free()
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        side = Side.of(case, report.kind, engine, precision)
        side()
    for line in sorted({str(w.message)[:200] for w in notices if "determin" in str(w.message)}):
        report.value(f"warning, {case.model} {engine}", line)
    if engine == "graphed":
        side.check_captures()
    return hashlib.sha256(b"".join(side.weights())).hexdigest()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", help="some of the four")


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
