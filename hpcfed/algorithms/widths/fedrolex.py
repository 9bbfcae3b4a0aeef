"""FedRolex: like HeteroFL, but the slices roll through the model; each weight is trained in turn.

Alam et al., NeurIPS 2022, arXiv:2212.01548, algorithm 1: in round t a group of K units gives the
units {(t + i) mod K : i = 0 .. ceil(width K) - 1}. The server's model may be wider than any
client's. Scaler, static batch normalisation and masked cross-entropy are HeteroFL's
(arXiv:2010.01264), as in the authors' code, and so is the clipping of gradients.

Objective: F_k(w_slice)
Server: w_i <- mean_(k: i in slice_k) w_ki
Round:
1. The slices of round t begin at unit t of each layer and wrap around.
2. The server sends each client its slice, as wide as the client allows.
3. The client trains it by the masked loss and sends it, without the rows of classes that it lacks.
4. The server averages each value over the clients that sent it; others stay.
5. With static batch normalisation the cohort receives the new weights and sends the moments of its
   examples, from which the statistics for evaluation follow.

Deviations: the authors' code rolls the other way, units {(i - t) mod K} (roll_step = -1). The kept
units stay in the model's order, which makes width 1 FedAvg and changes nothing else. Static
statistics are those of the whole model alone and are taken after every round. A round in which no
client reports does not roll.
"""

from typing import Literal

from hpcfed import Client, Federation, Guide
from hpcfed.algorithms.widths import submodels
from hpcfed.algorithms.widths.windows import WindowBased
from hpcfed.config.conditions import below, field
from hpcfed.models.scores import Mask
from hpcfed.models.widths import Window, roll_units


class FedRolex(WindowBased):
    """Round 1 is that of HeteroFL.

    With roll_step = 0 all rounds are, except that HeteroFL evaluates personal models with a mask.
    """

    guide = Guide(
        data="alike to different labels",
        sent="a slice of the model, another each round",
        won="above HeteroFL if few devices are large",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of a value: its number of training examples, or 1."""
    mask: Mask = "zero"
    """Logits of classes without examples at a client become this; none: they and their rows are
    treated like others.
    """
    roll_step: int = field(1, used_if={"models.widths": below(1)})
    """Units by which the window moves from round to round; negative: backwards, -1 as the authors'
    code.
    """

    @property
    def moves(self) -> bool:
        return self.roll_step != 0

    def window(self, fed: Federation, client: Client, state: submodels.Wide) -> Window:
        return submodels.window(fed, client.architecture, roll_units(state.t * self.roll_step))
