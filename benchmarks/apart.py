"""Candidates in processes of their own: what one sets for its process (the allocator, say) must not
help the other.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

CONTEXT = multiprocessing.get_context("spawn")


class Apart:
    """`make(*args)()` in a process of its own, with one torch thread: calling this runs it there
    once and waits.

    make, args: what pickle takes; a function at the top of a module. Used as a context, at whose
    end the process ends.
    """

    def __init__(self, make: Callable[..., Callable[[], Any]], *args: Any):
        self.ours, theirs = CONTEXT.Pipe()
        os.environ["OMP_NUM_THREADS"] = "1"  # the process takes it over
        self.process = CONTEXT.Process(target=serve, args=(theirs, make, args), daemon=True)
        self.process.start()
        theirs.close()
        self.ours.recv()  # it is ready

    def __call__(self) -> Any:
        self.ours.send(True)
        return self.ours.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self.ours.close()
        self.process.join()


def serve(pipe: Connection, make: Callable[..., Callable[[], Any]], args: tuple[Any, ...]) -> None:
    """In the process: run what was made as often as it is asked for. The caller gets EOFError where
    it fails.
    """
    import torch

    torch.set_num_threads(1)
    run = make(*args)
    pipe.send(True)
    while True:
        try:
            pipe.recv()
        except EOFError:  # the other end is closed
            return
        pipe.send(run() is not None)
