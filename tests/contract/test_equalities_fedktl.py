"""FedKTL: what it becomes without images, two rounds in plain torch, its generators, and golden
values.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hpcfed.algorithms.data_free.generators import ImageGenerator
from hpcfed.algorithms.public_data import fedktl
from hpcfed.algorithms.public_data.fedktl import BANDWIDTHS, frame, widen
from hpcfed.algorithms.public_data.image_decoder import decode
from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.training.losses import mean_discrepancy
from tests.contract import referee, toy

LATENT, EPOCHS, MU, LAM = 8, 3, 2.0, 0.5
FLAGS = (
    *referee.FULL,
    *("--algorithm.latent", str(LATENT), "--algorithm.server_epochs", str(EPOCHS)),
    *("--algorithm.mu", str(MU), "--algorithm.lam", str(LAM)),
    *("--algorithm.server_batch", "1000"),
)


def arcface(outputs: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The loss by angles, with a loop over examples."""
    total = 0
    for output, c in zip(outputs, y.tolist(), strict=True):
        cosines = [torch.dot(output / output.norm(), v[:, i]) for i in range(v.shape[1])]
        cosines[c] = torch.cos(torch.acos(cosines[c]) + 0.5)
        total = total - torch.log_softmax(64 * torch.stack(cosines), 0)[c]
    return total / len(y)


def test_without_images_clients_train_alone_on_the_frame():
    flags = (*referee.FULL, "--algorithm.mu", "0", "--algorithm.latent", "64")
    rounds = toy.start(Serial(), toy.job("fedktl", *flags))
    models, v = referee.models_of(rounds), frame(0, toy.CLASSES)
    for _ in range(2):
        for k, model in models.items():
            x, y = referee.batch_of(rounds, k)
            descend(arcface(model(x), y, v), model)
        rounds.step()
    referee.assert_models_agree(rounds, models, 1e-4)
    row = rounds.step()[0]
    assert not row["clients/down"].any() and not row["clients/up"].any()


def descend(value: torch.Tensor, *modules: nn.Module) -> None:
    """One step of plain gradient descent, of a gradient of at most the largest norm."""
    slopes = referee.gradient(value, *modules)
    norm = torch.stack([slope.norm() for _, _, slope in slopes]).norm()
    with torch.no_grad():
        for _, leaf, slope in slopes:
            leaf -= referee.LR * slope * min(1.0, fedktl.CLIP / float(norm))


def test_two_rounds_are_those_of_plain_torch():
    rounds = toy.start(Serial(), toy.job("fedktl", *FLAGS))
    seed, v = rounds.fed.seed, frame(0, toy.CLASSES)
    models, decoder, pairs = referee.models_of(rounds), rounds.state.decoder, None
    C, transfer = toy.CLASSES, {}
    for k in models:
        transfer[k] = fedktl.start_of_transfer(rounds.fed, rounds.fed.clients[k], LATENT)
    net = nn.Sequential(nn.Linear(C, C, False), nn.BatchNorm1d(C), nn.ReLU(), nn.Linear(C, LATENT))
    net.load_state_dict(dict(rounds.state.transformer), strict=False)
    for t in range(2):
        means, labels = [], []
        for k, model in models.items():
            model.load_state_dict(dict(transfer[k]), strict=False)
            x, y = referee.batch_of(rounds, k)
            value = arcface(model(x), y, v)
            if pairs:
                mapped = model.transfer(model.body(pairs["image"]))
                value = value + MU * (mapped - pairs["latent"]).square().mean()
            descend(value, model)
            with torch.no_grad():
                outputs = model(x)
                outputs = outputs / outputs.norm(dim=1, keepdim=True)
            for c in y.unique():
                means.append(outputs[y == c].mean(0))
                labels.append(int(c))
        means, labels = torch.stack(means), torch.tensor(labels)
        centres = nn.Embedding(C, LATENT)
        with torch.no_grad():
            centres.weight.copy_(centres_of(net, means, labels))
        adam = torch.optim.Adam([*net.parameters(), centres.weight], 0.01)
        g = rng.torch_stream(seed, "alignment", t)
        net.train()
        plan = rng.stream(seed, "alignment", t, "batches")
        for _ in range(EPOCHS):
            rows = torch.from_numpy(plan.permutation(len(labels)))
            q = net(means[rows])
            valid = torch.randn(q.shape, generator=g)
            near = (q - centres(labels[rows])).square().mean()
            adam.zero_grad()
            (referee.discrepancy(q, valid) + LAM * near).backward()
            adam.step()
        latent = centres_of(net, means, labels)
        image = (decoder["mean"] + latent @ decoder["basis"]).view(C, *toy.SHAPE)
        pairs = {"image": image, "latent": latent}
        rounds.step()
        for name, value in pairs.items():
            assert torch.allclose(rounds.state.pairs[name], value, rtol=0, atol=1e-4), name
    referee.assert_models_agree(rounds, models, 1e-4)


@torch.no_grad()
def centres_of(net: nn.Module, means: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    q = net.eval()(means)
    return torch.stack([q[labels == c].mean(0) for c in range(toy.CLASSES)])


def test_a_class_that_nobody_has_sent_has_no_image():
    rounds = toy.start(Serial(), toy.job("fedktl", *FLAGS))
    method, fed = rounds.algorithm, rounds.fed
    client = fed.clients[0]
    assert method.offer(fed, client, rounds.state) == {}
    state = method.round(fed, rounds.state, [1], 0)  # who has class 2 alone
    received = method.offer(fed, client, state)
    assert received["latent"].shape == (1, LATENT) and received["image"].shape == (1, *toy.SHAPE)
    assert state.pairs["latent"].isnan().any(1).tolist() == [True, True, False, True]
    assert method.traffic(fed, 1)[0] == 4 * toy.CLASSES * (LATENT + math.prod(toy.SHAPE))


def test_the_layer_h_starts_anew_or_stays():
    for keep in (False, True):
        flags = (*FLAGS, "--algorithm.keep_h", str(keep).lower())
        rounds = toy.start(Serial(), toy.job("fedktl", *flags))
        rounds.step()
        client = rounds.fed.clients[3]
        trained = client.params()["transfer.weight"]
        start = fedktl.start_of_transfer(rounds.fed, client, LATENT)["transfer.weight"]
        assert torch.equal(trained, start) != keep  # nothing trains it in the first round
        rounds.step()
        assert not torch.equal(rounds.fed.clients[3].params()["transfer.weight"], trained)


# --- generators


def test_latent_vectors_of_principal_components_have_unit_spread():
    rounds = toy.start(Serial(), toy.job("fedktl", "--algorithm.latent", "31"))
    fed, decoder = rounds.fed, rounds.state.decoder
    x = fed.prepare(fed.public.batch(np.arange(32))[0]).flatten(1)
    coefficients = (x - decoder["mean"]) @ torch.linalg.pinv(decoder["basis"])
    spread = coefficients.T @ coefficients / 31
    assert torch.allclose(spread, torch.eye(31), rtol=0, atol=1e-3)
    images = decode(fed, decoder, coefficients)  # all components: the images themselves
    assert torch.allclose(images.flatten(1), x, rtol=0, atol=1e-3)
    with pytest.raises(ConfigError, match=r"at most 31 principal components\n  set .* = 31"):
        toy.start(Serial(), toy.job("fedktl", "--algorithm.latent", "32"))


def test_an_untrained_generator_and_one_of_a_file_make_images(tmp_path: Path):
    path = tmp_path / "generator.pt"
    with rng.scoped(0, "file"):
        network = ImageGenerator(LATENT, toy.SHAPE)
    torch.save(network.state_dict(), path)
    for name in ("untrained", str(path)):
        rounds = toy.start(Serial(), toy.job("fedktl", *FLAGS, "--algorithm.generator", name))
        decoder = rounds.state.decoder
        same = torch.equal(decoder["first.weight"], network.first.weight)
        assert same == (name != "untrained")
        rounds.step()
        images = rounds.state.pairs["image"]
        assert images.shape == (toy.CLASSES, *toy.SHAPE) and images.isfinite().all()


def test_a_file_that_is_no_such_generator_is_refused_and_none_of_its_code_runs(tmp_path: Path):
    def refused(name: str, words: str) -> None:
        flags = (*FLAGS, "--algorithm.generator", name)
        with pytest.raises(ConfigError, match=words):
            toy.start(Serial(), toy.job("fedktl", *flags))

    refused(str(tmp_path / "none.pt"), "there is no such file; .* or 'public' or 'untrained'")
    path = tmp_path / "generator.pt"
    torch.save(ImageGenerator(LATENT + 1, toy.SHAPE).state_dict(), path)
    refused(str(path), r"first.weight has shape \[256, 9\], but .* shape \[256, 8\]")
    torch.save(ImageGenerator(LATENT, toy.SHAPE), tmp_path / "module.pt")
    refused(str(tmp_path / "module.pt"), "holds more than tensors, and hpcfed runs no code")
    torch.save({"other.weight": torch.ones(2)}, tmp_path / "other.pt")
    refused(str(tmp_path / "other.pt"), "first.weight is not in it")
    values = ImageGenerator(LATENT, toy.SHAPE).state_dict()
    values["first.bias"][0] = math.nan
    torch.save(values, tmp_path / "nan.pt")
    refused(str(tmp_path / "nan.pt"), "first.bias has values that are nan or infinite")


# --- golden values


@pytest.mark.parametrize(("classes", "cosine"), [(2, -1.0), (3, -0.5), (10, -1 / 9)])
def test_columns_of_the_frame_are_equally_far_apart(classes: int, cosine: float):
    v = frame(3, classes)
    want = torch.full((classes, classes), cosine).fill_diagonal_(1)
    assert torch.allclose(v.T @ v, want, rtol=0, atol=1e-6)


def test_arcface_by_hand():
    cosines = torch.tensor([[1.0, 0.25]], requires_grad=True)
    wide = widen(cosines, torch.tensor([0]), 0.5)
    assert (64 * wide).tolist()[0] == pytest.approx([56.1653, 16], abs=2e-2)
    wide.sum().backward()
    assert cosines.grad.isfinite().all()  # also where the angle is 0
    angle = torch.tensor([[0.7, 1.1]])
    wide = widen(angle.cos(), torch.tensor([1]), 0.5)
    assert wide.tolist()[0] == pytest.approx([math.cos(0.7), math.cos(1.6)], abs=1e-6)


def test_the_discrepancy_by_hand():
    a, b = torch.zeros(1, 2), torch.tensor([[2.0, 4.0]])  # of squared distance 20
    assert mean_discrepancy(a, b, BANDWIDTHS).item() == pytest.approx(3.3869, abs=1e-4)
    x = torch.randn(5, 3, generator=rng.torch_stream(0, "x"))
    assert abs(mean_discrepancy(x, x, BANDWIDTHS).item()) < 1e-6


def test_class_means_are_sent_for_own_classes_alone():
    rounds = toy.start(Serial(), toy.job("fedktl", *FLAGS))
    up = rounds.step()[0]["clients/up"]
    classes = [len(np.unique(c.train.labels)) for c in rounds.fed.clients.values()]
    assert up.tolist() == [4 * n * (toy.CLASSES + 1) for n in classes]  # a mean, and its class
