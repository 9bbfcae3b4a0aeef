"""A method that copies nothing and draws from all global generators, as users' methods do."""

import random

import numpy as np
import torch

from hpcfed.algorithms.base import RoundBased
from hpcfed.core.params import Mean, Params
from hpcfed.federation.upload import Upload

ZEROS = np.zeros(1, np.float32)


class Careless(RoundBased):
    """FedAvg with draws; clients send and remember parts of their module without a copy."""

    def offer(self, fed, client, state):
        return state * float(1 + 0.01 * torch.rand(1))

    def local(self, fed, client, state, t):
        received = fed.down(client, self.offer(fed, client, state))
        self.receive(client, received)
        client.model.head.bias.data += torch.randn(1) + np.random.rand() + random.random()
        client.model.head.bias.data += client.memory.get("bias", 0.0)
        client.model.head.bias.data += torch.from_numpy(client.memory.get("weight", ZEROS)).sum()
        client.memory["bias"] = client.model.head.bias.data
        client.memory["weight"] = client.model.head.weight.detach().numpy()
        self.train(fed, client, received, t)
        return Upload(Mean.of(Params(client.model.state_dict()), self.weight(client)))

    def server(self, fed, state, mean, cohort):
        noise = fed.on_root(lambda: torch.randn(1)) + np.random.rand() + torch.randn(1)
        return Params({name: value + 0.01 * noise for name, value in mean.items()})
