"""Comm of a single process, as a run on a laptop needs it; works without an MPI library."""

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import numpy as np

from hpcfed.comm.codec import decode, encode
from hpcfed.comm.protocol import Arrays, Into, Row, Rows, read_only, union, valid_rank
from hpcfed.comm.sum_messages import Ways, exact_sum, private_buffers

T = TypeVar("T")


class Serial:
    """The only rank; its methods are those of `Comm`."""

    rank, size, local_rank, lost = 0, 1, 0, 0
    node_of: tuple[int, ...] = (0,)

    def sum(
        self,
        rows: Sequence[Row] | Rows,
        shapes: Sequence[tuple[int, ...]],
        factors: Sequence[float] = (),
        into: Into | None = None,
    ) -> list[np.ndarray]:
        ways = Ways(
            0,
            1,
            private_buffers,
            highest=lambda x: x,
            total=lambda x: x,
            lines=np.copyto,
            collect=np.copyto,
        )
        return exact_sum(ways, rows, shapes, factors, into)

    def sum_words(self, words: np.ndarray) -> None:
        """Do nothing: there are no words of other ranks."""

    def gather(self, items: dict[int, T]) -> dict[int, T]:
        return union([encode(items)])

    def bcast(self, item: T | None, root: int = 0) -> T:
        valid_rank("root", root, self.size)
        return decode(encode(item))

    def move(self, item: T | None, src: int, dst: int) -> T | None:
        valid_rank("src", src, self.size)
        valid_rank("dst", dst, self.size)
        return decode(encode(item))

    def barrier(self, word: int = 0) -> int:
        return word

    def share(self, build: Callable[[], Arrays]) -> Arrays:
        return read_only(build())

    def confirm(self) -> None:
        """Do nothing: there is no other rank that could die."""

    def has_lost_rank(self) -> bool:
        return False

    def shrink(self) -> list[int]:
        """Return an empty list: there is no other rank that could die."""
        return []

    def abort(self, status: int) -> NoReturn:
        raise SystemExit(status)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
