"""Which client holds what: training examples, test examples, and the public data that no client
holds.
"""

from pathlib import Path
from typing import Protocol

import numpy as np

from hpcfed.core.errors import ConfigError, DataError, unknown
from hpcfed.core.registry import find
from hpcfed.core.rng import stream
from hpcfed.data import PARTITIONS, schemes
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.modalities import labelled
from hpcfed.data.partition_file import Partition
from hpcfed.data.sampling import limit, mirror, public


class Settings(Protocol):
    """The fields of a job's data part that `split` reads."""

    partition: str  # one of PARTITIONS
    sizes: str  # "equal" or "free"; of dirichlet
    alpha: float
    classes_per_client: int
    shards_per_client: int
    spread: float
    halve: float
    least: int
    missing_labels: float
    train_limit: int | None
    test_share: float
    public: int
    partition_file: Path | None


def iid(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    """The clients' shares of the pool; all the schemes below take and return the same."""
    return schemes.iid(pool.y, clients, g)


def dirichlet(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    """Raises ConfigError for sizes that are neither equal nor free."""
    draws = {"equal": schemes.dirichlet, "free": schemes.dirichlet_free}
    if s.sizes not in draws:
        raise ConfigError(unknown("value of data.sizes", s.sizes, draws))
    return draws[s.sizes](pool.y, clients, s.alpha, g)


def classes(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    """So many classes a client."""
    return schemes.classes(pool.y, clients, s.classes_per_client, g)


def shards(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    """So many label-sorted pieces a client."""
    return schemes.shards(pool.y, clients, s.shards_per_client, g)


def quantity(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    """Log-normal sizes."""
    return schemes.quantity(pool.y, clients, s.spread, g)


def natural(pool: Split, s: Settings, clients: int, g: np.random.Generator) -> schemes.Parts:
    """Raises DataError for data that name no users."""
    if pool.users is None:
        raise DataError(
            "data.partition is 'natural', but these data name no users; take another partition"
        )
    return schemes.natural(pool.users, clients, g)


def split(data: DataSet, settings: Settings, clients: int, seed: int) -> Partition:
    """Draw the partition that the job describes, or read it from settings.partition_file.

    First the public examples are taken out of the training split, then train_limit of the others
    are kept, then the clients share these out; at last each client gets a test set that mirrors its
    training labels (`sampling.mirror`), or all test examples of its users (`own_tests`). Examples
    without a label are taken out after that. The same on every rank for the same seed.
    Raises DataError where a client gets no example, the data are too few or the file holds another
    number of public examples than are wanted, ConfigError for settings that the data cannot meet.
    """
    if settings.partition_file is not None:
        return _from_file(settings.partition_file, data, clients, settings.public)
    apart = public(data.train.strata, settings.public, stream(seed, "public"))
    pool = np.setdiff1d(np.arange(len(data.train.y)), apart)
    pool = pool[limit(data.train.strata[pool], settings.train_limit, stream(seed, "limit"))]
    pool = _frequent(data.train, pool, settings)
    train = tuple(np.sort(pool[part]) for part in _draw(data.train, pool, settings, clients, seed))
    labels, tests = data.train.strata, data.test.strata
    if settings.partition == "natural" and data.own_tests:
        test = tuple(_of_users(data, part) for part in train)
    else:
        test = tuple(
            mirror(labels, part, tests, settings.test_share, stream(seed, "test", k))
            for k, part in enumerate(train)
        )
    if settings.missing_labels:
        known = lambda k: stream(seed, "missing labels", k)  # noqa: E731
        train = tuple(labelled(train, settings.missing_labels, known))
    return Partition(train, test, apart)


def _of_users(data: DataSet, part: np.ndarray) -> np.ndarray:
    """The test examples of the users that these training examples are of."""
    assert data.train.users is not None and data.test.users is not None
    return np.flatnonzero(np.isin(data.test.users, np.unique(data.train.users[part])))


def _frequent(train: Split, pool: np.ndarray, settings: Settings) -> np.ndarray:
    """Those of the pool whose users have as many examples there as the job asks for."""
    if not settings.least:
        return pool
    if settings.partition != "natural" or train.users is None:
        raise ConfigError(
            f"data.least = {settings.least} is about users: it needs data.partition = 'natural', "
            f"and data that name users; leave it away"
        )
    ids, number = np.unique(train.users[pool], return_counts=True)
    kept = pool[np.isin(train.users[pool], ids[number >= settings.least])]
    if not len(kept):
        raise DataError(
            f"data.least = {settings.least}, but no user has more than {number.max()} examples; "
            f"set less"
        )
    return kept


def _draw(
    train: Split, pool: np.ndarray, settings: Settings, clients: int, seed: int
) -> schemes.Parts:
    """The clients' shares of the pool, as indices into the pool."""
    draw = find("partition", settings.partition, PARTITIONS).load()
    if not 1 <= clients <= len(pool):
        raise DataError(
            f"{clients} clients cannot share {len(pool)} examples; take 1 to {len(pool)} clients"
        )
    mine = Split(
        np.zeros(0), train.strata[pool], None if train.users is None else train.users[pool]
    )
    parts = draw(mine, settings, clients, stream(seed, "partition"))
    for k, part in enumerate(parts):
        if not len(part):
            raise DataError(
                f"client {k} of {clients} gets no training example from partition "
                f"{settings.partition!r} "
                f"with seed {seed}; take fewer clients, a larger alpha or another seed"
            )
    return schemes.halve(parts, settings.halve, stream(seed, "halve"))


def _from_file(path: Path, data: DataSet, clients: int, public: int) -> Partition:
    partition = Partition.load(path)
    partition.check(path, clients, data.name, len(data.train.y), len(data.test.y))
    if public and len(partition.public) != public:
        raise DataError(
            f"{path}: holds {len(partition.public)} public examples, but data.public is "
            f"{public}; take a file with as "
            "many, or public data from elsewhere (data.public_source)"
        )
    return partition
