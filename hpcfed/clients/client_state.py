"""State that a client keeps between rounds, its storage, and the undo log of a round."""

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
    """Weights (unless they are in a module) and memory that one client keeps between rounds."""

    weights: Tensor | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return nbytes([self.weights, self.memory])

    @property
    def locked(self) -> int:
        """Bytes of page-locked memory for all tensors, each in a block of its own."""
        return sum(locked(tensor.nbytes) for _, tensor in tensors([self.weights, self.memory]))

    def encode(self) -> bytes:
        return codec.encode([self.weights, self.memory])

    @classmethod
    def decode(cls, data: bytes) -> ClientState:
        return cls(*codec.decode(data))

    def map_tensors(self, how: Callable[[Tensor], Tensor]) -> ClientState:
        """Return this state with `how` applied to every tensor."""
        return ClientState(map_tensors(self.weights, how), map_tensors(self.memory, how))


def state_store(
    folder: Path, resident: float, device: torch.device, device_bytes: float
) -> LruStore[ClientState]:
    """Make the store of the clients' states, from the fastest memory to the disk.

    On a GPU the states lie in its memory, then in the host's memory, then on the disk; on a CPU in
    the host's memory, then on the disk.
    resident: bytes in the host's memory. The copies of a GPU's tensors are page-locked, in blocks
    that may be up to twice as large as the tensors; the blocks count.
    device_bytes: bytes in the GPU's memory.
    """
    if device.type == "cpu":
        return LruStore(
            folder, resident, ClientState.encode, ClientState.decode, lambda state: state.nbytes
        )
    host: LruStore[ClientState] = LruStore(
        folder, resident, ClientState.encode, ClientState.decode, lambda state: state.locked
    )
    transfer = Transfer(device)
    return TieredStore(
        host,
        device_bytes,
        lambda state: state.map_tensors(transfer.down),
        lambda state: state.map_tensors(transfer.up),
        lambda state: state.nbytes,
    )


class UndoLog:
    """Undo log: the state of each client before its first use in this round.

    It holds the tensors themselves, not copies. A client's tensors are replaced, never changed.
    states: the store of these states.
    """

    def __init__(self, store: ClientStore, states: LruStore[ClientState]):
        self.store, self.states, self.open = store, states, False
        # all recorded clients; one without state is not in the store
        self.before: set[int] = set()

    def __contains__(self, k: int) -> bool:
        return k in self.before

    @contextmanager
    def set_recording(self, now: bool = True) -> Iterator[None]:
        """Record the clients that are used inside the block.

        now: False suspends the recording inside such a block.
        """
        before, self.open = self.open, now
        try:
            yield
        finally:
            self.open = before

    def note(self, k: int) -> None:
        """Record the state of client k, which is about to be used."""
        if not self.open or k in self.before:
            return
        self.before.add(k)
        self.store.settle(k)
        if state := self.store.states.get(k):
            self.states.put(k, replace(state, memory=dict(state.memory)))
            self.states.fit(keep=(k,))

    def drop(self, k: int) -> None:
        """Drop the record of client k, so that it keeps its present state."""
        self.before.discard(k)
        self.states.drop(k)

    def clear(self) -> None:
        """Drop all records, so that all clients keep their present states."""
        for k in list(self.before):
            self.drop(k)

    def undo(self) -> None:
        """Restore all recorded clients to their states before the round."""
        for k in sorted(self.before):
            self.store.forget(k)
            if state := self.states.get(k):
                self.store.put(k, state.weights, state.memory)
            self.drop(k)
