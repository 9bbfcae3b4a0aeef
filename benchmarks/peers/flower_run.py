"""Flower: its FedAvg strategy and its simulation engine (Ray), one actor with one core for each
process.
"""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import (
    CLIENTS,
    COHORT,
    EXAMPLES,
    LR,
    Watch,
    accuracy,
    arguments,
    batches,
    clients,
    cnn,
    step,
)

given = arguments()
watch = Watch(given)
path = given.data
server, client = ServerApp(), ClientApp()


@client.train()
def train(message, context):
    torch.set_num_threads(1)
    x, y = (part[int(context.node_config["partition-id"])] for part in clients(path))
    model = cnn()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for rows in batches():
        step(model, optimiser, x[rows], y[rows])
    metrics = MetricRecord({"num-examples": EXAMPLES})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )


@server.main()
def main(grid, context):
    strategy = FedAvg(
        fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
    )
    history = strategy.start(
        grid,
        ArrayRecord(cnn().state_dict()),
        num_rounds=given.warm + given.rounds,
        evaluate_fn=lambda t, arrays: (
            watch.tick() if t else None
        ),  # called at the end of each round
    )
    model = cnn()
    model.load_state_dict(history.arrays.to_torch_state_dict())
    watch.report(accuracy(path, model))


run_simulation(
    server,
    client,
    CLIENTS,
    backend_config={
        "init_args": {"num_cpus": given.processes},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    },
)
