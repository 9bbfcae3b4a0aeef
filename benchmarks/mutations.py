"""Files that hpcfed wrote, changed as accidents and attackers would: `crafted.py` reads them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcfed.storage.checksum import BLOCK, checksums, identity, text
from hpcfed.storage.names import index_of

Draw = np.random.Generator
MODULE = "evil:X"  # would leave a mark if anybody imported it
MARKS = "\x1b]0;x\x07\x1b[31m\n\u202eend"  # what a terminal would obey
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
HOSTILE = (
    None,
    True,
    -1,
    0,
    2**40,
    2**70,
    10**400,
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 100_000,
    MARKS,
    "\ud800",
    "../../x",
    MODULE,
    f"mlp+{MODULE}",
    [],
    {},
    [1, None],
    {"a": {"b": 1}},
    [[1], [2, 3]],
    DEEP,
)


def choice(g: Draw, values: Any) -> Any:
    return values[int(g.integers(len(values)))]


def flipped(data: bytes, g: Draw) -> bytes:
    """Bytes after an accident: cut, bits flipped, numbers replaced, pieces moved, bytes lost."""
    kind, changed = int(g.integers(6)), bytearray(data)
    if kind == 0:
        return data[: int(g.integers(len(data)))]
    for _ in range(choice(g, (1, 1, 2, 4, 16))):
        if not changed:
            break
        i, j = (int(g.integers(len(changed))) for _ in range(2))
        if kind == 1:
            changed[i] ^= 1 << int(g.integers(8))
        elif kind == 2:
            changed[i] = choice(g, (0, 255, 127, 128, 1))
        elif kind == 3:
            changed[i : i + 8] = choice(g, (-1, 0, 2**31 - 1, 2**40, i)).to_bytes(
                8, "little", signed=True
            )
        elif kind == 4:
            changed[i : i + 32] = changed[j : j + 32]
        else:
            del changed[i : i + int(g.integers(1, 9))]
    return bytes(changed)


def reseal(path: Path) -> None:
    """Give a file that was changed a checksum that fits."""
    with open(path, "r+b") as raw:
        if not raw.read(BLOCK).startswith(b"hpcfed"):
            return  # of a kind that has none
        end = raw.seek(0, 2)
        table = checksums(raw, end)
        raw.seek(end)
        raw.write(table)
        raw.seek(0)
        raw.write(text(end, table))


def unsealed(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Block, data and table of a sealed file."""
    if not data.startswith(b"hpcfed"):
        return b"", data, b""
    end = int(data[:BLOCK].split()[2])
    return data[:BLOCK], data[BLOCK:end], data[end:]


def json_changed(value: Any, g: Draw) -> Any:
    """Nested values, of which one is another or lacks."""
    places: list[tuple[Any, Any]] = []

    def visit(item: Any) -> None:
        keys = item if isinstance(item, dict) else range(len(item))
        for key in list(keys)[:50]:
            places.append((item, key))
            if isinstance(item[key], dict | list):
                visit(item[key])

    if not isinstance(value, dict | list) or not g.integers(12):
        return choice(g, HOSTILE)
    visit(value)
    if not places:
        return choice(g, HOSTILE)
    for _ in range(choice(g, (1, 1, 1, 2, 5))):
        item, key = choice(g, places)
        try:
            if g.integers(4) == 0:
                del item[key]
            else:
                item[key] = choice(g, HOSTILE)
        except (KeyError, IndexError):  # gone meanwhile
            continue
    return value


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def nodes(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visit(names.append)
    return names


def structure(path: Path, g: Draw) -> None:
    """Change an HDF5 file in a way that HDF5 takes."""
    with h5py.File(path, "r+") as file:
        name = choice(g, nodes(file))
        texts = [
            n
            for n in nodes(file)
            if isinstance(file[n], h5py.Dataset) and file[n].dtype.kind == "S"
        ]
        if texts and g.integers(2):
            name = choice(g, texts)
            raw = (
                dumped(json_changed(json.loads(file[name][()]), g))
                if g.integers(6)
                else choice(g, (b"", b"no json", b"[" * 100_000, b"{" * 50, b"1" * 5000, b"\xff"))
            )
            kind = file[name].attrs.get("kind")
            del file[name]
            file.create_dataset(name, data=np.bytes_(raw) if raw else np.bytes_(b" "))
            if kind:
                file[name].attrs["kind"] = kind
            return
        choice(g, CHANGES)(file, name, path, g)


def attribute(file: h5py.File, name: str, path: Path, g: Draw) -> None:
    """A mark or a count is another."""
    node = choice(g, (file, file[name]))
    key = choice(g, list(node.attrs) or ["kind"])
    values = (-1, 2**40, 2**62, np.nan, "", MARKS, "list", "params", "bfloat16", np.zeros(3), 1)
    if g.integers(5):
        node.attrs[key] = choice(g, values)
    else:
        node.attrs.pop(key, None)


def removed(file: h5py.File, name: str, path: Path, g: Draw) -> None:
    del file[name]


def other_array(file: h5py.File, name: str, path: Path, g: Draw) -> None:
    """Another shape or type, or other numbers."""
    node, old = file[name], dict(file[name].attrs)
    shape = node.shape if isinstance(node, h5py.Dataset) and g.integers(2) else None
    if shape is None:
        shape = choice(g, ((), (0,), (3,), (2, 2), (1, 2, 3), (0, 5), (1000,)))
    kind = choice(g, ("f8", "i8", "u1", "?", "f2", "S3", "c16", "u8", "f4"))
    values = choice(g, (np.nan, -1, 2**62, 1e300, 0, 7))
    with np.errstate(all="ignore"):
        array = np.full(shape, values).astype(kind)
    del file[name]
    file[name] = array
    for key, value in old.items():
        file[name].attrs[key] = value


def declares(file: h5py.File, name: str, path: Path, g: Draw) -> None:
    """An array of up to petabytes in a few bytes."""
    del file[name]
    shape = choice(g, ((2**43,), (2**31, 2**12), (2**30,), (10**7,)))
    options = choice(g, ({}, {"chunks": True}, {"chunks": True, "compression": "gzip"}))
    if g.integers(4):
        file.create_dataset(name, shape, "f8", **options)
    else:
        file.create_dataset(name, data=np.zeros(2**23), chunks=(2**20,), compression="gzip")


def link(file: h5py.File, name: str, path: Path, g: Draw) -> None:
    """A link to somewhere else, or in a circle."""
    del file[name]
    pipe, secret = path.parent / "pipe", path.parent / "secret.h5"
    kind = int(g.integers(5))
    if kind == 0:
        file[name] = h5py.SoftLink(choice(g, ("/", f"/{name}", "/nowhere", *nodes(file)[:1])))
    elif kind == 1:
        file[name] = h5py.ExternalLink(str(choice(g, (pipe, secret, path))), "/")
    elif kind == 2:
        file[name] = file["/"]
    elif kind == 3:
        file[name] = file[choice(g, nodes(file) or ["/"])]
    else:
        for i in range(20):  # 2^20 paths
            group = file.require_group(f"{name}-{i}")
            for key in "ab":
                group[key] = file.require_group(f"{name}-{i + 1}")
        file[name] = file[f"{name}-0"]


def elsewhere(file: h5py.File, name: str, path: Path, g: Draw) -> None:
    """Values that are in another file."""
    del file[name]
    target = str(choice(g, (path.parent / "secret.h5", path.parent / "pipe", path)))
    if g.integers(2):
        file.create_dataset(name, (200,), "u1", external=[(target, 0, 200)])
    else:
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(target, "x", (4,))
        file.create_virtual_dataset(name, layout)


def other_kind(file: h5py.File, name: str, path: Path, g: Draw) -> None:
    """A group for an array, or an array of a type that is not read."""
    del file[name]
    kinds = (h5py.string_dtype(), np.dtype("f8, i4"), h5py.ref_dtype, h5py.vlen_dtype("i4"))
    if g.integers(3) == 0:
        file.create_group(name).create_group("0")
    elif g.integers(5) == 0:
        file[name] = h5py.Empty("f8")
    else:
        file.create_dataset(name, choice(g, ((), (3,), (0,))), choice(g, kinds))


CHANGES: tuple[Callable[[h5py.File, str, Path, Draw], None], ...] = (
    attribute,
    attribute,
    removed,
    other_array,
    other_array,
    declares,
    link,
    elsewhere,
    other_kind,
)


def hdf5(path: Path, g: Draw) -> str:
    """One change to an HDF5 file; what it was."""
    way = choice(g, ("bytes", "sealed bytes", "structure", "structure", "structure"))
    if way == "bytes":
        path.write_bytes(flipped(path.read_bytes(), g))
    elif way == "sealed bytes":
        block, data, _ = unsealed(path.read_bytes())
        path.write_bytes(block + flipped(data, g))
        reseal(path)
    else:
        block = path.read_bytes()[:BLOCK]
        structure(path, g)
        with open(path, "r+b") as raw:
            if block.startswith(b"hpcfed"):
                raw.write(block)
        reseal(path)
    return way


def owned_part(path: Path, g: Draw) -> str:
    """One change to a part of a checkpoint, whose index then takes it for its own."""
    way = hdf5(path, g)
    parts = path.parent
    index = index_of(parts)
    with h5py.File(index, "r+") as file:
        listed_parts = json.loads(file["parts"][()])
        listed_parts[f"{parts.name}/{path.name}"] = identity(path)
        put_text(file, "parts", dumped(listed_parts))
        block = index.read_bytes()[:BLOCK]
    with open(index, "r+b") as raw:
        raw.write(block)
    reseal(index)
    return way


def put_text(file: h5py.File, name: str, text_: bytes) -> None:
    """Another text in the place of one, with its mark."""
    marks = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=np.bytes_(text_)).attrs.update(marks)


def model(path: Path, g: Draw) -> str:
    """One change to a saved model."""
    data = path.read_bytes()
    if g.integers(3) == 0:
        path.write_bytes(flipped(data, g))
        return "bytes"
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    if g.integers(4) == 0:
        header = json_changed(header, g)
    else:
        about = header["__metadata__"]
        key = choice(g, list(about))
        value = about[key]
        if g.integers(5) == 0:
            about[key] = choice(g, ("", "nan", "[" * 5000, MARKS, "1" * 5000))
        elif key in ("format", "version"):
            about[key] = "2"
        else:
            about[key] = json.dumps(json_changed(json.loads(value), g))
    changed = dumped(header)
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + size :])
    return "structure"


def json_file(path: Path, g: Draw) -> str:
    """One change to a file of JSON."""
    if g.integers(3) == 0:
        path.write_bytes(flipped(path.read_bytes(), g))
        return "bytes"
    path.write_bytes(dumped(json_changed(json.loads(path.read_text()), g)))
    return "structure"
