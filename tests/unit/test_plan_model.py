"""The model of the cluster: messages, collectives, shared cores, rounds; by hand, and what must
grow with what.
"""

import math

import numpy as np
import pytest

from hpcfed.comm.node_memory import size_of
from hpcfed.comm.sum_messages import WORK, private_buffers, width
from hpcfed.core.errors import ConfigError
from hpcfed.launch.plan.collectives import LOOK, Wires, buffers
from hpcfed.launch.plan.contention import finish, finish_by_group, slowest
from hpcfed.launch.plan.demand import Demand
from hpcfed.launch.plan.network import Network, disk, network
from hpcfed.launch.plan.predict import COPY, ROW, SENT, TOTAL, Cluster, predict

FAR, NEAR = (
    Network(1.0, 100.0),
    Network(0.1, 1000.0),
)  # one second and 100 bytes a second; a tenth and 1,000


def asked(**how: object) -> Demand:
    """Four clients of 1, 2, 3 and 4 seconds, in one round of four, who send nothing."""
    plain = {
        "kinds": ("a",) * 4,
        "size": {"a": 100},
        "stateless": False,
        "train": np.array([1.0, 2.0, 3.0, 4.0]),
        "evaluate": np.zeros(4),
        "rest": 0.0,
        "server": 0.0,
        "cohorts": [[[0], [1], [2], [3]]],
        "everybody": False,
        "values": 0,
        "arrays": 0,
        "uploads": 0,
        "kept": np.zeros(4),
        "rounds": 10,
        "due": 1.0,
        "every": 10,
    }
    return Demand(**{**plain, **how})


def wires(nodes: int, each: int) -> Wires:
    return Wires(nodes, each, FAR, NEAR)


def test_a_network_is_read_as_data_sheets_write_it():
    assert network("latency 2us, 100Gb/s") == Network(2e-6, 12.5e9)
    assert network("1.5 ms, bandwidth 10 MB/s") == Network(1.5e-3, 1e7)
    assert network("0s,8b/s") == Network(0.0, 1.0)
    assert disk("500MB/s") == (5e8, math.inf) and disk("2GB/s, 20GB/s") == (2e9, 2e10)


@pytest.mark.parametrize(
    "text", ["", "2us", "fast, 1Gb/s", "2us, 100", "2us, 0Gb/s", "2 years, 1Gb/s", "-1us, 1Gb/s"]
)
def test_another_network_is_refused_with_what_was_given(text: str):
    with pytest.raises(ConfigError) as refused:
        network(text)
    assert repr(text) in str(refused.value)


def test_a_message_takes_latency_and_bytes_over_bandwidth():
    assert FAR.message(50) == 1.5 and FAR.message(50, sharing=4) == 3.0
    assert Network(1.0, 1e6).message(4e6) == 7.0  # a long one is announced and asked for first


def test_an_allreduce_goes_up_a_tree_inside_nodes_and_then_between_them_and_down_again():
    assert wires(1, 4).allreduce(100) == pytest.approx(2 * 2 * 0.2)
    assert wires(2, 2).allreduce(100) == pytest.approx(2 * (0.2 + 2))
    assert wires(1, 1).allreduce(100) == 0


def test_a_gather_to_all_goes_by_doubling_or_round_a_ring_whichever_is_faster():
    assert wires(4, 1).allgather(100) == (1 + 1) + (1 + 2)  # not 3 steps of 2 seconds
    assert wires(3, 1).allgather(100) == 2 * 2  # not (1 + 1) + (1 + 2)
    assert wires(1, 3).allgather(100) == pytest.approx(2 * 0.2)
    assert wires(2, 2).allgather(100) == pytest.approx(
        0.2 + (1 + 2) + 0.5
    )  # inside, across with both's, inside


def test_lines_of_all_ranks_are_added_up_in_a_node_and_then_travel_once_to_each_other_node():
    assert wires(2, 2).lines(100) == pytest.approx(
        1 * (0.1 + 2 * 100 / 1000) + 1 * (1 + 2 * 100 / 100)
    )


def test_a_barrier_goes_up_a_tree_and_down_again_seen_at_each_look():
    assert wires(2, 2).barrier() == pytest.approx(2 * (0.1 + LOOK) + 2 * (1 + LOOK))


def test_an_exact_sum_is_a_maximum_a_weight_and_messages_of_a_line_a_rank():
    quick = Wires(2, 1, Network(0.0, 1.0), NEAR)  # seconds are bytes
    assert quick.sum(100, arrays=3) == 2 * (8 * (3 + 1 + 2) + 16 + 8 * 100)  # each up and down
    values = 2 * 131072  # two lines of half a message each
    line = 131072 + 7  # with the count of rows as long as lines of the cache
    assert quick.sum(values, 1) == 2 * (8 * 4 + 16) + 12 * line  # in as float64, out as float32
    assert quick.sum(values + 1, 1) == 2 * (8 * 4 + 16) + 2 * 12 * (
        65537 + 6
    )  # one more value: two messages, alike
    assert Wires(1, 1, FAR).sum(values, 1) == 0


@pytest.mark.parametrize(("ranks", "mib"), [(8, 3), (256, 23), (1024, 90), (8192, 90)])
def test_memory_of_a_sum_is_bounded_on_many_ranks(ranks, mib):
    assert buffers(wires(ranks // 8, 8), 10**9) < 2**20 * mib


def test_memory_of_a_sum_is_that_of_its_buffers():
    columns = width(10**7, 3) + 1
    held = sum(buffer.nbytes for buffer in private_buffers(3, columns, np.dtype(np.float32)))
    assert buffers(wires(3, 1), 10**7) == held + 8 * WORK * columns
    assert buffers(wires(1, 4), 10**7) == size_of(4, 4) / 4 + 8 * WORK * (
        width(10**7, 4) + 1
    )  # all in the node's
    assert buffers(wires(1, 1), 10**7) == buffers(wires(3, 1), 100) == 0


def test_ranks_share_cores_until_the_short_ones_are_done():
    assert finish([1.0, 1.0], 1) == [2.0, 2.0]
    assert finish([1.0, 3.0], 1) == [2.0, 4.0]  # one second each of two, then alone
    assert finish([1.0, 3.0], 2) == [1.0, 3.0]
    assert finish([2.0, 2.0, 2.0], 2) == [3.0, 3.0, 3.0]
    assert finish([1.0, 2.0, 2.0], 2) == [1.5, 2.5, 2.5]  # from 1.5 on two cores for two
    assert finish([], 2) == []


def test_only_ranks_of_the_same_node_or_gpu_slow_one_another():
    assert finish_by_group(
        np.array([1.0, 3.0, 1.0, 1.0]), np.array([0, 0, 1, 2]), 1.0
    ).tolist() == [
        2.0,
        4.0,
        1.0,
        1.0,
    ]


def test_the_last_of_more_ranks_that_vary_is_later():
    def late(ranks: int) -> float:
        return slowest(np.zeros(ranks), np.ones(ranks))

    assert [late(n) for n in (1, 2, 4)] == pytest.approx(
        [0, 0.5642, 1.0294], abs=1e-3
    )  # of normal order statistics
    assert slowest(np.array([1.0, 3.0]), np.zeros(2)) == 3.0
    assert slowest(np.array([1.0, 9.0]), np.array([0.1, 0.0])) == pytest.approx(
        9.0
    )  # the other one never is


def test_clients_that_vary_make_ranks_wait_and_many_clients_of_a_rank_even_out():
    def wait(clients: int) -> float:
        many = asked(
            kinds=("a",) * clients,
            train=np.ones(clients),
            evaluate=np.zeros(clients),
            spread=0.1,
            kept=np.zeros(clients),
            cohorts=[[[k] for k in range(clients)]],
        )
        return predict(many, Cluster(2, 1, 1, FAR)).parts["wait"]

    assert wait(2) == pytest.approx(0.1 * 0.5642, rel=1e-2) and wait(8) == pytest.approx(
        2 * wait(2)
    )  # of 4 seconds


def test_a_round_on_one_rank_is_the_sum_of_its_clients():
    found = predict(
        asked(evaluate=np.ones(4), due=0.5, rest=0.25, server=2.0), Cluster(1, 1, 1, FAR)
    )
    assert found.parts == {
        "train": 10.0,
        "evaluate": 2.0,
        "rest": 1.0,
        "wait": 0.0,
        "communicate": 0.0,
        "server": 2.0,
        "checkpoint": 0.0,
    }
    assert found.seconds == 15.0 and found.hours == 150 / 3600 and found.node_hours == found.hours


def test_on_two_nodes_the_slowest_rank_makes_the_round():
    found = predict(
        asked(train=np.array([4.0, 1.0, 1.0, 0.0])), Cluster(2, 1, 1, Network(0.0, 1e30))
    )
    assert found.parts["train"] == 3.0 and found.parts["wait"] == 1.0  # 4 and 2
    assert found.node_hours == 2 * found.hours


def test_a_rank_of_twice_the_speed_does_twice_as_much():
    found = predict(
        asked(train=np.full(4, 3.0)), Cluster(2, 1, 1, Network(0.0, 1e30), speeds=(3.0, 1.0))
    )
    assert found.parts["train"] + found.parts["wait"] == 3.0  # three clients at 1 s, and one at 3 s


def test_ranks_beyond_the_cores_and_on_the_same_gpu_gain_nothing():
    alone = predict(asked(), Cluster(1, 1, 2, FAR)).parts
    for one in (Cluster(1, 4, 1, FAR), Cluster(1, 4, 64, FAR, gpus=1)):
        parts = predict(asked(), one).parts
        assert parts["train"] + parts["wait"] == alone["train"] == 10.0
    parts = predict(asked(), Cluster(1, 4, 64, FAR, gpus=2)).parts
    assert parts["train"] + parts["wait"] == pytest.approx(
        6.0
    )  # local ranks 0 and 2 have 4 and 2, 1 and 3 the rest


def test_memory_checkpoint_and_gpu_are_those_of_the_fullest():
    kept = asked(kept=np.full(4, 1000.0), every=2)
    found = predict(kept, Cluster(1, 2, 2, FAR, gpus=1, disk=(100.0, 1e9)), peak=5.0, gpu=7.0)
    assert found.memory == 5 + 2000 + (
        4 * 100 + 2 * 100
    )  # copies for the checkpoint; a module with its moments, two
    assert found.gpu == 2 * (7 + 600) and found.save == 4000 / 100
    assert (
        predict(kept, Cluster(4, 1, 1, FAR, disk=(100.0, 150.0))).save == 4000 / 150
    )  # all nodes at once
    waits = 40 / 2 - sum(part for name, part in found.parts.items() if name != "checkpoint")
    assert found.parts["checkpoint"] == pytest.approx(2000 / COPY / 2 + waits)


def test_who_keeps_nothing_is_dealt_out_anew_in_each_round():
    cohorts = [[[0], [1]], [[2], [3]]]
    stays, moves = (
        predict(
            asked(train=np.ones(4), cohorts=cohorts, stateless=how), Cluster(2, 1, 1, FAR)
        ).parts
        for how in (False, True)
    )
    assert moves["wait"] == 0.0 and moves["train"] == stays["train"] == 1.0


def test_the_arithmetic_of_sums_is_that_of_the_rank_with_most_uploads():
    assert predict(asked(values=1000, arrays=2), Cluster(1, 1, 1, FAR)).parts[
        "communicate"
    ] == 1000 * (4 * ROW + TOTAL)


def test_ranks_of_a_node_share_what_its_sum_sends_to_others():
    free, many = Network(0.0, 1e30), asked(values=10**6, cohorts=[[[0]]])
    work = [
        predict(many, Cluster(nodes, each, each, free, near=free)).parts["communicate"]
        - 4 * LOOK * steps
        for nodes, each, steps in ((1, 2, 1), (2, 1, 1), (2, 2, 2))
    ]
    apart, halves, quarters = (10**6 * (ROW + TOTAL + SENT * share) for share in (0, 1 / 2, 1 / 4))
    assert work == pytest.approx([apart, halves, quarters])


@pytest.mark.parametrize(
    ("ranks", "uploads", "measured"),
    [
        (2, 1, 0.0596),
        (2, 10, 0.2192),
        (4, 1, 0.1104),
        (4, 5, 0.2391),
        (8, 1, 0.2282),
        (8, 3, 0.4039),
    ],
)
def test_exact_sums_of_a_resnet_take_what_was_measured_on_two_cores(
    ranks: int, uploads: int, measured: float
):
    K = ranks * uploads
    many = asked(
        kinds=("a",) * K,
        train=np.ones(K),
        evaluate=np.zeros(K),
        kept=np.zeros(K),
        values=11_181_642,
        arrays=62,
        cohorts=[[[k] for k in range(K)]],
    )
    found = predict(many, Cluster(1, ranks, 2, FAR)).parts["communicate"]
    assert (
        measured / 1.2 < found < 1.2 * measured
    )  # benchmarks/results/bench/sums.json, in an idle hour


def test_more_latency_more_bytes_and_more_work_never_take_less():
    def seconds(
        latency: float = 1e-5, speed: float = 1e9, values: int = 10**6, work: float = 1.0
    ) -> float:
        demand = asked(values=values, arrays=3, train=work * np.ones(4))
        return predict(demand, Cluster(4, 1, 1, Network(latency, speed))).seconds

    rises = {
        "latency": (0.0, 1e-6, 1e-3, 1.0),
        "values": (0, 10, 10**5, 10**7),
        "work": (0.0, 1.0, 2.0),
    }
    for name, rising in rises.items():
        found = [seconds(**{name: value}) for value in rising]
        assert found == sorted(found)
    assert seconds(speed=1e6) > seconds(speed=1e9) > seconds(speed=1e12)


def test_more_nodes_never_take_longer_where_the_network_costs_nothing():
    many = asked(
        kinds=("a",) * 64,
        train=np.linspace(1, 2, 64),
        evaluate=np.zeros(64),
        kept=np.zeros(64),
        cohorts=[[[k] for k in range(64)]],
    )
    computing = [
        sum(predict(many, Cluster(n, 1, 1, Network(0.0, 1e30))).parts[p] for p in ("train", "wait"))
        for n in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    assert computing == sorted(computing, reverse=True) and computing[-1] == 2.0
