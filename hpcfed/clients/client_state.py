"""What one client keeps from round to round, where that lies, and what it was before a round that
does not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpcfed.comm import codec
from hpcfed.core.payload import map_tensors, nbytes, tensors
from hpcfed.machine.transfer import Transfer, locked
from hpcfed.storage.lru_store import LruStore
from hpcfed.storage.tiered_store import TieredStore

if TYPE_CHECKING:
    from hpcfed.clients.store import ClientStore


@dataclass
class ClientState:
    """What one client keeps from round to round: its weights, unless they are in a module, and its
    memory.
    """

    weights: Tensor | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return nbytes([self.weights, self.memory])

    @property
    def locked(self) -> int:
        """Bytes of it where all tensors are page-locked, each in a block of its own."""
        return sum(locked(tensor.nbytes) for _, tensor in tensors([self.weights, self.memory]))

    def encode(self) -> bytes:
        return codec.encode([self.weights, self.memory])

    @classmethod
    def decode(cls, data: bytes) -> ClientState:
        return cls(*codec.decode(data))

    def map_tensors(self, how: Callable[[Tensor], Tensor]) -> ClientState:
        """The same, with all tensors moved so."""
        return ClientState(map_tensors(self.weights, how), map_tensors(self.memory, how))


def state_store(
    folder: Path, resident: float, device: torch.device, room: float
) -> LruStore[ClientState]:
    """What clients keep: in the device's memory, then in the host's where that is another one, then
    on the disk.

    resident, room: bytes in the memory of the host and of a GPU. What comes from a GPU is
    page-locked, in blocks that may be up to twice as large: these count.
    """
    if device.type == "cpu":
        return LruStore(
            folder, resident, ClientState.encode, ClientState.decode, lambda kept: kept.nbytes
        )
    host: LruStore[ClientState] = LruStore(
        folder, resident, ClientState.encode, ClientState.decode, lambda kept: kept.locked
    )
    ferry = Transfer(device)
    return TieredStore(
        host,
        room,
        lambda kept: kept.map_tensors(ferry.down),
        lambda kept: kept.map_tensors(ferry.up),
        lambda kept: kept.nbytes,
    )


class UndoLog:
    """The clients that were used while it was open, as they were before.

    It holds the tensors themselves, not copies: a client's are replaced, never changed. shelf:
    where they are.
    """

    def __init__(self, store: ClientStore, shelf: LruStore[ClientState]):
        self.store, self.shelf, self.open = store, shelf, False
        # the clients that are in it; one that kept nothing is not on the shelf
        self.before: set[int] = set()

    def __contains__(self, k: int) -> bool:
        return k in self.before

    @contextmanager
    def set_recording(self, now: bool = True) -> Iterator[None]:
        """Clients that are used inside the block are noted.

        now = False: inside such a block, these are not.
        """
        before, self.open = self.open, now
        try:
            yield
        finally:
            self.open = before

    def note(self, k: int) -> None:
        """Client k is about to be used."""
        if not self.open or k in self.before:
            return
        self.before.add(k)
        self.store.settle(k)
        if kept := self.store.kept.get(k):
            self.shelf.put(k, replace(kept, memory=dict(kept.memory)))
            self.shelf.fit(keep=(k,))

    def drop(self, k: int) -> None:
        """Client k stays as it is now."""
        self.before.discard(k)
        self.shelf.drop(k)

    def clear(self) -> None:
        """All stay as they are now."""
        for k in list(self.before):
            self.drop(k)

    def undo(self) -> None:
        """Make all that were used what they were before."""
        for k in sorted(self.before):
            self.store.forget(k)
            if kept := self.shelf.get(k):
                self.store.put(k, kept.weights, kept.memory)
            self.drop(k)
