"""Sub-models: aggregation, masks, scaler, batch statistics and nested widths, with values computed
by hand.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hpcfed.algorithms.widths import fjord, submodels
from hpcfed.comm import Serial
from hpcfed.core.averaging import mean_of
from hpcfed.core.params import Mean, Params
from hpcfed.models.scores import mask_logits
from tests.contract import toy
from tests.contract.conftest import small_model  # noqa: F401, has its effect by being here
from tests.on_device import mean_on_both


def a_client(
    architecture: str = "cnn", labels: tuple[int, ...] = (), **tensors: torch.Tensor
) -> SimpleNamespace:
    """As much of a client as the formulas look at."""
    values = Params({name.replace("_", "."): v for name, v in tensors.items()})
    train = SimpleNamespace(labels=np.array(labels, dtype=np.int64))
    return SimpleNamespace(architecture=architecture, train=train, params=values.clone)


def averaged(old: Params, parts: list[Mean]) -> Params:
    return mean_on_both([part for mean in parts for part in mean.terms], old, "value")


def head(value: float, inputs: int) -> dict[str, torch.Tensor]:
    return {"head_weight": torch.full((3, inputs), value), "head_bias": torch.full((3,), value)}


OLD = Params({"head.weight": torch.full((3, 4), 9.0), "head.bias": torch.full((3,), 9.0)})
HALF = {"head.weight": (np.arange(3), np.arange(2))}  # the first two of four inputs, all classes


def test_the_common_block_is_the_mean_of_all_the_rest_that_of_the_large():
    large = submodels.upload(a_client(**head(1.0, 4)), {}, 1.0)
    small = submodels.upload(a_client("cnn@0.5", **head(4.0, 2)), HALF, 1.0)
    new = averaged(OLD, [large, small, small])
    assert new["head.weight"].tolist() == [[3.0, 3.0, 1.0, 1.0]] * 3  # (1 + 4 + 4) / 3
    assert new["head.bias"].tolist() == [3.0] * 3


def test_weights_count_by_value_and_values_without_clients_stay():
    parts = [
        submodels.upload(a_client("cnn@0.5", **head(v, 2)), HALF, w)
        for v, w in ((1.0, 30.0), (2.0, 10.0))
    ]
    assert averaged(OLD, parts)["head.weight"].tolist() == [[1.25, 1.25, 9.0, 9.0]] * 3


def test_rows_of_classes_that_a_client_lacks_are_neither_sent_nor_changed():
    part = submodels.upload(
        a_client("cnn@0.5", **head(1.0, 2)), HALF, 1.0, classes=np.array([0, 2])
    )
    new = averaged(OLD, [part])
    assert new["head.weight"].tolist() == [[1.0, 1.0, 9.0, 9.0], [9.0] * 4, [1.0, 1.0, 9.0, 9.0]]
    assert new["head.bias"].tolist() == [1.0, 9.0, 1.0]
    assert part.nbytes == 4 * (2 * 2 + 2)


def test_a_masked_class_counts_as_zero_or_not_at_all():
    logits = torch.tensor([[1.0, 5.0, 2.0]])
    present = submodels.present_classes(a_client(labels=(2, 0, 0)), 3)
    assert present.tolist() == [0, 2]
    assert mask_logits(logits, present, "zero").tolist() == [[1.0, 0.0, 2.0]]
    assert mask_logits(logits, present, "drop").tolist() == [[1.0, -torch.inf, 2.0]]
    assert mask_logits(logits, present, "none") is logits
    loss = F.cross_entropy(mask_logits(logits, present, "zero"), torch.tensor([2]))
    assert loss.item() == pytest.approx(
        -np.log(np.e**2 / (np.e + 1 + np.e**2))
    )  # e^0 of the absent class stays


def test_the_scaler_multiplies_hidden_layers_by_one_over_the_width_and_goes_away():
    body, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 3)
    client = SimpleNamespace(architecture="cnn@0.5", model=SimpleNamespace(body=body))
    hidden = body[0](x)
    want, before = 2 * body[2](F.relu(2 * hidden)), body(x)
    with submodels.scale_outputs(client):
        assert torch.equal(body(x), want)
    assert torch.equal(body(x), before)
    for architecture, active in (("cnn", True), ("cnn@0.5", False)):
        client.architecture = architecture
        with submodels.scale_outputs(client, active):
            assert torch.equal(body(x), before)


def test_static_statistics_are_those_of_a_pass_over_the_clients_data():
    rounds = toy.start(Serial(), toy.job("heterofl", "--models.widths", "1,0.5"))
    fed, client = rounds.fed, rounds.fed.clients[4]
    fed.participants.begin(0, [4], keep_stragglers=False)
    weights = rounds.state.weights
    measured = statistics(submodels.measure(fed, client, weights, ["small@0.5"]))
    x = fed.prepare(client.train.batch(np.arange(client.n))[0])
    maps = F.conv2d(x, weights["body.0.weight"][:4], weights["body.0.bias"][:4], padding=1).double()
    assert torch.allclose(
        measured["small@0.5/body.1.running_mean"], maps.mean((0, 2, 3)), atol=1e-6
    )
    assert torch.allclose(
        measured["small@0.5/body.1.running_var"], maps.var((0, 2, 3), correction=0), atol=1e-6
    )
    assert set(measured) == {
        f"small@0.5/body.{i}.running_{what}" for i in (1, 6) for what in ("mean", "var")
    }
    alone = submodels.measure(fed, fed.clients[0], weights, ["small@0.5"]).terms[0].value
    assert set(alone) == {
        f"small@0.5/body.1.running_{what}" for what in ("mean", "var")
    }  # 1x1 maps of one example


def statistics(*parts: Mean) -> Params:
    """What these clients' moments become together."""
    values = [part for mean in parts for part in mean.terms]
    keep = values[0].value.map(lambda v: torch.full_like(v, torch.nan))
    return submodels.pool_statistics(
        mean_of(values, keep, "tensor", Serial().sum), keep.map(torch.ones_like)
    )


def test_the_pooled_variance_is_that_of_all_clients_values_together():
    """Values 1, 3 of one client and 10 of another: mean 14 / 3, variance 110 / 3 - 196 / 9."""

    def moments(values: list[float]) -> Mean:
        x, hook = torch.tensor(values), submodels.Moments()
        hook(nn.BatchNorm1d(1), (x[:, None],), x)
        totals = Params({"a/n.running_mean": hook.total / hook.count})
        totals["a/n.running_var"] = hook.squares / hook.count
        return Mean.of(totals, Params(dict.fromkeys(totals, torch.tensor(float(hook.count)))))

    got = statistics(moments([1.0, 3.0]), moments([10.0]))
    assert got["a/n.running_mean"].tolist() == pytest.approx([14 / 3], rel=1e-12)
    assert got["a/n.running_var"].tolist() == pytest.approx([110 / 3 - 196 / 9], rel=1e-12)


def test_static_statistics_are_those_of_the_cohorts_pooled_values():
    rounds = toy.start(Serial(), toy.job("heterofl", "--participation", "1", "--rounds", "1"))
    fed = rounds.fed
    rounds.step()
    weights, stats = rounds.state.weights, rounds.state.statistics
    x = torch.cat([fed.prepare(c.train.batch(np.arange(c.n))[0]) for c in fed.clients.values()])
    maps = F.conv2d(x, weights["body.0.weight"], weights["body.0.bias"], padding=1).double()
    want = {"mean": maps.mean((0, 2, 3)), "var": maps.var((0, 2, 3), correction=0)}
    for what, value in want.items():
        assert torch.allclose(stats[f"small/body.1.running_{what}"].double(), value, rtol=1e-5)


def test_statistics_of_a_layer_that_saw_no_batch_stay_as_they_were():
    nobody = Params({f"a/n.running_{what}": torch.tensor([torch.nan]) for what in ("mean", "var")})
    old = Params({"a/n.running_mean": torch.tensor([0.1]), "a/n.running_var": torch.tensor([0.3])})
    assert toy.differences(submodels.pool_statistics(nobody, old), old) == []


def test_the_model_inside_computes_what_the_narrow_one_does_and_its_gradients_its_block_alone():
    rounds = toy.start(
        Serial(), toy.job("fjord", "--models.widths", "1,0.5,0.25", "--models.mix", "cnn")
    )
    fed, client = rounds.fed, rounds.fed.clients[4]
    rounds.algorithm.receive(client, rounds.algorithm.offer(fed, client, rounds.state))
    narrow = fed.clients[5 if fed.architectures[5].endswith("0.25") else 2]
    rounds.algorithm.receive(narrow, rounds.algorithm.offer(fed, narrow, rounds.state))
    assert (client.architecture, narrow.architecture) == ("cnn@0.5", "cnn@0.25")
    x = fed.prepare(client.train.batch(np.arange(3))[0])
    inner = fjord.inner_model(fed, client, "cnn@0.25", {})
    assert torch.allclose(inner(x), narrow.model(x), atol=1e-6)
    client.skeleton.zero_grad()
    inner(x).square().sum().backward()
    reached = client.model.body[3].weight.grad.abs().sum((2, 3)) > 0  # [32, 16] of the half model
    assert reached[:16, :8].any() and not reached[16:].any() and not reached[:, 8:].any()


def test_a_narrow_client_changes_neither_the_outer_block_nor_the_full_models_statistics():
    rounds = toy.start(
        Serial(), toy.job("fjord", "--models.widths", "0.25", "--participation", "1")
    )
    before = rounds.state
    rounds.step()
    weights, statistics = rounds.state.weights, rounds.state.statistics
    assert torch.equal(weights["body.0.weight"][2:], before.weights["body.0.weight"][2:])
    assert not torch.equal(weights["body.0.weight"][:2], before.weights["body.0.weight"][:2])
    assert torch.equal(weights["body.1.running_mean"], before.weights["body.1.running_mean"])
    name = "small@0.25/body.1.running_mean"
    assert statistics[name].shape == (2,) and not torch.equal(
        statistics[name], before.statistics[name]
    )


@pytest.mark.parametrize("kd", ["false", "true"])
def test_a_step_of_ordered_dropout_is_the_loss_at_the_width_drawn_with_kd_of_the_whole_model_too(
    kd: str,
):
    rounds = toy.start(Serial(), toy.job("fjord", "--models.widths", "1,0.5", "--algorithm.kd", kd))
    full, slim, y = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 1.0]]), torch.tensor([0])
    nets = [lambda x: full, lambda x: slim]

    def step(i: int) -> float:
        draws = SimpleNamespace(integers=lambda n: i)
        client = rounds.fed.clients[0]
        return rounds.algorithm.step(client, Params(), nets, draws, nets[0], None, y).item()

    soft = np.exp([1.0, 3.0]) / np.exp([1.0, 3.0]).sum()
    other = np.log(np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum())
    assert step(0) == pytest.approx(-np.log(soft[0]))
    gap = (soft * (np.log(soft) - other)).sum()  # KL(whole || slim)
    assert step(1) == pytest.approx(-np.log(soft[0]) + gap if kd == "true" else -other[0])
