"""FedML: FedAvg_seq of its MPI simulation (Parrot: several clients in turn on each worker), and its
own trainer.

One process is FedML's server only, so there are as many workers besides; messages are pickled.
"""

from types import SimpleNamespace

import task  # first: mends torchvision

# isort: split
import torch
from fedml.core import ServerAggregator
from fedml.simulation.simulator import SimulatorMPI
from mpi4py import MPI
from task import BATCH, CLIENTS, COHORT, EXAMPLES, LR
from torch.utils.data import DataLoader, TensorDataset


class Aggregator(ServerAggregator):
    """Holds the global model; ticks when the mean arrives."""

    def __init__(self, model, args, watch, path):
        super().__init__(model, args)
        self.watch, self.path = watch, path

    def get_model_params(self):
        return self.model.state_dict()

    def set_model_params(self, parameters):
        self.model.load_state_dict(parameters)
        self.watch.tick()

    def test(self, test_data, device, args):
        """Called after the last round, which is not timed."""
        self.watch.report(task.accuracy(self.path, self.model))


def settings(options, comm):
    """What FedML reads from its configuration file."""
    return SimpleNamespace(
        training_type="simulation",
        backend="MPI",
        federated_optimizer="FedAvg_seq",
        dataset="fashion",
        model="cnn",
        client_num_in_total=CLIENTS,
        client_num_per_round=COHORT,
        comm_round=options.warm + options.rounds + 1,
        epochs=1,
        batch_size=BATCH,
        client_optimizer="sgd",
        learning_rate=LR,
        weight_decay=0.0,
        frequency_of_the_test=10**6,
        process_id=comm.rank,
        rank=comm.rank,
        worker_num=comm.size,
        comm=comm,
        enable_wandb=False,
        using_mlops=False,
        run_id="0",
        random_seed=0,
    )


def main():
    options, comm = task.arguments(), MPI.COMM_WORLD
    x, y = task.clients(options.data)
    loaders = {
        k: DataLoader(TensorDataset(x[k], y[k]), BATCH, shuffle=True) for k in range(CLIENTS)
    }
    counts = dict.fromkeys(range(CLIENTS), EXAMPLES)
    data = [CLIENTS * EXAMPLES, 0, None, None, counts, loaders, dict.fromkeys(loaders), 10]
    args, model = settings(options, comm), task.cnn()
    aggregator = (
        Aggregator(model, args, task.Watch(options), options.data) if comm.rank == 0 else None
    )
    SimulatorMPI(args, torch.device("cpu"), data, model, None, aggregator).run()


main()
