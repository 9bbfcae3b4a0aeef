"""A robust rule in the place of the exact mean of the clients' uploads.

Updates are differences to the value that the mean replaces. What a rule compares, the clients'
complete updates or their values of each coordinate, follows from what has weights of its own in the
mean:

- one weight for all tensors (`per` = "mean"): complete updates are compared;
- one for each tensor: updates are compared tensor by tensor, among the clients that send it;
- one for each row, such as the prototype of a class: row by row, among the clients that have it;
- one for each value, as with sub-models: only a rule that works by coordinates can take them.

Statistics of batch normalisation follow the choice, but are not compared: their scale has nothing
to do with that of weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hpcfed.config.defence import DEFENCES
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, everywhere
from hpcfed.core.params import Mean, Params, Per, Term
from hpcfed.federation.sealed import MeanRule
from hpcfed.federation.side_by_side import Block, Section, SideBySide
from hpcfed.federation.transforms.comparison import (
    Comparison,
    exponents,
    finite,
    gram,
    host,
    in_units,
    products,
)
from hpcfed.federation.transforms.defence.buckets import Buckets
from hpcfed.federation.transforms.defence.geometric_median import ITERATIONS
from hpcfed.federation.transforms.defence.median import Median
from hpcfed.federation.transforms.defence.rule import Choice, Rule, attackers_among
from hpcfed.federation.transforms.privacy.noise import gaussian
from hpcfed.federation.transforms.values import STATISTICS
from hpcfed.federation.upload import ALONE

if TYPE_CHECKING:
    from hpcfed.config.defence import Defence as Settings
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.trial_notes import UploadedParts

ALL = ""  # the unit of all tensors


class Unit(NamedTuple):
    """Clients and tensors that are compared with one another.

    entries: of the clients, among all of the mean.  names: of the tensors.  weights: [n].
    """

    entries: list[int]
    names: list[str]
    weights: np.ndarray


class Chosen(NamedTuple):
    """Groups of the clients that have a tensor, and the weight of each group."""

    buckets: Buckets
    weights: np.ndarray


class RobustMean(MeanRule):
    """A robust rule in the place of the mean.

    used: whether a mean was computed by it.
    last: what each mean of the last complete round changed, by its number; for rules that remember.
    """

    seals = False
    hides_counts = False

    def __init__(self, settings: Settings) -> None:
        self.settings, self.rule, self.used = settings, rule_of(settings), False
        self.last: dict[str, Params] = {}
        self.begin()

    def begin(self) -> None:
        self._call = 0
        self._changes: dict[str, Params] = {}

    def close(self, fed: Federation, uploads: int, reports: Collection[float]) -> None:
        self.last = self.last | self._changes

    def fresh(self) -> RobustMean:
        return RobustMean(self.settings)

    def learn(self, trial: MeanRule) -> None:
        assert isinstance(trial, RobustMean)
        self.used |= trial.used

    def open(self, fed: Federation) -> None:
        if not self.used:
            raise ConfigError(
                f"defence.by = {self.settings.by!r} stands in the place of a mean of what "
                f"clients send, and the server of {fed.job.algorithm.name} computes none; "
                f"set defence.by = 'none', or take another method, such as fedavg"
            )

    def say_what_it_covers(self, fed: Federation, uploaded: UploadedParts) -> None:
        """Say which parts of uploads the server takes without a mean, if there are any."""
        if not uploaded.single:
            return
        single = ", ".join(sorted(uploaded.single - {ALONE})) or "single uploads"
        covered = ", ".join(sorted(uploaded.means - uploaded.single - {ALONE})) or "the means"
        fed.warnings.say(
            f"defence.by = {self.settings.by!r} covers {covered}; the server of "
            f"{fed.job.algorithm.name} uses {single} as clients send them, attackers too"
        )

    def to_tree(self) -> dict[str, Any]:
        return {call: dict(change) for call, change in self.last.items()}

    def from_tree(self, tree: dict[str, Any]) -> None:
        self.last = {call: Params(change) for call, change in tree.items()}
        self.begin()

    def mean(self, fed: Federation, parts: list[tuple[int, Any]], keep: Params, per: Per) -> Params:
        # what a rule remembers of the last round's means is not about those that come after it
        call = f"after {self._call}" if fed.stays else str(self._call)
        self._call += 1
        terms = [(k, single(fed, k, part)) for k, part in parts]
        fed.note_shapes([term for _, term in terms], keep)
        if not keep:
            return keep
        self.used = True
        if self.rule.one_mean and call != "0":
            raise everywhere(
                ConfigError(
                    f"defence.by = {self.settings.by!r} trains the server's model, but the server "
                    f"of {fed.job.algorithm.name} computes other means beside that of models; set "
                    f"another defence.by, such as 'geometric-median'"
                )
            )
        fed.exchange.wait("defence")
        result = OneMean(fed, self, call, terms, keep, per).compute()
        if self.rule.remembers:
            change = result - keep  # nan where nobody had sent anything before
            self._changes[call] = change.map(lambda v: torch.nan_to_num(v, 0.0, 0.0, 0.0))
        return result


def single(fed: Federation, k: int, part: Mean) -> Term:
    """Return the only term of what a client adds to a mean."""
    if len(part.terms) != 1:
        raise ConfigError(
            f"defence.by: client {k} adds several values to one mean of {fed.job.algorithm.name}, "
            f"which no rule compares with those of others; set defence.by = 'none'"
        )
    return part.terms[0]


class OneMean:
    """The computation of one mean by a robust rule."""

    def __init__(
        self,
        fed: Federation,
        defence: RobustMean,
        call: str,
        terms: Sequence[tuple[int, Term]],
        keep: Params,
        per: Per,
    ) -> None:
        """Collective.  terms: of this rank's clients, with their ids."""
        self.fed, self.call, self.keep, self.per = fed, call, keep, per
        self.settings, self.rule = defence.settings, defence.rule
        # old values are nan where nobody has sent any yet
        last = defence.last.get(call) or keep.map(torch.zeros_like)
        self.server = self.rule.server(fed, keep, last)
        self.values = SideBySide(fed, terms, keep, per)
        trained = [name for name in keep if is_trained(fed, name)]
        models = [name for name in keep if not name.endswith(STATISTICS)]  # one for each kind
        self.compared = frozenset(trained or models or keep)
        self.pairs = self.rule.pairs or self.settings.bucket > 1  # lengths of groups need pairs too

    def compute(self) -> Params:
        """Return what the server gets; collective."""
        n = len(self.values.clients)
        if not n:
            return self.keep
        if not self.rule.compares:
            return self.by_coordinate(self.rule)
        if self.per == "value":
            raise everywhere(self.refusal("send sub-models, of which each value has other clients"))
        return self.by_row() if self.per == "row" else self.by_unit()

    def refusal(self, why: str) -> ConfigError:
        """Return the error for a method whose uploads the rule cannot compare."""
        return ConfigError(
            f"defence.by = {self.settings.by!r} compares complete uploads, but clients of "
            f"{self.fed.job.algorithm.name} {why}; set defence.by = 'median' or 'trimmed-mean'"
        )

    def too_few(self, n: int) -> bool:
        """Return whether the rule cannot choose among the uploads of n clients, and say so once."""
        groups = -(-n // self.settings.bucket)
        least = self.rule.least(int(attackers_among(n, self.settings.attackers)))
        if groups >= least:
            return False
        self.fed.warnings.say(
            f"defence.by = {self.settings.by!r} cannot choose among the uploads of so few clients "
            f"as {n}; when no more send a value, the median is taken"
        )
        return True

    def buckets(self, n: int, *unit: str) -> Buckets:
        """Return the groups of n clients that are compared; of a unit, or of all."""
        g = rng.stream(self.fed.seed, "defence", self.fed.moment, self.call, *unit)
        return Buckets(n, self.settings.bucket, g)

    # Coordinates

    def by_coordinate(
        self,
        rule: Rule,
        chosen: Mapping[str, Chosen] | None = None,
        names: Collection[str] | None = None,
    ) -> Params:
        """Return the values that the rule combines of each coordinate; collective.

        chosen: by tensor; None: all clients with their weights in the mean.
        names: of the tensors; None: all.
        """
        names = self.keep.keys() if names is None else names
        everyone = self.buckets(len(self.values.clients))

        def combine(block: Block) -> np.ndarray:
            result = self.old_values(block.section)
            if not block.entries:
                return result
            if chosen is None:
                values, weights = everyone.average(block.values, block.weights, block.entries)
            else:
                buckets, of_groups = chosen[block.section.name]
                positions = list(range(len(block.entries)))
                values, _ = buckets.average(block.values, block.weights, positions)
                weights = np.broadcast_to(of_groups[:, None], values.shape)
            present, bad = weights.any(axis=0), self.attackers(block)
            if present.all():
                return rule.combine(values, weights, bad)  # without a copy of all values
            if present.any():
                result[present] = rule.combine(
                    values[:, present], weights[:, present], bad[present]
                )
            return result

        return self.filled(self.values.each(combine, lambda name: name in names), names)

    def attackers(self, block: Block) -> np.ndarray:
        """Return the number of attackers that the rule assumes for each value of a block, [m]."""
        return attackers_among((block.weights > 0).sum(axis=0), self.settings.attackers)

    def filled(self, results: Any, names: Collection[str]) -> Params:
        """Return tensors with these names, made of the values of all sections: (section, [m])."""
        old = {name: value for name, value in self.keep.items() if name in names}
        flat = {name: np.empty(value.numel()) for name, value in old.items()}
        for section, part in results:
            flat[section.name][section.start : section.stop] = part
        return Params(
            {
                name: torch.from_numpy(flat[name]).view(value.shape).to(value.device, value.dtype)
                for name, value in old.items()
            }
        )

    def old_values(self, section: Section) -> np.ndarray:
        """Return the values of a section that the mean replaces, [m]; nan if there are none yet."""
        name, start, stop = section
        return self.keep[name].detach().reshape(-1)[start:stop].double().cpu().numpy().copy()

    # Complete updates

    def by_unit(self) -> Params:
        """Return what the rule makes of complete updates; collective."""
        if self.fed.comm.barrier(int(any(term.at for term in self.values.mine.values()))):
            raise everywhere(self.refusal("send pieces of tensors"))
        units = self.units()
        if not all(self.takes(unit.weights) for unit in units.values()):
            raise everywhere(self.unequal())
        compared = {key: unit for key, unit in units.items() if self.can_choose(unit)}
        names = {name for key in units.keys() - compared for name in units[key].names}
        medians = self.by_coordinate(Median(), names=names) if names else Params()
        chosen = self.by_choice(compared)
        return Params({name: medians.get(name, value) for name, value in chosen.items()})

    def can_choose(self, unit: Unit) -> bool:
        """Return whether the rule can choose in a unit, of which statistics are no part."""
        return not (self.compared.isdisjoint(unit.names) or self.too_few(len(unit.entries)))

    def by_choice(self, units: Mapping[str, Unit]) -> Params:
        """Return the mean of the updates that the rule chooses in each unit; collective.

        Tensors of no unit keep their old values.
        """
        if not units:
            return self.keep
        vectors, old = self.vectors()
        grams = {
            key: gram(
                self.fed,
                vectors,
                unit.entries,
                self.compared.intersection(unit.names),
                old,
                self.server,
                self.pairs,
            )
            for key, unit in units.items()
        }
        buckets = {key: self.buckets(len(unit.entries), key) for key, unit in units.items()}
        plain: dict[str, Any] = self.fed.on_root(
            lambda: {
                key: list(self.choose(unit, grams[key], buckets[key]))
                for key, unit in units.items()
            }
        )
        choices = {key: Choice(*choice) for key, choice in plain.items()}
        if self.rule.combines:
            chosen = {
                name: Chosen(buckets[key], choices[key].weights)
                for key, unit in units.items()
                for name in unit.names
            }
            return Params({**self.keep, **self.by_coordinate(self.rule, chosen, chosen)})
        for key, unit in units.items():
            choices[key] = buckets[key].spread(choices[key], unit.weights)
        return self.averaged(units, choices)

    def units(self) -> dict[str, Unit]:
        """Return what is compared, all tensors together or each on its own; collective.

        Tensors that nobody sends are in no unit.
        """
        names = list(self.keep)
        groups = {ALL: names} if self.per == "mean" else {name: [name] for name in names}
        weights = self.fed.comm.gather(
            {
                entry: {name: weight_of(term, tensors) for name, tensors in groups.items()}
                for entry, term in self.values.mine.items()
            }
        )
        units = {}
        for name, tensors in groups.items():
            entries = [entry for entry in weights if weights[entry][name] > 0]
            numbers = np.array([weights[entry][name] for entry in entries])
            if entries:
                units[name] = Unit(entries, tensors, numbers)
        return units

    def takes(self, weights: np.ndarray) -> bool:
        """Return whether the rule can take clients of these weights, [n]."""
        return self.rule.weighted or len(set(weights.tolist())) == 1

    def unequal(self) -> ConfigError:
        """Return the error for clients that the rule counts alike and that have other weights."""
        return ConfigError(
            f"defence.by = {self.settings.by!r} counts clients alike, but in a mean of "
            f"{self.fed.job.algorithm.name} they have different weights; set "
            f"algorithm.weighting = 'uniform' if it has that, or defence.by = 'median'"
        )

    def vectors(self) -> tuple[SideBySide, Params | None]:
        """Return the vectors that are compared, and what is subtracted from them; collective."""
        if type(self.rule).compared is Rule.compared:
            return self.values, self.keep
        terms = []
        for entry, term in self.values.mine.items():
            k = self.values.clients[entry]
            update = Params(
                {
                    name: value - finite(self.keep[name]).to(value.dtype)
                    for name, value in term.value.items()
                }
            )
            vector = self.rule.compared(self.fed, k, self.call, update)
            terms.append((k, term._replace(value=vector)))
        return SideBySide(self.fed, terms, self.keep, self.per), None

    def choose(self, unit: Unit, inner: np.ndarray, buckets: Buckets) -> Choice:
        """Return what becomes of the groups of a unit's clients.  inner: products, as in `gram`."""
        attackers = int(attackers_among(len(unit.entries), self.settings.attackers))
        updates = Comparison(inner, unit.weights, attackers)
        return self.rule.choose(buckets.compare(updates))

    def averaged(self, units: Mapping[str, Unit], choices: Mapping[str, Choice]) -> Params:
        """Return the mean of what is chosen; collective."""
        terms = []
        for entry, term in self.values.mine.items():
            values, weights = {}, {}
            for key, unit in units.items():
                if entry not in unit.entries:
                    continue
                i, choice = unit.entries.index(entry), choices[key]
                for name in unit.names:
                    values[name] = self.changed(name, term.value[name], choice, i)
                    weights[name] = float(choice.weights[i])
            if any(weights.values()):
                terms.append(Term(Params(values), self.as_weight(weights), {}))
        result = self.fed.exchange.mean(terms, self.keep, self.per)
        noise = {name: choices[key].noise for key, unit in units.items() for name in unit.names}
        return Params({name: self.noisy(name, v, noise.get(name)) for name, v in result.items()})

    def as_weight(self, weights: Mapping[str, float]) -> float | Params:
        """Return the weight of a term: a number, or by tensor."""
        if self.per == "mean":
            return next(iter(weights.values()))
        return Params({name: torch.tensor(w, dtype=torch.float64) for name, w in weights.items()})

    def changed(self, name: str, value: torch.Tensor, choice: Choice, i: int) -> torch.Tensor:
        """Return the value of a client, as the rule changes it."""
        factor = float(choice.factors[i])
        server = list(zip(choice.server.tolist(), self.server, strict=True))
        if name not in self.compared:  # a variance must not become negative
            factor, server = min(1.0, factor), []
        if factor == 1 and not server:
            return value
        old = finite(self.keep[name])
        result = old + factor * (value.double() - old)
        for amount, change in server:
            result += amount * change[name].double()
        return result.to(value.dtype)

    def noisy(self, name: str, value: torch.Tensor, std: float | None) -> torch.Tensor:
        """Return a tensor with Gaussian noise, if it is one that is trained."""
        if not std or name not in self.compared:
            return value
        key = ("defence", self.fed.moment, self.call, name)
        noise = torch.from_numpy(gaussian(self.fed.seed, *key, n=value.numel())).view(value.shape)
        return (value.double() + std * noise.to(value.device)).to(value.dtype)

    # Rows

    def by_row(self) -> Params:
        """Return each row as the rule makes it of the clients' rows; collective."""
        if type(self.rule).compared is not Rule.compared:
            raise everywhere(self.refusal("send values by class"))

        def combine(block: Block) -> np.ndarray:
            name = block.section.name
            length = max(1, int(np.prod(self.keep[name].shape[1:])))
            rows = [
                self.row(block, slice(start, start + length))
                for start in range(0, block.values.shape[1], length)
            ]
            return np.concatenate(rows)

        return self.filled(self.values.each(combine), self.keep)

    def row(self, block: Block, at: slice) -> np.ndarray:
        """Return what the rule makes of one row of a block, [d]."""
        name, start, _ = block.section
        begin, end = start + at.start, start + at.stop
        present = np.flatnonzero(block.weights[:, at].any(axis=1))
        before = self.old_values(Section(name, begin, end))
        if not len(present):
            return before
        old = np.nan_to_num(before, nan=0.0, posinf=0.0, neginf=0.0)
        updates = block.values[present, at] - old
        weights = block.weights[present, at.start]
        server = [host(change[name], begin, end) for change in self.server]
        vectors = np.concatenate([updates, *[vector[None] for vector in server]])
        bits = exponents(np.abs(vectors).max(axis=1))
        unit = Unit([block.entries[i] for i in present], [f"{name} {begin}"], weights)
        if not self.takes(weights):
            raise self.unequal()  # on the rank that has this row
        if self.too_few(len(present)):
            return Median().combine(
                updates + old, np.broadcast_to(weights[:, None], updates.shape), np.zeros(len(old))
            )
        buckets = self.buckets(len(present), *unit.names)
        inner = in_units(products(vectors, bits, self.pairs, len(server)), bits)
        choice = self.choose(unit, inner, buckets)
        if self.rule.combines:
            wide = np.broadcast_to(weights[:, None], updates.shape)
            values, _ = buckets.average(updates + old, wide, list(range(len(present))))
            chosen = np.broadcast_to(choice.weights[:, None], values.shape)
            bad = attackers_among(np.full(len(old), len(present)), self.settings.attackers)
            return self.rule.combine(values, chosen, bad)
        choice = buckets.spread(choice, weights)
        if not choice.weights.any():
            return before
        changes = choice.factors[:, None] * updates
        for amount, vector in zip(choice.server.tolist(), server, strict=True):
            changes = changes + amount * vector
        result = old + (choice.weights[:, None] * changes).sum(axis=0) / choice.weights.sum()
        if choice.noise:
            key = ("defence", self.fed.moment, self.call, name)
            result += choice.noise * gaussian(self.fed.seed, *key, start=begin, n=len(old))
        return result


def is_trained(fed: Federation, name: str) -> bool:
    """Return whether clients train the tensor that the server has under this name.

    It may have a prefix there, as that of an exit, "exits.4.head.weight", or of deviations,
    "rho/head.weight".
    """
    starts = [0, *(i + 1 for i, character in enumerate(name) if character in "./")]
    return any(fed.trainable(name[start:]) for start in starts)


def weight_of(term: Term, names: Sequence[str]) -> float:
    """Return the weight of a term's tensors; 0 if it has none of them."""
    if not any(name in term.value for name in names):
        return 0.0
    return float(term.weight[names[0]]) if isinstance(term.weight, Params) else float(term.weight)


def rule_of(settings: Settings) -> Rule:
    """Return the rule of a job."""
    arguments: dict[str, dict[str, Any]] = {
        "multi-krum": {"m": settings.best},
        "geometric-median": {"nu": settings.nu, "iterations": settings.iterations or ITERATIONS},
        "centred-clipping": {"clip": settings.clip, "iterations": settings.iterations or 1},
        "norm-bound": {"clip": settings.clip},
        "flame": {"noise": settings.noise},
    }
    return DEFENCES[settings.by].load()(**arguments.get(settings.by, {}))
