"""[adapt]: what clients make of their models after the last round, with any method."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.comm import Comm, Serial
from hpcfed.core.errors import ConfigError, DivergedError
from hpcfed.engine.run import run_here
from hpcfed.storage.record import load as load_record
from tests.contract import toy
from tests.threads import spmd

SGD = ("--local.optimiser", "sgd", "--local.lr", "0.1")
DROP = ("--run.on_client_fault", "drop")
ONE_STEP = (*SGD, "--local.batch", "1000", "--models.mix", "mlp")


def adapted(method: str, how: str, *flags: str, comm: Comm | None = None):
    """The record of what followed two rounds, the adapted models of this rank, those of before."""
    more = ("--data.public", "32") if how == "ewc" else ()
    if how == "ewc":
        more += ("--data.public_source", str(toy.folder() / "public.npz"))
    job = toy.job(method, "--rounds", "2", "--adapt.how", how, *more, *flags)
    rounds = toy.start(comm or Serial(), job)
    for _ in range(2):
        rounds.step()
    models = {}
    rounds.evaluation.save = lambda client: models.update({client.id: client.params()})
    state = rounds.state
    return rounds.finish(), models, state


@pytest.mark.parametrize("how", ["all", "head", "ewc", "distil"])
def test_without_epochs_the_received_model_remains(how: str):
    final, models, state = adapted("fedavg", how, "--adapt.epochs", "0")
    for name in ("accuracy", "loss"):
        assert toy.differences(final[name], final[f"{name}_received"]) == []
    assert all(toy.differences(model, state) == [] for model in models.values())


@pytest.mark.parametrize("how, field", [("ewc", "lam"), ("distil", "alpha")])
def test_without_its_term_adaptation_is_fine_tuning(how: str, field: str):
    _, ours, _ = adapted("fedavg", how, f"--adapt.{field}", "0")
    public = ("--data.public", "32", "--data.public_source", str(toy.folder() / "public.npz"))
    _, theirs, before = adapted("fedavg", "all", *(public if how == "ewc" else ()))
    assert toy.differences(ours, theirs) == []
    assert all(toy.differences(model, before) for model in theirs.values())


def test_the_penalty_has_no_gradient_in_the_first_step_and_holds_back_later_ones():
    adapted_models = adapted("fedavg", "ewc", *ONE_STEP)[1]
    public = ("--data.public", "32", "--data.public_source", str(toy.folder() / "public.npz"))
    assert toy.differences(adapted_models, adapted("fedavg", "all", *ONE_STEP, *public)[1]) == []
    flags = (*ONE_STEP, "--adapt.epochs", "5", "--adapt.lam", "20")
    _, penalised, w = adapted("fedavg", "ewc", *flags)
    free = adapted("fedavg", "all", *ONE_STEP, *public, "--adapt.epochs", "5")[1]
    distances = [sum((m[5][n] - w[n]).norm() for n in w) for m in (penalised, free)]
    assert distances[0] < distances[1]


def test_distillation_without_labels_does_not_move():
    _, models, w = adapted("fedavg", "distil", *ONE_STEP, "--adapt.alpha", "1")
    for model in models.values():
        assert all(torch.allclose(model[n], w[n], atol=1e-6) for n in w)


def test_the_head_alone_is_trained_and_batch_statistics_stay():
    _, models, w = adapted("fedavg", "head")
    for model in models.values():
        changed = {name for name in w if not torch.equal(model[name], w[name])}
        assert changed == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    "method", ["ditto", "fedrep", "fedproto", "fml", "perfedavg", "semicyclic"]
)
def test_clients_of_any_method_adapt_the_model_that_they_predict_with(method: str):
    final, models, _ = adapted(method, "all", *SGD)
    assert sorted(models) == list(range(6)) and np.isfinite(final["loss"][:5]).all()
    assert toy.differences(
        final["loss"], adapted(method, "all", *SGD, "--adapt.epochs", "0")[0]["loss"]
    )


def test_a_client_whose_adaptation_diverges_keeps_its_model_and_has_no_score(capsys):
    flags = (*ONE_STEP, "--adapt.lr", "1e30", "--adapt.epochs", "3")
    with pytest.raises(DivergedError, match="in the adaptation after the last round.*\n.*adapt.lr"):
        adapted("fedavg", "all", *flags)
    job = toy.job("fedavg", "--rounds", "1", "--adapt.how", "all", *flags, *DROP)
    rounds = toy.start(Serial(), job)
    rounds.step()
    scores = rounds.finish()
    assert np.isnan(scores["accuracy"]).all() and np.isfinite(scores["accuracy_received"][:5]).all()
    assert capsys.readouterr().err.count("it keeps its model and has no score") == 6


def test_adaptation_has_the_same_bits_on_two_ranks():
    distilled = adapted("fedavg", "distil")[0]
    for spread in spmd(2, lambda comm: adapted("fedavg", "distil", comm=comm)[0]):
        assert toy.differences(spread, distilled) == []


def test_adapted_models_are_saved_and_are_as_accurate_as_recorded(tmp_path: Path):
    out = tmp_path / "run"
    flags = ("--rounds", "1", "--adapt.how", "all", "--adapt.save", "true", "--out", str(out))
    run_here(toy.job("fedavg", *flags), Serial())
    record = load_record(out)
    data = np.load(toy.folder() / "data.npz")
    test = toy.partition(data["y_train"]).test
    for k in (0, 3):
        model = hpcfed.load_model(out / "adapted" / f"client-{k:04d}.safetensors")
        answers = model(torch.from_numpy(data["x_test"][test[k]])).argmax(1).numpy()
        share = (answers == data["y_test"][test[k]]).mean()
        assert share == pytest.approx(record.arrays["final/accuracy"][k])
        assert model.about.counted == "final/accuracy"


def test_adaptation_without_its_requirements_or_effect_is_refused():
    with pytest.raises(ConfigError, match="needs public data"):
        toy.job("fedavg", "--adapt.how", "ewc")
    with pytest.raises(ConfigError, match=r"adapt.tau = 2.0 has no effect: adapt.how = 'all'"):
        toy.job("fedavg", "--adapt.how", "all", "--adapt.tau", "2")
