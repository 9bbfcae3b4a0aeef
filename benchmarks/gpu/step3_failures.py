"""3: a forced failed capture and another one; spilling under load. Decides what is left behind.

`FOLDER/env/bin/python benchmarks/gpu/step3_failures.py FOLDER`

After a capture that failed the thread has to be on its own stream, the next capture has to end
well, and training has to have the bits of eager training. Then clients whose weights and moments
wait on disk have to have the bits of those that wait in memory.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from findings import Findings, carry_out

if TYPE_CHECKING:
    import torch
    from cases import Case


def work(report: Findings, options: argparse.Namespace) -> None:
    from gpu import PAPER, SMALL
    from side import Side, free

    # two clients of each model, of which one is in use and the other one may leave
    case = replace(SMALL if report.pretend else PAPER, clients=8, partition="iid")
    case = replace(case, n=10 if report.pretend else 150)
    eager = Side.of(case, report.kind, "eager")
    device = eager.device
    eager()
    wanted = eager.weights()
    report.attempt("a capture that fails", lambda: failure(report, device))
    graphed = Side.of(case, report.kind, "graphed")
    report.attempt("training after a failed capture", graphed)
    report.value(
        "graphs after a failed capture", report.attempt("captures", graphed.check_captures)
    )
    report.check("graphed bits after a failed capture are eager ones", graphed.weights() == wanted)
    del eager, graphed
    free()
    report.attempt("spilling", lambda: spilling(report, case))


def failure(report: Findings, device: torch.device) -> None:
    """Force one, and look at the thread; then one that ends well."""
    import torch

    from hpcfed.training import graphs

    gpu = not report.pretend
    before = torch.cuda.current_stream(device) if gpu else None
    value, calls = torch.zeros(4, device=device), []

    def bad() -> torch.Tensor:
        calls.append(1)
        if len(calls) > graphs.WARM:
            if report.pretend:
                raise RuntimeError("the step asks the host")
            value.sum().item()  # which no capture allows
        return value.sum()

    try:
        graphs.capture(bad, device)
        report.check("a step that asks the host is refused", False)
    except Exception as error:  # whatever torch raises
        report.value("how torch refuses", f"{type(error).__name__}: {error}"[:500])
        report.check("a step that asks the host is refused", True)
    if gpu:
        report.check("the stream is as before", torch.cuda.current_stream(device) == before)

    def good() -> torch.Tensor:
        return torch.nn.functional.dropout(torch.ones(1000, device=device)).sum()

    replay = graphs.capture(good, device)
    first, second = replay().item(), replay().item()
    report.check("the next capture draws anew at each replay", first != second)


def spilling(report: Findings, case: Case) -> None:
    """Rounds with all clients on disk, against rounds with all in the GPU's memory."""
    from side import Side

    def bits(device: str, host: str) -> list[bytes]:
        more = ("--run.device_resident", device, "--run.resident", host)
        more += ("--local.keep_optimiser", "true")
        side = Side.of(case, report.kind, "graphed", "float32", *more)
        for _ in range(2):
            side()
        states = side.fed.store.states
        report.value(f"clients away with {device} GiB on the device, {host} here", len(states.away))
        report.check(
            f"clients leave with {device} GiB, and only then", bool(states.away) == (device == "0")
        )
        memories = [side.fed.clients[k].memory for k in range(side.fed.K)]
        moments = [m["optimiser"]["exp_avg"].cpu().numpy().tobytes() for m in memories]
        return [*side.weights(), *moments]

    report.check("clients that wait on disk have the same bits", bits("0", "0") == bits("8", "8"))


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
