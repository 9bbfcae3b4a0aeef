"""FedLC, FedNTD and FedDecorr, whose clients have another objective: what they become in neutral
settings, what must hold of their terms, and two rounds in plain torch.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.algorithms.global_model.fedlc import margins
from hpcfed.algorithms.global_model.fedntd import not_true_distillation
from hpcfed.comm import Serial
from hpcfed.training.losses import decorrelation
from tests.contract import toy
from tests.contract.referee import TWO, Referee, batch_of, cross_entropy, mean
from tests.contract.test_equalities import FULL, ONE, near, run

NEUTRAL = {  # method: flags with which it is FedAvg, and flags of both
    "fedlc": (("--algorithm.tau", "0"), ONE),  # a client that has all classes
    "fedntd": (("--algorithm.beta", "0"), ()),
    "feddecorr": (("--algorithm.beta", "0"), ()),
}


@pytest.mark.parametrize("method", NEUTRAL)
def test_a_method_without_its_term_is_fedavg_to_the_bit(method: str):
    neutral, flags = NEUTRAL[method]
    ours, theirs = run(method, *neutral, *flags), run("fedavg", *flags)
    assert toy.differences(ours.state, theirs.state) == []
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


# --- FedLC


def test_fedlc_of_equal_numbers_of_examples_is_fedavg():
    equal = ("--clients", "1", "--data.train_limit", "40")
    rounds = toy.start(Serial(), toy.job("fedlc", *equal))
    assert np.ptp(rounds.fed.label_counts[0]) == 0  # ten examples of each class
    assert near(run("fedlc", *FULL, *equal).state, run("fedavg", *FULL, *equal).state, 1e-6)


def test_fedlc_does_not_move_the_rows_of_classes_that_a_client_lacks():
    rounds = toy.start(Serial(), toy.job("fedlc", "--models.mix", "mlp"))
    fed, client = rounds.fed, rounds.fed.clients[3]
    fed.label_counts[3, 1] = 0
    client.train.labels[client.train.labels == 1] = 0
    fed.participants.begin(0, [3], False)
    sent = rounds.algorithm.local(fed, client, rounds.state, 0).value.terms[0].value
    for name in ("head.weight", "head.bias"):
        changed = (sent[name] != rounds.state[name]).reshape(toy.CLASSES, -1).any(1)
        assert changed.tolist() == [True, False, True, True], name


def test_two_rounds_of_fedlc_in_plain_torch():
    referee = Referee("fedlc", *TWO, "--algorithm.tau", "0.5")
    w = referee.initial()
    for cohort in referee.run():
        models = {}
        for k in cohort:
            y = batch_of(referee.rounds, k)[1]
            n = torch.bincount(y, minlength=toy.CLASSES).double()

            def calibrated(model, x, y, n=n):
                """The paper's sum over pairs, of classes that the client has."""
                z, m = model(x).double(), n**-0.25
                pairs = z - z.gather(1, y[:, None]) + 0.5 * (m[y][:, None] - m)
                return pairs[:, n > 0].exp().sum(1).log().mean()

            models[k] = referee.train(k, w, calibrated)
        w = mean(models)
    assert near(referee.rounds.state, w, 1e-6)


def test_margins_and_losses_of_fedlc_by_hand():
    m = margins(np.array([16, 1]), 1.0)
    assert m.tolist() == [0.5, 1.0]
    loss = [F.cross_entropy(-m[None], torch.tensor([c])).item() for c in (0, 1)]
    assert loss == pytest.approx([0.474077, 0.974077], abs=1e-6)
    assert margins(np.array([0, 4]), 0.0).tolist() == [torch.inf, 0]


# --- FedNTD


def test_not_true_distillation_by_hand():
    student, teacher = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0, 1.0, 0.0]])
    for tau, want in ((1.0, 0.462117), (3.0, 0.495421)):
        term = not_true_distillation(teacher, student, torch.tensor([0]), tau)
        assert term.item() == pytest.approx(want, abs=1e-6)


def test_not_true_distillation_knows_nothing_of_the_true_class():
    g = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(5, 4, generator=g) for _ in range(2))
    y = torch.tensor([0, 1, 2, 3, 1])
    want = not_true_distillation(teacher, student, y, 2.0)
    for logits in (teacher, student):
        logits.scatter_(1, y[:, None], 9.0)
    assert torch.equal(not_true_distillation(teacher, student, y, 2.0), want)
    two = not_true_distillation(teacher[:, :2], student[:, :2], torch.tensor([0, 1, 0, 1, 1]), 2.0)
    assert two.item() == 0


def test_fedntds_term_has_no_gradient_at_the_received_model():
    flags = (*FULL, "--rounds", "1")
    assert near(run("fedntd", *flags).state, run("fedavg", *flags).state, 1e-6)


def test_two_rounds_of_fedntd_in_plain_torch():
    referee = Referee("fedntd", *TWO, "--algorithm.beta", "0.5", "--algorithm.tau", "2")
    w = referee.initial()
    for cohort in referee.run():
        models = {}
        for k in cohort:
            x, y = batch_of(referee.rounds, k)
            others = F.one_hot(y, toy.CLASSES) == 0
            teacher = referee.with_weights(w)(x).detach()

            def preserving(model, x, y, teacher=teacher, others=others):
                z, q = (v[others].view(len(y), -1) / 2 for v in (model(x), teacher))
                apart = (q.softmax(1) * (q.log_softmax(1) - z.log_softmax(1))).sum(1).mean()
                return cross_entropy(model, x, y) + 0.5 * 2**2 * apart

            models[k] = referee.train(k, w, preserving)
        w = mean(models)
    assert near(referee.rounds.state, w, 1e-6)


# --- FedDecorr


def test_decorrelation_of_two_equal_components_by_hand():
    z = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert decorrelation(z, "code").item() == pytest.approx(0.5)
    assert decorrelation(z, "paper").item() == pytest.approx(1.0)


def test_an_almost_constant_component_counts_as_little_as_in_the_authors_code():
    """1e-8 is added to variances: of components of deviation 1e-4 half of the squares are left."""
    z = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]) * torch.tensor([1.0, 1e-4])
    assert decorrelation(z, "code").item() == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize("scale", ["code", "paper"])
def test_decorrelation_depends_on_correlations_alone(scale):
    z = torch.randn(9, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    want = decorrelation(z, scale)
    value = decorrelation(z * torch.tensor([1.0, 2.0, 0.5, 3.0, 10.0]) + 7, scale)
    assert value.item() == pytest.approx(want.item(), rel=1e-5)


def test_uncorrelated_components_and_single_examples_add_nothing():
    z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert decorrelation(z, "code").item() == 0 and decorrelation(z, "paper").item() == 0.5
    assert decorrelation(z[:1], "code").item() == 0


def test_a_constant_component_adds_nothing_and_has_a_finite_gradient():
    z = torch.tensor([[1.0, 3.0], [-1.0, 3.0], [2.0, 3.0]], requires_grad=True)
    value = decorrelation(z, "code")
    value.backward()
    assert value.item() == 0 and z.grad is not None and z.grad.isfinite().all()


def test_two_rounds_of_feddecorr_in_plain_torch():
    referee = Referee("feddecorr", *TWO)
    w = referee.initial()

    def decorrelated(model, x, y):
        """As the authors' code."""
        z = model.body(x)
        value, (n, d) = F.cross_entropy(model.head(z), y), z.shape
        if n == 1:
            return value
        z = z - z.mean(0)
        z = z / (1e-8 + z.var(0)).sqrt()
        k = z.T @ z
        off = k[~torch.eye(d, dtype=torch.bool)]
        return value + 0.1 * off.square().mean() / n

    for cohort in referee.run():
        w = mean({k: referee.train(k, w, decorrelated) for k in cohort})
    assert near(referee.rounds.state, w, 1e-5)
