"""Partitions: disjoint, reproducible, of the promised size and skew; errors name the value."""

from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfed.config.conditions import conditions
from hpcfed.config.sections import Data
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.rng import stream
from hpcfed.data import PARTITIONS, sampling, schemes
from hpcfed.data.allocate import allocate
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.partition import Partition, split
from hpcfed.data.partition_file import check_seal
from hpcfed.tasks.classification import Classification
from tests.rows import for_each

pytestmark = pytest.mark.quick

G = stream(0, "test_partition")
LABELS = G.permutation(np.repeat(np.arange(10), 300))  # 3000 examples, 10 equal classes
UNEVEN = G.permutation(np.repeat(np.arange(5), [1000, 500, 200, 50, 7]))
CLASSES = {"even": LABELS, "uneven": UNEVEN}
DRAWS = {
    "iid": lambda y, k, g: schemes.iid(y, k, g),
    "dirichlet": lambda y, k, g: schemes.dirichlet(y, k, 0.5, g),
    "dirichlet_free": lambda y, k, g: schemes.dirichlet_free(y, k, 0.5, g),
    "classes": lambda y, k, g: schemes.classes(y, k, 2, g),
    "shards": lambda y, k, g: schemes.shards(y, k, 2, g),
    "quantity": lambda y, k, g: schemes.quantity(y, k, 1.0, g),
    "natural": lambda y, k, g: schemes.natural(np.arange(len(y)) % 50, k, 1, g),
    "linear": lambda y, k, g: schemes.linear(y, k, g),
    "square": lambda y, k, g: schemes.square(y, k, g),
    "exponential": lambda y, k, g: schemes.exponential(y, k, g),
    "sizes": lambda y, k, g: schemes.sizes(y, k, of_sizes(len(y), k), g),
    "inner_dirichlet": lambda y, k, g: schemes.inner_dirichlet(y, k, 0.5, of_sizes(len(y), k), g),
}
COMPLETE = ["iid", "dirichlet_free", "shards", "quantity", "natural", "linear", "square"]
COMPLETE += ["exponential", "sizes", "inner_dirichlet"]


def of_sizes(n: int, clients: int) -> list[int]:
    """Sizes that add up to n; the last client has what is left over."""
    return [n // clients] * (clients - 1) + [n - n // clients * (clients - 1)]


def settings(partition: str = "dirichlet", **fields) -> Data:
    """The settings of [data] with these fields, whose values may be out of range."""
    return Data().model_copy(update={"partition": partition} | fields)


def data(labels=LABELS, users=None, test=None) -> DataSet:
    test = np.repeat(np.arange(labels.max() + 1), 100) if test is None else test
    train = Split(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, users)
    names = tuple(map(str, range(labels.max() + 1)))
    return DataSet(
        "toy", train, Split(np.zeros((len(test), 1, 1, 1), np.uint8), test), names, (0.0,), (1.0,)
    )


def counts(parts, labels) -> np.ndarray:
    return np.stack([np.bincount(labels[p], minlength=labels.max() + 1) for p in parts])


def equal(some, others) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


@for_each(list(product(DRAWS, [1, 7, 20, 50], CLASSES)))
def test_no_example_is_held_twice_and_the_generator_alone_decides(row):
    name, clients, classes = row
    labels = CLASSES[classes]
    parts, again = (DRAWS[name](labels, clients, stream(1, "p")) for _ in range(2))
    rows = np.concatenate(parts)
    assert len(parts) == clients and rows.dtype == np.int64
    assert len(np.unique(rows)) == len(rows) and 0 <= rows.min() and rows.max() < len(labels)
    assert equal(parts, again)
    if name in COMPLETE:
        assert len(rows) == len(labels)


@pytest.mark.parametrize("name", ["iid", "dirichlet_free", "shards", "quantity", "dirichlet"])
def test_every_client_gets_something_of_even_classes(name):
    assert all(len(part) for part in DRAWS[name](LABELS, 20, stream(2, "p")))


@for_each(list(product(CLASSES, [3, 20, 100], [0.01, 0.1, 0.5, 100.0])))
def test_dirichlet_clients_are_equally_large_to_the_example(row):
    classes, clients, alpha = row
    labels = CLASSES[classes]
    parts = schemes.dirichlet(labels, clients, alpha, stream(3, "p"))
    assert {len(part) for part in parts} == {len(labels) // clients}


def test_a_smaller_alpha_is_more_skewed_and_a_large_one_nearly_iid():
    largest = [
        (counts(schemes.dirichlet(LABELS, 20, alpha, stream(4, "p")), LABELS).max(1) / 150).mean()
        for alpha in (0.1, 0.5, 5.0, 1e5)
    ]
    assert largest == sorted(largest, reverse=True) and largest[0] > 0.6 and largest[-1] < 0.12


def test_dirichlet_follows_the_drawn_mix_where_the_classes_suffice():
    mix = stream(5, "p").dirichlet(np.full(10, 0.5), 4)
    got = allocate(mix, np.full(10, 300), 100, True, stream(5, "w"))
    assert np.abs(got - 100 * mix).max() < 1


def test_clients_of_a_scarce_class_are_cut_equally_and_get_other_classes_instead():
    got = allocate(np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]), np.array([10, 20]), 10, True, G)
    assert got.tolist() == [[4, 6], [4, 6], [2, 8]]  # asked 10 + 10 + 5 of 10: each is cut to 0.4


def test_free_dirichlet_sizes_differ_but_no_client_is_below_ten():
    sizes = [len(part) for part in schemes.dirichlet_free(LABELS, 20, 0.5, stream(6, "p"))]
    assert min(sizes) >= 10 and max(sizes) > 2 * min(sizes) and sum(sizes) == 3000


def test_free_dirichlet_takes_its_best_draw_when_none_is_good_enough():
    parts = schemes.dirichlet_free(LABELS, 100, 0.001, stream(7, "p"), draws=3)
    assert len(np.concatenate(parts)) == 3000


@pytest.mark.parametrize("clients, per_client", [(20, 2), (5, 2), (20, 3), (7, 10), (50, 1)])
def test_each_client_holds_its_classes_and_all_classes_occur(clients, per_client):
    table = counts(schemes.classes(LABELS, clients, per_client, stream(8, "p")), LABELS)
    assert ((table > 0).sum(1) == per_client).all() and (table.sum(0) > 0).all()
    assert table.sum(1).max() == 3000 // clients


def test_two_classes_for_twenty_clients_are_equal_sizes_that_use_all_examples():
    parts = schemes.classes(LABELS, 20, 2, stream(9, "p"))
    assert {len(part) for part in parts} == {150}
    assert len({tuple(np.unique(LABELS[part])) for part in parts}) > 8  # not always the same pairs


def test_shards_hold_few_labels():
    table = counts(schemes.shards(LABELS, 20, 2, stream(10, "p")), LABELS)
    assert (
        (table.sum(1) == 150).all()
        and ((table > 0).sum(1) <= 4).all()
        and (table > 0).sum(1).mean() < 3
    )


def test_quantity_differs_in_size_alone():
    parts = schemes.quantity(LABELS, 20, 1.0, stream(11, "p"))
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() >= 1 and sizes.max() > 5 * sizes.min()
    big = counts(parts, LABELS)[sizes.argmax()] / sizes.max()
    assert np.abs(big - 0.1).max() < 0.05
    assert {len(part) for part in schemes.quantity(LABELS, 20, 0.0, stream(11, "p"))} == {150}


def sizes(parts) -> list[int]:
    return [len(part) for part in parts]


def test_sizes_by_the_number_of_the_client_by_hand():
    y = np.zeros(21, int)
    assert sizes(schemes.linear(y, 3, G)) == [
        3,
        7,
        11,
    ]  # 3.5, 7, 10.5 of 21: the rest is the last's
    assert sizes(schemes.square(y, 3, G)) == [1, 6, 14]  # 1.5, 6, 13.5
    assert sizes(schemes.exponential(y, 3, G)) == [1, 5, 15]  # 1.89, 5.14, 13.97
    assert sizes(schemes.sizes(y, 3, [2, 9, 4], G)) == [2, 9, 4]


def test_inner_dirichlet_gives_each_client_its_draw_and_then_the_rest():
    y = np.repeat([0, 1], [30, 10])
    parts = schemes.inner_dirichlet(y, 2, 1e-6, [25, 15], stream(0, "one class each"))
    amounts = counts(parts, y)
    assert amounts.sum(0).tolist() == [30, 10] and amounts.sum(1).tolist() == [25, 15]
    y = np.repeat(np.arange(4), 100)
    mild, skewed = (
        counts(schemes.inner_dirichlet(y, 4, alpha, [50] * 4, stream(0, "inner")), y)
        for alpha in (1e6, 0.05)
    )
    assert skewed.max(1).mean() > 35 > 20 > mild.max(1).mean()  # of 50: 12.5 were even


def test_pathological_classes_and_their_shares_by_hand():
    y = np.repeat([0, 1, 3], [5, 4, 6])  # class 2 does not occur
    amounts = counts(schemes.pathological(y, 4, 2, "deterministic", G), y)
    # clients 0 and 3 hold 0 and 1, client 1 holds 1 and 3, client 2 holds 3 and 0
    assert amounts.tolist() == [[2, 2, 0, 0], [0, 1, 0, 3], [2, 0, 0, 3], [1, 1, 0, 0]]
    for how in ("random", "first-deterministic", "deterministic"):
        y = np.repeat(np.arange(5), 40)
        parts = schemes.pathological(y, 15, 2, how, stream(0, how))
        amounts = counts(parts, y)
        assert ((amounts > 0).sum(1) == 2).all()
        taken = amounts.sum(0)
        assert set(taken.tolist()) <= {0, 40}  # of a class all or nothing
        if how != "random":
            assert all(amounts[k, k % 5] > 0 for k in range(15)) and taken.tolist() == [40] * 5
        assert len(np.unique(np.concatenate(parts))) == taken.sum()


def test_a_distribution_is_shared_out_by_hand():
    y = np.repeat([0, 1], [10, 20])
    table = np.array([[3.0, 1.0], [1.0, 4.0]])
    # two clients hold both classes: of 10 each has 1, of the other 8 shares of 3/4 and 1/4; of 20
    # each has 1, of the other 18 shares of 3.6 and 14.4, rounded down; one is left over
    parts = schemes.distribution(y, 2, 2, table, 1, True, 1.0, stream(0, "rest"))
    amounts = counts(parts, y)
    assert amounts[:, 0].tolist() == [7, 3]
    assert amounts[:, 1].tolist() in ([5, 15], [4, 16]) and sorted(np.concatenate(parts)) == [
        *range(30)
    ]
    parts = schemes.distribution(y, 2, 1, np.array([[10.0], [20.0]]), 0, False, 1.0, G)
    assert counts(parts, y).tolist() == [[10, 0], [0, 20]]


def test_clients_of_a_distribution_hold_neighbouring_classes_and_all_examples():
    for y in (LABELS, np.delete(LABELS, np.arange(700))):
        parts = schemes.distribution(y, 20, 3, None, 5, True, 2.0, stream(0, "log-normal"))
        amounts = counts(parts, y)
        for k in range(20):
            assert set(np.flatnonzero(amounts[k])) == {k % 10, (k + 1) % 10, (k + 2) % 10}
        assert (
            amounts[amounts > 0].min() >= 5 and amounts.sum(0).tolist() == np.bincount(y).tolist()
        )
        assert len(np.unique(np.concatenate(parts))) == len(y)


def test_partitions_by_class_may_go_by_a_column_instead_of_the_label(tmp_path):
    column = np.arange(3000) % 6 * 7
    toy = data(users=column)
    part = split(
        toy, settings("pathological", class_choice="deterministic", partition_by="client"), 6, 0
    )
    for k, rows in enumerate(part.train):
        assert set(column[rows]) == {7 * k, 7 * ((k + 1) % 6)}
    with pytest.raises(DataError, match="data.partition_by is 'client', but these data name no"):
        split(data(), settings(partition_by="client"), 5, 0)


def test_shares_are_read_from_a_file(tmp_path):
    (tmp_path / "shares.csv").write_text("1,2\n3,1\n")
    labels = np.repeat([0, 1], 40)
    job = settings("distribution", distribution=tmp_path / "shares.csv")
    part = split(data(labels), job, 2, 0)
    assert part.counts(labels, Classification(), 2).sum(0).tolist() == [40, 40]
    (tmp_path / "shares.csv").write_text("1,x\n")
    with pytest.raises(DataError, match="shares.csv: cannot be read: could not convert"):
        split(data(labels), job, 2, 0)


def test_natural_clients_are_users_or_groups_of_complete_users():
    users = np.array([7, 7, 3, 9, 3, 9, 9])
    assert [p.tolist() for p in schemes.natural(users, 3, 1, G)] == [[2, 4], [0, 1], [3, 5, 6]]
    grouped = schemes.natural(users, 2, 1, G)
    assert (
        sorted(len(np.unique(users[p])) for p in grouped) == [1, 2] and sum(map(len, grouped)) == 7
    )
    with pytest.raises(DataError, match="3 users, but the job has 4 clients"):
        schemes.natural(users, 4, 1, G)


def test_halving_touches_the_chosen_share_of_clients():
    parts = [np.arange(10 * k, 10 * k + 9) for k in range(10)]
    halved = schemes.halve(parts, 0.3, stream(12, "p"))
    assert sorted(map(len, halved)) == [5] * 3 + [9] * 7
    assert all(set(h) <= set(p) for h, p in zip(halved, parts, strict=True))


def test_largest_remainders_add_up():
    assert sampling.apportion(10, np.array([1, 1, 1])).tolist() == [4, 3, 3]
    assert sampling.apportion(4, np.array([0.0, 2.5, 1.5])).tolist() == [0, 3, 1]


def test_a_limit_is_stratified_and_larger_limits_keep_everything():
    rows = sampling.limit(UNEVEN, 176, stream(13, "p"))
    assert len(np.unique(rows)) == 176 and np.bincount(UNEVEN[rows]).tolist() == [100, 50, 20, 5, 1]
    assert (
        len(sampling.limit(UNEVEN, 10**6, G)) == len(sampling.limit(UNEVEN, None, G)) == len(UNEVEN)
    )
    with pytest.raises(DataError, match="train_limit is 0"):
        sampling.limit(UNEVEN, 0, G)


def test_a_long_tail_keeps_all_of_the_first_class_and_a_geometric_share_of_the_others():
    labels = np.repeat(np.arange(5), 1000)
    rows = sampling.long_tail(labels, 100, stream(13, "p"))
    assert np.bincount(labels[rows]).tolist() == [1000, 316, 100, 31, 10]  # 100^(-c/4)
    assert len(np.unique(rows)) == len(rows)
    assert np.bincount(UNEVEN[sampling.long_tail(UNEVEN, 100, G)])[4] == 1  # 7 / 100, at least one
    toy = data(labels)
    part = split(toy, settings("iid", imbalance=100, train_limit=500), 4, seed=3)
    assert part.counts(toy.train.y, Classification(), 5).sum(0).tolist() == [
        343,
        109,
        34,
        11,
        3,
    ]  # in proportion


def test_sorted_clients_are_the_same_ones_in_the_order_of_their_labels():
    job = settings("classes", classes_per_client=2)
    random, ordered = (
        split(data(), job.model_copy(update={"sort_clients": sort}), 20, seed=5).train
        for sort in (False, True)
    )
    key = {
        tuple(part): (np.bincount(LABELS[part]).argmax(), LABELS[part].mean()) for part in random
    }
    assert [key[tuple(part)] for part in ordered] == sorted(key.values())
    assert len(key) == 20 and sorted(map(tuple, ordered)) == sorted(map(tuple, random))
    assert not equal(random, ordered)


def test_a_test_set_mirrors_the_clients_training_labels_without_repetition():
    labels, pool = np.repeat([0, 1, 2], [100, 60, 40]), np.repeat(np.arange(4), 1000)
    test = sampling.mirror(labels, np.arange(200), pool, 0.3, stream(14, "p"))
    assert np.bincount(pool[test]).tolist() == [30, 18, 12] and len(np.unique(test)) == 60


def test_a_test_set_shrinks_in_proportion_if_the_pool_is_short():
    labels, pool = np.repeat([0, 1], [100, 100]), np.repeat([0, 1], [6, 1000])
    assert np.bincount(pool[sampling.mirror(labels, np.arange(200), pool, 0.3, G)]).tolist() == [
        6,
        6,
    ]


def test_small_clients_are_tested_on_one_example_and_unknown_classes_on_none():
    labels, pool = np.array([0, 0, 1, 2]), np.array([0, 0, 0, 1])
    assert len(sampling.mirror(labels, np.array([0]), pool, 0.3, G)) == 1
    assert pool[sampling.mirror(labels, np.array([2, 3]), pool, 0.3, G)].tolist() == [1]
    assert len(sampling.mirror(labels, np.array([3]), pool, 0.3, G)) == 0


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_a_partition_keeps_training_and_public_examples_apart(name):
    K = 6 if name in ("square", "exponential") else 20
    sizes = {"client_sizes": (90,) * 20} if name == "sizes" else {}
    job = settings(name, public=500, train_limit=2000, halve=0.5, **sizes)
    toy = data(users=np.arange(3000) % 25)
    part = split(toy, job, K, seed=1)
    rows = np.concatenate([*part.train, part.public])
    assert len(np.unique(rows)) == len(rows) and len(part.public) == 500
    assert len(part.train) == len(part.test) == K
    assert len(rows) - 500 <= 2000 and all(len(test) for test in part.test)
    assert part.counts(toy.train.y, Classification(), 10).sum() == len(rows) - 500
    again, other = split(toy, job, K, seed=1), split(toy, job, K, seed=2)
    assert equal(part.train + part.test, again.train + again.test)
    assert not equal(part.train, other.train)


@pytest.mark.parametrize("name", [n for n, scheme in PARTITIONS.items() if scheme.complete])
def test_a_complete_partition_covers_every_example_once(name):
    K = 6 if name in ("square", "exponential") else 20
    part = split(data(users=np.arange(3000) % 25), settings(name), K, seed=3)
    assert np.array_equal(np.sort(np.concatenate(part.train)), np.arange(3000))


@pytest.mark.parametrize(
    "job, clients, error, words",
    [
        (settings("dirichlett"), 5, ConfigError, "did you mean 'dirichlet'"),
        (settings(alpha=0.0), 5, ConfigError, "data.alpha is 0.0"),
        (
            settings("classes", classes_per_client=11),
            5,
            ConfigError,
            "is 11, but the data have 10 classes",
        ),
        (settings("sizes"), 5, ConfigError, "data.client_sizes has 0 sizes"),
        (settings("sizes", client_sizes=(9,)), 5, ConfigError, "client_sizes has 1 sizes"),
        (settings("sizes", client_sizes=(601,) * 5), 5, ConfigError, "3005 examples in all"),
        (settings("exponential"), 20, DataError, "client 0 of 20 gets no training example"),
        (settings("pathological", classes_per_client=11), 5, ConfigError, "data have 10 classes"),
        (
            settings("pathological", class_choice="deterministic", classes_per_client=10),
            400,
            ConfigError,
            "400 clients hold class 0, which has 300",
        ),
        (settings("distribution"), 5, ConfigError, "a multiple of 10 clients"),
        (settings("distribution", preassigned=200), 10, ConfigError, "200 beforehand"),
        (settings("distribution", preassigned=2, rescale=False), 10, ConfigError, "no effect"),
        (
            settings("shards", shards_per_client=1000),
            5,
            ConfigError,
            "5000 shards of 3000 examples",
        ),
        (settings("quantity", spread=-1.0), 5, ConfigError, "data.spread is -1.0"),
        (settings(halve=1.5), 5, ConfigError, "data.halve is 1.5"),
        (settings(), 3001, DataError, "3001 clients cannot share 3000 examples"),
        (settings(), 0, DataError, "0 clients"),
        (settings(public=3000), 5, DataError, "data.public is 3000"),
        (settings("natural"), 5, DataError, "name no users"),
        (settings(sizes="free", alpha=0.001), 300, DataError, "client [0-9]+ of 300 .* seed 4"),
    ],
)
def test_impossible_settings_are_refused_with_the_value(job, clients, error, words):
    with pytest.raises(error, match=words):
        split(data(), job, clients, seed=4)


def test_a_saved_partition_is_the_same_again(tmp_path):
    part = split(data(), settings(public=10), 20, seed=5)
    part.save(tmp_path / "p.h5")
    back = split(data(), settings(partition_file=tmp_path / "p.h5"), 20, seed=6)
    assert equal(part.train + part.test, back.train + back.test)
    assert np.array_equal(part.public, back.public) and [p.name for p in tmp_path.iterdir()] == [
        "p.h5"
    ]


def small(train=((0, 1), (2,)), test=((0,), (0, 1)), public=(3,)) -> Partition:
    rows = (tuple(np.array(part, np.int64) for part in parts) for parts in (train, test))
    return Partition(*rows, np.array(public, np.int64))


@pytest.mark.parametrize(
    "part, words",
    [
        (
            small(train=((0, 1), (1,))),
            "training example 1 is there twice, in client 0 and client 1",
        ),
        (small(train=((0, 0), (1,))), "training example 0 is there twice, in client 0;"),
        (small(public=(2,)), "training example 2 is there twice, in client 1 and the public data"),
        (small(train=((-1, 1), (2,))), "train: value -1 at index 0"),
        (small(train=((0, 5000), (2,))), "train holds index 5000, but toy has only 3000"),
        (small(test=((0, 0), (1,))), "test example 0 is there twice, in client 0;"),
        (small(public=(3000,)), "public holds index 3000, but toy has only 3000"),
        (small(test=((1000,), (1,))), "client 0: test holds index 1000, but toy has only 1000"),
        (small(train=((0, 1), ())), "client 1 has no training example"),
        (small(train=((0,), (1,), (2,)), test=((0,), (1,), (2,))), "for 3 clients, the job has 2"),
    ],
)
def test_a_partition_file_that_cannot_be_is_refused(tmp_path, part, words):
    part.save(tmp_path / "p.h5")
    with pytest.raises(DataError, match=words):
        split(data(), settings(partition_file=tmp_path / "p.h5"), 2, seed=0)


def plain(path: Path, part: Partition, without: str = "") -> None:
    """A partition file as hpcfed wrote it before it had checksums, and as others may."""
    with h5py.File(path, "w") as file:
        for name, parts in (("train", part.train), ("test", part.test)):
            file[name] = np.concatenate(parts)
            file[f"{name}_sizes"] = np.array([len(part) for part in parts])
        file["public"] = part.public
        if without:
            del file[without]


def test_a_partition_file_without_checksums_is_read(tmp_path):
    plain(tmp_path / "p.h5", small())
    back = Partition.load(tmp_path / "p.h5")
    assert equal(back.train + back.test, small().train + small().test)
    assert back.public.tolist() == [3]


def test_a_partition_file_that_lacks_an_array_is_refused_with_its_name(tmp_path):
    plain(tmp_path / "p.h5", small(), without="test_sizes")
    with pytest.raises(DataError, match="p.h5: no array 'test_sizes'; a partition file has train"):
        Partition.load(tmp_path / "p.h5")


def test_damaged_partition_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="none.h5: no such file"):
        Partition.load(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(DataError, match="text.h5: not a file of hpcfed"):
        Partition.load(tmp_path / "text.h5")
    plain(tmp_path / "p.h5", small())
    with h5py.File(tmp_path / "p.h5", "r+") as file:
        file["train_sizes"][0] = 7
    with pytest.raises(DataError, match="train_sizes"):
        Partition.load(tmp_path / "p.h5")


def test_no_flipped_bit_of_a_saved_partition_is_another_partition(tmp_path):
    small().save(path := tmp_path / "p.h5")
    content, g = path.read_bytes(), stream(0, "test_partition", "bits")
    for position in g.choice(len(content), 400):
        body = bytearray(content)
        body[position] ^= 1 << int(g.integers(8))
        path.write_bytes(body)
        with pytest.raises(DataError, match="p.h5: (damaged|not a file of hpcfed).*write a part"):
            check_seal(path)
    with pytest.raises(DataError, match="p.h5: (damaged|not a file of hpcfed).*write a partition"):
        Partition.load(path)


def test_halved_clients_change_no_other_clients_examples_or_test_set():
    full, halved = (
        split(data(), settings(), 20, seed=7),
        split(data(), settings(halve=0.5), 20, seed=7),
    )
    same = [np.array_equal(a, b) for a, b in zip(full.train, halved.train, strict=True)]
    assert sum(same) == 10
    assert equal(*([part.test[k] for k in range(20) if same[k]] for part in (full, halved)))


def test_a_field_has_an_effect_with_the_partitions_that_take_it():
    taken = {
        name: {partition for partition, one in PARTITIONS.items() if name in one.fields}
        for name in {name for one in PARTITIONS.values() for name in one.fields}
    }
    taken["partition_by"] = {partition for partition, one in PARTITIONS.items() if one.by_class}
    stated = {
        name: set(check.bound)
        for name, parts in conditions(Data).items()
        for part in parts
        for other, check in part.checks()
        if other == "partition"
    }
    assert stated == taken
