"""Methods in whose rounds something happens that a test needs to happen there."""

import os
import signal
from pathlib import Path
from time import sleep

from hpcfed.algorithms.base import RoundBased


class Faulty(RoundBased):
    """FedAvg, but the loss of client 2 is nan."""

    def loss(self, client, state, model, x, y):
        return super().loss(client, state, model, x, y) * (float("nan") if client.id == 2 else 1.0)


class Slow(RoundBased):
    """FedAvg, but clients rest a while, so that a run that goes on leaves the cores to others."""

    def local(self, fed, client, state, t):
        sleep(0.1)
        return super().local(fed, client, state, t)


class Signalled(RoundBased):
    """FedAvg of heads, but when client 0 has trained for the first time its rank is told to end."""

    sign: Path
    """A file that is there from then on."""

    def shared(self, name):
        return name.startswith("head.")

    def local(self, fed, client, state, t):
        mean = super().local(fed, client, state, t)
        real = fed.K > 2  # the trial before a run has two clients
        if real and client.id == 0 and not self.sign.exists():
            self.sign.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return mean


class Early(RoundBased):
    """FedAvg of heads, but a signal comes before the first round."""

    number: int
    """The signal."""

    def shared(self, name):
        return name.startswith("head.")

    def init(self, fed):
        os.kill(os.getpid(), self.number)
        return super().init(fed)
