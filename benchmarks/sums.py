"""The exact weighted mean of models over ranks, beside one flat float32 Allreduce of the same
library.

    python benchmarks/sums.py

Starts mpirun itself. Rows with one upload a rank are held against the goals; those with 20 uploads
in all also against adding up each rank's uploads in float32, weighted, before the Allreduce:
whoever averages must do that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from launch import on_ranks
from paired import Row, interleaved, ratio, save

from hpcfed.comm import connect
from hpcfed.core import rng
from hpcfed.core.averaging import mean_of
from hpcfed.core.params import Mean, Params
from hpcfed.machine.allocator import keep_memory
from hpcfed.models import build
from hpcfed.models.flat import Layout

RANKS = (2, 4, 8)
CLIENTS = 20
MODELS = {
    "ResNet-18, 44 MB": (7, 1, 2.0),
    "classifier, 20 KB": (15, 100, 1.3),
}  # passes, sums in each, goal
OURS, FLAT, WIDE = "exact mean", "flat float32 Allreduce", "flat int64 Allreduce"
LOCAL = "local float32 sums, Allreduce"


def main() -> None:
    rows = []
    for ranks in RANKS:
        measured = json.loads(on_ranks(ranks, __file__, "rank"))
        for key, seconds in measured.items():
            model, uploads = key.split(" x ")
            rows.append(row(ranks, model, uploads, seconds))
    save("sums", rows)


def row(ranks: int, model: str, uploads: str, seconds: dict[str, list[float]]) -> Row:
    """One line: against the flat Allreduce with one upload a rank, else against adding up locally
    as well.
    """
    below = FLAT if uploads == "1" else LOCAL
    what = f"{model}, {ranks} ranks, {uploads} uploads a rank: {OURS} / {below}"
    details = {f"{name}, ms": round(1e3 * median(times), 4) for name, times in seconds.items()}
    details |= {
        f"{OURS} / {name}": str(ratio(seconds[OURS], times))
        for name, times in seconds.items()
        if name != OURS
    }
    return Row(what, ratio(seconds[OURS], seconds[below]), most=MODELS[model][2], details=details)


def rank() -> None:
    """What each rank does; rank 0 writes the seconds of one sum of each kind."""
    torch.set_num_threads(1)
    keep_memory()  # as every hpcfed process does
    comm, measured = connect(), {}
    for model, (passes, times, _) in MODELS.items():
        for uploads in sorted({1, -(-CLIENTS // comm.size)}):
            ways = candidates(comm, shapes(model), uploads)
            repeated = {name: partial(repeat, way, times) for name, way in ways.items()}
            seconds = interleaved(repeated, passes)
            measured[f"{model} x {uploads}"] = {
                name: [s / times for s in each] for name, each in seconds.items()
            }
    if comm.rank == 0:
        print(json.dumps(measured))
    comm.close()


def repeat(way: Callable[[], object], times: int) -> None:
    for _ in range(times):
        way()


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """The tensors' shapes by name."""
    if "ResNet" not in model:
        return {"head.weight": (10, 512), "head.bias": (10,)}
    with torch.device("meta"):
        layout = Layout.of(build("resnet18", (3, 32, 32), 10, 512))
    return dict(zip(layout.names, layout.shapes, strict=True))


def candidates(
    comm, shapes: dict[str, tuple[int, ...]], uploads: int
) -> dict[str, Callable[[], object]]:
    """The ways to add up; each begins when all ranks are there."""
    from mpi4py import MPI

    world, g = MPI.COMM_WORLD, rng.torch_stream(0, "uploads", comm.rank)
    sent = [
        Params({n: torch.randn(s, generator=g) for n, s in shapes.items()}) for _ in range(uploads)
    ]
    weights = [100.0 + k for k in range(uploads)]
    flat = torch.zeros(sum(v.numel() for v in sent[0].values()))
    stretches = dict(zip(shapes, flat.split([v.numel() for v in sent[0].values()]), strict=True))
    flat_array, wide = flat.numpy(), np.ones(len(flat), np.int64)

    def ours() -> Params:
        world.Barrier()
        parts = [part for up, w in zip(sent, weights, strict=True) for part in Mean.of(up, w).terms]
        return mean_of(parts, sent[0], "mean", comm.sum)

    def allreduce(array: np.ndarray) -> None:
        world.Barrier()
        world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)

    def local() -> None:
        flat.zero_()
        for up, w in zip(sent, weights, strict=True):
            for name, stretch in stretches.items():
                stretch.add_(up[name].view(-1), alpha=w)
        allreduce(flat_array)

    return {
        OURS: ours,
        FLAT: lambda: allreduce(flat_array),
        LOCAL: local,
        WIDE: lambda: allreduce(wide),
    }


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
