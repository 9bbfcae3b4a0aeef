"""A federation whose clients have nothing but vectors: for attacks and means without training."""

from types import SimpleNamespace
from typing import Any

import torch

from hpcfed.comm import Comm
from hpcfed.federation.exchange import Exchange
from hpcfed.federation.replay_log import ReplayLog
from hpcfed.federation.warnings import Warnings
from hpcfed.machine.clock import Clock


def federation(comm: Comm, n: int) -> Any:
    """Return what means and attacks need of a federation of n clients.

    Client k lives on rank k mod R.
    """
    clock, device = Clock(), torch.device("cpu")
    exchange = Exchange(comm, {}, [k % comm.size for k in range(n)], device, clock, ReplayLog())
    fed = SimpleNamespace(seed=0, t=0, moment=0, stays=False, comm=comm, clock=clock)
    fed.replay, fed.exchange, fed.gather = ReplayLog(), exchange, exchange.gather
    fed.clients = {k: SimpleNamespace(memory={}) for k in range(comm.rank, n, comm.size)}
    fed.on_root, fed.warnings = exchange.on_root, Warnings(comm)
    fed.trainable = lambda name: "running" not in name
    fed.note_shapes = lambda terms, keep: None
    fed.job = SimpleNamespace(algorithm=SimpleNamespace(name="a method"))
    return fed
