"""Prediction of seconds of a round and its parts, memory and node-hours on a cluster.

Pure arithmetic: the slowest rank makes the round; messages take latency and bytes over bandwidth
(Hockney, Parallel Computing 20 (1994) 389-398).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hpcfed.comm.sum_messages import ITEM
from hpcfed.machine.assignment import place
from hpcfed.machine.memory_budget import uploads, weights

# Seconds of one core for a value of an exact sum, measured: of each row, of the total, and of a
# value that a rank sends to other nodes and receives back.
ROW, TOTAL, SENT = 1.6e-9, 2.7e-9, 4.4e-9
POLL = 2e-4  # seconds between two polls of a rank in a barrier (comm.mpi.LONG)
VALUE = ITEM + 4  # bytes of a value on its way into a sum, and of its float32 on the way out
MEMORY = 1e10  # bytes per second from rank to rank through a node's memory
CELL = 520  # bytes of a client in the record of a round, about


@dataclass(frozen=True)
class Network:
    """A network. latency: seconds of an empty message. bandwidth: bytes per second, each way."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Cluster:
    """A cluster: nodes with `each` ranks.

    cores, gpus: of a node; with no GPUs ranks compute on cores, with `threads` each.
    at_once: ranks on a GPU whose work takes as long as was measured; more of them take turns.
    speeds: of the nodes, repeated as needed; or by rank.
    """

    nodes: int
    each: int
    cores: int
    network: Network
    gpus: int = 0
    threads: int = 1
    speeds: tuple[float, ...] = ()
    at_once: int = 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.each

    @property
    def crowd(self) -> float:
        """Factor by which a core's work takes longer because a node has more threads than cores."""
        return max(1.0, self.each * self.threads / self.cores)

    @property
    def sharing(self) -> float:
        """Factor by which training takes longer because ranks share a GPU, or cores."""
        return max(1.0, self.each / self.gpus / self.at_once) if self.gpus else self.crowd

    @property
    def rank_speeds(self) -> np.ndarray:
        """The speed of each rank, [R]."""
        speeds = np.array(self.speeds or (1.0,))
        if len(speeds) == self.ranks:
            return speeds
        return speeds[np.arange(self.ranks) // self.each % len(speeds)]


@dataclass(frozen=True)
class Demand:
    """The demand of a job, independent of the cluster.

    architectures: [K].
    size: bytes of the weights of each architecture.
    stateless: whether clients keep no weights between rounds.
    train, evaluate: [K], seconds of a client in a round at speed 1.
    rest: likewise, of each client that takes part.
    server: seconds of a round on rank 0.
    cohorts: of some rounds, in groups that train on one rank.
    evaluated: ids of the clients that are evaluated, those with models of their own after they have
    trained; None: the cohort.
    values: of the averaged model; 0 if there is none.
    uploads: bytes that all ranks receive in that case.
    upload_memory: [K], bytes of memory that the uploads of a client take in a round; 0 of clients
    in none of the cohorts.
    rounds: of the run.
    due: share of rounds that evaluate.
    """

    architectures: tuple[str, ...]
    size: dict[str, int]
    stateless: bool
    train: np.ndarray
    evaluate: np.ndarray
    rest: float
    server: float
    cohorts: list[list[list[int]]]
    evaluated: np.ndarray | None
    values: int
    uploads: int
    upload_memory: np.ndarray
    rounds: int
    due: float


@dataclass(frozen=True)
class Prediction:
    """The prediction for one cluster.

    seconds: of a mean round.
    parts: of that (train, evaluate: mean over ranks; wait: for the slowest).
    efficiency: speed-up over nodes, relative to the smallest cluster of the list.
    hours: of the run.
    memory, gpu: bytes, of the fullest rank and GPU.
    uploads: bytes of them that are uploads of a round, of the rank that has most.
    """

    nodes: int
    ranks: int
    seconds: float
    parts: dict[str, float] = field(repr=False)
    hours: float
    memory: float
    gpu: float
    uploads: float = 0.0
    efficiency: float = 1.0

    @property
    def node_hours(self) -> float:
        return self.nodes * self.hours


def predict(demand: Demand, cluster: Cluster, peak: float = 0.0, gpu: float = 0.0) -> Prediction:
    """Return the prediction for this demand on this cluster.

    peak, gpu: bytes that a rank and its share of a GPU use in addition to weights and uploads.
    """
    stay = place_clients(demand, [[k] for k in range(len(demand.architectures))], cluster)
    # stateless clients are placed anew in each round, as in runs; others stay on their rank
    placements = [
        place_clients(demand, groups, cluster) if demand.stateless else stay
        for groups in demand.cohorts
    ]
    cohorts = list(zip(demand.cohorts, placements, strict=True))
    rounds = [round_parts(demand, groups, placement, cluster) for groups, placement in cohorts]
    parts = {name: float(np.mean([part[name] for part in rounds])) for name in rounds[0]}
    parts |= {"communicate": communication(demand, cluster, stay), "server": demand.server}
    seconds = sum(parts.values())
    models = [
        weights(np.array(demand.architectures)[stay == rank], demand.size, demand.stateless)
        for rank in range(cluster.ranks)
    ]
    sent = np.max([upload_bytes(demand, *cohort, cluster) for cohort in cohorts], 0)
    fullest = max(map(sum, zip(models, sent, strict=True)))
    per_gpu = -(-cluster.each // cluster.gpus) if cluster.gpus else 0
    return Prediction(
        nodes=cluster.nodes,
        ranks=cluster.ranks,
        seconds=seconds,
        parts=parts,
        hours=seconds * demand.rounds / 3600,
        memory=fullest + peak,
        gpu=per_gpu * (fullest + gpu),
        uploads=float(max(sent)),
    )


def round_parts(
    demand: Demand, groups: list[list[int]], placement: np.ndarray, cluster: Cluster
) -> dict[str, float]:
    """Return the seconds of computation in a round: means over ranks, and the wait for the slowest.

    placement: [K], the rank of each client.
    """
    cohort = np.array([k for ks in groups for k in ks], int)
    evaluated = cohort
    if demand.evaluated is not None:
        stateless = demand.stateless
        evaluated = demand.evaluated if stateless else np.intersect1d(cohort, demand.evaluated)

    def by_rank(seconds: np.ndarray, clients: np.ndarray) -> np.ndarray:
        return np.bincount(placement[clients], seconds, cluster.ranks) / cluster.rank_speeds

    loads = {
        "train": by_rank(demand.train[cohort], cohort),
        "evaluate": demand.due * by_rank(demand.evaluate[evaluated], evaluated),
        "rest": by_rank(np.full(len(cohort), demand.rest), cohort),
    }
    total = np.sum(list(loads.values()), 0)
    parts = {name: float(load.mean()) * cluster.sharing for name, load in loads.items()}
    return parts | {"wait": slowest(total, cluster) - float(total.mean()) * cluster.sharing}


def upload_bytes(
    demand: Demand, groups: list[list[int]], placement: np.ndarray, cluster: Cluster
) -> np.ndarray:
    """Return the bytes of memory that the uploads of a round take on each rank, [R].

    placement: [K], the rank of each client.
    """
    cohort = np.array([k for ks in groups for k in ks], int)
    nbytes = np.bincount(placement[cohort], demand.upload_memory[cohort], cluster.ranks)
    return np.array([uploads(n) for n in nbytes])


def slowest(loads: np.ndarray, cluster: Cluster) -> float:
    """Return the seconds until the last rank has done its work.

    loads: seconds of each rank's work, alone on its cores or its GPU, [R]. Ranks on the same cores
    work equally slowly until the last one is done; of a GPU, those that are not done share all.
    """
    if not cluster.gpus:
        return float(loads.max()) * cluster.crowd
    ranks = np.arange(cluster.ranks)
    gpus = ranks // cluster.each * cluster.gpus + ranks % cluster.each % cluster.gpus
    by_gpu = np.bincount(gpus, loads) / cluster.at_once
    return float(max(loads.max(), by_gpu.max()))


def place_clients(demand: Demand, groups: Sequence[list[int]], cluster: Cluster) -> np.ndarray:
    """Return the rank of every client, [K], with groups kept together, by the rule of runs."""
    costs = [float(demand.train[ks].sum()) for ks in groups]
    ranks = place(costs, cluster.ranks, cluster.rank_speeds.tolist())
    placement = np.arange(len(demand.architectures)) % cluster.ranks  # of clients in no group
    for ks, rank in zip(groups, ranks, strict=True):
        placement[ks] = rank
    return placement


def communication(demand: Demand, cluster: Cluster, placement: np.ndarray) -> float:
    """Return the seconds of a round's messages, and of the arithmetic of exact sums.

    There are two barriers, the exchange and the record of the round. A value crosses the network
    once into the sum and once back; inside a node it is copied in memory.
    """
    nodes, each, far = cluster.nodes, cluster.each, cluster.network
    cohort = [k for ks in demand.cohorts[0] for k in ks]
    rows = np.bincount(placement[cohort], minlength=cluster.ranks).max()
    abroad = (nodes - 1) / nodes  # share of all values that cross the network
    work = demand.values * float(ROW * rows + TOTAL + SENT * abroad / each)
    if cluster.ranks == 1:
        return work
    nbytes = VALUE * demand.values + demand.uploads + CELL * len(demand.architectures)
    steps = (nodes - 1).bit_length()  # of a tree over nodes
    return (
        cluster.crowd * (work + nbytes * (each - 1) / each / MEMORY)
        + nbytes * abroad / far.bandwidth
        + far.latency * (10 * steps + 2 * (nodes - 1))
        + 4 * POLL * (cluster.ranks - 1).bit_length()
    )
