"""The plain PyTorch loop: what a researcher writes without a framework. Two processes train half a
cohort each.
"""

import torch
from task import COHORT, LR, Watch, accuracy, arguments, batches, clients, cnn, cohort, step
from torch import distributed


def train(model, x, y):
    """One local epoch in a new order."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for rows in batches():
        step(model, optimiser, x[rows], y[rows])


def main():
    options = arguments()
    x, y = clients(options.data)
    model, rank, size = cnn(), 0, options.processes
    if size > 1:
        distributed.init_process_group("gloo")
        rank = distributed.get_rank()
    state, watch = torch.nn.utils.parameters_to_vector(model.parameters()).detach(), Watch(options)
    for t in range(options.warm + options.rounds):
        total = torch.zeros_like(state)
        for k in cohort(t)[rank::size]:
            torch.nn.utils.vector_to_parameters(state.clone(), model.parameters())
            train(model, x[k], y[k])
            total += torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        if size > 1:
            distributed.all_reduce(total)
        state = total / COHORT  # all clients have as many examples
        watch.tick()
    if rank == 0:
        torch.nn.utils.vector_to_parameters(state, model.parameters())
        watch.report(accuracy(options.data, model))
    if size > 1:
        distributed.destroy_process_group()


main()
