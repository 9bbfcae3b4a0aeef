"""Harmony and FedCovid on several modalities: what they become in neutral settings, and what must
hold of who trains and receives what.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.algorithms.multimodal import discrepancies, fedcovid, harmony
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from tests.contract import toy
from tests.contract.test_equalities import near
from tests.contract.test_methods_on_modalities import job
from tests.threads import spmd

LISTED = (  # clients 0 and 1 have one modality, the others several
    *("--modalities.clients", "listed", "--models.mix", "mean", "--participation", "1"),
    "--modalities.sets",
    "table,motion,motion+table,motion+note,motion+note+table,motion+table",
)
FUSES = (*LISTED, "--algorithm.stage1_rounds", "1")


def begun(method: str, *flags: str) -> Rounds:
    return toy.start(Serial(), job(method, *flags))


def encoder(client: object, m: str) -> Params:
    return client.params(lambda name: name.startswith(f"body.encoders.{m}."))


# --- Harmony


def test_harmony_of_one_modality_is_fedavg():
    one = ("--modalities.use", "table", "--models.mix", "mean")
    ours, theirs = begun("harmony", *one, "--algorithm.stage1_rounds", "1"), begun("fedavg", *one)
    rows = [[rounds.step()[0] for _ in range(3)] for rounds in (ours, theirs)]
    assert toy.differences(ours.state.under("table/"), theirs.state) == []
    for a, b in zip(*rows, strict=True):
        assert toy.differences(a["clients/train_loss"], b["clients/train_loss"]) == []
        for way in ("up", "down"):
            assert a[f"clients/{way}"].tolist() == b[f"clients/{way}"].tolist()


def test_a_client_without_a_modality_neither_trains_nor_receives_its_encoder():
    rounds = begun("harmony", *LISTED)
    before = {m: encoder(rounds.fed.clients[0], m) for m in ("motion", "note", "table")}
    first = rounds.state.clone()
    rounds.step()
    fed = rounds.fed
    for m in ("motion", "note"):
        assert toy.differences(encoder(fed.clients[0], m), before[m]) == []
    assert toy.differences(encoder(fed.clients[0], "table"), before["table"]) != []
    offered = rounds.algorithm.offer(fed, fed.clients[0], rounds.state)
    assert {name.partition("/")[0] for name in offered} == {"table"}
    # the one who has note with others, and the one with all, are all of its network's mean
    sent = [rounds.state.under("note/")[n] - first.under("note/")[n] for n in before["note"]]
    assert all(step.abs().sum() > 0 for step in sent)


def test_only_clients_of_several_modalities_fuse_and_the_networks_stay():
    rounds = begun("harmony", *FUSES)
    rounds.step()
    networks = rounds.state.clone()
    row = rounds.step()[0]
    assert np.flatnonzero(row["clients/cohort"]).tolist() == [2, 3, 4, 5]
    assert toy.differences(rounds.state, networks) == []


def test_bytes_of_harmony_are_networks_then_classifiers_and_once_the_fusions_start():
    rounds = begun("harmony", *LISTED, "--algorithm.stage1_rounds", "2")
    fed = rounds.fed
    nbytes = lambda wanted: fed.shapes(wanted).nbytes  # noqa: E731
    networks = [sum(nbytes(harmony.in_network(m)) for m in ms) for ms in fed.modalities]
    assert [rounds.algorithm.traffic(fed, k) for k in range(6)] == [(n, n) for n in networks]
    classifier = nbytes(harmony.in_classifier)
    for t in range(4):
        row = rounds.step()[0]
        down = up = np.array(networks)
        if t >= 2:
            up = np.array([classifier + 4 * len(ms) for ms in fed.modalities])
            start = np.zeros(6, int)  # the encoders of stage 1 and the classifier
            for k in range(2, 6) if t == 2 else ():
                parts = [harmony.in_network(m) for m in fed.modalities[k]]
                start[k] = nbytes(lambda name, parts=parts: any(part(name) for part in parts))
            down = classifier + start
        member = row["clients/cohort"].astype(int)
        assert row["clients/down"].tolist() == (member * down).tolist()
        assert row["clients/up"].tolist() == (member * up).tolist()


def test_encoders_that_stay_have_discrepancy_0_and_share_one_classifier():
    rounds = begun("harmony", *FUSES, "--algorithm.encoder_rate", "0")
    for _ in range(2):
        rounds.step()
    fed = rounds.fed
    heads = [fed.clients[k].params(harmony.in_classifier) for k in range(2, 6)]
    assert all(toy.differences(head, heads[0]) == [] for head in heads)
    for k in range(2, 6):
        for m in fed.modalities[k]:
            first = rounds.state.under(f"{m}/").pick(lambda n: not harmony.in_classifier(n))
            assert discrepancies.discrepancy(encoder(fed.clients[k], m), first) == 0


def test_with_one_cluster_per_client_classifiers_are_not_averaged(monkeypatch: pytest.MonkeyPatch):
    trained = {}
    fusion = harmony.Harmony.fusion

    def watched(self, fed, client, state, t):
        upload = fusion(self, fed, client, state, t)
        trained[client.id] = upload["classifier"]
        return upload

    monkeypatch.setattr(harmony.Harmony, "fusion", watched)
    rounds = begun("harmony", *FUSES, "--algorithm.clusters", "4")
    for _ in range(2):
        rounds.step()
    assert set(trained) == {2, 3, 4, 5}
    for k, classifier in trained.items():
        params = rounds.fed.clients[k].params(harmony.in_classifier)
        assert toy.differences(params, classifier) == []


def test_clusters_do_not_depend_on_the_order_of_points():
    d = torch.tensor([[0.1, 0.9], [0.11, 0.8], [0.7, 0.1], [0.8, 0.12], [0.72, 0.9]]).double()
    clusters = discrepancies.cluster(d, 3)
    assert clusters[0] == clusters[1] and clusters[2] == clusters[3] and len(set(clusters)) == 3
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        assert discrepancies.cluster(d[order], 3) == [clusters[i] for i in order]
    assert discrepancies.cluster(100 * d, 3) == clusters  # each modality by its maximum
    assert discrepancies.cluster(torch.zeros(4, 2).double(), 3) == [0] * 4
    assert discrepancies.cluster(d, 9) == [0, 1, 2, 3, 4]


def test_discrepancy_is_the_cosine_distance_of_all_parameters_together():
    a = Params(w=torch.tensor([[1.0, 0.0]]), b=torch.tensor([0.0]))
    b = Params(w=torch.tensor([[1.0, 0.0]]), b=torch.tensor([1.0]))
    assert discrepancies.discrepancy(a, a) == 0
    assert discrepancies.discrepancy(a, b) == pytest.approx(1 - 0.5**0.5)


def test_harmony_warns_if_it_fuses_nothing_or_in_clusters_of_one(capsys):
    begun("harmony", *LISTED)
    assert (
        "stage1_rounds = 19 and the job has 3 rounds; it needs at least 20 rounds"
        in capsys.readouterr().err
    )
    begun("harmony", *LISTED, "--algorithm.stage1_rounds", "2")
    assert not capsys.readouterr().err
    begun("harmony", *LISTED, "--algorithm.stage1_rounds", "2", "--algorithm.clusters", "4")
    assert "algorithm.clusters = 4 for the 4 clients with several" in capsys.readouterr().err
    with pytest.raises(
        ConfigError, match="clusters = 4 has no effect: algorithm.stage1_rounds = 19"
    ):
        begun("harmony", *LISTED, "--algorithm.clusters", "4")


# --- FedCovid

COVID = ("--models.mix", "gated(motion=conv1d)", "--participation", "1")
SGD = ("--local.optimiser", "sgd", "--local.lr", "0.05")  # Adam makes much of the last bits
PLAIN = ("--algorithm.lam_c", "0", "--algorithm.lam_m", "0", "--algorithm.lam_w", "0")


def test_fedcovid_of_equal_clients_without_its_terms_is_fedavg_of_equal_weights():
    ours, theirs = (
        toy.run(Serial(), job(*flags, *COVID, *SGD, "--rounds", "1"))
        for flags in (("fedcovid", *PLAIN), ("fedavg", "--algorithm.weighting", "uniform"))
    )
    assert near(ours.state, theirs.state, 1e-6)


def test_a_gated_representation_is_the_sigmoid_of_itself_times_itself():
    fed = begun("fedcovid", *COVID).fed
    body = fed.clients[0].model.eval().body
    x, _ = fed.clients[0].train.batch(np.arange(4))
    h = body.out(body.fuse(fed.prepare(x)))
    assert torch.allclose(body(fed.prepare(x)), h.sigmoid() * h)
    assert ((h.sigmoid() > 0) & (h.sigmoid() < 1)).all()


def test_fedcovid_warns_if_small_clients_never_train(capsys):
    begun("fedcovid", *COVID, "--algorithm.large", "2")
    assert "only the 2 largest of 6 clients train" in capsys.readouterr().err
    begun("fedcovid", *COVID, "--algorithm.large", "2", "--algorithm.warmup", "1")
    assert not capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"small_lr = 0.1 has no effect: algorithm.warmup = 200"):
        begun("fedcovid", *COVID, "--algorithm.large", "2", "--algorithm.small_lr", "0.1")


def test_fedcovids_weights_are_logarithms_of_sizes():
    rounds = toy.start(Serial(), toy.job("fedcovid"))
    weights = [rounds.algorithm.weight(c) for c in rounds.fed.clients.values()]
    want = np.log(np.maximum(toy.SIZES, 2))
    assert weights == pytest.approx(want.tolist())
    assert (np.array(weights) / sum(weights)).sum() == pytest.approx(1)


def test_large_clients_begin_and_small_ones_take_part_of_the_epochs():
    flags = ("--algorithm.large", "2", "--algorithm.warmup", "1", "--participation", "1")
    rounds = toy.start(Serial(), toy.job("fedcovid", *flags, "--local.epochs", "4"))
    first, second = (rounds.step()[0] for _ in range(2))
    assert np.flatnonzero(first["clients/cohort"]).tolist() == [4, 5]
    assert second["clients/epochs"].tolist() == [2, 2, 2, 2, 4, 4]


def test_the_margin_loss_by_hand():
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    side, all_ = torch.tensor([True, True, False, False]), torch.ones(4, dtype=torch.bool)
    assert fedcovid.margin_loss(p, side, all_, 0.9) == 0  # apart by 1
    assert fedcovid.margin_loss(p, side, all_, 1.5) == pytest.approx(0.5)
    mixed = torch.tensor([True, False, True, False])
    # each has cos 0 to its own side's other item, and to the mean of the other side 1 / sqrt(2)
    assert fedcovid.margin_loss(p, mixed, all_, 0.2) == pytest.approx(0.5**0.5 + 0.2)
    alone = torch.tensor([True, False, False, False])  # the first has nobody of its side
    nobody = torch.zeros(4, dtype=torch.bool)
    assert (
        fedcovid.margin_loss(p, nobody, all_, 9.0) == 0 <= fedcovid.margin_loss(p, alone, all_, 0.2)
    )


# --- both

SETTINGS = {
    "harmony that fuses": ("harmony", *FUSES, "--algorithm.clusters", "2"),
    "fedcovid": ("fedcovid", *COVID, "--algorithm.large", "2", "--algorithm.warmup", "1"),
}


@pytest.mark.parametrize("claim", SETTINGS)
def test_neither_ranks_nor_a_stop_matter(claim: str, tmp_path: Path):
    going = job(*SETTINGS[claim], "--local.keep_optimiser", "true")
    want = toy.run(Serial(), going)
    assert np.isfinite(want.scores).all()
    spmd(3, lambda comm: toy.run(comm, going, rounds=2, save=tmp_path))
    for got in spmd(2, lambda comm: toy.run(comm, going, resume=tmp_path)):
        ours, theirs = [got.rows, got.state, got.weights], [want.rows[2:], want.state, want.weights]
        assert toy.differences(ours, theirs) == []
