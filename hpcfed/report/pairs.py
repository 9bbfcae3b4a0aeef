"""Paired comparison of two methods, seed by seed and client by client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.report import differences
from hpcfed.report.cases import ASIDE, EVALUATED, SEED, by_seed, refuse_same_seed
from hpcfed.report.differences import ENOUGH, Paired, ranks_can_differ
from hpcfed.report.formats import label_value
from hpcfed.report.measures import View
from hpcfed.results.run import Run, format_value
from hpcfed.storage.fields import covers
from hpcfed.storage.record import Record

# fields, and tables of them, that must be equal, in addition to the partition
WHO = ("clients", "data.name", "data.shift")
ROWS = (
    "partition",
    "train_sizes",
    "test_sizes",
    "label_counts",
)  # arrays that give the examples of each client


class UnpairedError(ConfigError):
    """Two methods, or two runs, that cannot be compared.

    advice: what to do about it; "" for nothing.
    """

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(f"compare: {reason}" + (f"\n  {advice}" if advice else ""))
        self.reason, self.advice = reason, advice


@dataclass(frozen=True)
class Method:
    """Runs that differ only in their seed.

    runs: by seed, those that are finished.
    absent: the others.
    """

    label: str
    runs: dict[int, Run]
    absent: tuple[Run, ...]

    def all(self) -> tuple[Run, ...]:
        return *self.runs.values(), *self.absent


@dataclass(frozen=True)
class Pair:
    """Two runs of one seed.

    mean, base: means over the clients of both.
    clients: [K], differences of these clients; empty for a number that is not of clients.
    largest: largest magnitude of the values of both.
    lone: number of clients with a value in only one of the runs.
    """

    seed: int
    mean: float
    base: float
    clients: np.ndarray
    largest: float
    lone: int = 0

    @property
    def differences(self) -> np.ndarray:
        """Differences of the clients, or that of the means for a number that is not of clients."""
        return self.clients if len(self.clients) else np.array([self.mean - self.base])


def methods(runs: list[Run], timed: bool = False) -> list[Method]:
    """Return the runs grouped by all fields of the job but the seed, in their order.

    timed: as `by_seed` takes it.
    """
    fields, groups = by_seed(runs, timed)
    return [method(label_fields(group[0], fields), group) for group in groups]


def label_fields(run: Run, fields: Sequence[str]) -> str:
    """Return the values of these fields, such as "fedprox, mu=0.1"."""
    words = zip(fields, run.at(list(fields)), strict=True)
    return ", ".join(label_value(field, value) for field, value in words if value)


def method(label: str, group: Sequence[Run]) -> Method:
    """Return runs of one method by their seeds. Raises ConfigError if two have the same."""
    finished = [run for run in group if run.finished]
    refuse_same_seed("compare", finished, label)
    runs = {run.fields[SEED]: run for run in finished}
    return Method(
        label, dict(sorted(runs.items())), tuple(run for run in group if not run.finished)
    )


def pairs(ours: Method, theirs: Method, view: View, anyway: bool = False) -> list[Pair]:
    """Return a pair for each seed of which both methods have numbers.

    Raises UnpairedError if there is none, or (unless anyway) if the rounds or clients of a seed's
    runs are not the same.
    """
    shared = [seed for seed in ours.runs if seed in theirs.runs]
    if not shared:
        seeds = (
            f"{one.label} has seeds {', '.join(map(str, one.runs)) or 'none'}"
            for one in (ours, theirs)
        )
        raise UnpairedError(f"no seed with a finished run of both: {'; '.join(seeds)}")
    seed_pairs, errors = list[Pair](), list[UnpairedError]()
    for seed in shared:
        same = comparable(ours.runs[seed], theirs.runs[seed], view, anyway)
        try:
            seed_pairs.append(pair(ours.runs[seed], theirs.runs[seed], view, same))
        except UnpairedError as error:
            errors.append(error)
    if not seed_pairs:
        raise errors[0]
    return seed_pairs


def pair(ours: Run, theirs: Run, view: View, same: bool = True) -> Pair:
    """Return a pair of two runs.

    same: whether they have the same clients; if not, only the means are compared.
    Raises UnpairedError if one of them, or each client of one, has no number.
    """
    if view.measure.each is None or not same:
        mean, base = (view.measure.of(run.record)[0] for run in (ours, theirs))
        if mean is None or base is None:
            absent = ours if mean is None else theirs
            raise UnpairedError(f"--value {view.value} is not recorded in {absent.name}")
        return Pair(ours.fields[SEED], mean, base, np.empty(0), max(abs(mean), abs(base)))
    mine, other = view.measure.each(ours.record), view.measure.each(theirs.record)
    both = sorted(mine.keys() & other.keys())
    if not both:
        raise UnpairedError(
            f"--value {view.value}: no client has it in both {ours.name} and {theirs.name}"
        )
    a, b = (np.array([each[k] for k in both]) for each in (mine, other))
    largest, lone = float(abs(np.array([a, b])).max()), len(mine.keys() ^ other.keys())
    return Pair(ours.fields[SEED], float(a.mean()), float(b.mean()), a - b, largest, lone)


def comparable(ours: Run, theirs: Run, view: View, anyway: bool) -> bool:
    """Return whether two runs have the same clients with the same examples.

    Raises UnpairedError, unless anyway, if they have not, or if their rounds, or the evaluated
    rounds of which the number is, differ; it names the fields that differ.
    """
    fields = [
        name
        for name in sorted(ours.fields.keys() | theirs.fields.keys())
        if (covers(WHO, name) or name.startswith("data."))
        and name not in ASIDE
        and ours.at([name]) != theirs.at([name])
    ]
    alike = same_examples(ours.record, theirs.record)
    same = not any(covers(WHO, name) for name in fields) and (
        alike if alike is not None else not fields
    )
    names = ("rounds", EVALUATED) if view.measure.several_rounds else ("rounds",)
    rounds = [name for name in names if ours.at([name]) != theirs.at([name])]
    if anyway or (same and not rounds):
        return same
    texts = [
        f"{name} ({format_value(ours.fields.get(name))} and "
        f"{format_value(theirs.fields.get(name))})"
        for name in [*rounds, *([] if same else fields)]
    ]
    why = "" if same else ", because their clients hold other examples"
    raise UnpairedError(
        f"{ours.name} and {theirs.name} cannot be paired{why}; they differ in "
        f"{', '.join(texts) or 'no field, but in who holds which examples'}",
        "give runs of the same rounds, evaluations, data set and partition, or --anyway to compare "
        "their means",
    )


def same_examples(ours: Record, theirs: Record) -> bool | None:
    """Return whether the examples are the same, client by client, by the runs' files.

    Returns None if the files do not say.
    """
    parts = [
        {name: rows for name, rows in record.arrays.items() if name.startswith(ROWS)}
        for record in (ours, theirs)
    ]
    if not all(parts):
        return None
    left, right = parts
    return left.keys() == right.keys() and all(
        np.array_equal(left[name], right[name]) for name in left
    )


def explain_unpaired(ours: Method, theirs: Method, seed_pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield notes on runs and clients of two methods that do not count, and why."""
    for one, other in ((ours, theirs), (theirs, ours)):
        alone = [str(seed) for seed in one.runs if seed not in other.runs]
        if alone:
            yield (
                f"seed {', '.join(alone)} of {one.label} has no finished run of {other.label}, "
                f"and does not count"
            )
    paired = {pair.seed for pair in seed_pairs}
    empty = [str(seed) for seed in ours.runs if seed in theirs.runs and seed not in paired]
    if empty:
        yield (
            f"seed {', '.join(empty)} has no numbers in the runs of both {ours.label} and "
            f"{theirs.label}, and does not count"
        )
    lone = sum(pair.lone for pair in seed_pairs)
    if lone:
        yield (
            f"{ours.label}: clients that have a number in only one run of a pair do not count: "
            f"{lone}"
        )


@dataclass(frozen=True)
class Comparison:
    """Comparison of one method with the baseline, over seeds or over the clients of a single seed.

    pairs: one for each seed.
    interval, p: None if there are too few pairs.
    effect: the mean difference over the standard deviation of the clients' differences; None if
    the number is not of clients.
    counts: clients that are better, worse and equal, over all pairs.
    by_ranks: whether p over seeds is that of the signed-rank test, not of the paired t test.
    """

    method: Method
    pairs: list[Pair]
    mean: float
    base: float
    interval: differences.Interval | None
    p: float | None
    effect: float | None
    counts: tuple[int, int, int]
    by_ranks: bool = False
    holm: float | None = None

    @property
    def seeds(self) -> int:
        return len(self.pairs)

    @property
    def clients(self) -> int:
        """Number of clients over all seeds; 0 for a number that is not of clients."""
        return sum(len(pair.clients) for pair in self.pairs)

    @property
    def difference(self) -> float:
        return self.mean - self.base

    def places(self, view: View) -> int:
        """Return the decimals of the means, their difference and its interval."""
        low, high = self.interval or (self.difference, -self.difference)
        return view.places([self.mean, self.base], abs(high - low) / 2)


def against(one: Method, seed_pairs: list[Pair], view: View, by_ranks: bool = False) -> Comparison:
    """Return the comparison of a method with the baseline.

    seed_pairs: their runs.  by_ranks: whether the test over seeds is the signed-rank test.
    """
    mean, other = (
        float(np.mean([getattr(pair, name) for pair in seed_pairs])) for name in ("mean", "base")
    )
    scale = max(one.largest for one in seed_pairs)
    paired = Paired(tuple(one.differences for one in seed_pairs), scale)
    interval, p = paired.interval, paired.rank_p if by_ranks else paired.p
    if is_over_clients(seed_pairs):
        interval = differences.bootstrap(paired.clients, seed_pairs[0].seed)
        p = differences.wilcoxon(paired.clients, scale)
    of_clients = all(len(one.clients) for one in seed_pairs)
    effect = paired.effect if of_clients else None
    counts = paired.counts(view.measure.high)
    return Comparison(one, seed_pairs, mean, other, interval, p, effect, counts, by_ranks)


def apply_holm(comparisons: list[Comparison]) -> list[Comparison]:
    """Return the comparisons with Holm's correction, if there are several tests."""
    tested = [one.p for one in comparisons if one.p is not None]
    if len(tested) < 2:
        return comparisons
    fair = iter(differences.holm(tested))
    return [one if one.p is None else replace(one, holm=next(fair)) for one in comparisons]


def compare_all(
    groups: list[Method], base: Method, view: View, anyway: bool = False
) -> tuple[list[Comparison], list[tuple[Method, str]]]:
    """Return the comparisons of all other methods with the baseline.

    The second list has the methods that cannot be compared with it, and why. Raises ConfigError if
    these are all.
    """
    paired, unpaired = list[tuple[Method, list[Pair]]](), list[tuple[Method, str]]()
    advice: dict[str, None] = {}
    for one in (one for one in groups if one is not base):
        try:
            paired.append((one, pairs(one, base, view, anyway)))
        except UnpairedError as error:
            unpaired.append((one, error.reason))
            advice |= {f"  {error.advice}": None} if error.advice else {}
    if not paired:
        raise ConfigError("\n".join([*(f"compare: {reason}" for _, reason in unpaired), *advice]))
    by_ranks = compares_ranks([seed_pairs for _, seed_pairs in paired])
    comparisons = [against(one, seed_pairs, view, by_ranks) for one, seed_pairs in paired]
    return apply_holm(comparisons), unpaired


def compares_ranks(comparisons: Sequence[Sequence[Pair]]) -> bool:
    """Return whether the test over seeds is the signed-rank test, for all comparisons alike.

    It is the paired t test if signed ranks of one of them could not give a corrected p < 0.05. The
    choice depends on the numbers of seeds and of tests alone, and not on values.

    comparisons: the pairs of each.
    """
    seeds = [len(seed_pairs) for seed_pairs in comparisons if len(seed_pairs) >= ENOUGH]
    over_clients = sum(is_over_clients(seed_pairs) for seed_pairs in comparisons)
    return ranks_can_differ(seeds, len(seeds) + over_clients)


def is_over_clients(seed_pairs: Sequence[Pair]) -> bool:
    """Return whether the interval and the test are over the clients of a single seed."""
    return len(seed_pairs) == 1 and len(seed_pairs[0].clients) > 1
