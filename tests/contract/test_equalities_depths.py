"""DepthFL: what it becomes in neutral settings, two rounds in plain torch, and what must hold of
exits behind inner blocks.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hpcfed.algorithms.widths.depthfl import common_names, divergence, rise
from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.models import build
from hpcfed.models.exits import add_exits
from hpcfed.models.model import Head, Model
from tests.contract import referee, toy
from tests.contract.test_equalities import run

ONE_EXIT = ("--models.mix", "resmlp-2", "--algorithm.every", "2")
DEPTHS = ("--models.mix", "resmlp-2,resmlp-4", "--algorithm.every", "2")
LAM, ALPHA = 0.5, 0.2


@pytest.mark.parametrize(("alpha", "other"), [("0", "fedavg"), ("0.3", "feddyn")])
def test_with_one_exit_it_is_fedavg_or_feddyn(alpha: str, other: str):
    terms = () if other == "fedavg" else ("--algorithm.alpha", alpha)
    theirs = run(other, "--models.mix", "resmlp-2", "--algorithm.weighting", "uniform", *terms)
    ours = run("depthfl", *ONE_EXIT, "--algorithm.alpha", alpha)
    if other == "fedavg":
        theirs = replace(theirs, state={"x": theirs.state, "h": Params()})
    assert toy.differences(ours, theirs) == []


def exits_in_plain_torch(model: Model, x: torch.Tensor) -> list[torch.Tensor]:
    """The logits of the exits behind each two blocks, from the module's layers by their names."""
    z, outputs = model.body.stem(x), []
    for i, block in enumerate(model.body.blocks, start=1):
        z = torch.relu(z + block.path(z))
        if i % 2 == 0 and i < len(model.body.blocks):
            inner = model.exits[str(i)]
            outputs.append(inner.head(inner.body.last(z)))
    return [*outputs, model.head(model.body.last(z))]


def mutual(outputs: list[torch.Tensor], y: torch.Tensor, strength: float) -> torch.Tensor:
    value = sum(F.cross_entropy(z, y) for z in outputs)
    for i, z in enumerate(outputs):
        for j, other in enumerate(outputs):
            if i != j:
                q = torch.softmax(other, 1).detach()
                divergence = (q * (q.log() - torch.log_softmax(z, 1))).sum(1).mean()
                value = value + strength / (len(outputs) - 1) * divergence
    return value


def test_two_rounds_are_those_of_plain_torch():
    flags = ("--algorithm.lam", str(LAM), "--algorithm.ramp", "2", "--algorithm.alpha", str(ALPHA))
    flags = (*referee.FULL, *DEPTHS, *flags)
    rounds = toy.start(Serial(), toy.job("depthfl", *flags))
    models, fed = referee.models_of(rounds), rounds.fed
    common = {k: common_names(fed, fed.architectures[k]) for k in models}
    x, h = Params(rounds.state.x).clone(), rounds.state.x * 0
    duals = {
        k: {n: torch.zeros_like(v) for n, v in m.named_parameters()} for k, m in models.items()
    }
    for t in range(2):
        strength = LAM * torch.tensor(-5 * (1 - t / 2) ** 2).exp()
        for k, model in models.items():
            model.load_state_dict({name: x[c] for name, c in common[k].items()})
            before = Params(model.state_dict()).clone()
            batch, y = referee.batch_of(rounds, k)
            value = mutual(exits_in_plain_torch(model, batch), y, strength)
            for name, weight in model.named_parameters():
                far = (weight - before[name]).square().sum()
                value = value - (duals[k][name] * weight).sum() + ALPHA / 2 * far
            referee.descend(value, model)
            for name, weight in model.named_parameters():
                duals[k][name] = duals[k][name] - ALPHA * (weight.detach() - before[name])
        for name in x:
            sent = [
                model.state_dict()[inner].clone()
                for k, model in models.items()
                for inner, outer in common[k].items()
                if outer == name
            ]
            mean = torch.stack(sent).mean(0)
            h[name] = h[name] - ALPHA * len(sent) / 6 * (mean - x[name])
            x[name] = mean - h[name] / ALPHA
        rounds.step()
    for name, value in x.items():
        assert torch.allclose(rounds.state.x[name], value, rtol=0, atol=1e-5), name


def test_a_tensor_that_nobody_in_the_round_has_keeps_its_value():
    rounds = toy.start(Serial(), toy.job("depthfl", *DEPTHS, "--participation", "1"))
    rounds.step()
    before = rounds.state
    after = rounds.algorithm.round(rounds.fed, before, [0, 2], 1)  # two of two blocks
    same = {name for name in before.x if torch.equal(before.x[name], after.x[name])}
    deep = ("body.blocks.2.", "body.blocks.3.", "exits.4.")
    assert same == {name for name in before.x if name.startswith(deep)}
    assert {name for name in before.h if torch.equal(before.h[name], after.h[name])} == same


def test_the_weight_of_learning_from_each_other_rises_over_the_rounds():
    values = [rise(t, 300) for t in (0, 60, 150, 300, 400)]
    assert values == pytest.approx([0.006738, 0.040762, 0.286505, 1, 1], abs=1e-6)
    assert rise(0, 0) == 1


def test_exits_that_agree_or_have_no_other_do_not_diverge():
    z = torch.tensor([[1.0, 2.0, 0.0, 0.0]])
    assert divergence([z]) == 0 and abs(divergence([z, z, z])) < 1e-6
    p, q = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    both = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
    assert divergence([p.log(), q.log()]).item() == pytest.approx(both.item(), abs=1e-6)


def test_each_exit_is_a_copy_of_what_follows_the_blocks():
    with rng.scoped(0, "model"):
        model = build("rescnn-4~exits_1", (3, 8, 8), 4, 16)
    assert list(model.exits) == ["1", "2", "3"]
    x = torch.randn(5, 3, 8, 8, generator=rng.torch_stream(0, "x"))
    outputs = model.eval().logits(x)
    assert torch.equal(outputs[-1], model.head(model.body(x)))
    assert torch.equal(model(x), torch.stack(outputs).mean(0))
    for i, z in zip((1, 2, 3), outputs, strict=False):
        cut = nn.Sequential(model.body.stem, *model.body.blocks[:i], model.body.last)
        assert torch.equal(z, model.head(cut(x)))
    outputs[1].sum().backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None}
    assert {name.split(".")[1] for name in trained if name.startswith("exits.")} == {"2"}
    assert not any(name.startswith(("body.blocks.2", "head.", "body.last")) for name in trained)


def test_exits_start_as_copies_of_pretrained_weights(tmp_path: Path):
    mlp = ("--models.mix", "resmlp-4")
    weights = toy.start(Serial(), toy.job("fedavg", *mlp, "--seed", "5")).fed.initial()
    torch.save(dict(weights), tmp_path / "weights.pt")
    flags = (*mlp, "--models.weights", str(tmp_path / "weights.pt"))
    start = toy.start(Serial(), toy.job("depthfl", *flags)).fed.initial()
    assert toy.differences(start.pick(weights.__contains__), weights) == []
    for i in (1, 2, 3):
        copy = start.under(f"exits.{i}.")
        assert copy and toy.differences(copy, weights.pick(copy.__contains__)) == []


class Nested(nn.Sequential):
    """Blocks inside another part of the body."""

    def __init__(self):
        blocks = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
        super().__init__(nn.Sequential(nn.Linear(4, 6), blocks, nn.ReLU()), nn.Linear(6, 5))


def test_blocks_inside_other_parts_get_exits_too():
    model = add_exits(Model(Nested(), Head(5, 3)), 2)
    x = torch.ones(2, 4)
    shallow, deep = model.logits(x)
    inner, last = model.body
    z = inner[1][1](inner[1][0](inner[0](x)))
    assert torch.equal(shallow, model.head(last(inner[2](z))))
    assert torch.equal(deep, model.head(model.body(x)))


def test_models_whose_blocks_cannot_run_apart_or_differ_in_their_exits_are_refused():
    flags = ("--models.mix", "resmlp-2,resmlp-4", "--algorithm.every", "3")
    with pytest.raises(ConfigError, match="algorithm.every = 3"):
        toy.start(Serial(), toy.job("depthfl", *flags))
    with pytest.raises(ConfigError, match="take a body of nn.Sequential"):
        add_exits(build("resnet18", (3, 8, 8), 4, 16), 1)
