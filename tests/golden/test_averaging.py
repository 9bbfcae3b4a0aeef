"""Averaging and its traffic by hand: FedClassAvg's classifier, FedAvg's model, and what they
weigh.
"""

import math

import pytest
import torch

from hpcfed.comm import Serial
from hpcfed.core.averaging import mean_of
from hpcfed.core.params import Params, Term
from hpcfed.engine.rounds import Rounds
from tests.contract import toy

HEAD = toy.D * toy.CLASSES + toy.CLASSES
MLP = 64 * 200 + 200 + 200 * toy.D + toy.D + HEAD  # images of 8x8, one hidden layer of 200 units
TRAFFIC = {
    "local": 0,
    "central": 0,
    "fedclassavg": 4 * HEAD,
    "fedavg": 4 * MLP,
    "fedprox": 4 * MLP,
    "fedsgd": 4 * MLP,
}


def started(method: str, *flags: str) -> Rounds:
    """Clients whose local training sets all weights to 1, 5, 9, ... by id; clients 0 and 1 have 1
    and 3 examples.
    """
    rounds = toy.start(Serial(), toy.job(method, "--models.mix", "mlp", *flags))
    for k, n in enumerate((1, 3, 4)):
        train = rounds.fed.clients[k].train
        train.rows = rounds.fed.clients[5].train.rows[:n]
        assert len(train) == n
    return rounds


@pytest.fixture(autouse=True)
def training_by_hand(monkeypatch: pytest.MonkeyPatch):
    def train(fed, client, *_: object, **__: object) -> None:
        client.skeleton.flat.fill_(1.0 + 4.0 * client.id)

    monkeypatch.setattr("hpcfed.algorithms.base.sgd", train)


def averaged(rounds: Rounds, cohort: list[int]) -> Params:
    rounds.fed.participants.begin(0, cohort, False)
    return rounds.algorithm.round(rounds.fed, rounds.state, cohort, 0)


def values(state: Params) -> set[float]:
    """All values that occur in a state."""
    return {v for tensor in state.values() for v in tensor.unique().tolist()}


@pytest.mark.parametrize("method", ["fedavg", "fedclassavg"])
def test_the_mean_is_weighted_by_examples(method: str):
    assert values(averaged(started(method), [0, 1])) == {4.0}  # (1 * 1 + 3 * 5) / (1 + 3)


@pytest.mark.parametrize("method", ["fedavg", "fedclassavg"])
def test_the_weights_are_renormalised_over_the_clients_that_report(method: str):
    assert values(averaged(started(method), [1])) == {5.0}
    assert list(values(averaged(started(method), [1, 2]))) == [
        pytest.approx((3 * 5 + 4 * 9) / 7, rel=1e-7)
    ]


@pytest.mark.parametrize("method", ["fedavg", "fedclassavg"])
def test_uniform_weights_are_the_plain_mean(method: str):
    assert values(averaged(started(method, "--algorithm.weighting", "uniform"), [0, 1])) == {3.0}


def test_fedclassavg_averages_the_classifier_and_leaves_bodies_alone():
    rounds = started("fedclassavg")
    state = averaged(rounds, [0, 1])
    assert {name: tuple(v.shape) for name, v in state.items()} == {
        "head.weight": (toy.CLASSES, toy.D),
        "head.bias": (toy.CLASSES,),
    }
    received = []
    for k, value in ((0, 1.0), (1, 5.0)):
        rounds.algorithm.receive(rounds.fed.clients[k], state)
        assert values(rounds.fed.clients[k].params(lambda name: name.startswith("body."))) == {
            value
        }
        received.append(rounds.fed.clients[k].params(state.__contains__))
    assert values(received[0]) == values(received[1]) == {4.0}


@pytest.mark.parametrize(
    "prox, want", [("norm", 2 * HEAD**0.5), ("squared", 2.0 * HEAD), ("mse", 0.5 * (4 + 4))]
)
def test_fedclassavgs_proximal_term_covers_the_classifier_alone_when_all_is_shared_too(
    prox: str, want: float
):
    flags = (
        "--algorithm.share",
        "all",
        "--algorithm.rho",
        "0.5",
        "--algorithm.contrastive",
        "false",
    )
    rounds = started("fedclassavg", *flags, "--algorithm.prox", prox)
    client, state = rounds.fed.clients[0], rounds.state.map(lambda v: v * 0 + 3)
    client.skeleton.flat.fill_(1.0)  # every weight is 2 from the anchor
    x, y = torch.zeros(1, *toy.SHAPE), torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        value = rounds.algorithm.loss(client, state, client.model, x, y)
    assert value.item() == pytest.approx(
        math.log(toy.CLASSES) + 0.5 * want, rel=1e-6
    )  # all logits are equal


@pytest.mark.parametrize("method", TRAFFIC)
def test_the_bytes_of_a_client_and_round_are_those_of_the_tensors_in_float32(method: str):
    rounds = toy.start(Serial(), toy.job(method, "--models.mix", "mlp"))
    assert rounds.algorithm.traffic(rounds.fed, 0) == (TRAFFIC[method], TRAFFIC[method])


def test_the_papers_classifier_of_512_features_and_10_classes_is_20520_bytes():
    digits = ("--data.name", "digits", "--clients", "2", "--data.train_limit", "40")
    rounds = started_on(
        *digits, "--models.mix", "mlp,fedhenn-2", "--models.d", "512", "--participation", "1"
    )
    row, _ = rounds.step()
    assert rounds.algorithm.traffic(rounds.fed, 0) == (20_520, 20_520)
    assert row["clients/down"].tolist() == row["clients/up"].tolist() == [20_520, 20_520]


def started_on(*flags: str) -> Rounds:
    return toy.start(Serial(), toy.job("fedclassavg", *flags))


def test_each_mean_begins_where_new_memory_would():
    """A product of matrices may have other last bits elsewhere, as after a checkpoint."""
    keep = Params(bias=torch.zeros(3), weight=torch.zeros(5, 7), scale=torch.zeros(()))
    term = Term(keep.map(lambda value: value + 1), 2.0, {})
    means = mean_of([term], keep, "mean", Serial().sum)
    assert [value.data_ptr() % 16 for value in means.values()] == [0, 0, 0]
    assert all(torch.equal(value, torch.ones_like(value)) for value in means.values())
