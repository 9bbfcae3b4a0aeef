"""pfl-research's FederatedAveraging on its SimulatedBackend: one local epoch, no evaluation."""

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
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


def loss(self, x, y, **_):
    return F.cross_entropy(self(x), y)


@torch.no_grad()
def metrics(self, x, y, **_):
    return {"loss": Weighted(F.cross_entropy(self(x), y).item() * len(y), len(y))}


class Ticks(TrainingProcessCallback):
    """Calls a function at the end of each round."""

    def __init__(self, tick):
        self.tick = tick

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.tick()
        return False, Metrics()


def average(module, x, y, users, rounds, cohort, batch, lr, tick, processors=(), amp_dtype=None):
    """Train the module.

    x, y: examples and labels by client.  users: iterator of the clients of all cohorts, in turn.
    cohort: number of clients in a round.  tick: called at the end of each round.  processors: of
    the clients' updates and their sum, such as clipping and noise.  amp_dtype: of mixed precision
    in local training.
    """
    module.loss, module.metrics = types.MethodType(loss, module), types.MethodType(metrics, module)
    data = FederatedDataset(
        lambda k: Dataset(raw_data=[x[k], y[k]], user_id=str(k)), lambda: next(users)
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10 * rounds,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[*processors]),
        PyTorchModel(
            module,
            torch.optim.SGD,
            torch.optim.SGD(module.parameters(), 1.0),
            amp_dtype=amp_dtype,
        ),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=lr, local_batch_size=batch),
        callbacks=[Ticks(tick)],
    )
