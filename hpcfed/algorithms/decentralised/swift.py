"""SWIFT: decentralised and wait-free; each client averages with what its neighbours last sent, when
it is ready.

Bornstein et al., ICLR 2023, arXiv:2210.14026, algorithm 1. A job is one step: it starts with
sending x_i; its gradient is that at x_i; when it ends, x_i <- sum_j w_ij x_j + (local step), or in
a local step (i1) without the sum. Models are counted as sent in every step, as received where they
are averaged. Virtual time: a step takes a client its latency, and the time that its link needs to
send its model to each neighbour and to receive theirs, as a step of D-SGD does; but all this goes
on beside the work, so that a job lasts as long as the longer of the two, where D-SGD's takes their
sum. A model arrives its latency and upload after the job's start. Deviations: a step is the job's
local work, the paper's is local.steps = 1. With weights = "ccs" no weight is larger than the
lighter client's own 1 / (degree + 1), lest a client's own weight be negative; the authors' code
takes the smaller proposal between equal degrees only, so that weights differ on some graphs. Batch
statistics are averaged too, a client's own as they are after its step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hpcfed.algorithms.decentralised.mixing import Weights, add_step, mix, mixing
from hpcfed.algorithms.decentralised.peers import Peers
from hpcfed.algorithms.events import EventBased, Work, train
from hpcfed.core.params import Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation


class SWIFT(Peers, EventBased):
    """All clients work all the time; as many merges as a cohort has clients are a round.

    i1 = 0 is the paper's C_0, i1 = 1 its C_1.
    """

    to_server: ClassVar[bool] = False

    weights: Weights = "ccs"
    """Weights of neighbours: SWIFT's for equal speeds (ccs) or the clients' (ccs-rates),
    metropolis, uniform.
    """

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        return (int(self.links(fed)[k].sum()) * fed.shapes().nbytes,) * 2

    def near(self, fed: Federation, k: int, number: int) -> list[int]:
        return self.links(fed)[k].nonzero()[0].tolist() if self.averages(number) else []

    def seconds(self, fed: Federation, k: int, examples: int) -> float:
        who = fed.participation
        exchange = who.profiles.seconds(k, 0, *who.announced(k))
        return max(who.profiles.compute(k, examples), exchange)

    def work(self, fed: Federation, client: Client, job: Work) -> Params:
        with client.borrowed():
            fed.up(client, client.params(), times=int(self.links(fed)[client.id].sum()))
            train(self, fed, client, Params(), job)
            return client.params()

    def rates(self, fed: Federation) -> tuple[float, ...]:
        every = range(fed.K) if self.weights == "ccs-rates" else ()  # else they do not count
        draws = fed.participation.draws
        return tuple(1 / self.seconds(fed, k, draws.examples(k, draws.full)) for k in every)

    def merge(
        self, fed: Federation, job: Work, held: Params, up: Params, near: dict[int, Params]
    ) -> Params:
        client = fed.clients[job.client]
        row = mixing(self.weights, self.of(fed), self.rates(fed))[job.client]
        values = sorted({**fed.down(client, near), job.client: held}.items())
        norms = client.skeleton.layout.buffers
        return add_step(mix({0: row}, values)[0], held, up, norms, row[job.client]) if near else up
