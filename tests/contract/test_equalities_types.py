"""FedType: without what its models learn from each other it is local training beside the method
that aggregates proxies; and what its sets promise.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hpcfed.algorithms.proxies import conformal
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.training.infer import outputs
from tests.contract import toy
from tests.threads import spmd

APART = ("--algorithm.imitation", "0", "--algorithm.kl", "0", "--models.mix", "mlp")
AGGREGATIONS = ("fedavg", "fedprox", "pfedme", "pfedbayes")
KEPT = ("--local.keep_optimiser", "true", "--participation", "1")


@pytest.mark.parametrize("method", AGGREGATIONS)
def test_proxies_alone_are_those_of_the_method_that_aggregates_them(method: str):
    named = ("--algorithm.aggregation", method, "--algorithm.weighting", "uniform")
    ours = toy.start(Serial(), toy.job("fedtype", *APART, *named, *KEPT))
    flags = ("--models.mix", "mlp", *KEPT, "--algorithm.weighting", "uniform")
    theirs = toy.start(Serial(), toy.job(method, *flags))

    def plain(state: Params) -> Params:
        return Params({name.replace("proxy.", ""): v for name, v in state.items()})

    theirs.state = plain(ours.state)
    for client in theirs.fed.clients.values():
        client.load(plain(ours.fed.clients[client.id].params(lambda n: n.startswith("proxy."))))
    for _ in range(2):
        ours.step(), theirs.step()
    assert toy.differences(plain(ours.state), theirs.state) == []


def test_private_models_alone_are_those_of_local_training():
    ours = toy.start(Serial(), toy.job("fedtype", *APART, *KEPT))
    theirs = toy.start(Serial(), toy.job("local", "--models.mix", "mlp", *KEPT))
    for _ in range(2):
        ours.step(), theirs.step()
    for k in range(6):
        private = ours.fed.clients[k].params().under("own.")
        assert toy.differences(private, theirs.fed.clients[k].params()) == []


@pytest.mark.parametrize("method", AGGREGATIONS[2:])
def test_ranks_do_not_matter_and_bytes_are_announced(method: str):
    job = toy.job("fedtype", "--algorithm.aggregation", method, "--rounds", "2")
    want = toy.run(Serial(), job)
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    rounds = toy.start(Serial(), job)
    down, up = np.array([job.algorithm.traffic(rounds.fed, k) for k in range(6)]).T
    member = want.column("cohort").astype(int)
    assert want.column("down").tolist() == (member * down).tolist()
    assert want.column("up").tolist() == (member * up).tolist()


# --- sets


def g(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_scores_by_hand():
    z = torch.tensor([[0.2, 0.5, 0.3]]).log()
    assert torch.allclose(conformal.scores(z, 1.0, 0.0, 1), torch.tensor([[1.0, 0.5, 0.8]]))
    assert torch.allclose(conformal.scores(z, 1.0, 0.1, 1), torch.tensor([[1.2, 0.5, 0.9]]))


def test_the_threshold_is_the_corrected_quantile():
    scores = torch.tensor([0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.4, 0.6, 0.8])
    assert conformal.threshold(scores, 0.1) == 0.9  # the ninth of nine: ceil(10 * 0.9)
    assert conformal.threshold(scores, 0.5) == 0.5
    assert conformal.threshold(scores[:8], 0.1) == torch.inf


def test_sets_cover_as_often_as_they_promise_and_are_never_empty():
    n, alpha = 4000, 0.1
    z = torch.randn(2 * n, 6, generator=g(0))
    y = torch.multinomial((z / 2).softmax(1), 1, generator=g(1))[:, 0]  # z is too sure of itself
    scores = conformal.scores(z, conformal.fit_temperature(z[:n], y[:n], 16), 0.5, 3)
    limit = conformal.threshold(scores[:n].gather(1, y[:n, None])[:, 0], alpha)
    inside = conformal.sets(scores[n:], limit)
    covered = float(inside.gather(1, y[n:, None]).double().mean())
    assert covered >= 1 - alpha - 3 * (2 * alpha * (1 - alpha) / n) ** 0.5
    best = conformal.sets(scores, -1.0)
    assert (best.sum(1) == 1).all() and (best.int().argmax(1) == z.argmax(1)).all()


def test_consensus_is_one_for_equal_sets_and_never_more():
    one, two = (torch.rand(500, 5, generator=g(i)) < 0.5 for i in (0, 1))
    one[:, 0] = two[:, 0] = True
    weight = conformal.consensus(one, two)
    assert ((weight >= 0) & (weight <= 1)).all()
    assert (conformal.consensus(one, one) == 1).all()
    small, large = torch.tensor([[1, 1, 0, 0]]).bool(), torch.tensor([[0, 1, 1, 1]]).bool()
    assert conformal.consensus(small, large) == 0.5  # 1 of 2: the private one's set is larger
    assert conformal.consensus(large, small) == 0.25  # 1 of 4


def test_imitation_moves_the_logits_of_violating_pairs_alone():
    z = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]], requires_grad=True)
    inside = torch.tensor([[1, 1, 0], [1, 1, 0]]).bool()
    value = conformal.imitation(z, inside, 0.0)
    assert value.tolist() == [0.0, 1.5]  # (2 - 0 + 2 - 1) / 2
    value.sum().backward()
    assert z.grad.tolist() == [[0, 0, 0], [-0.5, -0.5, 1]]
    assert conformal.imitation(z, torch.ones(2, 3).bool(), 0.0).tolist() == [0, 0]


@pytest.mark.parametrize(("scale", "passes"), [(0.1, 10), (2.3, 1), (9.0, 10)])
def test_temperatures_are_those_of_sgd_over_batches(scale: float, passes: int):
    """As the authors' code: torch's SGD on 1.3 over batches of 16. Logits are too sure of
    themselves, right, or not sure enough.
    """
    z = torch.randn(70, 5, generator=g(2))
    y, z = torch.multinomial((z * scale).softmax(1), 1, generator=g(3))[:, 0], 3 * z
    t, done = torch.nn.Parameter(torch.tensor(1.3)), 0
    descent = torch.optim.SGD([t], lr=0.01)
    for _ in range(10):
        done, before = done + 1, t.item()
        for rows in torch.arange(70).split(16):
            descent.zero_grad()
            F.cross_entropy(z[rows] / t, y[rows]).backward()
            descent.step()
        if abs(before - t.item()) < 0.01:
            break
    assert done == passes and (abs(t.item() - 1.3) > 0.1) == (passes == 10)
    assert float(conformal.fit_temperature(z, y, 16)) == pytest.approx(t.item(), abs=1e-5)


def test_a_private_model_that_became_worse_makes_further_classes_of_proxies_cost_more():
    """As the authors' cal_lambda: .5 becomes .6 where training accuracy has fallen by .2."""
    rounds = toy.start(Serial(), toy.job("fedtype"))
    fed, client, method = rounds.fed, rounds.fed.clients[4], rounds.algorithm
    quantiles = method.calibrate(fed, client, client.train, client.train)
    assert quantiles["sets/proxy/lam"] == 0.5 and quantiles["sets/own/lam"] == 1.0
    was = client.memory["accuracy"]
    answers = outputs(fed, client.model.own, client.train).argmax(1).numpy()
    assert was == (answers == client.train.labels).mean()
    for before, lam in ((was + 0.2, 0.6), (was - 0.2, 0.5), (was, 0.5)):
        client.memory["accuracy"] = before
        calibrated = method.calibrate(fed, client, client.train, client.train)
        assert float(calibrated["sets/proxy/lam"]) == pytest.approx(lam)


def test_fedtype_names_options_without_effect_on_these_data(capsys):
    toy.start(Serial(), toy.job("fedtype"))
    err = " ".join(capsys.readouterr().err.split())
    assert "k_reg = 5 of 4 classes cost nothing" in err
    assert "6 of 6 clients have too few examples to calibrate on" in err
    large = ("--algorithm.alpha", "0.5", "--algorithm.calibration", "0.5", "--algorithm.k_reg", "1")
    toy.start(Serial(), toy.job("fedtype", *large))
    assert capsys.readouterr().err == ""


def test_calibration_examples_are_held_out_of_training():
    rounds = toy.start(Serial(), toy.job("fedtype"))
    fed = rounds.fed
    train, calibration = rounds.algorithm.split(fed, fed.clients[5])
    assert len(calibration) == 6 and not set(calibration.rows) & set(train.rows)
    assert sorted([*calibration.rows, *train.rows]) == fed.clients[5].train.rows.tolist()
    alone = rounds.algorithm.split(fed, fed.clients[0])
    assert [len(part) for part in alone] == [1, 1]  # a single example does both
