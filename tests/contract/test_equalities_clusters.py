"""KT-pFL, FeSEM, FeSEM-MA, IFCA, TKM, CFL, FedGH and FedGKT: what they become in neutral settings,
and what must hold of each.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hpcfed.algorithms.clusters import cfl, clusters
from hpcfed.algorithms.common_head.class_means import class_means
from hpcfed.algorithms.matching import permutation
from hpcfed.algorithms.proxies import fedgkt
from hpcfed.comm import Comm, Serial
from hpcfed.config.job import Job
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from tests.contract import toy
from tests.contract.test_equalities import near, run
from tests.threads import spmd

SMALL, ALL = ("--models.mix", "small"), ("--participation", "1")
WEIGHTS = ("--algorithm.share", "weights", "--models.mix", "small")
MLP = ("--models.mix", "mlp")
UNIFORM = ("--algorithm.weighting", "uniform")
AT_ONCE = ("--algorithm.after", "0")
CUTS = (*AT_ONCE, "--algorithm.eps1", "1e9", "--algorithm.eps2", "1e-9")
LIKE_FEDAVG = {  # claim: (method, flags), fedavg's flags; exactly
    "ifca of one cluster": (("ifca", "--algorithm.clusters", "1"), ()),
    "fesem of one centre and all clients": (
        ("fesem", "--algorithm.clusters", "1", *ALL),
        (*ALL, *UNIFORM),
    ),
    "fesem by samples": (
        ("fesem", "--algorithm.clusters", "1", "--algorithm.weighting", "samples", *ALL),
        ALL,
    ),
    "fesem-ma of one centre whose clients agree": (
        ("fesemma", "--algorithm.clusters", "1", *ALL),
        (*ALL, *UNIFORM),
    ),
    "cfl that cuts nothing": (("cfl",), ()),
}


@pytest.mark.parametrize("claim", LIKE_FEDAVG)
def test_one_cluster_is_fedavg(claim: str):
    method, flags = LIKE_FEDAVG[claim]
    ours, theirs = run(*method), run("fedavg", *flags)
    state = ours.state.get("centres", ours.state)
    assert toy.differences(clusters.row(state, 0), theirs.state) == []
    for column in ("train_loss", "accuracy_before", "loss_before", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_fesems_single_centre_remembers_clients_outside_the_cohort():
    ours, theirs = run("fesem", "--algorithm.clusters", "1"), run("fedavg", *UNIFORM)
    assert not near(clusters.row(ours.state["centres"], 0), theirs.state, 1e-4)


VARIANTS = {
    "ktpfl of weights": ("ktpfl", *WEIGHTS, "--algorithm.distil_lr", "0.1"),
    "ktpfl by squares": (
        "ktpfl",
        "--algorithm.distance",
        "mse",
        "--algorithm.ramp",
        "2",
    ),
    "ifca of gradients": (
        "ifca",
        "--algorithm.averaging",
        "gradients",
        "--local.optimiser",
        "sgd",
        "--local.lr",
        "0.2",
    ),
    "ifca of one body": (
        "ifca",
        "--algorithm.share_body",
        "true",
        "--algorithm.start",
        "perturbed",
    ),
    "fesem of heads": (
        "fesem",
        "--algorithm.scope",
        "head",
        "--algorithm.empty",
        "farthest",
        "--algorithm.lam",
        "0.1",
    ),
    "fesem of clients": (
        "fesem",
        "--algorithm.start",
        "clients",
        "--algorithm.clusters",
        "2",
        *ALL,
    ),
    "fesem-ma by classes": ("fesemma", "--preset", "authors", "--algorithm.clusters", "2"),
    "tkm by medians, anew in each round": ("tkm", "--preset", "authors"),
    "cfl that cuts": ("cfl", *CUTS, "--algorithm.linkage", "average"),
    "cfl that cuts by gaps": (
        *("cfl", *AT_ONCE, "--algorithm.rule", "gap", "--algorithm.gamma", "0.01"),
        *("--algorithm.scope", "head", *ALL),
    ),
    "fedgkt by clients": (
        "fedgkt",
        "--algorithm.evaluate",
        "client",
        "--algorithm.server_optimiser",
        "sgd",
    ),
}


@pytest.mark.parametrize("claim", VARIANTS)
def test_ranks_do_not_matter_for_the_variants(claim: str):
    job = toy.job(*VARIANTS[claim], "--evaluate.before", "false", "--evaluate.every", "3")
    want = toy.run(Serial(), job)
    assert np.isfinite(want.column("train_loss")[want.column("cohort").astype(bool)]).all()
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("claim", VARIANTS)
def test_traffic_of_the_variants_is_as_announced(claim: str):
    toy.check_traffic(toy.job(*VARIANTS[claim]))


@pytest.mark.parametrize("flags", [(), ("--models.mix", "mlp,cnn")])
def test_ktpfl_without_distillation_is_local(flags: tuple[str, ...]):
    ours, theirs = (
        run("ktpfl", "--algorithm.distil", "0", *flags),
        run("local", *flags or ("--models.mix", toy.MIX)),
    )
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part


def test_ktpfl_of_weights_with_equal_coefficients_and_a_full_step_is_fedavg():
    full = ("--algorithm.rho", "1e9", "--algorithm.distil_lr", "0.5", *ALL)
    sgd = ("--local.optimiser", "sgd", "--local.lr", "0.05")
    ours = toy.start(Serial(), toy.job("ktpfl", *WEIGHTS, *full, *sgd))
    theirs = toy.start(Serial(), toy.job("fedavg", *SMALL, *UNIFORM, *ALL, *sgd))
    for _ in range(2):
        ours.step(), theirs.step()
        assert all(
            near(client.params(), theirs.state, 1e-6) for client in ours.fed.clients.values()
        )


def test_ktpfls_clients_go_all_the_way_to_their_mixed_models_by_default():
    flags = (*WEIGHTS, "--rounds", "1", *ALL)
    usual, full = (run("ktpfl", *flags, *rate) for rate in ((), ("--algorithm.distil_lr", "0.5")))
    assert toy.differences(usual, full) == []
    small = run("ktpfl", *flags, "--algorithm.distil_lr", "0.001")
    assert toy.differences(usual.weights, small.weights) != []


@pytest.mark.parametrize("flags", [(), WEIGHTS])
def test_rows_of_coefficients_stay_on_the_simplex_and_learn(flags: tuple[str, ...]):
    coeff = run("ktpfl", *flags, "--algorithm.rho", "0", "--algorithm.coeff_lr", "1").state["coeff"]
    assert (
        torch.allclose(coeff.sum(1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)
        and (coeff >= 0).all()
    )
    assert (coeff - 1 / 6).abs().max() > 1e-3


def objective(rounds: Rounds, centres: Params) -> float:
    """Sum over clients of the squared distance to the nearest centre."""
    counts = rounds.algorithm.counts(rounds.fed)
    return sum(
        clusters.nearest(c.params(), centres, counts)[1] for c in rounds.fed.clients.values()
    )


def trained_to(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local training moves the weights of clients 0, 2, 4 to near 0, of the others to near 1."""

    def train(fed, client, *_: object, **__: object) -> None:
        client.skeleton.flat.fill_(client.id % 2 + client.id / 1000)

    monkeypatch.setattr("hpcfed.algorithms.base.sgd", train)


def test_fesem_recovers_groups_that_are_far_apart(monkeypatch: pytest.MonkeyPatch):
    rounds = toy.start(Serial(), toy.job("fesem", *MLP, *ALL, "--algorithm.clusters", "2"))
    trained_to(rounds, monkeypatch)
    rounds.step()
    cluster = rounds.state.cluster.tolist()
    assert cluster[0] == cluster[2] == cluster[4] != cluster[1] == cluster[3] == cluster[5]
    values = sorted(round(float(v), 6) for v in rounds.state.centres["head.bias"][:, 0])
    assert values == [pytest.approx(0.002), pytest.approx(1.003)]


def test_fesems_objective_never_rises_while_the_models_stay():
    rounds = toy.start(Serial(), toy.job("fesem", *ALL, *SMALL))
    rounds.step()
    fed, centres = rounds.fed, clusters.stack([rounds.fed.initial(k=m) for m in range(3)])
    values = [objective(rounds, centres)]
    for _ in range(3):
        centres = rounds.algorithm.em_step(fed, fed.mine(range(6)), centres).centres
        values.append(objective(rounds, centres))
    assert all(after <= before for before, after in pairwise(values)) and values[-1] < values[0]


def test_a_centre_without_clients_is_kept_or_moved(monkeypatch: pytest.MonkeyPatch):
    def centres(empty: str) -> tuple[Params, set[int]]:
        flags = (
            "--algorithm.clusters",
            "3",
            "--algorithm.empty",
            empty,
            "--algorithm.start",
            "clients",
        )
        rounds = toy.start(Serial(), toy.job("fesem", *MLP, *ALL, *flags))
        monkeypatch.setattr(
            "hpcfed.algorithms.base.sgd",
            lambda fed, client, *_, **__: client.skeleton.flat.fill_(1.0),
        )
        rounds.step()
        return rounds.state.centres, set(rounds.state.cluster.tolist())

    for empty, used in (("keep", {0}), ("farthest", {0, 1, 2})):
        state, members = centres(empty)
        assert members == used and all(torch.isfinite(v).all() for v in state.values())


def test_ifca_does_not_change_a_cluster_without_clients(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "hpcfed.algorithms.clusters.clusters.fittest", lambda fed, client, state: client.id % 2
    )
    rounds = toy.start(Serial(), toy.job("ifca", *SMALL, *ALL))
    before = rounds.state
    rounds.step()
    same = [
        toy.differences(clusters.row(rounds.state, m), clusters.row(before, m)) == []
        for m in range(3)
    ]
    assert same == [False, False, True]
    assert [client.memory["cluster"] for client in rounds.fed.clients.values()] == [
        0,
        1,
        0,
        1,
        0,
        1,
    ]


@pytest.mark.parametrize("flags", [SMALL, MLP])
def test_fesem_mas_clients_that_are_permutations_of_one_network_average_to_it_exactly(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    rounds = toy.start(Serial(), toy.job("fesemma", *flags, *ALL, "--algorithm.clusters", "1"))
    units, network = rounds.algorithm.units(rounds.fed), rounds.fed.initial(k=3)

    def train(fed, client, *_: object, **__: object) -> None:
        g = np.random.default_rng(client.id)
        order = {group: g.permutation(size) for group, size in units.sizes.items()}
        client.load(permutation.permute(network, units, order))

    monkeypatch.setattr("hpcfed.algorithms.base.sgd", train)
    rounds.step()
    centre = clusters.row(rounds.state.centres, 0)
    models = [client.params() for client in rounds.fed.clients.values()]
    assert [toy.differences(centre, model) == [] for model in models].count(True) == 1
    plain = (1 / 6) * sum(models[1:], models[0])
    assert not near(centre, plain, 1e-2)


def test_fesem_ma_weighs_the_rows_of_the_head_by_the_clients_examples_of_that_class(
    monkeypatch: pytest.MonkeyPatch,
):
    def train(fed, client, *_: object, **__: object) -> None:
        client.skeleton.flat.fill_(float(client.id))

    monkeypatch.setattr("hpcfed.algorithms.base.sgd", train)
    flags = ("--algorithm.clusters", "1", "--algorithm.head", "classes")
    rounds = toy.start(Serial(), toy.job("fesemma", *MLP, *ALL, *flags))
    rounds.step()
    counts = np.stack(rounds.fed.label_counts)
    want = (np.arange(6)[:, None] * counts).sum(0) / counts.sum(0)
    centre = clusters.row(rounds.state.centres, 0)
    assert centre["head.bias"].tolist() == pytest.approx(want.tolist())
    assert centre["head.weight"][:, 3].tolist() == pytest.approx(want.tolist())
    assert (centre["body.1.bias"] == 2.5).all()


def test_fesem_ma_refuses_models_whose_units_it_cannot_follow():
    with pytest.raises(ConfigError, match="which units of shufflenetv2 belong together"):
        toy.start(Serial(), toy.job("fesemma", "--models.mix", "shufflenetv2"))


def test_tkm_of_one_cluster_that_trims_nothing_is_fedavg_of_equal_weights():
    flags = ("--algorithm.clusters", "1", "--algorithm.trim", "0", "--rounds", "1", *ALL)
    ours, theirs = run("tkm", *flags), run("fedavg", "--rounds", "1", *UNIFORM, *ALL)
    assert near(clusters.row(ours.state["centres"], 0), theirs.state, 1e-6)


def test_tkm_recovers_groups_and_an_outlier_does_not_move_their_centres(
    monkeypatch: pytest.MonkeyPatch,
):
    """Weights of clients 0, 2, 4 go to near 0, of 1 and 3 to near 1, and of 5 to 40."""

    def train(fed, client, *_: object, **__: object) -> None:
        client.skeleton.flat.fill_(40.0 if client.id == 5 else client.id % 2 + client.id / 1000)

    monkeypatch.setattr("hpcfed.algorithms.base.sgd", train)
    flags = ("--algorithm.clusters", "2", "--algorithm.estimator", "median")
    rounds = toy.start(Serial(), toy.job("tkm", *MLP, *ALL, *flags))
    monkeypatch.setattr(type(rounds.algorithm), "first", between)
    rounds.step()
    assert rounds.state.cluster.tolist() == [0, 1, 0, 1, 0, 1]
    assert rounds.state.centres["head.bias"][:, 0].tolist() == [
        pytest.approx(0.002),
        pytest.approx(1.003),  # of 1.001, 1.003 and 40
    ]


def between(method: object, fed: object, points: Params, centres: Params) -> Params:
    """First centres near 0 and at 1."""
    return centres.map(lambda v: torch.stack([v[0] * 0, v[1] * 0 + 1]))


def test_tkms_clusters_stay_once_all_clients_have_trained():
    rounds = toy.start(Serial(), toy.job("tkm", *MLP, *ALL, "--algorithm.clusters", "2"))
    rounds.step()
    before = rounds.state
    rounds.step()
    assert rounds.state.cluster.tolist() == before.cluster.tolist()
    assert toy.differences(rounds.state.centres, before.centres) != []


def opposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local training moves weights by +2 or -2, by the client's id, even or odd."""

    def train(fed, client, *_: object, **__: object) -> None:
        client.skeleton.flat.add_((2.0 + client.id / 1000) * (-1) ** client.id)

    monkeypatch.setattr("hpcfed.algorithms.base.sgd", train)


@pytest.mark.parametrize("rule", ["norms", "gap"])
def test_cfl_cuts_two_groups_with_opposed_updates_exactly(
    rule: str, monkeypatch: pytest.MonkeyPatch
):
    opposed(monkeypatch)
    limit = {"norms": ("--algorithm.eps1", "1"), "gap": ("--algorithm.gamma", "0.9")}[rule]
    flags = ("--algorithm.after", "1", "--algorithm.rule", rule, *limit)
    job = toy.job("cfl", *MLP, *ALL, *UNIFORM, *flags)
    for state in spmd(2, lambda comm: cut(comm, job)):
        assert state.cluster.tolist() == [0, 1, 0, 1, 0, 1]
        models = [clusters.row(state.centres, m)["head.bias"] for m in (0, 1)]
        apart = (models[0] - models[1]).tolist()  # they part in the third round alone
        assert apart == pytest.approx([4.005] * toy.CLASSES, abs=1e-3)


def cut(comm: Comm, job: Job) -> Any:
    """The state after three rounds, of which the first may not cut and the second does."""
    rounds = toy.start(comm, job)
    sizes = []
    for _ in range(3):
        row, _ = rounds.step()
        sizes.append(row["rounds/clusters"])
    assert sizes == [1, 2, 2]
    return rounds.state


def in_turns(monkeypatch: pytest.MonkeyPatch, *cohorts: list[int]) -> None:
    """Rounds have these cohorts, one after the other."""
    monkeypatch.setattr(cfl.CFL, "cohort", lambda method, fed, t: cohorts[min(t, len(cohorts) - 1)])


def clusters_by_round(*flags: str, rounds: int) -> list[list[int]]:
    """Each client's cluster after each round of CFL, of clients that weigh alike."""
    going = toy.start(Serial(), toy.job("cfl", *MLP, *UNIFORM, *AT_ONCE, *flags))
    splits = []
    for _ in range(rounds):
        going.step()
        splits.append(going.state.cluster.tolist())
    return splits


def test_cfl_splits_no_cluster_without_participants(monkeypatch: pytest.MonkeyPatch):
    """Updates of all clients agree, so that no cluster may be split."""
    monkeypatch.setattr(
        "hpcfed.algorithms.base.sgd",
        lambda fed, client, *_, **__: client.skeleton.flat.add_(2.0 + client.id / 1000),
    )
    in_turns(monkeypatch, [0, 1, 2, 3, 4, 5], [3, 4, 5], [0, 1, 2])
    apart = torch.tensor([0, 0, 0, 1, 1, 1])
    going = toy.start(
        Serial(), toy.job("cfl", *MLP, *AT_ONCE, "--algorithm.eps1", "1e-12", "--rounds", "5")
    )
    going.step()
    two = going.state.centres.map(lambda v: v[[0, 0]])
    going.state = type(going.state)(two, apart)
    for _ in range(4):
        going.step()
        assert going.state.cluster.tolist() == apart.tolist()


def test_cfl_tests_a_cluster_when_all_its_clients_have_trained(monkeypatch: pytest.MonkeyPatch):
    """Updates are opposed: the mean of all of them is short, that of a part of them is not. After
    the test their clients are heard anew, so that nothing of before the split counts.
    """
    opposed(monkeypatch)
    flags = ("--algorithm.eps1", "1", "--rounds", "6")
    in_turns(monkeypatch, [0, 2], [0, 4], [1, 2, 3], [5], [0, 2], [1, 4])
    parted = [0, 1, 0, 1, 0, 1]
    assert clusters_by_round(*flags, rounds=6) == [[0] * 6] * 3 + [parted] * 3


def test_cfl_tests_clusters_at_intervals_and_skips_small_ones(
    monkeypatch: pytest.MonkeyPatch,
):
    """Every cluster that is tested is split, because no gap is below 0."""
    opposed(monkeypatch)
    split = ("--algorithm.rule", "gap", "--algorithm.gamma", "0", "--rounds", "5", *ALL)
    every = clusters_by_round(*split, rounds=3)
    assert [max(row) + 1 for row in every] == [2, 4, 4]  # of two clients each, and of one
    second = ("--algorithm.every", "2")
    later = clusters_by_round(*split, *second, rounds=4)
    assert [max(row) + 1 for row in later] == [2, 2, 4, 4]
    clusters = clusters_by_round(*split, *second, "--algorithm.min_size", "4", rounds=4)
    assert [max(row) + 1 for row in clusters] == [2, 2, 2, 2]


def test_cfls_cosine_with_a_zero_update_is_0():
    rounds = toy.start(Serial(), toy.job("cfl", *MLP))
    mine = list(rounds.fed.clients.values())[:3]
    for client, value in zip(mine, (0.0, 1.0, -2.0), strict=True):
        client.memory["update"] = Params(w=torch.full((2,), value))
    alike = cfl.similarities(rounds.fed, mine, [0, 1, 2])
    assert alike.tolist() == [[0, 0, 0], [0, pytest.approx(1), -1], [0, -1, pytest.approx(1)]]


def test_fedgh_without_server_epochs_keeps_its_header():
    rounds = toy.start(Serial(), toy.job("fedgh", "--algorithm.server_epochs", "0"))
    before = rounds.state
    rounds.step(), rounds.step()
    assert toy.differences(rounds.state, before) == []


@pytest.mark.parametrize("batch", ["1", "7", "32"])
def test_fedgh_sends_true_means_of_the_classes_that_a_client_has(batch: str):
    rounds = toy.start(Serial(), toy.job("fedgh", *MLP, "--evaluate.batch", batch))
    fed, client = rounds.fed, rounds.fed.clients[4]
    fed.participants.begin(0, [4], False)
    sent = class_means(fed, client)
    x, y = client.train.batch(np.arange(client.n))
    z = client.model.body(fed.prepare(x)).detach()
    want = torch.stack([z[y == c].mean(0) for c in sent["label"]])
    assert torch.allclose(sent["mean"], want, rtol=0, atol=1e-6)
    single = class_means(fed, fed.clients[1])
    assert single["label"].tolist() == [2] and single["mean"].numel() == toy.D
    assert rounds.algorithm.traffic(fed, 1)[1] == 4 * (toy.D + 1)


def test_fedgh_averages_the_inputs_of_its_head_after_the_relu():
    """relu(z) of 1 and -3 has the mean 0.5; the ReLU of their mean would be 0."""
    rounds = toy.start(Serial(), toy.job("fedgh", *MLP, "--models.relu_head", "true"))
    fed, client = rounds.fed, rounds.fed.clients[4]
    fed.participants.begin(0, [4], False)
    x, y = client.train.batch(np.arange(client.n))
    z = client.model.body(fed.prepare(x)).detach()
    sent = class_means(fed, client, relu=True)
    want = torch.stack([F.relu(z[y == c]).mean(0) for c in sent["label"]])
    assert torch.allclose(sent["mean"], want, rtol=0, atol=1e-6)
    one = {
        "mean": torch.eye(1, toy.D) - 0.5,
        "label": torch.tensor([3]).int(),
    }  # as the head has it
    head = Params({"head.weight": torch.zeros(4, toy.D), "head.bias": torch.zeros(4)})
    new = rounds.algorithm.train_head(fed, head, [one], 0)
    assert (new["head.weight"][3, 1:] < 0).all()  # a second ReLU would leave 0


def test_one_step_of_fedghs_server_is_softmax_regression():
    flags = ("--algorithm.server_epochs", "1", "--algorithm.server_lr", "0.5")
    rounds = toy.start(Serial(), toy.job("fedgh", *MLP, *flags))
    z, y = torch.eye(2, toy.D), torch.tensor([3, 1])
    head = Params({"head.weight": torch.zeros(4, toy.D), "head.bias": torch.zeros(4)})
    new = rounds.algorithm.train_head(rounds.fed, head, [{"mean": z, "label": y.int()}], 0)
    slope = (
        F.one_hot(y, 4) - 0.25
    ) / 2  # of the mean log-likelihood with respect to the logits, [2, 4]
    want = Params({"head.weight": 0.5 * slope.T @ z, "head.bias": 0.5 * slope.sum(0)})
    assert near(new, want, 1e-7)


def test_fedgkts_clients_without_the_servers_word_are_local():
    ours, theirs = run("fedgkt", "--algorithm.alpha", "0"), run("local", *SMALL)
    assert toy.differences(ours.weights, theirs.weights) == []


def test_fedgkts_answers_belong_to_the_examples_in_their_order():
    rounds = toy.start(Serial(), toy.job("fedgkt", *ALL))
    rounds.step()
    client, size = rounds.fed.clients[5], 8
    alone = fedgkt.stem(client.model.eval().body)[0](
        rounds.fed.prepare(client.train.batch(np.arange(size))[0])
    )
    answers = fedgkt.answer(rounds.fed, rounds.state, {"features": alone.detach()})
    assert client.memory["server"].shape == (client.n, toy.CLASSES)
    assert torch.allclose(client.memory["server"][:size], answers, rtol=0, atol=1e-5)
    features = fedgkt.distillation_data(client, "server").batch(np.array([3, 1]))[1]
    assert features[0].tolist() == client.train.labels[[3, 1]].tolist()
    assert features[1].equal(client.memory["server"][[3, 1]])


def test_fedgkt_refuses_clients_whose_first_layers_do_not_run_apart():
    with pytest.raises(
        ConfigError, match="fedgkt needs clients whose first layers run apart, but .* has resnet18"
    ):
        toy.job("fedgkt", "--models.mix", "resnet18")
