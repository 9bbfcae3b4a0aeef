"""SWIFT: decentralised and wait-free; each client averages with its neighbours' last models.

Bornstein et al., ICLR 2023, arXiv:2210.14026, algorithm 1. A job is one step. A client's first job
sends nothing, for all start from one model. Models count as sent in every step, and as received in
steps with averaging. Virtual time: as in D-SGD, a step takes a client its latency and the time in
which its link sends its model to each neighbour and receives theirs. Here the exchange runs in
parallel with the work, so that a job lasts as long as the longer of the two; in D-SGD it lasts as
long as their sum. A model arrives after its latency and upload from the job's start.

Objective: mean_i F_i(x)
Server: x_i <- sum_j w_ij x_j - eta g_i(x_i)
Round:
1. There is no server: each client has its own model x_i and neighbours.
2. A client that is ready sends x_i to its neighbours and computes its step at x_i.
3. At its end it waits for nobody: it takes the mean of x_i and the last models that it received.
4. It adds its step; in the i1 local steps there is no mean.

Deviations: a step is the job's local work; the paper's is local.steps = 1. With weights = "ccs" no
weight is larger than 1 / (degree + 1) of the client with the smaller degree, because a client's own
weight could be negative otherwise. The authors' code takes the smaller proposal between equal
degrees only, so that weights differ on some graphs. Batch statistics are averaged too; a client's
own count as they are after its step.
"""

from typing import ClassVar

from hpcfed import Client, EventBased, Federation, Guide, Params, Upload
from hpcfed.algorithms.decentralised.mixing import Weights, add_step, mix, mixing
from hpcfed.algorithms.decentralised.peers import Peers
from hpcfed.algorithms.events import Work, train


class SWIFT(Peers, EventBased):
    """Asynchronous decentralised SGD in which all clients work all the time.

    A round is as many merges as a cohort has clients. i1 = 0 is the paper's C_0, i1 = 1 its C_1.
    """

    guide = Guide(
        data="alike to moderately different",
        sent="all weights, to neighbours",
        won="wall time of decentralised training with slow nodes",
    )

    to_server: ClassVar[bool] = False

    weights: Weights = "ccs"
    """Weights of neighbours: SWIFT's for equal speeds (ccs) or for the clients' speeds (ccs-rates),
    metropolis, uniform.
    """

    def near(self, fed: Federation, k: int, number: int) -> list[int]:
        return self.links(fed)[k].nonzero()[0].tolist() if self.averages(number) else []

    def seconds(self, fed: Federation, k: int, examples: int) -> float:
        who = fed.participants
        exchange = who.profiles.seconds(k, 0, *who.announced(k))
        return max(who.profiles.compute(k, examples), exchange)

    def work(self, fed: Federation, client: Client, job: Work) -> Params:
        with client.borrowed():
            train(self, fed, client, Params(), job)
            return client.params()

    def send(self, fed: Federation, client: Client) -> Upload:
        return Upload(client.params(), receivers=int(self.links(fed)[client.id].sum()))

    def rates(self, fed: Federation) -> tuple[float, ...]:
        # other weights do not use rates
        every = range(fed.K) if self.weights == "ccs-rates" else ()
        draws = fed.participants.draws
        return tuple(1 / self.seconds(fed, k, draws.examples(k, draws.full)) for k in every)

    def merge(
        self, fed: Federation, job: Work, current: Params, up: Params, near: dict[int, Params]
    ) -> Params:
        client = fed.clients[job.client]
        row = mixing(self.weights, self.of(fed), self.rates(fed))[job.client]
        values = sorted({**fed.down(client, near), job.client: current}.items())
        norms = client.skeleton.layout.buffers
        return (
            add_step(mix({0: row}, values)[0], current, up, norms, row[job.client]) if near else up
        )
