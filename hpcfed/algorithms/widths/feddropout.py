"""Federated Dropout: each client trains a random part of the model, drawn anew in every round.

Caldas et al., 2018, arXiv:1812.07210, section 3. The same number of units of each layer is dropped
at random, so that the sub-model is a smaller dense model; the server puts it back in its place.

Objective: F_k(w_drawn)
Server: w_i <- sum_(k: i in drawn_k) p_k w_ki / sum_(k: i in drawn_k) p_k
Round:
1. For each client as many units of each layer are drawn as its width allows.
2. The server sends it the smaller dense model of these units.
3. The client trains it and sends it.
4. The server puts it back in its place and averages each value over the clients that had it, by
   examples; others stay.
5. With static batch normalisation the cohort receives the new weights and sends the moments of its
   examples, from which the statistics for evaluation follow.

Deviations: widths may differ by client. Messages are not compressed. The representation and the
units that a residual sum ties are dropped too. Gradients are clipped, as in the methods that it is
compared with. The scaler is that of dropout and of HeteroFL.
"""

from hpcfed import Client, Federation, Guide, rng
from hpcfed.algorithms.widths import submodels
from hpcfed.algorithms.widths.windows import WindowBased
from hpcfed.config.conditions import below, field
from hpcfed.models.widths import Window, draw_units


class FedDropout(WindowBased):
    """With all widths 1, no clipping and batch_norm = "aggregate" it is FedAvg, bit for bit.

    Dropout layers of a model stay.
    """

    guide = Guide(
        data="alike",
        sent="a random part of the model",
        won="fewer bytes and less work on clients",
    )

    shared_windows: bool = field(False, used_if={"models.widths": below(1)})
    """All clients of a round drop the same units; units of a narrower client are a subset of a
    wider one's.
    """

    @property
    def moves(self) -> bool:
        return True

    def window(self, fed: Federation, client: Client, state: submodels.Wide) -> Window:
        whose = () if self.shared_windows else (client.id,)
        return submodels.window(
            fed, client.architecture, draw_units(rng.stream(fed.seed, "window", state.t, *whose))
        )
