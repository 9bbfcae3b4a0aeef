"""Models after a method's final step: saved beside the last checkpoint, and given to users."""

import errno
from pathlib import Path

import numpy as np
import pytest

import hpcfed
from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms import load as algorithm
from hpcfed.algorithms.base import Method
from hpcfed.comm import Comm, Serial
from hpcfed.core.errors import CheckpointError
from hpcfed.core.exit_status import DONE, RESUME_ME
from hpcfed.engine.evaluation import Evaluation
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.run import run as run_job
from hpcfed.machine.heartbeat import Stopped
from hpcfed.models.predictions import Ensemble
from hpcfed.results.trained import probe
from hpcfed.results.trained.export import models
from hpcfed.storage import checkpoint, digest, names
from hpcfed.storage import probe as stored_probe
from hpcfed.storage.record import load
from tests.contract import toy
from tests.contract.models import accuracy_on, loss_on, with_tests
from tests.saving import refusing
from tests.threads import spmd

AVERAGED = ("--algorithm.average_every", "1", "--algorithm.average_from", "0")
FINAL = {  # methods with a final step, and what they need for it
    "afl": (),
    "aruba": ("--algorithm.final_epochs", "1"),
    "ccvr": (),
    "fedasam": AVERAGED,
    "fedbabu": (),
    "fedexp": (),
    "fedhenn": ("--algorithm.setting", "homogeneous"),
    "fedrep": (),
    "fedsam": AVERAGED,
}


FINAL_SCORES = ("accuracy", "accuracy_received", "loss", "loss_received")


def with_end(out: Path, method: str, *flags: str, comm: Comm | None = None) -> int:
    """Run a job with its end, the final step, on one rank or on those of `comm`."""
    words = ("--models.mix", "mlp", *FINAL.get(method, ()), "--out", str(out), "--quiet", "true")
    return run_job(toy.job(method, *words, *flags), comm or Serial())


def saved_items(index: Path) -> dict[str, np.ndarray]:
    """All values that a checkpoint, or a file of final models, has of the server and clients."""
    with checkpoint.Reader(index) as source:
        items = source.names("state") + source.names("clients/")
        return {path: array for name in items for path, _, array in source.leaves(name)}


def test_methods_with_a_final_step_are_those_of_this_file():
    changes = {m for m in ALGORITHMS if algorithm(m).finish is not Method.finish}
    assert changes == FINAL.keys()


@pytest.mark.parametrize("method", FINAL)
def test_models_after_a_final_step_are_as_accurate_as_its_scores(method, tmp_path):
    """Those of the clients, and the global model, which they receive.

    A few test examples do not tell models apart, and so their loss is compared too.
    """
    run = tmp_path / "run"
    assert with_end(run, method, "--rounds", "1") == DONE
    record = load(run)
    final = {name: record.arrays[f"final/{name}"] for name in FINAL_SCORES}
    for k in with_tests():
        model = hpcfed.load_model(run, client=k)
        assert (model.about.after_final, model.about.before_final) == (True, False)
        assert model.about.counted == "final/accuracy"
        assert accuracy_on(model, k) == final["accuracy"][k]
        assert loss_on(model, k) == pytest.approx(final["loss"][k], rel=1e-5)
        common = hpcfed.load_model(run)
        if not isinstance(common, Ensemble):
            assert common.about.counted == "final/accuracy_received"
            assert accuracy_on(common, k) == final["accuracy_received"][k]
            assert loss_on(common, k) == pytest.approx(final["loss_received"][k], rel=1e-5)
    said = models(run, out=tmp_path / "out")
    assert "after round 1 and the method's final step, each as it was scored then" in said
    file = hpcfed.load_model(names.model_file(tmp_path / "out", 2))
    assert file.about == hpcfed.load_model(run, client=2).about


def test_models_of_a_method_without_a_final_step_are_those_of_its_last_round(tmp_path):
    run = tmp_path / "run"
    assert with_end(run, "fedavg", "--rounds", "1") == DONE
    about = hpcfed.load_model(run, client=2).about
    assert (about.after_final, about.before_final, about.moment) == (False, False, "after round 1")
    assert checkpoint.with_models(run) == checkpoint.saved(run)


@pytest.mark.parametrize("method", ["fedbabu", "fedexp"])
def test_a_run_that_is_extended_after_its_final_step_has_the_bits_of_one_run(method, tmp_path):
    """Also if its final models are asked for as the checkpoint, which is refused."""
    long, short = tmp_path / "long", tmp_path / "short"
    assert with_end(long, method, "--rounds", "2") == with_end(short, method, "--rounds", "1") == 0
    with pytest.raises(CheckpointError, match=rf"no run continues.*--resume {short}"):
        with_end(short, method, "--rounds", "2", "--resume", str(names.final_file(short, 1)))
    assert with_end(short, method, "--rounds", "2", "--resume", str(short)) == DONE
    assert digest.digest(short) == digest.digest(long)
    assert not names.final_file(short, 1).exists()
    ours, theirs = (saved_items(names.final_file(run, 2)) for run in (short, long))
    assert toy.differences(ours, theirs) == []
    assert hpcfed.load_model(short, client=2).about.moment.startswith("after round 2 and")


def test_final_models_are_gone_before_an_extended_run_does_its_first_round(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with_end(run, "fedbabu", "--rounds", "1")

    def step(self, flags=dict):
        assert not list(names.checkpoint_folder(run).glob("final-*"))
        assert hpcfed.load_model(run, client=2).about.moment == "after round 1"
        raise KeyError("stop here")

    monkeypatch.setattr(Rounds, "step", step)
    with pytest.raises(KeyError, match="stop here"):
        with_end(run, "fedbabu", "--rounds", "2", "--resume", str(run))


@pytest.mark.parametrize("where", ["before it", "in its evaluation"])
def test_a_run_that_ends_in_its_final_step_has_the_same_final_models_when_resumed(
    where, tmp_path, monkeypatch
):
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    with_end(unbroken, "fedrep", "--rounds", "1")

    def end(*_: object, **__: object) -> None:
        raise Stopped if where != "before it" else KeyError("dies here")

    with monkeypatch.context() as patch:
        if where == "before it":
            patch.setattr(Rounds, "finish", end)
            with pytest.raises(KeyError):
                with_end(run, "fedrep", "--rounds", "1")
            assert not names.final_file(run, 1).exists()
        else:
            patch.setattr(Evaluation, "after_last_round", end)
            assert with_end(run, "fedrep", "--rounds", "1") == RESUME_ME
            assert names.final_file(run, 1).exists()
    assert with_end(run, "fedrep", "--rounds", "1", "--resume", str(run)) == DONE
    assert digest.digest(run) == digest.digest(unbroken)
    ours, theirs = (saved_items(names.final_file(place, 1)) for place in (run, unbroken))
    assert toy.differences(ours, theirs) == []


@pytest.mark.parametrize("method", ["ccvr", "fedrep"])
def test_final_models_have_the_same_bits_on_three_ranks(method, tmp_path):
    one, three = tmp_path / "one", tmp_path / "three"
    with_end(one, method, "--rounds", "1")
    spmd(3, lambda comm: with_end(three, method, "--rounds", "1", comm=comm))
    ours, theirs = (saved_items(names.final_file(run, 1)) for run in (three, one))
    assert len(list(names.parts_folder(names.final_file(three, 1)).iterdir())) == 3
    assert toy.differences(ours, theirs) == []


@pytest.mark.parametrize("harm", ["damaged", "part missing", "missing"])
def test_without_intact_final_models_those_of_the_last_round_are_given_and_say_so(harm, tmp_path):
    run = tmp_path / "run"
    with_end(run, "fedbabu", "--rounds", "1")
    index = names.final_file(run, 1)
    if harm == "damaged":
        index.write_bytes(index.read_bytes()[:-9])
    elif harm == "missing":
        checkpoint.remove(index)
    else:
        (names.parts_folder(index) / "rank-0000.h5").unlink()
    assert "after round 1, before the method's final step" in models(run, out=tmp_path / "out")
    about = hpcfed.load_model(run, client=2).about
    assert (about.before_final, about.after_final) == (True, False)


def test_a_disk_that_refuses_the_final_models_loses_nothing_and_the_run_is_to_be_resumed(
    tmp_path, monkeypatch, capfd
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        refusing(patch, errno.ENOSPC, lambda path: "final-" in str(path))
        assert with_end(run, "fedbabu", "--rounds", "1") == RESUME_ME
    said = capfd.readouterr().err
    assert "the models after the method's final step are not saved" in said
    assert f"make room, and continue with --resume {run}" in said
    assert [path.name for path in checkpoint.with_models(run)] == ["round-000001.h5"]
    assert with_end(run, "fedbabu", "--rounds", "1", "--resume", str(run)) == DONE
    assert hpcfed.load_model(run, client=2).about.after_final


def test_the_probe_is_of_the_models_after_the_final_step_and_is_up_to_date(tmp_path):
    run = tmp_path / "run"
    with_end(run, "fedbabu", "--rounds", "1")
    assert "after round 1 and the method's final step, 5 test" in probe.command(run, examples=5)
    assert stored_probe.current(run) is not None
    with_end(run, "fedbabu", "--rounds", "1", "--resume", str(run))
    checkpoint.remove(names.final_file(run, 1))
    assert stored_probe.current(run) is None


def test_models_that_are_adapted_after_the_final_step_are_not_saved_a_second_time(tmp_path):
    run = tmp_path / "run"
    assert with_end(run, "fedbabu", "--rounds", "1", "--adapt.how", "head") == DONE
    assert checkpoint.with_models(run) == checkpoint.saved(run)
    assert hpcfed.load_model(run, client=2).about.before_final
