"""Fed-ZDAC and Fed-ZDAS: FedAvg with synthetic examples of rare classes, made from models.

Hao et al. (Towards Fair Federated Learning with Zero-Shot Data Augmentation), CVPR Workshops 2021,
arXiv:2104.13417, doi:10.1109/CVPRW53098.2021.00369. With ZDAC the clients make examples, with
ZDAS the server. Examples x of classes c are optimised on a fixed model f by the second objective,
where mu_l and sigma_l are the stored statistics of batch normalisation, lam is `moments` and rho
`prior`; no real example is needed. The aim is a small variance of accuracy over clients.
The implementation is based on the abstract, because no code of the authors is public. Who makes
examples from which models is the paper's, the loss is that of the works on which it builds (Haroush
et al., 2020, arXiv:1912.01274), and all numbers are our choice.

Objective: F_k(w); CE(f(x), c) + lam sum_l (||mu_l(x) - mu_l||^2 + ||sigma_l(x) - sigma_l||^2) +
rho mean(x^2)
Server: w <- sum_k p_k w_k
Round:
1. The server sends its model to the cohort.
2. With ZDAC a client makes examples of its rarest classes from this model, until it has equally
   many of all classes, at most `samples` of each.
3. It trains on these and its own examples and sends its model.
4. The server takes the weighted mean of the models.
5. With ZDAS the server makes examples from each client's model, of the classes that the client
   has, and trains the mean on them.

Deviations: no examples are made in the first rounds, because an untrained model has no information.
The small square of the values is added to the loss; for a model without batch normalisation it
stands alone beside the cross-entropy. `samples` bounds how many examples ZDAC makes of a class. At
the clients synthetic images are rounded to bytes, like those of the data. The server's loss gives
all classes equal weights. For ZDAS a client sends which classes it has, one bit each.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Shard, Upload
from hpcfed.algorithms.base import warn_of_short_run
from hpcfed.algorithms.data_free.generators import example_shape
from hpcfed.algorithms.data_free.inversion import Inversion
from hpcfed.clients.client import Extended
from hpcfed.config.conditions import field
from hpcfed.core.inputs import restore
from hpcfed.training.local import count_work
from hpcfed.training.server import fit, forward, parameters

Made = tuple[Tensor, Tensor]  # examples as models take them, [n, *shape], and their classes, [n]


class ZeroShot(RoundBased):
    """FedAvg with zero-shot data augmentation; samples = 0 is FedAvg, bit for bit.

    It is also FedAvg at clients that have equally many examples of all classes.
    """

    guide = Guide(
        data="classes missing at clients",
        sent="all weights",
        won="fairness over clients without public data",
    )

    needs_classes: ClassVar[str] = "it makes examples of missing classes"

    at: Literal["clients", "server"] = field("clients", used_if="samples")
    """Where examples are made: at the clients (Fed-ZDAC), or at the server (Fed-ZDAS)."""
    samples: NonNegativeInt = 20
    """Synthetic examples per class: at a client the maximum that it adds, at the server the number
    from each model.
    """
    after: NonNegativeInt = field(1, used_if="samples")
    """Rounds before the first examples are made."""
    by: Literal["examples", "generator"] = field("examples", used_if="samples")
    """Optimise the values of the examples, or a generator that makes them from noise."""
    steps: PositiveInt = field(100, used_if="samples")
    """Steps of optimisation of the examples."""
    examples_lr: PositiveFloat = field(0.1, used_if={"by": "examples"})
    """Learning rate of the examples, by Adam."""
    generator_lr: PositiveFloat = field(1e-3, used_if={"by": "generator"})
    """Learning rate of the generator, by Adam."""
    noise: PositiveInt = field(100, used_if={"by": "generator"})
    """Number of noise values from which the generator makes an example."""
    moments: NonNegativeFloat = field(0.1, used_if="samples")
    """lam, weight of the distance to the stored statistics; it has no effect on models without
    them.
    """
    prior: NonNegativeFloat = field(1e-3, used_if="samples")
    """Weight of the mean square of the examples' normalised values."""
    source: Literal["each", "mean"] = field("each", used_if={"at": "server"})
    """The server makes examples from each uploaded model, or, of all classes, from their mean.
    """
    server_epochs: PositiveInt = field(1, used_if={"at": "server"})
    """Epochs of the server over the synthetic examples of a round."""
    server_lr: PositiveFloat = field(0.01, used_if={"at": "server"})
    """Learning rate of the server, by plain SGD."""
    server_batch: PositiveInt = field(64, used_if={"at": "server"})
    """Synthetic examples in one step of the server."""

    @property
    def tells_classes(self) -> bool:
        """Whether a client sends which classes it has."""
        return self.samples > 0 and self.at == "server" and self.source == "each"

    @property
    def inversion(self) -> Inversion:
        lr = self.examples_lr if self.by == "examples" else self.generator_lr
        return Inversion(self.steps, lr, self.moments, self.prior, self.by, self.noise)

    def init(self, fed: Federation) -> Params:
        if self.samples:
            example_shape(fed)  # raises ConfigError for texts
            warn_of_short_run(fed, "after", "no example is made")
        return super().init(fed)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download, data = fed.down(client, self.offer(fed, client, state)), client.train
        self.receive(client, download)
        labels = missing(fed.label_counts[client.id], self.samples)
        if self.at == "clients" and t >= self.after and len(labels):
            classes = torch.from_numpy(labels).to(fed.device)
            with count_work(fed, client, self.steps * len(labels)):
                x = self.inversion.examples(
                    fed, client.architecture, download, classes, t, client.id
                )
            data = Extended(client.train, as_stored(fed, client.train, x, labels))
        self.train(fed, client, download, t, data=data)
        model = Mean.of(client.params(self.shared), self.weight(client))
        if not self.tells_classes:
            return Upload(model, relative_to=download)
        classes = class_bits(fed, client.id)
        return Upload(model=model, classes=classes, relative_to={"model": download})

    def make(self, fed: Federation, model: Params, classes: np.ndarray, *key: int) -> Made:
        """Make `samples` examples of each of these classes from a model; the server's work."""
        labels = torch.from_numpy(np.repeat(classes, self.samples)).to(fed.device)
        kind = fed.architectures[0]
        return self.inversion.examples(fed, kind, model, labels, "server", *key), labels

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Any]]) -> Params:
        models, t = uploads, fed.t
        if self.tells_classes:
            models = [(k, sent["model"]) for k, sent in uploads]
        mean = fed.mean(models, keep=state)
        if self.at == "clients" or not self.samples or t < self.after:
            return mean
        if self.source == "mean":
            everything = np.arange(fed.classes)
            return fed.on_root(
                lambda: self.learn(fed, mean, {0: self.make(fed, mean, everything, t)}, t)
            )
        parts = {}
        for k, sent in uploads:
            present = np.unpackbits(sent["classes"].cpu().numpy(), count=fed.classes)
            with fed.clock("server"):
                model = sent["model"].terms[0].value
                parts[k] = self.make(fed, model, np.flatnonzero(present), t, k)
        examples = fed.at_root(parts)
        return fed.on_root(lambda: self.learn(fed, mean, examples, t))

    def learn(self, fed: Federation, model: Params, examples: Mapping[int, Made], t: int) -> Params:
        """Return the model after training on synthetic examples; all classes have equal weights."""
        if not examples:
            return model
        x, y = (torch.cat(part) for part in zip(*examples.values(), strict=True))
        module = fed.module(fed.architectures[0])
        module.model.train()
        counts = torch.bincount(y, minlength=fed.classes)
        weight = len(y) / (counts.clamp(min=1) * (counts > 0).sum()).float()

        def loss(params: Params, rows: Tensor) -> Tensor:
            return F.cross_entropy(forward(fed, module, params, x[rows]), y[rows], weight)

        return fit(
            fed,
            model,
            loss,
            torch.from_numpy,
            len(y),
            "zero-shot",
            t,
            epochs=self.server_epochs,
            size=self.server_batch,
            lr=self.server_lr,
            trained=parameters(module),
        )


def missing(counts: np.ndarray, most: int) -> np.ndarray:
    """Return the classes of the examples that balance a client's counts, in ascending order.

    Each class gets as many examples as it has fewer than the largest class, at most `most`.
    counts: examples of each class, [C].
    """
    lacking: Any = np.minimum(np.max(counts) - counts, most)
    return np.repeat(np.arange(len(counts)), lacking)


def class_bits(fed: Federation, k: int) -> Tensor:
    """Return which classes client k has, one bit each, [ceil(C / 8)], uint8."""
    return torch.from_numpy(np.packbits(np.asarray(fed.label_counts[k]) > 0))


def as_stored(fed: Federation, like: Shard, x: Tensor, labels: np.ndarray) -> Shard:
    """Return synthetic examples, [n, *shape] and [n], as a shard stored like a client's data."""
    dtype = like.batch(np.zeros(1, np.int64))[0].dtype
    stored = restore(x, fed.data.mean, fed.data.std, dtype).cpu().numpy()
    return Shard(stored, labels.astype(np.int64), np.arange(len(labels)), like.device)
