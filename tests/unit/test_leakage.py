"""`hpcfed leakage`: attacks on what the server receives of a job's or a run's clients."""

import json

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch.nn import functional as F

from hpcfed import cli
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.launch.leakage import uploads
from hpcfed.launch.leakage.command import count_labels
from hpcfed.launch.leakage.membership import infer_members
from hpcfed.launch.leakage.reconstruction import Image, explain_refusals
from hpcfed.launch.leakage.target import open_rounds, start
from hpcfed.main import main as run
from hpcfed.storage import names
from hpcfed.storage.checkpoint import Reader

JOB = """
clients = 3
rounds = 2
[algorithm]
name = "fedavg"
[data]
name = "digits"
partition = "iid"
client_limit = 40
[models]
mix = ["mlp"]
d = 16
[local]
optimiser = "sgd"
lr = 0.1
batch = 8
augment = "none"
"""
DP = ("--privacy.by", "local", "--privacy.clip", "0.1", "--algorithm.weighting", "uniform")

SYNTHETIC = (
    *("--data.name", "synthetic", "--data.partition", "natural"),
    *("--data.client_limit", "none"),
)


@pytest.fixture
def job(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    return file


def rounds_of(job, *flags):
    return open_rounds(load([str(job), *flags]))[0]


def received(job, *flags, rows=(3,), steps=1):
    rounds = rounds_of(job, *flags)
    batch = rounds.fed.clients[0].train.pick(np.array(rows))
    return rounds, batch, uploads.receive(rounds, 0, batch, steps)


def vector(params):
    return torch.cat([value.flatten() for value in params.values()])


def leakage(capsys, *words):
    assert cli.main(["leakage", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedsgd", "scaffold", "fednova", "feddyn", "fedasync"]
)
def test_what_the_server_receives_is_a_step_down_the_gradient(job, method):
    rounds, batch, upload = received(job, "--algorithm.name", method)
    model = rounds.fed.module("mlp").model
    x, y = batch.batch(np.arange(1))
    weights = {n: v.clone().requires_grad_() for n, v in upload.received.items()}
    loss = F.cross_entropy(torch.func.functional_call(model, weights, (rounds.fed.prepare(x),)), y)
    slopes = torch.autograd.grad(loss, list(weights.values()))
    for (name, change), slope in zip(upload.change.items(), slopes, strict=True):
        assert torch.allclose(change, -0.1 * slope, atol=1e-6), name


def test_a_client_is_as_it_was_and_sends_the_same_again(job):
    rounds = rounds_of(job, "--compression.by", "top-k", "--compression.min_size", "1")
    fed = rounds.fed
    batch = fed.clients[0].train.pick(np.arange(2))
    before = fed.job, fed.transforms, len(fed.clients[0].train), dict(fed.clients[0].memory)
    once, again = (vector(uploads.receive(rounds, 0, batch, 1).change) for _ in range(2))
    assert torch.equal(once, again)
    assert before == (fed.job, fed.transforms, len(fed.clients[0].train), fed.clients[0].memory)


def test_it_has_passed_compression(job):
    _, _, plain = received(job)
    flags = ("--compression.by", "top-k", "--compression.share", "0.01")
    _, _, sparse = received(job, *flags, "--compression.min_size", "1")
    values = vector(plain.change)
    largest = values.abs().topk(int(0.01 * len(values))).values[-1]
    nonzero = vector(sparse.change) != 0
    assert nonzero.sum() <= 0.01 * len(values) + 1
    assert values[nonzero].abs().min() >= largest - 1e-7


def test_a_vote_is_a_step_of_eta_in_the_direction_of_the_signs(job):
    """Statistics of batch normalisation travel as they are."""
    model = ("--models.mix", "resnet8")
    _, _, plain = received(job, *model, rows=(3, 5))
    vote = ("--compression.by", "vote", "--compression.eta", "0.01")
    rounds, _, votes = received(job, *model, *vote, rows=(3, 5))
    for name, change in votes.change.items():
        if rounds.fed.trainable(name):
            signs = torch.where(plain.change[name] < 0, -1.0, 1.0)
            assert torch.allclose(change, 0.01 * signs, atol=1e-6), name
        else:
            assert torch.allclose(change, plain.change[name], atol=1e-6), name


@pytest.mark.parametrize("by", ["local", "central"])
def test_it_is_clipped(job, by):
    flags = (*DP[:1], by, *DP[2:])
    _, _, plain = received(job)
    _, _, clipped = received(job, *flags)
    long, short = vector(plain.change), vector(clipped.change)
    assert long.norm() > 0.1
    assert short.norm() == pytest.approx(0.1, rel=1e-3)
    assert F.cosine_similarity(long, short, dim=0) > 0.999


def test_it_has_the_noise_of_a_client(job):
    _, _, upload = received(job, *DP, "--privacy.noise", "0.5")
    noise = vector(upload.change)
    assert noise.std() == pytest.approx(2 * 0.1 * 0.5, rel=0.05)


def test_noise_and_compression_lower_the_psnr(job, capsys, tmp_path):
    def mean(*flags):
        words = (job, *flags, "--images", "1", "--iterations", "50", "-o", tmp_path / "a.png")
        return np.mean([image["psnr"] for image in leakage(capsys, *words)["images"]])

    plain = mean()
    assert plain > 12
    assert mean(*DP, "--privacy.noise", "1") < plain - 5
    assert mean("--compression.by", "top-k", "--compression.share", "0.002") < plain - 2


@pytest.mark.parametrize("attack", ["dlg", "idlg", "invert"])
def test_an_attack_writes_a_table_and_a_picture(job, capsys, tmp_path, attack):
    out = tmp_path / "picture.png"
    words = ["leakage", str(job), "--attack", attack, "--images", "2", "--batch", "2"]
    assert cli.main([*words, "--clients", "1", "--iterations", "3", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "1 step on 2 images" in text
    assert "PSNR" in text
    assert str(out) in text
    assert imread(out).ndim == 3


def test_the_next_upload_of_a_run_is_the_one_that_it_sends(job, tmp_path, capsys):
    folder = tmp_path / "run"
    words = [str(job), "--out", str(folder), "--clients", "1", "--checkpoint.keep", "2"]
    assert run([*words, "--checkpoint.every", "1", "--quiet"]) == 0
    with Reader(names.checkpoint_file(folder, 2)) as source:
        after = source.get("state")
    rounds, _ = start([str(folder)], folder, 1)
    upload = uploads.receive(rounds, 0)
    for name, value in (upload.received + upload.change).items():
        assert torch.allclose(value, after[name], atol=1e-7), name
    results = str(names.results_file(folder))
    assert cli.main(["leakage", results, "--images", "1", "--iterations", "2"]) == 0
    assert (folder / "leakage-invert.png").exists()
    assert "after 2 rounds" in capsys.readouterr().out


def test_members_of_an_overfitted_model_are_inferred_and_others_are_not(job):
    flags = ("--data.wrong_labels", "0.5", "--data.test_limit", "100")
    overfitted = rounds_of(job, *flags, "--local.epochs", "60", "--local.batch", "20")
    _, _, success = infer_members(overfitted, 0)
    assert success.auc > 0.9
    assert success.advantage > 0.7
    untrained = rounds_of(job, *flags[2:], "--local.lr", "1e-9")
    _, _, guess = infer_members(untrained, 0)
    assert guess.auc == pytest.approx(0.5, abs=0.08)


def test_membership_is_a_table_of_clients(job, capsys):
    assert cli.main(["leakage", str(job), "--attack", "membership"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("0", "1", "2", "mean")] == [
        "0",
        "1",
        "2",
        "mean",
    ]


def survival_times(folder):
    """A job with times of which no event was observed but the first one of each client."""
    g, file = np.random.default_rng(0), folder / "times.csv"
    rows = [f"{g.normal():.3f},{k % 3 + 1 + g.random():.3f},{int(k % 2 == 0)}" for k in range(60)]
    file.write_text("\n".join(["x,time,event", *rows]))
    words = ("--data.name", str(file), "--data.task", "survival", "--data.client_limit", "none")
    return (*words, "--columns.label", "time", "--columns.event", "event")


def test_survival_times_have_no_loss_of_one_example_that_tells_a_member(job, tmp_path, capsys):
    words = ["leakage", str(job), *survival_times(tmp_path), "--attack", "membership"]
    assert cli.main(words) == 2
    message = capsys.readouterr().err
    assert "survival" in message
    assert "compares examples with one another" in message


def test_a_turn_that_changes_nothing_is_told_of_its_client(job, capsys):
    words = ["leakage", str(job), "--local.lr", "1e-30", "--clients", "1"]
    assert cli.main(words) == 2
    message = capsys.readouterr().err
    assert "client 1" in message
    assert "changes no weight" in message
    assert "take another method" not in message


def test_attackers_are_passed_over_unless_they_are_named(job, capsys, tmp_path):
    attack = ("--attack.by", "sign-flip", "--attack.clients", "[0]")
    results = leakage(capsys, job, *attack, "--attack", "membership")
    assert [row["client"] for row in results["clients"]] == [1, 2]
    few = ("--images", "1", "--iterations", "2", "-o", tmp_path / "a.png")
    assert [image["client"] for image in leakage(capsys, job, *attack, *few)["images"]] == [1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--secure.by", "secagg", "--secure.bound", "9"), ("secagg", "no single one")),
        (("--privacy.by", "distributed", "--privacy.clip", "1"), ("distributed", "their sum")),
        (("--algorithm.name", "fedproto"), ("fedproto", "send proto")),
        (("--algorithm.name", "fedclassavg"), ("send head.weight, head.bias",)),
        (("--algorithm.name", "dsgd"), ("dsgd", "not the change of a model")),
        (("--algorithm.name", "local"), ("local", "send nothing")),
        (("--local.optimiser", "adam"), ("local.optimiser = 'sgd'",)),
        ((*SYNTHETIC, "--models.mix", "logistic"), ("synthetic", "--attack membership")),
        (("--models.mix", "resnet8"), ("batch normalisation", "--batch 2")),
        (("--attack.by", "sign-flip", "--attack.clients", "[0]", "--clients", "0"), ("attacker",)),
        (("--images", "3", "--batch", "2"), ("--images 3", "--batch 2")),
        (("--images", "41"), ("--images 41", "40 training examples")),
        (("--images", "0"), ("--images 0",)),
        (("--iterations", "0"), ("--iterations 0",)),
        (("--local-steps", "0"), ("--local-steps 0",)),
        (("--tv", "-1"), ("--tv -1",)),
        (("--tv", "1", "--attack", "dlg"), ("--tv", "invert", "dlg")),
        (("--attack", "membership", "--images", "2"), ("membership", "--images")),
        (("--attack", "membership", "-o", "a.png"), ("a.png", "no picture")),
        (("--data.shift.noise", "1", "--clients", "2"), ("digits", "0 to 1")),
        (("--clients", "3"), ("client 3", "3 clients")),
        (("--round", "1"), ("--round 1", "run")),
        (("-o", "x.bmp"), ("x.bmp", ".png")),
    ],
)
def test_mistakes_are_told_in_one_message(job, capsys, flags, words):
    assert cli.main(["leakage", str(job), *flags]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for word in words:
        assert word in message


def test_labels_of_an_upload_are_right_in_any_order():
    none = torch.zeros(1, 2, 2)
    pairs = (("a", "b"), ("b", "a"), ("a", "a"), ("c", "a"))
    images = [Image(0, 0, label, inferred, 0.1, none, none) for label, inferred in pairs]
    assert [count_labels(images, batch) for batch in (1, 2, 4)] == [1, 3, 3]


def test_a_layer_without_second_derivative_is_named():
    with (
        pytest.raises(ConfigError, match="mine:Net .* aten::attention"),
        explain_refusals("mine:Net"),
    ):
        raise RuntimeError("derivative for aten::attention is not implemented")


def test_a_checkpoint_that_a_run_does_not_have_is_refused(job, tmp_path, capsys):
    assert cli.main(["leakage", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    folder = tmp_path / "run"
    assert run([str(job), "--out", str(folder), "--quiet"]) == 0
    assert cli.main(["leakage", str(folder), "--round", "7"]) == 2
    assert "checkpoints after rounds 2" in capsys.readouterr().err
