"""The one task of all peers, and the one way of counting: needs only numpy and torch, for it runs
in every environment.

FedAvg (McMahan et al., AISTATS 2017, arXiv:1602.05629) on its CNN: 100 clients with 60 grey images
of 28x28 each, 10 clients in a round, one local epoch in batches of 10, SGD with rate 0.1. Nobody is
evaluated.

PEERS_TASK = "cifar10" is another one, for a GPU: the sizes of pfl-research's benchmark on CIFAR-10
(Granqvist et al., NeurIPS 2024, arXiv:2404.06430): 1,000 clients with 50 images of 3x32x32, 50 in a
round, batches of 10, SGD 0.1, here with the same CNN and made-up images. "toy" is that with a few.
PEERS_DEVICE is "cpu" or "cuda".
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Task(NamedTuple):
    """What all train. shape: of an image; made: the images are noise."""

    clients: int
    examples: int
    cohort: int
    batch: int
    lr: float
    shape: tuple[int, int, int] = (1, 28, 28)
    made: bool = False


TASKS = {
    "fedavg": Task(100, 60, 10, 10, 0.1),
    "cifar10": Task(1000, 50, 50, 10, 0.1, (3, 32, 32), made=True),
    "toy": Task(8, 4, 2, 2, 0.1, (3, 32, 32), made=True),
}
TASK = TASKS[os.environ.get("PEERS_TASK", "fedavg")]
CLIENTS, EXAMPLES, COHORT, BATCH, LR, SHAPE, MADE = TASK
DEVICE = os.environ.get("PEERS_DEVICE", "cpu")
IMAGES = COHORT * EXAMPLES  # trained in a round


def arguments() -> argparse.Namespace:
    """What every script takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the .npz file that run.py writes")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are timed")
    parser.add_argument("--warm", type=int, default=2, help="rounds before them")
    parser.add_argument("--engine", default="", help="ours only: training.engine of the job")
    parser.add_argument("--precision", default="float32", help="pfl-research and ours only")
    parser.add_argument("--folder", default="", help="a folder for what the peer has to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    return options


@cache
def clients(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [clients, examples, *shape], normalised floats, and labels [clients, examples] of all
    clients.
    """
    with np.load(file(path)) as archive:
        x, y = normalised(archive["x_train"]), torch.from_numpy(archive["y_train"])
    return x.reshape(CLIENTS, EXAMPLES, *SHAPE), y.reshape(CLIENTS, EXAMPLES)


def file(path: str) -> str:
    """The file of images; where they are made up, `path` names none, and it is written here."""
    if not MADE:
        return path
    path, n = os.path.join(tempfile.mkdtemp(), "made.npz"), CLIENTS * EXAMPLES
    arrays = {}
    for split, many in (("train", n), ("test", max(10, n // 50))):
        numbers = np.arange(many * SHAPE[0] * SHAPE[1] * SHAPE[2], dtype=np.uint64)
        noise = (numbers * np.uint64(2654435761)) >> np.uint64(24)  # Knuth's multiplicative hash
        arrays[f"x_{split}"] = noise.astype(np.uint8).reshape(many, *SHAPE)
        arrays[f"y_{split}"] = np.arange(many, dtype=np.int64) % 10
    np.savez(path, **arrays)
    return path


def normalised(images: np.ndarray) -> torch.Tensor:
    """[n, *shape] bytes, of grey images without their channel, to [n, *shape] floats, by
    Fashion-MNIST's mean and deviation.
    """
    return (torch.from_numpy(images).float().reshape(-1, *SHAPE) / 255 - 0.2860) / 0.3530


def cohort(t: int) -> list[int]:
    """The clients of round t, where the peer lets us choose: all have their turn."""
    return [(t + i * CLIENTS // COHORT) % CLIENTS for i in range(COHORT)]


def batches() -> tuple[torch.Tensor, ...]:
    """Rows of a client's batches in one epoch, in a new order, where the loop is ours to write."""
    return torch.randperm(EXAMPLES, generator=torch.default_generator).split(BATCH)


def cnn() -> nn.Sequential:
    """The CNN of the FedAvg paper: 1,663,370 parameters for grey images of 28x28."""
    return nn.Sequential(
        nn.Conv2d(SHAPE[0], 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (SHAPE[1] // 4) * (SHAPE[2] // 4), 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


class Watch:
    """Counts rounds: `tick` after each one, `report` at the end."""

    def __init__(self, options: argparse.Namespace):
        self.warm, self.end = options.warm, options.warm + options.rounds
        self.stamps, self.cpu = [], []  # seconds of the clock, and of this process's CPU

    def tick(self) -> None:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        self.stamps.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def report(self, accuracy: float) -> None:
        """One line of JSON: images per second from the end of the last warm round to the end of the
        last timed one, and this process's CPU seconds in each timed round.
        """
        timed, cpu = self.stamps[self.warm - 1 : self.end], self.cpu[self.warm - 1 : self.end]
        rate = (len(timed) - 1) * IMAGES / (timed[-1] - timed[0])
        result = {
            "images_per_second": rate,
            "rounds": len(timed) - 1,
            "accuracy": accuracy,
            "cpu_seconds": [after - before for before, after in pairwise(cpu)],
        }
        print("\n" + json.dumps(result), flush=True)


@torch.no_grad()
def accuracy(path: str, model: nn.Module) -> float:
    """Of the global model on the test images at the end: tells that a peer did train."""
    with np.load(file(path)) as archive:
        x, y = normalised(archive["x_test"]), torch.from_numpy(archive["y_test"])
    x, y = (v.to(next(model.parameters()).device) for v in (x, y))
    return (model.eval()(x).argmax(1) == y).float().mean().item()


def step(
    model: nn.Module, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    """One local step, where the loop is ours to write."""
    optimiser.zero_grad()
    cross_entropy(model(x), y).backward()
    optimiser.step()


def mend_torchvision() -> None:
    """Let `import torchvision` work where its compiled part does not fit a torch for CPUs (see
    hpcfed/core/compat.py).
    """
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _kept.append(library)


_kept: list[torch.library.Library] = []  # an operator lives only as long as its library
mend_torchvision()
