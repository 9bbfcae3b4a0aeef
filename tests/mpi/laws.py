"""What every Comm keeps on any number of ranks: each law runs on all ranks, meets first, asserts
last.

The laws run over Serial and Threads in tests/unit/test_comm.py. As a script they run over
`connect()`: `mpirun -np 3 python tests/mpi/laws.py` writes a line "rank law ok" for each law, or
the reason why not.
"""

import sys
import traceback
from collections.abc import Callable
from importlib import import_module

import numpy as np

from hpcfed.comm import Comm, Row, Serial, connect, node_memory

K = 7  # clients; more than some and fewer than other numbers of ranks
SHAPES = [(3, 2), (5,), (), (0,)]
LAWS: dict[str, Callable[[Comm], None]] = {}


def law(fn: Callable[[Comm], None]) -> Callable[[Comm], None]:
    LAWS[fn.__name__] = fn
    return fn


def row(k: int) -> Row:
    """Client k's arrays: float32 and float64, of very different magnitude from client to client."""
    g = np.random.Generator(np.random.Philox(key=k))
    sign = -1 if k % 2 else 1
    image = g.normal(size=(3, 2)).astype(np.float32) * np.float32(10.0 ** (3 * k - 9))
    return [image, g.normal(size=5) * 1e300, np.array(sign * 5e-324), np.empty(0, np.float32)]


def bits(arrays: list[np.ndarray]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@law
def a_sum_has_the_same_bits_as_on_one_rank(comm: Comm) -> None:
    want = Serial().sum([row(k) for k in range(K)], SHAPES)
    dealt = comm.sum([row(k) for k in range(K) if k % comm.size == comm.rank], SHAPES)
    turned = comm.sum(
        [row(k) for k in reversed(range(K)) if k * 3 % comm.size == comm.rank], SHAPES
    )
    last = comm.sum([row(k) for k in range(K)] if comm.rank == comm.size - 1 else [], SHAPES)
    assert bits(dealt) == bits(turned) == bits(last) == bits(want)
    assert [array.shape for array in dealt] == SHAPES
    assert all(array.dtype == np.float64 for array in dealt)


@law
def a_sum_of_several_messages_has_the_same_bits_as_on_one_rank(comm: Comm) -> None:
    g = np.random.Generator(np.random.Philox(key=3))
    rows = [[g.normal(size=300_001).astype(np.float32), g.normal(size=(5, 7))] for _ in range(3)]
    shapes, factors = [(300_001,), (5, 7)], [3.0, 0.1, 7.0]
    mine = [k for k in range(3) if k % comm.size == comm.rank]
    want = Serial().sum(rows, shapes, factors)
    assert bits(comm.sum([rows[k] for k in mine], shapes, [factors[k] for k in mine])) == bits(want)


@law
def words_are_added_modulo_two_to_the_64(comm: Comm) -> None:
    words = np.array([2**64 - 1, comm.rank, 2**63], np.uint64)
    comm.sum_words(words)
    wrapped = [(2**64 - 1) * comm.size % 2**64, sum(range(comm.size)), comm.size % 2 * 2**63]
    assert words.tolist() == wrapped


class Halves:
    """Totals of which the first array is finished before the second begins; the second becomes
    float32, halved.
    """

    n_first = 1

    def __init__(self, n: int):
        self.arrays = [np.empty(n), np.empty(2 * n, np.float32)]

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        total *= 0.5**i


@law
def messages_of_one_sum_never_mix_whatever_their_types(comm: Comm) -> None:
    n = 400_003
    rows = [[np.arange(n) % (7 + k), np.arange(2.0 * n) % (11 + k)] for k in range(3)]
    for _ in range(3):  # the next sum begins while others still read the one before
        first, second = comm.sum(
            [rows[k] for k in range(3) if k % comm.size == comm.rank],
            [(n,), (2 * n,)],
            [],
            Halves(n),
        )
        assert np.array_equal(first, sum(row[0] for row in rows))
        assert second.dtype == np.float32 and np.array_equal(
            second, sum(row[1] for row in rows) / 2
        )


@law
def a_sum_without_rows_is_zero(comm: Comm) -> None:
    (total,) = comm.sum([], [(2, 2)])
    assert total.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@law
def a_sum_of_no_arrays_is_no_arrays(comm: Comm) -> None:
    assert comm.sum([[]], []) == []


@law
def a_sum_takes_no_part_of_a_row_more_than_twice(comm: Comm) -> None:
    class Counted(list):
        taken = 0

        def __getitem__(self, i):
            self.taken += 1
            return super().__getitem__(i)

    counted = Counted([np.ones(3)])
    (total,) = comm.sum([counted], [(3,)])
    assert total.tolist() == [comm.size] * 3
    assert counted.taken <= 2


@law
def the_total_belongs_to_the_rank(comm: Comm) -> None:
    (first,) = comm.sum([[np.ones(2)]], [(2,)])
    first += comm.rank + 1  # must not be seen by others
    comm.barrier()
    (second,) = comm.sum([[np.ones(2)]], [(2,)])
    assert first.tolist() == [comm.size + comm.rank + 1] * 2
    assert second.tolist() == [comm.size] * 2


@law
def gather_is_the_union_in_id_order_on_all_ranks(comm: Comm) -> None:
    owned = [k for k in reversed(range(K)) if k % comm.size == comm.rank]
    every = comm.gather({k: {"soft": np.full(k, k, np.float32), "n": k} for k in owned})
    assert list(every) == list(range(K))
    assert all(every[k]["n"] == k and every[k]["soft"].tolist() == [k] * k for k in every)


@law
def gather_of_nothing_is_empty(comm: Comm) -> None:
    assert comm.gather({}) == {}


@law
def gather_refuses_a_client_of_two_ranks(comm: Comm) -> None:
    error = None
    try:
        comm.gather({4: comm.rank})
    except ValueError as caught:
        error = str(caught)
    assert (error is None) if comm.size == 1 else "client 4" in str(error)


@law
def bcast_gives_the_roots_item_to_all(comm: Comm) -> None:
    items = [
        comm.bcast(("from", comm.rank, np.arange(6.0).reshape(2, 3)), root)
        for root in range(comm.size)
    ]
    nothing = comm.bcast(None)
    assert [item[1] for item in items] == list(range(comm.size))
    assert all(item[2].tolist() == [[0, 1, 2], [3, 4, 5]] for item in items)
    assert nothing is None


@law
def move_gives_to_one_rank_and_none_to_the_others(comm: Comm) -> None:
    pairs = [(src, dst) for src in range(comm.size) for dst in range(comm.size)]
    received = [comm.move([comm.rank, "x" * 20], src, dst) for src, dst in pairs]
    for (src, dst), item in zip(pairs, received, strict=True):
        assert item == ([src, "x" * 20] if comm.rank == dst else None)


@law
def what_comes_back_is_a_copy(comm: Comm) -> None:
    zeros = np.zeros(3)
    back = [comm.gather({comm.rank: zeros})[comm.rank], comm.bcast(zeros), comm.move(zeros, 0, 0)]
    for array in back:
        if array is not None:
            array += 1
    assert zeros.tolist() == [0, 0, 0]


@law
def only_ranks_that_exist_are_asked(comm: Comm) -> None:
    errors = []
    for verb, *ranks in ((comm.bcast, comm.size), (comm.move, -1, 0), (comm.move, 0, comm.size)):
        try:
            verb(1, *ranks)
        except ValueError as error:
            errors.append(str(error))
    assert len(errors) == 3 and f"ranks are 0..{comm.size - 1}" in errors[0]


@law
def shared_arrays_are_built_once_a_node_and_read_only(comm: Comm) -> None:
    built: list[int] = []

    def build() -> dict[str, np.ndarray]:
        built.append(comm.rank)
        return {
            "x": np.arange(6, dtype=np.float32).reshape(2, 3),
            "y": np.array([1, 2], np.int64),
            "none": np.empty((0, 4)),
            "one": np.array(True),
        }

    shared, empty = comm.share(build), comm.share(dict)
    builders = comm.gather({comm.rank: built})
    assert sum(len(ranks) for ranks in builders.values()) == len(set(comm.node_of))
    assert (comm.local_rank == 0) == bool(built)
    assert {n: a.shape for n, a in shared.items()} == {
        "x": (2, 3),
        "y": (2,),
        "none": (0, 4),
        "one": (),
    }
    assert shared["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and shared["y"].tolist() == [1, 2]
    assert shared["x"].dtype == np.float32 and bool(shared["one"])
    assert not any(array.flags.writeable for array in shared.values())
    assert empty == {}


@law
def every_rank_knows_its_place(comm: Comm) -> None:
    places = comm.gather({comm.rank: (comm.size, comm.node_of, comm.local_rank)})
    comm.barrier()
    assert all(
        size == comm.size and node_of == comm.node_of for size, node_of, _ in places.values()
    )
    assert len(comm.node_of) == comm.size and set(comm.node_of) == set(range(max(comm.node_of) + 1))
    on_my_node = [
        place[2] for rank, place in places.items() if comm.node_of[rank] == comm.node_of[comm.rank]
    ]
    assert sorted(on_my_node) == list(range(len(on_my_node)))


def main() -> None:
    kind, number = sys.argv[1:] or ("", "0")
    if kind == "nodes":  # ranks are dealt to so many, as far as they know
        Mpi = import_module("hpcfed.comm.mpi").Mpi
        Mpi._near = staticmethod(lambda world: world.Split(world.rank % int(number)))
    comm = connect()
    if kind == "pieces":
        comm.limit = int(number)  # so small that everything goes in pieces
        node_memory.make = lambda *_: ""  # and there is no memory that ranks share
    for name, check in LAWS.items():
        try:
            check(comm)
            print(f"{comm.rank} {name} ok", flush=True)
        except AssertionError:  # after all collectives of the law: the ranks are still in step
            print(f"{comm.rank} {name} failed\n{traceback.format_exc()}", flush=True)
        except BaseException:
            traceback.print_exc()
            comm.abort(1)
    comm.close()


if __name__ == "__main__":
    main()
