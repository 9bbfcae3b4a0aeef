"""FedMA: the server matches units layer by layer; clients train the layers above after each step.

Wang et al. (Federated Learning with Matched Averaging), ICLR 2020, arXiv:2002.06440, algorithm 1.

A round is one pass over the layers. Clients train and send the lowest layer. The server matches its
units (channels are units) as PFNM does (`nonparametric`), by their incoming weights, and averages
the matched units. Clients put the matched layer into their models, fix it, train the layers above,
send the next layer, and so on. The last layer is averaged by examples. Further rounds are the
paper's FedMA with communication: a client begins from the units of the wide model that its own
units were matched to.

Rests on the authors' code (IBM/FedMA), in which the prior, the five sweeps and the weights of the
last layer were read, and on short notes about the paper, whose text was not at hand. It is
therefore less sure that a pass is one round, and what a pass sends.

Deviations: a client's model keeps its size within a pass, where the paper's clients get the whole
wide layer and train wider layers above it. A round therefore sends every layer up once, and the
model and each matched layer down. The last layer is weighted by a client's examples; in the paper
by those of each class. The public code, preset authors, has the prior of PFNM's code with gamma =
7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hpcfed.algorithms.base import Guide, single_step
from hpcfed.algorithms.matching import nonparametric
from hpcfed.algorithms.matching.matched import State, Widened
from hpcfed.core.params import Params
from hpcfed.models.matching import Order
from hpcfed.training.local import sgd

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.models.widths import Units


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

    gathers_uploads: ClassVar[bool] = True

    head: Literal["trained", "matched"] = "trained"
    """The last layer is trained on after the last matching, or matched and averaged with the layer
    below it.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        return super().refuses(job) | single_step(job)

    def layers(self, fed: Federation, units: Units) -> list[set[str]]:
        """Return the sets of tensors that are sent together, from the inputs up.

        There is one set for each group of units, and a last one for the remaining tensors.
        """
        found: list[set[str]] = [set() for _ in range(len(units.sizes) + 1)]
        groups = list(units.sizes)
        for name in fed.shapes():
            axes = units.axes.get(name, ())
            own = [groups.index(s.group) for s in axes[0] if s.group in groups] if axes else []
            found[max(own) if own else -1].add(name)
        if self.head == "matched" and groups:
            last = found.pop()
            found[-1] |= last
        return found

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        down, up = super().traffic(fed, k)
        layers = self.layers(fed, self.units(fed))
        again = set().union(*layers[:-1])  # sent down again, because clients train on after them
        return down + fed.shapes(again.__contains__, k).nbytes, up

    def train(
        self,
        fed: Federation,
        client: Client,
        state: State,
        t: int,
        layers: Sequence[set[str]],
        number: int,
        done: Pass,
    ) -> Params:
        """Do a client's work before a layer is matched, and return the tensors that it uploads.

        The client loads the matched layer below, trains all layers that are not matched yet, and
        sends the tensors of its own that are matched next.
        """
        how: dict[str, Any] = {}
        if number:
            matched = nonparametric.take(
                done.model, done.wide, self.units(fed), done.orders[client.id]
            )
            given = matched.pick(layers[number - 1].__contains__)
            client.load(fed.down(client, given))
            how = {"only": lambda name: name not in done.model, "phase": f"layer {number}"}
        else:
            given = self.offer(fed, client, state)
            self.receive(client, fed.down(client, given))
        sgd(fed, client, t, partial(self.loss, client, given), **how)
        return fed.up(client, client.params(layers[number].__contains__))

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        units = self.units(fed)
        layers, done = self.layers(fed, units), Pass(Params(), units, {})
        for number in range(len(layers)):
            there = [k for k in cohort if k in done.orders] if number else cohort
            work = partial(self.train, fed)
            given = (state, t, layers, number, done)
            sent = fed.at_root(dict(fed.stream(there, work, task=number, given=given)))
            group = list(units.sizes)[number] if number < len(units.sizes) else None
            found = fed.on_root(partial(self.merge, fed, sent, units, done, group))
            if not found:  # no client has sent anything
                return state
            part, sizes, orders = found
            done = Pass(Params({**done.model, **part}), self.widened(fed, sizes), orders)
        model = Params({name: done.model[name] for name in state.model})
        return self.gathered(fed, model, list(done.wide.sizes.values()), done.orders)

    def merge(
        self,
        fed: Federation,
        sent: dict[int, Params],
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
        spread = [
            nonparametric.place(part, units, done.wide, order)
            for part, order in zip(sent.values(), orders, strict=True)
        ]
        plan = [] if group is None else [group]
        found = nonparametric.match_models(
            spread, done.wide, plan, self.layer_counts(fed, sent), self.prior, self.sweeps, orders
        )
        mean, _ = nonparametric.fuse(found, units, [self.share(fed, k) for k in sent], side=0)
        return mean, list(found.units.sizes.values()), dict(zip(sent, found.orders, strict=True))

    def layer_counts(self, fed: Federation, sent: dict[int, Params]) -> Any:
        """Return a test for the names of tensors: whether units are matched by this tensor.

        Units are matched by parameters that were sent.
        """
        first, counts = next(iter(sent.values())), self.counts(fed)
        return lambda name: counts(name) and name in first

    def share(self, fed: Federation, k: int) -> float:
        """Return the weight of client k in the mean."""
        return 1.0 if self.weighting == "uniform" else float(fed.sizes[k])
