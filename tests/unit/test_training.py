"""The local training loop: its batches, learning rates and optimisers, and that it is plain
training.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.clients.client import Client
from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.federation.federation import Federation
from hpcfed.training import batches as batches_module
from hpcfed.training.batches import batches
from hpcfed.training.local import gradient, learning_rate, sgd
from tests.contract import toy


def plan(n: int, amount: int, **settings: int) -> list[list[int]]:
    in_steps = "steps" in settings
    return [
        rows.tolist()
        for rows in batches(n, settings["batch"], amount, in_steps, rng.stream(0, "test"))
    ]


def federation(*flags: str) -> Federation:
    fed = toy.start(Serial(), toy.job("local", "--models.mix", "mlp", *flags)).fed
    fed.participants.begin(0, list(range(fed.K)), True)
    return fed


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y)


def test_an_epoch_is_every_example_once_in_batches_of_the_job():
    rows = plan(10, 2, batch=4)
    assert [len(r) for r in rows] == [4, 4, 2, 4, 4, 2]
    for epoch in (rows[:3], rows[3:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(10))
    assert rows[:3] != rows[3:]  # each epoch in a new order


def test_the_last_batch_may_hold_one_example_and_all_of_a_small_client_are_one_batch():
    assert [len(r) for r in plan(5, 1, batch=4)] == [4, 1]
    assert [len(r) for r in plan(3, 2, batch=64)] == [3, 3]


def test_steps_count_batches_and_continue_into_the_next_epoch():
    rows = plan(10, 5, batch=4, steps=5)
    assert [len(r) for r in rows] == [4, 4, 2, 4, 4]
    assert rows[:3] == plan(10, 1, batch=4)


@pytest.mark.parametrize(
    "flags, want",
    [
        ((), [0.005] * 5),
        (
            ("--local.schedule", "step", "--local.milestones", "[1,3]", "--local.decay", "0.1"),
            [5e-3, 5e-4, 5e-4, 5e-5, 5e-5],
        ),
        (
            ("--local.schedule", "cosine", "--rounds", "4"),
            [5e-3, 5e-3 * (0.5 + 0.125**0.5), 2.5e-3, 5e-3 * (0.5 - 0.125**0.5), 0],
        ),
    ],
)
def test_learning_rates_by_hand(flags: tuple[str, ...], want: list[float]):
    fed = federation(*flags)
    assert [learning_rate(fed, t) for t in range(5)] == pytest.approx(want, abs=1e-12)


def by_hand(
    fed: Federation, client: Client, optimiser: torch.optim.Optimizer, rows: list[np.ndarray]
) -> list[float]:
    """The textbook loop."""
    losses = []
    for r in rows:
        x, y = client.train.batch(r)
        optimiser.zero_grad(set_to_none=False)
        loss = cross_entropy(client.model, fed.prepare(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "flags, make",
    [
        (
            ("--local.optimiser", "sgd", "--local.momentum", "0.9", "--local.weight_decay", "0.01"),
            lambda p: torch.optim.SGD(p, 5e-3, momentum=0.9, weight_decay=0.01),
        ),
        (
            (
                "--local.betas",
                "[0.5,0.9]",
            ),
            lambda p: torch.optim.Adam(p, 5e-3, betas=(0.5, 0.9)),
        ),
    ],
)
def test_training_is_the_textbook_loop(flags: tuple[str, ...], make):
    ours, theirs = federation(*flags, "--local.epochs", "2"), federation(*flags)
    sgd(ours, ours.clients[4], 0, cross_entropy)
    client = theirs.clients[4]
    rows = list(
        batches(client.n, theirs.job.local.batch, 2, False, rng.stream(0, "train", "batches", 0, 4))
    )
    losses = by_hand(theirs, client, make(client.model.parameters()), rows)
    for name, value in ours.clients[4].params().items():
        assert torch.allclose(value, client.params()[name], atol=1e-6), name
    tally = ours.tallies[4]
    assert (tally.examples, tally.epochs) == (42, 2.0)
    assert tally.loss == pytest.approx(
        sum(loss * len(r) for loss, r in zip(losses, rows, strict=True)), rel=1e-5
    )


def test_epochs_of_the_call_replace_those_of_the_job_and_its_steps():
    for flags in (("--local.epochs", "3"), ("--local.steps", "5")):
        fed = federation(*flags)
        sgd(fed, fed.clients[4], 0, cross_entropy, epochs=2)
        assert fed.tallies[4].examples == 42


def test_another_phase_draws_other_batches():
    weights = []
    for phase in ("train", "train", "pretrain"):
        fed = federation("--local.batch", "4")
        sgd(fed, fed.clients[4], 0, cross_entropy, phase=phase)
        weights.append(fed.clients[4].params()["head.bias"].tolist())
    assert weights[0] == weights[1] != weights[2]


def test_each_round_and_client_draws_its_own_batches_dropout_and_views():
    weights = []

    def loss(model, x, y):
        weights.append(
            (y.tolist(), x[0].sum().item(), torch.rand(1).item())
        )  # dropout draws from the same generator
        return cross_entropy(model, x[0], y)

    fed = federation("--local.batch", "1000")
    fed.clients[3].train = fed.clients[4].train
    for k, t in ((4, 0), (4, 1), (3, 0), (4, 0)):
        sgd(fed, fed.clients[k], t, loss, views=2)
    assert weights[0] == weights[3]
    for what in range(3):
        assert len({str(draw[what]) for draw in weights}) == 3


@pytest.mark.parametrize("keep", ["true", "false"])
def test_moments_are_kept_or_reset_and_never_leak_to_another_client(keep: str):
    fed = federation("--local.keep_optimiser", keep, "--local.batch", "64")
    for t in range(2):
        for k in (3, 4):
            sgd(fed, fed.clients[k], t, cross_entropy)
    steps = [fed.clients[k].memory.get("optimiser", {}).get("step") for k in (3, 4, 5)]
    assert steps == ([2.0, 2.0, None] if keep == "true" else [None] * 3)


def test_kept_moments_make_two_rounds_one_long_training():
    apart, together = (
        federation("--local.keep_optimiser", "true", "--local.batch", "1000") for _ in range(2)
    )
    for t in range(2):
        sgd(apart, apart.clients[2], t, cross_entropy)
    sgd(together, together.clients[2], 0, cross_entropy, epochs=2)
    for name, value in apart.clients[2].params().items():
        assert torch.allclose(value, together.clients[2].params()[name], atol=1e-6), name


def test_views_come_as_a_list_of_different_copies():
    batches = []

    def loss(model, x, y):
        batches.append((len(x), x[0].shape == x[1].shape, torch.equal(x[0], x[1])))
        return cross_entropy(model, x[0], y)

    fed = federation()
    sgd(fed, fed.clients[2], 0, loss, views=2)
    assert batches == [(2, True, False)]


def test_the_gradient_of_all_data_is_left_in_the_model_and_nothing_moves():
    fed = federation("--local.batch", "5")
    client = fed.clients[4]
    before = client.params()
    gradient(fed, client, 0, cross_entropy)
    got = client.skeleton.grad.clone()
    client.skeleton.zero_grad()
    x, y = client.train.batch(np.arange(client.n))
    cross_entropy(client.model, fed.prepare(x), y).backward()
    assert torch.allclose(got, client.skeleton.grad, atol=1e-6) and got.abs().max() > 0
    assert toy.differences(before, client.params()) == []
    assert (fed.tallies[4].examples, fed.tallies[4].epochs) == (21, 1.0)


@pytest.mark.parametrize("views_ahead", [1024, 1 << 24])  # values: of two batches, of all
def test_views_that_are_made_ahead_as_on_a_gpu_change_no_bit(views_ahead, monkeypatch):
    job = toy.job(
        "fedclassavg", "--models.mix", "mlp", "--local.augment", "simclr", "--local.batch", "4"
    )
    want = toy.run(Serial(), job, rounds=1)
    monkeypatch.setitem(batches_module.VIEWS_AHEAD, "cpu", views_ahead)
    optimisers = []
    at_once = batches_module.inputs_of_batches
    monkeypatch.setattr(
        batches_module,
        "inputs_of_batches",
        lambda fed, x, views, draws, sizes: (
            optimisers.append(sizes) or at_once(fed, x, views, draws, sizes)
        ),
    )
    assert toy.differences(toy.run(Serial(), job, rounds=1), want) == []
    assert max(map(len, optimisers)) > 1
