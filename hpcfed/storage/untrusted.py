"""Reading of untrusted HDF5 files: everything that a file declares is checked before it is read.

A checksum (`checksum`) finds accidents, but the author of a malicious file can add it too. So all
readers of HDF5 files open groups, arrays and attributes through these functions. They follow only
hard links, and accept no soft or external link, no storage in other files, no virtual data set,
only filters and types that are allowed, and no more bytes than the file can hold.
"""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np

from hpcfed.core.errors import DamagedError

DEPTH = 64  # groups inside groups
LARGEST = 2**63  # no count of a run reaches it
NUMBERS, BYTES, STRINGS = "biuf", "S", "OSU"  # numpy's kinds of types
# Filters that users' files may have, by HDF5's number, and how many bytes at most come out of one.
# Deflate codes 258 bytes in 2 bits; LZF 264 in 3 bytes. The others change no size, or by bytes.
RATIOS = {
    h5py.h5z.FILTER_DEFLATE: 1032,
    h5py.h5z.FILTER_LZF: 88,
    h5py.h5z.FILTER_SHUFFLE: 1,
    h5py.h5z.FILTER_FLETCHER32: 1,
}


class Budget:
    """The number of bytes that may still be read from a file, and the objects read so far.

    An object that is reached twice is part of a loop of links, or would be read many times over.
    """

    def __init__(self, file: h5py.File):
        self.left = self.size = file_size(file)
        self.visited: set[int] = set()

    def take(self, node: h5py.Group | h5py.Dataset) -> None:
        """Count one group, or the bytes of one array."""
        place = h5py.h5o.get_info(node.id).addr
        if place in self.visited:
            raise DamagedError(f"{where(node)}: exists under several names")
        self.visited.add(place)
        if isinstance(node, h5py.Dataset):
            self.left -= declared_bytes(node)
            if self.left < 0:
                raise DamagedError(f"{where(node)}: the arrays declare more than the file holds")


def file_size(file: h5py.File) -> int:
    """Return the bytes of a file."""
    return file.id.get_filesize()


def where(node: h5py.Group | h5py.Dataset) -> str:
    """Return how messages name a place in a file."""
    return f"{node.name}"


def child(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return the object in a group at a path of names.

    Raises DamagedError if it is not in this file.
    """
    for part in name.split("/"):
        if not isinstance(group, h5py.Group):
            raise DamagedError(f"{where(group)}: is not a group")
        if not isinstance(link(group, part), h5py.HardLink):
            raise DamagedError(f"{where(group)}: {part!r} is a link to another place")
        group = group[part]
    return group


def link(group: h5py.Group, name: str) -> h5py.HardLink | h5py.SoftLink | h5py.ExternalLink:
    """Return the link of that name in a group without following it.

    Raises DamagedError if there is none.
    """
    target = group.get(name, getlink=True)
    if target is None:
        raise DamagedError(f"{where(group)}: there is no {name!r}")
    return target


def subgroup(group: h5py.Group, name: str) -> h5py.Group:
    """Return a group in a group. Raises DamagedError if it is not a group."""
    node = child(group, name)
    if not isinstance(node, h5py.Group):
        raise DamagedError(f"{where(node)}: is not a group")
    return node


def declared_bytes(node: h5py.Dataset) -> int:
    """Return the bytes that an array takes in memory, as its file declares."""
    return math.prod(node.shape or (0,)) * node.dtype.itemsize


def array(node: Any, kinds: str = NUMBERS) -> np.ndarray:
    """Return all values of an array of a file of hpcfed.

    kinds: allowed kinds of its type, as in numpy. Raises DamagedError if it is not an array, or is
    not stored as hpcfed stores arrays.
    """
    check_dataset(node, kinds)
    return node[()] if kinds == BYTES else node[...]


def check_dataset(node: Any, kinds: str = NUMBERS, filters: bool = False) -> None:
    """Raise DamagedError unless this is an array whose values are all in the file itself.

    filters: whether the filters in RATIOS are allowed, and storage in chunks.
    """
    if not isinstance(node, h5py.Dataset) or node.shape is None:
        raise DamagedError(f"{where(node)}: is not an array")
    plist = node.id.get_create_plist()
    if plist.get_external_count():
        raise DamagedError(f"{where(node)}: its values are in another file, which is not read")
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        raise DamagedError(f"{where(node)}: is put together from other files, which are not read")
    if node.dtype.kind not in kinds:
        raise DamagedError(f"{where(node)}: has the type {node.dtype}, which is not read")
    used = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if layout == h5py.h5d.CHUNKED or used:
        if not filters:
            raise DamagedError(f"{where(node)}: is compressed or in chunks, as hpcfed writes none")
        check_filters(node, used)
    elif declared_bytes(node) > file_size(node.file):
        raise too_large(node)


def check_filters(node: h5py.Dataset, used: list[int]) -> None:
    """Raise DamagedError for an array with filters other than those in RATIOS.

    Also raises it for an array larger than these filters can make of the file.
    """
    foreign = [number for number in used if number not in RATIOS]
    if foreign:
        raise DamagedError(
            f"{where(node)}: uses the HDF5 filter number {foreign[0]}, which is not read; "
            "store it plain, or with gzip or lzf"
        )
    most = file_size(node.file) * math.prod(RATIOS[number] for number in set(used))
    chunk = math.prod(node.chunks or (1,)) * node.dtype.itemsize
    if max(declared_bytes(node), chunk) > most:
        raise too_large(node)


def too_large(node: h5py.Dataset) -> DamagedError:
    return DamagedError(
        f"{where(node)}: declares {declared_bytes(node):.3g} bytes, more than a file of "
        f"{file_size(node.file)} bytes can hold"
    )


def attribute(node: h5py.Group | h5py.Dataset, name: str, default: Any = None) -> Any:
    """Return one number or text attached to a group or array; `default` if there is none."""
    if not h5py.h5a.exists(node.id, name.encode()):
        return default
    opened = h5py.h5a.open(node.id, name.encode())
    if opened.shape != () or opened.dtype.kind not in NUMBERS + STRINGS:
        raise DamagedError(f"{where(node)}: its attribute {name!r} is neither a number nor text")
    return node.attrs[name]


def number(node: h5py.Group | h5py.Dataset, name: str) -> int:
    """Return an attribute that counts something: a whole number, 0 or more."""
    value = attribute(node, name)
    if not isinstance(value, int | np.integer) or not 0 <= value < LARGEST:
        raise DamagedError(
            f"{where(node)}: its attribute {name!r} is {value!r}, which is not a count"
        )
    return int(value)
