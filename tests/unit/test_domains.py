"""digits-domains: digits of several sources in Digit-5's form, and clients that are domains."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn.functional import interpolate

from hpcfed.algorithms.base import score_common
from hpcfed.clients.client import Shard
from hpcfed.comm import Serial
from hpcfed.config.load import load as load_job
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data import domains
from hpcfed.data.dataset import Reading
from hpcfed.data.datasets import load
from hpcfed.data.shift import Change
from hpcfed.engine.decide import world
from hpcfed.engine.describe import client_names
from hpcfed.engine.run import run_here
from hpcfed.report.measures import measures_of
from hpcfed.results import summary
from hpcfed.results.trained.sources import CPU
from hpcfed.storage import results
from hpcfed.training.evaluate import measure
from tests.contract import toy
from tests.threads import spmd

pytestmark = pytest.mark.quick
FORMS = {  # of the files that stand in for those of torchvision: shape of an image
    "mnist": (28, 28),
    "svhn": (32, 32, 3),
    "usps": (16, 16),
    "emnist_digits": (28, 28),
    "cifar10": (32, 32, 3),
}
N = 100  # training and test images of each file together


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A folder with a small HDF5 file for each source."""
    folder, g = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    for name, shape in FORMS.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            for part, n in (("train", 70), ("test", N - 70)):
                file[f"{part}/images"] = g.integers(0, 256, (n, *shape), np.uint8)
                file[f"{part}/labels"] = np.arange(n) % 10
    return folder


def job(root: Path, *flags: str):
    base = ("--data.name", "digits-domains", "--data.root", str(root), "--models.mix", "cnn")
    natural = ("--data.partition", "natural", "--algorithm.name", "fedavg")
    return load_job([*base, *natural, *flags], environ={})


def test_each_source_is_pooled_and_divided_again_class_by_class(root: Path):
    data = load("digits-domains", root)
    assert data.user_names == domains.DOMAINS and data.own_tests
    assert data.shape == (3, 28, 28) and data.train.x.dtype == np.uint8
    for domain in range(5):
        for split, n in ((data.train, 80), (data.test, 20)):
            labels = split.y[split.users == domain]
            assert np.bincount(labels).tolist() == [n // 10] * 10
    pixels = data.train.x / 255  # moments of all domains together
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert data.std == pytest.approx(pixels.std((0, 2, 3)).tolist())


def test_the_images_of_a_domain_are_those_of_its_source(root: Path):
    data, source = load("digits-domains", root), load("mnist", root)
    originals = np.concatenate([source.train.x, source.test.x])
    mine = np.concatenate([part.x[part.users == 0] for part in (data.train, data.test)])
    assert (mine == mine[:, :1]).all()  # grey
    assert sorted(map(bytes, mine[:, 0])) == sorted(map(bytes, originals[:, 0]))


def test_a_domain_has_at_most_as_many_training_images_as_usps():
    y = np.repeat(np.arange(10), 5_000)
    train, test = domains.divide(y, "mnist", "mnist")
    assert np.bincount(y[test]).tolist() == [1_000] * 10
    assert len(train) == 7_438 and len(np.intersect1d(train, test)) == 0
    assert set(np.bincount(y[train])) == {743, 744}
    other, same = domains.divide(y, "mnist", "mnist-m")
    assert (same == test).all() and (other != train).any()
    usps, _ = domains.divide(np.arange(9_298) % 10, "usps", "usps")
    assert len(usps) == 7_438


def test_mnist_m_is_the_difference_of_a_digit_and_a_piece_of_a_photograph():
    digit = np.array([0, 200], np.uint8).reshape(1, 1, 1, 2).repeat(3, 1)
    photograph = np.array([[30, 40], [150, 250], [0, 200]], np.uint8).reshape(1, 3, 1, 2)
    blended = domains.blend(digit, photograph, np.random.default_rng(0))
    assert blended[0, :, 0].tolist() == [[30, 160], [150, 50], [0, 0]]
    many = domains.blend(
        np.zeros((200, 3, 2, 2), np.uint8),
        np.arange(27, dtype=np.uint8).reshape(1, 3, 3, 3),
        np.random.default_rng(0),
    )
    corners = {int(image[0, 0, 0]) for image in many}
    assert corners == {0, 1, 3, 4}  # all places in the photograph


@pytest.mark.parametrize("size", [16, 32, 20])
def test_images_are_scaled_bilinearly(size: int):
    x = np.random.default_rng(1).integers(0, 256, (3, 2, size, size), np.uint8)
    exact = interpolate(
        torch.from_numpy(x).double(), size=(28, 28), mode="bilinear", align_corners=False
    )
    assert np.abs(domains.resize(x, 28) - exact.numpy()).max() <= 0.5 + 1e-9


def test_a_client_per_domain_is_tested_on_the_images_of_its_domain(root: Path):
    decided = world(job(root, "--clients", "5"), Serial())
    data, rows = decided.data, decided.rows
    for k in range(5):
        assert (data.train.users[rows.train[k]] == k).all() and len(rows.train[k]) == 80
        assert (rows.test[k] == np.flatnonzero(data.test.users == k)).all()


def test_clients_of_a_domain_share_its_training_images_and_have_all_of_its_tests(root: Path):
    settings = job(root, "--clients", "10", "--data.clients_per_domain", "2")
    decided = world(settings, Serial())
    rows = decided.rows
    for domain in range(5):
        pair = rows.train[2 * domain : 2 * domain + 2]
        assert [len(part) for part in pair] == [40, 40]
        together = np.sort(np.concatenate(pair))
        assert (together == np.flatnonzero(decided.data.train.users == domain)).all()
        assert len(rows.test[2 * domain + 1]) == 20
    assert client_names(settings, decided)[:3] == ["mnist 1", "mnist 2", "svhn 1"]
    assert decided.warnings == ()


def test_limits_of_clients_keep_the_proportions_of_classes(root: Path):
    limits = ("--data.client_limit", "30", "--data.test_limit", "10")
    decided = world(job(root, "--clients", "5", *limits), Serial())
    for train, test in zip(decided.rows.train, decided.rows.test, strict=True):
        assert np.bincount(decided.data.train.y[train]).tolist() == [3] * 10
        assert np.bincount(decided.data.test.y[test]).tolist() == [1] * 10


def test_domains_that_are_not_named_are_not_needed(root: Path, tmp_path: Path):
    (tmp_path / "usps.h5").symlink_to(root / "usps.h5")
    data = load("digits-domains", tmp_path, False, Reading(domains=("digits", "usps")))
    assert data.user_names == ("usps", "digits")
    assert np.bincount(data.test.users).tolist() == [20, 359]  # 20 % of 1,797 scans
    with pytest.raises(DataError, match=r"digits-domains: mnist: .*(?s:.*)data.domains names"):
        load("digits-domains", tmp_path, False)


def test_domains_of_other_data_are_those_that_are_named(root: Path, tmp_path: Path):
    rows = ["x,ward,y", *(f"{i},{'abc'[i % 3]},{i % 2}" for i in range(60))]
    (tmp_path / "wards.csv").write_text("\n".join(rows))
    flags = (*("--data.name", str(tmp_path / "wards.csv")), *("--columns.client", "ward"))
    some = job(root, *flags, "--models.mix", "mlp", "--data.domains", "c,a", "--clients", "2")
    decided = world(some, Serial())
    assert client_names(some, decided) == ["a", "c"]
    assert sorted(np.unique(decided.data.test.users)) == [0, 1]


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--data.domains", "mnist,svnh"), "no domain 'svnh'; did you mean 'svhn'"),
        (("--data.clients_per_domain", "2"), "clients_per_domain = 2, but the job has 5 clients"),
        (("--data.partition", "iid", "--data.clients_per_domain", "5"), "has no effect"),
        (("--data.name", "digits", "--data.domains", "a"), "digits does not name the natural cli"),
    ],
)
def test_domains_that_cannot_be_are_refused(root: Path, flags, message):
    with pytest.raises(ConfigError, match=message):
        world(job(root, "--clients", "5", *flags), Serial())


# ---- a domain on which no client trains ----


def test_no_client_has_examples_of_the_unseen_domain(root: Path):
    for partition in ("natural", "iid"):
        unseen = ("--evaluate.unseen", "usps", "--clients", "4", "--data.public", "50")
        decided = world(job(root, "--data.partition", partition, *unseen), Serial())
        data, rows = decided.data, decided.rows
        assert (data.train.users[[*rows.everything, *rows.public]] != 2).all()
        assert len(rows.everything) == 4 * 80 - 50
        assert (data.test.users[np.concatenate(rows.test)] != 2).all()
        assert decided.unseen.tolist() == np.flatnonzero(data.test.users == 2).tolist()
    natural = job(root, *unseen)
    others = [domain for domain in domains.DOMAINS if domain != "usps"]
    assert client_names(natural, world(natural, Serial())) == others
    limited = world(job(root, *unseen, "--data.test_limit", "10"), Serial())
    assert len(limited.unseen) == 10


def unseen_job(method: str, *flags: str):
    """Clients of the toy world at three angles, of which one is unseen."""
    angles = ("--data.shift.degrees", "0,30,60", "--evaluate.unseen", "60", "--clients", "4")
    return toy.job(method, *angles, "--data.partition", "iid", *flags)


def test_the_servers_model_is_scored_on_the_unseen_angle():
    settings = unseen_job("fedavg", "--models.mix", "mlp")
    rounds, rows = toy.start(Serial(), settings), []
    while not rounds.over:
        rows.append(rounds.step()[0])
    decided = world(settings, Serial())
    assert settings.shift.degrees == (0, 30) and len(decided.unseen) == len(decided.data.test.y)
    images = Change(degrees=60)(decided.data.test.x, decided.unseen, 0, "test")
    shard = Shard(images, decided.data.test.y, np.arange(len(images)), CPU)
    score = score_common(settings.algorithm, rounds.fed, rounds.state, test=shard)
    assert rows[-1]["rounds/accuracy_unseen"] == score and "clients/accuracy_unseen" not in rows[-1]
    assert score != score_common(settings.algorithm, rounds.fed, rounds.state)


def test_without_a_servers_model_each_client_is_scored_on_the_unseen_angle():
    settings = unseen_job("local", "--models.mix", "mlp,cnn")
    rounds = toy.start(Serial(), settings)
    while not rounds.over:
        row = rounds.step()[0]
    fed, expected = rounds.fed, []
    for client in fed.clients.values():
        client.model.eval()
        expected.append(measure(fed, client.model, fed.data.unseen).metric)
    assert row["clients/accuracy_unseen"].tolist() == expected
    assert row["rounds/accuracy_unseen"] == np.mean(expected)


def test_a_rank_without_an_unseen_example_adds_no_other_one():
    settings = unseen_job("fedavg", "--models.mix", "mlp", "--data.test_limit", "2")
    alone = toy.run(Serial(), settings)
    for outcome in spmd(3, lambda comm: toy.run(comm, settings)):
        assert toy.differences(outcome, alone) == []
    assert {row["rounds/accuracy_unseen"] for row in alone.rows} <= {0, 0.5, 1}


@pytest.mark.parametrize("method", ["fedavg", "local", "ditto"])
def test_ranks_do_not_matter_to_the_unseen_domain_and_it_changes_nothing(method: str):
    settings = unseen_job(method, "--models.mix", "mlp")
    plain = unseen_job(
        method, "--models.mix", "mlp", *("--data.shift.degrees", "0,30"), *("--evaluate.unseen", "")
    )
    alone = toy.run(Serial(), settings)
    for outcome in spmd(3, lambda comm: toy.run(comm, settings)):
        assert toy.differences(outcome, alone) == []
    assert toy.differences(toy.run(Serial(), plain).state, alone.state) == []
    assert np.isfinite([row["rounds/accuracy_unseen"] for row in alone.rows]).all()


def test_the_summary_and_tables_have_the_score_on_the_unseen_domain(root: Path, tmp_path: Path):
    flags = (*("--clients", "4"), *("--evaluate.unseen", "mnist-m"), *("--rounds", "1"))
    settings = job(root, *flags, "--models.mix", "mlp", "--out", str(tmp_path / "run"), "--quiet")
    assert run_here(settings, Serial()) == (0, None)
    record = results.load(tmp_path / "run")
    score = float(record.columns["rounds/accuracy_unseen"][-1])
    number = {"domain": "mnist-m", "mean": score, "std": None, "clients": None}
    assert summary.facts(record)["unseen"] == number
    assert measures_of("accuracy")["unseen"].of(record) == (score, None)
    by_name = summary.facts(record)["natural_clients"]
    assert [one["name"] for one in by_name] == ["mnist", "svhn", "usps", "emnist-digits"]
    after, received = record.columns["clients/accuracy"], record.arrays["final/accuracy_received"]
    assert [one["accuracy"] for one in by_name] == after[-1].tolist()
    assert [one["received"] for one in by_name] == received.tolist()
    console = Console(width=120, record=True)
    console.print(summary.render(record))
    text = console.export_text()
    assert "unseen domain mnist-m, the server's model" in text and f"{score:.4f}" in text
    assert re.search(rf"emnist-digits +{after[-1][3]:.4f} +{received[3]:.4f}", text)


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--evaluate.unseen", "uspss"), "no natural client 'uspss'; did you mean 'usps'"),
        (("--data.name", "digits", "--evaluate.unseen", "a"), "does not name the natural clients"),
        (("--data.shift.degrees", "0,15", "--evaluate.unseen", "30"), "one of several angles"),
        (("--data.shift.degrees", "15", "--evaluate.unseen", "15"), "one of several angles"),
        (("--data.shift.degrees", "0,15", "--evaluate.unseen", "usps"), "one of several angles"),
        (("--data.partition_file", "p.h5", "--evaluate.unseen", "usps"), "remove one of them"),
    ],
)
def test_an_unseen_domain_that_cannot_be_is_refused(root: Path, flags, message):
    with pytest.raises(ConfigError, match=message):
        world(job(root, "--clients", "4", *flags), Serial())
