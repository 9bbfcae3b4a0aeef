"""What the timed rows train: made-up examples, hpcfed's job on them, and the same as plain
tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.comm.serial import Serial
from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.core.compat import import_torchvision
from hpcfed.core.rng import stream
from hpcfed.engine.decide import world
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation

CLASSES = 10
NEVER = "1000000"
QUIET = (
    "--evaluate.every",
    NEVER,
    "--evaluate.before",
    "false",
    "--rounds",
    NEVER,
    "--checkpoint.every",
    "0",
)


@dataclass(frozen=True)
class Case:
    """One model with the federation that trains it: all clients, in each round, for one epoch.

    module: the network as a researcher would write it.  shape: of one example.  n: examples of a
    client; of a mean one where `partition` gives them unequal sizes.
    """

    model: str
    module: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    clients: int
    n: int
    batch: int
    optimiser: str
    lr: float
    flags: tuple[str, ...] = ("--algorithm.name", "fedavg")
    partition: str = "iid"

    @property
    def words(self) -> list[str]:
        """The job as hpcfed takes it on the command line."""
        words = {
            "data.name": examples(self.shape, self.clients * self.n),
            "data.partition": self.partition,
            "clients": self.clients,
            "models.mix": self.model,
            "local.optimiser": self.optimiser,
            "local.lr": self.lr,
            "local.batch": self.batch,
            "local.augment": "none",
        }
        return [
            *(word for name, value in words.items() for word in (f"--{name}", str(value))),
            *self.flags,
        ]

    def job(self, *more: str) -> Job:
        """The job, flags over it."""
        return load([*self.words, *more], environ={})

    def rounds(self, *more: str) -> Rounds:
        """hpcfed before its first round, one rank in this process, no evaluation, no files."""
        job, comm = self.job(*QUIET, *more), Serial()
        return Rounds(federation(job, comm, world(job, comm)))

    def tensors(self, split: str = "train") -> list[tuple[Tensor, Tensor]]:
        """Each client's normalised images and labels, in memory."""
        with np.load(examples(self.shape, self.clients * self.n)) as file:
            x, y = (
                torch.from_numpy(file[f"x_{split}"]).float() / 255,
                torch.from_numpy(file[f"y_{split}"]),
            )
        x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
        return list(zip(x.chunk(self.clients), y.chunk(self.clients), strict=True))


def engine(name: str) -> tuple[str, ...]:
    """The flags that choose a training engine; none where this hpcfed has but one."""
    return ("--training.engine", name) if "training" in Job.model_fields else ()


@cache
def folder() -> TemporaryDirectory:
    """Where examples and results lie while a benchmark runs."""
    return TemporaryDirectory(prefix="hpcfed-benchmark-")


@cache
def examples(shape: tuple[int, ...], n: int) -> Path:
    """A file of n examples and as many tests: noise, for what a step costs does not depend on the
    pixels.
    """
    path = Path(folder().name) / f"{'x'.join(map(str, shape))}-{n}.npz"
    g = stream(0, "examples", n)
    x, y = g.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n) % CLASSES
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def cnn() -> nn.Module:
    """The FedAvg paper's CNN for 28x28 grey images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def mlp() -> nn.Module:
    """hpcfed's mlp: one hidden layer, a representation of 512, and the classifier."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 512), nn.Linear(512, CLASSES)
    )


def logistic() -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))


def resnet18() -> nn.Module:
    """torchvision's ResNet-18, with a representation of 512 before the classifier as hpcfed's
    has.
    """
    return nn.Sequential(
        import_torchvision().models.resnet18(num_classes=512), nn.Linear(512, CLASSES)
    )


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
CNN = Case("cnn", cnn, GREY, clients=10, n=60, batch=10, optimiser="sgd", lr=0.1)
RESNET18 = Case("resnet18", resnet18, COLOUR, clients=2, n=320, batch=64, optimiser="adam", lr=1e-3)
LOGISTIC = Case("logistic", logistic, GREY, clients=100, n=60, batch=10, optimiser="sgd", lr=0.01)
MLP = Case("mlp", mlp, GREY, clients=50, n=60, batch=10, optimiser="sgd", lr=0.01)
