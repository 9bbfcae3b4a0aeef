"""The partitions: which client holds which training examples.

Every function takes labels [n] (int64, 0..C-1) and the number of clients K, draws from the
generator g, and returns K index arrays (int64) into labels, disjoint and without repetition. A
client can come out empty; `hpcfed.data.partition.split` refuses that.
"""

import numpy as np

from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data.allocate import allocate, deal
from hpcfed.data.sampling import apportion

Parts = list[np.ndarray]


def iid(labels: np.ndarray, clients: int, g: np.random.Generator) -> Parts:
    """Deal the examples at random; sizes differ by one at most. Complete."""
    return np.array_split(g.permutation(len(labels)), clients)


def dirichlet(labels: np.ndarray, clients: int, alpha: float, g: np.random.Generator) -> Parts:
    """Equal sizes: each client gets floor(n / K) examples, mixed by its own draw from
    Dirichlet(alpha).

    alpha: > 0; smaller is more skewed.  The drawn proportions are followed as far as the classes
    suffice (`allocate.allocate` says how); n mod K examples, fewer than K, go to nobody.

    FedClassAvg, ICPP 2022, section 4.1: "data sizes of all clients were equally distributed".
    Deviations: the authors' code draws free sizes; that is `dirichlet_free`. Equal sizes are milder
    than the draws, for the classes run out: at alpha = 0.5 and ten classes the mean total variation
    from uniform is 0.42, that of the draws 0.455, that of the authors' free sizes 0.49.
    """
    mix = g.dirichlet(np.full(labels.max() + 1, _positive("alpha", alpha)), clients)  # [K, C]
    return deal(labels, allocate(mix, np.bincount(labels), len(labels) // clients, True, g), g)


def dirichlet_free(
    labels: np.ndarray,
    clients: int,
    alpha: float,
    g: np.random.Generator,
    smallest: int = 10,
    draws: int = 100,
) -> Parts:
    """Free sizes: each class is shared out by its own Dirichlet(alpha) draw over the clients.
    Complete.

    alpha: > 0.  A client that already holds n / K examples gets nothing of the further classes.
    Drawn again until every client holds `smallest` examples (or half of n / K, if that is less),
    `draws` times at most; then the draw with the largest smallest client stands.

    Yurochkin et al., ICML 2019, arXiv:1905.12022; Li et al. (NIID-Bench), arXiv:2102.02079,
    noniid-labeldir.
    Deviations: their cut loses a few examples to rounding, ours is complete.
    """
    _positive("alpha", alpha)
    smallest = min(smallest, len(labels) // (2 * clients))
    best, least = np.zeros((clients, 0), np.int64), -1
    for _ in range(draws):
        counts = _share_classes(np.bincount(labels), clients, alpha, g)
        if counts.sum(1).min() > least:
            best, least = counts, counts.sum(1).min()
        if least >= smallest:
            break
    return deal(labels, best, g)


def _share_classes(
    supply: np.ndarray, clients: int, alpha: float, g: np.random.Generator
) -> np.ndarray:
    """One draw of NIID-Bench's loop over classes: [K, C] examples, column sums equal to supply."""
    counts = np.zeros((clients, len(supply)), np.int64)
    for c, n in enumerate(supply):
        open_to = counts.sum(1) < supply.sum() / clients
        p = g.dirichlet(np.full(clients, alpha)) * open_to
        # a tiny alpha can leave all of p on clients that are full
        p = p / p.sum() if p.sum() > 0 else open_to / open_to.sum()
        edges = np.floor(np.cumsum(p)[:-1] * n).astype(np.int64)
        counts[:, c] = np.diff(edges, prepend=0, append=n)
    return counts


def classes(labels: np.ndarray, clients: int, per_client: int, g: np.random.Generator) -> Parts:
    """Every client holds examples of `per_client` classes; the clients of a class share it out
    among them.

    per_client: 1..C; 2 is FedClassAvg's "skewed".  Each client in turn gets the classes least used
    so far (in proportion to their examples), ties at random, so all classes occur if K * per_client
    >= C.  Sizes are equal, floor(n / K), as far as the client's classes have so many examples; the
    rest goes to nobody. Raises ConfigError for per_client outside 1..C.

    Deviations: the authors draw each client's examples with replacement, so that clients overlap
    and classes can be missing altogether (github.com/hukla/FedClassAvg, utils.py, noniid-twoclass).
    """
    supply = np.bincount(labels)
    present = int((supply > 0).sum())
    if not 1 <= per_client <= present:
        raise ConfigError(
            f"data.classes_per_client is {per_client}, but the data have {present} classes"
        )
    mix, used = np.zeros((clients, len(supply))), np.zeros(len(supply))
    for k in range(clients):
        burden = np.where(supply > 0, used / np.maximum(supply, 1), np.inf)
        chosen = np.lexsort((g.random(len(supply)), burden))[:per_client]
        mix[k, chosen], used[chosen] = 1 / per_client, used[chosen] + 1
    return deal(labels, allocate(mix, supply, len(labels) // clients, False, g), g)


def shards(labels: np.ndarray, clients: int, per_client: int, g: np.random.Generator) -> Parts:
    """Sort by label, cut into K * per_client shards, deal each client `per_client` of them.
    Complete.

    Raises ConfigError where there are more shards than examples.  McMahan et al., AISTATS 2017,
    section 3.
    """
    total = clients * per_client
    if not 1 <= per_client <= len(labels) // clients:
        raise ConfigError(
            f"data.shards_per_client is {per_client}: {total} shards of {len(labels)} examples; "
            f"it lies in 1..{len(labels) // clients}"
        )
    order = g.permutation(len(labels))
    cut = np.array_split(order[np.argsort(labels[order], kind="stable")], total)
    dealt = g.permutation(total).reshape(clients, per_client)
    return [np.concatenate([cut[s] for s in row]) for row in dealt]


def quantity(labels: np.ndarray, clients: int, spread: float, g: np.random.Generator) -> Parts:
    """Sizes differ, labels do not: sizes in proportion to exp(spread * normal), at least 1.
    Complete.

    spread: >= 0, the standard deviation of the logarithm of the sizes; 0 is `iid`.
    """
    if not 0 <= spread <= 50:
        raise ConfigError(f"data.spread is {spread}; it lies in 0..50 (1 is already much)")
    sizes = 1 + apportion(len(labels) - clients, g.lognormal(0, spread, clients))
    return np.split(g.permutation(len(labels)), np.cumsum(sizes)[:-1])


def natural(users: np.ndarray, clients: int, g: np.random.Generator) -> Parts:
    """The clients that the data come from. Complete.

    users: [n], a user id for each example.  As many users as clients: client k is the k-th id.
    More users: they are grouped at random, as many in each group.  Raises DataError for fewer.
    """
    ids = np.unique(users)
    if len(ids) < clients:
        raise DataError(
            f"the data come from {len(ids)} users, but the job has {clients} clients; take at "
            f"most {len(ids)}"
        )
    groups = np.array_split(ids if len(ids) == clients else g.permutation(ids), clients)
    return [np.flatnonzero(np.isin(users, group)) for group in groups]


def halve(parts: Parts, share: float, g: np.random.Generator) -> Parts:
    """Take half of their examples (rounded up) from round(share * K) clients drawn at random.

    share: 0..1.  Makhija et al. (FedHeNN), ICML 2022, "Sensitivity to Changing Amount of Data".
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"data.halve is {share}; it is a share of the clients, 0..1")
    chosen = set(g.choice(len(parts), round(share * len(parts)), replace=False).tolist())
    return [
        g.permutation(p)[: (len(p) + 1) // 2] if k in chosen else p for k, p in enumerate(parts)
    ]


def _positive(name: str, value: float) -> float:
    if not 0 < value < np.inf:
        raise ConfigError(f"data.{name} is {value}; it must be above 0 and finite")
    return value
