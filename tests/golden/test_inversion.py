"""Leakage: golden values of gradient inversion and of membership inference."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hpcfed.launch.leakage.inversion import (
    Turn,
    dlg,
    infer_labels,
    invert,
    match,
    psnr,
    total_variation,
)
from hpcfed.launch.leakage.membership import measure

CLASSES = 10


def turn(module: nn.Module, **settings) -> Turn:
    weights = {name: value.detach() for name, value in module.named_parameters()}
    return Turn(module, weights, tuple(weights), **settings)


def digits(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.from_numpy(data.images[:n] / 16).unsqueeze(1)
    return x, torch.from_numpy(data.target[:n])


def sigmoid_network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, CLASSES))
    return nn.Sequential(*layers).double()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_bias_gradient_of_equal_logits_names_the_label():
    head = nn.Linear(2, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    sent = turn(head, lr=1.0).change(torch.ones(1, 2), torch.tensor([1]))
    assert torch.allclose(-sent[-3:], torch.tensor([1 / 3, -2 / 3, 1 / 3]))
    assert infer_labels(-sent[-3:], 1).tolist() == [1]


def test_the_label_of_one_example_is_the_only_negative_entry():
    network, (x, y) = sigmoid_network(), digits(20)
    for i in range(20):
        bias = -turn(network).change(x[i : i + 1], y[i : i + 1])[-CLASSES:]
        assert (bias < 0).nonzero().tolist() == [[y[i]]]
        assert infer_labels(bias, 1).tolist() == [y[i]]


def test_labels_of_a_batch_are_counted_whatever_the_length_of_the_gradient():
    labels = torch.tensor([0, 0, 2, 5])
    gradient = 0.1 - F.one_hot(labels, CLASSES).double().mean(0)  # all probabilities are 0.1
    for length in (1.0, 1e-3):
        assert infer_labels(length * gradient, 4).tolist() == labels.tolist()


def test_a_linear_layer_gives_its_input_away():
    layer, x = nn.Linear(4, 3), torch.tensor([[0.1, 0.7, -0.3, 2.0]])
    sent = turn(layer).change(x, torch.tensor([2]))
    weight, bias = sent[:12].view(3, 4), sent[12:]
    assert torch.allclose(weight / bias[:, None], x.expand(3, 4), atol=1e-5)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_simulated_steps_are_those_of_sgd(momentum, decay):
    network, (x, y) = sigmoid_network(), digits(3)
    settings = {"lr": 0.2, "momentum": momentum, "weight_decay": decay}
    change = turn(network, steps=3, **settings).change(x, y)
    before = torch.cat([p.detach().flatten() for p in network.parameters()])
    sgd = torch.optim.SGD(network.parameters(), **settings)
    for _ in range(3):
        sgd.zero_grad()
        F.cross_entropy(network(x), y).backward()
        sgd.step()
    after = torch.cat([p.detach().flatten() for p in network.parameters()])
    assert torch.allclose(change, after - before, atol=1e-12)


@pytest.mark.parametrize("joint", [True, False])
def test_dlg_recovers_an_image_and_its_label(joint):
    network, (x, y) = sigmoid_network(), digits(1)
    sent = turn(network).change(x, y).detach()
    start = torch.randn(x.shape, generator=generator(), dtype=torch.float64)
    labels = torch.randn((1, CLASSES), generator=generator(1), dtype=torch.float64)
    result, label = dlg(turn(network), sent, start, labels if joint else y, 150)
    assert psnr(float((result - x).square().mean())) > 80
    assert label.tolist() == y.tolist()


def test_dlg_recovers_the_images_of_a_batch_in_any_order():
    network, (x, y) = sigmoid_network(), digits(2)
    sent = turn(network).change(x, y).detach()
    start = torch.randn(x.shape, generator=generator(), dtype=torch.float64)
    result, _ = dlg(turn(network), sent, start, y.flip(0), 150)
    which, errors = match(x, result)
    assert which.tolist() == [1, 0]
    assert max(errors) < 1e-6


def test_inverting_gradients_recovers_an_image_from_several_steps():
    network, (x, y) = sigmoid_network(), digits(1)
    client = turn(network, steps=2)
    sent = client.change(x, y).detach()
    start = torch.randn(x.shape, generator=generator(), dtype=torch.float64)
    box = torch.zeros(1), torch.ones(1)
    result = invert(client, sent, start, y, 150, box, tv=0.0)
    assert result.min() >= 0
    assert result.max() <= 1
    assert psnr(float((result - x).square().mean())) > 25


def test_noise_in_the_gradient_lowers_the_psnr():
    network, (x, y) = sigmoid_network(), digits(1)
    sent = turn(network).change(x, y).detach()
    noise = torch.randn(sent.shape, generator=generator(2), dtype=torch.float64)
    unit = sent.norm() / noise.norm()
    start = torch.randn(x.shape, generator=generator(), dtype=torch.float64)
    box = torch.zeros(1), torch.ones(1)
    values = []
    for level in (0.0, 3.0):
        noisy = sent + level * unit * noise
        result = invert(turn(network), noisy, start, y, 100, box, tv=0.0)
        values.append(psnr(float((result - x).square().mean())))
    assert values[0] > values[1] + 6


def test_total_variation_is_the_mean_difference_down_plus_that_across():
    image = torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])
    assert total_variation(image) == 1.0 + 2.0  # (0 + 2) / 2 down, (1 + 3) / 2 across


def test_psnr_of_a_hundredth_is_20_db():
    assert psnr(0.01) == pytest.approx(20)
    assert psnr(0.0) == math.inf


def test_images_are_matched_so_that_the_sum_of_errors_is_least():
    originals = torch.tensor([0.0, 0.5]).view(2, 1, 1, 1)
    results = torch.tensor([0.4, 0.2]).view(2, 1, 1, 1)
    which, errors = match(originals, results)
    assert which.tolist() == [1, 0]
    assert errors.tolist() == pytest.approx([0.04, 0.01])


def test_membership_is_the_probability_that_a_member_has_the_lower_loss():
    result = measure(np.array([0.1, 0.2]), np.array([0.3, 0.15]))
    assert result == (0.75, 0.5, 0.5)


def test_losses_that_are_alike_tell_nothing():
    assert measure(np.ones(3), np.ones(5)) == (0.5, 0.0, 0.0)


def test_a_loss_that_is_no_number_is_the_highest():
    assert measure(np.array([0.1]), np.array([np.nan])).auc == 1.0
