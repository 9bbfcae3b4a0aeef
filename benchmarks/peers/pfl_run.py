"""pfl-research: its FederatedAveraging on its SimulatedBackend; processes by torchrun, gloo between
them.
"""

import itertools
import types

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import BATCH, COHORT, DEVICE, LR, Watch, accuracy, arguments, clients, cnn, cohort


def loss(self, x, y, **_):
    return F.cross_entropy(self(x), y)


@torch.no_grad()
def metrics(self, x, y, **_):
    return {"loss": Weighted(F.cross_entropy(self(x), y).item() * len(y), len(y))}


class Ticks(TrainingProcessCallback):
    def __init__(self, watch):
        self.watch = watch

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.watch.tick()
        return False, Metrics()


def main():
    options = arguments()
    x, y = (v.to(DEVICE) for v in clients(options.data))
    module = cnn()
    module.loss, module.metrics = types.MethodType(loss, module), types.MethodType(metrics, module)
    users = itertools.chain.from_iterable(cohort(t) for t in itertools.count())
    data = FederatedDataset(
        lambda k: Dataset(raw_data=[x[k], y[k]], user_id=str(k)), lambda: next(users)
    )
    rounds, watch = options.warm + options.rounds, Watch(options)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10 * rounds,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[Ticks(watch)],
    )
    if get_framework_module().distributed.global_rank == 0:
        watch.report(accuracy(options.data, module))


main()
