"""Comm of a single process: what a laptop run needs, without any MPI library."""

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import numpy as np

from hpcfed.comm.codec import decode, encode
from hpcfed.comm.exact import exact_sum
from hpcfed.comm.protocol import Arrays, Row, read_only, union, valid_rank

T = TypeVar("T")


class Serial:
    """One rank, which is alone; the verbs are those of `Comm`."""

    rank, size, local_rank = 0, 1, 0
    node_of: tuple[int, ...] = (0,)

    def sum(self, rows: Sequence[Row], shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        return exact_sum(rows, shapes, self.rank, self.size, highest=lambda x: x, total=lambda x: x)

    def gather(self, items: dict[int, T]) -> dict[int, T]:
        return union([encode(items)])

    def bcast(self, item: T, root: int = 0) -> T:
        valid_rank("root", root, self.size)
        return decode(encode(item))

    def move(self, item: T | None, src: int, dst: int) -> T | None:
        valid_rank("src", src, self.size)
        valid_rank("dst", dst, self.size)
        return decode(encode(item))

    def barrier(self) -> None:
        """Nobody to wait for."""

    def share(self, build: Callable[[], Arrays]) -> Arrays:
        return read_only(build())

    def abort(self, status: int) -> NoReturn:
        raise SystemExit(status)

    def close(self) -> None:
        """Nothing is held."""
