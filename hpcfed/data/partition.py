"""Partition of a data set: training and test examples of each client, and public examples."""

from pathlib import Path

import numpy as np

from hpcfed.config.sections import Data
from hpcfed.core.errors import ConfigError, DataError, unknown
from hpcfed.core.paths import read_text
from hpcfed.core.registry import find
from hpcfed.core.rng import stream
from hpcfed.data import PARTITIONS, Scheme, schemes
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.modalities import labelled
from hpcfed.data.partition_file import Partition
from hpcfed.data.sampling import limit, long_tail, mirror, public
from hpcfed.data.schemes import ClientRows
from hpcfed.data.user_arrays import readable


def iid(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal the examples at random.

    pool: the examples to share out.
    Returns K index arrays into the pool. The schemes below have the same parameters and result.
    """
    return schemes.iid(pool.y, clients, g)


def dirichlet(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Draw class proportions from Dirichlet(alpha), with equal or free sizes.

    Raises ConfigError for sizes that are neither "equal" nor "free".
    """
    draws = {"equal": schemes.dirichlet, "free": schemes.dirichlet_free}
    if s.sizes not in draws:
        raise ConfigError(unknown("value of data.sizes", s.sizes, draws))
    return draws[s.sizes](pool.y, clients, s.alpha, g)


def classes(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Give each client a fixed number of classes."""
    return schemes.classes(pool.y, clients, s.classes_per_client, g)


def shards(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Give each client a fixed number of label-sorted shards."""
    return schemes.shards(pool.y, clients, s.shards_per_client, g)


def quantity(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Draw log-normal sizes."""
    return schemes.quantity(pool.y, clients, s.spread, g)


def natural(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Group the examples by the users that the data name.

    Raises DataError for data that name no users.
    """
    if pool.users is None:
        raise DataError(
            "data.partition is 'natural', but these data name no users; take another partition"
        )
    return schemes.natural(pool.users, clients, g)


def sizes(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal the numbers of examples that the job gives at random.

    Raises ConfigError if the job does not give them.
    """
    if not s.client_sizes:
        raise ConfigError("data.partition = 'sizes' needs data.client_sizes, as [100, 50, 50]")
    return schemes.sizes(pool.y, clients, s.client_sizes, g)


def linear(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal sizes in proportion to 1, 2, 3, ..."""
    return schemes.linear(pool.y, clients, g)


def square(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal sizes in proportion to 1, 4, 9, ..."""
    return schemes.square(pool.y, clients, g)


def exponential(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal sizes in proportion to e, e^2, e^3, ..."""
    return schemes.exponential(pool.y, clients, g)


def inner_dirichlet(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Fill given sizes by class, with each client's own draw from Dirichlet(alpha)."""
    n_examples = s.client_sizes or (len(pool.y) // clients,) * clients
    return schemes.inner_dirichlet(pool.y, clients, s.alpha, n_examples, g)


def pathological(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Give each client a fixed number of classes, chosen in one of three ways."""
    return schemes.pathological(pool.y, clients, s.classes_per_client, s.class_choice, g)


def distribution(pool: Split, s: Data, clients: int, g: np.random.Generator) -> ClientRows:
    """Give each client neighbouring classes, in the shares of a table.

    Raises DataError for a table that cannot be read.
    """
    table = None if s.distribution is None else read_shares(s.distribution)
    n, many = s.classes_per_client, s.preassigned
    return schemes.distribution(pool.y, clients, n, table, many, s.rescale, s.spread, g)


def read_shares(path: Path) -> np.ndarray:
    """Return the numbers of a .csv file, [C, m]; raises DataError."""
    with readable(path, "write rows of numbers, separated by commas"):
        lines = [line for line in read_text(path).splitlines() if line.strip()]
        rows = [[float(value) for value in line.split(",")] for line in lines]
        table = np.array(rows, np.float64)
    if table.ndim != 2 or not np.isfinite(table).all() or (table < 0).any():
        raise DataError(f"{path}: data.distribution: numbers are finite and not below 0")
    return table


def split(data: DataSet, settings: Data, clients: int, seed: int) -> Partition:
    """Draw the partition that the job describes, or read it from settings.partition_file.

    First the public examples are taken out of the training split. Of the others, rare classes lose
    examples (imbalance), and train_limit are kept. The clients share these. Then each client gets a
    test set that mirrors its training labels (`sampling.mirror`), or all test examples of its users
    (`own_tests`). Examples without a label are taken out after that. The result is the same on
    every rank for the same seed.
    Raises DataError if a client gets no example, the data are too few, or the file has another
    number of public examples than the job. Raises ConfigError for settings that the data cannot
    meet.
    """
    if settings.partition_file is not None:
        return _from_file(settings.partition_file, data, clients, settings.public)
    check_groups(data, settings)
    strata = data.strata
    apart = public(strata, settings.public, stream(seed, "public"))
    pool = np.setdiff1d(np.arange(len(data.train.y)), apart)
    tail = stream(seed, "imbalance")
    pool = pool[long_tail(strata[pool], settings.imbalance, tail)]
    pool = pool[limit(strata[pool], settings.train_limit, stream(seed, "limit"))]
    pool = _frequent(data.train, pool, settings)
    train = tuple(np.sort(pool[part]) for part in _draw(data, pool, settings, clients, seed))
    tests = data.task.strata(data.test.y)
    if settings.partition == "natural" and data.own_tests:
        test = tuple(_of_users(data, part) for part in train)
    else:
        test = tuple(
            mirror(strata, part, tests, settings.test_share, stream(seed, "test", k))
            for k, part in enumerate(train)
        )
    if settings.missing_labels:
        generator = lambda k: stream(seed, "missing labels", k)  # noqa: E731
        train = tuple(labelled(train, settings.missing_labels, generator))
    return Partition(train, test, apart)


def _of_users(data: DataSet, part: np.ndarray) -> np.ndarray:
    """Return the test examples of the users of these training examples."""
    assert data.train.users is not None and data.test.users is not None
    return np.flatnonzero(np.isin(data.test.users, np.unique(data.train.users[part])))


def _frequent(train: Split, pool: np.ndarray, settings: Data) -> np.ndarray:
    """Return those of the pool whose users have as many examples there as the job requires."""
    if not settings.least:
        return pool
    if settings.partition != "natural" or train.users is None:
        raise ConfigError(
            f"data.least = {settings.least} is about users: it needs data.partition = 'natural', "
            f"and data that name users; leave it away"
        )
    ids, number = np.unique(train.users[pool], return_counts=True)
    frequent = pool[np.isin(train.users[pool], ids[number >= settings.least])]
    if not len(frequent):
        raise DataError(
            f"data.least = {settings.least}, but no user has more than {number.max()} examples; "
            f"set less"
        )
    return frequent


def check_groups(data: DataSet, settings: Data) -> None:
    """Raise ConfigError for settings that go by class, if the data have no groups of labels."""
    if data.strata.any():
        return
    by_class = PARTITIONS.get(settings.partition, Scheme("", "")).by_class
    partition = f"data.partition = {settings.partition!r}"
    fields = {
        partition: by_class and settings.partition_by == "label",
        "data.imbalance": settings.imbalance != 1,
        "data.sort_clients": settings.sort_clients,
    }
    for name in (name for name, used in fields.items() if used):
        instead = "leave it away"
        if name == partition:
            users = "" if data.train.users is None else "'natural', "
            instead = f"set data.partition = {users}'iid' or 'quantity'"
        raise ConfigError(
            f"{name} goes by class, but {data.name} has {data.task.describe(len(data.classes))} "
            f"(task {data.task.name!r}); {instead}"
        )


def _draw(data: DataSet, pool: np.ndarray, settings: Data, clients: int, seed: int) -> ClientRows:
    """Return the clients' shares of the pool, as indices into the pool."""
    train, strata = data.train, data.strata
    draw = find("partition", settings.partition, PARTITIONS).load()
    if not 1 <= clients <= len(pool):
        raise DataError(
            f"{clients} clients cannot share {len(pool)} examples; take 1 to {len(pool)} clients"
        )
    users = None if train.users is None else train.users[pool]
    labels = strata[pool]
    if settings.partition_by == "client":
        if users is None:
            raise DataError(
                "data.partition_by is 'client', but these data name no users; set columns.client "
                "to a column, or data.partition_by = 'label'"
            )
        labels = np.unique(users, return_inverse=True)[1]
    mine = Split(np.zeros(0), labels, users)
    parts = draw(mine, settings, clients, stream(seed, "partition"))
    for k, part in enumerate(parts):
        if not len(part):
            raise DataError(
                f"client {k} of {clients} gets no training example from partition "
                f"{settings.partition!r} "
                f"with seed {seed}; take fewer clients, a larger alpha or another seed"
            )
    parts = schemes.halve(parts, settings.halve, stream(seed, "halve"))
    return schemes.sort_by_labels(parts, strata[pool]) if settings.sort_clients else parts


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
