"""FedAsync: the server merges each client's model on arrival, with less weight if it is stale.

Xie et al., OPT 2020, arXiv:1903.03934, algorithm 1.

Objective: F_k(w) + rho / 2 ||w - x_v||^2
Server: x <- (1 - alpha_t) x + alpha_t w_k; alpha_t = alpha s(staleness)
Round:
1. A client receives the server's present model, of version v, and trains it, near it.
2. It reports when its virtual time has passed; nobody waits.
3. Its staleness is the number of merges since its download.
4. The server merges its model at once, with less weight if it is stale.
5. The client, or another one, gets work.

Deviations: staleness is 0 for the freshest model, so that s(0) = 1 in all forms. It follows from
the clients' profiles in virtual time and is not drawn at random. The defaults are the paper's
settings as other works report them.
"""

from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, EventBased, Federation, Guide, Model, Params, Share
from hpcfed.algorithms.asynchronous.staleness import damping
from hpcfed.algorithms.base import warn_of_short_run
from hpcfed.algorithms.events import Work
from hpcfed.config.conditions import field, other_than
from hpcfed.training.losses import proximal


class FedAsync(EventBased):
    """Asynchronous method in which participation * clients work at the same time.

    With alpha = 1 and one client it is sequential training, bit for bit.
    """

    guide = Guide(
        data="alike to moderately different",
        sent="all weights, when a client is done",
        won="time, if staleness is small",
    )

    alpha: Share = 0.6
    """Weight of a fresh model in a merge."""
    staleness: Literal["const", "poly", "hinge"] = "poly"
    """How the weight falls with the staleness s: not at all, as (s + 1)^-a, or after b merges as 1
    / (a (s - b) + 1).
    """
    a: NonNegativeFloat = field(0.5, used_if={"staleness": other_than("const")})
    """Poly and hinge: a, how fast the weight falls; the paper has 0.5 for poly, 10 for hinge."""
    b: NonNegativeInt = field(4, used_if={"staleness": "hinge"})
    """Hinge: staleness up to which a model has its full weight."""
    rho: NonNegativeFloat = 0.005
    """Weight of the proximal term, rho / 2 times the squared distance to the download."""
    max_staleness: NonNegativeInt | None = None
    """Models of larger staleness are rejected; their traffic counts."""
    decay: PositiveFloat = field(1.0, used_if="decay_at")
    """Factor of alpha at each of decay_at."""
    decay_at: tuple[PositiveInt, ...] = field((), used_if={"decay": other_than(1)})
    """Rounds, of `merges` merges each, after which alpha is multiplied by decay; the paper: 0.5
    after 800 merges.
    """

    def init(self, fed: Federation) -> Params:
        if self.decay_at:
            never = "alpha is not multiplied by decay as often as it should be"
            warn_of_short_run(fed, "decay_at", never, begins=max(self.decay_at))
        return super().init(fed)

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        value = super().loss(client, state, model, x, y)
        return value + proximal(model, anchor=state, mu=self.rho) if self.rho else value

    def merge(
        self, fed: Federation, job: Work, current: Params, up: Params, near: dict[int, Params]
    ) -> Params | None:
        if self.max_staleness is not None and job.staleness > self.max_staleness:
            return None
        alpha = self.alpha * self.decay ** sum(fed.t >= t for t in self.decay_at)
        alpha *= damping(job.staleness, self.staleness, self.a, self.b)
        return (1 - alpha) * current + alpha * up
