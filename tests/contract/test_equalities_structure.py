"""Methods that change the network itself: what they become in neutral settings, and what their
networks must not do.
"""

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch

from hpcfed.algorithms.base import RoundBased
from hpcfed.algorithms.global_model import fedrare
from hpcfed.algorithms.global_model.fedpan import encode_units
from hpcfed.algorithms.global_model.groups import row_groups
from hpcfed.algorithms.personal import factors
from hpcfed.algorithms.proxies import hyper
from hpcfed.algorithms.public_data import heterossfl
from hpcfed.algorithms.widths import inclusivefl
from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params
from hpcfed.models import build
from hpcfed.models.depths import family, find_row
from hpcfed.models.flat import Layout
from hpcfed.training.local import sgd
from tests.contract import toy
from tests.contract.test_equalities import run

SMALL = ("--models.mix", "small")


def model(name: str, shape=toy.SHAPE) -> torch.nn.Module:
    with rng.scoped(0, "model"):
        return build(name, shape, toy.CLASSES, toy.D)


@pytest.mark.parametrize(
    "ours, theirs",
    {
        ("fedpan", "--algorithm.amplitude", "0"): ("--algorithm.weighting", "uniform"),
        ("fed2", "--algorithm.groups", "1"): (),
        ("inclusivefl", "--algorithm.weighting", "uniform"): ("--algorithm.weighting", "uniform"),
    }.items(),
)
def test_without_its_change_of_the_network_a_method_is_fedavg(ours, theirs):
    one, other = run(*ours, *SMALL), run("fedavg", *theirs, *SMALL)
    if ours[0] == "inclusivefl":  # its state holds what the server keeps beside
        one = replace(one, state={name: v for name, v in one.state["models"].items()})
        other = replace(other, state=Params(other.state).prefixed("small/"))
    assert toy.differences(one, other) == []


def test_encodings_of_complete_waves_sum_to_zero_and_start_at_zero():
    for waves in (1, 3):
        e = encode_units(16, waves, 0.5)
        assert e[0] == 0 and abs(float(e.sum())) < 1e-12
    assert encode_units(4, 1, 0.5).tolist() == pytest.approx([0, 0.5, 0, -0.5])


@pytest.mark.parametrize("kind", ["add", "mul"])
def test_with_encodings_units_cannot_change_places(kind: str):
    """A hidden layer in another order is the same function, unless units know their position."""
    order = torch.randperm(200, generator=rng.torch_stream(0, "order"))
    x = torch.randn(5, *toy.SHAPE, generator=rng.torch_stream(0, "x"))
    for name, same in (("mlp", True), (f"mlp~pan_{kind}_1.0_0.15", False)):
        net = model(name)
        before = net(x)
        first, last = net.body[1], net.body[3]
        with torch.no_grad():
            for value in (first.weight, first.bias):
                value.copy_(value[order])
            last.weight.copy_(last.weight[:, order])
        assert torch.allclose(net(x), before, atol=1e-5) is same


def test_every_layer_of_the_body_is_encoded_once_after_its_normalisation():
    net = model("small~pan_add_1.0_0.15")
    encoded = [type(m).__name__ for m in net.modules() if m._forward_hooks]
    assert encoded == ["BatchNorm2d", "BatchNorm2d", "Linear"]
    resnet = model("resnet18~pan_add_1.0_0.15", (3, 8, 8))
    encoded = [name for name, m in resnet.named_modules() if m._forward_hooks]
    assert len(encoded) == 21 and "body.layer2.0.downsample.1" in encoded and "head" not in encoded


@pytest.mark.parametrize("name", ["small~groups_4_1", "resnet8~groups_4_3", "mlp~groups_2_1"])
def test_a_logit_of_fed2_reaches_no_other_group(name: str):
    net, shape = model(name), toy.SHAPE
    groups = row_groups(net)
    assert "head.weight" in groups and len(groups) >= 3
    x = torch.randn(7, *shape, generator=rng.torch_stream(0, "x"))
    for c in range(toy.CLASSES):
        net.zero_grad()
        net(x)[:, c].square().sum().backward()
        rows = groups["head.bias"][c]
        for path, value in net.named_parameters():
            if path in groups:
                elsewhere = torch.from_numpy(groups[path] != rows)
                assert not value.grad[elsewhere].any(), path
    reached = {path for path, value in net.named_parameters() if value.grad.any()}
    assert {path for path, _ in net.named_parameters()} - set(groups) <= reached


def test_a_group_of_fed2_without_clients_in_the_round_does_not_change():
    job = toy.job("fed2", *SMALL, "--participation", "1", "--rounds", "1")
    rounds = toy.start(Serial(), job)
    fed, method, before = rounds.fed, rounds.algorithm, rounds.state
    after = method.round(fed, before, [1], 0)  # who has class 2 alone, of group 2
    groups = row_groups(fed.module("small~groups_4_1").model)
    for name, of in groups.items():
        same = [torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True)]
        assert all(same[i] for i in range(len(of)) if of[i] != 2), name
    assert not torch.equal(before["head.weight"][2], after["head.weight"][2])
    assert not torch.equal(before["body.0.weight"], after["body.0.weight"])


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--algorithm.groups", "3"), "no multiple"),
        (("--algorithm.groups", "8"), "more than there are classes"),
        (("--algorithm.depth", "3"), "leaves no layer"),
        (("--models.mix", "shufflenetv2"), "groups may mix"),
    ],
)
def test_fed2_refuses_networks_that_it_cannot_divide(flags, words: str):
    mix = flags if "--models.mix" in flags else (*SMALL, *flags)
    with pytest.raises(ConfigError, match=words):
        toy.start(Serial(), toy.job("fed2", *mix))


class Alone(RoundBased):
    """What Hetero-SSFL's clients do without one another."""

    accepts: ClassVar[str] = "any models"
    views: ClassVar[int] = 2
    variants: ClassVar[tuple[str, ...]] = ("~predictor",)

    def shared(self, name):
        return False

    def round(self, fed, state, cohort, t):
        method = heterossfl.HeteroSSFL()
        for client in fed.mine(cohort):
            method.learn(fed, client, state, t, None, None)
        return state


def test_heterossfl_without_its_pull_is_each_client_alone():
    ours = run("heterossfl", "--algorithm.mu", "0")
    theirs = run(f"{__name__}:Alone")
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    assert not ours.column("down").any() and not ours.column("up").any()
    pulled = run("heterossfl").weights
    assert toy.differences(pulled, ours.weights)


def test_heterossfl_alone_is_at_the_mean_when_a_round_begins():
    """The mean of one client's kernels is its own: no distance, until it has moved."""
    rounds = toy.start(
        Serial(), toy.job("heterossfl", "--clients", "1", "--data.train_limit", "20")
    )
    fed, method = rounds.fed, rounds.algorithm
    mean = method.mean_kernel(fed, fed.public, [0])
    z = heterossfl.represent(fed, fed.clients[0], fed.public)
    away = lambda z: float(1 - heterossfl.similarity.cka_to_kernel(z, mean))  # noqa: E731
    assert away(z) == pytest.approx(0, abs=1e-5)
    turned = 3 * z @ torch.linalg.qr(torch.randn(toy.D, toy.D))[0]
    assert away(turned) == pytest.approx(0, abs=1e-5)


def test_the_training_loss_of_heterossfl_is_that_without_labels():
    """However long the probe trains, which counts as work alone."""
    one, three = (
        run("heterossfl", "--algorithm.mu", "0", "--algorithm.probe_epochs", n) for n in ("1", "3")
    )
    for name in ("train_loss", "epochs", "examples"):
        assert toy.differences(one.column(name), three.column(name)) == []
    assert (three.column("work") >= one.column("work")).all()
    assert three.column("work").sum() > one.column("work").sum()


def test_labels_never_reach_the_bodies_of_heterossfl(monkeypatch: pytest.MonkeyPatch):
    job = toy.job("heterossfl", "--rounds", "1", "--participation", "1", "--models.mix", "small")
    matches = []
    for shift in (0, 1):
        rounds = toy.start(Serial(), job)
        for client in rounds.fed.clients.values():
            client.train.labels = (client.train.labels + shift) % toy.CLASSES
        rounds.step()
        matches.append([c.params() for c in rounds.fed.clients.values()])
    for one, other in zip(*matches, strict=True):
        body = [n for n in one if n.startswith(("body.", "predictor."))]
        assert toy.differences([one[n] for n in body], [other[n] for n in body]) == []
        assert not torch.equal(one["head.weight"], other["head.weight"])


def test_the_objective_of_two_views_has_no_gradient_through_its_targets():
    a = torch.tensor([[1.0, 0.0]], requires_grad=True)
    b = torch.tensor([[3.0, 4.0]], requires_grad=True)
    value = heterossfl.likeness(a, b)
    value.backward()
    assert value.item() == pytest.approx(0.6) and b.grad is None
    assert a.grad.tolist()[0] == pytest.approx([0, 0.8])


class Factored(RoundBased):
    """FedAvg of a network in factors, by another way."""

    variants: ClassVar[tuple[str, ...]] = ("~factors_120_4.0_0.67_False",)


def test_waffle_without_scores_is_fedavg_of_the_factors():
    ours, theirs = (
        run("waffle", "--algorithm.personal", "false", "--algorithm.factors", "120"),
        run(f"{__name__}:Factored", *SMALL),
    )
    assert toy.differences(ours, theirs) == []
    with_scores = run("waffle").state
    assert with_scores.keys() == ours.state.keys()  # nor does any score leave its client


def layer(**how) -> factors.Factors:
    usual = {"number": 3, "alpha": 4.0, "temperature": 0.67, "personal": True}
    with rng.scoped(0, "layer"):
        return factors.Factors(5, 7, factors.How(**usual | how))


def test_a_layer_without_factors_is_zero():
    one = layer(number=1).eval()
    with torch.no_grad():
        one.gates.fill_(-9.0)
    assert one().shape == (5, 7) and not one().any()


def test_all_factors_with_scores_of_one_are_the_plain_product():
    ours = layer().eval()
    assert torch.equal(ours(), ours.left @ ours.right)


def test_a_relaxed_gate_becomes_the_hard_one_as_the_temperature_falls():
    logits = torch.tensor([-2.0, -0.1, 0.1, 3.0])
    assert factors.relax(logits, 1e-4).tolist() == pytest.approx([0, 0, 1, 1], abs=1e-6)
    assert factors.relax(logits, 1.0).tolist() == pytest.approx(torch.sigmoid(logits).tolist())


def test_a_posterior_that_is_the_prior_has_no_divergence():
    """Kumaraswamy(alpha, 1) is Beta(alpha, 1)."""
    four, one = torch.tensor(4.0), torch.tensor(1.0)
    assert float(factors.stick_divergence(four, one, 4.0)) == pytest.approx(0, abs=1e-6)
    logits = torch.tensor([-1.0, 0.5])
    same = factors.gate_divergence(logits, torch.sigmoid(logits))
    assert same.tolist() == pytest.approx([0, 0], abs=1e-6)
    half = factors.gate_divergence(torch.zeros(1), torch.tensor([0.25]))
    assert float(half) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75), abs=1e-6)


@pytest.mark.parametrize("c, d", [(2.0, 3.0), (1.5, 2.0)])
def test_the_divergence_of_sticks_is_the_integral(c: float, d: float):
    v = (np.arange(400_000) + 0.5) / 400_000
    q, p = c * d * v ** (c - 1) * (1 - v**c) ** (d - 1), 4.0 * v**3
    want = float(np.mean(q * np.log(q / p)))
    got = factors.stick_divergence(torch.tensor(c), torch.tensor(d), 4.0)
    assert float(got) == pytest.approx(want, rel=5e-3)


PLAIN = [f for n in ("exponent", "intra", "inter") for f in (f"--algorithm.{n}", "0")]


def test_fedrare_without_contrast_and_class_weights_is_fedavg():
    flags = tuple(f for f in PLAIN if f)
    outcome = toy.run(
        Serial(), toy.given("fedrare", "--algorithm.inter_after", "11", *flags, *SMALL)
    )
    want = toy.run(Serial(), toy.given("fedavg", "--local.keep_optimiser", "true", *SMALL))
    model = {n: v for n, v in outcome.state.items() if n != fedrare.VECTORS}
    assert toy.differences(model, want.state) == []


def described(means: list[list[float]], confidences: list[float | None]) -> torch.Tensor:
    """The vector of one class, of what clients say of it; None: nobody predicts it there."""
    rounds = toy.start(Serial(), toy.job("fedrare", *SMALL))
    fed, keep = rounds.fed, Params({fedrare.VECTORS: torch.full((1, 2), torch.nan)})
    parts = [
        (
            k,
            Mean.of(
                Params({fedrare.VECTORS: torch.tensor([mean])}),
                Params(
                    {fedrare.VECTORS: torch.tensor([[0.0 if c is None else np.exp(c)]]).float()}
                ),
            ),
        )
        for k, (mean, c) in enumerate(zip(means, confidences, strict=True))
    ]
    return fed.mean(parts, keep=keep, per="row")[fedrare.VECTORS][0]


def test_equal_confidences_make_the_plain_mean_and_one_client_its_own_vector():
    two = [[1.0, 0.0], [0.0, 3.0]]
    assert described(two, [0.3, 0.3]).tolist() == pytest.approx([0.5, 1.5])
    assert described(two, [0.3, None]).tolist() == pytest.approx([1, 0])
    surer = np.exp(1.0) / (np.exp(1.0) + 1)  # the softmax of 1 and 0
    assert described(two, [1.0, 0.0]).tolist() == pytest.approx([surer, 3 * (1 - surer)])
    assert described(two, [None, None]).isnan().all()


def test_class_weights_are_one_on_average_over_the_classes_that_are_there():
    w = fedrare.class_weights(torch.tensor([1, 8, 0]), 1.0)
    assert w.tolist() == pytest.approx([16 / 9, 2 / 9, 0])


def test_a_certain_prediction_has_confidence_one_and_a_uniform_one_zero():
    p = torch.tensor([[0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]])
    assert fedrare.confidence(p).tolist() == pytest.approx([1, 0, 0.25])


def test_the_contrast_with_vectors_uses_only_available_vectors():
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [torch.nan, torch.nan]])
    z = torch.tensor([[2.0, 0.0], [0.0, 5.0]], requires_grad=True)
    value = fedrare.to_vectors(z, torch.tensor([0, 2]), vectors, 1.0)  # nobody knows class 2
    assert value.item() == pytest.approx(0.5 * np.log(1 + np.exp(-1)))
    value.backward()
    assert z.grad.isfinite().all()


def test_a_single_rare_example_of_a_batch_gets_the_oldest_of_the_queue_which_becomes_the_newest():
    rounds = toy.start(Serial(), toy.job("fedrare", *SMALL))
    client, queues = rounds.fed.clients[5], {1: None}
    of_class = np.flatnonzero(client.train.labels == 1)
    ask = lambda *rows: rounds.algorithm.partner(client, np.array(rows), queues, 1)  # noqa: E731
    assert ask(of_class[0]) == -1  # nothing in the queue yet
    assert ask(of_class[1]) == of_class[0] and ask(of_class[1]) == of_class[0]  # never itself
    assert (
        ask(of_class[2], of_class[3]) == -1
        and queues[1].tolist() == of_class[[1, 0, 2, 3]].tolist()
    )
    assert ask(of_class[0]) == of_class[1] and queues[1].tolist() == of_class[[2, 3, 0, 1]].tolist()
    assert ask(of_class[0]) == of_class[2]


def test_fedrare_refuses_fields_without_effect():
    for flags, why in (
        (("--algorithm.intra", "0", "--algorithm.queue", "3"), "queue = 3 .*intra = 0"),
        (
            ("--algorithm.inter_after", "5", "--algorithm.inter", "1"),
            "inter = 1.0 .*inter_after = 5 and rounds = 3",
        ),
    ):
        with pytest.raises(ConfigError, match=why):
            toy.given("fedrare", *SMALL, *flags)


def test_a_clients_class_vectors_are_means_of_directions_as_the_public_code_has_them():
    """However long a representation is, it counts as much; the vector has length 1."""
    rounds = toy.start(Serial(), toy.job("fedrare", *SMALL, "--local.epochs", "10"))
    fed, client = rounds.fed, rounds.fed.clients[5]
    client.load(rounds.state.pick(lambda name: name != fedrare.VECTORS))
    sgd(fed, client, 0, partial(rounds.algorithm.loss, client, Params()))
    vectors, weights = rounds.algorithm.describe(fed, client)
    x, y = client.train.batch(np.arange(client.n))
    z = client.model.eval().body(fed.prepare(x)).detach()
    p = client.model.head(z).softmax(1).detach()
    for c in range(toy.CLASSES):
        right = (y == c) & (p.argmax(1) == y)
        if not right.any():
            assert vectors[c].tolist() == [0] * toy.D and weights[c] == 0
            continue
        mean = (z[right] / z[right].norm(dim=1, keepdim=True)).mean(0)
        assert torch.allclose(vectors[c], mean / mean.norm(), atol=1e-6)
        sure = ((p[right].max(1, keepdim=True).values - p[right]).sum(1) / 3).mean()
        assert weights[c].item() == pytest.approx(sure.exp().item(), rel=1e-5)
    assert (weights > 0).sum() >= 2


def test_the_size_of_a_hyper_network_does_not_depend_on_the_models():
    fed = toy.start(Serial(), toy.job("ghn")).fed
    assert len(set(fed.architectures)) > 3
    shared = [fed.shapes(fed.job.algorithm.shared, k) for k in range(fed.K)]
    assert len({tuple((n, v.shape) for n, v in one.items()) for one in shared}) == 1
    rest = {n for k in range(fed.K) for n in fed.shapes(k=k)} - set(shared[0])
    assert rest and all("running" in name for name in rest)  # no weight is a client's own


@pytest.mark.parametrize("name", ["fedhenn-1", "fedhenn-3", "fedhenn-5"])
def test_generated_weights_have_the_scale_of_their_inputs_and_units_that_differ(name: str):
    """Variance 2 / inputs, mean 0 over a unit's inputs, and no direction that all units share."""
    with rng.scoped(0, "generated"):
        net = build(f"{name}~hyper_64_2", (1, 16, 16), 512, 10)
    weights = {n: v for n, v in net.body.make().items() if v.dim() > 1} | net.head.make()
    for tensor in (v.detach().flatten(1) for v in weights.values() if v.dim() > 1):
        assert 0.75 < tensor.std() / (2 / tensor.shape[1]) ** 0.5 < 1.3
        assert tensor.mean(1).abs().max() < 1e-6
        energy = torch.linalg.svdvals(tensor).square()
        assert energy[0] < 0.4 * energy.sum()


def test_the_gradient_of_a_hyper_network_is_that_of_finite_differences():
    net = model("mlp~hyper_4_2").double()
    x = torch.randn(3, *toy.SHAPE, dtype=torch.float64, generator=rng.torch_stream(0, "x"))
    params = list(net.parameters())
    slope = torch.autograd.grad(net(x).square().sum(), params)
    way = [torch.randn(p.shape, dtype=p.dtype, generator=rng.torch_stream(0, "w")) for p in params]

    def moved(by: float) -> float:
        with torch.no_grad():
            for p, w in zip(params, way, strict=True):
                p += by * w
            value = net(x).square().sum().item()
            for p, w in zip(params, way, strict=True):
                p -= by * w
        return value

    want = (moved(1e-6) - moved(-1e-6)) / 2e-6
    got = sum((g * w).sum().item() for g, w in zip(slope, way, strict=True))
    assert got == pytest.approx(want, rel=1e-5) and all(g.any() for g in slope)


def test_the_order_of_a_graphs_nodes_does_not_matter():
    with rng.scoped(0, "hyper"):
        net = hyper.Hyper(8, 2)
    nodes, edges = hyper.describe(model("small"))
    order = torch.tensor([4, 1, 5, 0, 2, 3])
    states = net.encode(nodes, edges)
    turned = net.encode(nodes[order], edges[order][:, order])
    assert torch.allclose(turned, states[order], atol=1e-6)
    assert not torch.allclose(net.encode(nodes, edges.T), states, atol=1e-3)


class Layers(torch.nn.Module):
    """A stem, so many blocks of one weight, a last layer."""

    def __init__(self, blocks: int, last: int = 1):
        super().__init__()
        self.stem = torch.nn.Linear(1, 1, bias=False)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(blocks))
        self.last = torch.nn.Linear(1, last, bias=False)


def two_depths(**method):
    """Tiers a, of one block, and b, of three, by name their tensors; and the method."""
    kin = family({"b": Layout.of(Layers(3)), "a": Layout.of(Layers(1))})
    values = lambda *v: {  # noqa: E731
        name: torch.tensor([[float(x)]])
        for name, x in zip(
            ("stem.weight", *(f"blocks.{i}.weight" for i in range(len(v) - 2)), "last.weight"),
            v,
            strict=True,
        )
    }
    return kin, values, inclusivefl.InclusiveFL(**method)


def join(a, b):
    return Params({f"a/{n}": v for n, v in a.items()} | {f"b/{n}": v for n, v in b.items()})


@pytest.mark.parametrize("source, momentum", [("last", (4 + 2 + 6) / 3), ("above", (2 + 6) / 2)])
def test_layers_of_two_depths_are_averaged_and_the_shallow_ones_last_is_distilled(source, momentum):
    kin, values, method = two_depths(beta=0.25, distil_from=source)
    assert (kin.row, dict(kin.depths), kin.tiers) == ("blocks", {"a": 1, "b": 3}, ["a", "b"])
    old = join(values(0, 0, 0), values(0, 0, 0, 0, 0))
    before = Params({"b/weight": torch.tensor([[8.0]])})
    state = inclusivefl.State(old, before, Params(), Params(), torch.zeros(2, dtype=torch.int64))
    means = join(values(1, 2, 3), values(5, 4, 2, 6, 7))
    new = method.step(kin, state, means, {"a": 0.25, "b": 0.75})
    models = {name: float(v) for name, v in new.models.items()}
    assert models == {
        "a/stem.weight": 4.0,  # 0.25 * 1 + 0.75 * 5, of both
        "b/stem.weight": 4.0,
        "a/blocks.0.weight": 3.5,  # the tier's own: 0.75 * 2 + 0.25 * 8
        "a/last.weight": 3.0,
        "b/blocks.0.weight": 4.0,  # of b alone, for it is the last one of a
        "b/blocks.1.weight": 2.0,
        "b/blocks.2.weight": 6.0,
        "b/last.weight": 7.0,
    }
    assert {n: float(v) for n, v in new.momentum.items()} == {"b/weight": momentum}


def test_a_depth_without_clients_keeps_its_last_layers_and_has_no_momentum():
    kin, values, method = two_depths()
    old = join(values(1, 1, 1), values(1, 1, 1, 1, 1))
    before = Params({"b/weight": torch.tensor([[5.0]])})
    state = inclusivefl.State(old, before, Params(), Params(), torch.zeros(2, dtype=torch.int64))
    new = method.step(kin, state, join(values(3, 3, 3), values(1, 1, 1, 1, 1)), {"a": 1, "b": 0})
    assert float(new.models["b/stem.weight"]) == float(new.models["a/stem.weight"]) == 3
    assert [float(new.models[f"b/{n}"]) for n in ("blocks.0.weight", "last.weight")] == [1, 1]
    assert float(new.momentum["b/weight"]) == 0


def test_the_first_step_of_the_servers_adam_has_the_size_of_its_rate():
    kin, values, method = two_depths(server_optimiser="adam", server_lr=0.5, beta=0)
    old = join(values(0, 0, 0), values(0, 0, 0, 0, 0))
    steps = torch.zeros(2, dtype=torch.int64)
    state = inclusivefl.State(old, Params(), old * 0, old * 0, steps)
    new = method.step(kin, state, join(values(1, -2, 3), values(-5, 4, 2, 0, 7)), {"a": 1, "b": 1})
    models = [round(float(v), 6) for v in new.models.values()]
    assert models == [0, -0.5, 0.5, 0, 0.5, 0.5, 0, 0.5] and new.steps.tolist() == [1, 1]


def test_layers_that_several_depths_have_are_the_same_bits_in_each_and_last_ones_are_not():
    rounds = toy.start(Serial(), toy.job("inclusivefl", "--participation", "1"))
    rounds.step()
    models = rounds.state.models
    assert {n.partition("/")[0] for n in models} == {"resmlp-2", "resmlp-4"}
    shallow, deep = (models.under(f"resmlp-{n}/") for n in (2, 4))
    same = {name for name in shallow if torch.equal(shallow[name], deep[name])}
    assert same == {n for n in shallow if n.startswith(("body.stem.", "body.blocks.0."))}


def test_the_row_of_blocks_of_a_transformer_is_found_by_names_and_shapes():
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 3
    )
    assert find_row({n: tuple(v.shape) for n, v in encoder.named_parameters()}) == ("layers", 3)
    resnet = {n: tuple(v.shape) for n, v in model("resnet18", (3, 8, 8)).named_parameters()}
    assert find_row(resnet) == ("body.layer1", 2)
    assert find_row({"0.weight": (3, 2), "2.weight": (3, 2)}) == ("", 0)


@pytest.mark.parametrize(
    "layers, words",
    [
        ((Layers(2), Layers(3, last=2)), r"weight has shape \[2, 1\] in m1 and \[1, 1\] in m0"),
        ((Layers(2), torch.nn.Linear(1, 1)), "only one of them has bias"),
        ((Layers(2), Layers(2)), "two have as many blocks"),
    ],
)
def test_models_that_differ_in_more_than_depth_are_refused(layers, words: str):
    with pytest.raises(ConfigError, match=words):
        family({f"m{i}": Layout.of(layer) for i, layer in enumerate(layers)})
