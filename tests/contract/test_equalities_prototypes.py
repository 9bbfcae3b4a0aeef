"""FedTGP and FedORGP: what they become in neutral settings, two rounds in plain torch, and what
must hold of prototypes that the server trains.
"""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hpcfed.algorithms.common_head.fedorgp import FedORGP
from hpcfed.algorithms.common_head.fedtgp import FedTGP
from hpcfed.algorithms.common_head.generated import prototypes
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from tests.contract import referee, toy
from tests.contract.test_equalities import run

TWO = ("fedtgp", "fedorgp")
BY_HEAD = ("--algorithm.inference", "head")
FULL_SERVER = ("--algorithm.server_batch", "1000", "--algorithm.server_epochs", "3")


@pytest.mark.parametrize("method", TWO)
def test_without_its_term_it_is_local_training(method: str):
    default = str(toy.algorithm(method)().server_epochs)
    flags = ("--algorithm.lam", "0", "--algorithm.server_epochs", default)
    ours, theirs = run(method, *flags, *BY_HEAD), run("local")
    for part in ("weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == []


@pytest.mark.parametrize("method", TWO)
def test_prototypes_stay_as_they_start_without_server_epochs(method: str):
    flags = ("--algorithm.server_epochs", "0", "--participation", "0.5")
    rounds = toy.start(Serial(), toy.job(method, *flags))
    start, states = rounds.state.generator, []
    for _ in range(3):
        rounds.step()
        states.append(rounds.state)
    assert toy.differences(rounds.state.generator, start) == []
    for before, after in pairwise(states):  # a class has a prototype from its first round on
        valid = ~before.proto["proto"].isnan().any(1)
        assert torch.equal(before.proto["proto"][valid], after.proto["proto"][valid])


def test_a_class_that_nobody_has_sent_pulls_nobody():
    rounds = toy.start(Serial(), toy.job("fedtgp", "--models.mix", "mlp"))
    method, generator = rounds.algorithm, rounds.state.generator
    sent = [{"mean": torch.ones(1, toy.D), "label": torch.tensor([2]).int()}]
    proto, new = method.learn(rounds.fed, rounds.state, sent)
    assert proto["proto"].isnan().any(1).tolist() == [True, True, False, True]
    assert not torch.equal(new["embedding"][2], generator["embedding"][2])
    z = torch.ones(3, toy.D, requires_grad=True)
    method.to_prototypes(z, proto["proto"][[0, 2, 3]]).backward()
    assert z.grad.any(1).tolist() == [False, True, False]


def generate(generator: Params) -> tuple[nn.Embedding, nn.Sequential]:
    """The server's network in plain torch."""
    C, d = generator["embedding"].shape
    vectors, net = nn.Embedding(C, d), nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
    with torch.no_grad():
        vectors.weight.copy_(generator["embedding"])
        for layer, name in ((net[0], "first"), (net[2], "last")):
            layer.weight.copy_(generator[f"{name}.weight"])
            layer.bias.copy_(generator[f"{name}.bias"])
    return vectors, net


def contrast(z: torch.Tensor, y: torch.Tensor, proto: torch.Tensor, margin: float) -> torch.Tensor:
    """FedTGP's loss as in its paper, with a loop over pairs."""
    total = 0
    for mean, c in zip(z, y, strict=True):
        far = [(mean - p).square().sum().sqrt() for p in proto]
        right = torch.exp(-(far[c] + margin))
        wrong = sum(torch.exp(-far[i]) for i in range(len(proto)) if i != c)
        total = total - torch.log(right / (right + wrong))
    return total / len(z)


def orthogonality(z, y, proto, margin):
    """FedORGP's loss with a loop over pairs."""
    intra, inter, wrong = 0, 0, len(z) * (len(proto) - 1)
    for mean, c in zip(z, y, strict=True):
        similar = [(mean @ p) / (mean.norm() * p.norm()) for p in proto]
        intra = intra + (1 - similar[c]) / len(z)
        inter = inter + sum(similar[i].abs() / wrong for i in range(len(proto)) if i != c)
    return intra + 10 * inter


def squared(z, p):
    return (z - p).square().mean()


def angle(z, p):
    return (1 - (z * p).sum(1) / (z.norm(dim=1) * p.norm(dim=1))).mean()


@pytest.mark.parametrize(
    ("method", "distance", "server_loss"),
    [("fedtgp", squared, contrast), ("fedorgp", angle, orthogonality)],
)
def test_two_rounds_are_those_of_plain_torch(method, distance, server_loss):
    rounds = toy.start(Serial(), toy.job(method, *referee.FULL, *FULL_SERVER))
    models, proto = referee.models_of(rounds), None
    vectors, net = generate(rounds.state.generator)
    for _ in range(2):
        means, labels = [], []
        for k, model in models.items():
            x, y = referee.batch_of(rounds, k)
            z = model.body(x)
            value = F.cross_entropy(model.head(z), y)
            value = value if proto is None else value + 10 * distance(z, proto[y])
            referee.descend(value, model)
            for c in y.unique():
                means.append(model.body(x)[y == c].mean(0).detach())
                labels.append(int(c))
        z, y = torch.stack(means), torch.tensor(labels)
        centres = torch.stack([z[y == c].mean(0) for c in y.unique()])
        margin = min(float(torch.cdist(centres, centres).max()), 100)
        for _ in range(3):
            value = server_loss(z, y, net(vectors.weight), margin)
            referee.descend(value, net, vectors, lr=0.01)
        proto = net(vectors.weight).detach()
        rounds.step()
        assert torch.allclose(rounds.state.proto["proto"], proto, rtol=0, atol=1e-5)
    referee.assert_models_agree(rounds, models, 1e-5)
    assert torch.allclose(prototypes(rounds.state.generator), proto, rtol=0, atol=1e-5)


def test_the_authors_class_means_are_those_before_local_training():
    rounds = toy.start(Serial(), toy.job("fedtgp", "--preset", "authors", *referee.FULL))
    assert rounds.algorithm.gap == "nearest"
    before, sent = referee.models_of(rounds), {}
    learn = type(rounds.algorithm).learn

    def learn_and_note(self, fed, state, uploads):
        sent.update(zip(fed.clients, uploads, strict=True))
        return learn(self, fed, state, uploads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(rounds.algorithm), "learn", learn_and_note)
        rounds.step()
    x, y = referee.batch_of(rounds, 4)
    z = before[4].eval().body(x)
    want = torch.stack([z[y == c].mean(0) for c in y.unique()])
    assert torch.allclose(sent[4]["mean"], want, rtol=0, atol=1e-6)


# --- golden values


@pytest.mark.parametrize(("margin", "want"), [(4.0, math.log(2)), (1.0, 0.048587), (0.0, 0.018150)])
def test_fedtgps_loss_by_hand(margin: float, want: float):
    proto = torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    z = torch.zeros(1, 2, requires_grad=True)
    value = FedTGP().server_loss(z, torch.tensor([0]), proto, margin)
    assert value.item() == pytest.approx(want, abs=1e-6)
    value.backward()
    assert z.grad.isfinite().all()  # at distance 0


def test_fedtgps_margin_by_hand():
    z = torch.tensor([[0.0], [2.0], [4.0], [10.0]])  # classes at 0, 3 and 10
    y = torch.tensor([0, 1, 1, 2])
    assert FedTGP().margin(z, y) == 10
    assert FedTGP(gap="nearest").margin(z, y) == 7
    assert FedTGP(tau=5.0).margin(z, y) == 5
    assert FedTGP().margin(z[1:3], y[1:3]) == 100  # one class


def test_fedorgps_losses_by_hand():
    z, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    proto = torch.tensor([[1.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    intra = FedORGP(gamma=0.0).server_loss(z, y, proto, 0.0).item()
    assert intra == pytest.approx(0.292893, abs=1e-6)
    assert FedORGP(gamma=1.0).server_loss(z, y, proto, 0.0).item() == pytest.approx(intra + 0.5)
    scaled = FedORGP(gamma=1.0).server_loss(7 * z, y, 3 * proto, 0.0).item()
    assert scaled == pytest.approx(intra + 0.5)
    orthonormal = torch.eye(3)
    assert FedORGP().server_loss(orthonormal, torch.arange(3), orthonormal, 0.0).item() == 0
