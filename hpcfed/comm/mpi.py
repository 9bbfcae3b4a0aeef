"""Comm over MPI: buffers only, one call where the count allows it, never a pickle.

`connect` imports this file; importing it starts MPI.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from time import monotonic, sleep
from typing import NoReturn, TypeVar

import numpy as np

from hpcfed.comm import node_memory, shared_memory
from hpcfed.comm.codec import decode, encode
from hpcfed.comm.mpi_init import MPI
from hpcfed.comm.node_memory import NodeMemory
from hpcfed.comm.nodes import Nodes
from hpcfed.comm.protocol import Arrays, Into, Row, Rows, union, valid_rank
from hpcfed.comm.rank_failure import RankFailures, raise_rank_lost
from hpcfed.comm.sum_messages import Ways, exact_sum, private_buffers

T = TypeVar("T")
SHORT, LONG = (
    2e-5,
    2e-4,
)  # seconds between two polls of a rank that waits: at first, and later
POLL = 2e-4  # seconds in which ranks in step gather or broadcast; longer: one prepares something


class Mpi(RankFailures):
    """One MPI process of COMM_WORLD; its methods are those of `Comm`.

    limit: the largest count in one MPI call, as the C interface before MPI 4 has it; larger buffers
    are sent in pieces. Tests make it small.
    """

    @raise_rank_lost
    def __init__(self, limit: int = 2**31 - 1) -> None:
        self.limit, self._node = limit, MPI.COMM_NULL
        self._world: MPI.Comm = MPI.COMM_WORLD
        self._join(MPI.COMM_WORLD.Dup())  # separates other libraries' messages from ours

    def _join(self, world: MPI.Comm) -> None:
        """Use this communicator from now on."""
        self._world, self._node = world, MPI.COMM_NULL
        self.__dict__.pop("_ways", None)  # cached for the former ranks
        self._node = self._near(world)
        self.rank, self.size = world.rank, world.size
        self.local_rank = self._node.rank
        self.node_of = self._nodes()

    @staticmethod
    def _near(world: MPI.Comm) -> MPI.Comm:
        """Return the communicator of the ranks that share this rank's memory."""
        return world.Split_type(MPI.COMM_TYPE_SHARED)

    def _nodes(self) -> tuple[int, ...]:
        leader_rank = np.array([self.rank])
        self._node.Bcast(leader_rank, 0)  # a node is identified by its first rank
        firsts = self._allgather(int(leader_rank[0]))
        return tuple(sorted(set(firsts)).index(leader) for leader in firsts)

    @raise_rank_lost
    def sum(
        self,
        rows: Sequence[Row] | Rows,
        shapes: Sequence[tuple[int, ...]],
        factors: Sequence[float] = (),
        into: Into | None = None,
    ) -> list[np.ndarray]:
        return exact_sum(self._ways, rows, shapes, factors, into)

    @cached_property
    def _ways(self) -> Ways:
        """The operations by which these ranks add up; collective on first use."""
        common = self._board() if self.size > max(self.node_of) + 1 else None
        nodes = Nodes(self._world, self._node, self.node_of, common) if common else None
        return Ways(
            self.rank,
            self.size,
            nodes.buffers if nodes else private_buffers,
            highest=lambda x: self._allreduce(x, MPI.MAX),
            total=lambda x: self._allreduce(x, MPI.SUM),
            lines=nodes.lines
            if nodes
            else self._world.Alltoall,  # Reduce_scatter would add up the lines
            collect=nodes.collect if nodes else self._world.Allgather,
        )  # itself, several times slower

    def _board(self) -> NodeMemory | None:
        """Return this rank's view of the memory that its node's ranks share; collective.

        Returns None unless all nodes have space for it and all ranks can map it.
        """
        each = self._node.size
        board = self._in_memory(
            lambda: (node_memory.make(each, self.size), each, self.size), node_memory.look
        )
        return board if min(self._allgather(board is not None)) else None

    def _in_memory(self, make: Callable[[], tuple], look: Callable[..., T]) -> T:
        """Return look(path, ...) on all ranks of a node, for a shared file that one of them made.

        The file is removed afterwards.
        make: called by one rank of each node; returns the path of the file, or "", and the other
        arguments of `look`.
        """
        leads, file = self.local_rank == 0, ("",)
        try:
            file = make() if leads else file
            view = look(*decode(self._bcast(self._node, encode(file) if leads else None, 0)))
            self._node.Barrier()  # all have it
            return view
        finally:
            if file[0]:
                os.unlink(file[0])

    @raise_rank_lost
    def sum_words(self, words: np.ndarray) -> None:
        self._allreduce(words, MPI.SUM)

    @raise_rank_lost
    def gather(self, items: dict[int, T]) -> dict[int, T]:
        mine = encode(items)
        sizes = self._allgather(len(mine))
        if sum(sizes) > self.limit:
            return union(
                self._bcast(self._world, mine if rank == self.rank else None, rank)
                for rank in range(self.size)
            )
        every = np.empty(sum(sizes), np.uint8)
        starts = np.cumsum([0, *sizes[:-1]])
        self._world.Allgatherv(
            [np.frombuffer(mine, np.uint8), MPI.BYTE], [every, (sizes, starts), MPI.BYTE]
        )
        return union(part.tobytes() for part in np.split(every, starts[1:]))

    @raise_rank_lost
    def bcast(self, item: T | None, root: int = 0) -> T:
        valid_rank("root", root, self.size)
        return decode(self._bcast(self._world, encode(item) if self.rank == root else None, root))

    @raise_rank_lost
    def move(self, item: T | None, src: int, dst: int) -> T | None:
        valid_rank("src", src, self.size)
        valid_rank("dst", dst, self.size)
        if src == dst == self.rank:
            return decode(encode(item))
        if self.rank == src:
            self._send(encode(item), dst)
        return decode(self._receive(src)) if self.rank == dst else None

    @raise_rank_lost
    def barrier(self, word: int = 0) -> int:
        """Wait for all ranks, as `Comm.barrier` does, without keeping the core busy.

        Ranks wait here for one another's training, and another rank may need the core.
        """
        highest = np.array([word], np.int64)
        wait(self._world.Iallreduce(MPI.IN_PLACE, highest, MPI.MAX))
        return int(highest[0])

    @raise_rank_lost
    def share(self, build: Callable[[], Arrays]) -> Arrays:
        def make() -> tuple[str, shared_memory.Plan]:
            built = {name: np.asarray(array) for name, array in build().items()}
            return shared_memory.write(built), shared_memory.plan_of(built)

        return self._in_memory(make, shared_memory.read)

    def abort(self, status: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(status)
        raise SystemExit(status)  # not reached: Abort does not return

    @raise_rank_lost
    def close(self) -> None:
        self._world.Barrier()
        if self.lost:
            return  # freeing, or ending MPI, may wait for dead ranks: the process ends without
        self._node.Free()
        self._world.Free()

    def _pieces(self, flat: np.ndarray) -> Iterator[np.ndarray]:
        return (flat[start : start + self.limit] for start in range(0, flat.size, self.limit))

    def _allreduce(self, flat: np.ndarray, op: MPI.Op) -> np.ndarray:
        for piece in self._pieces(flat):
            self._world.Allreduce(MPI.IN_PLACE, piece, op)
        return flat

    def _allgather(self, value: int) -> list[int]:
        values = np.empty(self.size, np.int64)
        wait(self._world.Iallgather(np.array([value], np.int64), values), POLL)
        return values.tolist()

    def _bcast(self, comm: MPI.Comm, data: bytes | None, root: int) -> bytes:
        """Return the root's bytes on all ranks of comm. data: None on the other ranks."""
        size = np.array([len(data or b"")], np.int64)
        wait(comm.Ibcast(size, root), POLL)
        flat = np.empty(size[0], np.uint8) if data is None else np.frombuffer(data, np.uint8)
        for piece in self._pieces(flat):
            comm.Bcast(piece, root)
        return flat.tobytes() if data is None else data

    def _send(self, data: bytes, dst: int) -> None:
        self._world.Send(np.array([len(data)], np.int64), dst)
        for piece in self._pieces(np.frombuffer(data, np.uint8)):
            self._world.Send(piece, dst)

    def _receive(self, src: int) -> bytes:
        size = np.empty(1, np.int64)
        self._world.Recv(size, src)
        flat = np.empty(size[0], np.uint8)
        for piece in self._pieces(flat):
            self._world.Recv(piece, src)
        return flat.tobytes()


def wait(request: MPI.Request, at_first: float = 0.0) -> None:
    """Wait for a request without keeping the core busy, which another rank may need.

    at_first: seconds of polling without a pause, for calls that usually take less.
    """
    pause, end = SHORT, monotonic() + at_first
    while not request.Test():
        if monotonic() >= end:
            sleep(pause)
            pause = min(2 * pause, LONG)
