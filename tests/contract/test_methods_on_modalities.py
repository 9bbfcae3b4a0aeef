"""Methods on data of several modalities: neither ranks, nor a stop, nor an engine change a bit, and
a client trains on what it has.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
import torch

from hpcfed.algorithms import load as algorithm
from hpcfed.comm import Serial
from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError, HpcfedError
from tests.contract import toy
from tests.threads import spmd

USERS = 6
LACK = {4: "table", 5: "motion"}  # users without one modality
MIX = "concat(motion=conv1d)"
DIFFERENT = ("central", "fedclassavg", "fedgkt", "fedmd", "fedproto", "fml", "heterofl", "swift")
OWN = ("--modalities.clients", "natural", "--modalities.encoders", "own")


@cache
def folder() -> Path:
    """Where a file with 72 + 24 examples of 6 users lies: sequences, texts and tables."""
    toy.KEPT.append(TemporaryDirectory(prefix="hpcfed-tests-"))
    write(Path(toy.KEPT[-1].name) / "senses.h5")
    return Path(toy.KEPT[-1].name)


def write(path: Path, **attributes: object) -> Path:
    g = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for part, n in (("train", 72), ("test", 24)):
            y, users = np.arange(n) % 2, np.arange(n) // 2 % USERS
            file[f"{part}/labels"], file[f"{part}/users"] = y, users
            x = {
                "motion": g.normal(y[:, None, None], 1, (n, 2, 8)),
                "note": g.integers(1, 4, (n, 5)) + 3 * y[:, None],
                "table": g.normal(2 * y[:, None], 1, (n, 3)),
            }
            for user, name in LACK.items():
                x[name][users == user] = np.nan
                file[f"{part}/present/{name}"] = (users != user).astype(np.uint8)
            for name, values in x.items():
                file[f"{part}/x/{name}"] = values
            file[f"{part}/x/note"].attrs["vocabulary"] = 7
        for name, value in ({"own_tests": 1, "task": "binary"} | attributes).items():
            file.attrs[name] = value
    return path


def job(method: str, *flags: str) -> Job:
    base = [str(Path(toy.__file__).with_suffix(".toml")), "--algorithm.name", method]
    data = ["--data.name", str(folder() / "senses.h5"), "--data.partition", "natural"]
    mix = [] if "--models.mix" in flags else ["--models.mix", MIX]
    return load([*base, *data, *mix, *flags], environ={})


SETTINGS = {
    "all": ("fedavg",),
    "one encoder less": ("lgfedavg", *OWN),
    "some are missing": ("fedavg", "--modalities.missing", "0.5", "--data.wrong_labels", "0.3"),
    "drawn": ("fedavg", "--modalities.clients", "drawn", "--modalities.rate", "0.5"),
}
KEEP = ("--local.keep_optimiser", "true", "--rounds", "2")


@cache
def unbroken(name: str) -> toy.Outcome:
    """The run of a setting on one rank."""
    return toy.run(Serial(), job(*SETTINGS[name], *KEEP))


@pytest.mark.parametrize("name", SETTINGS)
def test_ranks_do_not_matter(name: str):
    going = job(*SETTINGS[name], *KEEP)
    for got in spmd(3, lambda comm: toy.run(comm, going)):
        assert toy.differences(got, unbroken(name)) == []


@pytest.mark.parametrize("name", ["one encoder less", "some are missing"])
def test_a_stopped_run_continues_to_the_same_bits(name: str, tmp_path: Path):
    going, want = job(*SETTINGS[name], *KEEP), unbroken(name)
    spmd(2, lambda comm: toy.run(comm, going, rounds=1, save=tmp_path))
    for got in spmd(3, lambda comm: toy.run(comm, going, resume=tmp_path)):
        assert (
            toy.differences(
                [got.rows, got.state, got.weights], [want.rows[1:], want.state, want.weights]
            )
            == []
        )


@pytest.mark.parametrize("engine", ["traced", "stacked"])
def test_clients_with_other_modalities_of_one_shape_do_not_share_a_recording(
    engine: str, tmp_path: Path
):
    g, n = np.random.default_rng(0), 24
    with h5py.File(tmp_path / "twins.h5", "w") as file:
        for part in ("train", "test"):
            file[f"{part}/labels"] = np.arange(n) % 2
            file[f"{part}/x/left"], file[f"{part}/x/right"] = g.normal(0, 1, (2, n, 3))
    flags = ("--data.name", str(tmp_path / "twins.h5"), "--data.partition", "iid", "--clients", "4")
    flags += ("--participation", "1", "--rounds", "1")
    sets = ("--modalities.clients", "listed", "--modalities.sets", "left,right")
    got, want = (
        toy.run(
            Serial(),
            job("fedavg", *flags, *sets, "--models.mix", "mean", "--training.engine", name),
        )
        for name in (engine, "eager")
    )
    assert toy.differences(got, want) == []


def test_a_client_has_the_modalities_that_its_examples_have_and_is_tested_on_its_own_users():
    fed = toy.start(Serial(), job("lgfedavg", *OWN)).fed
    for k in range(USERS):
        modalities = tuple(m for m in ("motion", "note", "table") if m != LACK.get(k))
        client = fed.clients[k]
        assert client.train.modalities == client.test.modalities == modalities
        assert client.train.rows.tolist() == [i for i in range(72) if i // 2 % USERS == k]
        assert client.test.rows.tolist() == [i for i in range(24) if i // 2 % USERS == k]
        x, _ = client.train.batch(np.arange(2))
        assert tuple(x) == modalities
        encoders = {n.split(".")[2] for n in client.params() if n.startswith("body.encoders.")}
        assert encoders == set(modalities)
    assert fed.architectures[4] == "concat(motion=conv1d)[motion&note]"


def test_training_examples_lack_missing_modalities_and_tests_do_not():
    fed = toy.start(Serial(), job("fedavg", "--modalities.missing", "0.6")).fed
    trained = [fed.clients[k].train.modalities for k in range(USERS)]
    assert {len(names) for names in trained} >= {1, 2} and min(map(len, trained)) == 1
    assert all(len(fed.clients[k].test.modalities) == 3 for k in range(USERS))


def test_wrong_and_missing_labels_concern_only_training():
    plain = toy.start(Serial(), job("fedavg")).fed
    fed = toy.start(Serial(), job("fedavg", "--data.wrong_labels", "1")).fed
    for k in range(USERS):
        assert (fed.clients[k].train.labels == 1 - plain.clients[k].train.labels).all()
        assert (fed.clients[k].test.labels == plain.clients[k].test.labels).all()
    fed = toy.start(Serial(), job("fedavg", "--data.missing_labels", "0.5")).fed
    for k in range(USERS):
        rows = set(fed.clients[k].train.rows)
        assert 0 < len(rows) < 12 and rows < set(plain.clients[k].train.rows)
        assert len(fed.clients[k].test) == len(plain.clients[k].test)


def test_no_rate_is_the_job_without_one():
    none = ("--modalities.missing", "0", "--data.wrong_labels", "0", "--data.missing_labels", "0")
    got, want = (toy.run(Serial(), job("fedavg", "--rounds", "1", *flags)) for flags in (none, ()))
    assert toy.differences(got, want) == []


@pytest.mark.parametrize("method", DIFFERENT)
def test_methods_of_each_category_run_on_modalities_or_name_the_field_to_set(method: str):
    mix = (
        "concat,mean" if algorithm(method)().accepts not in ("one architecture", "widths") else MIX
    )
    flags = ["--models.mix", mix, "--models.proxy", "mean", "--models.server", "concat"]
    if "public" in algorithm(method)().needs:
        flags += ["--data.public", "12"]
    try:
        outcome = toy.run(Serial(), job(method, *flags, "--rounds", "1"))
        assert np.isfinite(outcome.scores).any()
    except ConfigError as refusal:
        assert "; set " in str(refusal) or ", or set " in str(refusal)


@pytest.mark.parametrize("flags", [("--models.lora", "2"), ("--models.train", "head.*")])
def test_a_part_of_a_model_for_several_modalities_is_trained_from_the_weights_of_a_file(
    flags: tuple[str, ...], tmp_path: Path
):
    plain = toy.start(Serial(), job("fedavg")).fed
    torch.save(plain.store.build(plain.architectures[0]).state_dict(), tmp_path / "w.pt")
    start = toy.start(
        Serial(), job("fedavg", *flags, "--models.weights", str(tmp_path / "w.pt"))
    ).state
    assert {name for name in start if not name.endswith((".a", ".b"))} == {
        "head.weight",
        "head.bias",
    }
    assert (len(start) > 2) == (flags[0] == "--models.lora")


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--models.mix", "cnn"), "model cnn takes inputs of one kind, not several modalities"),
        (("--models.mix", "concat(note=conv2d)"), "no encoder conv2d for note, tokens .* gru"),
        (("--models.mix", "concat(smell=gru)"), "there is no modality 'smell'; the data have mot"),
        (("--models.mix", "concat(note=lstm)"), "no encoder 'lstm'"),
        (("--models.mix", "mean(note"), "write it as concat, or concat"),
        (("--models.widths", "0.5"), "model concat.* has no sub-models"),
        (("--attack.by", "backdoor", "--attack.share", "0.2"), "the inputs of .* several modali"),
        (("--modalities.use", "smell"), "modality 'smell': senses has motion, note, table"),
        (("--modalities.rate", "0.5"), "modalities.rate = 0.5 has no effect: modalities.clients"),
        (("--modalities.clients", "listed"), "needs modalities.sets"),
        (
            ("--modalities.clients", "listed", "--modalities.sets", "note+smell"),
            "names 'smell', but the data have motion, note, table",
        ),
        (
            ("--modalities.use", "table", "--modalities.clients", "natural"),
            "client 4 has none of table in its training examples",
        ),
        (OWN, "needs one architecture, but clients have encoders only of their own"),
        (("--local.augment", "affine"), "senses holds several modalities"),
        (("--data.least", "13"), "no user has more than 12 examples"),
        (("--data.least", "2", "--data.partition", "iid"), "data.least = 2 is about users"),
    ],
)
def test_impossible_values_are_refused(flags: tuple[str, ...], message: str):
    with pytest.raises(HpcfedError, match=message):
        toy.start(Serial(), job("fedavg", *flags))


def test_modalities_of_data_of_one_kind_are_refused():
    with pytest.raises(ConfigError, match="modalities.use = .* no effect: data has inputs of one"):
        toy.start(Serial(), toy.given("fedavg", "--modalities.use", "note"))
    with pytest.raises(ConfigError, match="model concat takes data with several modalities, not"):
        toy.start(Serial(), toy.given("fedavg", "--models.mix", "concat"))
