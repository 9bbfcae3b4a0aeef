"""FLTrust: clients are trusted as far as their updates point where the server's own one does.

Cao, Fang, Liu and Gong, NDSS 2021, arXiv:2012.13995. The server trains the model on labelled
examples of its own (the job's public ones), with the clients' epochs, batches and rate, to an
update g_0. With TS_k = max(0, cos(g_k, g_0)) the new update is

    sum_k TS_k ||g_0|| / ||g_k|| g_k / sum_k TS_k,

and none if all TS_k are 0. Clients count alike. It withstands any number of attackers, if the
server's examples are like the clients'.

Deviation: the server's objective is that of the method's clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcfed.core.errors import ConfigError, everywhere
from hpcfed.core.params import Params
from hpcfed.federation.transforms.comparison import Comparison
from hpcfed.federation.transforms.defence.rule import Choice, Rule

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


class FLTrust(Rule):
    """Weights by the cosine to the server's update, and its length for all."""

    pairs, one_mean = False, True

    def server(self, fed: Federation, keep: Params, last: Params) -> list[Params]:
        pooled = fed.pooled()
        other = set(pooled.skeleton.layout.params) - set(keep) or set(keep) - set(pooled.params())
        changes = not any(bool(value.any()) for value in keep.pick(fed.trainable).values())
        if other or changes or len(set(fed.architectures)) > 1:
            raise everywhere(
                ConfigError(
                    f"defence.by = 'fltrust' trains the complete model of the server, but that of "
                    f"{fed.job.algorithm.name} averages a part of it or changes, or clients have "
                    f"different models; set another defence.by, such as 'geometric-median'"
                )
            )
        if fed.task.has_classes and int(fed.public.labels.max()) >= fed.classes:
            raise everywhere(
                ConfigError(
                    f"defence.by = 'fltrust' trains on the labels of public examples, but they "
                    f"have other classes than the clients' {fed.classes}; set data.public_source "
                    f"to a data set with the same classes, or remove it"
                )
            )
        return [fed.on_root(lambda: update(fed, keep))]

    def choose(self, updates: Comparison) -> Choice:
        n, lengths = updates.n, updates.lengths
        length = float(np.sqrt(max(0.0, updates.gram[n, n])))
        scale = np.divide(1.0, lengths, out=np.zeros(n), where=lengths > 0)
        trust = np.maximum(0.0, updates.gram[n, :n] * scale / (length or 1.0))
        return Choice(trust, length * scale, server=np.zeros(1))


def update(fed: Federation, keep: Params) -> Params:
    """Return the update that the server trains on the public examples; rank 0 computes it."""
    pooled = fed.pooled()
    pooled.load(keep)
    with fed.counting({pooled.id: fed.public.labels}):
        fed.job.algorithm.train(fed, pooled, keep, fed.t, data=fed.public, phase="root")
    fed.tallies.pop(pooled.id, None)  # it is the server's work
    return pooled.params(keep.__contains__) - keep
