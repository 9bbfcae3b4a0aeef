"""Methods that distil: what they become in neutral settings, and what must hold of what travels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from hpcfed.training.evaluate import common
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil
from hpcfed.training.server import predictor
from tests.contract import toy
from tests.contract.test_equalities import near, run
from tests.threads import spmd

ALL = ("--participation", "1")
LOCAL = {  # claim: (method, flags), those of local training
    "fd without its term": (("fd", "--algorithm.gamma", "0"), ()),
    "fd of one client": (
        ("fd", "--clients", "1", "--data.train_limit", "30", "--models.mix", "small"),
        ("--clients", "1", "--data.train_limit", "30", "--models.mix", "small"),
    ),
    "fccl without public data and teachers": (
        (
            *("fccl", "--algorithm.public_epochs", "0", "--algorithm.inter", "0"),
            *("--algorithm.pretrain_epochs", "0"),
        ),
        (),
    ),
}
SERVER = ("--algorithm.server_epochs", "2")
VARIANTS = {
    "fedkemf by means": ("fedkemf", *SERVER, "--algorithm.ensemble", "mean"),
    "fedkemf as its authors": (
        *("fedkemf", *SERVER, "--preset", "authors", "--data.public_source", ""),
        *("--clients", "6", "--data.public", "24", "--data.partition", "iid"),
    ),
    "fccl of logits of now": ("fccl", "--algorithm.own_entry", "current"),
    "fccl of the others": (
        *("fccl", "--algorithm.own_entry", "excluded", "--algorithm.weighting", "samples"),
    ),
    "fd by squares": ("fd", "--algorithm.distance", "mse", "--algorithm.weighting", "samples"),
    "fd after training": ("fd", "--algorithm.outputs", "after"),
}
COMPRESSED = {
    "fedkd of weights": (
        *("fedkd", "--algorithm.exchange", "weights", "--algorithm.hidden", "plain"),
        *("--algorithm.energy_start", "0.5", "--algorithm.energy_end", "0.6"),
    ),
}


def begun(method: str, *flags: str) -> Rounds:
    return toy.start(Serial(), toy.job(method, *flags))


@pytest.mark.parametrize("claim", LOCAL)
def test_equal_to_local_training_to_the_bit(claim: str):
    words, flags = LOCAL[claim]
    ours, theirs = run(*words), run("local", *flags)
    for part in ("weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


@pytest.mark.parametrize("claim", [*VARIANTS, *COMPRESSED])
def test_ranks_do_not_matter_for_the_variants(claim: str):
    job = toy.job(*(VARIANTS | COMPRESSED)[claim])
    want = toy.run(Serial(), job)
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("claim", VARIANTS)
def test_traffic_of_the_variants_is_as_announced(claim: str):
    toy.check_traffic(toy.job(*VARIANTS[claim]))


def shown(rounds: Rounds, mean: float, members: float, of_round: int) -> Params:
    """A state of FD in which all rows have one value, of so many clients, in that round."""
    C = toy.CLASSES
    return Params(
        mean=torch.full((C, C), mean),
        weight=torch.full((C,), members, dtype=torch.float64),
        round=torch.full((C,), float(of_round), dtype=torch.float64),
    )


def received_by(classes: int, weights: list[float], of_round: int) -> dict[str, Any]:
    """What FD's server has of a client whose rows have the value 0.5."""
    return {
        "received mean": torch.full((classes, classes), 0.5),
        "received weight": torch.tensor(weights, dtype=torch.float64),
        "round": of_round,
    }


def test_an_fd_client_receives_the_mean_without_its_own_part():
    rounds = begun("fd")
    client, C = rounds.fed.clients[4], toy.CLASSES  # it has examples of all classes
    client.memory = received_by(C, [1, 1, 1, 1], of_round=7)
    target = rounds.algorithm.offer(rounds.fed, client, shown(rounds, 0.25, 5, 7))["target"]
    assert target.eq((5 * 0.25 - 0.5) / 4).all()  # (M F - F_k) / (M - 1)
    later = rounds.algorithm.offer(rounds.fed, client, shown(rounds, 0.25, 5, 8))["target"]
    assert later.eq(0.25).all()  # it had no part in these


def test_an_fd_class_that_no_other_client_has_shown_is_no_target():
    rounds = begun("fd")
    fed, C = rounds.fed, toy.CLASSES
    alone = fed.clients[1]  # has class 2 alone
    alone.memory = received_by(C, [0, 0, 1, 0], of_round=0)
    target = rounds.algorithm.offer(fed, alone, shown(rounds, 0.5, 1, 0))["target"]
    assert target[2].isnan().all() and target[[0, 1, 3]].eq(0.5).all()


def test_fds_state_is_the_mean_of_the_uploads_of_a_class():
    rounds = begun("fd", *ALL)
    rounds.step()
    fed, mean = rounds.fed, rounds.state["mean"]
    assert torch.allclose(mean.sum(1), torch.ones(toy.CLASSES))  # of probabilities
    for c in range(toy.CLASSES):
        holders = [k for k in range(fed.K) if fed.label_counts[k][c]]
        sent = torch.stack([fed.clients[k].memory["received mean"][c] for k in holders])
        assert torch.allclose(mean[c], sent.mean(0), atol=1e-6)
        assert rounds.state["weight"][c] == len(holders)


def test_fedkd_with_all_of_the_energy_is_fedkd_without_compression(
    monkeypatch: pytest.MonkeyPatch,
):
    flags = ("fedkd", "--algorithm.energy_start", "1", "--algorithm.energy_end", "1")
    ours = run(*flags).state["x"]
    keep_all = lambda values, energy: Params(values)  # noqa: E731
    monkeypatch.setattr("hpcfed.algorithms.proxies.fedkd.pack", keep_all)
    theirs = run(*flags).state["x"]
    assert near(ours, theirs, 1e-5)


RANK_ONE = ("--algorithm.energy_start", "1e-6", "--algorithm.energy_end", "1e-6")


@pytest.mark.parametrize("exchange", ["updates", "weights"])
def test_fedkds_bytes_are_those_of_the_factors(exchange: str):
    rounds = begun("fedkd", *RANK_ONE, *ALL, "--algorithm.exchange", exchange)
    outcome = toy.outcome(rounds, [rounds.step()[0] for _ in range(2)])
    shapes = [tuple(v.shape) for v in rounds.state.x.values()]
    of_rank_one = 4 * sum(sum(s) + 1 if len(s) == 2 else s[0] for s in shapes)  # an MLP's
    assert all(len(s) in (1, 2) for s in shapes)
    nbytes = rounds.state.x.nbytes
    assert outcome.column("up").tolist() == [[of_rank_one] * 6] * 2
    assert outcome.column("down").tolist() == [[nbytes] * 6, [of_rank_one] * 6]


def test_a_fedkd_client_that_missed_a_round_receives_the_whole_common_model():
    rounds = begun("fedkd", *RANK_ONE)
    nbytes = rounds.state.x.nbytes
    first, second = (toy.outcome(rounds, [rounds.step()[0]]) for _ in range(2))
    before, now = (set(np.flatnonzero(o.column("cohort")[0])) for o in (first, second))
    assert before & now and now - before
    for k in now:
        assert (second.column("down")[0][k] < nbytes) == (k in before)


def test_fedkds_threshold_rises_to_its_end_in_the_last_round():
    rounds = begun("fedkd", "--rounds", "3")
    energies = [rounds.algorithm.energy(rounds.fed, t) for t in range(3)]
    assert energies == [pytest.approx(0.96), pytest.approx(0.97), pytest.approx(0.98)]


def test_fedkds_common_model_and_projection_are_all_that_clients_have_in_common():
    rounds = begun("fedkd", *ALL)
    rounds.step()
    assert all(name.startswith("proxy.") for name in rounds.state.x)
    maps = [c.memory["projection"] for c in rounds.fed.clients.values()]
    assert len({m.numpy().tobytes() for m in maps}) == len(maps)  # each learns its own


SGD = ("--local.optimiser", "sgd", "--local.lr")


def test_fedkemf_without_fusion_is_fml_with_twice_its_losses():
    ours = run("fedkemf", "--algorithm.server_epochs", "0", *SGD, "0.05")
    theirs = run("fml", *SGD, "0.1")  # alpha = beta = 0.5
    assert toy.differences([ours.state, ours.weights], [theirs.state, theirs.weights]) == []
    assert toy.differences(ours.scores, theirs.scores) == []
    losses = [outcome.column("train_loss") for outcome in (ours, theirs)]
    assert np.allclose(losses[0], 2 * losses[1], equal_nan=True)


def test_fedkemfs_authors_server_stays_as_it_is_without_fusion():
    rounds = begun("fedkemf", "--algorithm.server_epochs", "0", "--algorithm.start", "previous")
    before = rounds.state
    rounds.step()
    assert toy.differences(before, rounds.state) == []


@pytest.mark.parametrize("ensemble", ["max", "mean", "soft"])
def test_an_ensemble_of_equal_networks_predicts_like_each_of_them(ensemble: str):
    rounds = begun("fedkemf", "--algorithm.ensemble", ensemble, "--algorithm.tau", "1")
    fed, z = rounds.fed, torch.randn(32, toy.CLASSES, generator=torch.Generator().manual_seed(0))
    teacher = rounds.algorithm.teacher(fed, {k: z for k in range(3)}, fed.public)
    assert torch.allclose(teacher, z.softmax(1), atol=1e-6)


def test_fedkemfs_ensembles_are_the_largest_logits_or_means_by_weight():
    logits = {0: torch.tensor([[4.0, 0.0]]), 2: torch.tensor([[0.0, 2.0]])}  # sizes 1 and 8
    want = {
        "max": torch.tensor([[4.0, 2.0]]).softmax(1),
        "mean": torch.tensor([[4 / 9, 16 / 9]]).softmax(1),
        "soft": (logits[0].softmax(1) + 8 * logits[2].softmax(1)) / 9,
    }
    for ensemble, soft in want.items():
        rounds = begun("fedkemf", "--algorithm.ensemble", ensemble)
        rounds.fed.classes = 2
        teacher = rounds.algorithm.teacher(rounds.fed, logits, rounds.fed.public.pick(np.arange(1)))
        assert torch.allclose(teacher, soft, atol=1e-6), ensemble


def test_fedkemfs_server_loss_by_hand():
    z, labels = torch.zeros(1, 2), (torch.tensor([0]), torch.tensor([[1.0, 0.0]]))
    method = begun("fedkemf").algorithm
    authors = method.model_copy(update={"distance": "mse", "tau": 20.0, "label_share": 0.5})
    assert method.student_loss(z, labels).item() == pytest.approx(np.log(2))
    assert authors.student_loss(z, labels).item() == pytest.approx(
        0.5 * np.log(2) + 0.5 * 400 * 0.25
    )


def test_fedkemfs_own_models_are_never_sent_and_its_server_learns_the_ensemble():
    rounds = begun("fedkemf", *ALL, "--algorithm.server_lr", "0.5")
    fed = rounds.fed
    proxy = fed.shapes(lambda name: name.startswith("proxy.")).nbytes
    outcome = toy.outcome(rounds, [rounds.step()[0]])
    assert outcome.column("up")[0].tolist() == outcome.column("down")[0].tolist() == [proxy] * 6
    logits = {
        k: outputs(fed, client.model.eval().proxy, fed.public) for k, client in fed.clients.items()
    }
    teacher = rounds.algorithm.teacher(fed, logits, fed.public)
    plain = run("fedkemf", *ALL, "--rounds", "1", "--algorithm.server_epochs", "0").state
    apart = [
        distil(teacher, outputs(fed, predictor(fed, "mlp", Params(s).under("proxy.")), fed.public))
        for s in (rounds.state, plain)
    ]
    assert apart[0] < 0.5 * apart[1]


def test_fedkemfs_knowledge_network_is_the_model_that_is_evaluated_as_common():
    rounds = begun("fedkemf", "--evaluate.common", "true", "--algorithm.inference", "proxy")
    row = rounds.step()[0]
    answer = predictor(rounds.fed, "mlp", Params(rounds.state).under("proxy."))
    assert row["rounds/accuracy_common"] == common(rounds.fed, answer)


def test_fedkemf_refuses_labels_of_another_data_set():
    with pytest.raises(ConfigError, match="fedkemf needs public data with the clients' labels"):
        toy.job("fedkemf", "--algorithm.label_share", "0.5")


def test_fedet_without_distillation_is_fedavg_of_one_architecture():
    ours = run("fedet", "--algorithm.server_epochs", "0", "--models.mix", "small")
    theirs = run("fedavg", "--models.mix", "small")
    models = Params(ours.state["models"]).under("small/")
    assert toy.differences(models, theirs.state) == []
    assert toy.differences(ours.scores, theirs.scores) == []
    for column in ("train_loss", "accuracy", "loss", "examples", "down", "up"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_fedets_small_models_are_fedavgs_if_no_layer_is_transferred():
    rounds = begun("fedet", "--models.mix", "small", "--rounds", "1")
    rounds.step()
    theirs = run("fedavg", "--models.mix", "small", "--rounds", "1").state
    transfer = rounds.algorithm.carry_over  # of a method that names no layer
    plain = begun("fedet", "--models.mix", "small", "--rounds", "1", "--algorithm.transfer", "[]")
    plain.step()
    assert toy.differences(plain.state.models.under("small/"), theirs) == []
    transferred = transfer(rounds.state.server, plain.state.models)
    assert toy.differences(transferred, rounds.state.models) == []
    changed = {n for n in transferred if not torch.equal(transferred[n], plain.state.models[n])}
    assert changed == {"small/head.weight", "small/head.bias"}


def test_fedets_server_begins_a_round_with_the_mean_of_the_uploaded_representation_layers(
    monkeypatch: pytest.MonkeyPatch,
):
    starts = []

    def fit(fed, architecture, params, *more, **how):
        starts.append(params)
        return params

    monkeypatch.setattr("hpcfed.algorithms.public_data.fedet.fit_targets", fit)
    rounds = begun("fedet", "--models.mix", "small", "--rounds", "1")
    server = rounds.state.server
    rounds.step()
    mean = run("fedavg", "--models.mix", "small", "--rounds", "1").state
    assert (
        toy.differences(starts, [Params({**server, **mean.pick(lambda n: n.startswith("head."))})])
        == []
    )


def fedet_targets(*logits: tuple[float, ...]) -> torch.Tensor:
    """What Fed-ET's student learns of one example on which its clients have these logits."""
    rounds = begun("fedet")
    one = rounds.fed.public.pick(np.arange(1))
    rounds.fed.classes, rounds.fed.data = len(logits[0]), replace(rounds.fed.data, public=one)
    answers = {k: torch.tensor([z]) for k, z in enumerate(logits)}
    return rounds.algorithm.targets(rounds.fed, answers)[0]


def test_fedets_confident_models_weigh_more(monkeypatch: pytest.MonkeyPatch):
    weights = []
    mean = type(begun("fedet").fed).mean

    def noted(self, parts, **how):
        sizes = list(parts)
        weights.append([float(part.terms[0].weight["z"]) for _, part in sizes])
        return mean(self, iter(sizes), **how)

    monkeypatch.setattr("hpcfed.federation.federation.Federation.mean", noted)
    target = fedet_targets((2.0, 0.0, -2.0), (1.0, 0.0, -1.0))
    assert weights[0][0] / sum(weights[0]) == pytest.approx(0.8)
    assert weights[1] == [0, 0]  # all agree
    assert target.tolist() == [[1, 0, 0], [0, 0, 0]]


def test_fedets_diversity_is_the_prediction_of_disagreeing_models():
    one = fedet_targets((2.0, 0.0, -2.0), (-1.0, 0.0, 1.0))  # 0.8 and 0.2: class 0
    assert one[0].tolist() == [1, 0, 0]
    assert torch.allclose(one[1], torch.tensor([-1.0, 0.0, 1.0]).softmax(0))
    three = fedet_targets((9.0, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 0.0, 1.0))
    assert three[0].tolist() == [1, 0, 0]
    want = torch.tensor([0.0, 0.8 * 2, 0.2 * 1]).softmax(0)  # variances are as 4 to 1
    assert torch.allclose(three[1], want)


def test_fedets_student_loss_by_hand():
    method, z = begun("fedet").algorithm, torch.zeros(2, 2)
    target = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]])
    want = np.log(2) + 0.05 * np.log(2) / 2  # one of two examples has a q
    assert method.student_loss(z, target).item() == pytest.approx(want)


def test_fedets_models_with_zero_confidence_give_finite_values():
    assert fedet_targets((1.0, 1.0), (0.0, 0.0)).isfinite().all()


def test_fedets_server_is_the_model_that_is_evaluated_as_common():
    rounds = begun("fedet", "--models.mix", "mlp,logistic", "--evaluate.common", "true")
    row = rounds.step()[0]
    answer = predictor(rounds.fed, "mlp", rounds.state.server)
    assert row["rounds/accuracy_common"] == common(rounds.fed, answer)
    assert 0 <= row["rounds/accuracy_ensemble"] <= 1
    logistic = rounds.state.models["logistic/head.weight"]  # as wide as its inputs: it stays
    assert logistic.shape != rounds.state.server["head.weight"].shape


def test_fedet_refuses_layers_that_its_server_does_not_have():
    with pytest.raises(ConfigError, match=r"algorithm.transfer has 'neck.', but no tensor"):
        begun("fedet", "--algorithm.transfer", '["neck."]')


def fccl_targets(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[dict, list]:
    """The logits that clients 0 to 5 send, which are 0 to 5, and the targets that they learn."""
    targets = []

    def noted(self, share, model, x, others):
        targets.append((float(share), others))
        return model(x).sum() * 0

    monkeypatch.setattr(
        "hpcfed.algorithms.public_data.fccl.logits",
        lambda fed, client, data: torch.full((len(data), fed.classes), float(client.id)),
    )
    rounds = begun("fccl", *ALL, "--algorithm.pretrain_epochs", "0", *flags)
    monkeypatch.setattr(type(rounds.algorithm).__mro__[1], "correlate", noted)
    rounds.step()
    return {k: n for k, n in enumerate(rounds.fed.sizes)}, targets


def test_fccls_target_is_the_mean_of_all_logits_with_or_without_the_own_ones(monkeypatch):
    for entry, wanted in (
        ("previous", [(0.0, 2.5)] * 6),
        ("current", [(1 / 6, 2.5 - k / 6) for k in range(6)]),
        ("excluded", [(0.0, (15 - k) / 5) for k in range(6)]),
    ):
        _, targets = fccl_targets(monkeypatch, "--algorithm.own_entry", entry)
        assert len(targets) == 6
        for (share, others), (now, value) in zip(targets, wanted, strict=True):
            assert share == pytest.approx(now)
            assert torch.allclose(others, torch.full_like(others, value), atol=1e-6)


def test_fccls_target_by_samples(monkeypatch):
    sizes, targets = fccl_targets(monkeypatch, "--algorithm.weighting", "samples")
    mean = sum(k * n for k, n in sizes.items()) / sum(sizes.values())
    assert all(torch.allclose(t, torch.full_like(t, mean)) for _, t in targets)


def test_fccls_first_model_is_that_of_local_training_and_stays():
    flags = ("fccl", *ALL, "--algorithm.pretrain_epochs", "3")
    rounds = begun(*flags)
    rounds.step()
    intra = {k: c.memory["intra"].clone() for k, c in rounds.fed.clients.items()}
    rounds.step()
    for k, client in rounds.fed.clients.items():
        assert torch.equal(client.memory["intra"], intra[k])
        assert intra[k].shape == (client.n, toy.CLASSES)
        assert torch.allclose(intra[k].sum(1), torch.ones(client.n))


def test_fccl_refuses_public_batches_of_one():
    for flags in (("--algorithm.public_batch", "1"), ("--algorithm.subset", "11")):
        with pytest.raises(ConfigError, match="fccl needs batches of two public examples"):
            toy.job("fccl", "--algorithm.public_batch", "5", *flags)


def test_fccl_of_one_client_without_its_own_entry_has_no_public_phase():
    one = ("--clients", "1", "--data.train_limit", "30", "--models.mix", "mlp")
    words = ("fccl", *one, "--algorithm.pretrain_epochs", "0")
    without = run(*words, "--algorithm.own_entry", "excluded")
    off = run(*words, "--algorithm.public_epochs", "0")
    assert toy.differences(without.weights, off.weights) == []


def test_options_of_other_clients_uploads_are_refused_for_one_client():
    alone = ("--clients", "1", "--data.train_limit", "30", "--models.mix", "mlp")
    with pytest.raises(ConfigError, match=r"fd: algorithm.gamma = 0.5 has no effect: clients = 1"):
        toy.given("fd", *alone, "--algorithm.gamma", "0.5")
    with pytest.raises(ConfigError, match=r"fccl: algorithm.lam = 0.1 .*own_entry = 'excluded'"):
        toy.given("fccl", *alone, "--algorithm.own_entry", "excluded", "--algorithm.lam", "0.1")
