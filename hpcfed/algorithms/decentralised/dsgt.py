"""DSGT: decentralised; each client tracks the mean gradient of all, and steps along it.

Pu and Nedic (Distributed Stochastic Gradient Tracking Methods), Mathematical Programming 187, 2021,
arXiv:1805.11454, algorithm DSGT. g_i is the mean gradient over all examples of client i, which has
the model x_i and the tracker y_i. At first y_i = g_i(x_i). The mean of the trackers is the mean of
the gradients after each step, so that with a fixed step size all clients reach the optimum of the
mean objective, which D-SGD does not.

Objective: mean_i F_i(x)
Server: x_i <- sum_j W_ij (x_j - eta y_j); y_i <- sum_j W_ij y_j + g_i(x_i^new) - g_i(x_i)
Round:
1. There is no server: each client has its own model x_i, tracker y_i and last gradient, and
   neighbours.
2. It sends x_i - eta y_i and y_i to its neighbours.
3. Its new model and tracker are the means of these, weighted by W_ij.
4. It computes its gradient at the new model, and adds the change of its gradient to the tracker.

Deviations: gradients are of all of a client's examples, as the paper's with exact gradients. If not
all clients take part, only the links between those that do count, and the others keep their
trackers: their mean is then that of the gradients no more. Batch statistics are averaged, and
follow the data in each computation of a gradient.
"""

from functools import partial
from typing import Any, ClassVar

from hpcfed import Client, Federation, Guide, Params, RoundBased
from hpcfed.algorithms.base import PLAIN_GRADIENT
from hpcfed.algorithms.decentralised.mixing import double
from hpcfed.algorithms.decentralised.peers import PeersInStep
from hpcfed.config.conditions import Unused
from hpcfed.training.local import gradient, learning_rate

X, Y = "x.", "y."  # prefixes of the two parts of a message


class DSGT(PeersInStep, RoundBased):
    """Gradient tracking; links have the weights, not numbers of examples.

    A client's tracker and its last gradient are in its memory.
    """

    guide = Guide(
        data="different",
        sent="all weights and as many gradients, to neighbours",
        won="networks whose clients differ: the optimum, where D-SGD stops beside it",
    )

    unused: ClassVar[Unused] = PLAIN_GRADIENT
    local_defaults: ClassVar[dict[str, Any]] = {"optimiser": "sgd", "lr": 0.1}

    def message_bytes(self, fed: Federation) -> int:
        return fed.shapes().nbytes + fed.shapes(fed.trainable).nbytes

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        eta = learning_rate(fed, t)

        def start(client: Client) -> None:
            if "y" not in client.memory:
                client.memory["y"] = client.memory["g"] = self.gradient(fed, client, t, "start")

        def message(client: Client) -> Params:
            x, y = client.params(), Params(client.memory["y"])
            stepped = x.pick(y.__contains__) - eta * y
            return Params({**Params({**x, **stepped}).prefixed(X), **y.prefixed(Y)})

        def track(client: Client) -> None:
            mean = mixed[client.id]
            client.load(mean.under(X))
            g = self.gradient(fed, client, t, "train")
            y = mean.under(Y) + double(g) - double(Params(client.memory["g"]))
            client.memory["y"], client.memory["g"] = y.map(lambda v: v.float()), g

        fed.run(cohort, start)
        if self.averages(t):
            mixed = self.exchange(fed, cohort, message)
        else:
            mixed = {client.id: message(client) for client in fed.mine(cohort)}
        fed.run(cohort, track)
        return state

    def gradient(self, fed: Federation, client: Client, t: int, phase: str) -> Params:
        """Return the mean gradient over the client's data at its model."""
        gradient(fed, client, t, partial(self.loss, client, Params()), phase=phase)
        return client.gradient()
