"""FedGH: clients send mean representations by class; the server trains the common header on them.

Yi et al., ACM MM 2023, arXiv:2303.13137, algorithm 1.

Objective: F_k(b_k, c_k)
Server: c <- argmin_c sum_k sum_y CE(c(z_ky), y)
Round:
1. The server sends the header c to the cohort.
2. Each client trains its body b_k and its copy c_k of the header on its own examples.
3. It sends the mean representation z_ky of each class y that it has, but no weights.
4. From c the server trains the header on these means and their classes.

Deviations: class means are over all training examples after local training; the authors' code
averages means of batches. The server has its own optimiser, SGD over the received pairs in
mini-batches; in the authors' code the header never learns. With models.relu_head the mean is taken
after the header's ReLU, because the mean of relu(z) is not relu of the mean. The authors clip
gradients at norm 50; here they are not clipped.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Params, RoundBased, Upload
from hpcfed.algorithms.common_head.class_means import class_means, join_means
from hpcfed.config.conditions import Unused, field
from hpcfed.models.model import in_head
from hpcfed.training.server import fit


class FedGH(RoundBased):
    """A method whose server trains the header on class means, which all have equal weights.

    With server_epochs = 0 the header never changes.
    """

    guide = Guide(
        data="few classes per client",
        sent="class means up, the classifier down",
        won="above FedProto and LG-FedAvg with fewer bytes",
    )

    needs_classes: ClassVar[str] = "it trains the head on prototypes of classes"
    accepts: ClassVar[str] = "a common head"
    unused: ClassVar[Unused] = {
        "weighting": "nothing is averaged over clients",
    }

    server_epochs: NonNegativeInt = 100
    """Passes of the server over the class means of a round."""
    server_lr: PositiveFloat = field(0.01, used_if="server_epochs")
    """Learning rate of the server."""
    server_batch: PositiveInt = field(10, used_if="server_epochs")
    """Class means in one step of the server."""

    def shared(self, name: str) -> bool:
        return in_head(name)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        self.train(fed, client, download, t)
        return class_means(fed, client, fed.job.models.relu_head)

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Any]]) -> Params:
        sent = fed.at_root(dict(uploads))
        return fed.on_root(lambda: self.train_head(fed, state, list(sent.values()), fed.t))

    def train_head(
        self, fed: Federation, state: Params, sent: list[dict[str, Tensor]], t: int
    ) -> Params:
        """Return the header after the server's epochs over all pairs of mean and label."""
        z, y = join_means(sent)

        def loss(head: Params, rows: Tensor) -> Tensor:
            return F.cross_entropy(
                F.linear(z[rows], head["head.weight"], head["head.bias"]), y[rows]
            )

        how: dict[str, Any] = {
            "epochs": self.server_epochs,
            "size": self.server_batch,
            "lr": self.server_lr,
        }
        return fit(fed, state, loss, torch.from_numpy, len(y), "header", t, **how)
