"""5: milliseconds of a step by layout and precision; augmentation apart. Decides both.

`FOLDER/env/bin/python benchmarks/gpu/step5_layouts.py FOLDER`

Forward and backward of 128 images of 3x32x32 by the modules as hpcfed builds them, channels-last
and not, captured and not; captured too with the weights in one vector, as clients have them;
whether the gradient has the same bits twice; and the kernels that take longest, by which a layout
that is slow can be explained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from findings import Findings, carry_out

if TYPE_CHECKING:
    import torch
    from cases import Case

LAYOUTS = ("contiguous_format", "channels_last")


def work(report: Findings, options: argparse.Namespace) -> None:
    import torch
    from gpu import PAPER, SMALL

    from hpcfed.machine import devices

    case, device = SMALL if report.pretend else PAPER, torch.device(report.kind, 0)
    times = 2 if report.pretend else 30
    for precision in ("float32", "bf16") if report.pretend else ("float32", "tf32", "bf16"):
        devices.prepare(device, 1, precision)
        for name in dict.fromkeys(case.model.split(",")):
            for layout in LAYOUTS:
                what = f"{name} {precision} {layout}"
                measured = partial(step, report, what, case, name, layout, precision, device, times)
                report.attempt(what, measured)
    devices.prepare(device, 1)
    report.attempt("augmentation", lambda: augmentation(report, case, device, times))


def step(
    report: Findings,
    what: str,
    case: Case,
    name: str,
    layout: str,
    precision: str,
    device: torch.device,
    times: int,
) -> None:
    """Milliseconds of one model in one layout and precision."""
    import torch
    import torch.nn.functional as F

    from hpcfed.core import rng
    from hpcfed.models import build
    from hpcfed.models.flat import Skeleton
    from hpcfed.models.precision import autocast

    with rng.scoped(0, "layouts", name, device=device):
        model = build(name, case.shape, 10, 512).train()
    model = model.to(device, memory_format=getattr(torch, layout))
    draws = rng.torch_stream(0, "layouts", device=device)
    x = torch.randn(8 if report.pretend else 128, *case.shape, device=device, generator=draws)
    x = x.contiguous(memory_format=getattr(torch, layout))
    y = torch.arange(len(x), device=device) % 10
    parameters = list(model.parameters())

    def once() -> list[torch.Tensor]:
        with autocast(precision, device):
            loss = F.cross_entropy(model(x), y)
        return list(torch.autograd.grad(loss, parameters, materialize_grads=True))

    state = [v.clone() for v in model.buffers()]
    with rng.scoped(0, "dropout", device=device):
        reference = once()
    for v, before in zip(model.buffers(), state, strict=True):
        v.copy_(before)
    with rng.scoped(0, "dropout", device=device):
        same = all(torch.equal(a, b) for a, b in zip(reference, once(), strict=True))
    report.check(f"{what}: the gradient has the same bits twice", same)
    eager = milliseconds(once, device, times)
    report.value(f"{what}: slowest kernels, ms a step", slowest(once, device))
    spent = {"eager ms": eager}
    spent["graphed ms"] = captured(once, device, times)
    Skeleton(model, device)
    spent["graphed ms, weights in one vector"] = captured(once, device, times)
    report.value(what, spent)


def captured(work: Callable[[], Sequence[torch.Tensor]], device: torch.device, times: int) -> float:
    """Milliseconds of the work as a CUDA graph."""
    from hpcfed.training import graphs

    replay = graphs.capture(lambda: work()[0].sum(), device)
    return milliseconds(replay, device, times)


def slowest(work: Callable[[], object], device: torch.device) -> list[tuple[str, float, int]]:
    """Return the 15 kernels, on a CPU operations, that take longest: name, ms and calls a step."""
    from torch.profiler import ProfilerActivity, profile

    gpu, repeats = device.type == "cuda", 3
    kinds = [ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]
    with profile(activities=kinds) as trace:
        for _ in range(repeats):
            work()
    name = "self_device_time_total" if gpu else "self_cpu_time_total"
    rows = sorted(trace.key_averages(), key=lambda row: -getattr(row, name))[:15]
    return [
        (row.key[:90], getattr(row, name) / 1000 / repeats, row.count // repeats) for row in rows
    ]


def augmentation(report: Findings, case: Case, device: torch.device, times: int) -> None:
    """Milliseconds of two views of a batch, and of all batches of a client at once."""
    import torch

    from hpcfed.core import rng
    from hpcfed.data.augment import simclr

    g = rng.torch_stream(0, "augmentation", device=device)
    for n in (1, case.n // case.batch):
        sizes = [case.batch] * n
        x = torch.rand(sum(sizes), *case.shape, device=device, generator=g)
        spent = milliseconds(lambda x=x, sizes=sizes: simclr(x, g, 2, sizes), device, times)
        report.value(f"two views of {n} batches of {case.batch} images, ms", spent)


def milliseconds(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Of one call, by CUDA events; on a CPU by its clock."""
    import torch

    for _ in range(2):
        work()
    if device.type == "cpu":
        start = perf_counter()
        for _ in range(times):
            work()
        return 1000 * (perf_counter() - start) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / times


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
