"""Central training: one model is trained on the pooled data of all clients.

It is the upper bound of the papers' tables. No traffic is counted: only indices of examples are
known everywhere, no data move. Rank 0 trains while the others wait. One round trains local.epochs
epochs over all data, so it sees as many examples as a round of FedAvg in which all clients take
part.

Objective: F(w) = sum_k n_k F_k(w) / n
Server: w <- Step(w, grad F(w))
Round:
1. The examples of all clients are one data set.
2. Rank 0 trains the model for local.epochs epochs: on each batch a step of the job's optimiser.
3. Every client is evaluated with this model.
"""

from typing import ClassVar

from hpcfed import Federation, Guide, Job, Params, RoundBased
from hpcfed.config.conditions import Unused


class Central(RoundBased):
    """One model for all clients, trained where the data are pooled."""

    guide = Guide(
        data="none: all data are in one place",
        sent="nothing; what data in one place would give",
        won="the upper bound",
    )

    samples_cohorts: ClassVar[bool] = False
    unused: ClassVar[Unused] = {
        "weighting": "nothing is averaged",
        "compression.by": "nothing is sent",
        "compression.down": "nothing is sent",
        "secure.by": "nothing is sent",
        "attack.by": "nothing is sent",
        "defence.by": "nothing is averaged",
    }

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        if job.data.name == "synthetic":
            reasons["job"] = (
                "needs all examples in one place, but synthetic has none in store; take "
                "another data set"
            )
        return reasons

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        def train() -> Params:
            pooled = fed.pooled()
            self.receive(pooled, state)
            self.train(fed, pooled, state, t)
            return pooled.params()

        state = fed.on_root(train)
        for client in fed.mine(cohort):
            self.receive(client, state)
        return state
