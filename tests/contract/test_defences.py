"""Robust rules in the place of means; `test_mechanisms.py` examines them with every method."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.algorithms.widths.tiers import tier_shares
from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.config.methods import ALGORITHMS, kind_of
from hpcfed.core import payload
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.federation.transforms.defence import robust_mean
from tests.contract import toy
from tests.threads import spmd

SHORT = ("--rounds", "3", "--evaluate.every", "1000", "--evaluate.before", "false")
ALL = ("--participation", "1")
GLOBAL = [name for name, one in ALGORITHMS.items() if kind_of(one) == kind_of(ALGORITHMS["fedavg"])]
# with several values in one mean, a mean of its own, models that take turns, a quotient of two
APART = ("fedrare", "fedlaw", "cyclic", "semicyclic", "qfedavg")
BOUNDED = ["fedsgd", *(name for name in GLOBAL if name not in APART)]


def job(method: str, rule: tuple[str, ...], *flags: str):
    words = (*SHORT, *ALL, *toy.different(method), "--defence.by", *rule, *flags)
    return toy.job(method, *words)


@pytest.mark.parametrize(
    ("rule", "flags"),
    [
        (("norm-bound", "--defence.clip", "1000"), ()),
        (("geometric-median", "--defence.nu", "1000"), ()),
        (("centred-clipping", "--defence.clip", "1000"), ("--algorithm.weighting", "uniform")),
        (("median", "--defence.bucket", "6"), ()),
    ],
)
def test_a_rule_that_nothing_exceeds_is_the_mean(rule: tuple[str, ...], flags: tuple[str, ...]):
    plain = toy.run(Serial(), toy.job("fedavg", *SHORT, *ALL, *flags), rounds=1)
    robust = toy.run(Serial(), job("fedavg", rule, *flags), rounds=1)
    for name, value in plain.state.items():
        assert torch.allclose(value, robust.state[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("method", BOUNDED)
def test_updates_of_no_length_leave_the_model_as_it_is(method: str):
    """Whatever clients send, models or changes, the rule sees how they change the model."""
    half = ("norm-bound", "--defence.clip", "1e-6", "--participation", "0.5")
    rounds = toy.start(Serial(), job(method, half))
    before = rounds.algorithm.model(rounds.state).map(torch.clone)
    for _ in range(2):
        rounds.step()
    after = rounds.algorithm.model(rounds.state).pick(rounds.fed.trainable)
    for name, value in after.items():
        assert torch.allclose(value, before[name], rtol=0, atol=1e-5), name


def compared_in(settings) -> list[tuple[set[str], set[str]]]:
    """The tensors of each mean of a run that a rule compares, and those that it does not."""
    means, rounds = [], toy.start(Serial(), settings)

    def note(values: robust_mean.OneMean) -> Params:
        means.append((set(values.compared), set(values.keep) - values.compared))
        return compute(values)

    compute = robust_mean.OneMean.compute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robust_mean.OneMean, "compute", note)
        rounds.step()
    return means


def test_tensors_that_the_server_names_in_its_own_way_are_compared_too():
    """But not a number that clients send beside them, nor statistics of batch normalisation."""
    exits = "exits.4.body.last.0.weight", "exits.4.head.weight", "exits.2.head.weight"
    rows = (
        ("depthfl", ("--models.mix", "resmlp-2,resmlp-4"), exits, ()),
        ("pfedbayes", (), ("head.weight", "rho/head.weight"), ("body.1.running_mean",)),
        ("fednova", (), ("head.weight",), ("gradients", "body.1.running_var")),
    )
    for method, flags, compared, others in rows:
        ((inside, outside),) = compared_in(job(method, ("norm-bound",), *flags))
        assert inside.issuperset(compared), method
        assert outside.issuperset(others), method


def test_a_bound_on_lengths_that_nothing_exceeds_is_the_mean_in_all_tensors():
    for method, mix in (("depthfl", "resmlp-2,resmlp-4"), ("pfedbayes", "mlp")):
        models = []
        for defence in ((), ("--defence.by", "norm-bound", "--defence.clip", "1e9")):
            words = (*SHORT, *ALL, "--models.mix", mix, *defence)
            rounds = toy.start(Serial(), toy.job(method, *words))
            rounds.step()
            models.append(rounds.algorithm.model(rounds.state))
        for name, value in models[0].items():
            assert torch.allclose(value, models[1][name], rtol=1e-5, atol=1e-6), (method, name)


def test_centred_clipping_begins_with_no_update_where_the_server_has_nothing_yet():
    """Nobody has sent anything before the first round, so that the old value is nan."""
    rule = ("centred-clipping", "--defence.clip", "0.1", "--participation", "0.5")
    for method in ("feddf", "fedsynth"):
        rounds = toy.start(Serial(), job(method, rule))
        for _ in range(2):
            rounds.step()
        assert all(value.isfinite().all() for value in tensors_of(rounds.state)), method


def test_the_noise_of_flame_leaves_no_negative_variance_to_draw_models_from():
    for flags in ((), ("--algorithm.posterior", "directions")):
        rounds = toy.start(Serial(), job("fedbe", ("flame", "--defence.noise", "1"), *flags))
        rounds.step()
        assert all(value.isfinite().all() for value in tensors_of(rounds.state)), flags


def tensors_of(state) -> list[torch.Tensor]:
    return [value for _, value in payload.tensors(state)]


@pytest.mark.parametrize("rule", ["median", "krum", "geometric-median", "norm-bound"])
def test_clients_that_send_the_same_leave_it_as_it_is(rule: str):
    """With so small a learning rate every client sends what it received."""
    flags = ("--local.lr", "1e-30", "--models.mix", "mlp")
    rounds = toy.start(Serial(), job("fedavg", (rule,), *flags))
    before = {name: value.clone() for name, value in rounds.state.items()}
    rounds.step()
    assert toy.differences(before, dict(rounds.state)) == []


def public_examples() -> tuple[str, ...]:
    return ("--data.public", "16", "--data.public_source", str(toy.folder() / "public.npz"))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedopt"])
def test_the_servers_own_update_is_the_same_on_any_ranks(method: str):
    settings = job(method, ("fltrust",), *public_examples())
    alone = toy.run(Serial(), settings, rounds=2)
    for outcome in spmd(2, lambda comm: toy.run(comm, settings, rounds=2)):
        assert toy.differences(outcome, alone) == []


def test_a_server_that_averages_other_values_than_models_has_no_update_of_its_own_for_them():
    after_rounds = ("fedhenn", "--algorithm.setting", "homogeneous", "--models.mix", "small")
    for words, reason in (
        (("scaffold",), "or changes"),
        (("fedclassavg",), "complete model"),
        (("ccvr",), "other means"),
        (after_rounds, "other means"),
    ):
        with pytest.raises(ConfigError, match=reason):
            toy.start(Serial(), job(words[0], ("fltrust",), *public_examples(), *words[1:]))


@pytest.mark.parametrize("method", ["fedsgd", "fednova", "mifa", "fedsplit", "afl"])
def test_a_server_whose_clients_send_changes_has_no_model_to_train(method: str):
    with pytest.raises(ConfigError, match="averages a part of it or changes"):
        toy.run(Serial(), job(method, ("fltrust",), *public_examples()), rounds=1)


@pytest.mark.parametrize("method", ["fedlc", "fedrs"])
def test_the_server_counts_the_labels_of_its_own_examples(method: str):
    row = toy.run(Serial(), job(method, ("fltrust",), *public_examples()), rounds=1).rows[0]
    assert np.isfinite(row["clients/train_loss"]).all()


@pytest.mark.parametrize("rule", ["median", "krum"])
@pytest.mark.parametrize("method", ["inclusivefl", "depthfl"])
def test_no_rule_chooses_among_the_shares_of_depths(method: str, rule: str):
    """Clients of each depth have a third of the weight, whatever the rule does to models."""
    flags = ("--models.mix", "resmlp-2,resmlp-4,resmlp-8", "--algorithm.weighting", "uniform")
    rounds = toy.start(Serial(), job(method, (rule,), *flags))
    shares = tier_shares(rounds.algorithm, rounds.fed, list(range(6)))
    assert list(shares.values()) == [1 / 3] * 3


def test_the_server_cannot_train_on_examples_of_other_classes(tmp_path: Path):
    with np.load(toy.folder() / "public.npz") as stored:
        arrays = {name: x + toy.CLASSES if name[0] == "y" else x for name, x in stored.items()}
    np.savez(tmp_path / "others.npz", **arrays)
    public = ("--data.public", "16", "--data.public_source", str(tmp_path / "others.npz"))
    with pytest.raises(ConfigError, match="other classes"):
        toy.run(Serial(), job("fedavg", ("fltrust",), *public), rounds=1)


def test_a_median_of_prototypes_is_that_of_the_clients_that_have_the_class():
    rounds = toy.start(Serial(), job("fedproto", ("median",)))
    rounds.step()
    assert all(torch.isfinite(value).all() for value in rounds.state.values())


@pytest.mark.parametrize(
    ("method", "covered", "single"),
    [
        ("fedpac", "body, proto", "h, head, v"),
        ("afl", "the means", "loss"),
        ("otfusion", "the means", "single uploads"),
        ("fedavg", "", ""),
        ("fedproto", "", ""),
        ("fedmd", "", ""),
    ],
)
def test_a_run_says_which_parts_of_uploads_no_rule_covers(
    method: str, covered: str, single: str, capsys: pytest.CaptureFixture[str]
):
    toy.start(Serial(), job(method, ("median",)))
    message = f"covers {covered}; the server of {method} uses {single} as clients send them"
    assert ("covers" in (text := capsys.readouterr().err)) == bool(single)
    assert not single or message in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--defence.by", "krum", "--clients", "4", "--defence.attackers", "0.3"), "needs 2 f"),
        (("--defence.by", "bulyan", "--clients", "10", "--defence.attackers", "0.2"), "4 f"),
        (("--defence.by", "trimmed-mean", "--clients", "4"), "no client"),
        (
            ("--defence.by", "trimmed-mean", "--clients", "10", "--defence.bucket", "4"),
            "5 groups against f = 2 attackers, but a cohort has 3 groups of 10 clients",
        ),
        (("--defence.by", "centred-clipping"), "set clip"),
        (("--defence.by", "krum", "--attack.by", "overweight"), "has no effect"),
        (("--defence.by", "fltrust"), "set data.public"),
        (("--defence.by", "median", "--defence.nu", "1"), "defence.nu"),
        (("--defence.by", "krum", "--algorithm.weighting", "samples"), "counts clients alike"),
        (
            ("--defence.by", "median", "--secure.by", "secagg", "--secure.bound", "9"),
            "single uploads",
        ),
        (("--defence.by", "median", "--algorithm.name", "local"), "nothing is averaged"),
        (("--defence.by", "median", "--algorithm.name", "dsgd"), "computes none"),
    ],
)
def test_settings_that_cannot_be_are_refused(flags: tuple[str, ...], message: str):
    words = ["--models.mix", "mlp", *flags]
    name = [] if "--algorithm.name" in flags else ["--algorithm.name", "fedavg"]
    with pytest.raises(ConfigError, match=message):
        toy.start(Serial(), load([*name, *words], environ={}))
