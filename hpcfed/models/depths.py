"""Families of models that differ only in depth, that is in the number of equal blocks.

Any model whose body has a row of equal blocks belongs to such a family: `resmlp-4`, a transformer's
encoder, a user's `nn.Sequential` of blocks. Blocks are found by the names and shapes of tensors:
those of block i are "ROW.i.REST", with the same rests and shapes for each i.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

from hpcfed.core.errors import ConfigError
from hpcfed.models.flat import Layout

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """Models of several depths.

    row: name of the row of blocks, "body.blocks".
    depths: number of blocks by architecture, the shallowest first.
    below: tensors outside the blocks that are defined before them (stem, embeddings).
    above: tensors outside the blocks that are defined after them (last layers, head).
    inner: for each tensor of a block, by the rest of its name, whether it is a parameter; otherwise
    it is a statistic.
    """

    row: str
    depths: Mapping[str, int]
    below: frozenset[str]
    above: frozenset[str]
    inner: Mapping[str, bool]

    @property
    def tiers(self) -> list[str]:
        """The architectures, the shallowest first."""
        return list(self.depths)

    def block(self, i: int, rest: str) -> str:
        """Return the name of a tensor of block i."""
        return f"{self.row}.{i}.{rest}" if self.row else rest

    def common(self, architecture: str, name: str) -> bool:
        """Return whether deeper members of the family have this tensor of the architecture too.

        That holds for tensors below the blocks, and for those of all blocks but the architecture's
        last.
        """
        if name in self.below or name in self.above:
            return name in self.below
        return index(self.row, name) < self.depths[architecture] - 1


def is_inside(row: str, name: str) -> bool:
    """Return whether a tensor belongs to a block of this row."""
    return name.startswith(f"{row}.") and name[len(row) + 1 :].partition(".")[0].isdecimal()


def index(row: str, name: str) -> int:
    """Return the number of the block to which a tensor belongs."""
    return int(name[len(row) + 1 :].partition(".")[0])


def find_row(shapes: Mapping[str, Shape]) -> tuple[str, int]:
    """Return the name of the longest row of equal blocks, and its number of blocks.

    shapes: shapes of the tensors by name. Of several rows of this length the one with most tensors
    counts, then the first. The result is ("", 0) if no two blocks are equal.
    """
    rows: dict[str, dict[int, dict[str, Shape]]] = {}
    for name, shape in shapes.items():
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part.isdecimal():
                blocks = rows.setdefault(".".join(parts[:i]), {})
                blocks.setdefault(int(part), {})[".".join(parts[i + 1 :])] = shape
    best, length, most = "", 0, 0
    for row, blocks in rows.items():
        alike = all(blocks.get(i) == blocks.get(0) for i in range(len(blocks)))
        size = (len(blocks), len(blocks) * len(blocks.get(0, ())))
        if alike and len(blocks) > 1 and size > (length, most):
            best, (length, most) = row, size
    return best, length


def family(layouts: Mapping[str, Layout]) -> Family:
    """Return the family of the models with these layouts, given by architecture.

    A single architecture is a family too, with or without blocks. Raises ConfigError if several
    differ in more than their number of equal blocks.
    """
    return relate(tuple(layouts.items()))


@cache
def relate(layouts: tuple[tuple[str, Layout], ...]) -> Family:
    """Return the family; see `family`."""
    shapes = {kind: dict(zip(x.names, x.shapes, strict=True)) for kind, x in layouts}
    deepest = max(shapes, key=lambda kind: len(shapes[kind]))
    row, _ = find_row(shapes[deepest])
    if len(shapes) == 1 or not row:
        for kind in shapes.keys() - {deepest}:
            raise different(deepest, kind, f"{deepest} has no row of equal blocks")
        names = frozenset(shapes[deepest])
        return Family("", {deepest: 1}, names, frozenset(), {})
    inside = {kind: [n for n in s if is_inside(row, n)] for kind, s in shapes.items()}
    depths = {kind: len({index(row, n) for n in names}) for kind, names in inside.items()}
    outside = {n: s for n, s in shapes[deepest].items() if n not in inside[deepest]}
    for kind, tensors in shapes.items():
        beside = {n: s for n, s in tensors.items() if n not in inside[kind]}
        for name in sorted(beside.keys() ^ outside.keys()):
            raise different(deepest, kind, f"only one of them has {name}")
        for name, shape in (beside | {n: tensors[n] for n in inside[kind]}).items():
            expected = shapes[deepest].get(name, ())
            if expected != shape:
                why = f"{name} has shape {list(expected)} in {deepest} and {list(shape)} in {kind}"
                raise different(deepest, kind, why)
    if len(set(depths.values())) < len(depths):
        raise different(deepest, deepest, "two have as many blocks")
    params = dict(layouts)[deepest].params
    start = next(i for i, name in enumerate(params) if name in inside[deepest])
    below = before(outside, params[:start])
    ordered = dict(sorted(depths.items(), key=lambda item: item[1]))
    inner = {n.removeprefix(f"{row}.0."): n in params for n in inside[deepest] if not index(row, n)}
    return Family(row, ordered, below, frozenset(outside) - below, inner)


def before(outside: Collection[str], params: Collection[str]) -> frozenset[str]:
    """Return the tensors among `outside` that come before the blocks.

    These are the given parameters, and statistics of the same layers.
    """
    layers = {name.rpartition(".")[0] for name in params}
    return frozenset(n for n in outside if n in params or n.rpartition(".")[0] in layers)


def different(deepest: str, other: str, why: str) -> ConfigError:
    """Return the error for two architectures that do not belong to one family."""
    return ConfigError(
        f"models.mix: {deepest} and {other} do not differ in the number of equal blocks alone: "
        f"{why}; take models of one family, as ['resmlp-2', 'resmlp-4'], or a single one"
    )
