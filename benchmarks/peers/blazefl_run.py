"""BlazeFL: its FedAvg; one process is its serial trainer, two are its thread pool with two threads
(its fast mode).
"""

import torch
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgThreadPoolClientTrainer,
)
from task import BATCH, CLIENTS, COHORT, DEVICE, LR, Watch, accuracy, arguments, clients, cnn


class Data:
    """A partitioned data set."""

    def __init__(self, path):
        self.x, self.y = clients(path)

    def get_dataloader(self, type_, cid, batch_size, generator):
        dataset = torch.utils.data.TensorDataset(self.x[cid], self.y[cid])
        return torch.utils.data.DataLoader(dataset, batch_size, shuffle=True, generator=generator)


class Models:
    """Its model selector."""

    def select_model(self, name):
        return cnn()


def trainer(options, common):
    training = dict(common, epochs=1, batch_size=BATCH, lr=LR)
    if options.processes == 1:
        return FedAvgBaseClientTrainer(**training)
    return FedAvgThreadPoolClientTrainer(**training, num_parallels=options.processes)


def main():
    options = arguments()
    common = {
        "model_selector": Models(),
        "model_name": "cnn",
        "dataset": Data(options.data),
        "device": DEVICE,
        "num_clients": CLIENTS,
        "seed": 0,
    }
    server = FedAvgBaseServerHandler(
        **common,
        global_round=options.warm + options.rounds,
        sample_ratio=COHORT / CLIENTS,
        batch_size=BATCH,
    )
    client, watch = trainer(options, common), Watch(options)
    while not server.if_stop():
        chosen, package = server.sample_clients(), server.downlink_package()
        client.local_process(package, chosen)
        for upload in client.uplink_package():
            server.load(upload)
        watch.tick()
    watch.report(accuracy(options.data, server.model))


main()
