"""What users get wrong in files of their own; test_errors.py names these."""

import sys

import torch.nn.functional as F
from torch import nn

from hpcfed.algorithms.base import RoundBased


class Server(RoundBased):
    """A hook without `return`."""

    def server(self, fed, state, mean, cohort):
        mean * 0.5


class Loss(RoundBased):
    """A loss that changes the model."""

    def loss(self, client, state, model, x, y):
        return F.cross_entropy(model.half()(x.half()), y).float()


class Quits(RoundBased):
    """A method that ends the process of a client, as a script does."""

    def local(self, fed, client, state, t):
        if client.id == 1 and t == 1 and fed.K > 2:  # not in the trial before the run
            sys.exit(0)
        return super().local(fed, client, state, t)


class Net(nn.Module):
    """A model for other images."""

    def __init__(self, num_classes):
        super().__init__()
        self.fc = nn.Linear(400, num_classes)

    def forward(self, x):
        return self.fc(x.flatten(1))
