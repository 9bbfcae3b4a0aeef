"""A method, a model and a metric that draw from all global generators, as users' code does."""

import random

import numpy as np
import torch
from torch import nn

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


class Drawing(nn.Module):
    """Weights drawn by NumPy, a layer left out by chance, and inputs that are hidden by chance."""

    def __init__(self, in_features, num_classes):
        super().__init__()
        self.first, self.second = nn.Linear(in_features, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, num_classes)
        self.first.weight.data = 0.1 * torch.from_numpy(
            np.random.randn(16, in_features).astype(np.float32)
        )

    def forward(self, x):
        x = x.flatten(1)
        z = self.first(x * torch.from_numpy(np.random.rand(len(x), 1) < 0.8)).relu()
        if random.random() < 0.5:
            z = z + self.second(z).relu()
        return self.last(z)


def bootstrap(labels, scores):
    """Return the accuracy on examples that are drawn with replacement."""
    rows = np.random.randint(0, len(labels), len(labels))
    return (scores.argmax(1) == labels)[rows].mean()
