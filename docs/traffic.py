"""What a method sends and keeps in one setting, measured before anything is run."""

import inspect
from functools import cache
from typing import NamedTuple

import numpy as np
from text import block, joined, table

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms.base import keeps_weights
from hpcfed.algorithms.trial import measure
from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.engine.decide import world
from hpcfed.engine.setup import federation
from hpcfed.engine.world import World
from hpcfed.federation.federation import Federation

PUBLIC = 200
SGD = ("--local.optimiser", "sgd")  # which all take but those that have no optimiser
COMMON = ("--clients", "20", "--local.augment", "none")  # which every method accepts
MODELS = {  # what a method accepts: a job's models, and what they are
    "one architecture": (("--models.mix", "cnn"), "all with the CNN of the FedAvg paper"),
    "widths": (
        ("--models.mix", "cnn", "--models.widths", "1,0.5,0.25"),
        "with the CNN of the FedAvg paper in widths 1, 1/2 and 1/4",
    ),
    "depths": (
        ("--models.mix", "resmlp-2,resmlp-4,resmlp-8"),
        "with residual networks of 2, 4 and 8 blocks",
    ),
    "a common head": (
        ("--models.mix", "cnn,fedhenn-3,fedhenn-5,mlp"),
        "with four architectures in turn",
    ),
    "any models": (
        ("--models.mix", "cnn,fedhenn-3,fedhenn-5,mlp"),
        "with four architectures in turn",
    ),
}
NEEDED = {
    "public": (("--data.public", str(PUBLIC)), f"{PUBLIC} public examples"),
    "proxy": (("--models.proxy", "fedhenn-1"), "the proxy fedhenn-1"),
    "server": (
        ("--models.server", "resnet20-server", "--models.mix", "resnet8"),
        "ResNet-8 on clients and the server's part of ResNet-20",
    ),
}

# what decides about the seconds of a trial and not about bytes
SHORT = {
    "fedzkt": (
        *("--algorithm.server_steps", "1", "--algorithm.distil_steps", "1"),
        *("--algorithm.server_batch", "2"),
    )
}


class Cost(NamedTuple):
    """What a round costs a client, in bytes, mean over the clients.

    down, up: received and sent.  trained: the weights that it trains, which FedAvg would send.
    memory: what stays with it from round to round, its own weights and other values.
    """

    down: float
    up: float
    trained: float
    memory: float


def traffic(name: str) -> str:
    """The bytes, with the setting that they are for, and the method's own count if it has one."""
    _, models = models_for(name)
    down, up, trained, _ = (f"{bytes_:,.0f}" for bytes_ in cost(name))
    text = (
        f"Bytes of a client in a round with the method's defaults, mean over 20 clients on digits "
        f"(10 classes, `models.d = 512`), {models}:"
    )
    return joined(
        text,
        table(("down", "up", "for comparison: what it trains"), [(down, up, trained)]),
        formula(ALGORITHMS[name].load()),
    )


@cache
def cost(name: str) -> Cost:
    """A method's costs with its defaults, measured on a trial."""
    fed = federation_of(name)
    method, measured, ks = fed.job.algorithm, measure(fed), range(fed.K)
    down, up = np.mean([method.traffic(fed, k) for k in ks], 0)
    trained = np.mean([fed.shapes(k=k).nbytes for k in ks])
    memory = np.mean([measured.memory(k) for k in ks]) + trained * keeps_weights(method, fed)
    return Cost(float(down), float(up), float(trained), float(memory))


def models_for(name: str) -> tuple[list[str], str]:
    """Models that a method accepts: their flags, and what they are in words."""
    method = ALGORITHMS[name].load()()
    parts = [MODELS[method.accepts], *(NEEDED[need] for need in method.needs)]
    flags = [word for words, _ in parts for word in words]
    return flags, parts[-1][1] if "server" in method.needs else "; ".join(text for _, text in parts)


def federation_of(name: str) -> Federation:
    """A method's clients, with models that it accepts."""
    method, words = ALGORITHMS[name].load()(), [*COMMON, *models_for(name)[0]]
    line = ["--algorithm.name", name, *words, *SHORT.get(name, ())]
    try:
        job = load([*line, *SGD], environ={})
    except ConfigError:  # a method that has no optimiser
        job = load([*line, "--local.lr", "0.001"], environ={})  # the default
    # the other methods do not decide about data, clients and their networks
    decides = "proxy" in method.needs or method.variants != ("",)
    return federation(job, Serial(), world_of(name if decides else "local", *words))


@cache
def world_of(name: str, *words: str) -> World:
    """The data and clients of a setting."""
    return world(load(["--algorithm.name", name, *words], environ={}), Serial())


def formula(cls: type) -> str:
    """The method's own count, where it is not measured on a trial round."""
    counts = next(base for base in cls.__mro__ if "traffic" in vars(base))
    if counts.__module__ == "hpcfed.algorithms.base":
        return ""
    return joined(
        "What cannot be measured before a run, the method counts itself:",
        block(inspect.cleandoc(inspect.getsource(counts.traffic)), "python"),
    )
