"""Compression of uploads and downloads: values become messages, and what arrives is decoded.

An upload has one message for each part. It encodes the float32 tensors: their difference to the
reference if the part is a new version of one, else the values. Weights of a `Mean`, statistics of
batch normalisation, whole numbers and other types travel as they are. If a tensor is decoded
without any loss, the server has the very value that was sent.

Error feedback, for a client's update u (Seide et al., Interspeech 2014; Stich et al.,
arXiv:1809.07599; Richtarik et al., arXiv:2106.05203):

    ef14    a = u + e;  send C(a);      e <- a - C(a);    the server takes C(a)
    ef21    c = C(u - g);  send c;      g <- g + c;       the server takes g

e and g are in the client's memory, and the server has a copy of g. They stay as they are while a
client is away, and if its turn fails. They belong to the part of the same name in the turn of the
same number of a round, and to positions in the mean's tensors if the part has such (`Mean.of(...,
at=...)`). Where a tensor has another shape than before, they start again from 0.

A download encodes the difference to what this client received last, or the value itself if that is
shorter. The server has this for each client (in the client's memory), so that what is lost is in
the next difference. What a client receives for the first time travels as it is. A client may
receive several values in a round: the n-th one belongs to the n-th one of the last round.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfed.core import rng
from hpcfed.core.payload import bytes_of_bits, nbytes
from hpcfed.federation.transforms.compression.codec import Codec
from hpcfed.federation.transforms.values import (
    Value,
    added,
    array,
    cells,
    tensor,
    turn_of,
    update_of,
    values_of,
    with_values,
)
from hpcfed.federation.upload import Transform, Upload

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation

T = TypeVar("T")
Feedback = Literal["none", "ef14", "ef21", "auto"]
STATE = "compression"  # in a client's memory


class Compression(Transform):
    """up, down: the codecs of uploads and downloads; None: they travel as they are.

    feedback: what is done with what uploads lose; auto: ef14 for new versions of a reference, ef21
    for other parts, which may be no updates but values that change little.
    """

    def __init__(self, up: Codec | None, down: Codec | None, feedback: Feedback) -> None:
        self.up, self.down, self.feedback = up, down, feedback
        self._encodes = False  # whether an upload had a tensor that is large enough
        self.keeps_state = bool(down or feedback != "none" or (up and up.has_memory))

    def of_trial(self) -> Announced:
        return Announced(self.up, self.down, self.feedback)

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        if self.up is None:
            return upload
        parts, sizes = {}, {}
        for name, part in upload.parts.items():
            values = list(values_of(part, upload.relative_to.get(name)))
            if not values:
                continue
            self._encodes = self._encodes or any(
                self.up.is_large(tuple(value.tensor.shape)) for value in values
            )
            rest = nbytes(part) - sum(value.tensor.nbytes for value in values)
            number = 0 if in_virtual_time(fed) else turn_of(fed, client)
            key = f"{number} {name}"
            received, length = self._encoded(fed, client, key, values, upload.lasting)
            parts[name] = with_values(part, received)
            sizes[name] = rest + length
        if fed.t and not self._encodes:
            fed.warnings.say(
                f"compression.by = {fed.job.compression.by!r} changes nothing: each tensor that "
                f"clients of {fed.job.algorithm.name} send has fewer values than "
                f"compression.min_size = {self.up.min_size}; set a smaller one"
            )
        return upload.changed(parts, sizes=sizes)

    def _encoded(
        self, fed: Federation, client: Client, key: str, values: list[Value], lasting: bool
    ) -> tuple[dict[str, Tensor], int]:
        """Return what the server receives of these values, by path, and the bytes of the message.

        key: of the client's memory for this part.
        """
        assert self.up is not None
        feedback = self.feedback if lasting else "none"
        if feedback == "auto":
            versions = any(value.reference is not None for value in values)
            feedback = "ef14" if versions else "ef21"
        # a method may send a gradient in the turn in which it sends a model in other rounds
        state = State(client, feedback, key)
        errors = [state.read(value) if feedback != "none" else None for value in values]
        updates = [update_of(value) for value in values]
        sign = np.float32(-1 if feedback == "ef21" else 1)
        targets = [
            update if error is None else update + sign * error
            for update, error in zip(updates, errors, strict=True)
        ]
        decoded, length = self._exchange(fed, client, self.up, "compress", key, targets)
        received = {}
        for value, update, error, target, code in zip(
            values, updates, errors, targets, decoded, strict=True
        ):
            exact = code.tobytes() == target.tobytes()
            arrived = code if error is None or feedback == "ef14" else error + code
            if exact and (error is None or feedback == "ef21"):
                arrived, received[value.path] = update, value.tensor
            else:
                received[value.path] = added(value, arrived)
            if feedback == "ef14":
                state.write(value, None if exact else target - code)
            elif feedback == "ef21":
                state.write(value, arrived)
        state.save()
        return received, length

    def download(self, fed: Federation, client: Client, value: T) -> tuple[T, int | None]:
        values = list(values_of(value)) if self.down else []
        if self.down is None or not values:
            return value, None
        rest = nbytes(value) - sum(v.tensor.nbytes for v in values)
        key = str(self._number_of_download(fed, client))
        state = State(client, "down", key)
        repeated, starts, targets = [], [], []
        for v in values:
            before = state.read(v)
            if before is not None and np.isfinite(before).all():
                x = array(v.tensor)
                start = nearer(x, before)
                repeated.append(v)
                starts.append(start)
                targets.append(x - start)
            else:
                rest += v.tensor.nbytes
        received: dict[str, Tensor] = {v.path: v.tensor for v in values}
        if repeated:
            decoded, length = self._exchange(fed, client, self.down, "down", key, targets)
            rest += length + bytes_of_bits(len(repeated))
            for v, start, target, code in zip(repeated, starts, targets, decoded, strict=True):
                if code.tobytes() != target.tobytes():
                    received[v.path] = tensor(start + code, v.tensor)
        for v in values:
            state.write(v, array(received[v.path]))
        state.save()
        return with_values(value, received), rest

    def _exchange(
        self,
        fed: Federation,
        client: Client,
        codec: Codec,
        purpose: str,
        key: str,
        targets: list[np.ndarray],
    ) -> tuple[list[np.ndarray], int]:
        """Encode tensors and decode their message; return what is decoded, and its bytes.

        Both sides draw from the stream of this name.
        """
        start = perf_counter()
        name = (purpose, fed.moment, client.id, turn_of(fed, client), key)
        shapes = [target.shape for target in targets]
        memory = State(client, f"{purpose} codec", key)
        message = codec.encode(targets, rng.stream(fed.seed, *name), memory.entries)
        if codec.has_memory:
            memory.save()
        decoded = codec.decode(message, shapes, rng.stream(fed.seed, *name))
        fed.clock.add("communicate", perf_counter() - start)
        return decoded, len(message)

    def _number_of_download(self, fed: Federation, client: Client) -> int:
        """Return the number of this download, from 0, among those of its client in the round.

        In virtual time, among those of its turn.
        """
        now = [fed.t, turn_of(fed, client) if in_virtual_time(fed) else 0]
        state = dict(client.memory.get(STATE, {}))
        number = state["downloads"] if state.get("now") == now else 0
        client.memory[STATE] = state | {"now": now, "downloads": number + 1}
        return number


class Announced(Compression):
    """Compression in a trial: values travel as they are, with the most bytes of their messages."""

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        sizes = {}
        for name, part in upload.parts.items() if self.up else ():
            values = list(values_of(part, upload.relative_to.get(name)))
            if values:
                sizes[name] = self._most_bytes(self.up, part, values)
        return upload.changed({}, sizes=sizes)

    def download(self, fed: Federation, client: Client, value: T) -> tuple[T, int | None]:
        """Return a value, and the bytes for a client that has received such a one before."""
        values = list(values_of(value)) if self.down else []
        if not values:
            return value, None
        return value, self._most_bytes(self.down, value, values) + bytes_of_bits(len(values))

    def _most_bytes(self, codec: Codec | None, part: Any, values: list[Value]) -> int:
        """Return the most bytes of a part, some values of which are encoded."""
        assert codec
        rest = nbytes(part) - sum(value.tensor.nbytes for value in values)
        return rest + codec.most_bytes([value.tensor.shape for value in values])


class State:
    """What a client's memory has for one part: arrays by path.

    A client's memory is replaced, never changed, because the state before a round is restored if
    the round is repeated.
    """

    def __init__(self, client: Client, way: str, key: str) -> None:
        self._client, self._way, self._key = client, way, key
        self.entries: dict[str, Any] = dict(self._memory().get(way, {}).get(key, {}))

    def _memory(self) -> dict[str, Any]:
        return self._client.memory.get(STATE, {})

    def read(self, value: Value) -> np.ndarray | None:
        """Return the array of a value, in its shape; None: there is none."""
        array, shape = self.entries.get(value.path), tuple(value.tensor.shape)
        if array is None:
            return None
        if value.at is None:
            return array if array.shape == shape else None
        wide = widened(array, value)
        return None if wide is None else wide[cells(value.at)]

    def write(self, value: Value, new: np.ndarray | None) -> None:
        """Set the array of a value; None: zeros."""
        before = self.entries.get(value.path)
        if value.at is None:
            self.entries.pop(value.path, None)
            if new is not None:
                self.entries[value.path] = new
        elif new is not None or before is not None:
            empty = np.zeros((0,) * len(value.tensor.shape), np.float32)
            wide = widened(empty if before is None else before, value)
            wide = widened(empty, value) if wide is None else wide
            assert wide is not None
            wide[cells(value.at)] = 0 if new is None else new
            self.entries[value.path] = wide

    def save(self) -> None:
        """Write the arrays into the client's memory."""
        memory = dict(self._memory())
        by_key = dict(memory.pop(self._way, {}))
        by_key.pop(self._key, None)
        if self.entries:
            by_key[self._key] = self.entries
        if by_key:
            memory[self._way] = by_key
        if memory or STATE in self._client.memory:
            self._client.memory[STATE] = memory


def widened(array: np.ndarray, value: Value) -> np.ndarray | None:
    """Return a copy of an array that is large enough for the positions of a value, with zeros.

    None: the dimensions without positions have other sizes.
    """
    assert value.at is not None
    n, shape = len(value.at), tuple(value.tensor.shape)
    if array.ndim != len(shape) or (array.size and array.shape[n:] != shape[n:]):
        return None
    needed = [int(torch.as_tensor(axis).max()) + 1 if len(axis) else 0 for axis in value.at]
    sizes = [max(old, new) for old, new in zip(array.shape, needed, strict=False)]
    wide = np.zeros((*sizes, *shape[n:]), np.float32)
    if array.size:
        wide[tuple(slice(size) for size in array.shape)] = array
    return wide


def in_virtual_time(fed: Federation) -> bool:
    """Return whether a client may have any number of turns in a round, all of them alike."""
    return fed.job.algorithm.in_virtual_time


def nearer(x: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return which is nearer to a tensor, the one before it or zeros."""
    if not np.isfinite(x).all():
        return np.zeros_like(x)
    near = np.linalg.norm(np.float64(x) - before) <= np.linalg.norm(np.float64(x))
    return before if near else np.zeros_like(x)
