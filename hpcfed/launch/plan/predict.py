"""Prediction of seconds of a round and its parts, memory, checkpoint and node-hours on a cluster.

Pure arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hpcfed.launch.plan.collectives import NEAR, Wires, buffers
from hpcfed.launch.plan.contention import finish_by_group, slowest
from hpcfed.launch.plan.demand import Demand
from hpcfed.launch.plan.network import Network
from hpcfed.machine.assignment import place
from hpcfed.machine.memory_budget import weights

ROW, TOTAL = (
    1.6e-9,
    2.7e-9,
)  # seconds of one core for a value of an exact sum: of each row, and of the total; measured
# the same for a value that a rank sends to other nodes and receives back: copies both ways
SENT = 4.4e-9
# bytes of a client's state a second that a checkpoint copies in memory, while the round waits
COPY = 2e9


@dataclass(frozen=True)
class Cluster:
    """A cluster: nodes with `each` ranks.

    cores, gpus: of a node; with no GPUs ranks compute on cores, with `threads` each.
    far: the network.
    disk: bytes per second that one node writes, and all together.
    speeds: of the nodes, repeated as needed; or by rank.
    """

    nodes: int
    each: int
    cores: int
    far: Network
    gpus: int = 0
    threads: int = 1
    near: Network = NEAR
    disk: tuple[float, float] = (5e8, math.inf)
    speeds: tuple[float, ...] = ()

    @property
    def ranks(self) -> int:
        return self.nodes * self.each

    @property
    def crowd(self) -> float:
        """Factor by which a core's work takes longer if a node has more threads than cores.

        It is 1 otherwise.
        """
        return max(1.0, self.each * self.threads / self.cores)

    @property
    def wires(self) -> Wires:
        """The network; inside a node messages are copies in memory, made by cores."""
        near = Network(self.near.latency * self.crowd, self.near.bandwidth / self.crowd)
        return Wires(self.nodes, self.each, self.far, near)

    @property
    def fast(self) -> list[float]:
        """The speed of each rank."""
        given = self.speeds or (1.0,)
        by_rank = len(given) == self.ranks
        return [
            given[r] if by_rank else given[r // self.each % len(given)] for r in range(self.ranks)
        ]

    def busy(self, loads: np.ndarray) -> np.ndarray:
        """Return when each rank is done with its load, [R].

        Ranks that share a GPU, or a node's cores, slow one another down.
        """
        node, local = np.divmod(np.arange(self.ranks), self.each)
        if self.gpus:
            return finish_by_group(loads, node * self.gpus + local % self.gpus, 1.0)
        return finish_by_group(loads, node, self.cores / self.threads)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one cluster.

    seconds: of a mean round.
    parts: of that (train, evaluate: mean over ranks; wait: for the slowest).
    save: seconds in which a checkpoint is written, in parallel to rounds.
    efficiency: speed-up over nodes, relative to the smallest cluster of the list.
    hours: of the run.
    memory, gpu: bytes, of the fullest rank and GPU.
    """

    nodes: int
    ranks: int
    seconds: float
    parts: dict[str, float] = field(repr=False)
    save: float
    hours: float
    memory: float
    gpu: float
    efficiency: float = 1.0

    @property
    def node_hours(self) -> float:
        return self.nodes * self.hours


def predict(demand: Demand, cluster: Cluster, peak: float = 0.0, gpu: float = 0.0) -> Prediction:
    """Return the prediction for this demand on this cluster.

    peak, gpu: bytes that a rank and its share of a GPU use in addition to weights.
    """
    everyone = [[k] for k in range(len(demand.kinds))]
    fixed = place_clients(demand, everyone, cluster)
    rounds = [a_round(demand, groups, fixed, cluster) for groups in demand.cohorts]
    parts = {name: float(np.mean([part[name] for part in rounds])) for name in rounds[0]}
    parts |= {"communicate": communication_seconds(demand, cluster, fixed), "server": demand.server}
    kept = np.bincount(fixed, demand.kept, cluster.ranks)  # [R]
    node, everywhere = cluster.disk
    save = max(
        float(kept.reshape(cluster.nodes, -1).sum(1).max()) / node, float(kept.sum()) / everywhere
    )
    before = sum(parts.values())
    parts["checkpoint"] = float(kept.max()) / COPY / demand.every + max(
        0.0, save / demand.every - before
    )
    seconds = before + parts["checkpoint"]
    own = weight_bytes(demand, fixed, cluster.ranks)
    per_gpu = -(-cluster.each // cluster.gpus) if cluster.gpus else 0
    return Prediction(
        nodes=cluster.nodes,
        ranks=cluster.ranks,
        seconds=seconds,
        parts=parts,
        save=save,
        hours=(seconds * demand.rounds + save) / 3600,
        gpu=per_gpu * (float(own.max()) + gpu),
        memory=float((kept + own).max()) + buffers(cluster.wires, demand.values) + peak,
    )


def weight_bytes(demand: Demand, placement: list[int], ranks: int) -> np.ndarray:
    """Return the bytes of weights on each rank, [R]."""
    kinds: list[list[str]] = [[] for _ in range(ranks)]
    for k, rank in enumerate(placement):
        kinds[rank].append(demand.kinds[k])
    return np.array([weights(mine, demand.size, demand.stateless) for mine in kinds])


def a_round(
    demand: Demand, groups: list[list[int]], fixed: list[int], cluster: Cluster
) -> dict[str, float]:
    """Return the seconds of computation in a round.

    They are means over ranks, and the additional wait for the slowest rank. Stateless clients are
    placed anew each round, as in runs; others stay where they are.
    """
    placement = np.array(place_clients(demand, groups, cluster) if demand.stateless else fixed)
    cohort = [k for ks in groups for k in ks]
    judged = range(len(demand.kinds)) if demand.everybody else cohort
    train = loads(demand.train[cohort], placement[cohort], cluster)
    evaluate = demand.due * loads(demand.evaluate[judged], placement[judged], cluster)
    rest = loads(np.full(len(cohort), demand.rest), placement[cohort], cluster)
    uneven = demand.spread * np.sqrt(
        np.bincount(placement[cohort], demand.train[cohort] ** 2, cluster.ranks)
    )
    alone, uneven = train + evaluate + rest, uneven / np.array(cluster.fast)
    done = cluster.busy(alone)
    stretch = np.divide(done, alone, out=np.ones_like(done), where=alone > 0)
    means = {
        name: float((load * stretch).mean())
        for name, load in (("train", train), ("evaluate", evaluate), ("rest", rest))
    }
    return means | {"wait": slowest(done, uneven * stretch) - float(done.mean())}


def place_clients(demand: Demand, groups: list[list[int]], cluster: Cluster) -> list[int]:
    """Return the rank of every client, [K], with groups kept together, by the rule of runs."""
    ranks = place([float(demand.train[ks].sum()) for ks in groups], cluster.ranks, cluster.fast)
    found = [k % cluster.ranks for k in range(len(demand.kinds))]  # clients in no group
    for ks, rank in zip(groups, ranks, strict=True):
        for k in ks:
            found[k] = rank
    return found


def loads(seconds: np.ndarray, placement: np.ndarray, cluster: Cluster) -> np.ndarray:
    """Return the seconds of each rank alone, [R], with these clients."""
    return np.bincount(placement, seconds, cluster.ranks) / np.array(cluster.fast)


def communication_seconds(demand: Demand, cluster: Cluster, placement: list[int]) -> float:
    """Return the seconds of a round's collectives and of the arithmetic of exact sums.

    The collectives are two barriers, the exchange and the record.
    """
    wires, cohort = cluster.wires, [k for ks in demand.cohorts[0] for k in ks]
    rows = np.bincount(np.array(placement)[cohort], minlength=cluster.ranks).max()
    work = cluster.crowd * demand.values * float(ROW * rows + TOTAL + SENT * wires.abroad)
    if cluster.ranks == 1:
        return work
    exchange = (
        wires.sum(demand.values, demand.arrays) if demand.values else wires.gather(demand.uploads)
    )
    return 2 * wires.barrier() + exchange + wires.gather(demand.record) + work
