"""Searches: a number of trials with values drawn from ranges, instead of all combinations.

A random search draws every value independently, from a stream named by the trial's number and the
field; further trials later continue the same draws. With Optuna (Akiba et al., KDD 2019,
arXiv:1907.10902) its tree-structured Parzen estimator proposes the next values from the validation
scores of the trials before. A search never looks at test examples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcfed.core.errors import ConfigError
from hpcfed.core.optional_imports import import_extra

FULL = 4  # trials that run to their end before others are pruned
TRIALS = 10  # default number of draws of a search
DRAWS = 5000  # without new values, after which ranges are taken to have no more
NUMBER = r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
RANGE = re.compile(rf"(log:)?{NUMBER}\.\.{NUMBER}")
Values = dict[str, str]  # of the fields with a range, as they are given to a run


@dataclass(frozen=True)
class Range:
    """Numbers from low to high.

    log: whether their logarithms are uniform.
    integer: whether they are integers.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def place(self, u: float) -> str:
        """Return the value at a fraction u, 0..1, of the range, as text for a job."""
        if self.log:
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        elif self.integer:
            value = self.low + math.floor(u * (self.high - self.low + 1))
        else:
            value = self.low + u * (self.high - self.low)
        return self.text(value)

    def text(self, value: float) -> str:
        """Return a value with four digits, or as many more as keep it within the range."""
        value = min(max(value, self.low), self.high)
        if self.integer:
            return str(round(value))
        texts = (f"{value:.{digits}g}" for digits in range(4, 18))  # 17 digits give it exactly
        return next(text for text in texts if self.holds(text))

    def holds(self, text: str) -> bool:
        """Return whether a value is within the range, as one tried in another range may not be."""
        value = float(text)
        return self.low <= value <= self.high and (value.is_integer() or not self.integer)


def parse(name: str, text: str) -> Range | None:
    """Return the range of a flag's value: "0.001..0.1", "log:1e-4..1e-1" or "1..5" of integers.

    Returns None if it is not a range. Raises ConfigError for an empty one.
    """
    match = RANGE.fullmatch(text)
    if not match:
        return None
    log, low, high = bool(match[1]), float(match[2]), float(match[3])
    if not low < high or (log and low <= 0):
        raise ConfigError(
            f"sweep: {name}: {text!r} is an empty range; write it as 0.001..0.1, of logarithms as "
            f"log:0.001..0.1, the smaller number first and above 0"
        )
    integer = not log and all(re.fullmatch(r"-?\d+", part) for part in match.groups()[1:])
    return Range(low, high, log, integer)


def draw(ranges: Mapping[str, Range], trial: int) -> Values:
    """Return the values of one trial of a random search."""
    from hpcfed.core import rng  # here: it imports torch

    return {
        name: one.place(float(rng.stream(0, "search", name, trial).random()))
        for name, one in ranges.items()
    }


def draw_untried(ranges: Mapping[str, Range], tried: Sequence[Values], trial: int) -> Values | None:
    """Return the values of the first trial of a random search, from this one on, that are new.

    Returns None if the ranges have no more, as ranges of few integers.
    """
    draws = (draw(ranges, i) for i in range(trial, trial + DRAWS))
    return next((values for values in draws if values not in tried), None)


@dataclass(frozen=True)
class Trial:
    """Values that were tried.

    score: at the end, higher is better; None if the trial failed or was pruned.
    curve: the score by round, of the first seed; empty if nothing was scored.
    pruned: whether it was ended because it was hopeless.
    """

    values: Values
    score: float | None
    curve: Mapping[int, float] = field(default_factory=dict)
    pruned: bool = False


def propose(ranges: Mapping[str, Range], tried: Sequence[Trial]) -> Values:
    """Return Optuna's next values after these trials.

    The result is determined by the trials, so a continued search proposes the same values. Trials
    outside the ranges, which may have been wider before, do not count.
    """
    optuna = import_extra("optuna", "tune", "--search optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {name: distribution(optuna, one) for name, one in ranges.items()}
    sampler = optuna.samplers.TPESampler(seed=len(tried))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    inside = [t for t in tried if all(ranges[name].holds(v) for name, v in t.values.items())]
    add_trials(optuna, study, ranges, inside)
    proposal = study.ask(spaces).params
    return {name: ranges[name].text(proposal[name]) for name in ranges}


def is_hopeless(tried: Sequence[Trial], curve: Mapping[int, float]) -> bool:
    """Return whether Optuna's median pruner would end a trial with this curve.

    It does if the best score so far is below the median, at the same round, of the trials that were
    not pruned, once there are FULL of them.
    """
    optuna = import_extra("optuna", "tune", "--prune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=FULL)
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    add_trials(optuna, study, {}, tried)
    trial = study.ask()
    for t, score in curve.items():
        trial.report(score, t)
    return bool(curve) and trial.should_prune()


def add_trials(
    optuna: Any, study: Any, ranges: Mapping[str, Range], tried: Sequence[Trial]
) -> None:
    """Tell a study of Optuna about trials, and their values of the fields with these ranges."""
    states = optuna.trial.TrialState
    spaces = {name: distribution(optuna, one) for name, one in ranges.items()}
    for trial in tried:
        outcome: dict[str, Any] = {"value": trial.score}
        if trial.pruned and trial.curve:
            outcome = {"state": states.PRUNED}
        elif trial.score is None or not math.isfinite(trial.score):
            outcome = {"state": states.FAIL}
        numbers = {name: float(trial.values[name]) for name in ranges}
        params = {n: int(v) if ranges[n].integer else v for n, v in numbers.items()}
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=spaces,
                intermediate_values=dict(trial.curve),
                **outcome,
            )
        )


def distribution(optuna: Any, one: Range) -> Any:
    if one.integer:
        return optuna.distributions.IntDistribution(int(one.low), int(one.high))
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)
