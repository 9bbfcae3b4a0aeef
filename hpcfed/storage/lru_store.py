"""LRU store of values by client: the least recently used are on disk, one file each.

One background thread writes values that leave memory and prefetches values that are needed next. It
works through its requests in order, so a value read is never older than the one written.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeVar

from hpcfed.core.errors import HpcfedError, may_pass

T = TypeVar("T")
BEHIND = 8  # values that may wait to be written, which bounds their memory


class LruStore(Generic[T]):
    """Values by number, of which as many as fit are in memory.

    limit: bytes in memory, in addition to those being written or read.
    folder: made when the first value leaves memory, and removed by `close`.
    encode, decode: conversion of a value to bytes and back, bit for bit, called in the background.
    size: bytes of a value.
    Methods raise HpcfedError if the disk refuses a write, or does not give back what was written.
    """

    def __init__(
        self,
        folder: Path,
        limit: float,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        size: Callable[[T], int],
    ):
        self.folder, self.limit, self.encode, self.decode, self.size = (
            folder,
            limit,
            encode,
            decode,
            size,
        )
        self.in_memory: OrderedDict[int, T] = OrderedDict()  # the most recently used last
        self.sizes: dict[int, int] = {}  # of those in memory, when last measured
        self.total = 0  # their sum
        self.used: set[int] = set()  # those that may have grown since
        self.away: set[int] = set()  # on disk, or on their way there
        self.reading: dict[int, Future] = {}
        self.writing: deque[Future] = deque()
        self.failed: HpcfedError | None = None
        self.waited = 0.0  # seconds spent waiting for the disk
        self.thread: ThreadPoolExecutor | None = None

    def __contains__(self, k: int) -> bool:
        return k in self.in_memory or k in self.away

    def __iter__(self) -> Iterator[int]:
        return iter(sorted([*self.in_memory, *self.away]))

    def get(self, k: int) -> T | None:
        """Return the value, None if there is none; it becomes the most recently used."""
        if k in self.away:
            self.in_memory[k] = self.fetch(k)
            self.away.remove(k)
            self.reading.pop(k, None)
        if k not in self.in_memory:
            return None
        self.in_memory.move_to_end(k)
        self.used.add(k)
        return self.in_memory[k]

    def put(self, k: int, value: T) -> None:
        """Store this value as the most recently used."""
        self.drop(k)
        self.in_memory[k] = value
        self.used.add(k)

    def peek(self, k: int) -> T | None:
        """Return the value for reading only; a value on disk stays there."""
        return self.fetch(k) if k in self.away else self.in_memory.get(k)

    def drop(self, k: int) -> None:
        """Delete the value."""
        self.in_memory.pop(k, None)
        self.total -= self.sizes.pop(k, 0)
        self.used.discard(k)
        self.away.discard(k)
        self.reading.pop(k, None)

    def fit(self, keep: Collection[int]) -> None:
        """Write the least recently used values to disk until the others fit.

        keep: numbers of values that stay in memory in any case.
        """
        for k in self.used:
            size = self.size(self.in_memory[k])
            self.total += size - self.sizes.get(k, 0)
            self.sizes[k] = size
        self.used = set()
        if self.total > self.limit:
            for k in [k for k in self.in_memory if k not in keep]:
                self.send(k)
                if self.total <= self.limit:
                    return

    def prefetch(self, ks: Iterable[int]) -> None:
        """Read those of these values that are on disk in the background.

        The others become the most recently used.
        """
        for k in ks:
            if k in self.in_memory:
                self.in_memory.move_to_end(k)
            if k in self.away and k not in self.reading:
                self.reading[k] = self.order(self.read, k)

    def close(self) -> None:
        """Drop all values, and remove the files."""
        if self.thread:
            self.thread.shutdown(cancel_futures=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    def send(self, k: int) -> None:
        """Write a value to disk in the background; wait if many writes are pending."""
        value = self.in_memory[k]
        self.drop(k)
        self.away.add(k)
        self.writing.append(self.order(self.write, k, value))
        if len(self.writing) > BEHIND:
            self.wait(self.writing.popleft())

    def fetch(self, k: int) -> T:
        """Return a value that is on disk, once it is read."""
        return self.wait(self.reading.get(k) or self.order(self.read, k))

    def order(self, work: Callable[..., Any], *about: Any) -> Future:
        """Submit this work to the background thread, after all earlier requests."""
        self.thread = self.thread or ThreadPoolExecutor(1, "spill")
        return self.thread.submit(work, *about)

    def wait(self, done: Future) -> Any:
        start = perf_counter()
        result = done.result()
        self.waited += perf_counter() - start
        return result

    def path(self, k: int) -> Path:
        return self.folder / f"{k}.bin"

    def write(self, k: int, value: T) -> None:
        """Write a value in the background.

        After a failure nothing more is written, and every later request raises the error.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.path(k).write_bytes(self.encode(value))
        except OSError as error:
            self.failed = self.failed or HpcfedError(
                f"{self.path(k)}: clients that do not fit in run.resident cannot be written: "
                f"{error.strerror}; "
                "make room, choose another run folder (out), or raise run.resident"
            )
            self.failed.again = may_pass(error)
        if self.failed:
            raise self.failed

    def read(self, k: int) -> T:
        """Read a value in the background.

        Raises HpcfedError for a file that is missing, damaged or cannot be read; a run that is
        resumed writes its files anew.
        """
        if self.failed:
            raise self.failed
        try:
            return self.decode(self.path(k).read_bytes())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            unreadable = HpcfedError(
                f"{self.path(k)}: clients that do not fit in run.resident cannot be read again: "
                f"{why}; check the disk and continue with --resume, choose another run folder "
                "(out), or raise run.resident"
            )
            unreadable.again = True
            raise unreadable from error
