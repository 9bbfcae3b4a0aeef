"""A probe holds what the trained models of a run answer to the same test examples."""

import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.core.errors import ConfigError, DamagedError
from hpcfed.report.figures.models import compare_clients, count_confusions, load_probe
from hpcfed.report.figures.runs import load_runs
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from hpcfed.results.trained.probe import command, make
from hpcfed.storage import checkpoint, names, probe
from tests.contract import toy
from tests.contract.models import saved_run
from tests.contract.test_predict import patients, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three rounds with a checkpoint after each, of clients with different models."""
    folder = tmp_path_factory.mktemp("probe") / "run"
    return saved_run(folder, "fedclassavg", "--checkpoint.keep", "3", rounds=3, saves=(1, 2, 3))


def test_it_holds_each_clients_answers(run):
    text = command(run, examples=20)
    assert text == f"{names.probe_file(run)}: 6 clients after round 3, 20 test examples"
    stored = probe.read(run)
    assert (
        stored.predictions.shape == (6, 20)
        and [z.shape for z in stored.representations] == [(20, toy.D)] * 6
    )
    assert stored.header["architectures"][:2] == ["small", "mlp"] and stored.header[
        "classes"
    ] == list("0123")
    with np.load(toy.folder() / "data.npz") as data, torch.no_grad():
        assert (stored.labels == data["y_test"][stored.rows]).all() and len(
            set(stored.rows.tolist())
        ) == 20
        x = torch.from_numpy(data["x_test"][stored.rows])
        for k in range(6):
            model = hpcfed.load_model(run, client=k)
            assert torch.equal(model.represent(x), torch.from_numpy(stored.representations[k]))
            assert (model(x).argmax(1).numpy() == stored.predictions[k]).all()


def test_all_clients_of_all_runs_have_the_conductance_of_the_same_images(run, tmp_path):
    answers = make(run, examples=20)
    assert [c.shape for c in answers.conductance] == [(toy.CLASSES, toy.D)] * 6
    with np.load(toy.folder() / "data.npz") as data:
        assert (answers.image_labels == data["y_test"][answers.images]).all()
    assert answers.image_labels.tolist() == list(range(toy.CLASSES))
    seed = saved_run(tmp_path / "seed", "local", "--seed", "1", rounds=1)
    other = make(seed, examples=20)
    assert (other.images == answers.images).all() and (other.rows != answers.rows).any()


def test_clients_are_compared_over_the_checkpoints_that_are_kept(run):
    answers = make(run, examples=20)
    assert answers.rounds.tolist() == [1, 2, 3] and answers.cka.shape == (3, 6, 6)
    assert (
        np.allclose(answers.cka[:, range(6), range(6)], 1)
        and (answers.cka >= 0).all()
        and (answers.cka < 1.001).all()
    )
    assert not np.allclose(answers.cka[0], answers.cka[2])


@pytest.mark.parametrize("method", ["apfl", "depthfl", "fedcp", "fedmrl", "fedrod", "gpfl"])
def test_models_with_added_parts_are_probed_as_they_predict(method, tmp_path):
    mix = () if method == "depthfl" else ("--models.mix", "small")
    run = saved_run(tmp_path / "run", method, "--participation", "1", *mix, rounds=1)
    answers = make(run, examples=20)
    with np.load(toy.folder() / "data.npz") as data, torch.no_grad():
        x = torch.from_numpy(data["x_test"][answers.rows])
    models = from_newest(run, lambda source: list(Saved(run, source).models()))
    wanted = [model(x).argmax(1).tolist() for model in models]
    assert answers.predictions.tolist() == wanted
    is_known = [np.isfinite(values).all() for values in answers.conductance]
    assert any(is_known) == (method not in ("apfl", "depthfl", "fedmrl"))


def test_the_examples_of_a_run_without_classes_are_counted_too(tmp_path):
    roles = ("--columns.target", "cost", "--columns.inputs", "age,job", "--data.partition", "iid")
    run = trained(tmp_path, patients(tmp_path), *roles)
    assert command(run, examples=20).endswith("4 clients after round 2, 20 test examples")


def test_the_same_seed_draws_the_same_examples_for_all_methods(run, tmp_path):
    alone = saved_run(tmp_path / "alone", "local", rounds=1)
    assert (make(alone, 20).rows == make(run, 20).rows).all()


def test_figures_make_a_probe_if_it_is_missing_or_older_than_the_checkpoint(tmp_path):
    run = saved_run(tmp_path / "run", "local", rounds=2, saves=(1, 2))
    late = names.checkpoint_file(run, 2)
    late.rename(tmp_path / "late.h5")
    (one,) = load_runs([run])
    assert load_probe(one, "cka").header["rounds"] == 1 and probe.current(run)
    (tmp_path / "late.h5").rename(late)
    assert probe.current(run) is None and load_probe(one, "cka").header["rounds"] == 2
    written_at = names.probe_file(run).stat().st_mtime_ns
    assert (
        load_probe(one, "tsne").header["rounds"] == 2
        and names.probe_file(run).stat().st_mtime_ns == written_at
    )
    for index in checkpoint.saved(run):
        checkpoint.remove(index)
    assert load_probe(one, "cka").header["rounds"] == 2  # what is left of the models
    names.probe_file(run).unlink()
    with pytest.raises(ConfigError, match=r"cka: run: .*no checkpoint here"):
        load_probe(one, "cka")
    with pytest.raises(DamagedError):
        probe.read(run)


def test_figures_ask_some_of_many_clients_and_say_so(tmp_path, monkeypatch, capsys):
    run = saved_run(tmp_path / "run", "local", rounds=1)
    monkeypatch.setattr("hpcfed.results.trained.probe.FIGURES", 2)
    answers = load_probe(*load_runs([run]), "cka")
    assert len(answers.clients) == 2 and answers.of(2) == "2 of 6 clients"
    assert "2 of 6 clients were drawn" in capsys.readouterr().err
    assert compare_clients("a", answers).some == "2 of 6 clients"
    assert "2 of 6 clients" in count_confusions("a", answers).title
    assert len(make(run).clients) == 6  # asked for by itself


def test_a_probe_without_examples_is_refused(run):
    with pytest.raises(ConfigError, match="--examples 0: take at least 1"):
        make(run, examples=0)
