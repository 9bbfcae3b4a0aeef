"""Partition schemes: assignment of training examples to clients.

Every function takes labels [n] (int64, 0..C-1) and the number of clients K, draws from the
generator g, and returns K index arrays (int64) into labels, disjoint and without repetition.
"Complete" means that every example goes to a client. A client may get no example;
`hpcfed.data.partition.split` refuses that.
"""

from collections.abc import Sequence

import numpy as np

from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data.allocate import allocate, deal
from hpcfed.data.sampling import apportion

ClientRows = list[np.ndarray]


def iid(labels: np.ndarray, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal all examples at random; sizes differ by at most one."""
    return np.array_split(g.permutation(len(labels)), clients)


def dirichlet(labels: np.ndarray, clients: int, alpha: float, g: np.random.Generator) -> ClientRows:
    """Give clients equal sizes, with class proportions from Dirichlet(alpha).

    Each client gets floor(n / K) examples, in the proportions of its own draw.
    alpha: > 0; smaller is more skewed.

    The drawn proportions are followed as far as the classes suffice (see `allocate.allocate`). The
    n mod K remaining examples, fewer than K, go to no client.

    FedClassAvg, ICPP 2022, section 4.1: "data sizes of all clients were equally distributed".
    Deviations: the authors' code draws free sizes; that is `dirichlet_free`. Equal sizes are less
    skewed than the draws, because classes are exhausted: at alpha = 0.5 and ten classes the mean
    total variation from uniform is 0.42, that of the draws 0.455, that of the authors' free sizes
    0.49.
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
) -> ClientRows:
    """Share out each class by its own Dirichlet(alpha) draw over the clients; sizes are free.

    Every example goes to a client.
    alpha: > 0; smaller is more skewed.

    A client that already holds n / K examples gets nothing of the further classes. The draw is
    repeated until every client holds `smallest` examples (or half of n / K, if that is less), at
    most `draws` times; then the draw with the largest smallest client is used.

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
    """Return one draw of NIID-Bench's loop over classes, [K, C]; its column sums equal supply."""
    counts = np.zeros((clients, len(supply)), np.int64)
    for c, n in enumerate(supply):
        open_to = counts.sum(1) < supply.sum() / clients
        p = g.dirichlet(np.full(clients, alpha)) * open_to
        # a tiny alpha can leave all of p on clients that are full
        p = p / p.sum() if p.sum() > 0 else open_to / open_to.sum()
        edges = np.floor(np.cumsum(p)[:-1] * n).astype(np.int64)
        counts[:, c] = np.diff(edges, prepend=0, append=n)
    return counts


def classes(
    labels: np.ndarray, clients: int, per_client: int, g: np.random.Generator
) -> ClientRows:
    """Give every client `per_client` classes; the clients of a class share its examples.

    per_client: 1..C; 2 is FedClassAvg's "skewed".

    Each client in turn gets the classes least used so far (in proportion to their examples), with
    ties broken at random, so that all classes occur if K * per_client >= C. Sizes are equal,
    floor(n / K), as far as the client's classes have that many examples; the remaining examples go
    to no client. Raises ConfigError for per_client outside 1..C.

    Deviations: the authors draw each client's examples with replacement, so that clients overlap
    and classes can be missing altogether (github.com/hukla/FedClassAvg, utils.py, noniid-twoclass).
    """
    supply = np.bincount(labels)
    present = int((supply > 0).sum())
    _check_classes(per_client, present)
    mix, used = np.zeros((clients, len(supply))), np.zeros(len(supply))
    for k in range(clients):
        burden = np.where(supply > 0, used / np.maximum(supply, 1), np.inf)
        chosen = np.lexsort((g.random(len(supply)), burden))[:per_client]
        mix[k, chosen], used[chosen] = 1 / per_client, used[chosen] + 1
    return deal(labels, allocate(mix, supply, len(labels) // clients, False, g), g)


def shards(labels: np.ndarray, clients: int, per_client: int, g: np.random.Generator) -> ClientRows:
    """Sort by label, cut into K * per_client shards, and deal each client `per_client` of them.

    Every example goes to a client.
    Raises ConfigError if there are more shards than examples.
    McMahan et al., AISTATS 2017, section 3.
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


def quantity(labels: np.ndarray, clients: int, spread: float, g: np.random.Generator) -> ClientRows:
    """Draw log-normal sizes: only sizes differ between clients, not the distribution of labels.

    Sizes are in proportion to exp(spread * normal), at least 1. Every example goes to a client.
    spread: >= 0, the standard deviation of the logarithm of the sizes; 0 is `iid`.
    """
    if not 0 <= spread <= 50:
        raise ConfigError(f"data.spread is {spread}; it lies in 0..50 (1 is already much)")
    sizes = 1 + apportion(len(labels) - clients, g.lognormal(0, spread, clients))
    return np.split(g.permutation(len(labels)), np.cumsum(sizes)[:-1])


def natural(users: np.ndarray, clients: int, per_domain: int, g: np.random.Generator) -> ClientRows:
    """Give each client the examples of its own users, from whom the data come.

    Every example goes to a client.
    users: [n], a user id for each example. If there are as many users as clients, client k is the
    k-th id. More users are grouped at random, with equal numbers in all groups, to one user.
    per_domain: clients that share the examples of a user (or of a group), at random and equally;
    those of the first user come first.
    Raises DataError for fewer users than clients, ConfigError if clients are no multiple of
    per_domain.
    """
    if clients % per_domain:
        raise ConfigError(
            f"data.clients_per_domain = {per_domain}, but the job has {clients} clients; give a "
            f"multiple of {per_domain}"
        )
    ids, domains = np.unique(users), clients // per_domain
    if len(ids) < domains:
        raise DataError(
            f"the data come from {len(ids)} users, but the job has {clients} clients; take at "
            f"most {len(ids) * per_domain}"
        )
    groups = np.array_split(ids if len(ids) == domains else g.permutation(ids), domains)
    rows = [np.flatnonzero(np.isin(users, group)) for group in groups]
    if per_domain == 1:
        return rows
    return [
        part for of_group in rows for part in np.array_split(g.permutation(of_group), per_domain)
    ]


def sizes(
    labels: np.ndarray, clients: int, wanted: Sequence[int], g: np.random.Generator
) -> ClientRows:
    """Deal the examples at random, wanted[k] of them to client k; the others go to no client.

    Raises ConfigError if the number of sizes is not K, and if they exceed the number of examples.
    Flower Datasets, SizePartitioner.
    Deviations: it assigns the examples in the data's order.
    """
    _check_sizes(wanted, clients, len(labels))
    return np.split(g.permutation(len(labels)), np.cumsum(wanted))[:-1]


def linear(labels: np.ndarray, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal sizes in proportion to k + 1, rounded down; the last client also gets the remainder.

    Every example goes to a client.
    Flower Datasets, LinearPartitioner.
    Deviations: it assigns the examples in the data's order.
    """
    return _by_weight(labels, np.arange(1.0, clients + 1), g)


def square(labels: np.ndarray, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal sizes in proportion to (k + 1)^2, rounded down; the last client also gets the remainder.

    Every example goes to a client.
    Flower Datasets, SquarePartitioner.
    Deviations: it assigns the examples in the data's order.
    """
    return _by_weight(labels, np.arange(1.0, clients + 1) ** 2, g)


def exponential(labels: np.ndarray, clients: int, g: np.random.Generator) -> ClientRows:
    """Deal sizes in proportion to exp(k + 1), rounded down; the last client gets the remainder too.

    Every example goes to a client. With more than about log(n) clients the first ones get no
    example.
    Flower Datasets, ExponentialPartitioner.
    Deviations: it assigns the examples in the data's order.
    """
    return _by_weight(labels, np.exp(np.arange(1.0 - clients, 1)), g)


def _by_weight(labels: np.ndarray, weights: np.ndarray, g: np.random.Generator) -> ClientRows:
    """Cut the shuffled examples in proportion to the weights; the last client gets the rest."""
    n = len(labels)
    share = np.floor(n * weights / weights.sum() + 1e-9).astype(np.int64)
    return np.split(g.permutation(n), np.cumsum(share)[:-1])


def inner_dirichlet(
    labels: np.ndarray,
    clients: int,
    alpha: float,
    wanted: Sequence[int],
    g: np.random.Generator,
) -> ClientRows:
    """Fill given sizes one example at a time, by each client's own draw from Dirichlet(alpha).

    Each example goes to a random client that lacks some, from a class drawn with this client's
    proportions. When a class is exhausted, the others keep their proportions; clients that are
    filled late therefore deviate from their draw.

    alpha: > 0; smaller is more skewed.
    wanted: [K], sizes; the remaining examples go to no client. None: all alike.
    Raises ConfigError as `sizes`.

    Acar et al. (FedDyn), ICLR 2021, arXiv:2111.04263, as in their code; Flower Datasets,
    InnerDirichletPartitioner.
    Deviations: one alpha for all classes. A client whose classes are all exhausted takes from the
    others in proportion to what they have (theirs divides by 0).
    """
    wanted = wanted or (len(labels) // clients,) * clients
    _check_sizes(wanted, clients, len(labels))
    left = np.bincount(labels)
    mix = g.dirichlet(np.full(len(left), _positive("alpha", alpha)), clients)
    counts, lacking = np.zeros((clients, len(left)), np.int64), np.array(wanted)
    waiting = list(range(clients))
    while waiting:
        at = int(g.integers(len(waiting)))
        k = waiting[at]
        weights = mix[k] * (left > 0)
        heights = np.cumsum(weights if weights.sum() > 0 else left)
        c = int(np.searchsorted(heights, g.random() * heights[-1], side="right"))
        counts[k, c] += 1
        left[c] -= 1
        lacking[k] -= 1
        if not lacking[k]:
            waiting.pop(at)
    return deal(labels, counts, g)


def pathological(
    labels: np.ndarray, clients: int, per_client: int, how: str, g: np.random.Generator
) -> ClientRows:
    """Give every client `per_client` classes; the clients of a class share it equally.

    The parts of a class differ by at most one example, but the sizes of clients differ. Every
    example of a class that some client holds goes to a client.

    how: "random": each client's classes are drawn. "first-deterministic": client k gets the (k
    modulo C)-th class, and the others are drawn. "deterministic": client k gets the (k + i modulo
    C)-th for i = 0..per_client - 1. Here C is the number of classes that occur.

    Raises ConfigError for per_client outside 1..C, and if a class has fewer examples than clients.

    Li et al. (NIID-Bench), ICDE 2022, arXiv:2102.02079, quantity-based label imbalance, which is
    first-deterministic; Flower Datasets, PathologicalPartitioner.
    Deviations: a class's examples are shared out in random order, theirs in the data's order.
    """
    supply = np.bincount(labels)
    present = np.flatnonzero(supply)
    C = len(present)
    _check_classes(per_client, C)
    holds = np.zeros((clients, len(supply)), bool)
    for k in range(clients):
        if how == "deterministic":
            mine = (k + np.arange(per_client)) % C
        elif how == "first-deterministic":
            others = np.delete(np.arange(C), k % C)
            mine = np.append(g.choice(others, per_client - 1, replace=False), k % C)
        else:
            mine = g.choice(C, per_client, replace=False)
        holds[k, present[mine]] = True
    counts = np.zeros((clients, len(supply)), np.int64)
    for c in present:
        holders = np.flatnonzero(holds[:, c])
        if len(holders) > supply[c]:
            raise ConfigError(
                f"data.partition = 'pathological': {len(holders)} clients hold class {c}, which "
                f"has {supply[c]} examples; take fewer clients, or classes_per_client below "
                f"{per_client}"
            )
        if len(holders):
            each, more = divmod(int(supply[c]), len(holders))
            counts[holders, c] = each + (np.arange(len(holders)) < more)
    return deal(labels, counts, g)


def distribution(
    labels: np.ndarray,
    clients: int,
    per_client: int,
    table: np.ndarray | None,
    preassigned: int,
    rescale: bool,
    spread: float,
    g: np.random.Generator,
) -> ClientRows:
    """Give client k the classes k, ..., k + per_client - 1, modulo C, in the shares of a table.

    Every example goes to a client. C is the number of classes that occur.

    table: [C, K * per_client / C], >= 0; row c is for the clients that hold class c, in their
    order. None: log-normal values of this spread, as in FedProx.
    rescale: a row holds proportions: a client gets floor(share * what is left) + preassigned
    examples. Otherwise a row holds numbers of examples. The remaining examples of a class go to one
    of its clients, drawn at random.

    Raises ConfigError if K is not a multiple of C, or if the table has another shape or asks for
    more examples than a class has.

    Li et al. (FedProx), MLSys 2020, arXiv:1812.06127, MNIST and FEMNIST; Flower Datasets,
    DistributionPartitioner.
    Deviations: a class's examples are shared out in random order, theirs in the data's order.
    Without rescale, preassigned is refused; theirs ignores it.
    """
    supply = np.bincount(labels)
    present = np.flatnonzero(supply)
    C = len(present)
    _check_classes(per_client, C)
    if clients % C:
        raise ConfigError(
            f"data.partition = 'distribution' needs a multiple of {C} clients, the number of "
            f"classes, but there are {clients}; set clients = {C * max(1, clients // C)}"
        )
    if preassigned and not rescale:
        raise ConfigError("data.preassigned has no effect if data.rescale = false; remove it")
    m = clients * per_client // C
    if table is None:
        table = g.lognormal(0, spread, (C, m))
    if table.shape != (C, m):
        raise ConfigError(
            f"data.distribution has {table.shape[0]} rows of {table.shape[1]} numbers; "
            f"{clients} clients with {per_client} of {C} classes each need {C} rows of {m}"
        )
    counts = np.zeros((clients, len(supply)), np.int64)
    for row, c in zip(table, present, strict=True):
        place = int(np.searchsorted(present, c))
        holders = [k for k in range(clients) if (place - k) % C < per_client]
        free = int(supply[c]) - m * preassigned
        if rescale and (free < 0 or row.sum() <= 0):
            raise ConfigError(
                f"data.distribution: class {c} has {supply[c]} examples for {m} clients with "
                f"{preassigned} beforehand, and shares that add up to {row.sum():g}; lower "
                f"data.preassigned, or give a share above 0"
            )
        share = row / row.sum() * free if rescale else row
        each = np.floor(share + 1e-9).astype(np.int64) + preassigned
        rest = int(supply[c]) - int(each.sum())
        if rest < 0:
            raise ConfigError(
                f"data.distribution asks for {each.sum()} examples of class {c}, which has "
                f"{supply[c]}; set data.rescale = true, or lower numbers"
            )
        each[g.integers(m)] += rest
        counts[holders, c] = each
    return deal(labels, counts, g)


def _check_sizes(wanted: Sequence[int], clients: int, n: int) -> None:
    if len(wanted) != clients or sum(wanted) > n or min(wanted) < 1:
        raise ConfigError(
            f"data.client_sizes has {len(wanted)} sizes, {sum(wanted)} examples in all; give one "
            f"for each of {clients} clients, at least 1, and at most {n} in all"
        )


def _check_classes(per_client: int, C: int) -> None:
    if not 1 <= per_client <= C:
        raise ConfigError(f"data.classes_per_client is {per_client}, but the data have {C} classes")


def halve(parts: ClientRows, share: float, g: np.random.Generator) -> ClientRows:
    """Take half of their examples (rounded up) from round(share * K) clients drawn at random.

    share: 0..1.
    Makhija et al. (FedHeNN), ICML 2022, "Sensitivity to Changing Amount of Data".
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"data.halve is {share}; it is a share of the clients, 0..1")
    chosen = set(g.choice(len(parts), round(share * len(parts)), replace=False).tolist())
    return [
        g.permutation(p)[: (len(p) + 1) // 2] if k in chosen else p for k, p in enumerate(parts)
    ]


def sort_by_labels(parts: ClientRows, labels: np.ndarray) -> ClientRows:
    """Order clients by their most frequent label, then by the mean of their labels.

    Clients that are alike in both stay in their order.
    """
    labels_by_client = [labels[part] for part in parts]
    keys = [(int(np.bincount(y).argmax()), float(y.mean())) for y in labels_by_client]
    return [parts[k] for k in sorted(range(len(parts)), key=keys.__getitem__)]


def _positive(name: str, value: float) -> float:
    if not 0 < value < np.inf:
        raise ConfigError(f"data.{name} is {value}; it must be above 0 and finite")
    return value
