"""FedRoD and APFL, whose clients keep a second head or a second model: what they become in neutral
settings, what stays with clients, and two rounds in plain torch.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.algorithms.personal.fedrod import log_prior
from hpcfed.comm import Serial
from hpcfed.models.personal import in_common
from tests.contract import toy
from tests.contract.referee import TWO, Referee, batch_of, mean
from tests.contract.test_equalities import FULL, near, run

MLP = ("--models.mix", "mlp")


def personal(name: str) -> bool:
    return not in_common(name)


# --- FedRoD


def test_the_common_model_of_fedrod_without_balance_is_fedavgs_to_the_bit():
    common = ("--evaluate.common", "true")
    ours = run("fedrod", "--algorithm.gamma", "0", *common)
    theirs = run("fedavg", *common)
    assert toy.differences(ours.state, theirs.state) == []
    for a, b in zip(ours.rows, theirs.rows, strict=True):
        assert a["rounds/accuracy_common"] == b["rounds/accuracy_common"]


def test_fedrod_of_equal_numbers_of_examples_is_fedavg():
    equal = ("--clients", "1", "--data.train_limit", "40")  # ten examples of each class
    assert near(run("fedrod", *FULL, *equal).state, run("fedavg", *FULL, *equal).state, 1e-6)


def test_two_rounds_of_fedrod_in_plain_torch():
    referee = Referee("fedrod", *TWO, "--algorithm.gamma", "0.7")
    common = referee.initial().pick(in_common)
    heads = {k: referee.initial().pick(personal) for k in range(6)}
    for name, value in heads[0].items():
        assert torch.equal(value, common[name.replace("personal", "head")])
    for cohort in referee.run():
        models = {}
        for k in cohort:
            y = batch_of(referee.rounds, k)[1]
            n = torch.bincount(y, minlength=toy.CLASSES).float()

            def objective(model, x, y, n=n):
                """The balanced softmax as a share, n_y e^(g_y) / sum_c n_c e^(g_c)."""
                z = model.body(x)
                g = model.head(z)
                weighed = n**0.7 * g.exp()
                share = weighed.gather(1, y[:, None])[:, 0] / weighed.sum(1)
                both = g.detach() + model.personal(z.detach())
                return -share.log().mean() + F.cross_entropy(both, y)

            models[k] = referee.train(k, {**common, **heads[k]}, objective)
        heads |= {k: model.pick(personal) for k, model in models.items()}
        common = mean(models).pick(in_common)
    assert near(referee.rounds.state, common, 1e-6)
    for k, client in referee.fed.clients.items():
        assert near(client.params(personal), heads[k], 1e-6)


def test_the_balanced_softmax_by_hand():
    prior = log_prior(np.array([9, 1]), 1.0)
    losses = [F.cross_entropy(prior[None], torch.tensor([c])).item() for c in (0, 1)]
    assert losses == pytest.approx([0.105361, 2.302585], abs=1e-6)
    assert log_prior(np.array([4, 0]), 0.5).tolist() == pytest.approx([np.log(2), -np.inf])
    assert log_prior(np.array([4, 0]), 0.0).tolist() == [0, 0]


def test_a_client_of_fedrod_predicts_by_both_heads():
    rounds = toy.start(Serial(), toy.job("fedrod", *MLP))
    rounds.step()
    client = rounds.fed.clients[4]
    x, _ = batch_of(rounds, 4)
    predict = rounds.algorithm.predictor(rounds.fed, client, rounds.state)
    model = client.model.eval()
    z = model.body(x)
    assert torch.equal(predict(x), model.head(z) + model.personal(z))
    zero = {name: value * 0 for name, value in client.params(personal).items()}
    client.load(zero)
    assert torch.equal(predict(x), model.classify_common(x))


# --- Both


@pytest.mark.parametrize("method", ["fedrod"])
def test_a_clients_own_part_starts_as_a_copy_of_pretrained_weights(method: str, tmp_path: Path):
    weights = toy.start(Serial(), toy.job("fedavg", *MLP, "--seed", "5")).fed.initial()
    torch.save(dict(weights), tmp_path / "weights.pt")
    flags = (*MLP, "--models.weights", str(tmp_path / "weights.pt"))
    start = toy.start(Serial(), toy.job(method, *flags)).fed.clients[4].params()
    assert toy.differences(start.pick(in_common), weights) == []
    copies = start.under("personal.")
    for name, value in copies.items():
        source = name if in_common(name) else f"head.{name}"
        assert torch.equal(value, weights[source]), name
    assert copies
