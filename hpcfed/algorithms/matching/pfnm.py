"""PFNM: the server matches the clients' hidden units; a beta process decides how many it keeps.

Yurochkin et al. (Bayesian Nonparametric Federated Learning of Neural Networks), ICML 2019,
arXiv:1905.12022, sections 3.1 to 3.3; the gains and the sweeps are in `nonparametric`.

A unit of the lowest layer consists of its weights from the inputs, its bias and its weights to the
layer above. A unit of a higher layer consists of its bias and its weights to the layer above.
Weights towards a class, and its bias, count by the client's share of all examples of that class, in
the posterior mean and in the gains. The prior mean m is 0, and 0.1 for biases; sigma_0 and sigma
are variances. Rounds follow one another as in section 3.4, so that a client's model keeps its size;
the paper has one round.

Rests on the authors' code (IBM/probabilistic-federated-neural-matching), in which gains, counts,
sweeps, the limit of units, class shares and the prior of biases were read, and on notes about the
paper, whose text was not at hand. The section numbers, the factor 2 of the popularity and the
rounds of section 3.4 are less sure.

Objective: F_k(w_k)
Server: theta_j <- (m / sigma_0 + sum_v v / sigma) / (1 / sigma_0 + n_j / sigma)
Round:
1. Each client of the cohort receives the units of the wide model that its own were matched to, or
   those that most clients have if it was not in the last cohort, and trains them.
2. It sends its model and how many examples of each class it has.
3. The server matches units layer by layer, from the classes down.
4. The beta process decides for each unit: match it to a unit of the wide model, or add a new one.
5. A unit of the wide model is the posterior mean of the n_j vectors matched to it.

Deviations: convolutions and normalisation are matched as well, where the paper has linear layers
alone. With estimate = "mean" a unit is the mean of its vectors, because the posterior mean of a
unit of a single client is half as long with sigma0 = sigma. Clients are taken out and matched again
in their order; the public code draws the order. The public code also weighs the popularity of a
unit once, not twice, counts it up to 10, has no more than 700 units in a layer, and tries several
priors to keep the best on training data; none of this is followed.
"""

from typing import Any

from hpcfed import Client, Federation, Guide, Upload
from hpcfed.algorithms.matching import nonparametric
from hpcfed.algorithms.matching.matched import Sent, State, Widened


class PFNM(Widened):
    """For a single client PFNM returns that client's model, as FedAvg does.

    This holds for estimate = "mean".
    """

    guide = Guide(
        data="different labels",
        sent="all weights",
        won="one round, fully connected networks",
    )

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        self.train(fed, client, download, t)
        return self.upload(fed, client, client.params(self.shared))

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Sent]]) -> State:
        sent = fed.at_root(dict(uploads))
        merged = fed.on_root(lambda: self.merge(fed, sent))
        return self.gathered(fed, *merged) if merged else state

    def merge(self, fed: Federation, sent: dict[int, Sent]) -> Any:
        """Match the uploads on the server.

        Returns the wide model, the sizes of its groups and the orders of the clients; None if no
        client has sent anything.
        """
        if not sent:
            return None
        units, counts = self.units(fed), self.counts(fed)
        models, shares = [parts["model"] for parts in sent.values()], self.shares(sent.values())
        plan = sorted(units.sizes, reverse=True)
        wide = nonparametric.match_models(
            models, units, plan, counts, self.prior, self.sweeps, shares=shares
        )
        weights = [self.weigh(fed, k) for k in sent]
        prior = self.prior if self.estimate == "map" else None
        model = nonparametric.fuse(wide, weights, lambda name: 1, shares, prior, counts)
        return model, list(wide.units.sizes.values()), dict(zip(sent, wide.orders, strict=True))
