"""run.precision = "bf16" against float32 and against plain loops: how many times as fast.

`python benchmarks/precision.py [--passes 7] [--only cnn alexnet]`

A round of training alone on one thread, all sides in turns in one process, in its CPU seconds. So
the plain loops have hpcfed's settings of the allocator too. The two-view models train with
FedClassAvg's loss; the plain loops get their views made beforehand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from cases import CNN, COLOUR, LOGISTIC, MLP, RESNET18, Case, engine, resnet18
from faster import Contrastive
from paired import Row, interleaved, ratio, save
from rawloop import RawLoop
from torch import Tensor

from hpcfed.machine.allocator import keep_memory
from hpcfed.machine.processor import find_bfloat16

TWO_VIEWS = ("--algorithm.name", "fedclassavg", "--algorithm.rho", "0", "--local.augment", "simclr")
FOUR = "resnet18,shufflenetv2,googlenet,alexnet"


class Autocast(RawLoop):
    """The plain loop whose loss is computed under torch's autocast."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(x, y)


def views(model: str, clients: int = 1) -> Case:
    """FedClassAvg's training of clients with these models, 64 examples in two views a step."""
    return Case(model, resnet18, COLOUR, clients, 64, 64, "adam", 1e-3, TWO_VIEWS)


def eager(case: Case) -> Case:
    """The case with steps by autograd, of ten clients."""
    return replace(case, clients=10, flags=(*case.flags, *engine("eager")))


def ours(case: Case, precision: str) -> Callable[[], object]:
    """A round through hpcfed, training alone."""
    return case.rounds("--run.precision", precision).step


# by name: the case, the plain loops beside it, and the least ratio that each side's should reach
CASES: dict[str, tuple[Case, dict[str, type[RawLoop]], dict[str, float]]] = {
    "cnn, batches of 10": (
        replace(CNN, clients=4),
        {"plain loop": RawLoop, "plain loop under autocast": Autocast},
        {"plain loop": 1.6, "plain loop under autocast": 1.1},
    ),
    "cnn, batches of 64": (
        replace(CNN, clients=2, n=128, batch=64),
        {"plain loop": RawLoop, "plain loop under autocast": Autocast},
        {"plain loop": 1.9},
    ),
    "resnet18, two views": (
        replace(RESNET18, n=64, clients=2, flags=TWO_VIEWS),
        {"plain loop": Contrastive},
        {"plain loop": 2.5},
    ),
    "alexnet, two views": (views("alexnet"), {}, {"float32": 1.9}),
    "googlenet, two views": (views("googlenet"), {}, {"float32": 1.6}),
    "shufflenetv2, two views": (views("shufflenetv2"), {}, {"float32": 1.0}),
    "the paper's four models, two views": (views(FOUR, 4), {}, {"float32": 1.6}),
    "mlp, batches of 10": (replace(MLP, clients=10), {}, {"float32": 1.0}),
    "mlp, eager": (eager(MLP), {}, {"float32": 1.0}),
    "logistic, eager": (eager(LOGISTIC), {}, {"float32": 1.0}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    names = [name for name in CASES if not options.only or name.split(",")[0] in options.only]
    rows = [row for name in names for row in compare(name, options.passes)]
    save("precision", rows, whole=len(names) == len(CASES), bfloat16=find_bfloat16())


def compare(name: str, passes: int) -> list[Row]:
    """The rows of one case: each other side over hpcfed with bf16."""
    case, loops, least = CASES[name]
    sides: dict[str, Callable[[], object]] = {
        "bf16": ours(case, "bf16"),
        "float32": ours(case, "float32"),
    }
    sides |= {what: loop(case).round for what, loop in loops.items()}
    seconds = interleaved(sides, passes, clock=time.process_time)
    details = {
        "batch": case.batch,
        "CPU seconds": {who: round(min(values), 4) for who, values in seconds.items()},
    }
    return [
        Row(
            f"{name}: {what} over bf16",
            ratio(seconds[what], seconds["bf16"]),
            least=least.get(what),
            details=details,
        )
        for what in sides
        if what != "bf16"
    ]


if __name__ == "__main__":
    main()
