"""Writing of a checkpoint: a part by each rank, then by one rank the index over all parts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from hpcfed.core.errors import CheckpointError, DamagedError, WriteError
from hpcfed.core.safe_read import convert_read_errors
from hpcfed.storage import checkpoint, names, record, tree
from hpcfed.storage.atomic import open_file, replace_file
from hpcfed.storage.checksum import identity
from hpcfed.storage.equality import same
from hpcfed.storage.header import Piece, check_header
from hpcfed.storage.reader import same_round
from hpcfed.storage.untrusted import subgroup

Items = Callable[
    [], Iterable[tuple[str, Any]]
]  # names such as "state" or "clients/3", and values (see `tree.write`)
Part = dict[str, Any]  # identity of a part's file, and the names of its items


@dataclass(frozen=True)
class About:
    """Facts about a checkpoint that all its parts store.

    rounds: rounds done.
    ranks: number of parts.
    header: JSON-able; `same_job` compares its "job".
    """

    rounds: int
    ranks: int
    header: dict[str, Any]


def write_part(folder: Path, rank: int, about: About, items: Items) -> Part:
    """Write one rank's part of a checkpoint, and verify the file's contents.

    items: called twice, for writing and for verification.
    The verification reads the file as a resume would, through its checksums. It finds errors
    between this process and the file: of HDF5, a short write, a disk that was full without saying
    so. The system reads the file from its cache, so it does not find errors of the disk itself; the
    checksums do, later. Raises WriteError if the file cannot be written, or has other contents;
    then the file is removed: parts of a checkpoint without an index (`adopt`) have always been
    verified.
    """
    path, written = names.part_file(folder, rank), []
    try:
        with replace_file(path, names.PART, lambda new: compare(new, items)) as file:
            group = file.create_group("items")
            for name, item in items():
                tree.write(group, name, item)
                written.append(name)
            tree.write_json(file, "about", vars(about))
            tree.write_json(file, "names", written)
        return {"identity": identity(path), "names": written}
    except (DamagedError, OSError) as error:
        raise WriteError(f"{path}: {error}; it was just written: check the disk") from error


def compare(path: Path, items: Items) -> None:
    """Raise DamagedError unless the file holds these items."""
    with open_file(path, names.PART, whole=False) as file, convert_read_errors(path):
        for name, item in items():
            if not same(item, tree.read(subgroup(file, "items"), name)):
                raise DamagedError(f"{name} is not what was to be written")


def read_part(folder: Path, rank: int) -> tuple[About, Part]:
    """Return what a part stores about its checkpoint, and about itself.

    Raises CheckpointError if it is missing or damaged.
    """
    path = names.part_file(folder, rank)
    with open_file(path, names.PART, whole=False) as file, convert_read_errors(path):
        found = Piece(about=tree.read_json(file, "about"), names=tree.read_json(file, "names"))
        check_header(found.about.header)
        about = About(found.about.rounds, found.about.ranks, found.about.header)
        return about, {"identity": identity(path), "names": found.names}


def read_parts(folder: Path, most: int, run_id: str = "") -> tuple[About, dict[int, Part]] | None:
    """Return what all parts of a checkpoint without index store; None if it is not to be used.

    most: rounds that it may have.
    run_id: identity of the run to which it must belong; "" if unknown.
    Raises CheckpointError if parts are missing or damaged.
    """
    about, first = read_part(folder, 0)
    same_round(names.index_of(folder), about.rounds)
    if about.rounds > most or record.differ(run_id, about.header.get(record.RUN_ID)):
        return None
    others = {rank: read_part(folder, rank) for rank in range(1, about.ranks)}
    if any(other != about for other, _ in others.values()):
        return None
    return about, {0: first} | {rank: part for rank, (_, part) in others.items()}


def without_index(run: Path) -> Iterator[tuple[Path, About, dict[int, Part]]]:
    """Yield the checkpoints of a run that lack only their index: folder, and what its parts store.

    Nothing is written.
    """
    for folder in checkpoint.unfinished_parts(run):
        with suppress(CheckpointError):  # it stays unfinished
            found = record.recover(run)
            whole = read_parts(folder, found.rounds, found.header.get(record.RUN_ID, ""))
            if whole:
                yield folder, *whole


def adopt_all(run: Path) -> list[Path]:
    """Write the index of each checkpoint that lacks only that, and return those indices.

    Only for the process that has the run folder's lock: a run that still writes them would take its
    own for refused.
    """
    made = []
    for folder, about, parts in without_index(run):
        with suppress(CheckpointError):
            write_index(folder, about, parts)
            made.append(names.index_of(folder))
    return made


def saved_rounds(run: Path) -> int:
    """Return the rounds of the newest checkpoint, also of one that lacks only its index.

    0 if there is none. Writes nothing: ranks that have just lost their launcher may still do so.
    """
    newest = checkpoint.newest(run)
    unindexed = [about.rounds for _, about, _ in without_index(run)]
    return max([checkpoint.rounds_of(newest) if newest else 0, *unindexed])


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


def sort_items(items: Iterable[str]) -> list[str]:
    """Return shared items in their order, then the clients by number."""
    return sorted(
        items,
        key=lambda name: int(name.removeprefix("clients/")) if name.startswith("clients/") else -1,
    )
