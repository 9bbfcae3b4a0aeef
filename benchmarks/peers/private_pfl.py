"""pfl-research with central Gaussian noise on the task of `private.py`, in its own environment."""

import itertools
import json
import sys
import time

import numpy as np
import torch
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl_averaging import average
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
    users = itertools.cycle(cohorts.reshape(-1).tolist())
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
    ends = []  # of rounds
    tick = lambda: ends.append(time.perf_counter())  # noqa: E731
    average(module, x, y, users, ROUNDS, COHORT, BATCH, LR, tick, processors)
    with torch.no_grad():
        answers = torch.cat([module.eval()(part).argmax(1) for part in x_test.split(1000)])
    result = {
        "accuracy": (answers == y_test).float().mean().item(),
        "noise": accountant.cohort_noise_parameter if private else 0.0,
        "seconds": float(np.median(np.diff(ends[2:]))),
    }
    print("\n" + json.dumps(result))


main()
