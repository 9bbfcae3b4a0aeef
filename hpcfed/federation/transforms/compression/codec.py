"""Codec: tensors to the bytes of one message, and back.

A message has, one after the other: a bit for each tensor of at least `min_size` values, which says
whether it travels as it is; the tensors that do so, as float32; and the encoded ones. Tensors
travel as they are if they are small, if a value is nan or infinite, or if their encoding is not
shorter. Shapes are not sent, because both sides know them.

Sender and receiver draw from the same named random stream, so that positions and rotations that
both can draw are not sent. Each tensor has a stream of its own, so that no draw depends on which
tensors are encoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from hpcfed.config.compression import Compression as Settings
from hpcfed.core import rng
from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.transforms.compression.bits import Reader

Shape = tuple[int, ...]


class Codec:
    """One mechanism of compression; subclasses define `pack`, `unpack` and `most_bytes_of`.

    `Compression` (`transform`) sends the messages: it adds what is lost to the next one (in
    `client.memory`), counts their bytes, and announces the most bytes that they may have.

    min_size: tensors with fewer values travel as they are.
    together: the tensors of a message are encoded as one vector.
    contracts: ||x - decoded||^2 <= (1 - c) ||x||^2 for a c > 0, but the decoded value is biased:
    then what is lost should be added to the next message. feedback = "auto" adds it for such codecs
    alone.
    has_memory: `memory` is used.
    """

    together = False
    contracts = False
    has_memory = False

    def __init__(self, min_size: int = 0) -> None:
        self.min_size = min_size

    @classmethod
    def of_job(cls, settings: Settings, unbiased: bool) -> Self:
        """Return the codec with the settings of a job; subclasses with settings replace it.

        unbiased: what is decoded should be right in the mean, because nothing that is lost is added
        to later messages.
        """
        return cls(min_size=settings.min_size)

    def pack(
        self, x: np.ndarray, generator: np.random.Generator, memory: dict[str, Any]
    ) -> bytes | None:
        """Encode one tensor of finite values, at least one; None: it travels as it is.

        memory: what the sender keeps for this tensor from message to message; it is changed.
        """
        raise NotImplementedError

    def unpack(self, reader: Reader, shape: Shape, generator: np.random.Generator) -> np.ndarray:
        """Return the tensor from what `pack` has written; the generator is that of `pack`."""
        raise NotImplementedError

    def most_bytes_of(self, shape: Shape) -> int:
        """Return the most bytes of one encoded tensor."""
        raise NotImplementedError

    def encode(
        self,
        tensors: Sequence[np.ndarray],
        generator: np.random.Generator,
        memory: dict[str, Any] | None = None,
    ) -> bytes:
        """Return the message of these float32 tensors.

        memory: what the sender keeps from message to message; it is changed.
        """
        memory = {} if memory is None else memory
        large = [i for i, x in enumerate(tensors) if self.is_large(x.shape)]
        codes: dict[int, bytes] = {}  # by tensor; of all together by the first one
        finite = [i for i in large if np.isfinite(tensors[i]).all()]
        groups = [finite] if self.together and finite else [[i] for i in finite]
        seed = int(generator.integers(2**63))
        for group in groups:
            i, size = group[0], sum(tensors[j].nbytes for j in group)
            x = np.concatenate([tensors[j].ravel() for j in group]) if self.together else tensors[i]
            entry = dict(memory.get(str(i), {}))
            code = self.pack(x, rng.stream(seed, "tensor", i), entry)
            if code is not None and len(code) < size:
                codes |= {i: code} | dict.fromkeys(group[1:], b"")
                if self.has_memory:
                    memory[str(i)] = entry
        raw = [x for i, x in enumerate(tensors) if i not in codes]
        flags = np.packbits(np.array([i not in codes for i in large], bool)).tobytes()
        return b"".join([flags, *(np.ascontiguousarray(x).tobytes() for x in raw), *codes.values()])

    def decode(
        self, message: bytes, shapes: Sequence[Shape], generator: np.random.Generator
    ) -> list[np.ndarray]:
        """Return the tensors of a message, float32.

        generator: at the state that that of `encode` began with.
        """
        reader = Reader(message)
        large = [i for i, shape in enumerate(shapes) if self.is_large(shape)]
        flags = np.unpackbits(reader.array("u1", bytes_of_bits(len(large))), count=len(large))
        encoded = [i for i, raw in zip(large, flags.tolist(), strict=True) if not raw]
        tensors = {
            i: reader.array("f4", math.prod(shape)).reshape(shape)
            for i, shape in enumerate(shapes)
            if i not in encoded
        }
        seed = int(generator.integers(2**63))
        if self.together and encoded:
            sizes = [math.prod(shapes[i]) for i in encoded]
            stream = rng.stream(seed, "tensor", encoded[0])
            x = self.unpack(reader, (sum(sizes),), stream)
            for i, part in zip(encoded, np.split(x, np.cumsum(sizes)[:-1]), strict=True):
                tensors[i] = part.reshape(shapes[i])
        else:
            for i in encoded:
                stream = rng.stream(seed, "tensor", i)
                tensors[i] = self.unpack(reader, shapes[i], stream).reshape(shapes[i])
        return [tensors[i].astype(np.float32, copy=False) for i in range(len(shapes))]

    def most_bytes(self, shapes: Sequence[Shape]) -> int:
        """Return the most bytes of a message of finite values."""
        large = [shape for shape in shapes if self.is_large(shape)]
        small = sum(4 * math.prod(shape) for shape in shapes if not self.is_large(shape))
        if self.together and large:
            large = [(sum(map(math.prod, large)),)]
        flags = bytes_of_bits(sum(map(self.is_large, shapes)))
        return (
            flags
            + small
            + sum(min(self.most_bytes_of(shape), 4 * math.prod(shape)) for shape in large)
        )

    def is_large(self, shape: Shape) -> bool:
        """Return whether a tensor of this shape has enough values to be encoded."""
        return math.prod(shape) >= max(1, self.min_size)


def count(share: float, n: int) -> int:
    """Return the number of values that are this share of n, at least one if there are any."""
    return min(n, math.ceil(share * n - 1e-9))
