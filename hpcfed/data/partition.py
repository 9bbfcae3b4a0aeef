"""Partition of a data set: training and test examples of each client, and public examples."""

from pathlib import Path

import numpy as np

from hpcfed.config.sections import Data
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.paths import regular
from hpcfed.core.registry import find
from hpcfed.core.rng import stream
from hpcfed.core.wording import join_few
from hpcfed.data import PARTITIONS, Scheme, schemes
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.modalities import labelled
from hpcfed.data.partition_file import Partition
from hpcfed.data.sampling import limit, long_tail, mirror, public
from hpcfed.data.schemes import ClientRows
from hpcfed.data.user_arrays import readable

FEW = 8  # users that a message names


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, sizes: str, g: np.random.Generator
) -> ClientRows:
    """Draw class proportions from Dirichlet(alpha), with equal or free sizes."""
    draw = schemes.dirichlet if sizes == "equal" else schemes.dirichlet_free
    return draw(labels, clients, alpha, g)


def read_shares(path: Path) -> np.ndarray:
    """Return the numbers of a .csv file, [C, m]; raises DataError."""
    with readable(path, "write rows of numbers, separated by commas"):
        table = np.loadtxt(regular(path), delimiter=",", ndmin=2)
    if not table.size or not np.isfinite(table).all() or (table < 0).any():
        raise DataError(f"{path}: data.distribution: numbers are finite and not below 0")
    return table


def split(data: DataSet, settings: Data, clients: int, seed: int, unseen: str = "") -> Partition:
    """Draw the partition that the job describes, or read it from settings.partition_file.

    First the public examples are taken out of the training split. Of the others, rare classes lose
    examples (imbalance), and train_limit are kept. The clients share these. Then each client gets a
    test set that mirrors its training labels (`sampling.mirror`), or all test examples of its users
    (`own_tests`). Examples without a label are taken out after that. The result is the same on
    every rank for the same seed.
    unseen: a natural client whose examples nobody gets, neither clients nor the public; "": none.
    Raises DataError if a client gets no example, the data are too few, or the file has another
    number of public examples than the job. Raises ConfigError for settings that the data cannot
    meet.
    """
    if settings.partition_file is not None:
        return _from_file(settings.partition_file, data, clients, settings.public)
    check_groups(data, settings)
    copies = settings.shift.copies
    strata = data.strata[: len(data.train.y) // copies]
    pool, test_rows = np.arange(len(strata)), np.arange(len(data.test.y))
    if unseen:
        number = data.domain(unseen, "evaluate.unseen")
        assert data.train.users is not None  # or the data have no domain of this name
        pool, test_rows = (
            pool[data.train.users[pool] != number],
            test_rows[data.test.users != number],
        )
    apart = pool[public(strata[pool], settings.public, stream(seed, "public"))]
    pool = np.setdiff1d(pool, apart)
    tail = stream(seed, "imbalance")
    pool = pool[long_tail(strata[pool], settings.imbalance, tail)]
    pool = pool[limit(strata[pool], settings.train_limit, stream(seed, "limit"))]
    pool = _frequent(data.train, pool, settings)
    train = tuple(_share_out(data, pool, settings, clients, seed))
    strata, tests = data.strata, data.task.strata(data.test.y)
    if settings.partition == "natural" and data.own_tests:
        test = tuple(_of_users(data, part) for part in train)
    else:
        candidates, share = tests[test_rows], settings.test_share
        test = tuple(
            test_rows[mirror(strata, part, candidates, share, stream(seed, "test", k))]
            for k, part in enumerate(train)
        )
    train = _limit_each(train, strata, settings.client_limit, seed, "client limit")
    test = _limit_each(test, tests, settings.test_limit, seed, "test limit")
    if settings.missing_labels:
        generator = lambda k: stream(seed, "missing labels", k)  # noqa: E731
        train = tuple(labelled(train, settings.missing_labels, generator))
    return Partition(train, test, apart)


def _limit_each(
    parts: tuple[np.ndarray, ...], labels: np.ndarray, n: int | None, seed: int, name: str
) -> tuple[np.ndarray, ...]:
    """Return at most n rows of each client, every class in proportion; all of them without n.

    labels: of the split.  name: of the clients' random streams.
    """
    if n is None:
        return parts
    return tuple(
        part[limit(labels[part], n, stream(seed, name, k))] for k, part in enumerate(parts)
    )


def unseen_tests(data: DataSet, settings: Data, unseen: str, seed: int) -> np.ndarray:
    """Return the rows of the test examples of an unseen domain, as many as data.test_limit says.

    unseen: a natural client; "": the images of all, which then differ otherwise.
    """
    rows = np.arange(len(data.test.y))
    if unseen:
        rows = rows[data.test.users == data.domain(unseen, "evaluate.unseen")]
    strata = data.task.strata(data.test.y)[rows]
    return rows[limit(strata, settings.test_limit, stream(seed, "test limit", "unseen"))]


def _of_users(data: DataSet, part: np.ndarray) -> np.ndarray:
    """Return the test examples of the users of these training examples."""
    assert data.train.users is not None and data.test.users is not None
    return np.flatnonzero(np.isin(data.test.users, np.unique(data.train.users[part])))


def users_without_training(data: DataSet) -> list[str]:
    """Return the names of the users who have test examples of their own, but none for training."""
    if not data.own_tests or data.train.users is None or data.test.users is None:
        return []
    users = np.setdiff1d(data.test.users, data.train.users).tolist()
    return [data.user_names[user] if data.user_names else str(user) for user in users]


def _frequent(train: Split, pool: np.ndarray, settings: Data) -> np.ndarray:
    """Return those of the pool whose users have as many examples there as the job requires."""
    if not settings.least:
        return pool
    if settings.partition != "natural" or train.users is None:
        raise ConfigError(
            f"data.least = {settings.least} is about users: it needs data.partition = 'natural', "
            f"and data that name users; remove it"
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
        instead = "remove it"
        if name == partition:
            users = "" if data.train.users is None else "'natural', "
            instead = f"set data.partition = {users}'iid' or 'quantity'"
        raise ConfigError(
            f"{name} goes by class, but {data.name} has {data.task.describe(len(data.classes))} "
            f"(task {data.task.name!r}); {instead}"
        )


def _share_out(
    data: DataSet, pool: np.ndarray, settings: Data, clients: int, seed: int
) -> ClientRows:
    """Return the rows of each client, sorted.

    If groups of clients reuse the images, the clients of each group share all of the pool: those of
    group g have rows of the g-th copy of the training split.
    """
    copies = settings.shift.copies
    if 1 <= clients < copies:
        raise ConfigError(
            f"data.shift.reuse: each of the {copies} groups needs a client, but the job has "
            f"{clients}; set clients = {copies} or more"
        )
    images = len(data.train.y) // copies
    train = [pool[:0]] * clients
    for group in range(copies):
        members, key = range(group, clients, copies), [group] if group else []
        for k, part in zip(
            members, _draw(data, pool, settings, len(members), seed, *key), strict=True
        ):
            train[k] = np.sort(pool[part]) + group * images
    return train


def _draw(
    data: DataSet, pool: np.ndarray, settings: Data, clients: int, seed: int, *key: int
) -> ClientRows:
    """Return the clients' shares of the pool, as indices into the pool.

    key: ends the names of the random streams.
    """
    train, strata = data.train, data.strata
    scheme = find("partition", settings.partition, PARTITIONS)
    if not 1 <= clients <= len(pool):
        raise DataError(
            f"{clients} clients cannot share {len(pool)} examples; take 1 to {len(pool)} clients"
        )
    labels = strata[pool]
    if scheme.by_user or settings.partition_by == "client":
        if train.users is None:
            why = "partition is 'natural'" if scheme.by_user else "partition_by is 'client'"
            raise DataError(
                f"data.{why}, but these data name no users; set columns.client to a column, or "
                f"take another partition, by label"
            )
        ids, labels = np.unique(train.users[pool], return_inverse=True)
        absent = users_without_training(data) if scheme.by_user else []
        if absent and len(ids) < clients // settings.clients_per_domain:
            raise DataError(
                f"the training examples come from {len(ids)} users, but the job has {clients} "
                f"clients: of {join_few(absent, FEW)} there are test examples alone; move some of "
                f"them to the training part, or take at most "
                f"{len(ids) * settings.clients_per_domain} clients"
            )
    values = [getattr(settings, name) for name in scheme.fields]
    values = [read_shares(value) if isinstance(value, Path) else value for value in values]
    parts = scheme.load()(labels, clients, *values, stream(seed, "partition", *key))
    for k, part in enumerate(parts):
        if not len(part):
            raise DataError(
                f"client {k} of {clients} gets no training example from partition "
                f"{settings.partition!r} "
                f"with seed {seed}; take fewer clients, a larger alpha or another seed"
            )
    parts = schemes.halve(parts, settings.halve, stream(seed, "halve", *key))
    return schemes.sort_by_labels(parts, strata[pool]) if settings.sort_clients else parts


def _from_file(path: Path, data: DataSet, clients: int, public: int) -> Partition:
    partition = Partition.load(path, drawn=True)
    partition.check(path, clients, data.name, len(data.train.y), len(data.test.y))
    if public and len(partition.public) != public:
        raise DataError(
            f"{path}: holds {len(partition.public)} public examples, but data.public is "
            f"{public}; take a file with as "
            "many, or public data from elsewhere (data.public_source)"
        )
    return partition
