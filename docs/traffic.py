"""What a method sends and keeps in one setting, measured before anything is run."""

import inspect
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from text import block, joined, table

from hpcfed.algorithms import ALGORITHMS, trial
from hpcfed.algorithms.base import keeps_weights
from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core import rng
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
SHORT = {"fedzkt": ("--algorithm.server_steps", "1", "--algorithm.distil_steps", "1")}


class Cost(NamedTuple):
    """What a round costs a client, in bytes, mean over the clients.

    down, up: received and sent.  trained: the weights that it trains, which FedAvg would send.
    kept: what it keeps from round to round, its own weights and other values.
    """

    down: float
    up: float
    trained: float
    kept: float


def traffic(name: str) -> str:
    """The bytes, with the setting that they are for, and the method's own count if it has one."""
    cls = ALGORITHMS[name].load()
    _, models = setting(name)
    down, up, trained, _ = (f"{bytes_:,.0f}" for bytes_ in cost(name))
    text = (
        f"Bytes of a client in a round with the method's defaults, mean over 20 clients on digits "
        f"(10 classes, `models.d = 512`), {models}:"
    )
    return joined(
        text,
        table(("down", "up", "for comparison: what it trains"), [(down, up, trained)]),
        formula(cls),
    )


@cache
def cost(name: str) -> Cost:
    """A method's costs with its defaults, measured on a trial round."""
    fed, _ = setting(name)
    method = fed.job.algorithm
    down, up = np.mean([method.traffic(fed, k) for k in range(fed.K)], 0)
    sizes = [fed.shapes(k=k).nbytes for k in range(fed.K)]
    kinds = {k: kind for kind, k in trial.first_of_kinds(fed).items()}
    ids = trial.in_order(fed, kinds)
    number = Counter(zip(fed.architectures, fed.modalities, strict=True))
    fed_of_trial = trial.trial(fed, ids)
    try:
        with rng.scoped(fed.seed, "trial"):
            trial.perform(fed_of_trial)
        memory = np.average(
            [stored_bytes(fed_of_trial.clients[i].memory) for i in range(len(ids))],
            weights=[number[kinds[k]] for k in ids],
        )
    finally:
        fed_of_trial.store.close()
    weights = np.mean(sizes) * keeps_weights(method, fed)
    return Cost(float(down), float(up), float(np.mean(sizes)), float(memory + weights))


def stored_bytes(value: Any) -> int:
    """The bytes of all arrays and tensors in nested containers."""
    if isinstance(value, Mapping):
        return sum(map(stored_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(stored_bytes, value))
    return int(getattr(value, "nbytes", 0))


def setting(name: str) -> tuple[Federation, str]:
    """A method's clients, with models that it accepts, and these models in words."""
    cls = ALGORITHMS[name].load()
    parts = [MODELS[cls().accepts], *(NEEDED[need] for need in cls().needs)]
    words = [*COMMON, *(word for flags, _ in parts for word in flags)]
    models = parts[-1][1] if "server" in cls().needs else "; ".join(text for _, text in parts)
    line = ["--algorithm.name", name, *words, *SHORT.get(name, ())]
    try:
        job = load([*line, *SGD], environ={})
    except ConfigError:  # a method that has no optimiser
        job = load([*line, "--local.lr", "0.001"], environ={})  # the default
    # the other methods do not decide about data, clients and their networks
    decides = "proxy" in cls().needs or cls().variants != ("",)
    like = name if decides else "local"
    return federation(job, Serial(), known(like, *words)), models


@cache
def known(name: str, *words: str) -> World:
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
