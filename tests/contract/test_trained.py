"""Trained models taken from runs predict what the run's evaluation counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hpcfed
from hpcfed.algorithms.global_model.fedavg import FedAvg
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.engine.rounds import Rounds
from hpcfed.results.trained import probe
from hpcfed.results.trained.export import models
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from hpcfed.storage import checkpoint, names
from hpcfed.storage.results import load as load_record
from tests import limits
from tests.contract import toy
from tests.contract.models import counted, load, loss_on, saved_run, with_tests

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "method, flags", [(m, ("--algorithm.inference", "proxy")) for m in ("fml", "fedkd", "fedkemf")]
)
def test_a_loaded_model_is_as_accurate_as_the_run_recorded(method, flags, tmp_path):
    """Where a method predicts with more than one model; the contract does it for every method."""
    run = saved_run(tmp_path / "run", method, *flags, rounds=1)
    record = load(run)
    for model in from_newest(run, lambda source: list(Saved(run, source, with_tests()).models())):
        accuracy, recorded = counted(model, record)
        assert accuracy == recorded and not model.training, (
            f"client {model.about.client}, {model.about.counted}"
        )


def train_first_client(going: Rounds) -> None:
    """Do what a signal saves within a round: the training of client 0, and of no other."""
    client = going.fed.clients[0]
    client.load(client.params() * 2.0)
    going.fed.replay.of(0)


def test_clients_models_within_a_round_are_refused_and_the_global_model_is_not(tmp_path):
    mix = ("--models.mix", "small")
    run = saved_run(tmp_path / "run", "ditto", *mix, before_save=train_first_client)
    for use in (
        lambda: models(run, out=tmp_path / "out"),
        lambda: hpcfed.load_model(run, client=0),
        lambda: probe.make(run, examples=5),
    ):
        with pytest.raises(CheckpointError, match=f"within round 3.*--resume {run} first"):
            use()
    assert not (tmp_path / "out").exists()
    hpcfed.load_model(run)
    stateless = saved_run(tmp_path / "fedavg", "fedavg", *mix, before_save=train_first_client)
    hpcfed.load_model(stateless, client=0)


def images() -> torch.Tensor:
    return torch.from_numpy(toy.blobs(20, toy.rng.stream(3, "images"))[0])


@pytest.mark.parametrize("method", ["apfl", "depthfl", "fedcp", "fedrod", "gpfl"])
def test_a_model_with_added_parts_has_the_loss_that_the_run_recorded(method, tmp_path):
    """Body and head alone would have another one."""
    mix = () if method == "depthfl" else ("--models.mix", "small")
    run = saved_run(tmp_path / "run", method, "--participation", "1", *mix)
    record = load_record(run)
    trained = from_newest(run, lambda source: list(Saved(run, source, with_tests()).models()))
    assert trained
    for model in trained:
        k, column = model.about.client, model.about.counted.replace("accuracy", "loss")
        assert loss_on(model, k) == pytest.approx(
            record.column(column)[model.about.rounds - 1][k], rel=1e-5
        )


def test_an_exported_file_predicts_the_same_bits_and_describes_itself(tmp_path, monkeypatch):
    run = saved_run(tmp_path / "run", "fedproto")
    monkeypatch.setenv("HPCFED_SEED", "7")  # of another run: this one's job is what its results say
    text = models(run, clients="0,3", out=tmp_path / "out")
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["client-0000.safetensors", "client-0003.safetensors"]
    assert "models of 2 clients after round 2" in text
    file = hpcfed.load_model(tmp_path / "out/client-0003.safetensors")
    here = hpcfed.load_model(str(run), client=3)
    assert torch.equal(file(images()), here(images()))
    assert torch.equal(file.represent(images()), here.represent(images()))
    assert file.about == here.about and file.about.job["algorithm"]["name"] == "fedproto"
    assert file.about.job["seed"] == 0
    assert (file.about.shape, file.about.classes, file.about.kind) == (
        toy.SHAPE,
        tuple("0123"),
        "prototypes",
    )


ALONE = """
import sys, torch, hpcfed
for path in sys.argv[1:]:
    model = hpcfed.load_model(path, client=3)
    print(model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape)
    loaded = ("h5py", "mpi4py", "pydantic")
    print(sorted(name for name in sys.modules if name in loaded or name.startswith("hpcfed.")))
"""


def loaded_by(*paths: Path) -> list[list[str]]:
    """The modules that a process has after it took a model from each of these, in this order."""
    words = [sys.executable, "-c", ALONE, *map(str, paths)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=limits.COMMAND
    )
    lines = done.stdout.splitlines()
    assert lines[::2] == ["torch.Size([2, 4])"] * len(paths)
    return [json.loads(modules.replace("'", '"')) for modules in lines[1::2]]


def test_a_file_needs_models_alone_and_a_run_neither_mpi_nor_engine(tmp_path):
    run = saved_run(tmp_path / "run", "fedavg", "--models.mix", "cnn", rounds=1)
    models(run, out=tmp_path / "out")
    alone, from_run = loaded_by(names.model_file(tmp_path / "out", 3), run)
    rooms = {name.split(".")[1] for name in alone if name.startswith("hpcfed.")}
    assert rooms <= {"config", "core", "models", "results", "tasks"}
    config = {name for name in alone if name.startswith("hpcfed.config.")}
    assert config <= {"hpcfed.config.architectures"}
    assert not {"h5py", "mpi4py", "pydantic"} & set(alone)
    assert "mpi4py" not in from_run and not [
        name for name in from_run if name.startswith("hpcfed.engine")
    ]


def test_the_newest_intact_checkpoint_counts(tmp_path):
    run = saved_run(tmp_path / "run", "local", rounds=3, saves=(1, 2))
    assert hpcfed.load_model(run, client=4).about.rounds == 2  # the run has gone on since
    for part in names.parts_folder(names.checkpoint_file(run, 2)).glob("*.h5"):
        content = bytearray(part.read_bytes())
        content[len(content) // 2 :] = b"\0" * (len(content) - len(content) // 2)
        part.write_bytes(content)
    model = hpcfed.load_model(run, client=4)
    assert model.about.rounds == 1 and len(set(counted(model, load(run)))) == 1
    for index in checkpoint.saved(run):
        index.unlink()
    with pytest.raises(
        CheckpointError, match=r"no checkpoint here.*check the path, or wait for the first one"
    ):
        hpcfed.load_model(run, client=4)


class Guess(FedAvg):
    """A method that predicts in its own way."""

    def predictor(self, fed, client, state):
        return lambda x: client.model(x).roll(1, 1)


def test_ambiguous_values_are_refused_in_words(tmp_path):
    name = f"{__name__}:Guess"
    run = saved_run(tmp_path / "run", name, "--models.mix", "mlp", rounds=1)
    with pytest.raises(ConfigError, match=r"Guess predicts in its own way .*cannot be exported"):
        models(run, out=tmp_path / "out", own=[name])
    with pytest.raises(ConfigError, match=r"client 6: the run has 6 clients, 0 to 5"):
        hpcfed.load_model(run, client=6, own=[name])
    with pytest.raises(ConfigError, match=r"--clients a: give numbers"):
        models(run, clients="a")


def test_a_file_that_holds_no_such_model_is_refused_in_words(tmp_path):
    run = saved_run(tmp_path / "run", "local", rounds=1)
    models(run, clients="1", out=tmp_path)
    with pytest.raises(ConfigError, match="is the model of client 1, not of client 3"):
        hpcfed.load_model(tmp_path / "client-0001.safetensors", client=3)
    for content in (b"", b"no tensors at all"):
        (tmp_path / "other.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match="give a file that `hpcfed models` wrote"):
            hpcfed.load_model(tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        hpcfed.load_model(tmp_path / "absent.safetensors")
