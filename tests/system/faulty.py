"""A method one of whose clients always fails."""

from hpcfed.algorithms.base import RoundBased


class Faulty(RoundBased):
    """FedAvg, but the loss of client 2 is nan."""

    def loss(self, client, state, model, x, y):
        return super().loss(client, state, model, x, y) * (float("nan") if client.id == 2 else 1.0)
