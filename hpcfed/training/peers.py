"""Hooks of methods without a server: a common start, own models, their mean, and how far they are from it.

A method takes them as its own: `init, whole = peers.init, peers.whole`. `self` is the method.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hpcfed.params import Mean, Params

if TYPE_CHECKING:
    from hpcfed.client import Client
    from hpcfed.federation import Federation


def init(self: Any, fed: Federation) -> Params:
    """Give all clients the same initial weights, those of client 0. The server's state holds nothing."""
    for client in fed.mine(range(fed.K)):
        client.load(fed.initial())
    return Params()


def whole(self: Any, fed: Federation) -> bool:
    """There is no server that could have a model."""
    return False


def receive(self: Any, client: Client, state: Params) -> None:
    """Nothing comes from a server: the client keeps its model."""


def common(self: Any, fed: Federation, client: Client, state: Params) -> bool:
    """The whole test split is for the mean of all clients' models."""
    client.load(consensus(fed))
    return True


def columns(self: Any, fed: Federation, state: Params) -> dict[str, float]:
    """Consensus distance: root of the mean over clients of the squared distance to the mean model; collective.

    Over parameters and buffers. Kong et al., ICML 2021, arXiv:2102.04828.
    """
    mean, mine = consensus(fed), {}
    for client in fed.mine(range(fed.K)):
        mine[client.id] = sum(float(d.double().square().sum()) for d in (client.params() - mean).values())
    return {"consensus_distance": math.sqrt(sum(fed.gather(mine).values()) / fed.K)}


def consensus(fed: Federation) -> Params:
    """The plain mean of all clients' models, buffers too; collective, counted as no traffic."""
    uploads = ((c.id, Mean.of(c.params())) for c in fed.mine(range(fed.K)))
    return fed.mean(uploads, keep=fed.initial(), counted=False)
