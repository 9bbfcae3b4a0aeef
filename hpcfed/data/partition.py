"""Which client holds what: training examples, test examples, and the public data that no client holds."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from hpcfed.data import schemes
from hpcfed.data.holdings import Partition
from hpcfed.data.record import DataSet, Split
from hpcfed.data.sampling import limit, mirror, public
from hpcfed.errors import ConfigError, DataError, unknown
from hpcfed.rng import stream


class Settings(Protocol):
    """The fields of a job's data part that `split` reads."""

    partition: str  # one of PARTITIONS
    sizes: str  # "equal" or "free"; of dirichlet
    alpha: float
    classes_per_client: int
    shards_per_client: int
    spread: float
    halve: float
    train_limit: int | None
    test_share: float
    public: int
    partition_file: Path | None


class Scheme(NamedTuple):
    """draw(pool, settings, clients, g); one line; whether every example goes to some client."""

    draw: Callable[[Split, Settings, int, np.random.Generator], schemes.Parts]
    about: str
    complete: bool


def _dirichlet(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    draws = {"equal": schemes.dirichlet, "free": schemes.dirichlet_free}
    if s.sizes not in draws:
        raise ConfigError(unknown("value of data.sizes", s.sizes, draws))
    return draws[s.sizes](pool.y, clients, s.alpha, g)


def _natural(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    if pool.users is None:
        raise DataError("data.partition is 'natural', but these data name no users; take another partition")
    return schemes.natural(pool.users, clients, g)


PARTITIONS: dict[str, Scheme] = {
    "iid": Scheme(lambda p, s, k, g: schemes.iid(p.y, k, g), "at random, equal sizes", True),
    "dirichlet": Scheme(
        _dirichlet, "class proportions from Dirichlet(alpha); sizes equal (a few left over) or free", False
    ),
    "classes": Scheme(
        lambda p, s, k, g: schemes.classes(p.y, k, s.classes_per_client, g),
        "classes_per_client classes a client, equal sizes as far as possible", False,
    ),
    "shards": Scheme(
        lambda p, s, k, g: schemes.shards(p.y, k, s.shards_per_client, g),
        "sorted by label and cut; shards_per_client pieces a client", True,
    ),
    "quantity": Scheme(
        lambda p, s, k, g: schemes.quantity(p.y, k, s.spread, g), "log-normal sizes, labels at random", True
    ),
    "natural": Scheme(_natural, "by the users that the data come from", True),
}  # fmt: skip


def split(data: DataSet, settings: Settings, clients: int, seed: int) -> Partition:
    """Draw the partition that the job describes, or read it from settings.partition_file.

    First the public examples are taken out of the training split, then train_limit of the others are kept,
    then the clients share these out; at last each client gets a test set that mirrors its training labels
    (`sampling.mirror`). The same on every rank for the same seed.
    Raises DataError where a client gets no example or the data are too few, ConfigError for settings that
    the data cannot meet.
    """
    if settings.partition_file is not None:
        return _from_file(settings.partition_file, data, clients)
    apart = public(data.train.y, settings.public, stream(seed, "public"))
    pool = np.setdiff1d(np.arange(len(data.train.y)), apart)
    pool = pool[limit(data.train.y[pool], settings.train_limit, stream(seed, "limit"))]
    train = tuple(np.sort(pool[part]) for part in _draw(data.train, pool, settings, clients, seed))
    test = tuple(
        mirror(data.train.y, part, data.test.y, settings.test_share, stream(seed, "test", k))
        for k, part in enumerate(train)
    )
    return Partition(train, test, apart)


def _draw(train: Split, pool: np.ndarray, settings: Settings, clients: int, seed: int) -> schemes.Parts:
    """The clients' shares of the pool, as indices into the pool."""
    if settings.partition not in PARTITIONS:
        raise ConfigError(unknown("partition", settings.partition, PARTITIONS))
    if not 1 <= clients <= len(pool):
        raise DataError(f"{clients} clients cannot share {len(pool)} examples; take 1 to {len(pool)} clients")
    mine = Split(train.x[:0], train.y[pool], None if train.users is None else train.users[pool])
    parts = PARTITIONS[settings.partition].draw(mine, settings, clients, stream(seed, "partition"))
    for k, part in enumerate(parts):
        if not len(part):
            raise DataError(
                f"client {k} of {clients} gets no training example from partition {settings.partition!r} "
                f"with seed {seed}; take fewer clients, a larger alpha or another seed"
            )
    return schemes.halve(parts, settings.halve, stream(seed, "halve"))


def _from_file(path: Path, data: DataSet, clients: int) -> Partition:
    partition = Partition.load(path)
    if len(partition.train) != clients:
        raise DataError(f"{path}: is for {len(partition.train)} clients, the job has {clients}; take as many")
    for k, part in enumerate(partition.train):
        if not len(part):
            raise DataError(f"{path}: client {k} has no training example; give it one or leave it out")
    for name, parts, n in (
        ("train", partition.train, len(data.train.y)), ("test", partition.test, len(data.test.y)),
        ("public", (partition.public,), len(data.train.y)),
    ):  # fmt: skip
        if (high := max((int(part.max(initial=-1)) for part in parts))) >= n:
            raise DataError(f"{path}: {name} holds index {high}, but {data.name} has only {n} such examples")
    return partition
