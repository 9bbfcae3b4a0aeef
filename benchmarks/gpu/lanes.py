"""How much of a GPU one client's graph leaves idle, and what could use it.

`FOLDER/env/bin/python benchmarks/gpu/lanes.py FOLDER`

The captured step of a client on 1 to 16 streams of one process (lanes), and clients of one
architecture stacked by `vmap`, against one client at a time. The rule, written down before it is
measured: if 8 lanes take more than 1 / 1.5 of the time of one lane per step, nothing is to be won
by packing; if 8 ranks with MPS (step 7) reach 0.8 of 8 lanes, lanes are not built.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from time import perf_counter
from typing import TYPE_CHECKING, Any

from findings import Findings, carry_out

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MODELS = ("resnet18", "shufflenetv2", "googlenet", "alexnet")
LANES = (1, 2, 4, 8, 16)
SHAPE, CLASSES, WIDTH, BATCH = (3, 32, 32), 10, 512, 64
SMALL_BATCH, MANY = 10, 50  # pfl-research's task: 50 clients in a round, batches of 10
REPEATS, WARM = 40, 3
WIN = 1.5  # 8 lanes over one from which packing pays

Replay = Callable[[], Any]
Lane = tuple[Replay, Any]  # a captured step, and its stream; on the CPU the step and None


def work(report: Findings, options: argparse.Namespace) -> None:
    import torch

    from hpcfed.machine import devices

    device = torch.device(report.kind, 0) if report.kind == "cuda" else torch.device("cpu")
    for precision in ("float32",) if report.pretend else ("float32", "tf32"):
        devices.prepare(device, 1, precision)
        measure(report, precision, device)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def measure(report: Findings, precision: str, device: torch.device) -> None:
    """Enter the milliseconds of a client's step alone, in lanes and stacked, in one precision."""
    counts = LANES[:2] if report.pretend else LANES
    batch = 4 if report.pretend else BATCH
    lanes: dict[str, list[Lane]] = {}
    for name, size in (*((name, batch) for name in MODELS), ("cnn", SMALL_BATCH)):
        captured = report.attempt(
            f"{name} {precision}: captures",
            lambda name=name, size=size: [
                capture(step(name, device, size), device) for _ in range(max(counts))
            ],
        )
        lanes[name] = captured or []
        for n in counts if captured else ():
            milliseconds(report, f"{name} {precision}: {n} lanes", captured[:n], device)
    for n in counts[:3]:
        mix = [lane for name in MODELS for lane in lanes[name][:n]]
        milliseconds(report, f"all models {precision}: {len(mix)} lanes", mix, device)
    lanes.clear()
    for name, size, clients in [("cnn", SMALL_BATCH, MANY), *((name, batch, 5) for name in MODELS)]:
        G = 2 if report.pretend else clients
        report.attempt(
            f"{name} {precision}: {G} stacked",
            lambda name=name, size=size, G=G: milliseconds(
                report,
                f"{name} {precision}: {G} clients stacked",
                [capture(stacked_step(name, device, size, G), device)],
                device,
                clients=G,
            ),
        )
    values = report.entries["values"]
    for name in MODELS:
        one, eight = (values.get(f"{name} {precision}: {n} lanes") for n in (1, 8))
        if one and eight:
            report.value(f"{name} {precision}: 8 lanes over one", one / eight)
            report.value(f"{name} {precision}: packing pays", one / eight >= WIN)


def milliseconds(
    report: Findings, name: str, lanes: Sequence[Lane], device: torch.device, clients: int = 1
) -> None:
    """Measure the milliseconds of one client's step while all these lanes run.

    clients: in each lane.
    """
    import torch

    from hpcfed.machine import devices

    def once() -> None:
        for replay, stream in lanes:
            if stream is None:
                replay()
            else:
                with torch.cuda.stream(stream):
                    replay()

    for _ in range(WARM):
        once()
    devices.wait(device)
    start, repeats = perf_counter(), 1 if report.pretend else REPEATS
    for _ in range(repeats):
        once()
    devices.wait(device)
    report.value(name, 1000 * (perf_counter() - start) / repeats / len(lanes) / clients)


def objective(name: str, device: torch.device) -> nn.Module:
    """Return a module (view, view, labels) -> loss: FedClassAvg's, or for the CNN FedAvg's."""
    from torch import nn

    from hpcfed.models import build
    from hpcfed.training.losses import contrastive_cross_entropy

    class Objective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = build(name, SHAPE, CLASSES, WIDTH)

        def forward(self, first: Tensor, second: Tensor, y: Tensor) -> Tensor:
            if name == "cnn":
                return nn.functional.cross_entropy(self.model(first), y)
            return contrastive_cross_entropy(self.model, [first, second], y, 0.07)

    return Objective().to(device).train()


def examples(batch: int, device: torch.device, *stack: int) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    from hpcfed.core import rng

    g = rng.torch_stream(0, "lanes", device=device)
    size = (*stack, batch, *SHAPE)
    first, second = (torch.randn(size, device=device, generator=g) for _ in range(2))
    labels = torch.arange(batch, device=device) % CLASSES
    return first, second, labels.expand(*stack, batch).contiguous()


def step(name: str, device: torch.device, batch: int) -> Replay:
    """Return a step of fused Adam on one client's objective."""
    import torch

    module, data = objective(name, device), examples(batch, device)
    adam = torch.optim.Adam(module.parameters(), capturable=device.type == "cuda", fused=True)

    def run() -> Tensor:
        adam.zero_grad(set_to_none=False)
        loss = module(*data)
        loss.backward()
        adam.step()
        return loss.detach()

    return run


def stacked_step(name: str, device: torch.device, batch: int, clients: int) -> Replay:
    """Return a step of several clients of one architecture as one."""
    import torch
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap

    first = objective(name, device)
    modules = [first, *(deepcopy(first) for _ in range(clients - 1))]
    params, buffers = stack_module_state(modules)
    data = examples(batch, device, clients)
    weights = [p.detach().requires_grad_() for p in params.values()]
    adam = torch.optim.Adam(weights, capturable=device.type == "cuda", fused=True)

    def loss(params: Any, buffers: Any, *batch: Tensor) -> Tensor:
        return functional_call(modules[0], (params, buffers), batch)

    def run() -> Tensor:
        named = {key: w.detach() for key, w in zip(params, weights, strict=True)}
        gradient, value = vmap(grad_and_value(loss), randomness="different")(named, buffers, *data)
        for weight, g in zip(weights, gradient.values(), strict=True):
            weight.grad = g
        adam.step()
        return value

    return run


def capture(run: Replay, device: torch.device) -> Lane:
    """Return a replay of the step and its stream; on the CPU the step itself."""
    import torch

    if device.type == "cpu":
        return run, None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            run()
    stream.synchronize()
    # in torch 2.11 all graphs of one generator share a seed and an offset: each has its own
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle(), stream=stream):
        run()
    return graph.replay, stream


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work))
