"""Reading of untrusted HDF5 files: everything that a file declares is checked before it is read.

A checksum (`checksum`) finds accidents, but the author of a malicious file can add it too. So all
readers of HDF5 files open groups, arrays and attributes through these functions. They follow only
hard links, and accept no soft or external link, no storage in other files, no virtual data set,
only filters and types that are allowed, and no more bytes than the file can hold.

Groups and arrays are those of h5py's low-level API, the `id` of its other objects: these ask the
file for the same several times, and so take most of the time of reading a checkpoint.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from h5py import h5a, h5d, h5i, h5l, h5o, h5s, h5t, h5z
from h5py.h5d import DatasetID
from h5py.h5g import GroupID

from hpcfed.core.errors import DamagedError

Node: TypeAlias = "GroupID | DatasetID"
DEPTH = 64  # groups inside groups
LARGEST = 2**63  # no count of a run reaches it
NUMBERS, BYTES, STRINGS = "biuf", "S", "OSU"  # numpy's kinds of types
# Filters that users' files may have, by HDF5's number, and how many bytes at most come out of one.
# Deflate codes 258 bytes in 2 bits; LZF 264 in 3 bytes. The others change no size, or by bytes.
RATIOS = {
    h5z.FILTER_DEFLATE: 1032,
    h5z.FILTER_LZF: 88,
    h5z.FILTER_SHUFFLE: 1,
    h5z.FILTER_FLETCHER32: 1,
}


class Budget:
    """The number of bytes that may still be read from a file, and the objects read so far.

    An object that is reached twice is part of a loop of links, or would be read many times over.
    """

    def __init__(self, node: Node):
        self.left = file_size(node)
        self.visited: set[int] = set()

    def visit(self, node: Node, place: int) -> None:
        """Note that a group or array is read.

        place: its address in the file.
        """
        if place in self.visited:
            raise DamagedError(f"{where(node)}: exists under several names")
        self.visited.add(place)

    def take(self, node: DatasetID, nbytes: int) -> None:
        """Count the bytes of an array."""
        self.left -= nbytes
        if self.left < 0:
            raise DamagedError(f"{where(node)}: the arrays declare more than the file holds")


def file_size(node: Node) -> int:
    """Return the bytes of the file that a group or array is in."""
    return h5i.get_file_id(node).get_filesize()


def where(node: Node) -> str:
    """Return how messages name a place in a file."""
    return h5i.get_name(node).decode(errors="backslashreplace")


def child(group: GroupID, name: str, budget: Budget | None = None) -> Node:
    """Return the object in a group at a path of names.

    Raises DamagedError if it is not in this file, or was visited before on this budget.
    """
    node: Node = group
    for part in name.split("/"):
        if not isinstance(node, GroupID):
            raise DamagedError(f"{where(node)}: is not a group")
        info = link(node, part)
        if info.type != h5l.TYPE_HARD:
            raise DamagedError(f"{where(node)}: {part!r} is a link to another place")
        node = h5o.open(node, part.encode())
        if budget:
            budget.visit(node, info.u)
    return node


def link(group: GroupID, name: str) -> h5l.LinkInfo:
    """Return the type of the link of that name in a group, and its address if it is a hard link.

    It is not followed. Raises DamagedError if there is none.
    """
    try:
        return group.links.get_info(name.encode())
    except (LookupError, RuntimeError, ValueError):
        if name and group.links.exists(name.encode()):
            raise
        raise DamagedError(f"{where(group)}: there is no {name!r}") from None


def external_file(group: GroupID, name: str) -> str | None:
    """Return the name of the file that an external link leads to; None for another link.

    Raises DamagedError if there is no link of that name.
    """
    if link(group, name).type != h5l.TYPE_EXTERNAL:
        return None
    file, _ = group.links.get_val(name.encode())
    return os.fsdecode(file)


def subgroup(group: GroupID, name: str) -> GroupID:
    """Return a group in a group. Raises DamagedError if it is not a group."""
    node = child(group, name)
    if not isinstance(node, GroupID):
        raise DamagedError(f"{where(node)}: is not a group")
    return node


def links(group: GroupID) -> Iterator[str]:
    """Return the names of the objects and links in a group."""
    return (link.decode() for link in group)


def array(node: Any, kinds: str = NUMBERS, budget: Budget | None = None) -> np.ndarray:
    """Return all values of an array of a file of hpcfed.

    kinds: allowed kinds of its type, as in numpy.
    budget: what arrays of this file may take together; None: only this one is read.
    Raises DamagedError if it is not an array, or is not stored as hpcfed stores arrays.
    """
    shape, dtype, memory_type = check_dataset(node, kinds, budget)
    values = np.zeros(shape, dtype)
    node.read(h5s.ALL, h5s.ALL, values, memory_type)
    return values[()] if kinds == BYTES else values


@lru_cache
def numpy_type(encoded: bytes) -> tuple[np.dtype, h5t.TypeID]:
    """Return the type that values of a file have in numpy, and HDF5's type for it.

    encoded: their type in the file, as HDF5 encodes it; numpy takes those of texts and references
    for equal. To make both takes longer than to read a small array.
    """
    dtype = h5t.decode(encoded).dtype
    if dtype.kind in NUMBERS:
        dtype = np.dtype(dtype.str)  # numpy's own float32 in place of an equal one of h5py
    return dtype, h5t.py_create(dtype)


def check_dataset(
    node: Any, kinds: str = NUMBERS, budget: Budget | None = None, filters: bool = False
) -> tuple[tuple[int, ...], np.dtype, h5t.TypeID]:
    """Return the shape of an array whose values are all in the file itself, and its `numpy_type`.

    kinds, budget: as in `array`.
    filters: whether the filters in RATIOS are allowed, and storage in chunks.
    Raises DamagedError if it is not such an array.
    """
    shape = node.shape if isinstance(node, DatasetID) else None
    if shape is None:
        raise DamagedError(f"{where(node)}: is not an array")
    dtype, memory_type = numpy_type(node.get_type().encode())
    nbytes = math.prod(shape) * dtype.itemsize
    if budget:
        budget.take(node, nbytes)
    plist = node.get_create_plist()
    if plist.get_external_count():
        raise DamagedError(f"{where(node)}: its values are in another file, which is not read")
    layout = plist.get_layout()
    if layout == h5d.VIRTUAL:
        raise DamagedError(f"{where(node)}: is put together from other files, which are not read")
    if dtype.kind not in kinds:
        raise DamagedError(f"{where(node)}: has the type {dtype}, which is not read")
    used = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if layout == h5d.CHUNKED or used:
        if not filters:
            raise DamagedError(f"{where(node)}: is compressed or in chunks, as hpcfed writes none")
        chunk = math.prod(plist.get_chunk() if layout == h5d.CHUNKED else ()) * dtype.itemsize
        check_filters(node, used, nbytes, chunk)
    elif not budget and nbytes > file_size(node):  # a budget is never more than that
        raise too_large(node, nbytes)
    return shape, dtype, memory_type


def check_filters(node: DatasetID, used: list[int], nbytes: int, chunk: int) -> None:
    """Raise DamagedError for an array with filters other than those in RATIOS.

    Also raises it for an array larger than these filters can make of the file.
    nbytes, chunk: bytes of all its values and of one chunk, as the file declares.
    """
    foreign = [number for number in used if number not in RATIOS]
    if foreign:
        raise DamagedError(
            f"{where(node)}: uses the HDF5 filter number {foreign[0]}, which is not read; "
            "store it plain, or with gzip or lzf"
        )
    most = file_size(node) * math.prod(RATIOS[number] for number in set(used))
    if max(nbytes, chunk) > most:
        raise too_large(node, nbytes)


def too_large(node: DatasetID, nbytes: int) -> DamagedError:
    return DamagedError(
        f"{where(node)}: declares {nbytes:.3g} bytes, more than a file of "
        f"{file_size(node)} bytes can hold"
    )


def attribute(node: Node, name: str, default: Any = None) -> Any:
    """Return one number or text attached to a group or array; `default` if there is none."""
    if not h5a.exists(node, name.encode()):
        return default
    opened = h5a.open(node, name.encode())
    dtype, memory_type = numpy_type(opened.get_type().encode())
    if opened.shape != () or dtype.kind not in NUMBERS + STRINGS:
        raise DamagedError(f"{where(node)}: its attribute {name!r} is neither a number nor text")
    values = np.zeros((), dtype)
    opened.read(values, memory_type)
    value = values[()]
    if type(value) is bytes:  # text of any length; that of a fixed length is np.bytes_
        return value.decode(errors="surrogateescape")
    return value


def number(node: Node, name: str) -> int:
    """Return an attribute that counts something: a whole number, 0 or more."""
    value = attribute(node, name)
    if not isinstance(value, int | np.integer) or not 0 <= value < LARGEST:
        raise DamagedError(
            f"{where(node)}: its attribute {name!r} is {value!r}, which is not a count"
        )
    return int(value)
