"""Writing of a checkpoint: a part by each rank, then by one rank the index over all parts."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from hpcfed.core.errors import DamagedError, WriteError
from hpcfed.storage import names, tree
from hpcfed.storage.atomic import put, replace_file
from hpcfed.storage.checksum import identity

Part = dict[str, Any]  # identity of a part's file, and the names of its items


@dataclass(frozen=True)
class About:
    """Facts about a checkpoint.

    rounds: rounds done.
    header: JSON-able; `same_job` compares its "job".
    """

    rounds: int
    header: dict[str, Any]


def write_part(folder: Path, rank: int, items: Iterable[tuple[str, Any]]) -> Part:
    """Write one rank's part of a checkpoint, and a note that it is complete.

    items: names such as "state" or "clients/3", and values (see `tree.write`).
    Raises WriteError if the file cannot be written, or is not what was written (`replace_file`);
    then the file is removed.
    """
    path, written = names.part_file(folder, rank), []
    with replace_file(path, names.PART) as file:
        group = file.create_group("items")
        for name, item in items:
            tree.write(group, name, item)
            written.append(name)
    try:
        part = {"identity": identity(path), "names": written}
    except (DamagedError, OSError) as error:
        raise WriteError(f"{path}: {error}; it was just written: check the disk") from error
    put(names.part_note(folder, rank), json.dumps(part).encode())
    return part


def note_written(folder: Path, parts: list[Part], ranks: int) -> bool:
    """Add the parts that have been written since, by their notes; return whether all are there.

    parts: those of the first ranks. The note of each rank is read once, and one that is missing is
    looked for in each call, however many ranks there are.
    """
    with suppress(OSError, ValueError):
        for rank in range(len(parts), ranks):
            parts.append(json.loads(names.part_note(folder, rank).read_bytes()))
    return len(parts) == ranks


def write_index(folder: Path, about: About, parts: Mapping[int, Part]) -> None:
    """Join the parts of all ranks in this folder to a checkpoint, which exists from then on.

    Only for the process that has the run folder's lock: rank 0 of the run.
    Raises WriteError; the checkpoints before it are unchanged then.
    """
    files = {rank: f"{folder.name}/{names.part_file(folder, rank).name}" for rank in parts}
    where = {name: files[rank] for rank, part in parts.items() for name in part["names"]}
    with replace_file(names.index_of(folder), names.CHECKPOINT) as file:
        file.attrs["rounds"] = about.rounds
        tree.write_json(file, "header", about.header)
        tree.write_json(
            file, "parts", {files[rank]: part["identity"] for rank, part in parts.items()}
        )
        tree.write_json(file, "names", sort_items(where))
        items = file.create_group("items")
        for name, part in where.items():
            items[name] = h5py.ExternalLink(part, f"/items/{name}")
    for rank in parts:
        with suppress(OSError):
            names.part_note(folder, rank).unlink(missing_ok=True)


def sort_items(items: Iterable[str]) -> list[str]:
    """Return shared items in their order, then the clients by number."""
    return sorted(
        items,
        key=lambda name: int(name.removeprefix("clients/")) if name.startswith("clients/") else -1,
    )
