"""Groups of similar blocks, and the rows of blocks that pFedHR may put together.

Wang et al., NeurIPS 2023, arXiv:2308.08643, section 3.2. A row begins with the first block of a
model and ends with a head; each block `fits` the one before. Of these rows those with the most
kinds of operations count, and among them those with blocks of the most groups.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfed import Federation, Params
from hpcfed.algorithms.public_data.blocks import ORDER, Block, Row, cut, fits, nbytes
from hpcfed.core.inputs import zeros
from hpcfed.core.shapes import each
from hpcfed.training import similarity
from hpcfed.training.infer import outputs

IMAGES = 4  # dimensions of a batch of images
EXAMPLES = 2  # size of the batch with which models are cut
FAR = 1e6  # the distance of blocks that have nothing in common
ITERATIONS = 10  # upper limit for the grouping, as in the authors' code


def blocks(fed: Federation, kind: str) -> tuple[Block, ...]:
    """Return the blocks of an architecture, from the server's module of it."""
    skeleton = fed.module(kind)
    if "blocks" not in skeleton.captured:
        x = zeros(fed.store.form[0], EXAMPLES, fed.store.vocabulary, fed.device)
        skeleton.captured["blocks"] = cut(skeleton, each(x, spaced))
    return skeleton.captured["blocks"]


def spaced(x: Tensor) -> Tensor:
    """Return values from -1 to 1 in the place of zeros; tokens stay."""
    if not x.is_floating_point():
        return x
    return torch.linspace(-1, 1, x.numel(), device=x.device).view_as(x)


# Groups


def features(fed: Federation, kind: str, model: Params) -> list[Tensor]:
    """Return the inputs of each block of a model and the last block's output, for all public data.

    Each is [N, c]; maps are replaced by their means over places.
    """
    row, widths = Row(blocks(fed, kind)), list[int]()
    answer = row.predictor(row.initial([model] * len(row)))

    def between(x: Any) -> Tensor:
        parts: list[Tensor] = []
        logits = answer(each(x, torch.clone), look=lambda z: parts.append(flat(z)))
        parts.append(flat(logits))
        widths[:] = [part.shape[1] for part in parts]
        return torch.cat(parts, 1)

    return list(outputs(fed, between, fed.public).split(widths, 1))


def flat(x: Any) -> Tensor:
    """Return the values of each example, [n, c]; of maps their means, of modalities all together.

    The means are over places. The result is a copy, because the layers that follow may work in
    place.
    """
    if isinstance(x, Mapping):
        return torch.cat([flat(x[name]) for name in sorted(x)], 1)
    return (x.mean((2, 3)) if x.dim() == IMAGES else x.flatten(1)).float().clone()


def distances(fed: Federation, between: Mapping[Any, Sequence[Tensor]]) -> Tensor:
    """Return dis of each two blocks, [T, T], in the sources' order; collective. Eq. 3.

    between: for each source the inputs of its blocks and the last block's output.
    """
    prepared = [[similarity.ready(z) for z in sequence] for sequence in between.values()]
    ends = [pair for sequence in prepared for pair in pairwise(sequence)]

    def below(i: int) -> list[float]:
        return [dissimilarity(*ends[i], *ends[j]) for j in range(i + 1)]

    table = torch.zeros(len(ends), len(ends), dtype=torch.float64)
    for i, line in fed.spread(range(len(ends)), below).items():
        table[i, : i + 1] = table[: i + 1, i] = torch.tensor(line, dtype=torch.float64)
    return table


def dissimilarity(
    x: similarity.Ready, y: similarity.Ready, other_x: similarity.Ready, other_y: similarity.Ready
) -> float:
    """Return 1 / (CKA of the inputs + CKA of the outputs) of two blocks.

    The result is at least 0.5, that of a block to itself.
    """
    alike = similarity.agreement(x, other_x) + similarity.agreement(y, other_y)
    return 1 / max(float(alike), 1 / FAR)


def group(distance: np.ndarray, K: int) -> list[int]:
    """Return the group of each block, [T], from 0; no group is empty.

    This is K-means as far as distances alone allow: a centre is the block with the least sum of
    distances in its group. The first centre is that of all blocks; each further one is the block
    farthest from the centres before.
    """
    centres = [int(distance.sum(1).argmin())]
    while len(centres) < min(K, len(distance)):
        nearest = distance[:, centres].min(1)
        nearest[centres] = -1
        centres.append(int(nearest.argmax()))
    for _ in range(ITERATIONS):
        member = distance[:, centres].argmin(1)
        parts = [np.flatnonzero(member == j) for j in range(len(centres))]
        new = [int(p[distance[np.ix_(p, p)].sum(1).argmin()]) for p in parts if len(p)]
        if new == centres:
            break
        centres = new
    return np.unique(member, return_inverse=True)[1].tolist()


# Rows


class Piece(NamedTuple):
    """A block of one source, which is a client or an architecture, and the block's group."""

    source: Any
    block: Block
    group: int = 0


class Reassembly:
    """All rows of blocks that the rules allow, counted without being listed.

    every: the blocks of each source.  member: the group of each block, in the sources' order;
    default: one group.
    """

    def __init__(self, every: Mapping[Any, Sequence[Block]], member: Sequence[int] | None = None):
        pieces = [(source, block) for source, blocks in every.items() for block in blocks]
        groups = member or [0] * len(pieces)
        self.pieces = sorted(
            (Piece(*piece, g) for piece, g in zip(pieces, groups, strict=True)),
            key=lambda piece: piece.block.depth,
        )
        self.starts = [a for a, piece in enumerate(self.pieces) if piece.block.takes_data]
        self.following = [
            [b for b, after in enumerate(self.pieces) if fits(piece.block, after.block)]
            for piece in self.pieces
        ]
        # what a piece contributes to a row, as bits: its operation, and above these its group
        self.marks = [
            1 << ORDER.index(piece.block.kind) | 1 << (len(ORDER) + piece.group)
            for piece in self.pieces
        ]

    @cached_property
    def ways(self) -> list[Counter[int]]:
        """Number of rows from each piece to a head, by the marks of their pieces together."""
        table: list[Counter[int]] = [Counter() for _ in self.pieces]
        for a in reversed(range(len(self.pieces))):
            if self.pieces[a].block.last:
                table[a][self.marks[a]] = 1
            for b in self.following[a]:
                for marks, n in table[b].items():
                    table[a][marks | self.marks[a]] += n
        return table

    @cached_property
    def wanted(self) -> set[int]:
        """The marks of the rows with the most operations, and among these the most groups."""
        operations = (1 << len(ORDER)) - 1
        score = {
            marks: ((marks & operations).bit_count(), (marks & ~operations).bit_count())
            for a in self.starts
            for marks in self.ways[a]
        }
        return {marks for marks in score if score[marks] == max(score.values())}

    def completions(self, a: int, before: int) -> int:
        """Return the number of allowed rows from this piece on.

        before: the marks of the pieces before it.
        """
        return sum(n for marks, n in self.ways[a].items() if before | marks in self.wanted)

    @cached_property
    def size(self) -> int:
        """Number of rows; it may exceed what `len` can return."""
        return sum(self.completions(a, 0) for a in self.starts)

    def row(self, number: int) -> tuple[Piece, ...]:
        """Return the row of this number, from 0 to size - 1."""
        pieces: list[Piece] = []
        options, marks = self.starts, 0
        while options:
            for a in options:
                n = self.completions(a, marks)
                if number < n:
                    break
                number -= n
            pieces.append(self.pieces[a])
            marks |= self.marks[a]
            options = self.following[a]
        return tuple(pieces)

    def largest(self) -> int:
        """Return the bytes of the largest row, whatever it contributes."""
        further = [0] * len(self.pieces)  # the most bytes that may follow a piece
        for a in reversed(range(len(self.pieces))):
            before = self.pieces[a].block
            sizes = (further[b] + nbytes(before, self.pieces[b].block) for b in self.following[a])
            further[a] = max(sizes, default=0)
        return max(further[a] + nbytes(None, self.pieces[a].block) for a in self.starts)

    def __iter__(self) -> Iterator[tuple[Piece, ...]]:
        return map(self.row, range(self.size))

    def draw(self, n: int, g: np.random.Generator) -> list[tuple[Piece, ...]]:
        """Return n different rows, each as likely as any other; all if there are no more than n."""
        if self.size <= n:
            return list(self)
        numbers: dict[int, None] = {}
        while len(numbers) < n:
            numbers[int.from_bytes(g.bytes(32), "little") % self.size] = None
        return [self.row(number) for number in numbers]


def most_bytes(fed: Federation) -> int:
    """Return the bytes of the largest row of the clients' architectures, whatever it contributes.

    It is computed once for each federation.
    """
    kinds = sorted(set(fed.architectures))
    captured = fed.module(kinds[0]).captured
    if "largest row" not in captured:
        captured["largest row"] = Reassembly({kind: blocks(fed, kind) for kind in kinds}).largest()
    return captured["largest row"]


def reassembly(
    fed: Federation, kinds: Mapping[Any, str], sources: Mapping[Any, Params], K: int
) -> Reassembly:
    """Return the rows of blocks of these models that the rules allow, with K groups; collective.

    kinds, sources: architecture and weights of each model.
    """
    between = fed.spread(sources, lambda s: features(fed, kinds[s], sources[s]))
    member = group(distances(fed, between).numpy(), K)
    return Reassembly({s: blocks(fed, kinds[s]) for s in sources}, member)
