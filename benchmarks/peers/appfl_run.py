"""APPFL's virtual-time simulator (`appfl.vsim`): FedAsync or FedBuff of logistic regression. It
completes as many jobs as each line says that it reads, and answers with a line.

It runs in APPFL's own environment; `benchmarks/asynchronous.py` starts it. Agents, trainer,
aggregator, scheduler and driver are APPFL's, fed with the examples of hpcfed's `synthetic`.
"""

import json
import logging
import os
import resource
import sys
import tempfile
from pathlib import Path
from time import perf_counter

MODEL = """
import torch


class Logistic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(60, 10)

    def forward(self, x):
        return self.head(x)


def share_right(labels, scores):
    return (scores.argmax(1) == labels.reshape(-1)).mean()
"""


def make_driver(method, clients, at_once, lean, folder):
    """The driver with all its agents. lean: without APPFL's collections of garbage after each
    step of a job, which are its default.
    """
    import numpy as np
    import task  # lets torchvision be imported
    import torch
    from appfl.agent import SimClientAgent, SimServerAgent
    from appfl.vsim import AsyncSimDriver, ClientProfile

    from hpcfed.core.rng import stream
    from hpcfed.data.synthetic import Synthetic

    path = folder / "logistic.py"
    path.write_text(MODEL)
    assert task.mend_torchvision
    population = Synthetic(0, clients, 1.0, 1.0, 60, 0.3)
    train = {
        "trainer": "VanillaTrainer",
        "mode": "epoch",
        "num_local_epochs": 1,
        "train_batch_size": 10,
        "optim": "SGD",
        "optim_args": {"lr": 0.01},
        "loss_fn": "CrossEntropyLoss",
        "metric_path": str(path),
        "metric_name": "share_right",
        "do_validation": False,
        "device": "cpu",
        "logging_output_dirname": str(folder),
        "optimize_memory": not lean,
    }
    model = {"model_path": str(path), "model_name": "Logistic"}
    buffered = method == "fedbuff"
    staleness = {"staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}
    aggregator = {"alpha": 0.6, "optimize_memory": not lean, **staleness}
    if buffered:
        aggregator["K"] = 10
    server = SimServerAgent(
        {
            "client_configs": {"model_configs": model, "train_configs": train},
            "server_configs": {
                "num_clients": clients,
                "num_global_epochs": 0,
                "optimize_memory": not lean,
                "device": "cpu",
                "logging_output_dirname": str(folder),
                "logging_output_filename": "server",
                "scheduler": "AsyncScheduler",
                "scheduler_kwargs": {"optimize_memory": not lean},
                "aggregator": "FedBuffAggregator" if buffered else "FedAsyncAggregator",
                "aggregator_kwargs": aggregator,
            },
        }
    )
    agents = []
    for k in range(clients):
        split, _ = population.client_data(k)
        x = torch.from_numpy(split.x.reshape(len(split.y), -1))
        data = torch.utils.data.TensorDataset(x, torch.from_numpy(split.y))
        config = {"model_configs": model, "train_configs": train, "optimize_memory": not lean}
        agents.append(SimClientAgent(config, client_id=str(k), client_dataset=data))
    speeds = np.exp(stream(0, "profiles", "speed").normal(0, 1, clients))
    profiles = {str(k): ClientProfile(compute_factor=float(s)) for k, s in enumerate(speeds)}
    return AsyncSimDriver(
        server, agents, profiles, at_once, logging.getLogger("vsim"), base_step_time=0.01
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what it prints is no part of the answers
    logging.disable(logging.CRITICAL)  # which makes it faster
    with tempfile.TemporaryDirectory() as folder:
        driver = make_driver(**options, folder=Path(folder))
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # noqa: E731
        print(json.dumps({"peak": peak()}), file=answers, flush=True)
        settings = driver.server.server_agent_config.server_configs
        for line in sys.stdin:
            start, before = perf_counter(), len(driver.history)
            settings.num_global_epochs = driver._cur_epoch() + int(line)
            driver.run()
            done = {"seconds": perf_counter() - start, "jobs": len(driver.history) - before}
            print(json.dumps(done | {"peak": peak()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
