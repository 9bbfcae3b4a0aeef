"""pfl-research: its FederatedAveraging on its SimulatedBackend; processes by torchrun, gloo between
them.
"""

import itertools

import torch
from pfl.internal.ops.selector import get_framework_module
from pfl_averaging import average
from task import BATCH, COHORT, DEVICE, LR, Watch, accuracy, arguments, clients, cnn, cohort


def main():
    options = arguments()
    x, y = (v.to(DEVICE) for v in clients(options.data))
    module = cnn()
    users = itertools.chain.from_iterable(cohort(t) for t in itertools.count())
    rounds, watch = options.warm + options.rounds, Watch(options)
    low = torch.bfloat16 if options.precision == "bf16" else None
    average(module, x, y, users, rounds, COHORT, BATCH, LR, watch.tick, amp_dtype=low)
    if get_framework_module().distributed.global_rank == 0:
        watch.report(accuracy(options.data, module))


main()
