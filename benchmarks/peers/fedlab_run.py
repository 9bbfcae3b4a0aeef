"""FedLab: its FedAvg; one process is its standalone pipeline, more: its server and serial trainers
(gloo).
"""

import socket

from task import (
    BATCH,
    CLIENTS,
    COHORT,
    LR,
    Watch,
    accuracy,
    arguments,
    clients,
    cnn,
)  # first: mends torchvision

# isort: split
import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.client.manager import PassiveClientManager
from fedlab.core.network import DistNetwork
from fedlab.core.server.manager import SynchronousServerManager
from fedlab.core.standalone import StandalonePipeline


class Data(FedDataset):
    """The clients first, first + 1, ... by the numbers 0, 1, ..."""

    def __init__(self, path, first=0):
        self.x, self.y = clients(path)
        self.first = first

    def get_dataloader(self, id, batch_size, type="train"):
        k = self.first + int(id)
        return torch.utils.data.DataLoader(
            BaseDataset(self.x[k], self.y[k]), batch_size, shuffle=True
        )


class Handler(SyncServerHandler):
    """Ticks after each aggregation."""

    def global_update(self, buffer):
        super().global_update(buffer)
        self.watch.tick()


class Pipeline(StandalonePipeline):
    def evaluate(self):
        """Nothing."""


def handler(options):
    server = Handler(cnn(), options.warm + options.rounds, COHORT / CLIENTS)
    server.watch = Watch(options)
    return server


def trainer(options, part=0, parts=1):
    torch.set_num_threads(1)
    clients = SGDSerialClientTrainer(cnn(), CLIENTS // parts)
    clients.setup_dataset(Data(options.data, part * CLIENTS // parts))
    clients.setup_optim(1, BATCH, LR)
    return clients


def train(rank, options, address):
    """One client process."""
    network = DistNetwork(address, options.processes + 1, rank)
    PassiveClientManager(network, trainer(options, rank - 1, options.processes)).run()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def main():
    options = arguments()
    server = handler(options)
    if options.processes == 1:
        Pipeline(server, trainer(options)).main()
    else:
        address = "127.0.0.1", free_port()
        others = [
            torch.multiprocessing.Process(target=train, args=(rank, options, address))
            for rank in range(1, options.processes + 1)
        ]
        for process in others:
            process.start()
        SynchronousServerManager(DistNetwork(address, options.processes + 1, 0), server).run()
        for process in others:
            process.join()
    server.watch.report(accuracy(options.data, server.model))


if __name__ == "__main__":
    main()
