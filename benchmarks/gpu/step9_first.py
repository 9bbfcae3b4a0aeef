"""9: what the first time costs: training and evaluation of each client twice, batches of new sizes.

`FOLDER/env/bin/python benchmarks/gpu/step9_first.py FOLDER`

The paper's clients are of unequal sizes, so that batches have many shapes; libraries plan each
operation anew for a new shape. Which functions take the first evaluation's time is profiled.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from findings import Findings, carry_out

if TYPE_CHECKING:
    from side import Side

SIZES = (256, 255, 254, 253, 255, 256)  # of batches that one model evaluates, in this order


def work(report: Findings, options: argparse.Namespace) -> None:
    from gpu import PAPER, SMALL
    from side import Side

    start = perf_counter()
    case, engine = (SMALL, "traced") if report.pretend else (PAPER, "graphed")
    side = Side.of(case, report.kind, engine, "float32" if report.pretend else "tf32")
    report.value("seconds of setting up", perf_counter() - start)
    clients = range(case.clients)
    report.value("examples by client", side.fed.sizes)
    report.value("architecture by client", side.fed.architectures)
    for time in ("first", "second"):
        spent = [seconds(side, lambda k=k: side.train(k)) for k in clients]
        report.value(f"seconds of training, {time} time, by client", spent)
    with cProfile.Profile() as profile:
        spent = [seconds(side, lambda k=k: evaluate(side, k)) for k in clients]
    report.value("seconds of evaluation, first time, by client", spent)
    for time in ("second", "third"):
        spent = [seconds(side, lambda k=k: evaluate(side, k)) for k in clients]
        report.value(f"seconds of evaluation, {time} time, by client", spent)
    report.value("functions of the first evaluation: seconds, calls, name", longest(profile))
    for name, k in side.largest().items():
        spent = [seconds(side, lambda n=n, k=k: predict(side, k, n)) for n in SIZES]
        report.value(f"{name}: seconds of batches of {SIZES}", spent)


def seconds(side: Side, work: Callable[[], object]) -> float:
    """Of a call, until the device has done what it asks for."""
    side.wait()
    start = perf_counter()
    work()
    side.wait()
    return perf_counter() - start


def evaluate(side: Side, k: int) -> None:
    """Score client k as after a round."""
    side.rounds.evaluation.received([k], side.rounds.state)


def predict(side: Side, k: int, n: int) -> None:
    """Apply client k's model to n images."""
    import torch

    client = side.fed.clients[k]
    x = torch.zeros(n, *side.case.shape, device=side.device)
    with torch.no_grad():
        client.model.eval()
        client.model(x)


def longest(profile: cProfile.Profile) -> list[tuple[float, int, str]]:
    """Return the 15 functions that take longest by themselves: seconds, calls, name."""
    rows = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]  # not in its stubs
    named = [(row[2], row[0], f"{where[0].split('/')[-1]}:{where[2]}") for where, row in rows]
    return sorted(named, reverse=True)[:15]


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
