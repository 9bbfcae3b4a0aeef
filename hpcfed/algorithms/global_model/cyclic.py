"""Cyclic training: clients train one model in turn and pass it on; nothing is averaged.

Chang et al., JAMIA 25(8), 2018 (cyclical weight transfer); Terrail et al. (FLamby), NeurIPS 2022,
arXiv:2210.04620, as a baseline. In a round the clients of the cohort train one after the other. The
cohorts of a cycle contain every client once. With participation = 1 a round is a whole cycle; with
1 / clients it is one visit, a round of FLamby. So a round takes as much work as FedAvg's, but its
clients cannot work at the same time: its virtual seconds are the sum of theirs.

Objective: F_k(w)
Server: w <- w_k
Round:
1. The server gives the model to the first client of the cohort.
2. The client trains it and passes it on to the next client.
3. The last client's model is the server's new one; nothing is averaged.

Deviations: each hand-over goes through the server. In FLamby's code of 2024 the model is not handed
over: each centre trains a copy of its own, and centre 0's is scored. Each visit has a new optimiser
(local.keep_optimiser: each client keeps its own).
"""

from functools import partial
from typing import ClassVar, Literal

from hpcfed import Client, Federation, Guide, Params, RoundBased, Upload, rng
from hpcfed.config.conditions import Unused


class Cyclic(RoundBased):
    """Sequential training; clients that are absent or drop out are skipped.

    With one client it is training on that client alone.
    """

    guide = Guide(
        data="alike; few clients",
        sent="all weights, from client to client",
        won="medical images at a few hospitals, near central training",
    )

    one_at_a_time: ClassVar[bool] = True
    samples_cohorts: ClassVar[bool] = False
    unused: ClassVar[Unused] = {
        "weighting": "nothing is averaged",
    }

    order: Literal["reshuffled", "fixed"] = "reshuffled"
    """Order of the clients: a new one in each cycle, or by id."""

    def visits(self, fed: Federation, t: int) -> list[int]:
        """Return the clients of round t in the order of their visits."""
        cycle, part = divmod(t, -(-fed.K // fed.cohort_size))
        ids = list(range(fed.K))
        if self.order == "reshuffled":
            ids = rng.stream(fed.seed, "cycle", cycle).permutation(fed.K).tolist()
        return ids[part * fed.cohort_size :][: fed.cohort_size]

    def cohort(self, fed: Federation, t: int) -> list[int]:
        return sorted(self.visits(fed, t))

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        self.train(fed, client, download, t)
        return Upload(client.params(), relative_to=download)

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        for k in self.visits(fed, t):
            if k in cohort:
                done = fed.run([k], partial(self.local, fed, state=state, t=t))
                state = fed.exchange.from_client(k, done.get(k))
        return state
