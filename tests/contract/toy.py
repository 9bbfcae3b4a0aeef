"""A small world in which every method can be run in a fraction of a second: jobs, runs, and what
came of them.

Blobs in the quarters of 8x8 images, 4 classes, 6 clients of very different sizes: client 0 has a
single example, client 1 a single class, client 5 no test examples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor, nn

from hpcfed.algorithms import load as algorithm
from hpcfed.comm import Comm, Serial
from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.payload import LEAVES, map_tensors
from hpcfed.data.partition_file import Partition
from hpcfed.engine.decide import world
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.round_record import Row
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation
from hpcfed.models.layers import BatchNorm2d
from hpcfed.storage.columns import is_of_machine
from hpcfed.training import graphs
from tests import saving

CLASSES, D, SHAPE = 4, 16, (1, 8, 8)
SIZES = (1, 9, 8, 17, 21, 32)  # training examples of each client; 17 leaves a last batch of one
TESTS = (1, 4, 6, 5, 7, 0)
MIX = "small,mlp,fedhenn-3,small,fedhenn-2,fedhenn-1"
MIXES = {
    "one architecture": "small",
    "widths": "small",
    "depths": "resmlp-2,resmlp-4",
}  # by what a method accepts; others: MIX
WITHOUT_NORM = {"one architecture": "mlp", "widths": "cnn", "depths": "resmlp-2,resmlp-4"}
MIX_WITHOUT_NORM = "mlp,fedhenn-1"
DIFFERENT = {"widths": ("--models.widths", "1,0.5,0.25")}  # in which clients may differ beside it
# what a method needs beside its defaults, the last for a fraction of a second; nothing of it if
# flags give the first option another value
SETTINGS = {
    "dsgd": ("--algorithm.topology", "complete"),
    "dsgt": ("--algorithm.topology", "complete"),
    "fedala": ("--algorithm.first_epochs", "4"),
    "fedbe": ("--algorithm.server_epochs", "6", "--algorithm.samples", "3"),
    "dsfl": ("--algorithm.distil_epochs", "2"),
    "feddf": ("--algorithm.steps", "4"),
    "fccl": ("--algorithm.pretrain_epochs", "1"),
    "fedbuff": ("--algorithm.K", "2"),
    "fedcompass": ("--algorithm.min_steps", "1", "--local.steps", "10"),
    "fedgen": (
        *("--algorithm.server_steps", "2", "--algorithm.server_batch", "8"),
        *("--algorithm.hidden", "8"),
    ),
    "fedfomo": ("--algorithm.models", "1"),  # of several some are worse, and without effect
    "fedpac": ("--algorithm.head_lr", "0.005"),
    "fedkemf": ("--algorithm.server_epochs", "4"),
    "fedl2g": ("--algorithm.warmup", "0"),
    "fedlaw": ("--algorithm.server_epochs", "4", "--algorithm.halve_epochs", "2"),
    "fedma": ("--algorithm.sweeps", "2"),
    "fedmd": ("--algorithm.transfer_epochs", "2"),
    "fedrep": ("--algorithm.head_epochs", "2"),
    "fedtgp": ("--algorithm.server_epochs", "10"),
    "fedktl": ("--algorithm.latent", "8", "--algorithm.server_epochs", "8"),
    "fesemma": ("--algorithm.matchings", "3"),
    "ghn": ("--algorithm.hidden", "16"),
    "waffle": ("--algorithm.factors", "12"),
    "fedclip": ("--local.weight_decay", "0"),
    "fedrare": ("--algorithm.inter_after", "1"),
    "mocha": ("--local.lr", "0.001"),  # the default: it has no learning rate
    "reptile": ("--algorithm.first_rounds", "2"),
    "semicyclic": ("--algorithm.blocks", "2"),
    "pfedhr": (
        *("--algorithm.server_epochs", "1", "--algorithm.server_batch", "16"),
        *("--algorithm.candidates", "3"),
    ),
    "pfedknow": (
        *("--algorithm.large_epochs", "2", "--algorithm.small_epochs", "2"),
        *("--algorithm.server_epochs", "1", "--algorithm.server_batch", "16"),
        *("--algorithm.finetune_epochs", "1"),
    ),
    "fedsynth": ("--algorithm.passes", "2", "--algorithm.steps", "2"),
    "zeroshot": ("--algorithm.samples", "2", "--algorithm.steps", "3"),
    "fedzkt": (
        *("--algorithm.server_steps", "2", "--algorithm.distil_steps", "2"),
        *("--algorithm.server_batch", "8"),
    ),
}
CATEGORIES = (  # methods that together send all that methods send, in all the ways that they do
    *("fedavg", "scaffold", "fedper", "fedproto", "fedmd", "fedhenn", "heterofl", "ifca", "fedgen"),
    *("fedasync", "dsgd", "ktpfl"),
)
FOR_MOST = ("--local.keep_optimiser", "--local.epochs")  # flags that some methods refuse
ALONE = threading.RLock()
KEPT: list[TemporaryDirectory] = []  # for as long as the tests run


def small(shape: tuple[int, ...], d: int) -> nn.Module:
    """A body with dropout, and with batch normalisation of single values: [n, c, 8, 8] -> [n,
    d].
    """
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, padding=1),
        BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Conv2d(8, 16, 4),
        BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, d),
    )


@dataclass(frozen=True)
class Outcome:
    """All that a run computed: state, each client's weights and memory, last scores, one row a
    round.
    """

    state: Any
    weights: dict[int, Tensor | None]
    memory: dict[int, Any]
    scores: np.ndarray
    rows: list[Row]

    def column(self, name: str) -> np.ndarray:
        """A column of the clients' table, [rounds, K]."""
        return np.stack([row[f"clients/{name}"] for row in self.rows])


def job(method: str, *flags: str) -> Job:
    """The toy job of a method, without those flags for all methods that this one refuses."""
    try:
        return given(method, *flags)
    except ConfigError as refusal:
        gone = [f for f in FOR_MOST if f in flags and f.removeprefix("--") in str(refusal)]
        if not gone:
            raise
    i = flags.index(gone[0])
    return job(method, *flags[:i], *flags[i + 2 :])


def given(method: str, *flags: str) -> Job:
    """The toy job of a method with all of these flags, and what it demands beside them."""
    words = ["--algorithm.name", method, *data(method), *needs(method, flags), *flags]
    if "--models.mix" not in flags:
        words += ["--models.mix", MIXES.get(algorithm(method)().accepts, MIX)]
    if "--clients" not in flags:
        words += ["--data.partition_file", str(folder() / "partition.h5")]
    return load([str(Path(__file__).with_suffix(".toml")), *words], environ={})


def data(method: str) -> list[str]:
    """The data set on which a method is run, by what it declares to need.

    Here images of one kind. Data of another kind (several modalities: x is a dict of tensors) get
    a file in `folder()`, and here the line that gives it to the methods that need it.
    """
    return ["--data.name", str(folder() / "data.npz")]


def needs(method: str, flags: tuple[str, ...]) -> list[str]:
    """What a method cannot do without, where the flags do not speak of it."""
    public = ("--data.public", "32", "--data.public_source", str(folder() / "public.npz"))
    flags_by_need = {  # what a method declares to need: the flags that give it
        "public": public,
        "proxy": ("--models.proxy", "mlp"),
        "server": ("--models.server", "mlp"),
    }
    settings = SETTINGS.get(method, ("",))
    words = [] if settings[0] in ("", *flags) else list(settings)
    for need in algorithm(method)().needs:
        assert need in flags_by_need, (
            f"{method} needs {need!r}: say in tests/contract/toy.py what gives it"
        )
        words += [] if flags_by_need[need][0] in flags else flags_by_need[need]
    return words


def start(comm: Comm, job: Job) -> Rounds:
    """A run before its first round; collective."""
    return Rounds(federation(job, comm, world(job, comm)))


def run(
    comm: Comm,
    job: Job,
    rounds: int | None = None,
    resume: Path | None = None,
    save: Path | None = None,
    between: Callable[[Rounds], None] = lambda rounds: None,
) -> Outcome:
    """Run a job to its end, or until so many rounds are done; collective, every rank gets the same
    outcome.

    resume, save: run folders to begin from and to write a checkpoint to.  between: called after
    each round.
    """
    going, rows = start(comm, job), []
    if resume:
        restore(going, resume)
    while going.t < (rounds or job.rounds):
        rows.append(going.step()[0])
        between(going)
    if save:
        saving.save(going, save)
    return outcome(going, rows)


def outcome(going: Rounds, rows: list[Row]) -> Outcome:
    """A copy of what a run has computed so far; collective."""
    fed = going.fed
    mine = {
        k: {"weights": fed.store.flat(k), "memory": client.memory}
        for k, client in fed.clients.items()
    }
    every = fed.comm.gather(mine) if fed.comm.size > 1 else copies(mine)
    weights, memory = (
        {k: parcel[part] for k, parcel in every.items()} for part in ("weights", "memory")
    )
    computed = [{name: c for name, c in row.items() if not is_of_machine(name)} for row in rows]
    scores = going.evaluation.scores[:, :2].copy()  # a model seldom predicts one class
    return Outcome(copies(snapshot.to_tree(going.state)), weights, memory, scores, computed)


def copies(value: Any) -> Any:
    """The value with copies of its tensors and arrays."""
    return map_tensors(value, lambda v: v.clone() if isinstance(v, Tensor) else v.copy(), LEAVES)


def capture_on_cpu(recordings: list) -> Callable:
    """Stands for the capture of a CUDA graph: makes the step for real some times, as the warm-up
    does, and adds it to `made`.

    The loss lies where it lies, as in a graph: the next replay overwrites it.
    """

    def again(step: Callable, device: Any) -> Callable:
        for _ in range(graphs.WARM):
            loss = step().clone()
        recordings.append(step)
        return lambda: loss.copy_(step())

    return again


def different(method: str) -> tuple[str, ...]:
    """Flags with which clients differ as far as the method, as it declares itself, accepts."""
    return DIFFERENT.get(algorithm(method)().accepts, ())


def ranks(method: str) -> int:
    """Ranks for the examination of a mechanism: several for methods that together send in all ways;
    the others' ranks are the contract's.
    """
    return 2 if method in CATEGORIES else 1


def without_norm(method: str) -> tuple[str, str]:
    """Flags for models without batch normalisation, as the method accepts them."""
    return "--models.mix", WITHOUT_NORM.get(algorithm(method)().accepts, MIX_WITHOUT_NORM)


def differences(a: Any, b: Any) -> list[str]:
    """Where two values, outcomes for example, differ in a single bit, by name; empty for equal
    ones.
    """
    ours, theirs = dict(leaves(a)), dict(leaves(b))
    return [
        name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)
    ]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, tuple[str, tuple[int, ...], bytes]]]:
    """Dotted names of all that a value holds, and the type, shape and bytes of each."""
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    elif isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict | Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}")
    else:
        value = value.cpu() if isinstance(value, Tensor) else value
        array = np.asarray(value) if value is not None else np.zeros(0)
        yield name, (array.dtype.str, array.shape, array.tobytes())


def folder() -> Path:
    """Where the data and the partition lie."""
    with ALONE:  # ranks may be threads, and ask at once
        return made_folder()


@cache
def made_folder() -> Path:
    """Where they lie; makes them at the first call."""
    KEPT.append(TemporaryDirectory(prefix="hpcfed-tests-"))
    path = Path(KEPT[-1].name)
    train, test, public = (blobs(n, rng.stream(0, "toy", n)) for n in (96, 32, 48))
    np.savez(
        path / "public.npz",
        x_train=public[0],
        y_train=public[1],
        x_test=public[0],
        y_test=public[1],
    )
    np.savez(path / "data.npz", x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])
    partition(train[1]).save(path / "partition.h5")
    return path


def blobs(n: int, g: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """n noisy images whose brighter quarter is their class: [n, 1, 8, 8], uint8, and [n]."""
    y = np.arange(n) % CLASSES
    x = g.integers(0, 90, (n, *SHAPE))
    for image, c in zip(x[:, 0], y, strict=True):
        image[4 * (c // 2) :, 4 * (c % 2) :][:4, :4] += 110
    return x.astype(np.uint8), y


def partition(y: np.ndarray) -> Partition:
    """Client 1 gets examples of class 2 alone, the others what comes."""
    single = np.flatnonzero(y == 2)[: SIZES[1]]
    others = rng.stream(0, "toy", "partition").permutation(np.setdiff1d(np.arange(len(y)), single))
    order = np.concatenate([others[: SIZES[0]], single, others[SIZES[0] :]])
    train = np.split(order, np.cumsum(SIZES))[: len(SIZES)]
    test = [
        rng.stream(0, "toy", "tests", k).choice(32, n, replace=False) for k, n in enumerate(TESTS)
    ]
    return Partition(tuple(map(np.sort, train)), tuple(map(np.sort, test)), np.zeros(0, np.int64))


def check_traffic(job: Job) -> None:
    """The first cohort receives and sends what the method announces, others nothing."""
    rounds = start(Serial(), job)
    down, up = np.array([rounds.algorithm.traffic(rounds.fed, k) for k in range(6)]).T
    result = outcome(rounds, [rounds.step()[0]])
    member = result.column("cohort")[0].astype(int)
    assert result.column("down")[0].tolist() == (member * down).tolist()
    assert result.column("up")[0].tolist() == (member * up).tolist()
