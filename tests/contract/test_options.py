"""Every method: an option of [local] or of its own that is set changes what is computed or sent, or
is refused.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import chain, count
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms import load as algorithm
from hpcfed.comm import Serial
from hpcfed.config.check import check
from hpcfed.config.job import Job
from hpcfed.core.errors import ConfigError
from tests.contract import toy
from tests.contract.test_methods_on_modalities import folder as senses

TOGETHER = {  # fields that mean something only with others: these go with them
    "local.milestones": {"local.schedule": "step"},
    "local.schedule": {"local.milestones": (1,)},
    "local.weights": {"local.class_weights": "given"},
    "local.decay": {"local.schedule": "step", "local.milestones": (1,)},
    "algorithm.decay": {"algorithm.decay_at": (1,)},
    "algorithm.decay_at": {"algorithm.decay": 0.5},
    "algorithm.i2": {"algorithm.i1": 1},
    "algorithm.cliques": {"algorithm.topology": "clique-ring"},
    "algorithm.density": {"algorithm.topology": "erdos-renyi"},
}
OTHER = {  # values for a toy run, where half or twice the default will not do
    "local.betas": (0.5, 0.9),
    "local.momentum": 0.5,
    "local.weight_decay": 0.1,
    "local.steps": 3,
    "local.batch": 4,
    "local.schedule": "step",
    "local.stragglers": 0.5,
    "local.class_weights": "client",
    "local.weights": (1.0, 9.0, 2.0, 5.0),
    "local.augment": "affine",
    "algorithm.subset": 7,
    "algorithm.public": 7,
    "algorithm.rad_size": 7,
    "algorithm.digest_batch": 5,
    "algorithm.distil_batch": 5,
    "algorithm.public_batch": 5,
    "algorithm.personal_epochs": 2,
    "algorithm.energy_start": 0.5,
    "algorithm.energy_end": 0.999,
    "algorithm.transfer": ("body.",),
    "algorithm.server_batch": 5,
    "algorithm.steps": 3,
    "algorithm.patience": 1,
    "algorithm.clip": 1e-3,
    "algorithm.coarse": 7,
    "algorithm.drop_worst": 1.2,
    "algorithm.max_staleness": 0,
    "algorithm.tau_base": 0.5,
    "algorithm.distil_lr": 0.3,
    "algorithm.merges": 2,
    "algorithm.min_steps": 6,
    "algorithm.first_epochs": 1,
    "algorithm.epsilon": 0.1,
    "algorithm.epsilon_decay": 0.5,
    "algorithm.groups": 2,
    "algorithm.rare_share": 0.9,
    "algorithm.ramp": 2,
    "algorithm.cliques": 2,
    "algorithm.calibration": 0.3,
    "algorithm.encoder_rate": 0.5,
    "algorithm.small_epochs": 1.0,
    "algorithm.samples": 1,
    "algorithm.prior": 10.0,
    "algorithm.rate": 0.3,
    "algorithm.prunings": 1,
    "algorithm.lipschitz": 3.0,
}
DATA = {  # what depends on the data, or on the models: not refused, and not always of effect
    "algorithm.empty",  # a centre without clients
    "algorithm.scope",  # who is nearest to which centre
    "algorithm.start",
    "algorithm.linkage",  # who is joined to whom
    "algorithm.trim",  # of few clients nobody
    "algorithm.iterations",  # these few are settled at once
    "algorithm.later",
    "algorithm.matchings",  # these few agree at once
    "algorithm.sweeps",
    "algorithm.reference",
    "algorithm.sigma",  # what is matched to what
    "algorithm.sigma0",
    "algorithm.bias_mean",
    "algorithm.eps1",
    "algorithm.eps2",
    "algorithm.gamma",
    "algorithm.drop_worst",  # a client that only guesses
    "algorithm.max_staleness",
    "algorithm.draw",  # of classes that are equally many
    "algorithm.gap",  # of prototypes nearer than tau
    "algorithm.patience",
    "algorithm.mean_over",  # all take part here
    "algorithm.queue",  # no class is rare
    "algorithm.c",  # ARUBA++, also then
    "algorithm.k_reg",  # sets of few classes
    "algorithm.lam_small",
    "algorithm.lam_large",
    "algorithm.adapt",  # a proxy that became worse
    "algorithm.norms",  # no model here has group or layer normalisation
    "algorithm.final_epochs",  # after the last round, which is not part of a toy run
    "algorithm.final_part",
    "algorithm.final_samples",
    "algorithm.final_balance",
    "algorithm.final_lr",
    "algorithm.final_batch",
}
READ_TOGETHER = {  # where training reads an option, it reads these too: FedAvg's run examines them
    "local.schedule": ("local.milestones", "local.decay"),
    "local.optimiser": ("local.betas", "local.weight_decay"),
    "local.class_weights": ("local.weights", "local.focal"),
}
SHORT = (
    *("--rounds", "2", "--participation", "1", "--clients", "2", "--data.train_limit", "24"),
    *("--evaluate.before", "false", "--evaluate.every", "2"),
    *("--training.engine", "eager", "--local.batch", "8"),
    *("--data.partition", "dirichlet", "--data.sizes", "free"),
)
MLP, SMALL = ("--models.mix", "mlp"), ("--models.mix", "small")
WIDTHS = ("--models.mix", "small", "--models.widths", "1,0.5")
STAR = (
    *("--clients", "5", "--rounds", "3"),
    *("--algorithm.topology", "star", "--system.distribution", "lognormal"),
)
THREE = ("--clients", "3", "--data.train_limit", "36")
TWO_OF_FIVE = ("--clients", "5", "--data.train_limit", "36", "--algorithm.clusters", "2")
AT_ONCE = ("--clients", "6", "--algorithm.after", "0")
CUTS = (*AT_ONCE, "--algorithm.eps1", "1e9", "--algorithm.eps2", "1e-9")
SENSES = (  # several modalities, some of which some clients lack
    *("--data.name", str(senses() / "senses.h5"), "--data.partition", "natural"),
    *("--data.sizes", "equal", "--clients", "4"),
)
SMALL_SETS = (  # of few examples
    *("--algorithm.calibration", "0.5", "--algorithm.alpha", "0.4", "--local.epochs", "2"),
)
BY_METHOD = {  # what a method needs beside it so that its options can have an effect
    "central": ("--data.train_limit", "38"),  # in 36 pooled examples all classes are equally many
    "depthfl": ("--models.mix", "resmlp-4"),  # whose inner blocks have exits
    "dsgd": STAR,
    "dsgt": STAR,
    "fccl": THREE,
    "fedasync": THREE,
    "fedbuff": THREE,
    "fedexp": (*THREE, "--data.alpha", "0.01", "--local.epochs", "3"),
    "fedmd": THREE,
    "fedtype": SMALL_SETS,
    "fedcovid": ("--algorithm.large", "1", "--algorithm.warmup", "1", "--local.epochs", "2"),
    "harmony": (*SENSES, "--models.mix", "mean", "--algorithm.stage1_rounds", "1"),
    "swift": STAR,
    "fedcompass": (  # unlike one another, and often late
        *THREE,
        *("--rounds", "6", "--system.distribution", "lognormal", "--system.spread", "1"),
        *("--system.availability", "0.5", "--system.latency", "0"),
    ),
    "fesem": TWO_OF_FIVE,
    "fesemma": TWO_OF_FIVE,
    "tkm": TWO_OF_FIVE,
    "fed2": SMALL,
    "fedfomo": ("--clients", "5", "--rounds", "4", "--algorithm.epsilon", "1"),
    "fedtgp": ("--algorithm.tau", "0.1"),  # less than the distance of any two classes
    "mocha": ("--algorithm.sigma_rounds", "1"),
    "zeroshot": SMALL,
    "pfedknow": (*SMALL, "--algorithm.threshold", "0.9", "--rounds", "3"),
    "reptile": ("--rounds", "4"),  # moments count from the second step on
    "pfedhr": THREE,
    "semicyclic": (*THREE, "--rounds", "4"),  # two days
}
SAME = (  # what makes of [local] what a method's clients do
    *("receive", "local", "round", "refuses", "unused"),
    *("keeps_stragglers", "views", "local_defaults", "trains_once"),
)
CASES = {  # claim: flags; what other options depend on is on in one case and off in another
    **{
        f"{method} of widths": WIDTHS
        for method in ALGORITHMS
        if algorithm(method)().accepts == "widths"
    },
    "local with contrast": ("--algorithm.contrastive", "true", *MLP),
    "fedclassavg without averaging": ("--algorithm.averaging", "false", *MLP),
    "fedclassavg of all weights": ("--algorithm.share", "all", *MLP),
    "ifca of gradients": ("--algorithm.averaging", "gradients", *MLP),
    "ifca of perturbed models": (*THREE, "--algorithm.start", "perturbed", *MLP),
    "ktpfl of weights": ("--algorithm.share", "weights", *MLP),
    "fedhenn homogeneous": ("--algorithm.setting", "homogeneous", *MLP),
    "fedhenn by rbf": ("--algorithm.kernel", "rbf", *MLP),
    "fedasync by hinge": (*THREE, *("--algorithm.staleness", "hinge", "--algorithm.b", "0"), *MLP),
    "perfedavg hf": ("--algorithm.variant", "hf", *MLP),
    "dsgd of single steps": ("--local.steps", "1", *STAR, *MLP),
    "fedavg of single steps": ("--local.steps", "1", *MLP),
    "fedavg by momentum": ("--local.optimiser", "sgd", "--local.momentum", "0.5", *MLP),
    "tkm by medians": (
        *TWO_OF_FIVE,
        *MLP,
        "--algorithm.estimator",
        "median",
        "--algorithm.later",
        "1",
    ),
    "fedbe that averages": (
        *("--algorithm.server_batch", "8", "--algorithm.swa_start", "2"),
        *("--algorithm.swa_every", "3", "--algorithm.posterior", "dirichlet", *MLP),
    ),
    "cfl by norms": (*CUTS, *MLP),
    "cfl by gaps": (*AT_ONCE, "--algorithm.rule", "gap", "--algorithm.gamma", "0.01", *MLP),
    "fedtype by fedprox": ("--algorithm.aggregation", "fedprox", *SMALL_SETS, *MLP),
    "fedtype by pfedme": ("--algorithm.aggregation", "pfedme", "--algorithm.imitation", "0"),
    "fedtype by pfedbayes": ("--algorithm.aggregation", "pfedbayes", "--algorithm.imitation", "0"),
    "pfedhr without labels": (*THREE, "--algorithm.public_labels", "false", *MLP),
    "pfedhr of means": (
        *("--algorithm.merge", "true", "--algorithm.groups", "3", "--models.mix", "mlp,fedhenn-3"),
        *THREE,
    ),
    "zeroshot at the server": ("--algorithm.at", "server", *SMALL),
    "zeroshot by a generator": ("--algorithm.by", "generator", *SMALL),
    "dsfl with a server's model": ("--models.server", "mlp", *MLP),
}


def changed(path: str, value: Any, annotation: Any) -> Any:
    """Another value of a field."""
    kinds = (annotation, *get_args(annotation))
    choices = [c for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)]
    if path in OTHER and OTHER[path] != value:
        return OTHER[path]
    if choices:
        return next(choice for choice in choices if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (1,)
    return 2 * value or 1


def alternatives(base: Job, parts: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each option of these parts of the job, and the fields that are set to change it.

    Of methods other than FedAvg one of those that are read together.
    """
    others = set() if base.algorithm.name == "fedavg" else set(chain(*READ_TOGETHER.values()))
    for part in parts:
        values = getattr(base, part)
        for name, field in type(values).model_fields.items():
            path = f"{part}.{name}"
            if name != "name" and path not in DATA and path not in others:
                other = changed(path, getattr(values, name), field.annotation)
                yield path, TOGETHER.get(path, {}) | {path: other}


def with_values(base: Job, fields: dict[str, Any]) -> Job:
    """The job with other values; ConfigError as for any job."""
    parts = {}
    for part in ("local", "algorithm"):
        table = {k.partition(".")[2]: v for k, v in fields.items() if k.startswith(part)}
        values = getattr(base, part)
        try:
            parts[part] = type(values).model_validate(values.model_dump() | table)
        except ValidationError as error:
            raise ConfigError(str(error)) from error
    job = base.model_copy(update=parts)
    check(job)
    return job


def measured(job: Job) -> Iterator[toy.Outcome]:
    """What a run computes and sends, after each round; its seconds are another matter."""
    rounds = toy.start(Serial(), job)
    for _ in range(job.rounds):
        outcome = toy.outcome(rounds, [rounds.step()[0]])
        rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in outcome.rows]
        yield deepcopy(replace(outcome, rows=rows))


def as_fedavg(method: str) -> bool:
    """Whether clients do with [local] what FedAvg's do: its options are examined there."""
    ours, theirs = algorithm(method), algorithm("fedavg")
    return method != "fedavg" and all(getattr(ours, n, 0) is getattr(theirs, n, 0) for n in SAME)


class Usual:
    """What a job computes, after each round. A round after the first is run when it is first
    looked at. Raises ConfigError at once for a job that is refused.
    """

    def __init__(self, job: Job):
        self.rounds = measured(job)
        self.outcomes = [next(self.rounds)]

    def __iter__(self) -> Iterator[toy.Outcome]:
        for number in count():
            if number == len(self.outcomes):
                try:
                    self.outcomes.append(next(self.rounds))
                except StopIteration:
                    return
            yield self.outcomes[number]


def measured_or(usual: Usual, base: Job, fields: dict[str, Any]) -> Iterator[toy.Outcome]:
    """What the job computes with other values; where they are refused, what it does usually."""
    try:
        yield from measured(with_values(base, fields))
    except ConfigError:
        yield from usual


def idle(base: Job, parts: tuple[str, ...]) -> list[str]:
    """Options that are set and not refused, and change nothing. A run with another value continues
    until a round differs.
    """
    usual, outcomes = Usual(base), []
    for path, fields in alternatives(base, parts):
        try:
            job = with_values(base, fields)
        except ConfigError:
            continue
        beside = {name: value for name, value in fields.items() if name != path}
        # against the same job without this option alone
        ground = measured_or(usual, base, beside) if beside else usual
        try:
            same = all(
                not toy.differences(*rounds) for rounds in zip(ground, measured(job), strict=True)
            )
        except ConfigError:  # what data of this kind refuse
            continue
        if same:
            outcomes.append(f"{path} = {fields[path]}")
    return outcomes


def job_of(method: str, *more: str) -> Job:
    """The short job of a method, with one small architecture where it accepts that."""
    flags = (*SHORT, *BY_METHOD.get(method, ()), *more)
    same = SMALL if algorithm(method)().accepts == "widths" else MLP
    same = () if "--models.mix" in flags else same
    try:
        return toy.given(method, *flags, *same)
    except ConfigError:  # a method of several models, say
        return toy.given(method, *flags)


@pytest.mark.parametrize("method", ALGORITHMS)
def test_an_option_of_a_method_changes_what_is_computed_or_is_refused(method: str):
    base = job_of(method)
    assert idle(base, ("algorithm",) if as_fedavg(method) else ("local", "algorithm")) == []


@pytest.mark.parametrize("case", CASES)
def test_an_option_beside_others_changes_what_is_computed_or_is_refused(case: str):
    base = toy.given(case.split()[0], *SHORT, *CASES[case])
    is_local = any(flag.startswith("--local.") for flag in CASES[case])
    assert idle(base, ("local", "algorithm") if is_local else ("algorithm",)) == []


RARE = (  # what rare classes need
    {"local.class_weights": "given", "local.weights": (1.0, 9.0, 2.0, 5.0)},
    {"local.focal": 2.0},
    {"local.balanced_batches": True},
)


@pytest.mark.parametrize("method", [m for m in ALGORITHMS if as_fedavg(m)])
def test_weights_of_classes_change_what_is_computed_or_are_refused(method: str):
    """Also for methods that train as FedAvg does, of whose [local] no other option is examined."""
    base = job_of(method, "--rounds", "2")
    usual = Usual(base)
    for fields in RARE:
        try:
            job = with_values(base, fields)
            pairs = zip(usual, measured(job), strict=True)
            assert any(toy.differences(*pair) for pair in pairs), fields
        except ConfigError:  # data with other classes
            continue


SHORT_RUNS = {  # options that a run of so many rounds is too short for, and where it is long enough
    ("mocha", "--algorithm.sigma_rounds", "4"): ("sigma_rounds = 4", 3, 4),
    ("fedasync", "--algorithm.decay", "0.5", "--algorithm.decay_at", "1,3"): (
        "decay_at = (1",
        3,
        4,
    ),
    ("semicyclic", "--algorithm.blocks", "3", "--algorithm.block_rounds", "2"): (
        "blocks = 3",
        4,
        5,
    ),
}


@pytest.mark.parametrize("flags", SHORT_RUNS)
def test_a_run_that_ends_before_an_option_has_an_effect_is_a_warning(flags, capsys):
    words, short, enough = SHORT_RUNS[flags]
    for rounds, warned in ((short, True), (enough, False)):
        toy.start(
            Serial(),
            toy.given(flags[0], *BY_METHOD.get(flags[0], ()), *flags[1:], "--rounds", str(rounds)),
        )
        text = f"algorithm.{words}"
        err = capsys.readouterr().err
        assert (text in err and f"it needs at least {enough} rounds" in err) == warned
