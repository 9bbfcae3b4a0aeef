"""Methods on texts: neither ranks nor a stop change a bit, what is for images is refused, real
tweets are learnt.
"""

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms import load as algorithm
from hpcfed.comm import Serial
from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError, DataError
from tests.contract import toy
from tests.contract.examination import Examination
from tests.contract.test_contract import (  # noqa: F401, these claims are examined here too
    test_clients_that_move_to_other_ranks_in_mid_run_do_not_matter,
    test_ranks_do_not_matter,
    test_saved_on_three_ranks_and_stopped_on_one_a_run_ends_on_two_to_the_same_bits,
)
from tests.unit.test_datasets import shared

METHODS = {  # one architecture, or both
    "fedavg": "lstm-1",
    "fedhenn": "lstm-1,lstm-2",
    "fedmd": "lstm-1,lstm-2",
}
GOOD, BAD, OTHER = (
    ("fine", "lovely", "sun"),
    ("awful", "sad", "rain"),
    ("the", "day", "was", "@you", "today", "it"),
)


@cache
def folder() -> Path:
    """Where a file with 72 + 24 made-up texts of 12 users lies."""
    toy.KEPT.append(TemporaryDirectory(prefix="hpcfed-tests-"))
    path, g = Path(toy.KEPT[-1].name), np.random.default_rng(0)
    with h5py.File(path / "words.h5", "w") as file:
        for part, n in (("train", 72), ("test", 24)):
            y = np.arange(n) % 2
            file[f"{part}/text"] = [sentence((BAD, GOOD)[label], g) for label in y]
            file[f"{part}/labels"], file[f"{part}/users"] = y, g.integers(0, 12, n)
    return path


def sentence(words: tuple[str, ...], g: np.random.Generator) -> str:
    """Between one and nine tokens, one of them telling."""
    text = [*g.choice(OTHER, g.integers(0, 8)), g.choice(words)]
    return " ".join(g.permutation(text)) + "!" * int(g.integers(0, 2))


def job(method: str, *flags: str) -> Job:
    """The toy job of a method on the made-up texts."""
    base = [
        str(Path(toy.__file__).with_suffix(".toml")),
        "--algorithm.name",
        method,
        "--data.tokens",
        "6",
    ]
    words = [
        "--data.name",
        str(folder() / "words.h5"),
        "--data.public",
        "12",
        "--data.partition",
        "natural",
    ]
    mix = [] if "--models.mix" in flags else ["--models.mix", METHODS[method]]
    fast = toy.SETTINGS.get(method, ()) if "algorithm" in str(toy.SETTINGS.get(method)) else ()
    return load([*base, *words, *mix, *fast, *flags], environ={})


@pytest.fixture(scope="module", params=METHODS)
def runs(request, tmp_path_factory) -> Examination:
    """The runs of one method on texts, for the claims that are imported above."""
    return Examination(request.param, tmp_path_factory.mktemp("texts"), (), job)


@pytest.mark.parametrize("engine", ["traced", "stacked"])
def test_an_lstm_is_not_replayed_and_trains_eagerly(engine: str):
    flags = ("--data.partition", "iid", "--local.optimiser", "sgd", "--training.engine")
    got, want = (toy.run(Serial(), job("fedavg", *flags, name)) for name in (engine, "eager"))
    assert toy.differences(got, want) == []


@pytest.mark.parametrize("method", ["fedavg", "fedmd"])
def test_the_loss_falls(method: str):
    flags = ("--participation", "1", "--rounds", "4", "--local.epochs", "3")
    flags += ("--evaluate.before", "false", "--evaluate.every", "1000")
    trained = toy.run(Serial(), job(method, *flags))
    loss = np.nanmean(trained.column("train_loss"), axis=1)
    assert 0 <= loss[-1] < 0.9 * loss[0]


ADVICE = (  # what to do instead
    *("; set ", ", or set ", "take another model", "leave such models out"),
    *("; use ", "; take ", "\n  take "),
)


@pytest.mark.parametrize("method", ALGORITHMS)
def test_every_method_runs_on_texts_or_names_the_field_to_set(method: str):
    cls = algorithm(method)()
    mix = "lstm-1" if cls.accepts in ("one architecture", "widths") else "lstm-1,lstm-2"
    flags = [
        "--models.mix",
        mix,
        "--models.proxy",
        "lstm-1",
        "--models.server",
        "lstm-2",
        "--rounds",
        "1",
        "--evaluate.before",
        "false",
    ]
    try:
        assert np.isfinite(toy.run(Serial(), job(method, *flags)).scores).any()
    except ConfigError as refusal:
        assert any(advice in str(refusal) for advice in ADVICE), refusal


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "classes", "shards", "quantity"])
def test_texts_are_shared_out_as_images_are(partition: str):
    rounds = toy.start(
        Serial(), job("fedavg", "--data.partition", partition, "--data.train_limit", "48")
    )
    assert (
        sum(rounds.fed.sizes) <= 48 and min(rounds.fed.sizes) > 0 and len(rounds.fed.public) == 12
    )


def test_two_views_of_texts_and_augmented_texts_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"fedclassavg trains on 2 augmented views .*algorithm.contrastive = false",
    ):
        toy.start(Serial(), job("fedclassavg", "--models.mix", "lstm-1"))
    with pytest.raises(ConfigError, match="local.augment = 'crop-flip', but words holds texts"):
        toy.start(Serial(), job("fedavg", "--local.augment", "crop-flip"))
    toy.run(
        Serial(),
        job("fedclassavg", "--models.mix", "lstm-1,lstm-2", "--algorithm.contrastive", "false"),
        rounds=1,
    )


def test_models_for_images_are_refused_and_so_are_public_texts_of_another_vocabulary(tmp_path):
    with pytest.raises(ConfigError, match="model cnn takes images .* use one of: lstm-1, lstm-2"):
        toy.start(Serial(), job("fedavg", "--models.mix", "cnn"))
    with pytest.raises(ConfigError, match="model lstm-1 has no sub-models"):
        toy.start(Serial(), job("heterofl", "--models.widths", "1,0.5", "--models.mix", "lstm-1"))
    with pytest.raises(DataError, match="texts have the vocabulary of their own data set"):
        other = shutil.copy(folder() / "words.h5", tmp_path)
        toy.start(Serial(), job("fedmd", "--data.public_source", str(other)))


def test_real_tweets_are_learnt():
    root = shared("sentiment140.h5").parent
    flags = (
        *("--data.name", "sentiment140", "--data.root", str(root), "--data.partition", "iid"),
        *("--data.tokens", "16", "--data.vocabulary", "1000", "--data.train_limit", "2000"),
        *("--clients", "2", "--participation", "1", "--rounds", "3", "--models.d", "32"),
        *("--local.batch", "32", "--local.lr", "0.01"),
        *("--evaluate.common", "true", "--evaluate.before", "false", "--evaluate.every", "3"),
    )
    trained = toy.run(Serial(), job("fedavg", *flags))
    assert trained.rows[-1]["rounds/accuracy_common"] > 0.6  # guessing: 0.5
