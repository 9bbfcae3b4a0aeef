"""Seconds of a run's collectives (comm.mpi, comm.sum_messages) on ranks of several nodes.

Each collective is a number of steps, each a message (`Network`), inside a node or between nodes, as
in Open MPI 5. If libraries choose an algorithm by size, the faster one counts. Thakur,
Rabenseifner, Gropp, IJHPCA 19 (2005) 49-66.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcfed.comm.node_memory import size_of
from hpcfed.comm.sum_messages import ITEM, SMALL, WORK, private_buffer_bytes, width
from hpcfed.launch.plan.network import Network

LOOK = 2e-4  # seconds between two polls of a rank in a barrier (comm.mpi.LONG)
NEAR = Network(1e-6, 1e10)  # between ranks of one node, through its memory
WIDE, NARROW = (
    ITEM,
    4,
)  # bytes of a value on its way into a sum, and of a model's value on its way out


@dataclass(frozen=True)
class Wires:
    """The network of nodes with `each` ranks.

    near, far: the network inside a node, and that of one node to the others.
    """

    nodes: int
    each: int
    far: Network
    near: Network = NEAR

    @property
    def ranks(self) -> int:
        return self.nodes * self.each

    @property
    def abroad(self) -> float:
        """Values that a rank sends to other nodes, as a share of those of a sum.

        They are its part of the sum of its node.
        """
        return (self.nodes - 1) / (self.nodes * self.each)

    def barrier(self) -> float:
        """Return the seconds of a barrier: up a tree and down again.

        A rank sees each step when it polls next.
        """
        return 2 * (
            log2(self.each) * (self.near.latency + LOOK)
            + log2(self.nodes) * (self.far.latency + LOOK)
        )

    def allreduce(self, nbytes: float) -> float:
        """Return the seconds of an allreduce: up a tree, first inside nodes, and down again."""
        return 2 * (
            log2(self.each) * self.near.message(nbytes)
            + log2(self.nodes) * self.far.message(nbytes)
        )

    def allgather(self, nbytes: float) -> float:
        """Return the seconds of an allgather of nbytes from each rank.

        It is done inside a node, then between nodes, and then to all ranks of a node. Nodes
        exchange data by doubling, which has few steps, or round a ring, whose steps are short.
        """
        node, whole = nbytes * self.each, nbytes * self.ranks
        doubling = sum(self.far.message(node * 2**i) for i in range(log2(self.nodes)))
        ring = (self.nodes - 1) * self.far.message(node)
        inside = (self.each - 1) * self.near.message(nbytes)
        return (
            inside
            + min(doubling, ring)
            + (log2(self.each) * self.near.message(whole) if self.nodes > 1 else 0.0)
        )

    def lines(self, nbytes: float) -> float:
        """Return the seconds to send a line of nbytes to, or from, each rank.

        First in a node's memory, then to one node after the other. All ranks of a node use its
        connection at once, one for each other node.
        """
        inside = (self.each - 1) * self.near.message(self.nodes * nbytes)
        return inside + (self.nodes - 1) * self.far.message(nbytes, self.each)

    def bcast(self, nbytes: float) -> float:
        """Return the seconds of a broadcast: down a tree, first from node to node."""
        return log2(self.nodes) * self.far.message(nbytes) + log2(self.each) * self.near.message(
            nbytes
        )

    def gather(self, nbytes: float) -> float:
        """Return the seconds of `Comm.gather`: the sizes, then nbytes in all."""
        return self.allgather(8) + self.allgather(nbytes / self.ranks)

    def sum(self, values: int, arrays: int) -> float:
        """Return the seconds of `Comm.sum` of a model: one maximum, then messages.

        values: of the model.
        arrays: their number, without the weight.
        """
        if self.ranks == 1 or not values:
            return 0.0
        small = self.allreduce(8 * (arrays + 1 + self.ranks)) + self.allreduce(2 * WIDE)
        if values <= SMALL:
            return small + self.allreduce(WIDE * values)
        line = width(values, self.ranks)
        messages = -(-values // (self.ranks * line))
        return small + messages * (self.lines(WIDE * line) + self.lines(NARROW * line))


def buffers(wires: Wires, values: int) -> float:
    """Return the bytes of a large message on each rank, as `comm` allocates them.

    They include the rank's part of its node's shared memory.
    """
    if wires.ranks == 1 or values <= SMALL:
        return 0.0
    columns = width(values, wires.ranks) + 1
    if wires.each == 1:
        return private_buffer_bytes(wires.ranks, columns, NARROW)
    # lines: of other nodes, for them, and its own (comm.nodes)
    abroad = 2 * wires.nodes - 1 if wires.nodes > 1 else 0
    return size_of(wires.each, wires.ranks) / wires.each + WIDE * columns * (abroad + WORK)


def log2(n: int) -> int:
    """Return the steps of doubling from 1 to n."""
    return (n - 1).bit_length()
