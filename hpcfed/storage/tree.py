"""Nested values as HDF5 groups and datasets, so that any HDF5 tool shows them by name.

Dicts (keys str or int), lists, tuples and Params are groups; arrays and tensors are plain datasets,
without compression; numbers, strings, bool and None are JSON text. An attribute of each node gives
its type; a dataset without it is a tensor, since there are thousands of those.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5p, h5s, h5t

from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.core.safe_read import parse_json
from hpcfed.storage.untrusted import (
    BYTES,
    DEPTH,
    NUMBERS,
    Budget,
    DatasetID,
    GroupID,
    Node,
    array,
    attribute,
    child,
    links,
    where,
)

KIND = "kind"
GROUPS = ("dict", "params", "list", "tuple")  # kinds that are groups
EMPTY = "%"  # the link of the key "", unique to it
INTEGER = re.compile(r"-?\d+")
TEXT = h5py.string_dtype()
TEXT_TYPE, SCALAR = h5t.py_create(TEXT, logical=True), h5s.create(h5s.SCALAR)
# properties of new links, groups and arrays; groups keep the order of their links
LINK, GROUP, ARRAY = map(h5p.create, (h5p.LINK_CREATE, h5p.GROUP_CREATE, h5p.DATASET_CREATE))
LINK.set_create_intermediate_group(True)
GROUP.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
GROUP.set_attr_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
GROUP.set_obj_track_times(False)
ARRAY.set_obj_track_times(False)


def write(group: h5py.Group, name: str, item: Any) -> None:
    """Store `item` in `group` under `name` (a path a/b makes group a).

    Tensors are saved from any device, without gradient. Subclasses of dict and tuple are read back
    as the plain type, numpy numbers as Python's. Raises CheckpointError for any other type, with
    its place.
    """
    match item:
        case None | bool() | int() | float() | str():
            write_json(group, name, item)
        case np.generic():
            write_json(group, name, item.item())
        case dict():
            _write_group(group, name, _dict_kind(item), ((_link(key), item[key]) for key in item))
        case list() | tuple():
            kind = "list" if isinstance(item, list) else "tuple"
            _write_group(group, name, kind, ((str(i), part) for i, part in enumerate(item)))
        case np.ndarray():
            _write_array(group, name, item, "array")
        case _:
            _write_tensor(group, name, item)


def check(item: Any, place: str) -> None:
    """Raise CheckpointError for a value that `write` could not store; nothing is written.

    place: the value in the user's words, as "client.memory"; the message has that of the part.
    """
    match item:
        case dict():
            for key, part in item.items():
                _link(key, f"{place}: ")
                check(part, f"{place}[{key!r}]")
        case list() | tuple():
            for i, part in enumerate(item):
                check(part, f"{place}[{i}]")
        case np.ndarray():
            _check_array(item, place)
        case None | bool() | int() | float() | str() | np.generic():
            pass
        case _:
            _check_tensor(item, place)


def read(group: h5py.Group, name: str) -> Any:
    """Return the value that `write` stored under `name`.

    It is equal in type, dtype, shape, order and bits; tensors are on the CPU. Raises DamagedError
    for anything that `write` did not store (see `untrusted`).
    """
    return _read(group.id, name, Budget(group.id), 0)


def has(group: h5py.Group, name: str, key: str) -> bool:
    """Return whether the dict under `name` has this key; its values are not read."""
    node = child(group.id, name)
    return isinstance(node, GroupID) and _link(key).encode() in node


def _read(group: GroupID, name: str, budget: Budget, depth: int) -> Any:
    node = _child(group, name, budget, depth)
    kind = attribute(node, KIND, "tensor")
    if kind in GROUPS and not isinstance(node, GroupID):
        raise DamagedError(f"{where(node)}: is marked as a {kind}, but is an array")

    def below(link: str) -> Any:
        return _read(node, link, budget, depth + 1)

    match kind:
        case "json":
            return _parse(node, budget)
        case "dict":
            return {_key(link): below(link) for link in links(node)}
        case "params":
            from hpcfed.core.params import Params

            return Params({_key(link): below(link) for link in links(node)})  # type: ignore[misc]  # names
        case "list":
            return [below(str(i)) for i in range(len(node))]
        case "tuple":
            return tuple(below(str(i)) for i in range(len(node)))
        case "array":
            return array(node, budget=budget)
        case "tensor" | "bfloat16":
            return _read_torch(array(node, budget=budget), kind)
        case _:
            raise DamagedError(f"{where(node)}: is marked as a {kind!r}, which is not read")


def _child(group: GroupID, name: str, budget: Budget, depth: int) -> Node:
    """Return a node of a group, and count it in the budget."""
    if depth > DEPTH:
        raise DamagedError(f"{where(group)}: nested deeper than {DEPTH} levels")
    return child(group, name, budget)


def write_json(group: h5py.Group, name: str, value: Any) -> None:
    """Store a JSON-able value as text; nan and infinities are allowed."""
    _mark(_new_array(group, name, np.array(json.dumps(value).encode())), "json")


def read_json(group: h5py.Group, name: str) -> Any:
    """Return the value that `write_json` stored. Raises DamagedError if there is none."""
    return _parse(child(group.id, name))


def _parse(node: Node, budget: Budget | None = None) -> Any:
    text = array(node, BYTES, budget)
    if text.shape:
        raise DamagedError(f"{where(node)}: is not text")
    return parse_json(bytes(text), where(node))


def leaves(group: h5py.Group, name: str) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield path, kind and value of everything under `name`, sorted by path.

    The value of a group is an empty array, JSON text is bytes, and tensors are arrays: torch is not
    needed.
    """
    yield from _leaves(group.id, name, Budget(group.id), 0)


def _leaves(
    group: GroupID, name: str, budget: Budget, depth: int
) -> Iterator[tuple[str, str, np.ndarray]]:
    node = _child(group, name, budget, depth)
    if isinstance(node, GroupID):
        yield where(node), attribute(node, KIND, "folder"), np.empty(0, np.uint8)
        for link in sorted(links(node)):
            yield from _leaves(node, link, budget, depth + 1)
    else:
        yield where(node), attribute(node, KIND, "tensor"), array(node, NUMBERS + BYTES, budget)


def _write_group(group: h5py.Group, name: str, kind: str, parts: Iterable[tuple[str, Any]]) -> None:
    node = h5py.Group(h5g.create(group.id, name.encode(), LINK, GROUP))
    _mark(node.id, kind)
    for link, part in parts:
        write(node, link, part)


def _write_array(group: h5py.Group, name: str, array: np.ndarray, kind: str) -> None:
    _check_array(array, f"{where(group.id)}/{name}")
    dataset = _new_array(group, name, array)
    if kind != "tensor":
        _mark(dataset, kind)


def _new_array(group: h5py.Group, name: str, array: np.ndarray) -> DatasetID:
    """Return a dataset as `group.create_dataset(name, data=array)` makes it, in half the time.

    name: of ASCII letters.  array: of numbers, bool or bytes.
    """
    values, stored = np.asarray(array, order="C"), _hdf5_type(array.dtype)
    space = h5s.create_simple(values.shape)
    dataset = h5d.create(group.id, name.encode(), stored, space, ARRAY, LINK)
    dataset.write(h5s.ALL, h5s.ALL, values, stored)
    return dataset


@lru_cache
def _hdf5_type(dtype: np.dtype) -> h5t.TypeID:
    return h5t.py_create(dtype)


def _mark(node: Node, kind: str) -> None:
    """Attach the kind of a value to its group or array."""
    h5a.create(node, KIND.encode(), TEXT_TYPE, SCALAR).write(np.array(kind, TEXT))


def _check_array(array: np.ndarray, place: str) -> None:
    if array.dtype.kind not in "biuf":
        raise CheckpointError(
            f"{place}: cannot save dtype {array.dtype}; use a float, integer or bool dtype"
        )


def _check_tensor(item: Any, place: str) -> None:
    import torch  # here, so that result files are read without torch

    if not isinstance(item, torch.Tensor):
        state = ", such as its state_dict()" if hasattr(item, "state_dict") else ""
        raise CheckpointError(
            f"{place}: cannot save a {type(item).__name__}; use dict, list, tuple, Params, tensor, "
            f"array, number, str, bool or None{state}"
        )


def _write_tensor(group: h5py.Group, name: str, item: Any) -> None:
    import torch

    _check_tensor(item, f"{where(group.id)}/{name}")
    kind = "bfloat16" if item.dtype == torch.bfloat16 else "tensor"
    tensor = item.detach().cpu()  # numpy has no bfloat16; float32 holds each of its values exactly
    _write_array(group, name, (tensor.float() if kind == "bfloat16" else tensor).numpy(), kind)


def _read_torch(values: np.ndarray, kind: str) -> Any:
    import torch

    tensor = torch.from_numpy(values)
    return tensor.to(torch.bfloat16) if kind == "bfloat16" else tensor


def _dict_kind(item: dict[Any, Any]) -> str:
    if type(item) is dict:
        return "dict"
    from hpcfed.core.params import Params

    return "params" if isinstance(item, Params) else "dict"


def _link(key: Any, where: str = "") -> str:
    """Return a key as the name of an HDF5 link: 3 as 3, "3" as %33, "a/b" as a%2Fb.

    where: begins the message about another key.
    """
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(int(key))
    if not isinstance(key, str):
        raise CheckpointError(
            f"{where}cannot save a dict with the key {key!r}; use str or int keys"
        )
    link = quote(key, safe=" ")
    if INTEGER.fullmatch(link) or link == ".":  # an int, and HDF5's name of the group itself
        return f"%{ord(link[0]):02X}{link[1:]}"
    return link or EMPTY


def _key(link: str) -> str | int:
    if INTEGER.fullmatch(link):
        return int(link)
    return "" if link == EMPTY else unquote(link)
