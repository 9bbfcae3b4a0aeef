"""pfl-research with central Gaussian noise on the task of `private.py`, in its own environment."""

import itertools
import json
import sys
import time
import types

import numpy as np
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
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from private_task import (
    BATCH,
    CLIENTS,
    CLIP,
    COHORT,
    DELTA,
    EPSILON,
    EXAMPLES,
    LR,
    MEAN,
    ROUNDS,
    STD,
    network,
)


def loss(self, x, y, **_):
    return F.cross_entropy(self(x), y)


@torch.no_grad()
def metrics(self, x, y, **_):
    return {"loss": Weighted(F.cross_entropy(self(x), y).item() * len(y), len(y))}


class Ticks(TrainingProcessCallback):
    """Notes the time at the end of each round."""

    def __init__(self):
        self.stamps = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.stamps.append(time.perf_counter())
        return False, Metrics()


def normalised(images):
    x = torch.from_numpy(images).float() / 255
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def main():
    data, seed, private = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "private"
    torch.set_num_threads(1)
    with np.load(data) as file:
        order, cohorts = file["order"][seed], file["cohorts"][seed]
        x = normalised(file["x_train"][order]).reshape(CLIENTS, EXAMPLES, 3, 32, 32)
        y = torch.from_numpy(file["y_train"][order]).long().reshape(CLIENTS, EXAMPLES)
        x_test, y_test = normalised(file["x_test"]), torch.from_numpy(file["y_test"]).long()
    module = network()
    module.loss, module.metrics = types.MethodType(loss, module), types.MethodType(metrics, module)
    users = itertools.cycle(cohorts.reshape(-1).tolist())
    dataset = FederatedDataset(
        lambda k: Dataset(raw_data=[x[k], y[k]], user_id=str(k)), lambda: next(users)
    )
    accountant = PLDPrivacyAccountant(
        num_compositions=ROUNDS,
        sampling_probability=COHORT / CLIENTS,
        mechanism="gaussian",
        epsilon=EPSILON,
        delta=DELTA,
        noise_scale=1.0,
    )
    mechanism = GaussianMechanism.from_privacy_accountant(
        accountant=accountant, clipping_bound=CLIP
    )
    processors = [CentrallyAppliedPrivacyMechanism(mechanism)] if private else []
    ticks = Ticks()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=10 * ROUNDS,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=processors),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[ticks],
    )
    with torch.no_grad():
        answers = torch.cat([module.eval()(part).argmax(1) for part in x_test.split(1000)])
    result = {
        "accuracy": (answers == y_test).float().mean().item(),
        "noise": accountant.cohort_noise_parameter if private else 0.0,
        "seconds": float(np.median(np.diff(ticks.stamps[2:]))),
    }
    print("\n" + json.dumps(result))


main()
