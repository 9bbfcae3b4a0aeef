"""FedRare: FedAvg for data with rare classes, with contrastive losses on the representations.

Wu et al. (Federated Learning for Rare Disease Classification), with public code wnn2000/FedRare.
The paper was not at hand; the implementation is based on that code. A client minimises the sum of
three losses. The first is cross-entropy, with class c weighted by n_c^-1.2. The second is the
supervised contrastive loss of its representations (Khosla et al., 2020, arXiv:2004.11362). The
third is the same loss against the global vectors of the classes alone, with inter = 0 in the first
11 rounds. If a batch holds a single example of a rare class, the oldest of the client's last 10
such examples joins it, and becomes the newest. The vector of a class is the mean of the
representations of its correctly predicted examples, each scaled to length 1, and is scaled to
length 1 itself; the confidence is the mean of sum_j (max p - p_j) / (C - 1). a_kc, the weight of a
client's vector, is the softmax over clients of confidence / T. A class that nobody predicts keeps
its vector. Adam's moments stay with the clients.

Objective: CE_balanced + intra L_SupCon + inter L_global
Server: w <- sum_k p_k w_k; v_c <- sum_k a_kc v_kc; v_c <- v_c / ||v_c||
Round:
1. The server sends its model and the global vectors of the classes.
2. Each client trains with class weights and two contrastive losses.
3. By class it averages representations and confidences of the examples that it predicts correctly.
4. It sends its model, the vectors of its classes and the confidences.
5. The server averages models by examples, and vectors by the softmax of confidences; it scales the
   mean vectors to length 1.

Deviations: the representation itself is contrasted, without a projection. n_c are the client's
counts, and the weights are 1 on average over its classes. A class is rare if it has less than
rare_share of all examples; the code names two classes, and uses the vectors of four clients alone.
Vectors are of a pass over the client's examples after its training, in eval mode; in the code they
are of the batches as they are trained on. They are unknown until a client sends them; in the code
they are random. An example is not a partner of itself.
"""

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, LocalSteps, Mean, Params, RoundBased, Share, Upload
from hpcfed.algorithms.base import OWN_LOSS, warn_of_short_run
from hpcfed.config.conditions import Unused, below, field
from hpcfed.training.infer import class_sums, outputs
from hpcfed.training.losses import supcon, to_vectors

VECTORS = "vectors"  # name in the state: class vectors, [C, d], nan for classes not sent yet


class FedRare(RoundBased):
    """FedAvg with contrastive losses for rare classes.

    exponent = intra = inter = 0 is FedAvg, bit for bit.
    """

    guide = Guide(
        data="rare classes that few clients have",
        sent="all weights, and class vectors",
        won="medical images with rare diseases",
    )
    unused: ClassVar[Unused] = OWN_LOSS

    needs_classes: ClassVar[str] = "it averages a vector for each class"
    reads_head: ClassVar[bool] = True
    per: ClassVar[str] = "row"
    local_defaults: ClassVar[dict[str, Any]] = {"keep_optimiser": True}

    exponent: NonNegativeFloat = 1.2
    """Cross-entropy weighs class c by its number of examples to the power of minus this."""
    intra: NonNegativeFloat = 1.0
    """Weight of the contrastive loss within a batch."""
    inter: NonNegativeFloat = field(2.0, used_if=({"inter": 0}, {"inter_after": below("rounds")}))
    """Weight of the contrastive loss against the global vectors of the classes."""
    inter_after: NonNegativeInt = field(11, used_if="inter")
    """Rounds before the loss against the global vectors is used."""
    tau: PositiveFloat = field(0.07, used_if=("intra", "inter"))
    """Temperature of both contrastive losses."""
    confidence_tau: PositiveFloat = field(1.0, used_if="inter")
    """T, temperature of the clients' confidences, by which class vectors are weighted."""
    rare_share: Share = field(0.05, used_if="intra")
    """A class is rare if it has less than this share of all training examples."""
    queue: PositiveInt = field(10, used_if="intra")
    """Number of examples of each rare class from which a partner is taken."""

    def init(self, fed: Federation) -> Params:
        if self.inter:
            warn_of_short_run(fed, "inter_after", "class vectors are not used")
        model = fed.initial()
        unknown = torch.full_like(model["head.weight"], torch.nan)
        return Params({**model, VECTORS: unknown})

    def receive(self, client: Client, state: Params) -> None:
        client.load(state.pick(lambda name: name != VECTORS))

    def loss(self, client: Client, state: Params, model: Any, x: Any, y: Tensor) -> Tensor:
        """Return the local objective on one batch.

        state: `weights` of the classes, [C], and the vectors of the classes if they are used.
        """
        z = model.body(x)
        value = F.cross_entropy(model.head(z), y, state.get("weights"))
        if self.intra:
            value = value + self.intra * supcon(z, y, self.tau)
        if VECTORS in state:
            value = value + self.inter * to_vectors(z, y, state[VECTORS], self.tau)
        return value

    def terms(self, fed: Federation, client: Client, received: Params, t: int) -> Params:
        """Return what the loss needs in addition to the batch."""
        terms = Params()
        counts = torch.as_tensor(fed.label_counts[client.id], device=fed.device)
        if self.exponent:
            terms["weights"] = class_weights(counts, self.exponent)
        if self.inter and t >= self.inter_after:
            terms[VECTORS] = received[VECTORS]
        return terms

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        loss = partial(self.loss, client, self.terms(fed, client, download, t))
        rare = rare_classes(fed, self.rare_share) if self.intra else []
        queues = {c: client.memory.get(f"queue {c}") for c in rare}
        with LocalSteps(fed, client, t) as steps:
            for batch in steps:
                x, y = batch
                rows = [r for c in rare if (r := self.partner(client, steps.rows, queues, c)) >= 0]
                if rows:
                    other, label = client.train.batch(np.array(rows))
                    x, y = torch.cat([x, fed.prepare(other)]), torch.cat([y, label])
                steps.learn(loss, x, y)
        client.memory |= {f"queue {c}": q for c, q in queues.items() if q is not None}
        means, weights = self.describe(fed, client)
        model = Mean.of(client.params(), self.weight(client))
        vectors = Mean.of(Params({VECTORS: means}), Params({VECTORS: weights}))
        return Upload(model + vectors, relative_to=download)

    def partner(
        self, client: Client, rows: np.ndarray, queues: dict[int, Tensor | None], c: int
    ) -> int:
        """Return the position of the oldest example of class c in its queue; -1 for none.

        There is one only if the batch holds exactly one example of the class. The batch's examples
        of the class are appended to the queue of the class, and then the partner.
        """
        new = rows[client.train.labels[rows] == c]
        queue = queues[c]
        old = np.zeros(0, np.int64) if queue is None else queue.numpy()
        old = old[~np.isin(old, new)]
        partner, old = np.split(old, [1 if len(new) == 1 else 0])
        joined = np.concatenate([old, new, partner])
        if len(joined):
            queues[c] = torch.from_numpy(joined[-self.queue :].astype(np.int64))
        return int(partner[0]) if len(partner) else -1

    def describe(self, fed: Federation, client: Client) -> tuple[Tensor, Tensor]:
        """Return the vectors of the classes, and their weights exp(confidence / T).

        Only correctly predicted examples count. Shapes are [C, d] and [C, 1]. Both are 0 for a
        class without such examples.
        """
        model = client.model.eval()
        z = outputs(fed, model.body, client.train)
        fed.tallies[client.id].work += client.n / 3
        with torch.no_grad():
            p = F.softmax(model.head(z), 1)
        labels = client.train.labels
        right = (p.argmax(1).cpu().numpy() == labels).nonzero()[0]
        directions = F.normalize(z[right], dim=1)
        sums, count = class_sums(directions, labels[right], fed.classes)
        sure, _ = class_sums(confidence(p[right])[:, None], labels[right], fed.classes)
        present, n = (count > 0)[:, None], count.clamp(min=1)[:, None]
        weights = torch.where(present, (sure / n / self.confidence_tau).exp(), 0.0)
        return F.normalize(sums, dim=1).float(), weights.float()

    def server(self, fed: Federation, state: Params, mean: Params, cohort: list[int]) -> Params:
        return Params({**mean, VECTORS: F.normalize(mean[VECTORS], dim=1)})


def class_weights(counts: Tensor, exponent: float) -> Tensor:
    """Return the weights of the classes, [C]: counts^-exponent, scaled to a mean of 1.

    The mean is over the classes that have examples; the others have weight 0.
    """
    raw = torch.where(counts > 0, counts.clamp(min=1).double() ** -exponent, 0.0)
    return (raw * (counts > 0).sum() / raw.sum()).float()


def rare_classes(fed: Federation, share: float) -> list[int]:
    """Return the classes with less than this share of all clients' examples, but with some."""
    counts = np.zeros(fed.classes, np.int64)
    for k in range(fed.K):
        counts += fed.label_counts[k]
    return np.flatnonzero((counts > 0) & (counts < share * counts.sum())).tolist()


def confidence(p: Tensor) -> Tensor:
    """Return sum_j (max p - p_j) / (C - 1) of each row.

    It is 1 for a certain prediction and 0 for a uniform one.
    p: [n, C].
    """
    return (p.max(1, keepdim=True).values - p).sum(1) / max(1, p.shape[1] - 1)
