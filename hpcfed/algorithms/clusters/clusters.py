"""The models of all clusters as one state, and the distances between clients and clusters.

The tensors of M models are stacked, [M, *shape]. A tensor that all clusters share is stored once,
[1, *shape].
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from hpcfed import Client, Federation, Mean, Params, rng
from hpcfed.algorithms import received
from hpcfed.core.params import At
from hpcfed.training.infer import FORWARD, loss_of
from hpcfed.training.server import with_weights


def stack(
    models: Iterable[Params], per_cluster: Callable[[str], bool] = lambda name: True
) -> Params:
    """Stack several models into one state.

    per_cluster: whether each cluster has its own tensor of this name; otherwise the first model's
    is taken.
    """
    model, *others = models
    return Params(
        {n: torch.stack([v, *(o[n] for o in others if per_cluster(n))]) for n, v in model.items()}
    )


def row(state: Params, m: int) -> Params:
    """Return the model of cluster m."""
    return state.map(lambda v: v[min(m, len(v) - 1)])


def part(model: Params, weight: float, m: int, state: Params) -> Mean:
    """Return a client's part in the mean of cluster m (`per="row"`) and of shared tensors."""
    at: At = {name: ([min(m, len(v) - 1)],) for name, v in state.items()}
    return Mean.of(model.map(lambda v: v[None]), weight, at)


def fittest(fed: Federation, client: Client, state: Params) -> int:
    """Return the cluster whose model has the smallest loss on the client's training examples.

    Of equal losses the first counts. The models are in eval mode; the client's own weights stay as
    they are.
    """
    client.model.eval()
    models = (row(state, m) for m in range(max(map(len, state.values()))))
    predictors = (with_weights(client.skeleton, model) for model in models)
    losses = [loss_of(fed, client, predict, client.train) for predict in predictors]
    return losses.index(min(losses))


def choose(fed: Federation, client: Client, state: Params, M: int) -> int:
    """Return the fittest of M clusters, as the client's work; it is in its memory, as `cluster`."""
    m = fittest(fed, client, state)
    fed.tallies[client.id].work += FORWARD * client.n * M
    client.memory["cluster"] = m
    return m


def squares(model: Params, state: Params, wanted: Callable[[str], bool]) -> list[float]:
    """Return the squared Euclidean distances of the model to each cluster's model, in float64.

    wanted: whether a tensor of this name counts.
    """
    apart = (
        (state[name].double() - v.double()).flatten(1) for name, v in model.items() if wanted(name)
    )
    total: Any = sum(difference.square().sum(1) for difference in apart)
    return total.tolist()


def nearest(model: Params, state: Params, wanted: Callable[[str], bool]) -> tuple[int, float]:
    """Return the cluster whose model is nearest, and the squared distance to it.

    Of equal distances the first counts.
    """
    distances = squares(model, state, wanted)
    return distances.index(min(distances)), min(distances)


def seeds(
    fed: Federation,
    clients: list[Client],
    state: Params,
    wanted: Callable[[str], bool],
    spread: bool = True,
) -> Params:
    """Return the state with models that different clients have sent as centres; collective.

    If there are fewer clients than centres, the remaining centres stay as they are.
    clients: this rank's clients.
    spread: the first client is drawn uniformly, and each other one in proportion to its squared
    distance to the nearest centre so far (k-means++, Arthur and Vassilvitskii, SODA 2007). If
    false, all are drawn uniformly.
    """
    g = rng.stream(fed.seed, "centres")
    # squared distances of the clients that are not centres yet: their relative probabilities
    far = fed.gather({c.id: 1.0 for c in clients})
    models: list[Params] = []
    for _ in range(min(len(next(iter(state.values()))), len(far))):
        total = sum(far.values())
        k = int(g.choice(list(far), p=[v / total for v in far.values()] if total else None))
        centre = {c.id: received.model(c) for c in clients if c.id == k}
        models += [model for _, model in fed.each(centre)]
        candidates = [c for c in clients if c.id in far and c.id != k]
        taken = stack(models)
        far = fed.gather(
            {
                c.id: nearest(received.model(c), taken, wanted)[1] if spread else 1.0
                for c in candidates
            }
        )
    chosen = stack(models)
    return Params({name: torch.cat([chosen[name], v[len(models) :]]) for name, v in state.items()})


def reseed(choices: Mapping[int, tuple[int, float]], M: int) -> dict[int, int]:
    """Return the cluster of each client, such that no cluster is empty if there are enough clients.

    A cluster without a client gets the client that is farthest from its own centre and not alone
    there.
    choices: nearest cluster of each client, and the squared distance to it.
    M: number of clusters; 0: clusters may be empty.
    """
    cluster, far = (
        {k: m for k, (m, _) in choices.items()},
        {k: distance for k, (_, distance) in choices.items()},
    )
    for m in sorted(set(range(M)) - set(cluster.values())):
        members = list(cluster.values())
        if movable := [k for k in cluster if members.count(cluster[k]) > 1]:
            k = max(movable, key=lambda k: (far[k], -k))
            cluster[k] = m
    return cluster
