"""Serialisation without pickle: a JSON header, then the raw little-endian bytes of all arrays.

Carries None, bool, int, float, str, list, tuple, dict (keys str or int), numpy arrays and scalars
of bool, int and float, torch tensors, and registered classes.
Layout: MAGIC, length of the header (8 bytes), header, arrays.
"""

import json
import math
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"hpcfed1\n"
START = struct.Struct("<8sQ")
PLAIN = (type(None), bool, int, float, str)
DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
TENSORS = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}  # bytes a value


class Kind(NamedTuple):
    """A registered class: its tag in the header and its conversion to and from a plain value."""

    tag: str
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


_KINDS: dict[type, Kind] = {}


def register(
    cls: type, tag: str, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]
) -> None:
    """Register a class so that `encode` accepts its instances.

    Instances are sent as to_plain(value), which must not be of the class itself. Subclasses are not
    included. Raises ValueError if another class has the tag.
    """
    if any(kind.tag == tag and other is not cls for other, kind in _KINDS.items()):
        raise ValueError(f"codec: the tag {tag!r} is taken")
    _KINDS[cls] = Kind(tag, to_plain, from_plain)


def encode(item: Any) -> bytes:
    """Return the item as bytes.

    Raises TypeError for a type that the codec does not carry; the message names it.
    """
    arrays = _Arrays()
    header = json.dumps(_pack(item, arrays), separators=(",", ":")).encode()
    arrays.wait()
    return b"".join([START.pack(MAGIC, len(header)), header, *(a.data for a in arrays)])


def decode(data: bytes) -> Any:
    """Return the item that these bytes encode.

    Arrays are writable; tensors are on the CPU, without gradient. Raises ValueError for bytes that
    are damaged, cut off or too long.
    """
    try:
        magic, length = START.unpack_from(data)
        view = memoryview(data)[START.size :]
        if magic != MAGIC or length > len(view):
            raise ValueError("no header")
        body = _Body(view[length:])
        item = _unpack(json.loads(bytes(view[:length])), body)
        if body.at != len(body.data):
            raise ValueError(f"{len(body.data) - body.at} bytes too many")
        return item
    except (
        struct.error,
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(f"damaged data of {len(data)} bytes: {error}") from error


class _Arrays(list[np.ndarray]):
    """The bytes of arrays, in order. Those of a GPU's tensors are there after `wait`.

    They come through page-locked memory (`core.payload.LOCKED` bytes at most), so that the host
    waits once for all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[Any] = set()
        self.locked = 0

    def add_tensor(self, tensor: Any) -> None:
        import torch

        host = self.locked_copy(tensor) if tensor.is_cuda else tensor
        self.append(host.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())

    def locked_copy(self, tensor: Any) -> Any:
        """Return a copy in page-locked memory, or the tensor itself if that would be too much."""
        from hpcfed.core.payload import LOCKED, host_buffer

        if self.locked + tensor.nbytes > LOCKED:
            return tensor
        self.locked += tensor.nbytes
        self.devices.add(tensor.device)
        buffer = host_buffer(tensor.shape, tensor.dtype, tensor.device)
        return buffer.copy_(tensor, non_blocking=True)

    def wait(self) -> None:
        """Wait for the copies from GPUs."""
        for device in self.devices:
            sys.modules["torch"].cuda.synchronize(device)


def _pack(item: Any, arrays: _Arrays) -> Any:
    """Return the header's tree for an item, and append the bytes of its arrays to `arrays`.

    Plain values stand for themselves, all others are lists [kind, ...].
    """
    if type(item) in PLAIN:
        return item
    if type(item) in (list, tuple):
        return [type(item).__name__, *(_pack(value, arrays) for value in item)]
    if type(item) is dict:
        return ["dict", *([_key(key), _pack(value, arrays)] for key, value in item.items())]
    if kind := _KINDS.get(type(item)):
        return ["kind", kind.tag, _pack(kind.to_plain(item), arrays)]
    if isinstance(item, np.ndarray | np.generic):
        return _pack_array(item, arrays)
    torch = sys.modules.get("torch")  # a process with a tensor has imported torch
    if torch and isinstance(item, torch.Tensor):
        return _pack_tensor(item, arrays)
    raise TypeError(
        f"codec: cannot carry a value of type {type(item).__module__}.{type(item).__qualname__}"
    )


def _key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise TypeError(
            f"codec: a dict key is a str or an int, not {key!r} of type {type(key).__qualname__}"
        )
    return key


def _pack_array(item: np.ndarray | np.generic, arrays: _Arrays) -> list[Any]:
    array = np.asarray(item, item.dtype.newbyteorder("<"), order="C")
    if array.dtype.str not in DTYPES:
        raise TypeError(f"codec: cannot carry a numpy value of dtype {array.dtype}")
    arrays.append(array.reshape(-1).view(np.uint8))
    return [
        "scalar" if isinstance(item, np.generic) else "array",
        array.dtype.str,
        list(array.shape),
    ]


def _pack_tensor(item: Any, arrays: _Arrays) -> list[Any]:
    import torch

    name = str(item.dtype).removeprefix("torch.")
    if name not in TENSORS or item.layout != torch.strided:
        raise TypeError(
            f"codec: cannot carry a torch tensor of dtype {item.dtype}, layout {item.layout}"
        )
    arrays.add_tensor(item.detach())
    return ["tensor", name, list(item.shape)]


def _unpack(node: Any, body: "_Body") -> Any:
    if type(node) in PLAIN:
        return node
    if type(node) is not list:
        raise ValueError(f"no value: {node}")
    kind, *parts = node
    if kind == "list":
        return [_unpack(part, body) for part in parts]
    if kind == "tuple":
        return tuple(_unpack(part, body) for part in parts)
    if kind == "dict":
        return {_key(key): _unpack(value, body) for key, value in parts}
    if kind == "kind":
        tag, value = parts
        return _from_plain(tag)(_unpack(value, body))
    dtype, shape = parts
    return (
        _unpack_tensor(dtype, shape, body)
        if kind == "tensor"
        else _unpack_array(kind, dtype, shape, body)
    )


def _from_plain(tag: str) -> Callable[[Any], Any]:
    for kind in _KINDS.values():
        if kind.tag == tag:
            return kind.from_plain
    raise ValueError(f"nothing is registered as {tag!r}")


def _unpack_array(
    kind: str, dtype: str, shape: list[int], body: "_Body"
) -> np.ndarray | np.generic:
    if kind not in ("array", "scalar") or dtype not in DTYPES:
        raise ValueError(f"no {kind!r} of {dtype!r}")
    array = np.frombuffer(body.take(shape, np.dtype(dtype).itemsize), dtype).reshape(shape)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if kind == "array" else array[()]


def _unpack_tensor(name: str, shape: list[int], body: "_Body") -> Any:
    import torch

    data, dtype = body.take(shape, TENSORS[name]), getattr(torch, name)
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


class _Body:
    """Reader of the arrays' bytes, one array after the other."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, shape: list[int], width: int) -> bytearray:
        if not all(type(extent) is int and extent >= 0 for extent in shape):
            raise ValueError(f"no shape: {shape}")
        start, self.at = self.at, self.at + math.prod(shape) * width
        if self.at > len(self.data):
            raise ValueError(f"{self.at - len(self.data)} bytes are missing")
        return bytearray(self.data[start : self.at])
