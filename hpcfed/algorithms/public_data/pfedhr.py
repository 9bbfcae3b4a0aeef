"""pFedHR: the server reassembles blocks of the clients' models into new models, as their teachers.

Each client gets as a teacher the new model that is most similar to its own.

Wang et al. (Towards Personalized Federated Learning via Heterogeneous Model Reassembly), NeurIPS
2023, arXiv:2308.08643.

f_k(x) are the logits of client k's model, c(x) those of a candidate and c_k(x) those of the
client's teacher (eq. 6). dis (eq. 3) compares the inputs and the outputs of two blocks on public
data. Operations are the kinds of layers, in an order from embedding and convolution to linear. A
candidate is a row of blocks, each deeper in its own model than the one before it was in its own,
and of the same or a later operation, that has all operations and all groups, if there is such a row
(`reassembly` groups blocks and draws rows). If widths differ, ReLU(W x + b) is put between two
blocks. Candidates learn the public data, labelled by cross-entropy or unlabelled by SimCLR's loss.

Rests on the paper's equations and on the authors' code (JackqqWang/pfedHR), which differ much.

Objective: CE + lam KL(softmax c_k(x) || softmax f_k(x))
Server: dis = 1 / (CKA_inputs + CKA_outputs); c_k <- argmax_c mean_x cos(c(x), f_k(x))
Round:
1. Clients train with the teacher c_k of the last round that they took part in; they send models.
2. The server puts the blocks of all models (with `merge` of their mean per architecture) into
   groups by their distance dis.
3. It builds candidates from blocks of all groups, in natural order.
4. The candidates learn the public data.
5. Each client of the round gets the candidate whose logits of public data are most like its own
   model's, and keeps the candidate's soft predictions for its own examples.

Deviations: candidates are drawn with equal probability among all that the rules allow. If there are
no more than `candidates` of them, all are taken. The paper searches; the code draws rows of 4 to 6
blocks. If no row has all operations and all groups, those with the most operations count, and of
these those with the most groups. The centre of a group is its block nearest to the others, with the
farthest blocks as first centres (the code averages features padded with ones). Features of maps
are their means over places. The first block is the first of its model, and the last a head; the
code puts a linear layer before every block, and a new one at the end. The KL is that of soft
predictions with the teacher as target; the teacher sees examples without augmentation. The paper
prints its arguments the other way round (kl_reverse); the code has cross-entropy with raw logits as
targets. Clients' models are compared as they are; the code trains
copies of them on the public data first. Not followed, being defects: in the code, blocks that
candidates share are trained in all of them; a client that did not take part in the round before
restarts from its first weights.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import (
    Client,
    ConfigError,
    Federation,
    Guide,
    Mean,
    Paired,
    Params,
    RoundBased,
    Upload,
    rng,
)
from hpcfed.algorithms.base import check_public_labels
from hpcfed.algorithms.public_data.blocks import Row
from hpcfed.algorithms.public_data.by_architecture import join_models
from hpcfed.algorithms.public_data.reassembly import IMAGES, Piece, most_bytes, reassembly
from hpcfed.config.conditions import Unused, field, unless
from hpcfed.models.precision import autocast, raised
from hpcfed.training.batches import inputs
from hpcfed.training.infer import FORWARD, outputs
from hpcfed.training.losses import distil, soften, supcon
from hpcfed.training.server import fit, predictor


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
    """Average the models of each architecture before cutting them into blocks, for many clients
    with few architectures.
    """
    groups: PositiveInt = field(4, used_if="lam")
    """Groups of blocks, K; fewer if there are fewer blocks."""
    candidates: PositiveInt = field(4, used_if="lam")
    """Candidates per round; fewer if the rules allow fewer."""
    public_labels: bool = field(True, used_if="server_epochs")
    """Candidates learn the labels of public data; otherwise, without labels, they learn by
    contrasting two augmented views of each image.
    """
    tau: PositiveFloat = field(0.5, used_if={"public_labels": False})
    """Without labels: temperature of the contrastive loss."""
    server_epochs: NonNegativeInt = field(3, used_if="lam")
    """Epochs of each candidate over the public data."""
    server_lr: PositiveFloat = field(1e-3, used_if="server_epochs")
    """Learning rate of the candidates, by Adam."""
    server_batch: PositiveInt = field(8, used_if="server_epochs")
    """Public examples in one step of a candidate."""

    def shared(self, name: str) -> bool:
        return False

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return bytes: down those of the largest candidate, since draws decide; up a model."""
        if not self.lam:
            return 0, 0
        return most_bytes(fed), fed.shapes(k=k).nbytes

    def init(self, fed: Federation) -> Params:
        if not (self.lam and self.server_epochs):
            return Params()
        images = len(getattr(fed.public.x, "shape", ())) == IMAGES
        if not self.public_labels and not images:
            raise ConfigError(
                "pfedhr learns without public labels from two augmented views of each image, but "
                "these data are not images; set algorithm.public_labels = true"
            )
        if self.public_labels:
            check_public_labels(fed, "set algorithm.public_labels = false")
        return Params()

    def receive(self, client: Client, state: Params) -> None:
        pass  # a client's model stays with it

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Any) -> Tensor:
        if isinstance(y, Tensor):
            return super().loss(client, state, model, x, y)
        (labels, soft), z = y, model(x)  # as `local` pairs them; soft: [b, C], probabilities
        return F.cross_entropy(z, labels) + self.lam * self.distance(soft, z)

    def distance(self, teacher: Tensor, z: Tensor) -> Tensor:
        """Return the KL of the teacher's and the own soft predictions.

        teacher: probabilities, [n, C].  z: logits, [n, C].
        """
        if not self.kl_reverse:
            return distil(teacher, z)
        log_teacher = teacher.clamp(min=torch.finfo(teacher.dtype).tiny).log()
        return F.kl_div(log_teacher, F.log_softmax(z, 1), reduction="batchmean", log_target=True)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload | None:
        """Train one client with the teacher of its last round, if it has one; return its model."""
        soft, data = client.memory.get("teacher"), client.train  # soft predictions of the teacher
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
        # dis, the groups of blocks and the rows (of pieces) that the rules allow
        possible = reassembly(fed, kinds, sources, self.groups)
        rows = possible.draw(self.candidates, rng.stream(fed.seed, "candidates", t))
        candidates = fed.spread(range(len(rows)), lambda i: self.make(fed, sources, rows[i], t, i))
        best = closest(fed, models, [logits for _, logits in candidates.values()])

        def take(client: Client) -> None:
            if client.id in best:
                i = best[client.id]
                teacher = fed.down(client, candidates[i][0])
                answer = Row([piece.block for piece in rows[i]]).predictor(teacher)
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
        sources: Mapping[Any, Params],
        pieces: Sequence[Piece],
        t: int,
        i: int,
    ) -> tuple[Params, Tensor]:
        """Return candidate i after it has learnt the public data, and its logits of that data.

        The logits are [N, C].
        """
        row = Row([piece.block for piece in pieces])
        with rng.scoped(fed.seed, "stitches", t, i):
            params = row.initial([sources[piece.source] for piece in pieces])
        if self.server_epochs:
            draws = rng.torch_stream(fed.seed, "candidate", "augment", t, i, device=fed.device)
            row.train()
            parameters = {name for name, _ in row.named_parameters()}
            params = fit(
                fed,
                params,
                partial(self.public_loss, fed, row),
                partial(self.public_batch, fed, draws),
                len(fed.public),
                "candidate",
                t,
                i,
                epochs=self.server_epochs,
                size=self.server_batch,
                lr=self.server_lr,
                optimiser="adam",
                trained=parameters.__contains__,
            )
        return params, outputs(fed, row.predictor(params), fed.public)

    def public_batch(self, fed: Federation, draws: torch.Generator, which: np.ndarray) -> Any:
        """Return inputs and labels of public examples, or two views of them."""
        x, y = fed.public.batch(which)
        return (fed.prepare(x), y) if self.public_labels else inputs(fed, x, 2, draws)

    def public_loss(self, fed: Federation, row: Row, params: Params, batch: Any) -> Tensor:
        """Return a candidate's loss: cross-entropy, or without labels SimCLR's loss.

        SimCLR's loss compares representations (Chen et al., ICML 2020, arXiv:2002.05709, eq. 1);
        the other view of an image is the only positive.
        """
        x = batch[0] if self.public_labels else torch.cat(batch)
        with autocast(fed.job.run.precision, fed.device):
            output = raised(row.run(params, x, represent=not self.public_labels))
        if self.public_labels:
            return F.cross_entropy(output, batch[1])
        same = torch.arange(len(batch[0]), device=output.device).repeat(2)
        return supcon(output, same, self.tau)


def closest(
    fed: Federation, models: Mapping[int, Params], candidates: Sequence[Tensor]
) -> dict[int, int]:
    """Return for each client the candidate with the largest mean cosine of logits; collective.

    models: the models of the clients.  candidates: logits of the candidates, [N, C] each.
    """

    def choose(k: int) -> int:
        answer = outputs(fed, predictor(fed, fed.architectures[k], models[k]), fed.public)
        return int(
            torch.stack([F.cosine_similarity(answer, z, dim=1).mean() for z in candidates]).argmax()
        )

    return fed.spread(models, choose)
