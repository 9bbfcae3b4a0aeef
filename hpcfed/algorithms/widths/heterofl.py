"""HeteroFL: each client trains the leading slice of the global model that its width allows.

Diao et al., ICLR 2021, arXiv:2010.01264, algorithm 1. The paper's scaler, static batch
normalisation and masked cross-entropy are switches. Masking by zero logits, where an absent class
still counts in the softmax, is that of the authors' code; "drop" is the other reading. Gradients
are clipped at norm 1, as in the authors' code; without it (clip = 0) local training diverges at its
learning rate of 0.1.

Objective: F_k(w_slice)
Server: w_i <- mean_(k: i in slice_k) w_ki
Round:
1. The server sends each client the leading slice that its width allows.
2. The client trains it, with the switches of scaler, masked loss and batch normalisation.
3. It sends its slice, without the rows of classes that it lacks if the loss is masked.
4. The server averages each value over the clients that sent it; others stay.
5. With static batch normalisation the cohort receives the new weights and sends the moments of its
   examples, from which the statistics for evaluation follow.

Deviations: the statistics of static batch normalisation are taken after every round instead of
after the last, by the cohort, which receives the new weights for that. They are the mean and
variance of all values that its batches have at a layer, each batch normalised by itself. The
authors' code averages those of batches drawn from all clients' data together.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from hpcfed import Client, Federation, Guide
from hpcfed.algorithms.widths import submodels
from hpcfed.algorithms.widths.windows import WindowBased
from hpcfed.models.scores import Mask


class HeteroFL(WindowBased):
    """In its neutral setting HeteroFL equals FedAvg with uniform weights, bit for bit.

    All widths are then 1, there is no mask and no clipping, and batch_norm = "aggregate".
    """

    guide = Guide(
        data="alike to different labels",
        sent="a slice of the model",
        won="devices of different strength with one model",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of a value: its number of training examples, or 1."""
    mask: Mask = "zero"
    """Logits of classes without examples at a client become this; none: they and their rows are
    treated like others.
    """

    def statistics_architectures(self, fed: Federation) -> list[str]:
        return submodels.levels(fed)

    def predictor(
        self, fed: Federation, client: Client, state: submodels.Wide
    ) -> Callable[[Any], Tensor]:
        model = client.model
        return lambda x: submodels.mask_absent(client, model(x), self.mask)

    def columns(self, fed: Federation, state: submodels.Wide) -> dict[str, float]:
        return submodels.accuracies(self, fed, state, submodels.levels(fed)[1:])
