"""Methods whose clients start from, or are drawn to, mixtures of models: what they become, and two
rounds in plain torch.
"""

import numpy as np
import pytest
import torch

from hpcfed.algorithms.personal import fedala, fedfomo, fedpac
from hpcfed.algorithms.personal.fedrep import FedRep
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.models.model import in_head
from tests.contract import toy
from tests.contract.referee import TWO, Referee, batch_of, cross_entropy, mean
from tests.contract.test_equalities import ONE, near, run, start_alike

ALL = ("--participation", "1")
MLP, SMALL = ("--models.mix", "mlp"), ("--models.mix", "small")


def trained(method: str, *flags: str) -> dict[int, Params]:
    """The clients' models after three rounds that begin with one model for all."""
    rounds = toy.start(Serial(), toy.job(method, *flags))
    rounds.fed.start_alike()
    for _ in range(3):
        rounds.step()
    return {k: client.params() for k, client in rounds.fed.clients.items()}


def test_fedala_whose_weights_stay_one_is_fedavg():
    flags = ("--algorithm.eta", "0", "--algorithm.first_epochs", "100")
    ours, theirs = run("fedala", *SMALL, *flags), run("fedavg", *SMALL)
    assert toy.differences(ours.state, theirs.state) == []
    for column in ("train_loss", "accuracy_before", "examples", "down", "up"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_fedala_whose_weights_become_zero_in_all_layers_is_local_training(monkeypatch):
    monkeypatch.setattr(
        fedala, "descend", lambda weights, *_: weights.map(torch.zeros_like), raising=True
    )
    flags = (*MLP, *ALL, "--algorithm.layers", "9", "--algorithm.first_epochs", "1")
    assert toy.differences(trained("fedala", *flags), trained("local", *MLP, *ALL)) == []


def test_fedalas_weights_are_those_of_the_last_layers_and_stay_in_their_range():
    rounds = toy.start(Serial(), toy.job("fedala", *SMALL, *ALL, "--algorithm.eta", "100"))
    fed, names = rounds.fed, {"head.weight", "head.bias"}
    rounds.step()
    assert not any("weights" in client.memory for client in fed.clients.values())
    rounds.step()
    learned = torch.cat(
        [v.flatten() for c in fed.clients.values() for v in c.memory["weights"].values()]
    )
    assert learned.min() == 0 and learned.max() == 1 and ((0 < learned) & (learned < 1)).any()
    for client in fed.clients.values():
        before = client.params()
        rounds.algorithm.receive(client, rounds.state)
        assert set(client.memory["weights"]) == names
        rest = client.params(lambda name: name not in names)
        assert toy.differences(rest, rounds.state.pick(rest.__contains__)) == []
        client.load(before)


def test_two_rounds_of_fedala_in_plain_torch():
    passes = ("--algorithm.first_epochs", "3", "--algorithm.share", "1")
    referee = Referee("fedala", *TWO, *ALL, *passes, "--algorithm.layers", "2")
    names = ("body.3.weight", "body.3.bias", "head.weight", "head.bias")
    w, v, weights = referee.initial(), dict.fromkeys(range(6), referee.initial()), {}
    for t, cohort in enumerate(referee.run()):
        models = {}
        for k in cohort:
            W = {name: torch.ones_like(w[name]) for name in names}
            start = dict(w)
            for _ in range(3 * t):
                slope = referee.gradient(k, start)
                for name in names:
                    change = w[name] - v[k][name]
                    W[name] = (W[name] - slope[name] * change).clamp(0, 1)
                    start[name] = v[k][name] + change * W[name]
            models[k] = referee.train(k, start)
            weights[k] = Params(W)
        v, w = models, mean(models)
    assert any((W < 1).any() for W in weights[4].values())
    assert near(referee.rounds.state, w, 1e-5)
    for k, client in referee.fed.clients.items():
        assert near(client.params(), v[k], 1e-5)
        assert near(Params(client.memory["weights"]), weights[k], 1e-4)


def test_fedamp_without_its_term_is_local_training():
    term = ("--algorithm.lam", "0")
    assert toy.differences(trained("fedamp", *SMALL, *term), trained("local", *SMALL)) == []


def attention(models: dict[int, Params], i: int, kind: str, alpha: float, sigma: float):
    """Client i's attention to each client, in plain torch."""
    flat = {k: torch.cat([v.flatten() for v in model.values()]) for k, model in models.items()}
    if kind == "distance":
        squares = {k: (flat[i] - v).square().sum() for k, v in flat.items() if k != i}
        row = {k: alpha / sigma * torch.exp(-square / sigma) for k, square in squares.items()}
    else:
        likeness = {k: sigma * torch.cosine_similarity(flat[i], v, 0) for k, v in flat.items()}
        others = [k for k in flat if k != i]
        soft = torch.stack([likeness[k] for k in others]).softmax(0)
        row = dict(zip(others, 0.7 * soft, strict=True))
    return row | {i: 1 - sum(row.values())}


@pytest.mark.parametrize("kind, sigma", [("distance", 0.5), ("cosine", 3.0)])
def test_two_rounds_of_fedamp_in_plain_torch(kind: str, sigma: float):
    flags = ("--algorithm.attention", kind, "--algorithm.sigma", str(sigma))
    more = ("--algorithm.self_weight", "0.3") if kind == "cosine" else ()
    referee = Referee(
        "fedamp", *TWO, *ALL, *flags, *more, "--algorithm.alpha", "0.05", "--algorithm.lam", "0.1"
    )
    models = dict.fromkeys(range(6), referee.initial())
    for t in range(2):
        mixtures = dict.fromkeys(models, referee.initial())
        for i in models if t else ():
            row = attention(models, i, kind, 0.05, sigma)
            mixtures[i] = mean({j: models[j] for j in row}, map(float, row.values()))

        def objective(model, x, y, u):
            pairs = ((p - u[name]) for name, p in model.named_parameters())
            return cross_entropy(model, x, y) + 0.1 / (2 * 0.05) * sum(
                d.square().sum() for d in pairs
            )

        models = {
            k: referee.train(k, w, lambda m, x, y, u=mixtures[k]: objective(m, x, y, u))
            for k, w in models.items()
        }
    referee.run()
    assert 0.2 < referee.rounds.state["attention"].mean() < 0.9
    for k, client in referee.fed.clients.items():
        assert near(client.params(), models[k], 1e-5)


def test_fedamp_warns_if_all_models_are_further_apart_than_sigma(capsys):
    rounds = toy.start(Serial(), toy.job("fedamp", *MLP, *ALL, "--algorithm.sigma", "1e-6"))
    for _ in range(2):
        rounds.step()
    message = capsys.readouterr().err
    assert message.count("no client pays attention to another one") == 1
    assert "algorithm.sigma = 1e-06" in message
    assert rounds.algorithm.columns(rounds.fed, rounds.state) == {"attention_to_others": 0.0}


EVERY = ("--algorithm.validation", "1e-9")  # all examples are compared on, and trained on


def test_fedfomo_is_local_training_if_no_model_helps(monkeypatch):
    monkeypatch.setattr(fedfomo, "weights_of", lambda loss, losses, lengths: [0.0] * len(losses))
    flags = (*SMALL, *EVERY, "--algorithm.baseline", "own")
    assert toy.differences(trained("fedfomo", *flags), trained("local", *SMALL)) == []


def test_fedfomo_of_one_client_is_local_training():
    flags = (*SMALL, *EVERY, *ONE, "--algorithm.baseline", "own")
    assert toy.differences(trained("fedfomo", *flags), trained("local", *SMALL, *ONE)) == []


@pytest.mark.parametrize("baseline", ["start", "own"])
def test_two_rounds_of_fedfomo_in_plain_torch(baseline: str):
    flags = ("--algorithm.baseline", baseline, "--algorithm.models", "5")
    referee = Referee("fedfomo", *TWO, *ALL, *EVERY, *flags)
    start = referee.initial()
    before = {k: referee.train(k, start) for k in range(6)}

    def gain(k: int, w: Params, base: Params) -> float:
        square = sum(float((v - base[name]).square().sum()) for name, v in w.items())
        return max(0.0, referee.loss(k, base) - referee.loss(k, w)) / (square**0.5 or 1.0)

    weights, models = {}, {}
    for k in range(6):
        base = start if baseline == "start" else before[k]
        gains = {n: gain(k, w, base) for n, w in before.items()}
        weights[k] = {n: value / (sum(gains.values()) or 1) for n, value in gains.items()}
        mixture = mean(before, gains.values()) if any(gains.values()) else base
        models[k] = referee.train(k, mixture)
    referee.run()
    mixes = any(0 < weight < 1 for row in weights.values() for weight in row.values())
    assert mixes == (baseline == "start")  # its own model is best where each has trained
    for k, client in referee.fed.clients.items():
        assert near(client.params(), models[k], 1e-5)
        want = [0.0 if n == k else weights[k][n] for n in range(6)]
        assert referee.rounds.state["p"][k].tolist() == pytest.approx(want, abs=1e-4)


def test_fedfomos_clients_receive_few_models_and_send_a_weight_of_each():
    flags = (*MLP, *ALL, "--algorithm.models", "2")
    rounds = toy.start(Serial(), toy.job("fedfomo", *flags))
    size = rounds.fed.shapes().nbytes
    assert rounds.algorithm.traffic(rounds.fed, 4) == (2 * size, size + 8)
    rows = [rounds.step()[0] for _ in range(2)]
    assert [row["clients/down"][4] for row in rows] == [size, 2 * size]
    assert [row["clients/up"][4] for row in rows] == [size, size + 8]


def test_fedpac_that_gives_heads_back_without_its_term_is_fedrep(monkeypatch):
    def give_back(h: np.ndarray, v: np.ndarray, i: int) -> np.ndarray:
        return np.eye(len(h))[i]

    start_alike(monkeypatch, FedRep)
    monkeypatch.setattr(fedpac, "weights_of_heads", give_back)
    flags = (*SMALL, "--local.lr", "0.02")
    ours = run("fedpac", *flags, "--algorithm.lam", "0", "--algorithm.head_lr", "0.02")
    theirs = run("fedrep", *flags, "--algorithm.head_epochs", "1")
    assert toy.differences(ours.state["body"], theirs.state) == []
    assert toy.differences(ours.weights, theirs.weights) == []
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_two_rounds_of_fedpac_in_plain_torch():
    head_lr = ("--algorithm.head_lr", "0.1", "--local.epochs", "2")
    referee = Referee("fedpac", *ALL, *head_lr, "--algorithm.lam", "0.5")
    w, C = referee.initial(), toy.CLASSES
    heads = dict.fromkeys(range(6), w.pick(in_head))
    data = {k: batch_of(referee.rounds, k) for k in range(6)}
    counts = {k: torch.bincount(y, minlength=C).double() for k, (_, y) in data.items()}
    q: torch.Tensor | None = None

    def represent(model: Params, k: int) -> torch.Tensor:
        return referee.with_weights(model).body(data[k][0]).detach().double()

    def class_means(z: torch.Tensor, k: int) -> torch.Tensor:
        member = torch.nn.functional.one_hot(data[k][1], C).double()
        return member.T @ z / counts[k].clamp(min=1)[:, None]

    for _ in range(2):
        models, means, h, v = {}, {}, {}, {}
        for k in range(6):
            model = Params({**w, **heads[k]})
            z = represent(model, k)
            before = class_means(z, k)
            h[k] = (counts[k] / len(z))[:, None] * before
            v[k] = (z.square().sum(1).mean() - h[k].square().sum()) / len(z)
            target = None if q is None else torch.where(q.isnan(), before, q).float()

            def aligned(model, x, y, target=target):
                apart = 0.0 if target is None else (model.body(x) - target[y]).square().mean()
                return cross_entropy(model, x, y) + 0.5 * apart

            model = referee.train(k, model, only=in_head, steps=1)
            models[k] = referee.train(k, model, aligned, only=lambda name: not in_head(name))
            means[k] = class_means(represent(models[k], k), k)
        w = mean(models)
        total = sum(counts.values())[:, None]
        q = sum(counts[k][:, None] * means[k] for k in means) / total
        for i in range(6):
            apart = [(h[i] - h[j]).flatten() for j in range(6)]
            P = torch.stack([torch.stack([a @ b for b in apart]) for a in apart])
            weights = least_on_simplex(P + torch.diag(torch.stack([v[j] for j in range(6)])))
            heads[i] = mean({k: m.pick(in_head) for k, m in models.items()}, weights.tolist())
    referee.run()
    state = referee.rounds.state
    assert near(state.body, w.pick(state.body.__contains__), 1e-5)
    assert torch.allclose(state.proto.double(), q, rtol=0, atol=1e-5)
    for k, client in referee.fed.clients.items():
        assert near(client.params(), models[k], 1e-5)
        assert near(Params(client.memory["mixture"]), heads[k], 1e-4)


def least_on_simplex(P: torch.Tensor) -> torch.Tensor:
    """The a >= 0 of sum 1 with the least a^T P a: the best of the optima on all faces."""
    best, value = torch.zeros(len(P), dtype=P.dtype), float("inf")
    for mask in range(1, 2 ** len(P)):
        face = [j for j in range(len(P)) if mask >> j & 1]
        ones = torch.ones(len(face), dtype=P.dtype)
        b = torch.linalg.lstsq(P[face][:, face], ones, driver="gelsd").solution
        a = b / b.sum()
        if len(face) == 1:
            a = ones
        if a.min() >= 0 and a @ P[face][:, face] @ a < value:
            value = float(a @ P[face][:, face] @ a)
            best = torch.zeros(len(P), dtype=P.dtype).index_copy(0, torch.tensor(face), a)
    best[best < 1e-3] = 0
    return best / best.sum()
