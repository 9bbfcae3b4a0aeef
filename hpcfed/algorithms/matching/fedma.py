"""FedMA: the server matches units layer by layer; clients train the layers above after each step.

Wang et al. (Federated Learning with Matched Averaging), ICLR 2020, arXiv:2002.06440, algorithm 1.

A round is one pass over the layers. Units (channels are units) are matched as PFNM does
(`nonparametric`). In the mean of the last layer a unit that a client lacks counts as 0. Further
rounds are the paper's FedMA with communication: a client begins from the units of the wide model
that its own units were matched to.

Rests on the authors' code (IBM/FedMA), in which the prior, the five sweeps and the weights of the
last layer were read, and on short notes about the paper, whose text was not at hand. It is
therefore less sure that a pass is one round, and what a pass sends.

Objective: F_k(w_k)
Server: theta_j <- sum_v v / n_j
Round:
1. The clients train their models and send the lowest layer.
2. The server matches its units by their incoming weights; unit j is the mean of the n_j vectors v
   that were matched to it.
3. It sends each client the units that its own were matched to; the client fixes them, trains the
   layers above and sends the next one.
4. This is repeated for each layer.
5. The last layer is a mean by class, weighted by the clients' shares of its examples, which they
   send too.

Deviations: a client's model keeps its size within a pass, where the paper's clients get the whole
wide layer and train wider layers above it. A round therefore sends every layer up once, and the
model and each matched layer down. Matched units are means, as in the paper's algorithm. In the
public code, preset authors, they are posterior means (estimate = "map"), and the prior is that of
PFNM's code with gamma = 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from hpcfed import Client, Federation, Guide, Params, Upload
from hpcfed.algorithms.matching import nonparametric
from hpcfed.algorithms.matching.matched import Sent, State, Widened
from hpcfed.algorithms.matching.permutation import Order
from hpcfed.models.widths import Units, place, take


@dataclass(frozen=True)
class Pass:
    """The layers matched so far in a round.

    model: the matched layers, in the places of the wide model.  wide: the wide model's groups.
    orders: for each client that still takes part, by matched group, the places of its units.
    """

    model: Params
    wide: Units
    orders: dict[int, Order]


class FedMA(Widened):
    """FedMA equals PFNM, bit for bit, for one hidden layer.

    This holds for head = "matched" and PFNM's estimate = "mean".
    """

    guide = Guide(
        data="different labels",
        sent="all weights, layer by layer",
        won="CNNs and LSTMs, fewer rounds than FedAvg and FedProx",
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean of matched units: 1, or its number of training examples."""
    estimate: Literal["map", "mean"] = "mean"
    """A unit of the wide model is the posterior mean of the vectors matched to it, or their mean by
    `weighting`.
    """
    head: Literal["trained", "matched"] = "trained"
    """The last layer is trained further after the last matching, or matched and averaged with the
    layer below it.
    """

    def layers(self, fed: Federation, units: Units) -> list[set[str]]:
        """Return the sets of tensors that are sent together, from the inputs up.

        There is one set for each group of units, and a last one for the remaining tensors.
        """
        sets: list[set[str]] = [set() for _ in range(len(units.sizes) + 1)]
        groups = list(units.sizes)
        for name in fed.shapes():
            axes = units.axes.get(name, ())
            positions = (
                [groups.index(s.group) for s in axes[0] if s.group in groups] if axes else []
            )
            sets[max(positions) if positions else -1].add(name)
        if self.head == "matched" and groups:
            last = sets.pop()
            sets[-1] |= last
        return sets

    def train_unmatched(
        self,
        fed: Federation,
        client: Client,
        state: State,
        t: int,
        layers: Sequence[set[str]],
        number: int,
        done: Pass,
    ) -> Upload:
        """Do a client's work before a layer is matched, and return what it uploads.

        The client loads the matched layer below, trains all layers that are not matched yet, and
        sends the tensors of its own that are matched next.
        """
        how: dict[str, Any] = {}
        if number:
            layer_below = done.model.pick(layers[number - 1].__contains__)
            download = take(layer_below, done.wide.places(done.orders[client.id]))
            download = fed.down(client, download)
            client.load(download)
            how = {"only": lambda name: name not in done.model, "phase": f"layer {number}"}
        else:
            download = fed.down(client, self.offer(fed, client, state))
            self.receive(client, download)
        self.train(fed, client, download, t, **how)
        layer = client.params(layers[number].__contains__)
        return self.upload(fed, client, layer, last=number == len(layers) - 1)

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        units = self.units(fed)
        layers, done = self.layers(fed, units), Pass(Params(), units, {})
        for number in range(len(layers)):
            clients = [k for k in cohort if k in done.orders] if number else cohort
            work = partial(self.train_unmatched, fed)
            arguments = (state, t, layers, number, done)
            sent = fed.at_root(dict(fed.stream(clients, work, task=number, arguments=arguments)))
            group = list(units.sizes)[number] if number < len(units.sizes) else None
            merged = fed.on_root(partial(self.merge, fed, sent, units, done, group))
            if not merged:  # no client has sent anything
                return state
            part, sizes, orders = merged
            done = Pass(Params({**done.model, **part}), self.widened(fed, sizes), orders)
        model = Params({name: done.model[name] for name in state.model})
        return self.gathered(fed, model, list(done.wide.sizes.values()), done.orders)

    def merge(
        self,
        fed: Federation,
        sent: dict[int, Sent],
        units: Units,
        done: Pass,
        group: int | None,
    ) -> Any:
        """Match one layer on the server; return its mean, the sizes so far and the clients' orders.

        group: the group whose units are matched; None for the last layer, whose outputs are the
        classes.
        Returns None if no client has sent anything.
        """
        if not sent:
            return None
        orders = [done.orders.get(k, {}) for k in sent]
        models = [
            place(parts["model"], done.wide.places(order), done.wide)
            for parts, order in zip(sent.values(), orders, strict=True)
        ]
        plan = [] if group is None else [group]
        counts, shares = self.counts(fed), self.shares(sent.values())

        def compared(name: str) -> bool:
            return counts(name) and name in models[0]

        wide = nonparametric.match_models(
            models, done.wide, plan, compared, self.prior, self.sweeps, orders, shares
        )
        prior = self.prior if self.estimate == "map" and group is not None else None
        weights = [self.weigh(fed, k) for k in sent]
        mean = nonparametric.fuse(wide, weights, self.side, shares, prior, counts)
        return mean, list(wide.units.sizes.values()), dict(zip(sent, wide.orders, strict=True))

    def side(self, name: str) -> int:
        """Return which unit a weight belongs to: the unit that it goes into.

        A class weight that is matched belongs to the unit that it comes from.
        """
        return int(self.head == "matched" and name in nonparametric.HEADS)
