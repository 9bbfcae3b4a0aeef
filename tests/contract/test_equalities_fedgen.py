"""FedGen: what it becomes in neutral settings, two rounds in plain torch, and what its generator
learns from.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hpcfed.algorithms.data_free.fedgen import FedGen, similarity
from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.params import Params
from hpcfed.training.batches import plan_batches
from tests.contract import referee, toy
from tests.contract.test_equalities import run

OFF = (
    *("--algorithm.alpha", "0", "--algorithm.beta", "0", "--algorithm.hidden", "256"),
    *("--algorithm.server_steps", "50", "--algorithm.server_batch", "32"),
)
HEADS = ("--algorithm.share", "head")


@pytest.mark.parametrize(
    ("ours", "theirs"), [(("fedgen", *OFF), ("fedavg",)), (("fedgen", *OFF, *HEADS), ("lgfedavg",))]
)
def test_without_its_generator_it_is_plain_averaging(ours, theirs):
    a, b = run(*ours, "--models.mix", "mlp"), run(*theirs, "--models.mix", "mlp")
    for part in ("weights", "scores"):
        assert toy.differences(getattr(a, part), getattr(b, part)) == []
    assert toy.differences(a.column("up"), b.column("up")) == []


def test_the_first_round_is_that_of_fedavg_and_the_clients_leave_the_generator_as_it_is():
    ours, theirs = (
        toy.start(Serial(), toy.job(name, "--models.mix", "mlp")) for name in ("fedgen", "fedavg")
    )
    start = ours.state.generator
    ours.step(), theirs.step()
    assert toy.differences(ours.state.x, theirs.state) == []
    assert toy.differences(ours.state.generator, start) != []
    ours = toy.start(Serial(), toy.job("fedgen", "--algorithm.server_steps", "0"))
    start = ours.state.generator
    for _ in range(2):
        ours.step()
    assert toy.differences(ours.state.generator, start) == []


def labels_of(rounds, k):
    return torch.from_numpy(rounds.fed.label_counts[k]).float()


def test_the_generator_learns_a_class_of_which_a_client_has_a_single_example():
    rounds = toy.start(Serial(), toy.job("fedgen", "--models.mix", "mlp"))
    head = dict(rounds.state.x.under("head."))
    sent = {"head": head, "counts": torch.tensor([0.0, 1.0, 0.0, 0.0]), "weight": 1.0}
    generator, _, steps, counts = rounds.algorithm.learn(rounds.fed, rounds.state, [sent])
    assert int(steps) == rounds.algorithm.server_steps and counts.tolist() == [0, 1, 0, 0]
    assert toy.differences(generator, rounds.state.generator) != []


@pytest.mark.parametrize("share", ["all", "head"])
def test_two_rounds_are_those_of_plain_torch(share: str):
    """The random numbers are those of the named streams; all else is written out."""
    flags = (
        *("--algorithm.share", share, "--algorithm.noise_size", "3", "--algorithm.hidden", "5"),
        *("--algorithm.server_steps", "2", "--algorithm.generated", "7", "--algorithm.alpha", "2"),
        *("--algorithm.beta", "0.5", "--algorithm.server_batch", "6"),
    )
    mix = ("--models.mix", "mlp") if share == "all" else ()
    rounds = toy.start(Serial(), toy.job("fedgen", *referee.FULL, *mix, *flags))
    fed, models, C = rounds.fed, referee.models_of(rounds), toy.CLASSES
    common = dict(rounds.state.x)
    G = nn.Sequential(nn.Linear(3 + C, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, toy.D))
    G.load_state_dict(dict(rounds.state.generator), strict=False)
    adam = torch.optim.Adam(G.parameters(), 3e-4, weight_decay=1e-2)

    def make(y, g):
        eps = torch.randn(len(y), 3, generator=g)
        return G(torch.cat([eps, F.one_hot(y, C).float()], 1)), eps

    for t in range(2):
        for k, model in models.items():
            model.load_state_dict(common, strict=False)
            x, y = referee.batch_of(rounds, k)
            client = fed.clients[k]
            (order,) = plan_batches(fed, client, t, client.train, 1000, 1, False)
            x, y = x[order], y[order]  # each example has noise of its own
            value = F.cross_entropy(model(x), y)
            if t:
                G.eval()
                g = rng.torch_stream(fed.seed, "generated", t, k)
                fake_y = (torch.rand(7, generator=g) * C).long()
                fake, target = make(fake_y, g)[0].detach(), make(y, g)[0].detach()
                soft = model.head(target).softmax(1).detach()
                kl = (soft * (soft.log() - model(x).log_softmax(1))).sum(1).mean()
                fakes = F.cross_entropy(model.head(fake), fake_y)
                value = value + 0.98 * (2 * 7 / 1000 * fakes + 0.5 * kl)
            referee.descend(value, model)
        common = referee.mean(
            {k: Params(m.state_dict()).pick(common.__contains__) for k, m in models.items()}
        )
        G.train()
        g = rng.torch_stream(fed.seed, "generated", t)
        adam.param_groups[0]["lr"] = 3e-4 * 0.98**t
        counts = torch.stack([labels_of(rounds, k) for k in models])
        for _ in range(2):
            y = torch.randint(C, (6,), generator=g)
            z, eps = make(y, g)
            value = 0
            for share_of_class, model in zip(counts / counts.sum(0), models.values(), strict=True):
                loss = F.cross_entropy(model.head(z), y, reduction="none")
                value = value + (share_of_class[y] * loss).mean()
            apart = [
                (a - b).square().mean() * (u - v).abs().mean()
                for a, u in zip(eps, z, strict=True)
                for b, v in zip(eps, z, strict=True)
            ]
            adam.zero_grad()
            (value + torch.exp(-sum(apart) / len(apart))).backward()
            adam.step()
        rounds.step()
        for name, value in rounds.state.generator.items():
            assert torch.allclose(value, G.state_dict()[name], rtol=0, atol=2e-5), (t, name)
    for name, value in common.items():
        assert torch.allclose(rounds.state.x[name], value, rtol=0, atol=1e-5)
    if share == "head":
        referee.assert_models_agree(rounds, models, 1e-5)


def test_the_generator_is_sent_with_the_model_and_label_counts_come_back():
    flags = ("--algorithm.noise_size", "3", "--algorithm.hidden", "5", "--models.mix", "mlp")
    rounds = toy.start(Serial(), toy.job("fedgen", *flags))
    size = (3 + 4) * 5 + 3 * 5 + 5 * toy.D + toy.D + 2 * 5  # the last: running statistics
    model = sum(value.numel() for value in rounds.state.x.values())
    down, up = rounds.algorithm.traffic(rounds.fed, 4)
    assert (down, up) == (4 * (model + size + toy.CLASSES), 4 * (model + toy.CLASSES))


def test_diversity_by_hand():
    eps, z = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    assert similarity(eps, z).item() == pytest.approx(math.exp(-1))


def test_losses_of_heads_by_hand():
    """Head 0 prefers class 0 by log 3, head 1 knows nothing; client 0 has 3 of 4 examples."""
    heads = [{"weight": torch.tensor([[b], [0.0]]), "bias": torch.zeros(2)} for b in (1.0, 0.0)]
    sent = [{"head": head, "weight": w} for head, w in zip(heads, (1.0, 3.0), strict=True)]
    z, y = torch.tensor([[math.log(3)]]), torch.tensor([0])
    shares = torch.tensor([[0.75, 0.0], [0.25, 1.0]])
    losses = FedGen().generator_loss(sent, shares, z, y).item()
    assert losses == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(2))
    logits = FedGen(ensemble="logits").generator_loss(sent, shares, z, y).item()
    assert logits == pytest.approx(math.log(1 + 3**-0.25))
