"""PFNM: the server matches the clients' hidden units; a beta process decides how many it keeps.

Yurochkin et al. (Bayesian Nonparametric Federated Learning of Neural Networks), ICML 2019,
arXiv:1905.12022, sections 3.1 to 3.3; the gains and the sweeps are in `nonparametric`.

A unit of the lowest layer consists of its weights from the inputs, its bias and its weights to the
layer above. A unit of a higher layer consists of its bias and its weights to the layer above.
Layers are matched from the classes down. A unit of the wide model is then the posterior mean of the
vectors that were matched to it, sum v / s^2 / (1/s0^2 + n/s^2). Rounds follow one another as in
section 3.4: a client goes on from the units of the wide model that its own were matched to, so that
its model keeps its size. The paper has one round.

Rests on the authors' code (IBM/probabilistic-federated-neural-matching), in which gains, counts,
sweeps and the limit of units were read, and on notes about the paper, whose text was not at hand.
The section numbers, the factor 2 of the popularity and the rounds of section 3.4 are less sure.

Deviations: convolutions and normalisation are matched as well, where the paper has linear layers
alone. Biases of the classes are a plain mean. With estimate = "mean" a unit is the mean of its
vectors, because the posterior mean of a unit of a single client is half as long with s0 = s. The
public code, preset authors, weighs the popularity of a unit once, not twice, counts it up to 10,
and has no more than 700 units in a layer. It also tries several priors and keeps the best on
training data; this is not implemented.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hpcfed.algorithms.base import Guide, single_step
from hpcfed.algorithms.matching import nonparametric
from hpcfed.algorithms.matching.matched import State, Widened
from hpcfed.core.params import Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


class PFNM(Widened):
    """For a single client PFNM returns that client's model, as FedAvg does.

    This holds for estimate = "mean".
    """

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="one round, fully connected networks",
    )

    gathers_uploads: ClassVar[bool] = True

    estimate: Literal["map", "mean"] = "map"
    """A unit of the wide model is the posterior mean of the vectors matched to it, all of equal
    weight, or their mean by `weighting`.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job) | single_step(job)
        if self.estimate == "map":
            found["algorithm.weighting"] = "estimate = 'map': all clients weigh alike"
        return found

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Params:
        (sent,) = super().local(fed, client, state, t).terms
        return fed.up(client, sent.value)

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        sent = fed.at_root(fed.run(cohort, lambda client: self.local(fed, client, state, t)))
        found = fed.on_root(lambda: self.merge(fed, sent))
        return self.gathered(fed, *found) if found else state

    def merge(self, fed: Federation, sent: dict[int, Params]) -> Any:
        """Match the uploads on the server.

        Returns the wide model, the sizes of its groups and the orders of the clients; None if no
        client has sent anything.
        """
        if not sent:
            return None
        units, counts = self.units(fed), self.counts(fed)
        plan = sorted(units.sizes, reverse=True)
        wide = nonparametric.match_models(
            list(sent.values()), units, plan, counts, self.prior, self.sweeps
        )
        mean, number = nonparametric.fuse(wide, units, [self.share(fed, k) for k in sent], side=1)
        if self.estimate == "map":
            ratio = (self.sigma / self.sigma0) ** 2
            for name, n in number.items():
                if counts(name) and n.numel() > 1:
                    mean[name] = (mean[name] * (n / (n + ratio))).to(mean[name].dtype)
        return mean, list(wide.units.sizes.values()), dict(zip(sent, wide.orders, strict=True))

    def share(self, fed: Federation, k: int) -> float:
        """Return the weight of client k in the mean."""
        uniform = self.estimate == "map" or self.weighting == "uniform"
        return 1.0 if uniform else float(fed.sizes[k])
