"""Attackers among the clients; `test_mechanisms.py` examines them with every method."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.engine.run import run_here
from hpcfed.federation.transforms.attack.attackers import attackers
from hpcfed.report.measures import measure, measures_of
from hpcfed.results import summary
from hpcfed.results.columns import at_the_end
from hpcfed.storage import results
from tests.contract import toy
from tests.threads import spmd

SHORT = ("--rounds", "3", "--evaluate.every", "1000", "--evaluate.before", "false")
ALL = ("--participation", "1")
TWO = ("--attack.clients", "2,4")


def job(method: str, attack: tuple[str, ...], *flags: str):
    words = (*SHORT, *ALL, *TWO, *toy.different(method), "--attack.by", *attack, *flags)
    return toy.job(method, *words)


@pytest.mark.parametrize("attack", ["label-flip", "sign-flip", "alie", "fang", "min-sum", "ipm"])
def test_an_attack_changes_what_the_server_has(attack: str):
    flags = ("--attack.scale", "1") if attack in ("alie", "ipm") else ()
    plain = toy.run(Serial(), toy.job("fedavg", *SHORT, *ALL), rounds=1)
    attacked = toy.run(Serial(), job("fedavg", (attack, *flags)), rounds=1)
    assert toy.differences(plain.state, attacked.state)


@pytest.mark.parametrize(
    "flags",
    [
        ("backdoor", "--attack.scale", "0", "--attack.start", "3"),
        ("overweight", "--attack.scale", "1"),
        ("sign-flip", "--attack.start", "3"),
        ("label-flip", "--attack.start", "3"),
        ("min-max", "--attack.start", "3"),
    ],
)
def test_an_attack_that_has_not_begun_or_does_nothing_changes_no_bit(flags: tuple[str, ...]):
    plain = toy.run(Serial(), toy.job("fedavg", *SHORT, *ALL), rounds=2)
    attacked = toy.run(Serial(), job("fedavg", flags), rounds=2)
    assert toy.differences(plain.state, attacked.state) == []
    assert toy.differences(plain.weights, attacked.weights) == []


def test_a_free_rider_sends_what_it_received():
    rounds = toy.start(Serial(), job("fedavg", ("free-rider", "--attack.share", "0.2")))
    honest = toy.run(Serial(), toy.job("fedavg", *SHORT, *ALL), rounds=1)
    before = {name: value.clone() for name, value in rounds.state.items()}
    fed, sent = rounds.fed, {}
    send = fed.uplink.send

    def watched(client, upload):
        sent[client.id] = send(client, upload)
        return sent[client.id]

    fed.uplink.send = watched
    rounds.step()
    assert honest.state
    for k in (2, 4):
        for name, value in sent[k].value.terms[0].value.items():
            if fed.trainable(name):
                assert torch.equal(value, before[name])


def test_an_attackers_noise_after_the_last_round_is_not_that_of_the_round():
    """Nor is anything else that is drawn for an upload or a mean."""
    rounds = toy.start(
        Serial(), job("tests.contract.cheats:SendsLate", ("noise",), "--rounds", "1")
    )
    noises, send = [], rounds.fed.uplink.send

    def watched(client, upload):
        sent = send(client, upload)
        if client.id == 2:
            noises.append(sent.value.terms[0].value - rounds.state)
        return sent

    rounds.fed.uplink.send = watched
    rounds.step()
    rounds.finish()
    for_round, afterwards = (torch.cat([v.flatten() for v in n.values()]) for n in noises)
    assert afterwards.std() == pytest.approx(0.1, rel=0.1)
    assert abs(torch.corrcoef(torch.stack([for_round, afterwards]))[0, 1]) < 0.1


def test_a_claimed_weight_counts_where_the_server_learns_weights():
    public = ("--data.public", "8", "--data.public_source", str(toy.folder() / "public.npz"))
    flags = ("--algorithm.weighting", "samples", *public)
    honest = toy.run(Serial(), toy.job("fedlaw", *SHORT, *ALL, *flags), rounds=1)
    heavy = toy.run(Serial(), job("fedlaw", ("overweight",), *flags), rounds=1)
    assert toy.differences(honest.state, heavy.state)


def test_a_replaced_model_is_the_attackers_if_the_others_send_what_they_received():
    """One attacker of six with equal weights, whose update counts six times."""
    flags = ("--attack.clients", "3", "--attack.scale", "6", "--algorithm.weighting", "uniform")
    words = ("--models.mix", "mlp", *flags, "--attack.patch", "2", "--attack.by", "backdoor")
    rounds = toy.start(Serial(), toy.job("fedavg", *SHORT, *ALL, *words))
    fed, before, trained = rounds.fed, rounds.state, {}
    send = fed.uplink.send

    def watched(client, upload):
        value = upload.value.terms[0].value
        if client.id == 3:
            trained.update({name: v.clone() for name, v in value.items()})
        else:
            for name, v in value.items():
                v.copy_(before[name])
        return send(client, upload)

    fed.uplink.send = watched
    rounds.step()
    for name, value in trained.items():
        assert torch.allclose(rounds.state[name], value, atol=1e-5), name


def test_the_success_of_a_backdoor_and_who_attacks_are_in_the_record():
    flags = ("backdoor", "--attack.patch", "2", "--evaluate.every", "1")
    row = toy.run(Serial(), job("fedavg", flags), rounds=1).rows[0]
    assert 0 <= row["rounds/attack_success"] <= 1
    assert row["clients/attacker"].tolist() == [False, False, True, False, True, False]
    by_client = toy.run(Serial(), job("fedclassavg", flags), rounds=1).rows[0]
    assert np.isnan(by_client["clients/attack_success"][[2, 4]]).all()


def test_label_flipping_exchanges_the_prototypes_of_classes():
    """The prototype of class y is sent as that of class C - 1 - y."""
    sent = {}
    for name, flags in (("honest", ()), ("attacker", (*TWO, "--attack.by", "label-flip"))):
        rounds = toy.start(Serial(), toy.job("fedproto", *SHORT, *ALL, *flags))
        client, send = rounds.fed.clients[4], rounds.fed.uplink.send

        def watched(client, upload, send=send, name=name):
            if client.id == 4:
                sent[name] = upload.value.terms[0]
            return send(client, upload)

        rounds.fed.uplink.send = watched
        classes = np.unique(client.train.labels)
        rounds.step()
    honest, attacker = (
        {name: torch.as_tensor(axes[0]).tolist() for name, axes in term.at.items()}
        for term in (sent["honest"], sent["attacker"])
    )
    assert next(iter(honest.values())) == classes.tolist()
    assert next(iter(attacker.values())) == sorted(toy.CLASSES - 1 - classes)


def of_other_data(cls: int = 1) -> tuple[str, ...]:
    """The flags of an attack with images of this class of the toy world's public data."""
    source = ("--attack.source", str(toy.folder() / "public.npz"))
    return ("edge-case", *source, "--attack.source_class", str(cls), "--attack.target", "0")


@pytest.mark.parametrize("method", ["fedlc", "fedrod", "fedgen", "fesemma"])
def test_a_method_that_counts_labels_counts_those_that_an_attacker_trains_on(method: str):
    """Client 0 has one example, of whose class it claims to have none."""
    rounds = toy.start(Serial(), job(method, ("label-flip",), "--attack.clients", "0"))
    fed, client = rounds.fed, rounds.fed.clients[0]
    honest = fed.label_counts[0].tolist()
    with fed._with_examples([client]):
        assert fed.label_counts[0].tolist() == honest[::-1] != honest
        assert np.array_equal(fed.label_counts[3], rounds.fed.label_counts[3])
    assert fed.label_counts[0].tolist() == honest
    row, _ = rounds.step()
    assert np.isfinite(row["clients/train_loss"]).any()


@pytest.mark.parametrize("weights", ["client", "all"])
def test_class_weights_of_an_attacker_are_the_same_after_a_resume(weights: str, tmp_path: Path):
    flags = ("--attack.start", "2", "--local.class_weights", weights)
    settings = job("fedavg", ("label-flip",), *flags)
    want = toy.run(Serial(), settings)
    toy.run(Serial(), settings, rounds=1, save=tmp_path)
    got = toy.run(Serial(), settings, resume=tmp_path)
    assert toy.differences(want.state, got.state) == []


def test_edge_cases_stand_in_the_place_of_a_share_of_the_attackers_images():
    flags = (*of_other_data(), "--attack.poisoned", "0.25", "--evaluate.every", "1")
    rounds = toy.start(Serial(), job("fedavg", flags))
    fed, client = rounds.fed, rounds.fed.clients[4]
    train, poisoned = client.train, fed.attack.examples(fed, client, client.train)
    changed = [
        i
        for i in range(len(train))
        if (train.x[train.rows[i]] != poisoned.x[poisoned.rows[i]]).any()
    ]
    assert len(changed) == round(0.25 * len(train))
    cases = {image.tobytes() for image in fed.data.edge_cases.train}
    assert all(poisoned.x[i].tobytes() in cases and poisoned.labels[i] == 0 for i in changed)
    unchanged = np.setdiff1d(np.arange(len(train)), changed)
    assert np.array_equal(poisoned.labels[unchanged], train.labels[unchanged])
    assert fed.attack.examples(fed, fed.clients[3], fed.clients[3].train) is fed.clients[3].train


def test_the_success_of_edge_cases_has_the_same_bits_on_any_ranks():
    settings = job("fedavg", (*of_other_data(), "--evaluate.every", "1"))
    want = toy.run(Serial(), settings, rounds=1)
    assert 0 <= want.rows[0]["rounds/attack_success"] <= 1
    for outcome in spmd(2, lambda comm: toy.run(comm, settings, rounds=1)):
        assert toy.differences(outcome, want) == []


@pytest.mark.parametrize("attack", ["label-flip", "backdoor"])
def test_a_share_of_the_public_examples_is_poisoned_for_all(attack: str):
    flags = ("--attack.by", attack, "--attack.share", "0", "--attack.public", "0.25")
    flags = (*flags, "--attack.patch", "2") if attack == "backdoor" else flags
    plain = toy.start(Serial(), toy.job("fedmd", *SHORT, *ALL)).fed.public
    rounds = toy.start(Serial(), toy.job("fedmd", *SHORT, *ALL, *flags))
    public = rounds.fed.public
    n = round(0.25 * len(plain))
    if attack == "label-flip":
        flipped = np.flatnonzero(public.labels != plain.labels)
        assert len(flipped) == n
        assert np.array_equal(public.labels[flipped], toy.CLASSES - 1 - plain.labels[flipped])
    else:
        images, originals = public.x[public.rows], plain.x[plain.rows]
        marked = [i for i in range(len(plain)) if (images[i] != originals[i]).any()]
        assert len(marked) == n
        assert (images[marked][:, :, -2:, -2:] == images[marked].max()).all()
    assert toy.run(Serial(), toy.job("fedmd", *SHORT, *ALL, *flags), rounds=1).rows


def test_a_share_of_the_clients_attacks_the_same_ones_in_all_rounds():
    words = ["--algorithm.name", "fedavg", "--models.mix", "mlp", "--attack.by", "noise"]
    chosen = attackers(load([*words, "--clients", "10", "--attack.share", "0.3"], environ={}))
    assert len(chosen) == 3 and max(chosen) < 10


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("noise", "--attack.clients", "99"), "no client 99"),
        (("noise", "--attack.clients", ",".join(map(str, range(20)))), "nobody is left"),
        (("noise", "--attack.share", "0.02"), "that is nobody"),
        (("alie", "--attack.share", "0.6"), "the majority"),
        (("noise", "--algorithm.name", "local"), "nothing is sent"),
        (("noise", "--attack.start", "1000"), "attack.start"),
        (("noise", "--attack.clients", "1", "--attack.share", "0.5"), "not both"),
        (("fang", "--attack.scale", "2"), "attack.scale"),
        (("noise", "--attack.target", "2"), "attack.target"),
        (("edge-case",), "set source"),
        (("edge-case", "--attack.source", "no-such-set"), "no-such-set"),
        (("label-flip", "--attack.public", "0.5"), "data.public"),
        (("backdoor", "--attack.target", "77"), "attack.target"),
        (("alie", "--algorithm.name", "fedasync"), "one by one"),
        (("ipm", "--privacy.by", "central", "--privacy.clip", "1"), "privacy.by = 'central'"),
        (("ipm", "--secure.by", "secagg", "--secure.bound", "9"), "secure.by = 'secagg'"),
        (
            ("overweight", "--compression.by", "vote", "--compression.eta", "1"),
            "'overweight'.*compression.by = 'vote'.*no effect",
        ),
        (
            ("overweight", "--privacy.by", "central", "--privacy.clip", "1"),
            "'overweight'.*privacy.by = 'central'.*set another attack.by",
        ),
        (
            ("overweight", "--privacy.by", "distributed", "--privacy.clip", "1"),
            "'overweight'.*privacy.by = 'distributed'.*set another attack.by",
        ),
        (("backdoor", "--attack.distributed", "true", "--attack.patch", "1"), "patch = 1.*2"),
    ],
)
def test_settings_that_cannot_be_are_refused(flags: tuple[str, ...], message: str):
    name = [] if "--algorithm.name" in flags else ["--algorithm.name", "fedavg"]
    with pytest.raises(ConfigError, match=message):
        toy.start(Serial(), load([*name, "--models.mix", "mlp", "--attack.by", *flags], environ={}))


def test_labels_that_are_no_classes_cannot_be_flipped(tmp_path: Path):
    x, y = np.zeros((40, 3), np.float32), np.ones((40, 2), np.int64)
    np.savez(tmp_path / "several.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ["--algorithm.name", "fedavg", "--models.mix", "mlp", "--data.partition", "iid"]
    words += ["--data.name", str(tmp_path / "several.npz"), "--data.task", "multilabel"]
    with pytest.raises(ConfigError, match="has several of 2 labels"):
        toy.start(Serial(), load([*words, "--attack.by", "label-flip"], environ={}))


def test_more_weight_for_uploads_without_weights_changes_nothing_and_says_so(capsys):
    attacked = toy.run(Serial(), job("ktpfl", ("overweight",)), rounds=1)
    assert "changes nothing" in capsys.readouterr().err
    plain = toy.run(Serial(), toy.job("ktpfl", *SHORT, *ALL, *toy.different("ktpfl")), rounds=1)
    assert toy.differences(attacked.weights, plain.weights) == []


def test_a_run_continues_if_attackers_are_the_majority_of_a_cohort():
    """Three of six clients attack with ALIE, and cohorts of three are drawn."""
    flags = ("--participation", "0.5", "--attack.clients", "0,1,2", "--attack.by", "alie")
    rounds = toy.start(Serial(), toy.job("fedavg", *SHORT, "--models.mix", "mlp", *flags))
    cohorts = [rounds.fed.sample(t) for t in range(3)]
    assert max(len({0, 1, 2}.intersection(cohort)) for cohort in cohorts) == 2
    while rounds.t < 3:
        rounds.step()
    assert all(value.isfinite().all() for value in rounds.state.values())


def test_noise_of_clients_leaves_single_uploads_for_attacks_and_rules():
    noise = ("--privacy.by", "local", "--privacy.clip", "1", "--privacy.noise", "0.01")
    uniform = ("--models.mix", "mlp", "--algorithm.weighting", "uniform")
    settings = job("fedavg", ("min-max",), *noise, *uniform, "--defence.by", "median")
    want = toy.run(Serial(), settings, rounds=1)
    for outcome in spmd(2, lambda comm: toy.run(comm, settings, rounds=1)):
        assert toy.differences(outcome, want) == []


def test_the_trigger_is_as_bright_on_any_ranks_and_for_all_clients(tmp_path: Path):
    """Images of floating-point values up to 600, whose largest ones differ between ranks."""
    with np.load(toy.folder() / "data.npz") as stored:
        arrays = {n: x.astype(np.float32) * 3 if n[0] == "x" else x for n, x in stored.items()}
    np.savez(tmp_path / "floats.npz", **arrays)
    words = ["--algorithm.name", "fedavg", *SHORT, *ALL, *TWO, "--clients", "6"]
    words += ["--data.name", str(tmp_path / "floats.npz"), "--models.mix", "mlp"]
    words += ["--attack.by", "backdoor", "--attack.patch", "2", "--data.partition", "iid"]
    settings = load([*words, "--evaluate.every", "1"], environ={})
    bright = toy.start(Serial(), settings).fed.attack.bright
    assert bright == arrays["x_test"].max() > 255
    want = toy.run(Serial(), settings, rounds=1)
    for outcome in spmd(3, lambda comm: toy.run(comm, settings, rounds=1)):
        assert toy.differences(outcome, want) == []


def test_attackers_train_on_other_data_than_they_have_and_are_not_evaluated():
    """Also clients that make their examples at the first use, as with shifted images."""
    flags = ("--data.shift.degrees", "0,30", "--clients", "6", "--data.partition", "iid")
    rounds = toy.start(Serial(), job("fedavg", ("label-flip",), *flags, "--evaluate.every", "1"))
    row = rounds.step()[0]
    assert np.isnan(row["clients/accuracy"][[2, 4]]).all()
    assert np.isfinite(row["clients/accuracy"][[0, 1, 3, 5]]).all()
    client = rounds.fed.clients[2]
    assert np.array_equal(client.train.labels, rounds.fed.clients.make(2).train.labels)


def test_the_summary_and_tables_name_the_attack_and_its_success(tmp_path: Path):
    flags = ("--attack.patch", "2", "--rounds", "1", "--out", str(tmp_path / "run"), "--quiet")
    settings = toy.job("fedavg", "--models.mix", "mlp", "--attack.by", "backdoor", *flags)
    assert run_here(settings, Serial()) == (0, None)
    record = results.load(tmp_path / "run")
    about = summary.facts(record)["attack"]
    success = float(record.columns["rounds/attack_success"][-1])
    assert about == {"by": "backdoor", "attackers": 1, "defence": "none", "success": success}
    assert measures_of("accuracy")["attack_success"].of(record) == (success, None)
    assert "attack: backdoor, 1 attacker" in summary.brief(record)


def test_the_summary_has_the_success_of_a_backdoor_without_attackers(tmp_path: Path):
    """The share of images with the trigger that a model takes for the target without an attack."""
    flags = ("--attack.patch", "2", "--attack.share", "0", "--rounds", "1", "--quiet")
    words = ("--models.mix", "mlp", "--attack.by", "backdoor", "--out", str(tmp_path / "run"))
    assert run_here(toy.job("fedavg", *words, *flags), Serial()) == (0, None)
    record = results.load(tmp_path / "run")
    success = summary.facts(record)["attack"]["success"]
    assert success == float(record.columns["rounds/attack_success"][-1])
    assert f"attack: backdoor, no attackers, success {success:.4f}" in summary.brief(record)


def test_scores_after_the_end_are_those_of_the_honest_clients_by_number(tmp_path):
    words = ("--evaluate.received", "false", "--out", str(tmp_path / "run"))
    assert run_here(job("fedavg", ("sign-flip",), *words), Serial()) == (0, None)
    record, honest = results.load(tmp_path / "run"), [0, 1, 3, 5]
    assert record.arrays["final/clients"].tolist() == honest
    scored = [k for k in honest if record.arrays["test_sizes"][k]]
    assert list(at_the_end(record, "final/accuracy_received")) == scored == [0, 1, 3]
    assert list(measure("received").each(record)) == scored
