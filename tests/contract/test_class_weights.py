"""Class weights, focal loss and balanced batches: by hand, as torch and scikit-learn have them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.tasks.classification import Classification, inverse_frequencies
from hpcfed.training.batches import draw_shares, plan_batches
from tests.contract import toy

G = torch.Generator().manual_seed(0)
LOGITS, Y = torch.randn(9, 4, generator=G), torch.tensor([0, 1, 2, 3, 0, 0, 1, 0, 2])
WEIGHTS = (0.5, 1.0, 2.0, 4.0)


def test_weighted_cross_entropy_is_that_of_torch():
    got = Classification(weights=WEIGHTS).loss(LOGITS, Y)
    assert got.item() == pytest.approx(
        F.cross_entropy(LOGITS, Y, torch.tensor(WEIGHTS)).item(), abs=1e-6
    )


def test_focal_loss_weights_each_example_by_a_power_of_its_error():
    p = LOGITS.softmax(1)[torch.arange(9), Y]
    w = torch.tensor(WEIGHTS)[Y]
    want = (w * (1 - p) ** 2 * -p.log()).sum() / w.sum()
    got = Classification(weights=WEIGHTS, focal=2.0).loss(LOGITS, Y)
    assert got.item() == pytest.approx(want.item(), rel=1e-5)
    plain = Classification(focal=2.0).loss(LOGITS, Y)
    assert plain.item() == pytest.approx(((1 - p) ** 2 * -p.log()).mean().item(), rel=1e-5)


def test_the_focal_loss_of_a_sure_answer_has_a_gradient():
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    Classification(focal=0.5).loss(logits, torch.tensor([0])).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_weights_without_effect_leave_the_bits_of_cross_entropy():
    assert torch.equal(Classification().loss(LOGITS, Y), F.cross_entropy(LOGITS, Y))


def test_inverse_frequencies_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    y = np.array([0, 0, 0, 2, 2, 3])
    want = compute_class_weight("balanced", classes=np.unique(y), y=y)
    got = inverse_frequencies(np.bincount(y, minlength=5))
    assert [got[c] for c in (0, 2, 3)] == pytest.approx(want, abs=1e-12)
    assert (got[1], got[4]) == (1.0, 1.0)  # no example has them


def test_weights_are_of_the_clients_own_classes_or_of_all():
    by_client, shared = (
        toy.start(Serial(), toy.given("fedavg", "--local.class_weights", whose)).fed
        for whose in ("client", "all")
    )
    for client in by_client.clients.values():
        counts = np.bincount(client.train.labels, minlength=4)
        assert client.task == replace(by_client.task, weights=inverse_frequencies(counts))
    total = inverse_frequencies(by_client.label_counts.sum(0))
    assert {client.task.weights for client in shared.clients.values()} == {total}
    assert by_client.task == shared.task == Classification()  # by which the models are scored


def test_balanced_batches_draw_each_class_of_a_client_equally_often():
    fed = toy.start(Serial(), toy.given("fedavg", "--local.balanced_batches")).fed
    client = next(iter(fed.clients.values()))
    shares, y = draw_shares(fed, client, client.train), client.train.labels
    assert shares is not None
    each = [shares[y == c].sum() for c in np.unique(y)]
    assert each == pytest.approx([1 / len(each)] * len(each))
    plan = plan_batches(fed, client, 0, client.train, 4, 50, in_steps=False)
    draws = np.bincount(y[np.concatenate(plan)], minlength=4)[np.unique(y)]
    assert len(np.concatenate(plan)) == 50 * len(y)
    assert draws / draws.sum() == pytest.approx([1 / len(each)] * len(each), abs=0.05)


def test_weights_that_do_not_fit_the_classes_are_refused():
    def start(*flags: str) -> None:
        toy.start(Serial(), toy.given("fedavg", *flags))

    with pytest.raises(
        ConfigError, match="local.weights has 2 numbers, but (.|\\n)* has 4 classes"
    ):
        start("--local.class_weights", "given", "--local.weights", "1,2")
    with pytest.raises(ConfigError, match="local.weights = (.|\\n)* has no effect"):
        start("--local.weights", "1,2,3,4")
