"""pFedHR: the server reassembles blocks of the clients' models into new models, as their teachers.

Each client gets as a teacher the new model that is most similar to its own.

Wang et al. (Towards Personalized Federated Learning via Heterogeneous Model Reassembly), NeurIPS
2023, arXiv:2308.08643.

In a round clients descend CE + lam KL(c || w) on their own data and send their models w. Here c is
the teacher that they got when they last took part (eq. 6). The server puts the blocks of all models
into K groups by dis = 1 / (CKA of inputs + CKA of outputs) on public data (eq. 3). A candidate is a
row of blocks in natural order (each deeper in its model than the one before, and of no earlier
operation) that has all operations and all groups. Where widths differ, ReLU(W x + b) is put between
two blocks. Candidates learn the public data, labelled by cross-entropy or unlabelled by SimCLR's
loss. Client n gets the candidate whose logits of public data have the largest mean cosine to those
of its own model.

Rests on the paper's equations and on the authors' code (JackqqWang/pfedHR), which differ much.

Deviations: candidates are drawn with equal probability among all that the rules allow. If there are
no more than `candidates` of them, all are taken. The paper searches, the code draws rows of 4 to 6
blocks. If no row has all groups, the rows with the most groups count. The centre of a group is its
block nearest to the others, with the farthest blocks as first centres (the code averages features
padded with ones). Features of maps are their means over places. The first block is the first of its
model, and the last a head; the code puts a linear layer before every block, and a new one at the
end. The KL is that of soft predictions with the teacher as target; the teacher sees examples
without augmentation. The paper prints its arguments the other way round (kl_reverse); the code has
cross-entropy with raw logits as targets. Clients' models are compared as they are; the code trains
copies of them on the public data first. Not followed, being defects: in the code, blocks that
candidates share are trained in all of them; a client that did not take part in the round before
restarts from its first weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import (
    Client,
    ConfigError,
    DataError,
    Federation,
    Guide,
    Job,
    Mean,
    Paired,
    Params,
    RoundBased,
    Upload,
    rng,
)
from hpcfed.algorithms.public_data.blocks import Block, Row, cut, fits, nbytes
from hpcfed.algorithms.public_data.by_architecture import join_models
from hpcfed.config.conditions import Unused, field, unless
from hpcfed.core.inputs import zeros
from hpcfed.core.shapes import each
from hpcfed.models.flat import Skeleton
from hpcfed.training import similarity
from hpcfed.training.batches import inputs
from hpcfed.training.infer import FORWARD, outputs
from hpcfed.training.losses import distil, soften, supcon
from hpcfed.training.server import fit

Source = TypeVar("Source", bound=Hashable)  # owner of blocks: a client, or an architecture
CUT: WeakKeyDictionary[Skeleton, tuple[Block, ...]] = WeakKeyDictionary()  # blocks, found once
MOST: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by federation: bytes down of `traffic`
IMAGES = 4  # dimensions of a batch of images
EXAMPLES = 2  # size of the batch with which models are cut
FAR = 1e6  # the distance of blocks that have nothing in common
ITERATIONS = 10  # upper limit for the grouping, as in the authors' code


class PFedHR(RoundBased):
    """With lam = 0 pFedHR is local training, bit for bit."""

    guide = Guide(
        data="different labels; public data",
        sent="all weights",
        won="above FedMD, FedGH and Fed-ET with several architectures",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    reads_head: ClassVar[bool] = True
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("public",)
    trains_parts: ClassVar[Any] = False
    unused: ClassVar[Unused] = {
        "weighting": unless("merge"),
    }

    lam: NonNegativeFloat = 0.1
    """Weight of the KL to the teacher; 0: clients train alone."""
    kl_reverse: bool = field(False, used_if="lam")
    """Take KL(own || teacher), in the order in which the paper prints it, instead of KL(teacher ||
    own).
    """
    merge: bool = field(False, used_if="lam")
    """Average the models of each architecture before they are cut, for many clients with few
    architectures.
    """
    groups: PositiveInt = field(4, used_if="lam")
    """Groups of blocks, K; fewer where there are fewer blocks."""
    candidates: PositiveInt = field(4, used_if="lam")
    """Candidates of a round; fewer where the rules allow fewer."""
    longest: NonNegativeInt = field(0, used_if="lam")
    """Most blocks of a candidate, its head included; 0: any."""
    public_labels: bool = field(True, used_if="server_epochs")
    """Candidates learn the labels of public data; else, without them, to tell images apart from two
    augmented views of each.
    """
    tau: PositiveFloat = field(0.5, used_if={"public_labels": False})
    """Without labels: temperature of the contrastive loss."""
    server_epochs: NonNegativeInt = field(3, used_if="lam")
    """Epochs of each candidate over the public data."""
    server_lr: PositiveFloat = field(1e-3, used_if="server_epochs")
    """Learning rate of the candidates, by Adam."""
    server_batch: PositiveInt = field(8, used_if="server_epochs")
    """Public examples in one step of a candidate."""

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if self.longest == 1:
            reasons["job"] = (
                "needs candidates of two blocks at least, a body's and a head, but "
                "algorithm.longest = 1; set it to 2, or 0 for any length"
            )
        return reasons

    def shared(self, name: str) -> bool:
        return False

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return bytes: down those of the largest candidate, since draws decide; up a model."""
        if not self.lam:
            return 0, 0
        if fed not in MOST:
            every = {kind: blocks(fed, kind) for kind in sorted(set(fed.architectures))}
            MOST[fed] = Reassembly(every, longest=self.longest).most_bytes()
        return MOST[fed], fed.shapes(k=k).nbytes

    def init(self, fed: Federation) -> Params:
        if not (self.lam and self.server_epochs):
            return Params()
        labels, images = fed.public.labels, len(getattr(fed.public.x, "shape", ())) == IMAGES
        if not self.public_labels and not images:
            raise ConfigError(
                "pfedhr learns without public labels from two augmented views of each image, but "
                "these data are no images; set algorithm.public_labels = true"
            )
        if self.public_labels and labels.max() >= fed.classes:
            problem = f"one is {labels.max()}, and the clients have {fed.classes} classes"
            raise DataError(
                f"pfedhr learns the public labels, but {problem}; set "
                f"algorithm.public_labels = false"
            )
        return Params()

    def receive(self, client: Client, state: Params) -> None:
        pass  # a client's model stays with it

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Any) -> Tensor:
        if isinstance(y, Tensor):
            return super().loss(client, state, model, x, y)
        (labels, teacher), z = y, model(x)  # teacher: [b, C], probabilities
        return F.cross_entropy(z, labels) + self.lam * self.distance(teacher, z)

    def distance(self, teacher: Tensor, z: Tensor) -> Tensor:
        """Return the KL of the teacher's and the own soft predictions.

        teacher: probabilities, [n, C].  z: logits, [n, C].
        """
        if not self.kl_reverse:
            return distil(teacher, z)
        log_p = F.log_softmax(z, dim=1)
        least = torch.finfo(teacher.dtype).tiny
        return (log_p.exp() * (log_p - teacher.clamp(min=least).log())).sum(1).mean()

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload | None:
        """Train one client with the teacher of its last round, if it has one; return its model."""
        soft, data = client.memory.get("teacher"), client.train
        data = data if soft is None else Paired(data, soft, with_labels=True)
        self.train(fed, client, state, t, data=data)
        return Upload(client.params()) if self.lam else None

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        sent = fed.run(cohort, lambda client: self.local(fed, client, state, t))
        if not self.lam:
            return state
        models = fed.gather(sent)
        if not models:
            return state
        kinds, sources = self.sources(fed, sent, models)
        possible = reassembly(fed, kinds, sources, self.groups, self.longest)
        rows = possible.draw(self.candidates, rng.stream(fed.seed, "candidates", t))
        candidates = fed.spread(
            range(len(rows)), lambda i: self.make(fed, kinds, sources, rows[i], t, i)
        )
        best = closest(fed, models, [logits for _, logits in candidates.values()])

        def take(client: Client) -> None:
            if client.id in best:
                i = best[client.id]
                teacher = fed.down(client, candidates[i][0])
                answer = row_of(fed, kinds, rows[i]).predictor(teacher)
                fed.tallies[client.id].work += FORWARD * client.n
                client.memory["teacher"] = soften(outputs(fed, answer, client.train))

        fed.run(cohort, take)
        return state

    def sources(
        self, fed: Federation, sent: Mapping[int, Params], models: Mapping[int, Params]
    ) -> tuple[dict[Any, str], dict[Any, Params]]:
        """Return the architecture and the weights of each model that is cut; collective.

        These are the clients' own models, or with `merge` their mean for each architecture.
        """
        kinds = {k: fed.architectures[k] for k in models}
        if not self.merge:
            return kinds, dict(models)
        firsts = {kind: models[k] for k, kind in reversed(kinds.items())}
        parts = (
            (k, Mean.of(v.prefixed(f"{kinds[k]}/"), self.weight(fed.clients[k])))
            for k, v in sent.items()
        )
        mean = fed.mean(parts, keep=join_models(firsts), per="tensor")
        return {kind: kind for kind in firsts}, {kind: mean.under(f"{kind}/") for kind in firsts}

    def make(
        self,
        fed: Federation,
        kinds: Mapping[Any, str],
        sources: Mapping[Any, Params],
        pieces: Sequence[Piece],
        t: int,
        i: int,
    ) -> tuple[Params, Tensor]:
        """Return candidate i after it has learnt the public data, and its logits of that data.

        The logits are [N, C].
        """
        row = row_of(fed, kinds, pieces)
        with rng.scoped(fed.seed, "stitches", t, i):
            params = row.initial([sources[piece.source] for piece in pieces])
        if self.server_epochs:
            draws = rng.torch_stream(fed.seed, "candidate", "augment", t, i, device=fed.device)
            row.train(True)
            params = fit(
                fed,
                params,
                partial(self.public_loss, row),
                partial(self.public_batch, fed, draws),
                len(fed.public),
                "candidate",
                t,
                i,
                epochs=self.server_epochs,
                size=self.server_batch,
                lr=self.server_lr,
                optimiser="adam",
                trained=row.parameters.__contains__,
            )
        return params, outputs(fed, row.predictor(params), fed.public)

    def public_batch(self, fed: Federation, draws: torch.Generator, rows: np.ndarray) -> Any:
        """Return inputs and labels of public examples, or two views of them."""
        x, y = fed.public.batch(rows)
        return (fed.prepare(x), y) if self.public_labels else inputs(fed, x, 2, draws)

    def public_loss(self, row: Row, params: Params, batch: Any) -> Tensor:
        """Return a candidate's loss: cross-entropy, or without labels SimCLR's loss.

        SimCLR's loss compares representations (Chen et al., ICML 2020, arXiv:2002.05709, eq. 1);
        the other view of an image is the only positive.
        """
        if self.public_labels:
            return F.cross_entropy(row.logits(params, batch[0]), batch[1])
        z = row.represent(params, torch.cat(batch))
        same = torch.arange(len(batch[0]), device=z.device).repeat(2)
        return supcon(z, same, self.tau)


# Blocks and their groups


def blocks(fed: Federation, kind: str) -> tuple[Block, ...]:
    """Return the blocks of an architecture, from the server's module of it."""
    skeleton = fed.module(kind)
    if skeleton not in CUT:
        x = zeros(fed.store.form[0], EXAMPLES, fed.store.vocabulary, fed.device)
        CUT[skeleton] = cut(skeleton, each(x, spaced))
    return CUT[skeleton]


def spaced(x: Tensor) -> Tensor:
    """Return values from -1 to 1 in the place of zeros; tokens stay."""
    if not x.is_floating_point():
        return x
    return torch.linspace(-1, 1, x.numel(), device=x.device).view_as(x)


def row_of(fed: Federation, kinds: Mapping[Any, str], pieces: Sequence[Piece]) -> Row:
    """Return the row of these blocks, in the server's modules."""
    return Row([blocks(fed, kinds[piece.source])[piece.i] for piece in pieces])


@torch.no_grad()
def features(fed: Federation, kind: str, params: Params) -> list[Tensor]:
    """Return the inputs of each block of a model and the last block's output, for all public data.

    Each is [N, c]; maps are replaced by their means over places.
    """
    row = Row(blocks(fed, kind))
    row.train(False)
    tensors = row.like(row.named(params))

    def between(x: Any) -> Tensor:
        fresh = each(x, lambda v: v.clone())
        return torch.cat([flat(x), *(flat(out) for out in row.outputs(tensors, fresh))], 1)

    widths = [flat(out).shape[1] for out in row.outputs(tensors, first(fed))]
    values = outputs(fed, between, fed.public)
    return list(values.split([values.shape[1] - sum(widths), *widths], 1))


def first(fed: Federation) -> Any:
    """Return one public example, prepared."""
    return fed.prepare(fed.public.batch(np.zeros(1, int))[0])


def flat(x: Any) -> Tensor:
    """Return the values of each example, [n, c]; of maps their means, of modalities all together.

    The means are over places. The result is a copy, because the layers that follow may work in
    place.
    """
    if isinstance(x, Mapping):
        return torch.cat([flat(x[name]) for name in sorted(x)], 1)
    return (x.mean((2, 3)) if x.dim() == IMAGES else x.flatten(1)).float().clone()


def distances(fed: Federation, between: Mapping[Source, Sequence[Tensor]]) -> Tensor:
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


# Candidates


@dataclass(frozen=True)
class Piece(Generic[Source]):
    """Block i of a source, and its group."""

    source: Source
    i: int
    block: Block = dataclasses.field(compare=False)
    group: int = 0


class Reassembly(Generic[Source]):
    """All rows of blocks that the rules allow, counted without being listed.

    every: the blocks of each source.  member: the group of each block, in the sources' order;
    default: one group.  longest: largest number of blocks of a row; 0: any.
    """

    def __init__(
        self,
        every: Mapping[Source, Sequence[Block]],
        member: Sequence[int] | None = None,
        longest: int = 0,
    ):
        flat = [(source, i, b) for source, blocks in every.items() for i, b in enumerate(blocks)]
        groups = member or [0] * len(flat)
        pieces = [Piece(s, i, b, g) for (s, i, b), g in zip(flat, groups, strict=True)]
        self.pieces = sorted(pieces, key=lambda piece: piece.block.depth)
        kinds = sorted({piece.block.kind for piece in pieces})
        self.marks = [  # each piece's contribution as bits: its group, above them its operation
            1 << p.group | 1 << (max(groups) + 1 + kinds.index(p.block.kind)) for p in self.pieces
        ]
        self.groups = (1 << (max(groups) + 1)) - 1  # the bits of groups
        deepest = 1 + max(len(blocks) for blocks in every.values())
        self.longest = longest or deepest

    @cached_property
    def following(self) -> list[list[int]]:
        """The pieces that may follow each piece."""
        pieces = self.pieces
        return [
            [j for j in range(a + 1, len(pieces)) if fits(pieces[a].block, pieces[j].block)]
            for a in range(len(pieces))
        ]

    @cached_property
    def ways(self) -> list[list[dict[int, int]]]:
        """Number of rows from each piece to a head, by their groups and operations.

        The first index is the largest number of blocks left, minus 1, the second the first piece.
        """
        table: list[list[dict[int, int]]] = []
        for left in range(1, self.longest + 1):
            new: list[dict[int, int]] = []
            for a, piece in enumerate(self.pieces):
                count: dict[int, int] = {}
                if piece.block.last:
                    count[self.marks[a]] = 1
                elif left > 1:
                    for b in self.following[a]:
                        for mask, n in table[-1][b].items():
                            marks = mask | self.marks[a]
                            count[marks] = count.get(marks, 0) + n
                new.append(count)
            table.append(new)
        return table

    @cached_property
    def wanted(self) -> set[int]:
        """Contributions of the rows with the most operations, and among these the most groups."""
        masks = {m for a in self.starts() for m in self.ways[-1][a]}
        score = {m: ((m & ~self.groups).bit_count(), (m & self.groups).bit_count()) for m in masks}
        return {m for m in masks if score[m] == max(score.values())}

    def starts(self) -> list[int]:
        """Return the pieces that take the data."""
        return [a for a, piece in enumerate(self.pieces) if piece.block.takes_data]

    def completions(self, a: int, left: int, marks: int) -> int:
        """Return the number of allowed rows from this piece on.

        left: largest number of their blocks.  marks: contributions of the pieces before this one.
        """
        return sum(n for m, n in self.ways[left - 1][a].items() if marks | m in self.wanted)

    @cached_property
    def size(self) -> int:
        """Number of rows; it may exceed what `len` can return."""
        return sum(self.completions(a, self.longest, 0) for a in self.starts())

    def row(self, number: int) -> tuple[Piece[Source], ...]:
        """Return the row of this number, from 0 to size - 1."""
        pieces: list[Piece[Source]] = []
        options, marks = self.starts(), 0
        for left in range(self.longest, 0, -1):
            for a in options:
                n = self.completions(a, left, marks)
                if number < n:
                    break
                number -= n
            pieces.append(self.pieces[a])
            marks |= self.marks[a]
            if self.pieces[a].block.last:
                break
            options = self.following[a]
        return tuple(pieces)

    def __iter__(self) -> Iterator[tuple[Piece[Source], ...]]:
        return map(self.row, range(self.size))

    def draw(self, n: int, g: np.random.Generator) -> list[tuple[Piece[Source], ...]]:
        """Return n different rows, each as likely as any other; all if there are no more than n."""
        if self.size <= n:
            return list(self)
        numbers: dict[int, None] = {}
        while len(numbers) < n:
            numbers[int.from_bytes(g.bytes(32), "little") % self.size] = None
        return [self.row(number) for number in numbers]

    def most_bytes(self) -> int:
        """Return the bytes of the largest row, whatever it contributes."""
        best: list[list[int]] = []
        for left in range(1, self.longest + 1):
            new = []
            for a, piece in enumerate(self.pieces):
                further = (
                    [
                        best[-1][b] + nbytes(piece.block, self.pieces[b].block)
                        for b in self.following[a]
                        if best[-1][b] >= 0
                    ]
                    if left > 1
                    else []
                )
                new.append(0 if piece.block.last else max(further, default=-1))
            best.append(new)
        return max(
            best[-1][a] + nbytes(None, self.pieces[a].block)
            for a in self.starts()
            if best[-1][a] >= 0
        )


def reassembly(
    fed: Federation,
    kinds: Mapping[Any, str],
    sources: Mapping[Any, Params],
    K: int,
    longest: int,
) -> Reassembly:
    """Return the rows of blocks of these models that the rules allow, with K groups; collective."""
    between = fed.spread(sources, lambda s: features(fed, kinds[s], sources[s]))
    member = group(distances(fed, between).numpy(), K)
    return Reassembly({s: blocks(fed, kinds[s]) for s in sources}, member, longest)


def closest(
    fed: Federation, models: Mapping[int, Params], candidates: Sequence[Tensor]
) -> dict[int, int]:
    """Return for each client the candidate with the largest mean cosine of logits; collective.

    models: the models of the clients.  candidates: logits of the candidates, [N, C] each.
    """

    def choose(k: int) -> int:
        row = Row(blocks(fed, fed.architectures[k]))
        answer = outputs(fed, row.predictor(row.named(models[k])), fed.public)
        return int(
            torch.stack([F.cosine_similarity(answer, z, dim=1).mean() for z in candidates]).argmax()
        )

    return fed.spread(models, choose)
