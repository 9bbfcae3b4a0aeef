"""fluke: its FedAvg; it has no mode with several processes on CPU cores."""

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
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from torch.nn import CrossEntropyLoss


class Ticks(FederationObserver):
    """Called at the end of each round."""

    def __init__(self, watch):
        self.watch = watch

    def end_round(self, round):
        self.watch.tick()


def main():
    options = arguments()
    x, y = clients(options.data)
    FlukeENV().set_evaluator(ClassificationEval(eval_every=10**6, n_classes=10))
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [
        FastDataLoader(x[k], y[k], num_labels=10, batch_size=BATCH, shuffle=True)
        for k in range(CLIENTS)
    ]
    data = DataSplitter(DummyDataContainer(loaders, [None] * CLIENTS, None, 10))
    client = DDict(
        batch_size=BATCH,
        local_epochs=1,
        loss=CrossEntropyLoss,
        optimizer=DDict(name="SGD", lr=LR),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
    )
    federation = CentralizedFL(
        CLIENTS, data, DDict(client=client, server=DDict(weighted=True), model=cnn())
    )
    watch = Watch(options)
    federation.set_callbacks(Ticks(watch))
    federation.run(options.warm + options.rounds, COHORT / CLIENTS)
    watch.report(accuracy(options.data, federation.server.model))


main()
