"""D-SGD, PA-SGD and LD-SGD: decentralised; clients step and average with neighbours in rounds.

Lian et al., NeurIPS 2017, arXiv:1705.09056, algorithm 1. i1 local steps are followed by i2 steps
with averaging: D-SGD is (0, 1), PA-SGD (i1, 1), LD-SGD (Li et al., 2019, arXiv:1910.09126) (i1,
i2). A step is the local work of one round; the papers' is local.steps = 1.

Objective: mean_i F_i(x)
Server: x_i <- sum_j W_ij x_j - eta g_i(x_i)
Round:
1. There is no server: each client has its own model x_i and neighbours.
2. In the i1 local steps each client takes its step at x_i, and nothing is exchanged.
3. In the i2 steps with averaging that follow it sends x_i to its neighbours.
4. It takes the mean of x_i and the neighbours' models, weighted by W_ij.
5. It takes its step at x_i, not at the mean, and adds it to the mean (`order` has other ways).

Deviations: if not all clients take part, only the links between those that do count, with weights
of their own. Batch statistics are averaged too, with a client's own statistics taken after its
step. Virtual time: a step takes the sum of a client's latency, the time in which its link receives
its neighbours' models and sends its own to each of them, and its work. A round lasts as long as the
slowest client's step. Steps without averaging exchange nothing.
"""

from typing import Literal

from hpcfed import Client, Federation, Guide, Params, RoundBased
from hpcfed.algorithms.decentralised.mixing import add_step
from hpcfed.algorithms.decentralised.peers import PeersInStep


class DSGD(PeersInStep, RoundBased):
    """Synchronous decentralised SGD; links have the weights, not numbers of examples."""

    guide = Guide(
        data="alike",
        sent="all weights, to neighbours",
        won="networks of low bandwidth or high latency",
    )

    order: Literal["together", "average-first", "step-first"] = "together"
    """The local step is computed at the old model, or at the averaged one, or models are averaged
    after it.
    """

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        averages, self_weight = self.averages(t), self.rows(fed, cohort).diagonal()
        mixed: dict[int, Params] = {}
        if averages and self.order != "step-first":
            mixed = self.exchange(fed, cohort, Client.params)

        def step(client: Client) -> None:
            if self.order == "average-first":
                client.load(mixed.get(client.id, {}))
            before = client.params()
            self.train(fed, client, state, t)
            if self.order == "together" and averages:
                norms = client.skeleton.layout.buffers
                client.load(
                    add_step(
                        mixed.pop(client.id), before, client.params(), norms, self_weight[client.id]
                    )
                )

        fed.run(cohort, step)
        if averages and self.order == "step-first":
            for k, value in self.exchange(fed, cohort, Client.params).items():
                fed.clients[k].load(value)
        return state
