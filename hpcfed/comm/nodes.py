"""Sums of ranks that share nodes: what a node's ranks give is added up in its memory first.

So a network carries a line of a message once for each node, and not once for each rank. A rank's
line is added up on another node by one rank of it, the same one to which the finished line is sent.
"""

from collections.abc import Sequence

import numpy as np

from hpcfed.comm.messages import Room, sum_lines
from hpcfed.comm.mpi_init import MPI
from hpcfed.comm.node_memory import NodeMemory

Spread = tuple[
    np.ndarray, np.ndarray
]  # counts and places of what a rank sends to, or has from, each other one


class Nodes:
    """The way of a large message (`messages.Ways`): room, lines and collect, in this order.

    world, node: all ranks, and those of this node.  node_of: the node of each rank, [R].
    """

    def __init__(
        self, world: MPI.Intracomm, node: MPI.Intracomm, node_of: Sequence[int], board: NodeMemory
    ):
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

    def room(self, lines: int, columns: int, dtype: np.dtype) -> Room:
        """The buffers of a message. sent, line and done lie in the node's memory.

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
        return Room(sent, got, done[rank], done)

    def lines(self, sent: np.ndarray, got: np.ndarray) -> None:
        """Every node's share of this rank's line, to `got`, [N, m].

        Of one node alone its ranks' shares, [R, m].
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
        """All ranks' finished lines, to the node's `done`, [R, m].

        Those of its own ranks are there.
        """
        if self.speakers:
            self.world.Alltoallv(
                [line, self.spread(self.speakers, [0] * len(self.speakers), len(line))],
                [done, self.spread(self.theirs, self.theirs, len(line))],
            )
        self.node.Barrier()

    def spread(self, ranks: Sequence[int], rows: Sequence[int], columns: int) -> Spread:
        """A row of so many columns for each of these ranks, nothing for the others."""
        counts, places = np.zeros((2, self.world.size), np.int64)
        counts[list(ranks)], places[list(ranks)] = columns, columns * np.array(rows, np.int64)
        return counts, places
