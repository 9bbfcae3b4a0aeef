"""A store on top of another, such as a GPU's memory over the host's memory over the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpcfed.storage.lru_store import LruStore

T = TypeVar("T")


class TieredStore(LruStore[T]):
    """Values by number, of which as many as fit are in this tier.

    The others are in the store below, which only this store's background thread uses.
    limit, size: as in `LruStore`.
    down, up: conversion of a value to its form below, and back, called in the background.
    """

    def __init__(
        self,
        below: LruStore[T],
        limit: float,
        down: Callable[[T], T],
        up: Callable[[T], T],
        size: Callable[[T], int],
    ):
        super().__init__(below.folder, limit, below.encode, below.decode, size)
        self.below, self.down, self.up = below, down, up

    def get(self, k: int) -> T | None:
        was_away = k in self.away
        value = super().get(k)
        if was_away:
            self.order(self.below.drop, k)
        return value

    def drop(self, k: int) -> None:
        if k in self.away:
            self.order(self.below.drop, k)
        super().drop(k)

    def close(self) -> None:
        super().close()
        self.below.close()

    def write(self, k: int, value: T) -> None:
        self.below.put(k, self.down(value))
        self.below.fit(keep=())

    def read(self, k: int) -> T:
        return self.up(self.below.peek(k))  # type: ignore[arg-type]  # it is there
