"""Methods that break the rules of clients and servers, for tests."""

from functools import partial

import torch

from hpcfed.algorithms.asynchronous.fedasync import FedAsync
from hpcfed.algorithms.base import RoundBased
from hpcfed.core.params import Mean
from hpcfed.federation.upload import Upload


class Peeks(RoundBased):
    """Its server reads the clients' models beside their uploads."""

    def server(self, fed, state, mean, cohort):
        models = ((client.id, Mean.of(client.params())) for client in fed.mine(cohort))
        return 0.5 * (mean + fed.mean(models, keep=state))


class Overhears(RoundBased):
    """Its clients compute with the server's state beside what they receive."""

    def local(self, fed, client, state, t):
        self.receive(client, 0.5 * (fed.down(client, state) + state))
        self.train(fed, client, state, t)
        return Upload(Mean.of(client.params(), self.weight(client)))


class Overwrites(RoundBased):
    """Its server writes the new state into the old one."""

    def server(self, fed, state, mean, cohort):
        for name, value in state.items():
            value.copy_(mean[name])
        return state


class Reports(RoundBased):
    """Its columns take the place of measured ones."""

    def columns(self, fed, state):
        return {"seconds": 7.0, "accuracy_pooled": 0.99}


class SendsLate(RoundBased):
    """Its clients send their models once more after the last round."""

    def send(self, fed, client, state):
        download = fed.down(client, state)
        self.receive(client, download)
        return Upload(Mean.of(client.params()), relative_to=download)

    def finish(self, fed, state, t):
        sent = fed.stream(range(fed.K), partial(self.send, fed), arguments=(state,))
        return fed.mean(sent, keep=state)


class Jitters(FedAsync):
    """Its server adds noise, for which it draws without a stream."""

    def merge(self, fed, job, current, up, near):
        new = super().merge(fed, job, current, up, near)
        return fed.on_root(lambda: new.map(lambda v: v + 0.01 * torch.randn(v.shape)))
