"""Hierarchical sums: contributions of a node's ranks are first added up in the node's memory.

So the network carries a line of a message once for each node instead of once for each rank. On
every other node one rank adds up a given rank's line; the finished line is sent to the same rank.
"""

from collections.abc import Sequence

import numpy as np

from hpcfed.comm.mpi_init import MPI
from hpcfed.comm.node_memory import NodeMemory
from hpcfed.comm.sum_messages import Buffers, sum_lines

# counts and offsets of values that a rank sends to, or receives from, each other rank
Spread = tuple[np.ndarray, np.ndarray]


class Nodes:
    """The operations of a large message (`messages.Ways`): buffers, lines, collect, in this order.

    world, node: the communicators of all ranks and of this node's ranks.
    node_of: the node of each rank, [R].
    """

    def __init__(self, world: MPI.Comm, node: MPI.Comm, node_of: Sequence[int], board: NodeMemory):
        self.world, self.node, self.board = world, node, board
        here, rank = node_of[world.rank], world.rank
        members = [
            [r for r, n in enumerate(node_of) if n == one] for one in range(max(node_of) + 1)
        ]
        speaker = [
            [ranks[members[node_of[r]].index(r) % len(ranks)] for ranks in members]
            for r in range(world.size)
        ]
        self.theirs = [
            r for r in range(world.size) if node_of[r] != here and speaker[r][here] == rank
        ]
        self.speakers = [r for one, r in enumerate(speaker[rank]) if one != here]

    def buffers(self, lines: int, columns: int, dtype: np.dtype) -> Buffers:
        """Return the buffers of a message. sent, line and done lie in the node's memory.

        A rank may write `sent` again after `collect`, and `line` after `lines` of the next message.
        """
        self.contributions, done = (
            self.board.contributions(columns),
            self.board.totals(columns, dtype),
        )
        sent, rank = self.contributions[self.node.rank], self.world.rank
        sent[:] = 0.0
        got = (
            np.empty((1 + len(self.speakers), columns))
            if self.speakers
            else self.contributions[:, rank]
        )
        self.shares = np.empty((len(self.theirs), columns))
        return Buffers(sent, got, done[rank], done)

    def lines(self, sent: np.ndarray, got: np.ndarray) -> None:
        """Write every node's share of this rank's line to `got`, [N, m].

        With a single node `got` has its ranks' shares, [R, m].
        """
        self.node.Barrier()
        if not self.speakers:
            return
        for r, out in [(self.world.rank, got[0]), *zip(self.theirs, self.shares, strict=True)]:
            sum_lines(self.contributions[:, r], out)
        rows, columns = range(len(self.theirs)), len(got[0])
        self.world.Alltoallv(
            [self.shares, self.spread(self.theirs, rows, columns)],
            [got, self.spread(self.speakers, range(1, len(got)), columns)],
        )

    def collect(self, line: np.ndarray, done: np.ndarray) -> None:
        """Write all ranks' finished lines to the node's `done`, [R, m].

        The lines of this node's own ranks are already there.
        """
        if self.speakers:
            self.world.Alltoallv(
                [line, self.spread(self.speakers, [0] * len(self.speakers), len(line))],
                [done, self.spread(self.theirs, self.theirs, len(line))],
            )
        self.node.Barrier()

    def spread(self, ranks: Sequence[int], rows: Sequence[int], columns: int) -> Spread:
        """Return counts and offsets for sending a row of these columns to each of the ranks.

        All other ranks get nothing.
        """
        counts, places = np.zeros((2, self.world.size), np.int64)
        counts[list(ranks)], places[list(ranks)] = columns, columns * np.array(rows, np.int64)
        return counts, places
